# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's programs: random modules, their entries, and the verdict of each change."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import symbolic_convert

import serve_warm
from serve_warm.precompile.changes import unchanged as change_checks
from serve_warm.precompile.dispatch.session import SESSION
from soundness import grammar, judge
from soundness.grammar import FORMS, Change, Read
from soundness.judge import Answer, Verdict
from soundness.operations import VALUES
from soundness.places import PLACES, ROOTS, STEPS
from soundness.rows import READY, START, Group, Row, x
from soundness.states import STATES

READS = 4
"""Reads of a module."""

CHANGES = 7
"""Changes that are tried for each read."""

DEPTHS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3)
"""Numbers of steps between a root and its value."""

BEFORE = (0, 0, 0, 4)
"""Numbers of changes without an effect before a change."""

MOMENTS = (START, READY)

SUM = 2.0
"""The number that all modules multiply by at the build, so that their graphs are alike."""

# Modules --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """One module, and the changes of each of its reads."""

    name: str
    reads: Mapping[int, Read]
    changes: Mapping[int, Sequence[Change]]
    offset: float = 0.0
    callee: str = "model"
    """A key of `CALLEES`."""

    @functools.cached_property
    def text(self) -> str:
        more = "\n".join(change.text for each in self.changes.values() for change in each)
        return grammar.program(self.reads, self.offset, more, self.callee)

    def alone(self, n: int, changes: Sequence[Change]) -> Subject:
        """Return a module with only one of the reads."""
        return settled(f"{self.name}_{n}", {n: self.reads[n]}, {n: changes}, self.callee)


def subject(seed: int, index: int, only: str = "") -> Subject:
    """Return the module with this number, which depends only on the seed and the number.

    Modules take their kinds of reads in turn from a list of all kinds, in a random order.
    """
    kinds = [kind for kind in all_kinds() if only in ": ".join(kind)]
    if not kinds:
        raise SystemExit(f"no kind of read has the text {only!r}")
    source = random.Random(f"{seed}:{index}")
    reads: dict[int, Read] = {}
    changes: dict[int, Sequence[Change]] = {}
    for n in range(READS):
        turn, place = divmod(index * READS + n, len(kinds))
        order = random.Random(f"{seed}:{turn}").sample(kinds, len(kinds))
        read = next(filter(is_valid, (random_read(source, *order[place]) for _ in range(20))), None)
        if read is not None:
            found = [*grammar.changes_of(read, n)]
            changes[n] = [
                dataclasses.replace(change, before=source.choice(BEFORE))
                for change in source.sample(found, min(CHANGES, len(found)))
            ]
            reads[n] = read
    callee = source.choice(("model", "model", "model", *grammar.CALLEES))
    return settled(f"fuzz_{seed}_{index}".replace("-", "_"), reads, changes, callee)


def all_kinds() -> list[tuple[str, str]]:
    """Return each kind of read: a value and an operation, `probe` and a place, or `state`."""
    return [
        *((value, op) for value, found in VALUES.items() for op in found.ops),
        *(("probe", place) for place, found in PLACES.items() if found.probes),
        *(("state", state) for state in STATES),
    ]


def random_read(source: random.Random, kind: str, op: str) -> Read:
    """Return a read of a kind, with a random path and in a random form."""
    form = source.choice([*FORMS])
    if kind == "state":
        return Read(state=op, form=form)
    path = [source.choice([*ROOTS])]
    path += [source.choice([*STEPS]) for _ in range(source.choice(DEPTHS))]
    value = kind
    if kind == "probe":
        value = source.choice(("absent", "int", "None"))
        path = [op] if op in ROOTS else [*path, op]
        op = f"probe {source.randrange(len(PLACES[op].probes))}"
    gets = tuple(source.choice((0, 0, 0, *range(8))) for _ in path)
    return Read(root=path[0], steps=(*path[1:],), value=value, op=op, form=form, gets=gets)


def is_valid(read: Read) -> bool:
    """Return whether eager can make this read, and gives the same answer twice."""
    try:
        model = Fresh(settled("fuzz_trial", {0: read}, {0: ()})).model
    except Exception:  # noqa: BLE001 - many combinations mean nothing
        return False
    first, second = (answer(lambda: model(x())) for _ in range(2))
    return first.error is None and not judge.compare(first, second)


def settled(
    name: str,
    reads: Mapping[int, Read],
    changes: Mapping[int, Sequence[Change]],
    callee: str = "model",
) -> Subject:
    """Return a module whose number is `SUM` before any change."""
    first = Subject(name=name, reads=reads, changes=changes, callee=callee)
    numbers = [n for n, read in reads.items() if not grammar.is_returned(read)]
    model = Fresh(first).model
    with torch.inference_mode():
        total = sum(float(getattr(model, f"read{n}")()) for n in numbers)
    if not abs(total) < 1000:
        raise ValueError(f"the number is {total}")
    return dataclasses.replace(first, offset=total - SUM)


