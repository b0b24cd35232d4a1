# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The time that a level-3 replica takes to import serve_warm, after torch and Ray Serve.

    python tests/benchmarks/bench_imports.py [--repeats 9] [--json out.json]

Each process imports torch and Ray Serve, and then all modules of serve_warm that a level-3 replica
has loaded when it is READY. `wall_s` and `cpu_s` are from processes without a profiler.
`by_module_s` is each module's own time, from processes with `-X importtime`, which adds about a
tenth.

Garbage collection is off while serve_warm is imported. A full collection visits all objects of
torch and Ray, which takes 200 ms. This time would be added to the import that it interrupts.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

LIMIT_S = 0.06
"""Limit for the CPU time of importing the package."""

BEFORE = ("torch", "ray.serve._private.replica")
START = (
    *("serve_warm.replica.serve.deployment", "serve_warm.precompile.compiled", "serve_warm.inputs"),
    *("serve_warm.precompile.parity.checks", "serve_warm.precompile.parity.idle_checks"),
    "serve_warm.stores.local",
)
"""Importing these modules loads all modules of a level-3 start. tests/integration/test_libraries.py
compares the loaded modules with those of a replica."""

NOT_IN_A_START = frozenset(
    {
        *(f"serve_warm.precompile.trace.{name}" for name in ("capture", "guard_facts")),
        *(f"serve_warm.precompile.builders.{name}" for name in ("builder", "cpp", "library")),
        *("serve_warm.precompile.trace.dynamo_hooks", "serve_warm.artifact.push"),
        *("serve_warm.artifact.catalog", "serve_warm.stores.hub", "serve_warm.stores.object_store"),
        *("cryptography.hazmat.primitives.serialization", "serve_warm.builder", "serve_warm.cli"),
    }
)
"""Modules that only a build, a command or another store needs."""

SHOWN = 15

PROGRAM = """
import gc, importlib, json, sys, time
before, start = json.loads(sys.argv[1])
for name in before:
    importlib.import_module(name)
gc.disable()
known = set(sys.modules)
sys.stderr.write("begin\\n")
wall_s, cpu_s = time.perf_counter(), time.process_time()
for name in start:
    importlib.import_module(name)
took = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
sys.stdout.write(json.dumps({**took, "modules": sorted(set(sys.modules) - known)}) + "\\n")
"""


def run(*flags: str, folder: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the times of one process, and with `-X importtime` the seconds of each module."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": folder}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM, json.dumps([BEFORE, START])],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ended.stderr.partition("begin\n")[2].splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines if "|" in line]
    return json.loads(ended.stdout), {name.strip(): int(own) / 1e6 for own, _, name in rows}


def measure(repeats: int) -> dict[str, Any]:
    from serve_warm.builder.bench import machine

    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        found, _ = run(folder=folder)  # writes the bytecode
        runs = [run(folder=folder)[0] for _ in range(repeats)]
        profiles = [run("-X", "importtime", folder=folder)[1] for _ in range(repeats)]
    by_module: dict[str, list[float]] = collections.defaultdict(list)
    for profile in profiles:
        for name, own_s in profile.items():
            by_module[name].append(own_s)
    least = {name: min(each) for name, each in by_module.items()}
    ours = [name for name in found["modules"] if name.partition(".")[0] == "serve_warm"]
    about = machine()
    return {
        "machine": {k: v for k, v in about.items() if k not in ("torch", "ray", "serve_warm")},
        "versions": {name: about[name] for name in ("torch", "ray", "serve_warm")},
        "load": round(os.getloadavg()[0], 1),
        "limit_s": LIMIT_S,
        "wall_s": [round(each["wall_s"], 4) for each in runs],
        "cpu_s": [round(each["cpu_s"], 4) for each in runs],
        "importtime_s": [round(sum(each.values()), 4) for each in profiles],
        "modules": len(ours),
        "libraries_s": round(sum(s for name, s in least.items() if name not in ours), 4),
        "by_module_s": {
            name: round(least[name], 4) for name in sorted(least, key=lambda n: -least[n])[:SHOWN]
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.repeats)
    text = json.dumps(found, indent=1)
    if options.json is not None:
        options.json.write_text(f"{text}\n")
    sys.stdout.write(f"{text}\n")
    cpu_s = statistics.median(found["cpu_s"])
    sys.stderr.write(f"{cpu_s * 1e3:.0f} ms of CPU, limit {LIMIT_S * 1e3:.0f} ms\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
