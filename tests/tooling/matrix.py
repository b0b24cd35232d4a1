# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs version-dependent tests with the oldest and newest torch and Ray: `make matrix`.

    python tests/tooling/matrix.py [--only ROW ...] [--keep] [-- PYTEST ARGUMENT ...]

Each row has its own virtual environment under `build/matrix`, with this source tree, the versions
of the row, and all other versions from `constraints.txt`. `make newest` runs the row `newest`: the
unit tests with what a user gets who installs serve_warm today. The program uses only the standard
library, so that any Python of the right version can run it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "matrix"

LEVELS = (
    "tests/replica/start/test_cold_warm.py",
    "tests/seats/test_preload.py",
    "tests/seats/test_seats.py",
    "tests/compiler/test_watch.py",
    "tests/precompile/dispatch/test_binding.py",
    "tests/precompile/test_compiled.py",
    "tests/precompile/dispatch/test_dispatcher.py",
    "tests/precompile/builders/test_builder.py",
    "tests/properties/test_fresh_process.py",
    "tests/properties/test_states.py",
    "tests/properties/test_level3.py",
    "tests/precompile/builders/test_library.py",
    "tests/precompile/entries/test_entry_table.py",
    "tests/precompile/trace/test_created_objects.py",
    "tests/precompile/trace/test_dict_lookups.py",
    "tests/precompile/trace/test_guard_facts.py",
    "tests/precompile/trace/test_identities.py",
    "tests/precompile/trace/test_output_aliases.py",
    "tests/precompile/trace/test_set_orders.py",
    "tests/precompile/trace/test_unguarded_reads.py",
    "tests/precompile/parity/test_eager.py",
    "tests/precompile/parity/test_full_precision.py",
    "tests/precompile/parity/test_distance.py",
    "tests/precompile/parity/test_service_check.py",
    "tests/tooling/test_soundness.py",
    "tests/replica/replay/test_ranks.py",
    "tests/compiler/test_cuda_graphs.py",
    "tests/precompile/libraries/test_library_graphs.py",
    "tests/compiler/test_gpu_costs.py",
    "tests/compiler/test_triton_kernels.py",
    "tests/compiler/test_tuning.py",
)
"""The tests that use torch: the watch, the caches, cold against warm, levels 2 and 3, and the parts
of CUDA graphs, kernels and tunings that need no GPU."""