class Fresh:
    """A new import of a module, with a new model."""

    def __init__(self, of: Subject, folder: Path | None = None) -> None:
        text = of.text
        path = str(folder / f"{of.name}.py") if folder else "<trial>"
        key = (path, text)
        if key not in CODES:
            CODES.clear()
            if folder:
                Path(path).write_text(text)
            CODES[key] = compile(text, path, "exec", dont_inherit=True)
        symbolic_convert._import_module.cache_clear()  # it knows the earlier module of this name
        self.module: Any = types.ModuleType(of.name)
        self.module.__file__ = path
        sys.modules[of.name] = self.module
        exec(CODES[key], vars(self.module))
        self.model = self.module.Model().eval()
        self.callee = getattr(self.module, "callee_of", lambda model: model)(self.model)

    def change(self, how: Change) -> contextlib.ExitStack:
        """Make a change. Return what undoes it."""
        undo = contextlib.ExitStack()
        if not how.text:
            return undo
        names = dict(vars(self.module))
        text = how.text if "yield" in how.text else f"{how.text}\nyield"
        exec(f"def change(m, M):\n{grammar.indented(text, 4)}\n", names)
        steps = names["change"](self.model, self.module)
        next(steps)
        undo.callback(lambda: next(steps, None))
        return undo


CODES: dict[tuple[str, str], Any] = {}


# Verdicts -------------------------------------------------------------------------------------


def built(of: Subject, level: int, folder: Path) -> dict[str, Any]:
    """Make the entries of a module. Return the levels and the reasons, as `judge.build`."""
    group = Group(
        name=of.name,
        kind="change",
        make=lambda: Fresh(of, folder).callee,
        rows=(),
        call=lambda f: f(x()),
    )
    with torch.compiler.set_stance("default"):
        made = judge.build(group, level, folder / f"level{level}")
    SESSION.dispatchers.clear()
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One read, one change, one moment and one level."""

    subject: Subject
    n: int
    """The number of the read in its module."""
    change: Change
    moment: str
    level: int

    @property
    def task(self) -> list[Any]:
        """The program in a form that can be stored as JSON."""
        return [
            self.subject.name,
            self.n,
            self.change.kind,
            self.change.text,
            self.moment,
            self.level,
        ]


def verdict(program: Program, folder: Path) -> Verdict:
    """Return the result of a program, whose entries are in `folder`."""
    change, level = program.change, program.level
    seconds = [0.0]
    with contextlib.ExitStack() as undo:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(change_checks, "clock", lambda: seconds[0])
        undo.callback(SESSION.dispatchers.clear)
        undo.callback(SESSION.unload)
        app = Fresh(program.subject, folder)
        served = None
        try:
            if program.moment == START:
                undo.push(app.change(change).pop_all())
            compiled = serve_warm.compile(app.callee, level=level, dynamic=False)
            why = SESSION.load(*entries(folder, level))
            if program.moment == READY:
                first = [answer(lambda: compiled(x())) for _ in range(2)]
                served = next((each.level for each in first[::-1] if each.level is not None), None)
                if served != level:
                    return Verdict(value="", reason="no entry answers the unchanged form")
                for number in range(change.before):
                    app.model.noise = app.module.noise = number
                    answer(lambda: compiled(x()))
                undo.push(app.change(change).pop_all())
                seconds[0] += 2 if change.slow else 0
        except Exception as error:  # noqa: BLE001 - the change does not fit this value
            return Verdict(value="", reason=f"the change raises {error!r}")
        expected = answer(lambda: app.callee(x()), around_of(change))
        got = answer(lambda: compiled(x()), around_of(change))
        again = answer(lambda: app.callee(x()), around_of(change))
    different = judge.compare(expected, got)
    if different:
        return _of_difference(program, folder, different, expected, got, again)
    known = got.level if got.level is not None else served
    return Verdict(value="right" if known == level else "level1", reason=got.reason or why)


def _of_difference(  # noqa: PLR0917
    program: Program, folder: Path, different: str, expected: Answer, got: Answer, again: Answer
) -> Verdict:
    if judge.compare(expected, again):
        return Verdict(value="", reason="eager is not steady")
    if got.error is None or expected.error is not None:
        return Verdict(value="wrong", reason=different)
    if stock(program, folder).startswith("it raises"):
        return Verdict(value="", reason="torch.compile raises too")
    return Verdict(value="raises", reason=different)


def entries(folder: Path, level: int) -> list[Path]:
    """Return the folders of the entries that were made for a level."""
    parts = [folder / f"level{level}" / str(part) for part in judge.LEVELS]
    return [part for part in parts if (part / "index.json").exists()]


def stock(program: Program, folder: Path) -> str:
    """Return how the answer of torch.compile differs from eager's, or an empty string.

    torch.compile has always compiled the unchanged form.
    """
    torch._dynamo.reset()
    change = program.change
    with contextlib.ExitStack() as undo:
        undo.enter_context(torch.compiler.set_stance("default"))
        app = Fresh(program.subject, folder)
        compiled = torch.compile(app.callee, backend="eager", dynamic=False)
        answer(lambda: compiled(x()))
        undo.push(app.change(change).pop_all())
        expected = answer(lambda: app.callee(x()), around_of(change))
        return judge.compare(expected, answer(lambda: compiled(x()), around_of(change)))


@contextlib.contextmanager
def no_grad_alone() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def around_of(change: Change) -> Callable[[], Any]:
    if not change.around:
        return contextlib.nullcontext
    return lambda: eval(change.around, {"torch": torch, "no_grad_alone": no_grad_alone})


def answer(call: Callable[[], Any], around: Callable[[], Any] = contextlib.nullcontext) -> Answer:
    return judge._answer(call, Row(name="", around=around))
