# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Bindings: the entries that match a callable in its current state, and the callable's known calls.

A binding is valid until the callable changes or different entries are loaded.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from serve_warm._records import record
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.signature import Signature
from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.changes.gc_pause import NO_COLLECTIONS
from serve_warm.precompile.changes.object_facts import Fitting, ObjectFacts
from serve_warm.precompile.changes.unchanged import never
from serve_warm.precompile.dispatch.call_counts import Use
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.model_tree import tree
from serve_warm.precompile.entries.table import Entry, EntryTable, Unit
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import Facts, Merged, Why
from serve_warm.precompile.libraries import run

if TYPE_CHECKING:
    import torch

    from serve_warm.precompile.parity.checks import Checks

STATES_KEPT = 64
"""Number of model states whose known calls are kept. Two states differ if different entries match
them."""

KnownCall = tuple[
    Callable[..., bool],
    Callable[[], bool],
    Callable[["Sequence[torch.Tensor]"], bool] | None,
    Callable[..., object] | None,
    Use,
]
"""A known kind of call. The first three items are functions that check the tensors, the state and
the conditions of an entry. The fourth item is the code that runs the call, or None at level 1. The
last item says how the call is counted."""


CALLS_WITHOUT_WATCH = 4
"""Number of calls to a new instance before a watch is made. To read the facts once takes a quarter
of the time that it takes to make a watch."""

OBJECTS_WITHOUT_SHARING = 4
"""Number of calls to new instances of one class before they share a watch and their known calls."""


class Unusable:
    """Why the code of an entry cannot be used: it was withdrawn, or cannot be loaded."""

    def __init__(self, error: NoEntry) -> None:
        self._error = error

    def __call__(self) -> str:
        """Return the reason."""
        return str(self._error)


@record(frozen=True, kw_only=True)
class Binding:
    """The known facts about a callable and its entries, valid until the callable changes."""

    table: EntryTable | None
    unit: Unit | None = None
    watch: FactWatch | None = None
    unchanged: Callable[[], bool] = lambda: True
    is_for_one_call: bool = False
    """Whether the facts were read for one call only, so the next call must read them again."""
    shared: CallsOfObjects | None = None
    """What this binding shares with the bindings of other objects, if it is for one call."""
    functions: Sequence[Callable[..., object] | NoEntry] = ()
    """Code of every entry of the unit. Includes entries that do not match now, because they may
    match again later."""
    entries: Sequence[tuple[Entry, Callable[..., object]]] = ()
    """The entries that fit now."""
    unfit: Mapping[str, Why] = field(default_factory=dict)
    """Maps an entry's call to the reason why the entry does not match now."""
    known: frozenset[tuple[type, object]] = frozenset()
    """Numbers and strings in the calls that have entries."""
    hits: dict[object, list[KnownCall]] = field(default_factory=dict)
    open_hits: dict[object, list[KnownCall]] = field(default_factory=dict)
    """Maps keys without sizes to the known calls of entries with dynamic sizes."""
    states: dict[
        tuple[int, ...], tuple[dict[object, list[KnownCall]], dict[object, list[KnownCall]]]
    ] = field(default_factory=dict)
    """Maps each state of the model to the known calls in this state. A state is written as the
    indexes of the entries that match. So calls are still recognized when the model returns to an
    earlier state."""

    @property
    def was_changed(self) -> bool:
        """Whether no entry matches, because the application changed or replaced the object."""
        if self.entries or not self.unfit:
            return False
        return not any(isinstance(why, Unusable) for why in self.unfit.values())

    @property
    def runs_eagerly(self) -> bool:
        """Whether level-1 calls must run eagerly.

        True if an entry was withdrawn without a C++ compiler, even if the entry does not match now.
        """
        table, unit = self.table, self.unit
        return table is not None and unit is not None and table.runs_eagerly(unit)

    def why_none(
        self, name: str, table: EntryTable, signature: Signature, state: Mapping[str, str]
    ) -> str:
        """Return why no entry answers a call to the callable `name`."""
        call = str(signature)
        if call in self.unfit:
            return self.unfit[call]()
        if (name, call) in table.refused:
            return table.refused[name, call]
        if not self.entries:
            if self.unfit:
                return next(iter(self.unfit.values()))()
            return table.nearest(self.unit) if self.unit is not None else ""
        for entry, _ in self.entries:
            if entry.signature == signature:
                other = "; ".join(
                    _other_state(part, now, entry.state.get(part, "not known"))
                    for part, now in state.items()
                    if now != entry.state.get(part)
                )
                return (
                    other or f"its conditions do not hold: {' and '.join(entry.dynamic.conditions)}"
                )
        return f"no entry for this call, but {len(self.entries)} for other calls"


