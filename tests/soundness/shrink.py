# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Failures of the fuzzer: each one is made smaller, and printed as a script that shows it alone."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from soundness import grammar, programs
from soundness.grammar import Change, Read
from soundness.programs import Program

# Failures -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A program that is wrong or raises, alone in its module."""

    read: Read
    change: Change
    moment: str
    level: int
    reason: str = ""
    callee: str = "model"

    @classmethod
    def of(cls, line: Mapping[str, Any], n: int = 0) -> Failure:
        """Return a failure from its record. Its change is of the read with the number `n`."""
        read = {**line["read"]}
        for name in ("steps", "gets"):
            read[name] = tuple(read[name])
        return cls(
            read=Read(**read),
            change=dataclasses.replace(
                list(grammar.changes_of(Read(**read), n))[line["change"]], before=line["before"]
            ),
            callee=line["callee"],
            moment=line["moment"],
            level=line["level"],
            reason=line["reason"],
        )

    def alone(self, name: str = "fuzz_alone") -> Program:
        """Return the program in a module with no other read."""
        of = programs.settled(name, {0: self.read}, {0: (self.change,)}, self.callee)
        return Program(subject=of, n=0, change=self.change, moment=self.moment, level=self.level)


NUMBERS = itertools.count()


def fails(failure: Failure, folder: Path) -> str:
    """Return the reason if the program fails alone, or an empty string."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        # Python and serve_warm keep facts about a module by its name.
        program = failure.alone(f"fuzz_alone_{next(NUMBERS)}")
        made = programs.built(program.subject, failure.level, folder)
        if failure.level not in made["made"]:
            return ""
        found = programs.verdict(program, folder)
    except Exception:  # noqa: BLE001 - not a program
        return ""
    return found.reason if found.value in ("wrong", "raises") else ""


def smaller(failure: Failure) -> Iterator[Failure]:
    """Yield programs that are simpler by one thing."""
    if failure.level == 3:
        yield dataclasses.replace(failure, level=2)
    if failure.callee != "model":
        yield dataclasses.replace(failure, callee="model")
    if failure.change.before:
        change = dataclasses.replace(failure.change, before=0)
        yield dataclasses.replace(failure, change=change)
    if failure.read.form != "method":
        yield from _with(failure, form="method")
    if not failure.read.state:
        yield from _with_smaller_path(failure)
    kind = failure.change.kind.removeprefix("holder with ")
    if kind != failure.change.kind:
        changes = [each for each in grammar.changes_of(failure.read, 0) if each.kind == kind]
        yield from (dataclasses.replace(failure, change=change) for change in changes)


def _with_smaller_path(failure: Failure) -> Iterator[Failure]:
    read = failure.read
    for i, step in enumerate(read.steps):
        before, after = read.steps[:i], read.steps[i + 1 :]
        gets = (*read.gets[: i + 1], *read.gets[i + 2 :])
        yield from _with(failure, steps=(*before, *after), gets=gets)
        if step != "namespace":
            yield from _with(failure, steps=(*before, "namespace", *after))
    if read.root != "attribute":
        yield from _with(failure, root="attribute")
    if any(read.gets):
        yield from _with(failure, gets=tuple(0 for _ in read.gets))


def _with(failure: Failure, **parts: Any) -> Iterator[Failure]:
    read = dataclasses.replace(failure.read, **parts)
    for each in grammar.changes_of(read, 0):
        if each.kind == failure.change.kind:
            change = dataclasses.replace(each, before=failure.change.before)
            yield dataclasses.replace(failure, read=read, change=change)


def shrunk(failure: Failure, holds: Callable[[Failure], str]) -> Failure:
    """Return the smallest program that still fails. `holds` returns why one fails."""
    again = True
    while again:
        again = False
        for each in smaller(failure):
            reason = holds(each)
            if reason:
                failure, again = dataclasses.replace(each, reason=reason), True
                break
    return failure


SCRIPT = '''"""{title}"""
import contextlib, logging, os, sys, tempfile, types
from pathlib import Path
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
import torch
import serve_warm
from serve_warm.precompile.changes import unchanged
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION

LEVEL, MOMENT, SLOW, BEFORE = {level}, {moment!r}, {slow}, {before}
TEXT = {text}
CHANGE = {change}

def fresh():
    sys.modules.pop("fuzz_alone", None)
    module = __import__("fuzz_alone")
    m = module.Model().eval()
    return m, module, getattr(module, "callee_of", lambda model: model)(m)

def change(m, M):
    names = dict(vars(M))
    body = CHANGE.replace("\\n", "\\n    ")
    exec("def change(m, M):\\n    " + body + "\\n    yield\\n", names)
    KEPT.append(steps := names["change"](m, M))
    next(steps)

def no_grad_alone():
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack

def around():
    return {around}

KEPT, seconds = [], [0.0]
logging.disable(logging.ERROR)
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp())
(folder / "fuzz_alone.py").write_text(TEXT)
sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
x = (torch.arange(16.0) % 7 / 7 + 0.1).reshape(4, 4)
c = serve_warm.compile(fresh()[2], level=LEVEL, dynamic=False)
with torch.inference_mode(), building() as build:
    c(x)
for level in (2, 3):
    (folder / str(level)).mkdir()
    for name, data in build.table.to_files(level).items():
        (folder / str(level) / name).write_bytes(data)
SESSION.dispatchers.clear()
torch.compiler.set_stance("force_eager")
m, M, callee = fresh()
if MOMENT == "start":
    change(m, M)
c = serve_warm.compile(callee, level=LEVEL, dynamic=False)
parts = [part for part in (folder / "2", folder / "3") if (part / "index.json").exists()]
unchanged.clock = lambda: seconds[0]
SESSION.load(*parts)
def shown(v):
    return round(v.sum().item(), 3) if isinstance(v, torch.Tensor) and v.is_cpu else v
def said(f):
    try:
        with torch.inference_mode(), around():
            found = f(x)
        return [*map(shown, found if isinstance(found, tuple) else (found,))]
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"[:200]
if MOMENT == "ready":
    said(c), said(c)
    for number in range(BEFORE):
        m.noise = M.noise = number
        said(c)
    change(m, M)
    seconds[0] += 2 if SLOW else 0
eager, ours = said(callee), said(c)
print("RIGHT" if repr(eager) == repr(ours) else "WRONG", "eager", eager, "serve_warm", ours)
print([(use.level, use.reason, use.calls) for use in SESSION.uses()])
'''


def script(failure: Failure, text: str) -> str:
    """Return a script that shows a failure alone. `text` is the module."""
    change = failure.change
    title = f"{failure.read.kind}; {change.kind}; {failure.moment}, level {failure.level}"
    return SCRIPT.format(
        title=f"{title}: {failure.reason}".replace("\\", "\\\\").replace('"', "'"),
        level=failure.level,
        moment=failure.moment,
        slow=change.slow,
        before=change.before,
        text=_quoted(text),
        change=_quoted(change.text or "pass"),
        around=change.around or "contextlib.nullcontext()",
    )


def _quoted(text: str) -> str:
    return "r'''" + text + "'''" if "'''" not in text and not text.endswith("'") else repr(text)
