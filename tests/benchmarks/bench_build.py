# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The seconds that each phase of a build takes, before and after a change.

    python tests/benchmarks/bench_build.py --before REV > tests/benchmarks/results/build.json

The program checks out each revision into its own folder below `build/`. Both revisions build the
applications of `build_apps.py`, and those of `deployments/`, with `serve-warm build --json`. The
builds alternate, so that other work on the machine slows down both. Each build starts from empty
caches.

Seconds are medians over the turns. `load` is the machine's load average. `ratio` is the median over
the turns of the seconds after the change, divided by the seconds before it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
APPS = ("entries", "libraries")
DEPLOYMENTS = (
    *("text_embedder", "image_classifier", "image_generator", "speech_to_text", "text_generator"),
)

TRIPS = "round trips"
TRIES = 3
"""Attempts per build, because Ray may fail to start on a busy machine."""

WHOLE = "whole"
"""The wall time of the whole command: all phases, and the start and end of Ray."""


def build(checkout: Path, app: str) -> dict[str, float]:
    """Return the wall seconds by phase of one build with the code in `checkout`."""
    search = os.pathsep.join(map(str, (checkout, Path(__file__).parent)))
    target = f"build_apps:{app}"
    if app in DEPLOYMENTS:
        target = str(checkout / "deployments" / app / "serve.yaml")
    with tempfile.TemporaryDirectory(prefix="sw-") as store:
        began = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "serve_warm.cli", "build", target),
                *("--store", store, "--json"),
            ],
            # `-m` searches the working directory before PYTHONPATH, so it must not have another
            # serve_warm.
            cwd=store,
            env={**os.environ, "PYTHONPATH": search},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        took = time.perf_counter() - began
    found = json.loads(done.stdout)
    seconds: dict[str, float] = found["seconds"]
    sys.stderr.write(f"levels: {found.get('levels')}\n")
    # Older revisions run the round trips in sequence, and report no total.
    own = sum(each for name, each in seconds.items() if name.startswith("round trip"))
    return {**seconds, TRIPS: seconds.get(TRIPS, own), WHOLE: took}


def _build_in_the_end(checkout: Path, app: str) -> dict[str, float]:
    for _ in range(TRIES - 1):
        with contextlib.suppress(subprocess.CalledProcessError):
            return build(checkout, app)
    return build(checkout, app)


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yield a folder with a revision of this repository."""
    git = ("git", "-C", str(ROOT), "worktree")
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        place = Path(folder) / "checkout"
        subprocess.run([*git, "add", "--detach", place, revision], check=True, stdout=sys.stderr)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", place], check=True, stdout=sys.stderr)


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each phase that all runs have, in order."""
    common = [phase for phase in runs[0] if all(phase in run for run in runs)]
    return {phase: round(statistics.median(run[phase] for run in runs), 2) for phase in common}


def compare(app: str, places: Mapping[str, Path], *, turns: int) -> dict[str, Any]:
    """Return an application's row. The sides build in turn, and alternate in which goes first."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in places}
    loads = []
    for turn in range(turns):
        for side in sorted(places, reverse=turn % 2 == 0):
            loads.append(os.getloadavg()[0])
            runs[side].append(_build_in_the_end(places[side], app))
            sys.stderr.write(f"{app}, turn {turn + 1}, {side}: {runs[side][-1]}\n")
    pairs = list(zip(runs["before"], runs["after"], strict=True))
    return {
        "app": app,
        "turns": turns,
        "load": round(statistics.median(loads), 1),
        **{side: medians(each) for side, each in runs.items()},
        "ratio": {
            phase: round(statistics.median(new[phase] / old[phase] for old, new in pairs), 2)
            for phase in ("compile", "pack", TRIPS, WHOLE)
        },
    }


def versions() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    import ray
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "ray": ray.__version__}


def main() -> None:
    """Write the figures to stdout as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, help="revision to compare with")
    parser.add_argument("--after", default="HEAD")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--app", action="append", choices=APPS + DEPLOYMENTS)
    asked = parser.parse_args()
    with checked_out(asked.before) as before, checked_out(asked.after) as after:
        places = {"before": before, "after": after}
        rows = [compare(app, places, turns=asked.turns) for app in asked.app or APPS + DEPLOYMENTS]
    found = {
        "machine": {"cpu": platform.machine(), "cpus": os.cpu_count()},
        "versions": versions(),
        "rows": rows,
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