def _other_state(name: str, now: str, was: str) -> str:
    """Return a description of one changed value of the state.

    If the value is a list, the description shows only the changed items.
    """
    found, before = now.split(", "), was.split(", ")
    now = ", ".join(part for part in found if part not in before)
    was = ", ".join(part for part in before if part not in found)
    return f"{name} is {now}, but was {was}"


UNBOUND = Binding(table=EntryTable({}, {}))


@record(frozen=True, kw_only=True)
class EntriesOfClass:
    """The entries of one method of all instances of a class, and their merged facts."""

    table: EntryTable
    unit: Unit
    number: int
    """Number of the unit's entries when the facts were merged."""
    known: frozenset[tuple[type, object]]
    facts: Facts
    of_entries: Sequence[Sequence[int]]
    """For each entry, the indexes of its facts in `facts`."""


class OfClass:
    """Keeps the last `EntriesOfClass` and `CallsOfObjects`, for the binders of all instances."""

    def __init__(self) -> None:
        self.entries: EntriesOfClass | None = None
        self._calls: CallsOfObjects | None = None
        self._kind: weakref.ref[type] | None = None
        self._seen = 0
        """Number of calls to new instances of the class `_kind`."""

    def find_binding(self, callee: object) -> Binding:
        """Return a binding with the known calls of other objects, for a new object."""
        calls = self._calls
        if calls is None or not isinstance(callee, types.MethodType) or not calls.takes(callee):
            return UNBOUND
        return calls.latest_for(callee)

    def share(self, callee: object, entries: EntriesOfClass) -> CallsOfObjects | None:
        """Return the known calls of the objects of a class, or None for the first few objects."""
        if not isinstance(callee, types.MethodType):
            return None
        calls = self._calls
        if calls is not None and calls.entries is entries and calls.takes(callee):
            return calls
        kind = type(callee.__self__)
        if self._kind is None or self._kind() is not kind:
            self._kind, self._seen = weakref.ref(kind), 0
        self._seen += 1
        if self._seen <= OBJECTS_WITHOUT_SHARING:
            return None
        calls = self._calls = CallsOfObjects(callee, entries)
        return calls


class CallsOfObjects:
    """The known calls of one method, for all objects of a class. Any thread may use them.

    They are valid until an entry is withdrawn, or until the checks against eager execution begin.
    """

    def __init__(self, callee: types.MethodType, entries: EntriesOfClass) -> None:
        self.entries = entries
        self.lock = threading.Lock()
        """Protects the tables of known calls."""
        self._table_changes = entries.table.changes
        self._checks: Checks | None = SESSION.checks
        self._facts = ObjectFacts(callee, entries.facts, entries.of_entries)
        self._functions = [fn for _, fn in _load_functions(entries.table, entries.unit)]
        self._calls = [str(entry.signature) for entry in list(entries.unit.entries)]
        self._states: dict[Fitting, Binding] = {}
        self._latest: tuple[Fitting, Binding] | None = None

    def takes(self, callee: types.MethodType) -> bool:
        """Return whether the known calls are still valid, and are those of this method."""
        return self._is_valid() and self._facts.covers(callee)

    def list_fitting(self, callee: types.MethodType) -> Fitting | None:
        """Return the numbers of the entries that fit now, or None if nothing here is valid."""
        return self._facts.list_fitting(callee) if self._is_valid() else None

    def latest_for(self, callee: types.MethodType) -> Binding:
        """Return a binding whose check finds out whether the latest binding fits the object."""
        return UNBOUND if self._latest is None else self._make(callee, *self._latest)

    def bind(self, callee: types.MethodType) -> Binding:
        """Return the binding of an object in its current state."""
        fitting = self._facts.list_fitting(callee)
        binding = self._states.get(fitting)
        if binding is None:
            binding = self._bind_state(fitting)
            if len(self._states) >= STATES_KEPT:
                self._states.clear()
            self._states[fitting] = binding
        self._latest = fitting, binding
        unfit: dict[str, Why] = {}
        for number, function in enumerate(self._functions):
            if isinstance(function, NoEntry):
                unfit[self._calls[number]] = Unusable(function)
            elif number not in fitting:
                unfit[self._calls[number]] = functools.partial(
                    self._facts.why_unfit, number, callee
                )
        return self._make(callee, fitting, binding, unfit=unfit)

    def _is_valid(self) -> bool:
        table = self.entries.table
        return (
            SESSION.active is table
            and table.changes == self._table_changes
            and SESSION.checks is self._checks
        )

    def _bind_state(self, fitting: Fitting) -> Binding:
        functions = self._functions
        return Binding(
            table=self.entries.table,
            unit=self.entries.unit,
            is_for_one_call=True,
            shared=self,
            functions=functions,
            entries=[
                (self.entries.unit.entries[n], fn)
                for n in fitting
                if not isinstance(fn := functions[n], NoEntry)
            ],
            known=self.entries.known,
        )

    def _make(
        self, callee: types.MethodType, fitting: Fitting, binding: Binding, **fields: object
    ) -> Binding:
        check = CheckOfObject(self, callee, fitting)
        made: Binding = object.__new__(Binding)  # `replace` takes ten times as long
        made.__dict__.update(binding.__dict__, unchanged=check, **fields)
        return made


