# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A search for wrong answers after changes of random programs.

    python tests/soundness/fuzz.py --minutes 20 --seed 1 --json FILE [--programs N] [--folder F]
        [--resume] [--only KIND]

A program is one read, one change, one moment (`start` or `ready`) and one level. It counts only if
an entry of the level answered its unchanged form. Several reads share a module, and all programs of
a module share its builds. Eager execution of the changed module is the truth. The verdicts:

    right     the answer is eager's, and an entry of the level gave it
    level1    the answer is eager's, and the call fell back to level 1
    wrong     the answer differs from eager's
    raises    the call raises or kills its process; neither eager nor torch.compile does

The modules are `grammar`'s. Each failure is made smaller, and printed as a script that shows it
alone. Progress goes to stderr. The exit status is 1 if a program is wrong or raises.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import itertools
import json
import logging
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from soundness import grammar, judge, programs, runs, shrink
from soundness.programs import CHANGES, MOMENTS, Program, Subject, Verdict

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"

MODULES = 150
"""Modules that one process runs. Libraries stay loaded, so a process grows."""

# Runs -----------------------------------------------------------------------------------------


class Worker:
    """Runs modules in this process, and appends a line for each to a file."""

    def __init__(self, folder: Path, seed: int, only: str, skipped: Sequence[Any] = ()) -> None:
        self.folder, self.seed, self.only = folder, seed, only
        self.skipped = list(skipped)
        self.where = folder / "modules"
        self.where.mkdir(parents=True, exist_ok=True)

    def run(self, index: int) -> dict[str, Any]:
        """Return the record of one module."""
        self.now(index, "made")
        of = programs.subject(self.seed, index, self.only)
        folder = self.where / str(index)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return {"module": index, **self.judged(index, of, folder)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            sys.modules.pop(of.name, None)

    def judged(self, index: int, of: Subject, folder: Path) -> dict[str, Any]:
        refused: list[list[str]] = []
        made = self.built(index, of, 2, folder)
        if 2 not in made["made"]:
            of = self.without_refused(index, of, folder, refused)
            made = self.built(index, of, 2, folder) if of.reads else made
        found: dict[str, Any] = record(refused=refused)
        for level in judge.LEVELS if of.reads else ():
            if level == 3:
                made = self.built(index, of, 3, folder)
            if level not in made["made"]:
                refused.append([f"level {level}", *reasons(made)])
                continue
            found["builds"] += 1
            for n, change, moment in itertools.product(of.reads, range(CHANGES), MOMENTS):
                if change < len(of.changes[n]):
                    how = of.changes[n][change]
                    self.judge(
                        found,
                        index,
                        Program(subject=of, n=n, change=how, moment=moment, level=level),
                        folder,
                    )
        return found

    def without_refused(
        self, index: int, of: Subject, folder: Path, refused: list[list[str]]
    ) -> Subject:
        """Return the module without the reads that can have no entry."""
        kept = {}
        for n, read in of.reads.items():
            made = self.built(index, of.alone(n, of.changes[n]), 2, folder)
            if 2 in made["made"]:
                kept[n] = read
            else:
                refused.append([read.kind, *reasons(made), repr(read)])
        return programs.settled(of.name, kept, {n: of.changes[n] for n in kept}, of.callee)

    def judge(self, found: dict[str, Any], index: int, program: Program, folder: Path) -> None:
        """Add the verdict of a program to the record of its module."""
        task = [index, *program.task]
        if task in self.skipped:
            result = Verdict(value="raises", reason="the process died")
        else:
            self.now(*task)
            result = programs.verdict(program, folder)
        if not result.value:
            why = result.reason[:80]
            found["not counted"][why] = found["not counted"].get(why, 0) + 1
            return
        read, change = program.subject.reads[program.n], program.change
        found["verdicts"][result.value] = found["verdicts"].get(result.value, 0) + 1
        pair = [read.kind, change.kind]
        if pair not in found["pairs"]:
            found["pairs"].append(pair)
        if result.value in ("wrong", "raises"):
            found["failures"].append(
                {
                    "read": dataclasses.asdict(read),
                    "change": [
                        dataclasses.replace(each, before=change.before)
                        for each in grammar.changes_of(read, program.n)
                    ].index(change),
                    "n": program.n,
                    "before": change.before,
                    "callee": program.subject.callee,
                    "text": program.subject.text,
                    "kinds": pair,
                    "moment": program.moment,
                    "level": program.level,
                    "verdict": result.value,
                    "reason": result.reason,
                    "module": index,
                }
            )

    def built(self, index: int, of: Subject, level: int, folder: Path) -> dict[str, Any]:
        task = [index, of.name, "build", level]
        if task in self.skipped:
            return {"made": [], "refused": ["the process died"], "raised": ""}
        self.now(*task)
        return programs.built(of, level, folder)

    def now(self, *task: Any) -> None:
        """Record the current task, in case that it ends this process."""
        (self.folder / "now").write_text(json.dumps(task))


def record(**given: Any) -> dict[str, Any]:
    return {"builds": 0, "verdicts": {}, "pairs": [], "failures": [], "not counted": {}, **given}


def reasons(made: Mapping[str, Any]) -> list[str]:
    return [each[:300] for each in (*made["refused"], made["raised"]) if each]


def begin() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)


def work(*, folder: str, first: int, count: int, programs: int, until: float, **how: Any) -> None:
    """Run modules until there are enough programs, or until a time. For a process of its own."""
    begin()
    worker = Worker(Path(folder), **how)
    with (Path(folder) / "modules.jsonl").open("a") as results:
        for index in range(first, first + count):
            began = time.perf_counter()
            found = worker.run(index)
            results.write(json.dumps(found) + "\n")
            results.flush()
            programs -= sum(found["verdicts"].values())
            took_s = time.perf_counter() - began
            said = " ".join(f"{name}={n}" for name, n in sorted(found["verdicts"].items()))
            sys.stderr.write(f"module {index}: {found['builds']} builds {said} ({took_s:.1f} s)\n")
            if index == first:
                gc.collect()
                gc.freeze()  # do not visit the objects of torch again for each program
            if programs <= 0 or time.time() > until:
                return


