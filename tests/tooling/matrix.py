# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs version-dependent tests with the oldest and newest torch and Ray: `make matrix`.

    python tests/tooling/matrix.py [--only ROW ...] [--keep] [-- PYTEST ARGUMENT ...]

Each row has its own virtual environment under `build/matrix`, with this source tree, the versions
of the row, and all other versions from `constraints.txt`. The printed versions are read from the
environment, not from the table below. The program uses only the standard library, so that any
Python of the right version can run it.
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
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "matrix"

LEVELS = (
    "tests/replica/test_cold_warm.py",
    "tests/test_preload.py",
    "tests/replica/test_seats.py",
    "tests/compiler/test_watch.py",
    "tests/compiler/test_pgo.py",
    "tests/precompile/test_binding.py",
    "tests/precompile/test_compiled.py",
    "tests/precompile/test_dispatcher.py",
    "tests/precompile/test_entry_builder.py",
    "tests/precompile/test_fresh_process.py",
    "tests/precompile/test_states.py",
    "tests/precompile/test_level3.py",
    "tests/precompile/test_aoti_build.py",
    "tests/precompile/test_entries.py",
    "tests/precompile/test_guard_facts.py",
    "tests/precompile/test_eager_check.py",
    "tests/tooling/test_soundness.py",
    "tests/replica/test_ranks.py",
    "tests/compiler/test_cuda_graphs.py",
    "tests/precompile/test_aoti_graphs.py",
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

NAMED = ("python", "torch", "triton", "ray", "fastapi", "transformers")
"""Versions that the table shows."""


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
)
"""The oldest and newest supported versions. torch2.13 is a control, with the torch of CI."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one row."""

    row: Row
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """First line of each failure, by name of the test, or of the step before the tests."""


def run(row: Row, arguments: list[str], *, keep: bool) -> Outcome:
    """Install a row and run its tests. A failed installation is a failure of the row too."""
    environment = ENVIRONMENTS / row.name
    try:
        failure = install(row, environment)
        if failure:
            return Outcome(row=row, failures={"installation": failure})
        results = ENVIRONMENTS / f"{row.name}.xml"
        results.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        options += ["-m", "not stress", *row.options]
        ended = subprocess.run(
            [python(environment), "-m", "pytest", *options, *row.tests, *arguments],
            cwd=ROOT,
            env=clean_environment(),
            check=False,
        )
        return outcome(row, versions(environment), results, code=ended.returncode)
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


def versions(environment: Path) -> dict[str, str]:
    """Return the versions that are installed in an environment."""
    question = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {d.name: d.version for d in m.distributions()}\n"
        "found['python'] = platform.python_version()\n"
        "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
    )
    done = subprocess.run(
        [python(environment), "-c", question, *NAMED],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def outcome(row: Row, found: dict[str, str], results: Path, *, code: int) -> Outcome:
    """Return the result from pytest's report and exit code. An incomplete run is a failure too."""
    if not results.exists():
        said = f"it ended with {code} and wrote no results"
        return Outcome(row=row, versions=found, failures={"pytest": said})
    passed = skipped = 0
    failures = {}
    for case in ET.parse(results).iter("testcase"):
        bad = [element for element in case if element.tag in ("failure", "error")]
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        if bad:
            text = (bad[0].get("message") or bad[0].text or "").strip()
            failures[name] = text.splitlines()[0] if text else "no reason given"
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    if not passed and not failures:
        failures["pytest"] = "no test ran"
    if code and not failures:
        failures["pytest"] = f"it ended with {code}"
    return Outcome(row=row, versions=found, passed=passed, skipped=skipped, failures=failures)


def table(outcomes: list[Outcome]) -> str:
    """Return a line for each row, and below it one for each failure."""
    lines = [f"{'row':12} {'passed':>6} {'failed':>6} {'skipped':>7}  versions"]
    for ended in outcomes:
        found = " ".join(f"{name} {version}" for name, version in ended.versions.items())
        lines.append(
            f"{ended.row.name:12} {ended.passed:6} {len(ended.failures):6} {ended.skipped:7}  "
            f"{found or 'not installed'}"
        )
        lines += [f"    {name}: {text}" for name, text in ended.failures.items()]
    return "\n".join(lines)


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
    outcomes = []
    for row in ROWS:
        if asked.only and row.name not in asked.only:
            continue
        sys.stdout.write(f"=== {row.name}\n")
        sys.stdout.flush()
        outcomes.append(run(row, asked.arguments, keep=asked.keep))
    sys.stdout.write(table(outcomes) + "\n")
    return any(ended.failures for ended in outcomes)


if __name__ == "__main__":
    sys.exit(main())