class CheckOfObject:
    """Checks at a call whether the same entries as before fit an object, and counts the calls."""

    __slots__ = ("_callee", "_fitting", "_shared", "calls")

    def __init__(self, shared: CallsOfObjects, callee: types.MethodType, fitting: Fitting) -> None:
        self._shared = shared
        self._callee = callee
        self._fitting = fitting
        self.calls = 0

    def __call__(self) -> bool:
        """Return whether the known calls are right for this call."""
        self.calls += 1
        if self.calls > CALLS_WITHOUT_WATCH:
            return False  # the object was not made for one request: a watch pays off
        return self._shared.list_fitting(self._callee) == self._fitting


class Binder:
    """Keeps the binding of one callable up to date.

    The binder of a method also gets `of_class`, which the binders of all instances share. Such an
    instance may be made for a single request, so its first calls make no watch.
    """

    def __init__(
        self, callee: object, name: str, arguments: str, of_class: OfClass | None = None
    ) -> None:
        self._of_class = of_class
        self._calls_without_watch = 0
        self.lock = threading.RLock()
        self.binding = UNBOUND if of_class is None else of_class.find_binding(callee)
        """Each call reads this value. To replace the value, hold `lock`."""
        self._callee: Any = callee  # a method, if `of_class` is given and shares calls
        self._name = name
        self._arguments = arguments

    def bind(self) -> None:
        """Compare the callable's current state with the entries, and load the entries that fit."""
        with self.lock:
            self.bind_again()

    def bind_anew(self) -> Binding:
        """Look for the entries that fit again, and forget all known calls."""
        with self.lock:
            self.binding = UNBOUND
            return self.bind_again()

    def bind_again(self) -> Binding:
        """Return the binding of the callable in its current state. The caller must hold `lock`."""
        binding, table = self.binding, SESSION.active
        if table is None:
            binding = Binding(table=None)
        elif self._of_class is not None and self._may_skip_watch(table, binding):
            self._calls_without_watch += 1
            binding = self._bind_for_one_call(table, self._of_class)
        elif binding.table is not table or binding.is_for_one_call or not _has_all(binding):
            binding = self._bind(table)
        elif SESSION.being_built is not None and binding.watch is None:
            # There is no watch yet, because the unit has no entries. So look for new parts of the
            # callable.
            binding = self._bind(table)
        elif not binding.unchanged() and binding.watch is not None:
            binding.watch.refresh()
            binding = _judge(binding)
            if not binding.entries and binding.unit is not None:
                # The callable may have new parts, for which there may be other entries.
                unit = table.unit(self._name, self._arguments, tree(self._callee))
                binding = binding if unit is binding.unit else self._bind(table)
        self.binding = binding
        return binding

    def follow_changes(self) -> Binding:
        """Return the binding after a change. The caller must hold `lock`.

        The lookup of a call binds again after a binding for one call, so none of its calls is known
        any more.
        """
        binding = self.binding
        if not binding.is_for_one_call:
            return self.bind_again()
        if isinstance(binding.unchanged, CheckOfObject):
            self._calls_without_watch += binding.unchanged.calls - 1
        self.binding = UNBOUND
        return self.binding

    def load(
        self, table: EntryTable
    ) -> tuple[Unit, list[tuple[Entry, Callable[..., object] | NoEntry]]]:
        """Return the callable's unit, and its entries with their code. Loads code only once.

        Loading can hang. If this is called without the lock before any call can see the table, then
        calls do not wait for it.
        """
        unit = table.unit(self._name, self._arguments, tree(self._callee))
        return unit, _load_functions(table, unit)

    def _may_skip_watch(self, table: EntryTable, binding: Binding) -> bool:
        is_new = binding is UNBOUND or (binding.is_for_one_call and binding.table is table)
        is_building = SESSION.being_built is not None
        return is_new and not is_building and self._calls_without_watch < CALLS_WITHOUT_WATCH

    def _bind_for_one_call(self, table: EntryTable, of_class: OfClass) -> Binding:
        """Return a binding that has no watch on the callable's facts."""
        if call_signature.module_of(self._callee) is not None:  # not made for a single request
            return self._bind(table)
        shared = of_class.entries
        if shared is None or shared.table is not table or shared.number != len(shared.unit.entries):
            unit = table.unit(self._name, self._arguments, ())
            entries = list(unit.entries)
            merged = Merged.of([entry.facts for entry in entries])
            shared = of_class.entries = EntriesOfClass(
                table=table,
                unit=unit,
                number=len(entries),
                known=_known_values(entries),
                facts=merged.facts_of_all(),
                of_entries=merged.of_table,
            )
        calls = of_class.share(self._callee, shared)
        if calls is not None:
            return calls.bind(self._callee)
        if not shared.number:
            return self._bind(table)
        facts, objects = shared.facts, shared.facts.objects(self._callee)
        broken: dict[int, Why | None] = {}

        def find_broken(entry: int) -> Why | None:
            for number in shared.of_entries[entry]:
                if number not in broken:
                    broken[number] = facts.find_broken(facts.facts[number], objects)
                if (why := broken[number]) is not None:
                    return why
            return None

        functions = [function for _, function in _load_functions(table, shared.unit)]
        _, entries_now, unfit = _sort(shared.unit, functions, find_broken)
        return Binding(
            table=table,
            unit=shared.unit,
            unchanged=never,
            is_for_one_call=True,
            functions=functions,
            entries=entries_now,
            unfit=unfit,
            known=shared.known,
        )

    def _bind(self, table: EntryTable) -> Binding:
        unit, loaded = self.load(table)
        entries = [entry for entry, _ in loaded]
        # Without entries no change can cause a wrong answer. But a change may restore a structure
        # that has entries.
        watched = entries or table.of_other_structures(unit)
        watch = None
        if watched:
            with NO_COLLECTIONS:
                watch = FactWatch(self._callee, [e.facts for e in watched])
        return _judge(
            Binding(
                table=table,
                unit=unit,
                watch=watch,
                functions=[function for _, function in loaded],
                known=_known_values(entries),
            )
        )

    def forget_calls(self) -> None:
        """Forget the code of all kinds of calls; the next call of each kind looks up the code."""
        with self.lock:
            for tables in self.binding.states.values():
                for table in tables:
                    table.clear()


