# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Process-wide state of levels 2 and 3: compiled callables, loaded entries and a running build.

This module and its imports need only the standard library, so that a replica can look for compiled
callables without importing torch.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from serve_warm.precompile.facts.plan import LIBRARY_LEVEL
from serve_warm.report import EntryUse

if TYPE_CHECKING:
    import torch

    from serve_warm.precompile.calls.signature import Signature
    from serve_warm.precompile.dispatch.call_counts import CallCounts, Use
    from serve_warm.precompile.dispatch.first_calls import FirstCalls
    from serve_warm.precompile.entries.table import Entry, EntryTable, Unit
    from serve_warm.precompile.parity.checks import Checks

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """Objects that are still in use. Any thread can add objects while other threads iterate.

    Does not keep the objects alive. A `WeakSet` does not work here: iterating over it raises
    `RuntimeError` if another thread adds an object.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.KeyedRef[int, T]] = {}

    def add(self, each: T) -> None:
        """Add an object, until nothing else refers to it."""
        key = id(each)
        self._references[key] = weakref.KeyedRef(each, self._forget, key)

    def _forget(self, reference: weakref.KeyedRef[int, T]) -> None:
        # No lock, because garbage collection can call this in the middle of any other method. The
        # object's memory is still allocated, so no other object has its id.
        self._references.pop(reference.key, None)

    def clear(self) -> None:
        """Remove all objects."""
        self._references.clear()

    def __iter__(self) -> Iterator[T]:
        # `copy` runs no Python code, so no other thread can change the dict in the meantime.
        for reference in self._references.copy().values():
            each = reference()
            if each is not None:
                yield each

    def __len__(self) -> int:
        return len(self._references)


class EntriesInUse(Protocol):
    """The entries that one callable uses in its current state."""

    @property
    def lock(self) -> threading.RLock:
        """Lock that protects the choice of the entries."""

    def load(self, table: EntryTable) -> object:
        """Load the code of the entries that fit."""

    def bind(self) -> object:
        """Choose the entries that fit."""


class CompiledCallable(Protocol):
    """A callable of `serve_warm.compile`."""

    callee: Callable[..., object]
    name: str
    arguments: dict[str, object]
    """The arguments of torch.compile."""
    level: int
    first_calls: FirstCalls

    @property
    def binder(self) -> EntriesInUse:
        """The entries that the callable uses."""

    def bind_anew(self) -> None:
        """Look for the entries that fit again, and forget all known calls."""

    def forget_calls(self) -> None:
        """Force a new lookup of the code at the next call of each kind."""


@dataclass
class AnsweredBy:
    """What answered the calls of an input while entries were made."""

    entries: set[int] = field(default_factory=set)
    """Ids of the entries."""
    torch_compile: set[object] = field(default_factory=set)
    """Code of the callables whose calls had no entry."""


class Build(Protocol):
    """A running build, which makes an entry for each new kind of call."""

    table: EntryTable

    def opening(
        self, dispatcher: CompiledCallable, axes: Sequence[tuple[int, int]]
    ) -> contextlib.AbstractContextManager[None]:
        """In the block, try to make entries of a dispatcher for any size of these axes."""

    def entry_for(
        self,
        dispatcher: CompiledCallable,
        unit: Unit,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[torch.Tensor],
    ) -> tuple[Entry, Callable[..., object]]:
        """Make the entry for a call, and return it with its code."""

    def note_answer(self, dispatcher: CompiledCallable, entry: Entry) -> None:
        """Record that an entry ran a call."""

    def note_without_entry(self, dispatcher: CompiledCallable) -> None:
        """Record that no entry ran a call of a dispatcher."""

    def withdraw_changed(self) -> None:
        """Withdraw the entries that no longer fit the callables that they were made for."""


class CallRecorder(Protocol):
    """Records the kinds of calls of each callable (`learn.recorder`)."""

    new: threading.Event
    """Set at each new kind of call."""
    others: set[int] | None
    """Gets the kinds of calls outside the contexts of requests, if requests are recorded."""

    def begin(self) -> None:
        """Count calls from now on, and forget those so far."""

    def to_json(self) -> dict[str, Any]:
        """Return the kinds so far as plain data."""

    def name_kinds(self, kinds: Collection[int]) -> list[str] | None:
        """Return what tells kinds of calls apart in all replicas, if it is known."""

    def note(
        self, counts: CallCounts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Count a call that the dispatcher does not count."""

    def note_kind(
        self,
        counts: CallCounts,
        use: Use,
        signature: Signature,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Record a kind of calls that the dispatcher counts."""

    def note_replayed(self, counts: CallCounts, use: Use, calls: int) -> None:
        """Record that calls which the dispatcher counts are those of a replay, not of traffic."""


AnyBuild = TypeVar("AnyBuild", bound=Build)


class Session:
    """State that the callables of one process share: see `SESSION`."""

    def __init__(self) -> None:
        self.dispatchers: LiveObjects[CompiledCallable] = LiveObjects()
        """One dispatcher for each callable of `serve_warm.compile` that is still in use."""
        self.counts: LiveObjects[CallCounts] = LiveObjects()
        """Counts of the calls to these callables."""
        self.loaded: EntryTable | None = None
        """Entries of the artifact."""
        self.being_built: Build | None = None
        self.active: EntryTable | None = None
        """Entries of the running build, if any, else the loaded entries. Every call reads this
        attribute."""
        self.checks: Checks | None = None
        """Checks of the loaded entries against eager execution; None if no entries are loaded."""
        self.recorder: CallRecorder | None = None
        """Records the kinds of calls that traffic makes."""
        self.settling_calls = 0
        """Number of settling calls: calls that ran eagerly, to create state that entries need."""
        self.is_probing = False
        """Whether calls are only trials. Trial calls are not counted, and are not logged as new
        kinds of calls."""
        self.build_lock = threading.RLock()
        """Lock for making an entry, because making an entry changes and restores buffers and random
        states."""

    def has_callables(self) -> bool:
        """Return whether anything in this process was compiled with `serve_warm.compile`."""
        return len(self.dispatchers) > 0

    def has_libraries_only(self) -> bool:
        """Return whether all code from `serve_warm.compile` uses level 3."""
        return self.has_callables() and all(
            each.level == LIBRARY_LEVEL for each in self.dispatchers
        )

    def load(
        self,
        *folders: Path,
        already: Mapping[Path, EntryTable] = MappingProxyType({}),
        check_wanted: Callable[[], None] = lambda: None,
    ) -> str:
        """Load the entries of an artifact, one folder per part, for every callable of the process.

        Executes code from the folders, which must have been verified. Folders with libraries must
        exist until the process ends. Returns, as text, the reasons why entries were not loaded. The
        text leaves out entries that do not match, because the report lists the calls of such
        entries. `already` has the tables of folders that were already read. Reading and loading
        can take long. After that, `check_wanted` raises if the entries are not wanted any more, and
        no call uses them.
        """
        from serve_warm.precompile.entries.table import read_parts

        table, problems = read_parts(folders, already=already)
        if table is not None:
            for dispatcher in self.dispatchers:
                dispatcher.binder.load(table)
        check_wanted()
        self.loaded = table
        self._choose_active()
        for dispatcher in self.dispatchers:
            dispatcher.binder.bind()
        return "; ".join(problems)

    def _choose_active(self) -> None:
        self.active = self.loaded if self.being_built is None else self.being_built.table

    def unload(self) -> None:
        """Forget all entries: every call goes to torch.compile."""
        self.loaded = None
        self._choose_active()
        self.checks = None

    def begin_checks(
        self, *, one_in: int, can_compile: Callable[[], bool], on_failure: Callable[[str], None]
    ) -> Checks | None:
        """Return checks of all loaded entries; None if no entries are loaded.

        After READY, every `one_in`-th call of an entry is checked; 0 means no checks.
        """
        if self.loaded is None or not self.loaded.made:
            self.checks = None
            return None
        from serve_warm.precompile.parity.checks import Checks

        self.checks = Checks(
            one_in=one_in,
            withdraw=lambda entry, why: self.withdraw(entry, why, eagerly=not can_compile()),
            on_failure=on_failure,
        )
        return self.checks

    def withdraw(self, entry: Entry, why: str, *, eagerly: bool) -> None:
        """Make all callables stop running an entry.

        The entry's calls go to torch.compile, with `why` as the reason.

        Without a C++ compiler, torch.compile would fail; pass `eagerly` to run the calls eagerly
        instead.
        """
        if self.loaded is not None:
            self.loaded.disable(entry, why, eagerly=eagerly)
        for dispatcher in self.dispatchers:
            dispatcher.bind_anew()

    @contextlib.contextmanager
    def building(self, build: AnyBuild) -> Iterator[AnyBuild]:
        """In the block, `build` makes an entry for each call, where possible."""
        self.being_built = build
        self._choose_active()
        try:
            yield build
            build.withdraw_changed()
        finally:
            self.being_built = None
            self._choose_active()

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """In the block, do not count calls, and do not log new kinds of calls."""
        before = {counts: counts.by_use.copy() for counts in self.counts}
        self.is_probing = True
        try:
            yield
        finally:
            self.is_probing = False
            for dispatcher in self.dispatchers:
                dispatcher.forget_calls()
            for counts in self.counts:
                counts.restore(before.get(counts, {}))

    def uses(self) -> tuple[EntryUse, ...]:
        """Return each kind of call so far, with its level and count, for all callables."""
        total: dict[tuple[str, str, int, str], int] = {}
        for counts in self.counts:
            for use in counts.uses():
                key = (use.callable, use.call, use.level, use.reason)
                total[key] = total.get(key, 0) + use.calls
        return tuple(
            EntryUse(callable=name, call=call, level=level, reason=reason, calls=calls)
            for (name, call, level, reason), calls in sorted(total.items())
        )


SESSION = Session()
"""The session of this process."""
