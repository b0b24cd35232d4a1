# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The judge of one row: it makes entries, changes the application, and compares with eager.

Level 1 runs eagerly here, so a call that falls back to it is right. A row shows whether a stale
entry was used instead. `stock` shows whether torch.compile itself notices the change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import serve_warm
from serve_warm.precompile import building
from serve_warm.precompile.changes.unchanged import RELOOK_S
from serve_warm.precompile.dispatch.session import SESSION
from soundness.rows import READY, START, Group, Row

LEVELS = (2, 3)

backends: Any = torch.backends

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
"""As promised in docs/concepts/levels.md, relative to the largest value."""


class DishonestRow(Exception):
    """Eager gives the same answer after the change, so the row proves nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one call."""

    value: str
    """right, level1, refused, wrong or raises. Of a program, empty if it does not count."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The returned value or the exception of a call, and its level."""

    value: Any = None
    error: BaseException | None = None
    level: int | None = None
    """None if no use of a level was counted, as for the hit of a known call."""
    reason: str = ""


# Builds ---------------------------------------------------------------------------------------


def build(group: Group, level: int, folder: Path) -> dict[str, Any]:
    """Make the entries of a group in `folder`. Return made and refused entries, and guards."""
    torch._dynamo.reset()
    kinds: set[str] = set()
    raised = ""
    library: Any = None
    with (
        registrations_undone(),
        watched_guards(kinds, group.synthetic),
        torch._dynamo.config.patch(**group.config),
    ):
        compiled = serve_warm.compile(group.make(), level=level, **group.arguments)
        try:
            with torch.inference_mode(), building() as build:
                library = build.table
                group.call(compiled)
        except Exception as error:  # noqa: BLE001 - the row says so
            raised = _said(error)
    if library is not None and not raised:
        for part in LEVELS:
            (folder / str(part)).mkdir(parents=True, exist_ok=True)
            for name, data in library.to_files(part).items():
                (folder / str(part) / name).write_bytes(data)
    described = library.described() if library is not None else []
    return {
        "made": sorted({each["level"] for each in described if each["level"] > 1}),
        "refused": sorted({str(each["reason"]) for each in described if each.get("reason")}),
        "raised": raised,
        "guards": sorted(kinds),
    }


@contextlib.contextmanager
def registrations_undone() -> Iterator[None]:
    """Undo registrations of lowerings and decompositions at the end of the block.

    A lowering belongs to all graphs. If the module of its row is gone, no later build has entries.
    """
    from torch._inductor import decomposition, lowering

    tables: list[Any] = [lowering.lowerings, decomposition.decompositions]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)


@contextlib.contextmanager
def watched_guards(kinds: set[str], synthetic: str) -> Iterator[None]:
    """Record the kinds of guards that Dynamo installs. Give one guard the kind `synthetic`."""
    from torch._dynamo import guards

    entry_of = guards.make_guard_filter_entry
    renamed: list[str] = []

    def noting(guard: Any, builder: Any) -> Any:
        entry = entry_of(guard, builder)
        if synthetic and "number_" in entry.name and renamed in ([], [entry.name]):
            renamed[:] = [entry.name]
            entry = dataclasses.replace(entry, guard_type=synthetic)
        kinds.add(entry.guard_type)
        kinds.update(entry.derived_guard_types)
        return entry

    guards.make_guard_filter_entry = noting
    try:
        yield
    finally:
        guards.make_guard_filter_entry = entry_of


# Starts ---------------------------------------------------------------------------------------


def judge(
    group: Group, row: Row, when: str, *, level: int, built: Mapping[str, Any], folder: Path
) -> Verdict:
    """Return the result of the call after the change, at a level.

    Raises:
        DishonestRow: the change does not change eager's answer.
    """
    if built["raised"]:
        return Verdict(value="raises", reason=f"at the build: {built['raised']}")
    call = row.call or group.call
    with registrations_undone(), _application(row, group, when) as app:
        compiled = serve_warm.compile(app.model, level=level, **group.arguments)
        parts = [part for part in map(str, LEVELS) if (folder / part / "index.json").exists()]
        why = SESSION.load(*(folder / part for part in parts))
        served = None
        if when == READY:
            served = _ready(group, compiled)
            app.change()
            if row.slow:
                time.sleep(RELOOK_S + 0.05)
        expected = _answer(lambda: call(app.model), row)
        app.assert_changed(expected, row, group)
        got = _answer(lambda: call(compiled), row)
    known = got.level if got.level is not None else served
    difference = compare(expected, got)
    if difference:
        raises = got.error is not None and expected.error is None
        return Verdict(value="raises" if raises else "wrong", reason=difference)
    if known == level:
        return Verdict(value="right")
    if level not in built["made"]:
        return Verdict(value="refused", reason="; ".join(built["refused"]) or why)
    reason = got.reason or why
    if when == READY and served != level:
        reason = f"not served before the change either: {reason}"
    return Verdict(value="level1", reason=reason)


def stock(group: Group, row: Row, when: str) -> Verdict:
    """Return the result of torch.compile with its own guards, compiled before the change."""
    call = row.call or group.call
    torch.compiler.set_stance("default")
    with _application(row, group, READY if row.make is None else when, level1="default") as app:
        compiled = torch.compile(app.model, backend="eager", **group.arguments)
        if app.before is not None:
            with torch.inference_mode(), contextlib.suppress(Exception):
                group.call(compiled)
            app.change()
        expected = _answer(lambda: call(app.model), row)
        got = _answer(lambda: call(compiled), row)
    difference = compare(expected, got)
    if difference:
        raises = got.error is not None and expected.error is None
        return Verdict(value="raises" if raises else "wrong", reason=f"stock: {difference}")
    return Verdict(value="right")