def _has_all(binding: Binding) -> bool:
    return binding.unit is not None and len(binding.unit.entries) == len(binding.functions)


def _judge(binding: Binding) -> Binding:
    """Return the binding with the entries that fit now."""
    watch, unit = binding.watch, binding.unit
    if watch is None or unit is None:
        return binding
    fitting, entries, unfit = _sort(unit, binding.functions, watch.find_broken)
    state = tuple(fitting)
    if state not in binding.states and len(binding.states) >= STATES_KEPT:
        binding.states.pop(next(iter(binding.states)))
    hits, open_hits = binding.states.setdefault(state, ({}, {}))
    return replace(
        binding,
        unchanged=watch.unchanged,
        entries=entries,
        unfit=unfit,
        hits=hits,
        open_hits=open_hits,
    )


def _sort(
    unit: Unit,
    functions: Sequence[Callable[..., object] | NoEntry],
    find_broken: Callable[[int], Why | None],
) -> tuple[list[int], list[tuple[Entry, Callable[..., object]]], dict[str, Why]]:
    """Return the numbers of the entries that fit now, these entries, and why others do not fit.

    `find_broken` returns a fact that does not hold, for the number of an entry.
    """
    fitting, entries = [], []
    unfit: dict[str, Why] = {}
    for number, function in enumerate(functions):
        entry = unit.entries[number]
        if isinstance(function, NoEntry):
            unfit[str(entry.signature)] = Unusable(function)
        elif (broken := find_broken(number)) is not None:
            unfit[str(entry.signature)] = broken
        else:
            fitting.append(number)
            entries.append((entry, function))
    return fitting, entries, unfit


def _load_functions(
    table: EntryTable, unit: Unit
) -> list[tuple[Entry, Callable[..., object] | NoEntry]]:
    """Return a unit's entries with their code, or with the reason why there is none."""
    loaded: list[tuple[Entry, Callable[..., object] | NoEntry]] = []
    for entry in list(unit.entries):
        try:
            loaded.append((entry, table.function(entry, run.load)))
        except NoEntry as error:
            loaded.append((entry, error))
    return loaded


def _known_values(entries: Sequence[Entry]) -> frozenset[tuple[type, object]]:
    """Return the numbers and strings in the calls of these entries."""
    return frozenset(
        value
        for entry in entries
        for value in call_signature.list_known_values(entry.signature.structure)
    )