def run(
    folder: Path, seed: int, *, programs: int = 10**9, minutes: float = 10**6, only: str = ""
) -> dict[str, Any]:
    """Run programs in processes. Modules that an earlier run finished in `folder` count too."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes
    while True:
        lines, skipped = read_state(folder)
        done = sum(sum(line["verdicts"].values()) for line in lines)
        if done >= programs or time.time() > until:
            return totals(lines, skipped, seed)
        (folder / "now").unlink(missing_ok=True)
        question = {
            "folder": str(folder),
            "seed": seed,
            "only": only,
            "first": len(lines),
            "count": MODULES,
            "programs": programs - done,
            "until": until,
            "skipped": skipped,
        }
        code = process("work", question, folder)
        if code:
            now = folder / "now"
            task = json.loads(now.read_text()) if now.exists() else []
            said = f"the process ended with {code} at {task}"
            if len(task) < 3 or task in skipped:
                raise RuntimeError(said)  # no program has ended it
            sys.stderr.write(f"{said}\n")
            with (folder / "died.jsonl").open("a") as file:
                file.write(json.dumps(task) + "\n")


def process(do: str, question: Mapping[str, Any], folder: Path) -> int:
    """Run a function of this file in its own process. Return its exit code."""
    asked = folder / f"{do}.json"
    asked.write_text(json.dumps(question))
    return subprocess.run(
        [sys.executable, str(Path(__file__)), f"--{do}", str(asked)],
        env=runs.environment(folder, PYTHONHASHSEED="0", OMP_NUM_THREADS="1"),
        check=False,
    ).returncode


def read_state(folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the records of finished modules, and the programs that killed their process."""
    found = []
    for name in ("modules.jsonl", "died.jsonl"):
        path = folder / name
        text = path.read_text() if path.exists() else ""
        found.append(
            [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        )
    return found[0], found[1]


def totals(
    lines: Sequence[Mapping[str, Any]], died: Sequence[Sequence[Any]], seed: int
) -> dict[str, Any]:
    """Return the result of a run. A build that killed its process counts as wrong."""
    verdicts: Counter[str] = Counter()
    for line in lines:
        verdicts.update(line["verdicts"])
    return {
        "programs": sum(verdicts.values()),
        "builds": sum(line["builds"] for line in lines),
        "pairs": len({tuple(pair) for line in lines for pair in line["pairs"]}),
        "answered_by_entry": verdicts["right"],
        "level1": verdicts["level1"],
        "wrong": verdicts["wrong"] + verdicts["raises"] + sum("build" in task for task in died),
        "seed": seed,
        "torch": torch.__version__,
    }


# Failures -------------------------------------------------------------------------------------


def show(folder: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Make failures smaller, and write a script for each. For a process of its own."""
    begin()
    where = Path(folder) / "failures"
    where.mkdir(parents=True, exist_ok=True)
    trial = Path(folder) / "trial"
    for line in lines:
        failure = shrink.Failure.of(line)
        text, stock = line["text"], ""
        if shrink.fails(failure, trial):
            failure = shrink.shrunk(failure, functools.partial(shrink.fails, folder=trial))
            text = failure.alone().subject.text
            stock = programs.stock(failure.alone(), trial) or "right"
        else:
            failure = shrink.Failure.of(line, line["n"])
        name = "".join(c if c.isalnum() else "_" for c in "__".join(line["kinds"]))
        path = where / f"{name}.py"
        path.write_text(shrink.script(failure, text))
        with (where / "failures.jsonl").open("a") as file:
            small = {**dataclasses.asdict(failure), "text": text, "stock": stock}
            file.write(json.dumps({**small, "kinds": line["kinds"], "script": path.name}) + "\n")
        said = f"torch.compile: {stock}" if stock else "only with the other reads of its module"
        sys.stderr.write(f"{path}: {failure.reason} ({said})\n")


def distinct(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one failure of each pair of kinds."""
    found: dict[Any, Mapping[str, Any]] = {}
    for line in lines:
        for failure in line["failures"]:
            key = tuple(failure["kinds"])
            before = found.get(key)
            if before is None or _size(failure) < _size(before):
                found[key] = failure
    return list(found.values())


def _size(failure: Mapping[str, Any]) -> tuple[int, int]:
    return failure["level"], len(failure["read"]["steps"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10**6, help="end after so many minutes")
    parser.add_argument("--programs", type=int, default=10**9, help="end after so many programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER / "run")
    parser.add_argument("--json", type=Path, help="where to write the result (default stdout)")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument("--only", default="", help="make only reads with this text in their kind")
    parser.add_argument("--scripts", type=int, default=20, help="failures to make smaller")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--show", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(**json.loads(options.work.read_text()))
        return 0
    if options.show:
        show(**json.loads(options.show.read_text()))
        return 0
    if not options.resume:
        shutil.rmtree(options.folder, ignore_errors=True)
    result = run(
        options.folder,
        options.seed,
        programs=options.programs,
        minutes=options.minutes,
        only=options.only,
    )
    text = json.dumps(result, indent=1) + "\n"
    if options.json:
        options.json.write_text(text)
    else:
        sys.stdout.write(text)
    failures = distinct(read_state(options.folder)[0])
    if failures and options.scripts:
        question = {"folder": str(options.folder), "lines": failures[: options.scripts]}
        process("show", question, options.folder)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
