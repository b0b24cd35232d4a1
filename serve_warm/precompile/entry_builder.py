# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Entries for the calls of one callable: compiled ahead of time, and held against eager.

An entry is a plain function of (callee, *tensors): weights are not in it, so that modules of one
class and structure share it, and weights may be loaded or replaced afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serve_warm.precompile import aot_compile, aoti_build, call_signature, entry_checks
from serve_warm.precompile.call_signature import Dynamic, Signature
from serve_warm.precompile.eager_check import difference_from_eager, why_not_twice
from serve_warm.precompile.entries import (
    PREFIXES,
    Begun,
    Entry,
    EntryTable,
    Unit,
    file_name,
    plain_values,
)
from serve_warm.precompile.entry_function import inputs_of, writes
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.session import LIBRARY_LEVEL
from serve_warm.precompile.trace_notes import side_effects

ATTEMPTS = 4
"""States of a model in which a build tries to make an entry for a call that had none before."""


class NotYet(Exception):
    """The library for a call is being compiled, and the call is answered without it."""


class EntryBuilder:
    """Makes the entries of one callable while a build is on."""

    def __init__(
        self,
        callee: Any,
        name: str,
        *,
        arguments: Mapping[str, Any],
        level: int,
        lock: threading.RLock,
    ) -> None:
        self._callee = callee
        self._name = name
        self._arguments = arguments
        self._level = level
        self._lock = lock
        """Of the callable's binding, which an entry that is withdrawn changes."""
        self._made: list[tuple[Unit, Entry]] = []
        self._answered: set[int] = set()
        """Ids of entries that a build made here, and that answered a later call of the build."""
        self._failed: dict[tuple[Any, ...], dict[str, str]] = {}
        """Why a build could not make an entry, by call and by plain values of the modules."""

    def note_answer(self, entry: Entry) -> None:
        """Note that an entry answered a call, so that its state is one that comes back."""
        self._answered.add(id(entry))

    def make(
        self,
        unit: Unit,
        table: EntryTable,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[Entry, Callable[..., Any]]:
        """Make the entry for a call, hold it against eager, and add it to the table.

        Raises:
            NoEntry: there can be none, or it does not compute what eager does.
            NotYet: its library is begun, and the table says that another call is to finish it.
        """
        why = aot_compile.can_precompile()
        if self._arguments.get("backend", "inductor") != "inductor":
            why = f"the backend is {self._arguments['backend']}, and entries are Inductor's"
        # As it is in one state, which need not be so in the next. One that is never the same, by a
        # count for example, is tried a few times.
        attempts = self._failed.setdefault((unit.key, signature, *state.values()), {})
        attempt = plain_values(self._callee)
        if len(attempts) >= ATTEMPTS:
            why = why or next(iter(attempts.values()))
        why = why or attempts.get(attempt, "")
        if why:
            raise NoEntry(why)
        begun = self._begun(unit, table, signature, state, tensors)
        try:
            made, entry = self._compile(unit, table, begun, signature, state, tensors)
        except NoEntry as failure:
            attempts[attempt] = str(failure)  # not tried again at each call
            raise
        # In another state, with grad mode on for example, it may have been refused before.
        table.refused.pop((self._name, str(signature)), None)
        table.add(unit, entry, made.data, made.fn)
        self._made.append((unit, entry))
        return entry, made.fn

    def _begun(
        self,
        unit: Unit,
        table: EntryTable,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> Begun | None:
        """Take what was begun for such a call from the table.

        Raises:
            NotYet: it stays there, for a later call.
        """
        for_such = [
            begun
            for begun in table.begun
            if begun.unit is unit and begun.entry.takes(signature, state, tensors)
        ]
        fitting = [begun for begun in for_such if not begun.entry.facts.broken(self._callee)]
        # A state that is never the same, by a count for example, is one that never comes back.
        if table.libraries == "begun" and (fitting or len(for_such) >= ATTEMPTS):
            raise NotYet
        if not fitting:
            return None
        table.tell("library")
        table.begun.remove(fitting[0])
        return fitting[0]

    def _library(  # noqa: PLR0917 - all that is known of a call
        self,
        unit: Unit,
        table: EntryTable,
        begun: Begun | None,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
        arguments: Mapping[str, Any],
    ) -> aot_compile.Made:
        """Return the library for a call; or begin it, and raise `NotYet`."""
        function = signature.function("entry")
        if begun is not None:
            return begun.library.finish(self._callee, tensors)
        if table.libraries == "made":
            table.tell("library")
            return aoti_build.make(function, self._callee, tensors, arguments)
        table.tell("trace")
        library = aoti_build.Begun(function, self._callee, tensors, arguments)
        captured = library.captured
        dynamic = Dynamic(conditions=tuple(captured.conditions))
        entry = Entry(
            signature=dynamic.signature(signature, tensors),
            dynamic=dynamic,
            state=state,
            facts=captured.facts,
            sources=captured.sources,
            references={},
            file="",
            error=0.0,
            level=LIBRARY_LEVEL,
        )
        table.begun.append(Begun(unit=unit, entry=entry, library=library))
        raise NotYet

    def _compile(  # noqa: PLR0917 - all that is known of a call
        self,
        unit: Unit,
        table: EntryTable,
        begun: Begun | None,
        signature: Signature,
        state: Mapping[str, str],
        tensors: Sequence[Any],
    ) -> tuple[aot_compile.Made, Entry]:
        """Return what is made for a call, of the highest level that is asked for and can be had."""
        # Shapes are static unless said otherwise: None would be neither.
        arguments = {"dynamic": False, **self._arguments}
        function = signature.function("entry")
        level, reason = self._level, ""
        if level == LIBRARY_LEVEL:
            try:
                made = self._library(unit, table, begun, signature, state, tensors, arguments)
                error = self._error(function, made, tensors)
                if made.plan.get("captures") == "":
                    # What was captured by that call is launched by this one.
                    error = max(error, self._error(function, made, tensors))
            except NoEntry as failure:
                level, reason = 2, str(failure)
        changes: Mapping[str, None] = {}
        if level == 2:
            table.tell("entry")
            with side_effects() as changes:
                made = aot_compile.make(function, self._callee, tensors, arguments)
            error = self._error(function, made, tensors)
        once = f"it changes {', '.join(changes)}" if changes else ""
        if not once and (writes(made.fn) if level == 2 else made.plan.get("writes")):
            once = "it writes into its inputs or buffers"
        once = once or why_not_twice(self._callee, (function, made.fn), tensors)
        dynamic = Dynamic(conditions=tuple(made.conditions))
        return made, Entry(
            signature=dynamic.signature(signature, tensors),
            dynamic=dynamic,
            state=state,
            facts=made.facts.with_inputs(self._callee, inputs_of(made.fn)),
            sources=made.sources,
            references=made.references,
            file=file_name(made.data, PREFIXES[level]),
            error=error,
            level=level,
            reason=reason,
            plan={**made.plan, entry_checks.ONCE: once},
        )

    def _error(
        self, function: Callable[..., Any], made: aot_compile.Made, tensors: Sequence[Any]
    ) -> float:
        """Return how far it is from eager; `NoEntry` where that is too far.

        Also where its call breaks what it was built on: a count, a list that grows, a value that
        is computed once. At the next call the graph would be stale, and facts are looked at once
        per start. Asked of eager, since compiled code writes the values of its first call.
        And where it changes a list or dict that it is given: an entry is given others.
        """

        def eager(callee: Any, *tensors: Any) -> Any:
            args, kwargs = function(_as_passed, *tensors)
            before = call_signature.contents(args, kwargs)
            out = callee(*args, **kwargs)
            if call_signature.contents(args, kwargs) != before:
                raise NoEntry("its call changes a list or dict that it is given")
            why = made.facts.broken(callee)
            if why:
                raise NoEntry(f"its call changes what its graph is built on: {why}")
            return out

        return difference_from_eager(self._callee, eager, made.fn, tensors)

    def withdraw_changed(self, table: EntryTable) -> None:
        """Withdraw what was made here and does not fit the callable any more, without a trace.

        A call of another kind, another callable or the handler changed it, and will again. What
        answered another call of the build meanwhile is of a state that comes back.
        """
        with self._lock:
            made, self._made = self._made, []
            answered, self._answered = self._answered, set()
            for unit, entry in made:
                why = entry.facts.broken(self._callee)
                if not why or id(entry) in answered:
                    continue
                # Of this build, and not withdrawn for another callable yet.
                if table.units.get(unit.key) is unit and entry in unit.entries:
                    why = f"what its graph is built on changes from call to call: {why}"
                    table.withdraw(unit, entry, why)


def _as_passed(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs
