# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that builds or starts groups, and appends the results to a file as JSON.

    python tests/soundness/process.py QUESTION.json    # {"do": "build", "folder": .., "tasks": ..}

Each task writes a line when it begins, and a line with its result. If the process dies, the last
line names the task that killed it, and `runs` continues with the next task.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from soundness import judge, table
from soundness.judge import DishonestRow


def main(do: str, folder: str, tasks: list[list[Any]]) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    gc.freeze()  # rows collect garbage: do not visit the objects of torch again for each row
    with (Path(folder) / f"{do}.jsonl").open("a") as results:

        def write(**found: Any) -> None:
            results.write(json.dumps(found) + "\n")
            results.flush()

        for number, task in enumerate(tasks, start=1):
            write(begins=task)
            start = time.perf_counter()
            found = TASKS[do](Path(folder), *task)
            took_s = time.perf_counter() - start
            write(task=task, **found)
            words = " ".join(f"{name}={found[name]}" for name in SHOWN if name in found)
            sys.stderr.write(f"{do} {number}/{len(tasks)} {' '.join(map(str, task))}: {words} ")
            sys.stderr.write(f"({took_s:.1f} s)\n")


SHOWN = ("ready", "made", "level2", "level3", "stock", "raised", "reason")


def build(folder: Path, name: str, level: int) -> dict[str, Any]:
    """Make the entries of one group for one level."""
    return judge.build(table.GROUPS[name], level, where(folder, name, level))


def start(folder: Path, group: str, row: str, when: str) -> dict[str, Any]:
    """Judge one row at each level, and with torch.compile."""
    built = builds(folder)
    of = table.GROUPS[group]
    [chosen] = [each for each in of.rows if each.name == row]
    found: dict[str, Any] = {"kind": of.kind, "torch": torch.__version__}
    reasons = []
    try:
        for level in judge.LEVELS:
            made = built[group, level]
            at = where(folder, group, level)
            verdict = judge.judge(of, chosen, when, level=level, built=made, folder=at)
            found[f"level{level}"] = verdict.value
            reasons.append(f"level {level}: {verdict.reason}" if verdict.reason else "")
        verdict = judge.stock(of, chosen, when)
    except DishonestRow as error:
        return {**found, "dishonest": str(error), "reason": str(error)}
    found["stock"] = verdict.value
    found["reason"] = "; ".join(filter(None, [*reasons, verdict.reason]))
    return found


TASKS = {"build": build, "start": start}


def where(folder: Path, name: str, level: int) -> Path:
    """Return the folder of a group's entries."""
    return folder / "entries" / re.sub(r"\W+", "_", name) / f"level{level}"


def builds(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the facts of each build, by group and level."""
    lines = map(json.loads, (folder / "build.jsonl").read_text().splitlines())
    return {tuple(line["task"]): line for line in lines if "task" in line}


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
