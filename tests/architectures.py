# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Results of models that people serve at levels 2 and 3, with the reasons for failures.

    python tests/architectures.py --json tests/benchmarks/results/architectures.json [NAME ...]

`served_models` has the rows: tiny models with random weights. One process makes the entries.
Another process loads them, and compares the results with eager execution. `make architectures`
installs the packages that the rows need. A run of all rows takes hours. `--minutes` ends it early,
and the next run continues it. `--second` runs the second list, which was written before any of its
models was compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from served_models.table import ROWS, SECOND

if TYPE_CHECKING:
    from served_models.rows import Row

HERE = Path(__file__).parent

LIBRARIES = (
    "transformers",
    "diffusers",
    "timm",
    "peft",
    "sentence-transformers",
    "torch_geometric",
    "torchao",
    "open_clip_torch",
)

WRONG = 1e-3
"""Largest allowed error, relative to the largest value."""

COMPILE = 1
"""The level of torch.compile itself. Only its seconds are measured."""


class Asked:
    """A process of `served_models/process.py`, which answers one question at a time."""

    def __init__(self, do: str, cache: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "served_models" / "process.py"), do],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
                "TORCHINDUCTOR_CACHE_DIR": str(cache),
                # Pools of processes and probes of the CPU take time, and do not affect entries.
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TORCHINDUCTOR_VEC_ISA_OK": "1",
                "HF_HUB_OFFLINE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, level: int, folder: Path, limit_s: float) -> dict[str, Any]:
        """Return the answer about a row."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"name": name, "level": level, "folder": str(folder), "limit_s": limit_s}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        """End the process."""
        with self._process:  # closes its pipes, which ends it
            pass


@contextlib.contextmanager
def processes(cache: Path, *names: str) -> Iterator[dict[str, Asked]]:
    """Start a process for each kind of question, and end them."""
    started = {do: Asked(do, cache) for do in names}
    try:
        yield started
    finally:
        for each in started.values():
            each.end()


def take(asked: dict[str, Asked], name: str, level: int, limit_s: float) -> dict[str, Any]:
    """Return the result of a row at a level. `served` also requires correct numbers."""
    with tempfile.TemporaryDirectory() as folder:
        made = asked["make"].ask(name, level, Path(folder), limit_s)
        if "failed" in made:
            return _not_served(made["failed"])
        loaded = asked["load"].ask(name, level, Path(folder), limit_s)
    if "failed" in loaded:
        return {**_not_served(loaded["failed"]), "make_s": made["make_s"]}
    is_right = loaded["error"] <= WRONG and loaded["same_class"]
    reason = made["refused"] or loaded["reason"]
    if not is_right:
        reason = f"wrong: {reason}"
    elif loaded["compiles"]:
        reason = f"{loaded['compiles']} compiles: {reason}"
    return {
        "served": loaded["level"] == level and is_right and not loaded["compiles"],
        "reason": reason,
        "error": loaded["error"] if math.isfinite(loaded["error"]) else None,
        "is_right": is_right,
        "make_s": made["make_s"],
        "load_s": loaded["load_s"],
        "facts": made["facts"],
    }


def _not_served(reason: str) -> dict[str, Any]:
    return {
        "served": False,
        "reason": reason,
        "error": None,
        "is_right": True,
        "make_s": None,
        "load_s": None,
        "facts": 0,
    }


def versions() -> dict[str, str]:
    """Return the versions that the table was made with."""
    found = {"python": platform.python_version()}
    for name in ("torch", *LIBRARIES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class Results:
    """The file of results, which a run adds to row by row."""

    def __init__(self, path: Path, listed: Mapping[str, Row], *, resume: bool) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {
            name: {"name": name, "library": row.library, "shapes": row.shapes}
            for name, row in listed.items()
        }
        if resume and path.exists():
            for row in json.loads(path.read_text())["rows"]:
                if row["name"] in self.rows:
                    self.rows[row["name"]].update(row)

    def is_done(self, name: str, level: int) -> bool:
        """Return whether a row has a result for a level."""
        return self.rows[name].get(key_of(level)) is not None

    def add(self, name: str, level: int, found: Any) -> None:
        """Add a row's result for a level, and write the file."""
        self.rows[name][key_of(level)] = found
        self.write()

    def write(self) -> None:
        """Write the file, with null for rows that were not run."""
        plain = {
            "machine": platform.machine(),
            "versions": versions(),
            "rows": [
                {"level_2": None, "level_3": None, "torch_compile_s": None, **row}
                for row in self.rows.values()
            ],
        }
        beside = self._path.with_suffix(".part")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(plain, indent=1) + "\n")
        beside.replace(self._path)


def key_of(level: int) -> str:
    """Return the key of a level's result in a row."""
    return "torch_compile_s" if level == COMPILE else f"level_{level}"


def run(options: argparse.Namespace, results: Results) -> int:
    """Run rows until none are left or the time is over. Return how many results are left."""
    ends = time.monotonic() + options.minutes * 60
    names = options.names or list(results.rows)
    left = [
        (name, level)
        for level in options.levels
        for name in names
        if options.again or not results.is_done(name, level)
    ]
    cache = Path(options.cache)
    with processes(
        cache,
        *(["make", "load"] if set(options.levels) - {COMPILE} else []),
        *(["compile"] if COMPILE in options.levels else []),
    ) as asked:
        while left and time.monotonic() < ends:
            name, level = left.pop(0)
            if level == COMPILE:
                found = _compile_s(asked["compile"], name, options.limit_s)
            else:
                found = take(asked, name, level, options.limit_s)
            results.add(name, level, found)
            sys.stdout.write(f"{level} {name:32} {_line(found)}\n")
            sys.stdout.flush()
    return len(left)


def _compile_s(asked: Asked, name: str, limit_s: float) -> float | str:
    folder = tempfile.mkdtemp()
    try:
        found = asked.ask(name, COMPILE, Path(folder), limit_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds: float | str = found.get("torch_compile_s", found.get("failed"))
    return seconds


def _line(found: Any) -> str:
    if not isinstance(found, dict):
        return str(found)
    error = "" if found["error"] is None else f"{found['error']:.0e}"
    return (
        f"{'served' if found['served'] else 'no':7} {error:7} {found['make_s']} {found['reason']}"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--levels", type=lambda text: [int(n) for n in text.split(",")], default=[2, 3, 1]
    )
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--limit-s", type=float, default=420.0)
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "architectures")
    parser.add_argument("--anew", action="store_true", help="discard the results in the file")
    parser.add_argument("--again", action="store_true", help="run the named rows once more")
    parser.add_argument("--second", action="store_true", help="run the second list")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if options.again and not options.names:
        parser.error("--again needs names: to run all rows once more, use --anew")
    listed = SECOND if options.second else ROWS
    left = run(options, Results(options.json, listed, resume=not options.anew))
    if left:
        sys.stdout.write(f"{left} results left: run this again\n")


if __name__ == "__main__":
    main()
