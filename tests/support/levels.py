# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Functions to build and load entries in tests, and to find out which level served a call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import serve_warm
from processes import answer_of
from serve_warm.compiler.eager_calls import EagerAnswers, EagerRecord, answering
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import building
from serve_warm.precompile.builders import library as build_library
from serve_warm.precompile.calls.torch_state import BACKEND_FLAGS
from serve_warm.precompile.changes import unchanged as change_checks
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.table import Entry, EntryTable
from serve_warm.precompile.libraries import run as library_run
from serve_warm.report import EagerReason


def ramp(rows: int = 3) -> torch.Tensor:
    """Return an input whose rows of four differ."""
    return torch.linspace(-1, 1, rows * 4).view(rows, 4)


def build(
    folder: Path,
    *calls: Callable[[], Any],
    level: int = 2,
    make_library: Callable[..., Any] = build_library.make,
) -> EntryTable:
    """Make an entry for each call, and write the entries of a level to `folder`."""
    folder.mkdir(exist_ok=True)
    with (
        mock.patch.object(build_library, "make", make_library),
        torch.inference_mode(),
        building() as build,
    ):
        for call in calls:
            call()
    for name, data in build.table.to_files(level).items():
        (folder / name).write_bytes(data)
    return build.table


def entries_of(table: EntryTable) -> list[Entry]:
    return [entry for unit in table.units.values() for entry in unit.entries]


def refusal(folder: Path, *calls: Callable[[], Any], level: int = 2) -> str:
    """Build, and return the only reason for which a call has no entry."""
    (reason,) = build(folder, *calls, level=level).refused.values()
    return reason


def rebuilt(
    make: Callable[[], Any], folder: Path, call: Callable[[Any], Any], *, level: int = 2
) -> tuple[Any, Any]:
    """Build an entry of one module. Return another module, as it is and compiled."""
    first, other = (make().eval() for _ in range(2))
    model = serve_warm.compile(first, dynamic=False, level=level)
    table = build(folder, lambda: call(model), level=level)
    assert table.refused == {}
    return other, serve_warm.compile(other, dynamic=False, level=level)


def forget_callables() -> None:
    """Stop counting callables of earlier tests, because some are still alive."""
    SESSION.dispatchers.clear()
    SESSION.counts.clear()


@contextlib.contextmanager
def started(
    folder: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    load_library: Callable[..., Any] = library_run.load,
) -> Iterator[None]:
    """Load built entries as a fresh process does, without code that was compiled before."""
    torch._dynamo.reset()
    with (
        mock.patch.object(change_checks, "clock", clock),
        mock.patch.object(BACKEND_FLAGS, "now_s", clock),
        mock.patch.object(library_run, "load", load_library),
    ):
        why = SESSION.load(folder)
        assert not why, why
        try:
            yield
        finally:
            SESSION.unload()


@dataclass(frozen=True, kw_only=True)
class Served:
    """The result of one call, the level that served it, and the reason for that level."""

    value: Any
    level: int
    reason: str
    call: str
    compiles: int


def served(call: Callable[[], Any]) -> Served:
    watch = watch_process()
    counts, before = watch.counts(), _uses()
    value = call()
    after, compiles = _uses(), (watch.counts() - counts).compiles
    # Ignore lower counts: models of earlier tests, and their counts, can go away at any time.
    changed = {use: n - before.get(use, 0) for use, n in after.items() if n > before.get(use, 0)}
    if not changed:  # level 2, but not for the first time: later hits are not counted
        return Served(value=value, level=2, reason="", call="", compiles=compiles)
    # The lowest level served the call. A higher level that refused it may have counted it too.
    (text, level, reason, _) = min(changed, key=lambda use: use[1])
    return Served(value=value, level=level, reason=reason, call=text, compiles=compiles)


def _uses() -> dict[tuple[str, int, str, str], int]:
    return {(u.call, u.level, u.reason, u.callable): u.calls for u in SESSION.uses()}


def spans(call: Callable[[], Any], times: int) -> list[Any]:
    """Return the counts of each of several calls."""
    watch, found = watch_process(), []
    with torch.inference_mode():
        for _ in range(times):
            before = watch.counts()
            call()
            found.append(watch.counts() - before)
    return found


def answers_in(record: EagerRecord, **options: Any) -> EagerAnswers:
    """Return what runs all calls without compiled code eagerly, and records them."""
    options = {"replayed": EagerRecord(), **options}
    return EagerAnswers(record, EagerReason.UNFORESEEN, **options)


@contextlib.contextmanager
def answered_eagerly() -> Iterator[EagerRecord]:
    """Run all calls without compiled code eagerly, and check that nothing compiles."""
    record, watch = EagerRecord(), watch_process()
    before = watch.counts()
    with answering(answers_in(record)):
        yield record
    assert (watch.counts() - before).quiet


@contextlib.contextmanager
def eager_below() -> Iterator[None]:
    """Make level 1 run eagerly, in tests of fallbacks that do not need its compiled code."""
    with torch.compiler.set_stance("force_eager"):
        yield


def in_a_process(folder: Path, do: str, *, level: int = 2, **environ: str) -> dict[str, Any]:
    """Build or start `app.py` of a folder in a fresh process; return its output.

    Entries and torch's caches stay in the folder, for the next process.
    """
    entries = folder / "entries"
    entries.mkdir(exist_ok=True)
    question = {"do": do, "folder": str(entries), "path": str(folder / "app.py"), "level": level}
    # Skip torch's probes of the CPU: entries do not need them, and they take five seconds.
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    answer: dict[str, Any] = answer_of(
        "precompiled_process.py", question, cwd=None, **caches, **environ
    )
    return answer
