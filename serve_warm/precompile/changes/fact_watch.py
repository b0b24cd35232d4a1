# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A watch on everything that the facts about one callable were read from.

After facts have been checked, calls to other packages can change a model. For example, a call can
switch an adapter, set a config value, remove a hook or append a module to a list. `FactWatch`
stores the sources of each fact, and checks at every call whether a source has changed. Most sources
are dicts, and a change in a dict is cheap to detect (`unchanged`). After a change,
`FactWatch` rereads only the facts whose sources changed.

Sources whose kind is in `SLOW_KINDS` are also compared during calls, but at most once a second
(`RELOOK_S`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from serve_warm.precompile.changes.sources import A_TENSOR, Sources, dict_behind, without_tensor
from serve_warm.precompile.changes.unchanged import ChangeChecks, never
from serve_warm.precompile.facts.table import (
    ANY_ERROR,
    CALLEE,
    RELATIONS,
    Facts,
    Merged,
    Missing,
    Why,
    module,
    others_of,
    take,
)


class FactWatch:
    """The facts from some entries of one callable, and whether each fact holds.

    Call `refresh` and `why_broken` from only one thread at a time; any thread can call `unchanged`.
    As soon as a refresh begins, the previous `unchanged` returns False.
    """

    def __init__(self, callee: object, tables: Sequence[Facts]) -> None:
        self._callee = callee
        self._merged = merged = Merged.of(tables)
        self._facts = merged.facts_of_all()
        self._objects: list[object] = [Missing("not looked at")] * len(merged.steps)
        self._broken: list[Why | None] = [None] * len(merged.facts)
        self._torn: tuple[set[int], set[int]] = (set(), set())
        """Rows to read again, and rows whose facts must be judged again, because something changed
        during the last refresh."""
        self._is_looking = False
        """Whether a refresh is running, or the last refresh ended with an error."""
        self._is_surprised = False
        """Whether the last refresh found a surprise (`Sources.has_surprise`)."""
        self.unchanged: Callable[[], bool] = lambda: False
        """Returns whether everything is unchanged since the last refresh; takes a few µs."""
        self.readers: dict[object, Any] = {}
        """Functions that read the inputs of libraries. The next refresh drops them
        (`libraries.inputs`)."""
        self._begin_anew()

    @functools.cached_property
    def _children(self) -> dict[int, list[int]]:
        """For each row, the rows whose step starts from it; computed at the first change."""
        children: dict[int, list[int]] = {}
        for row, (start, _, _) in enumerate(self._merged.steps):
            children.setdefault(start, []).append(row)
        return children

    @functools.cached_property
    def _facts_at(self) -> dict[int, list[int]]:
        """For each row, the indices of the facts about it."""
        facts_at: dict[int, list[int]] = {}
        for number, (row, _, _) in enumerate(self._merged.facts):
            facts_at.setdefault(row, []).append(number)
        return facts_at

    @functools.cached_property
    def _related(self) -> dict[int, list[int]]:
        """For each row, the rows that a relation compares with it."""
        related: dict[int, list[int]] = {}
        for row, kind, value in self._merged.facts:
            for each in others_of(kind, value) if kind in RELATIONS else ():
                related.setdefault(each, []).append(row)
        return related

    def size(self) -> tuple[int, int]:
        """Return the number of facts, and the number of dicts from which the facts were read."""
        return len(self._merged.facts), len(self._sources.versions)

    def covers(self, mapping: object) -> bool:
        """Return whether `unchanged` returns False after any change to this dict."""
        return self._checks.covers(mapping)

    def why_broken(self, table: int) -> str:
        """Return the first fact of a table that does not hold, as text; empty if all facts hold."""
        broken = self.find_broken(table)
        return "" if broken is None else broken()

    def find_broken(self, table: int) -> Why | None:
        """Return a function with the same result as `why_broken`, or None if all facts hold."""
        broken = self._broken
        return next((broken[n] for n in self._merged.of_table[table] if broken[n]), None)

    def list_holding(self) -> list[bool]:
        """Return for each fact whether it holds. Use this only if the watch has one table."""
        return [broken is None for broken in self._broken]

    def refresh(self) -> None:
        """Reread everything that changed since the last refresh."""
        self.readers = {}
        if self._is_looking:
            # An error ended the last refresh. It may have remembered values without judging them.
            self._begin_anew()
            self._is_looking = False
            return
        self._is_looking = True
        rows, judged = set(self._torn[0]), set(self._torn[1])
        for source in self._checks.find_changed():
            users = source.users()
            rows.update(user for user in users if user >= 0)
            judged.update(~user for user in users if user < 0)
        self._look_and_compile(rows, judged)
        self._is_looking = False

    def _begin_anew(self) -> None:
        """Read and judge everything again, without values from earlier refreshes."""
        self._sources = Sources()
        self._checks = ChangeChecks(self._sources)
        every = set(range(len(self._objects)))
        self._look_and_compile(every, every)

    def _look_and_compile(self, rows: set[int], judged: set[int]) -> None:
        self._sources.has_surprise = False
        looked = self._look(rows, judged) if rows or judged else (rows, judged)
        self.unchanged = self._checks.build_question()
        # Once, because an object may return another `__dict__` at each read.
        self._is_surprised = self._sources.has_surprise and not self._is_surprised
        if self._is_surprised:
            self.unchanged = never
            looked = (set(range(len(self._objects))),) * 2
        # Another thread may change a value after it was read and before the fact is judged, and
        # then restore it. So facts of such a refresh are judged again.
        is_torn = self.unchanged is never
        self._torn = looked if is_torn else (set(), set())

    def _look(self, rows: set[int], judged: set[int]) -> tuple[set[int], set[int]]:
        """Reread `rows`, and all rows that start from a changed row; then judge facts.

        Judges the facts about changed rows and about the rows in `judged`. Returns the rows that
        were read, and the rows whose facts were judged.
        """
        dirty, judged = set(rows), set(judged)
        is_all = len(dirty) == len(judged) == len(self._objects)  # both have only row numbers
        for row in range(len(self._objects)) if dirty else ():
            if row not in dirty:
                continue
            before = self._objects[row]
            now = self._walk(row)
            self._objects[row] = without_tensor(now)
            if now is not before and not is_all:
                dirty.update(self._children.get(row, ()))
                judged.update((row, *self._related.get(row, ())))
        for row in sorted(judged & self._facts_at.keys()):
            self._judge(row, self._facts_at[row])
        self._sources.drop_orphans()
        return dirty, judged

    def _object(self, row: int) -> object:
        kept = self._objects[row]
        if kept is not A_TENSOR:
            return kept
        start, step, argument = self._merged.steps[row]
        return self._callee if start < 0 else take(self._object(start), step, argument)

    def _walk(self, row: int) -> object:
        start, step, argument = self._merged.steps[row]
        self._sources.begin(row)
        if step == "root":
            return self._callee if argument == CALLEE else module(argument)
        base = self._object(start)
        return base if isinstance(base, Missing) else self._step(base, step, argument)

    def _step(self, base: object, step: str, argument: object) -> object:
        try:
            source = self._sources.note_step(base, step, argument)
        except ANY_ERROR as error:
            return Missing(f"{type(error).__name__}: {error}")
        # Use the remembered value, since the current one may differ already.
        if source is not None and source.kind == "list":
            return take(source.value, step, argument)
        if source is not None and source.has_what_is_there():
            return source.value
        if step == "attribute" and argument == "__dict__":
            return vars(base)
        return take(
            dict_behind(base) if step in ("item", "nth", "nth_key") else base, step, argument
        )

    def _judge(self, row: int, numbers: Iterable[int]) -> None:
        """Judge the facts with these indices, which are all about one row."""
        self._sources.begin(~row)
        found = self._object(row)
        is_missing = isinstance(found, Missing)
        for number in numbers:
            fact = _, kind, value = self._merged.facts[number]
            objects = {row: found}
            if kind in RELATIONS:
                objects.update((other, self._object(other)) for other in others_of(kind, value))
            elif not is_missing:
                try:  # noqa: SIM105 - `suppress` takes four times as long
                    self._sources.note_fact(found, fact)
                except ANY_ERROR:
                    pass  # then the fact does not hold
                if kind == "type" and self._sources.class_name(type(found)) == value:
                    self._broken[number] = None
                    continue
            self._broken[number] = self._facts.find_broken(fact, objects)
