# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where the seconds of a build go, beside those of another commit.

    python tests/benchmarks/bench_build.py [--before REVISION] [--workloads vit_tiny] [--level 3]
        [--turns 3] [--json tests/benchmarks/results/build.json]

Builds each workload in turns, with this checkout and with a worktree of the other commit. Each
build is a process with caches of its own. Needs no Ray. The names of workloads for a GPU are in
`workloads.py`, such as `vit_large_gpu`.

- `compile`: from the built model until the inputs are proven, by torch.compile
- `code`: torch makes the code of libraries, and waits for a compiler where it runs one
- `wait`: for the C++ compiler, after that
- `pack`: all from the proof until the artifact is written, with the two above
- `whole`: the process without its imports and weights
- `cpu_s`: CPU seconds of the process and those that it waited for
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("compile", "code", "wait", "pack", "whole", "cpu_s")


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Yield a checkout of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "before"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--detach", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def build(root: Path, workload: str, level: int) -> dict[str, float]:
    """Return the seconds of one build with the code of a checkout, by part."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            name: str(Path(folder) / name)
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        for cache in caches.values():
            Path(cache).mkdir(mode=0o700)
        store = Path(folder) / "store"
        store.mkdir(mode=0o700)
        ended = subprocess.run(
            [sys.executable, __file__, "--one", str(root), workload, str(level), str(store)],
            env={**os.environ, **caches, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def one(root: Path, workload: str, level: int, store: Path) -> dict[str, float]:
    """Make one artifact in this process, and return the seconds of its parts."""
    sys.path[:0] = [str(root), str(root / "tests"), str(root / "tests/support")]
    import benchmarks.start_process as program
    from serve_warm.precompile.builders import library

    seconds = Counter[str]()

    def timed(owner: Any, name: str, part: str) -> None:
        stock: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(stock)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return stock(*args, **kwargs)
            finally:
                seconds[part] += time.monotonic() - began

        setattr(owner, name, run)

    timed(library._Graph, "_generate", "code")
    timed(library.Library, "finish", "wait")
    system = program.SYSTEMS["serve_warm"]
    timed(system, "save", "pack")
    options = program.Options(
        workload=workload,
        system="serve_warm",
        level=level,
        folder=str(store),
        spawned_s=time.monotonic(),
        role="produce",
    )
    found = program.run(options, program.Clock(options.spawned_s))
    seconds["compile"] = found["to_proof_s"]
    seconds["whole"] = seconds["compile"] + seconds["pack"]
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds["cpu_s"] += usage.ru_utime + usage.ru_stime
    return {part: round(seconds[part], 2) for part in PARTS}


def compare(roots: dict[str, Path], workload: str, level: int, turns: int) -> dict[str, Any]:
    """Return the medians of each side, and of the ratios within a turn."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in roots}
    for turn in range(turns):
        # Whoever is first finds a colder machine.
        for side in sorted(roots, reverse=bool(turn % 2)):
            runs[side].append(build(roots[side], workload, level))
            sys.stderr.write(f"{workload}, level {level}, {side}: {runs[side][-1]}\n")
    row: dict[str, Any] = {"workload": workload, "level": level, "turns": turns}
    for side, found in runs.items():
        row[side] = {part: statistics.median(each[part] for each in found) for part in PARTS}
    if len(runs) > 1:
        pairs = list(zip(runs["after"], runs["before"], strict=True))
        row["ratio"] = {
            part: round(statistics.median(a[part] / b[part] for a, b in pairs), 2)
            for part in PARTS
            if all(b[part] for _, b in pairs)
        }
    return row


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        root, workload, level, store = sys.argv[2:]
        found = one(Path(root), workload, int(level), Path(store))
        sys.stdout.write(json.dumps(found) + "\n")
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", metavar="REVISION", help="also build with this commit")
    parser.add_argument("--workloads", default="vit_tiny")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file that gets the results")
    options = parser.parse_args()
    with contextlib.ExitStack() as opened:
        roots = {"after": ROOT}
        if options.before is not None:
            roots["before"] = opened.enter_context(worktree(options.before))
        rows = [
            compare(roots, workload, options.level, options.turns)
            for workload in options.workloads.split(",")
        ]
    sys.path.insert(0, str(ROOT))
    from serve_warm.builder.bench import machine

    result = {"machine": machine(), "before": options.before, "rows": rows}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