@dataclasses.dataclass(kw_only=True)
class _App:
    model: Any
    row: Row
    before: Answer | None
    """Eager's answer before the change. None if the application was made in its changed form."""
    undo: contextlib.ExitStack

    def change(self) -> None:
        undo = self.row.change(self.model)
        if isinstance(undo, (types.FunctionType, types.MethodType)):
            self.undo.callback(undo)

    def assert_changed(self, expected: Answer, row: Row, group: Group) -> None:
        if row.same or row.call is not None or self.before is None:
            return
        if not compare(self.before, expected):
            raise DishonestRow(f"{row.name}: eager answers the same after the change")


@contextlib.contextmanager
def _application(row: Row, group: Group, when: str, level1: str = "force_eager") -> Iterator[_App]:
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as undo:
        undo.callback(gc.collect)
        undo.callback(torch.set_num_threads, threads)
        for place in (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv):
            # An older setter that restores its setting leaves "ieee" here, even if the value was
            # inherited.
            undo.callback(setattr, place, "fp32_precision", place.fp32_precision)
        undo.callback(SESSION.unload)
        if when == START and row.make is not None:
            app = _App(model=row.make(), row=row, before=None, undo=undo)
        else:
            model = group.make()
            before = _answer(lambda: group.call(model), Row(name=""))
            app = _App(model=model, row=row, before=before, undo=undo)
            if when == START:
                app.change()
        if level1 != "default":
            undo.enter_context(torch.compiler.set_stance(level1))
        yield app


def _ready(group: Group, compiled: Any) -> int | None:
    """Make the declared call as warm-up and traffic do. Return the level that answered it."""
    level = None
    for _ in range(2):
        answer = _answer(lambda: group.call(compiled), Row(name=""))
        if answer.error is not None:
            return None
        level = answer.level if answer.level is not None else level
    return level


def _answer(call: Callable[[], Any], row: Row) -> Answer:
    before = _uses()
    value, error = None, None
    try:
        with torch.inference_mode(), row.around():
            value = call()
    except Exception as raised:  # noqa: BLE001 - an exception of eager is an answer too
        error = raised
    counted = {use: n for use, n in _uses().items() if n > before.get(use, 0)}
    if not counted:
        return Answer(value=value, error=error)
    # A higher level that refused the call may have counted it too.
    level, reason = min(counted)
    return Answer(value=value, error=error, level=level, reason=reason)


def _uses() -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = {}
    for use in SESSION.uses():
        key = (use.level, use.reason)
        counts[key] = counts.get(key, 0) + use.calls
    return counts


# Comparisons ----------------------------------------------------------------------------------


def compare(expected: Answer, got: Answer) -> str:
    """Return how an answer differs from the expected one, or an empty string."""
    if expected.error is not None:
        if got.error is None:
            return f"it answers, and eager raises {_said(expected.error)}"
        return ""
    if got.error is not None:
        return f"it raises {_said(got.error)}"
    return difference(expected.value, got.value)


def difference(eager: Any, ours: Any, where: str = "") -> str:
    """Describe how a value differs from eager's, or return an empty string."""
    if isinstance(eager, torch.Tensor) and isinstance(ours, torch.Tensor):
        return _tensors(eager, ours, where)
    if type(eager) is not type(ours):
        return f"{where}it is a {type(ours).__name__}, and eager's a {type(eager).__name__}"
    if isinstance(eager, (list, tuple)):
        eager, ours = dict(enumerate(eager)), dict(enumerate(ours))
    elif hasattr(eager, "__dict__") and not callable(eager) and not isinstance(eager, Mapping):
        eager, ours = vars(eager), vars(ours)
    if isinstance(eager, Mapping):
        if list(eager) != list(ours):
            return f"{where}it has {list(ours)}, and eager's {list(eager)}"
        parts = (difference(eager[key], ours[key], f"{where}{key}: ") for key in eager)
        return next(filter(None, parts), "")
    same = eager == ours or (eager != eager and ours != ours)  # noqa: PLR0124
    return "" if same else f"{where}{ours!r}, and eager's {eager!r}"


def _tensors(eager: Any, ours: Any, where: str) -> str:
    kinds = [(type(t).__name__, str(t.dtype), tuple(t.shape), str(t.layout)) for t in (eager, ours)]
    if kinds[0] != kinds[1]:
        return f"{where}it is {kinds[1]}, and eager's {kinds[0]}"
    if eager.layout is not torch.strided or type(eager) is not torch.Tensor:
        eager, ours = (t.to_dense() if t.is_sparse else t.detach() for t in (eager, ours))
    if eager.is_complex():
        eager, ours = torch.view_as_real(eager.resolve_conj()), torch.view_as_real(ours)
    if eager.dtype not in TOLERANCE:
        return "" if torch.equal(eager, ours) else f"{where}other {eager.dtype} values"
    if not eager.numel():
        return ""
    error = _distance(eager.detach().double(), ours.detach().double())
    if error <= TOLERANCE[eager.dtype]:
        return ""
    return f"{where}off by {error:.1e} of the largest value"


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference relative to the largest finite value."""
    same = (left == right) | (left.isnan() & right.isnan())
    if bool(same.all()):
        return 0.0
    scale = left[left.isfinite()].abs().max().clamp(min=1e-6) if left.isfinite().any() else 1.0
    error = float(((left - right).abs() / scale)[~same].max())
    return float("inf") if error != error else error  # noqa: PLR0124


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
