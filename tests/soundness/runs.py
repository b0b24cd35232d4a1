# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A run of rows: one process builds all groups, and another starts and judges all rows.

A row may kill its process. This counts as its verdict, and a new process continues with the next
row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import search_path
from soundness.judge import LEVELS
from soundness.rows import Group

HERE = Path(__file__).parent


def run(groups: Mapping[str, Group], folder: Path, *, python: str = "") -> list[dict[str, Any]]:
    """Build and judge all rows of some groups. Return a record for each row, in order.

    Tasks that an earlier run finished in `folder` are not repeated. The environment of `python` has
    the versions to judge.
    """
    folder.mkdir(parents=True, exist_ok=True)
    builds = [[name, level] for name in groups for level in LEVELS]
    starts = [
        [name, row.name, when]
        for name, group in groups.items()
        for row in group.rows
        for when in row.when
    ]
    _done(folder, "build", builds, python)
    judged = _done(folder, "start", starts, python)
    return [_record(judged[tuple(task)]) for task in starts]


def guards(folder: Path) -> dict[str, set[str]]:
    """Return the kinds of guards that Dynamo installed in the builds of a run, by group."""
    found, _ = _read(folder / "build.jsonl")
    kinds: dict[str, set[str]] = {}
    for (name, _), line in found.items():
        kinds.setdefault(name, set()).update(line["guards"])
    return kinds


def _record(line: Mapping[str, Any]) -> dict[str, Any]:
    _, row, when = line["task"]
    found = {"name": f"{row}, at the start" if when == "start" else row}
    for name in ("kind", "torch", "level2", "level3", "stock", "reason", "dishonest"):
        if name in line:
            found[name] = line[name]
    return found


def _done(
    folder: Path, do: str, tasks: Sequence[Sequence[Any]], python: str
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Do all tasks that are not done yet. Return the line of each task."""
    results = folder / f"{do}.jsonl"
    while True:
        found, died = _read(results)
        if died is not None:
            _append(results, {"task": died, **KILLED})
            continue
        left = [task for task in tasks if tuple(task) not in found]
        if not left:
            return found
        before = len(found)
        code = _process(folder, do, left, python)
        found, died = _read(results)
        if code and died is None and len(found) == before:
            raise RuntimeError(f"the process for {do} ended with {code} before its first task")


KILLED: Mapping[str, Any] = {
    "kind": "",
    "torch": "",
    "level2": "raises",
    "level3": "raises",
    "stock": "right",
    "reason": "the process died",
    "raised": "the process died",
    "made": [],
    "refused": [],
    "guards": [],
}


def _read(results: Path) -> tuple[dict[tuple[Any, ...], dict[str, Any]], Sequence[Any] | None]:
    """Return the lines by task, and the task that began and did not end, if there is one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    began = None
    for text in results.read_text().splitlines() if results.exists() else ():
        line = json.loads(text)
        if "begins" in line:
            began = line["begins"]
        else:
            found[tuple(line["task"])] = line
            began = None
    return found, began


def _append(results: Path, line: Mapping[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _process(folder: Path, do: str, tasks: Sequence[Sequence[Any]], python: str) -> int:
    question = folder / f"{do}.tasks.json"
    question.write_text(json.dumps({"do": do, "folder": str(folder), "tasks": list(tasks)}))
    ended = subprocess.run(
        [python or sys.executable, str(HERE / "process.py"), str(question)],
        env=environment(folder, SOUNDNESS_FOLDER=str(folder)),
        check=False,
    )
    return ended.returncode


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a process that builds or starts rows or programs in a folder."""
    return {
        **os.environ,
        "PYTHONPATH": search_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        # torch's probes of the CPU do not affect entries, and take five seconds of a build.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "CXX": str(HERE / "cxx"),
        "SOUNDNESS_OBJECTS": str(folder.parent / "objects"),
        **more,
    }