REPLICAS = (
    "tests/integration/test_lifecycle.py",
    "tests/integration/test_deployment_shapes.py",
    "tests/integration/test_policies.py",
    "tests/integration/test_refused_starts.py",
    "tests/integration/test_gang.py",
    "tests/integration/test_seats.py",
    "tests/integration/test_seat_jobs.py",
    "tests/builder/test_check.py",
)
"""The tests that use Serve: the hook, the gate, threads, routes, gangs if this Ray has them, and
killed replicas."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One environment, and the tests that run in it."""

    name: str
    pins: dict[str, str]
    """Version by distribution, which replaces the pin in constraints.txt; "" takes the newest."""
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Options for pytest."""
    packages: tuple[str, ...] = ()
    """Distributions to install beside the project and its extras."""


def runtime_dependencies() -> tuple[str, ...]:
    """Return the distributions that users install, and those of the extras for users."""
    text = (ROOT / "pyproject.toml").read_text()
    flags = re.MULTILINE | re.DOTALL
    lists = re.findall(r"^(?:dependencies|generation|examples) = \[(.*?)\]$", text, flags)
    return tuple(sorted(set(re.findall(r'"([A-Za-z][\w.-]*)', "".join(lists)))))


OTHER_ROWS_HAVE = ("torch",)
"""Dependencies whose versions have rows of their own, because a version is supported only after
its private functions were read (`make upstream`)."""

ROWS = (
    Row(name="torch2.11", pins={"torch": "==2.11.*"}, tests=LEVELS),
    Row(name="torch2.13", pins={}, tests=LEVELS),
    Row(name="torch2.15", pins={"torch": "==2.15.*"}, tests=LEVELS),
    # This Ray pickles FastAPI apps directly, but newer apps hold locks. It also reads the label of
    # protobuf fields, which protobuf 7 no longer has.
    Row(
        name="ray2.53",
        pins={"ray": "==2.53.*", "fastapi": "<0.125", "protobuf": "<7"},
        tests=REPLICAS,
        # This Ray leaves /dev/null and its child processes to the garbage collector.
        options=("-W", "ignore::ResourceWarning"),
    ),
    Row(name="ray-newest", pins={"ray": ""}, tests=REPLICAS),
    # The tools that test it stay pinned, so a failure is one of a dependency.
    Row(
        name="newest",
        pins=dict.fromkeys(set(runtime_dependencies()).difference(OTHER_ROWS_HAVE), ""),
        tests=(),
        options=("-m", "unit"),
    ),
)
"""The oldest and newest supported versions. torch2.13 is a control, with the torch of CI."""


def run(row: Row, arguments: list[str], *, keep: bool) -> str:
    """Install a row and run its tests. Return why the row failed, or an empty string."""
    environment = ENVIRONMENTS / row.name
    try:
        failure = install(row, environment)
        if failure:
            return failure
        differing = ", ".join(differences(environment)) or "nothing"
        sys.stdout.write(f"Differs from locks/ci.txt: {differing}\n")
        sys.stdout.flush()
        ended = subprocess.run(
            [
                *(python(environment), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-m", "not stress", *row.options, *row.tests, *arguments),
            ],
            cwd=ROOT,
            env=clean_environment(),
            check=False,
        )
        return f"pytest ended with {ended.returncode}" if ended.returncode else ""
    finally:
        if not keep:
            shutil.rmtree(environment, ignore_errors=True)


def install(row: Row, environment: Path) -> str:
    """Make the environment of a row unless it exists; return pip's error, or an empty string."""
    wanted = constraints(row)
    ready = environment / "constraints.txt"  # written last: an interrupted run starts over
    if ready.exists() and ready.read_text() == wanted:
        return ""
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, symlinks=True, with_pip=True)
    unfinished = environment / "constraints.unfinished.txt"
    unfinished.write_text(wanted)
    for what in (
        ["--upgrade", "pip"],
        ["--constraint", str(unfinished), "--editable", ".[dev,examples]", *row.packages],
    ):
        done = subprocess.run(
            [python(environment), "-m", "pip", "install", "--quiet", *what],
            cwd=ROOT,
            env=clean_environment(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return " ".join(lines) or f"pip ended with {done.returncode}"
    unfinished.rename(ready)
    return ""


def differences(environment: Path) -> list[str]:
    """Return the packages of an environment whose versions are not in the lock."""
    command = [python(environment), "-m", "pip", "list", "--format", "json", "--exclude-editable"]
    listed = subprocess.run(
        command, env=clean_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    locked: dict[str, set[str]] = {}
    for pin in re.finditer(r"^([\w-]+)==(\S+)", (ROOT / "locks/ci.txt").read_text(), re.MULTILINE):
        locked.setdefault(pin[1], set()).add(pin[2])
    found = {
        re.sub("[_.-]+", "-", p["name"]).lower(): p["version"] for p in json.loads(listed.stdout)
    }
    return [
        f"{name} {version} (locked: {' or '.join(sorted(locked.get(name, {'none'})))})"
        for name, version in sorted(found.items())
        if version not in locked.get(name, ())
    ]


def python(environment: Path) -> str:
    """Return the path of an environment's own Python."""
    return str(environment / "bin" / "python")


def constraints(row: Row) -> str:
    """Return constraints.txt with the pins of a row instead of its own."""
    lines = []
    left = dict(row.pins)
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name = re.match(r"[\w.-]*", line)[0]  # type: ignore[index]
        if name not in row.pins:
            lines.append(line)
        elif left.pop(name, ""):
            lines.append(name + row.pins[name])
    lines += [name + version for name, version in left.items() if version]
    return "\n".join(lines) + "\n"


def clean_environment() -> dict[str, str]:
    """Return the environment variables, without those that add packages of other environments."""
    names = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in names}


def main() -> int:
    """Run the rows one after the other; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("--only", action="append", choices=names, help="a row; may be repeated")
    parser.add_argument(
        "--keep", action="store_true", help="leave the environments for the next run"
    )
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    asked = parser.parse_args()
    failures = {}
    for row in ROWS:
        if asked.only and row.name not in asked.only:
            continue
        sys.stdout.write(f"=== {row.name}\n")
        sys.stdout.flush()
        failures[row.name] = run(row, asked.arguments, keep=asked.keep)
    sys.stdout.writelines(f"{name:12} {why or 'passed'}\n" for name, why in failures.items())
    return any(failures.values())


if __name__ == "__main__":
    sys.exit(main())
