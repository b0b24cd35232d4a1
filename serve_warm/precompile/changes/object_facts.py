# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The facts of a compiled method, checked for one object after another of the same class.

An application may make an object for each request. Most facts of such an object are about its
class, the method's code and Python modules. These facts are the same for all objects, so one watch
covers them (`fact_watch.FactWatch`). Only the facts about the object itself are read at each
call. Nothing in this module keeps such an object alive.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

from serve_warm.precompile.calls.torch_state import tensor_check
from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.facts.names import identity, locate, name_of_class
from serve_warm.precompile.facts.table import (
    ANY_ERROR,
    CALLEE,
    READERS,
    RELATIONS,
    TAKE,
    Facts,
    Missing,
    Reader,
    Step,
    Why,
    expect,
    item,
    module,
    others_of,
)
from serve_warm.private_apis.nn_module import CALL, HOOKS

Fitting = tuple[int, ...]
"""The numbers of the entries whose facts all hold."""

Check = Callable[[Sequence[object]], bool]
"""Takes the objects of all rows. If it returns True, a fact holds. If it returns False or raises an
error, `Facts.find_broken` must judge the fact."""

OF_TENSORS = ("tensor", "input")
"""Kinds of facts that torch's C++ code compares for all tensors of an object at once."""

LASTING = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
"""Kinds of objects that a module keeps alive, if the module has them under their own name."""


TEXTS_KEPT = 256
"""Maximum number of texts about broken facts that are kept."""


class ObjectFacts:
    """The facts of the entries of one method, for objects of one class.

    `callee` is the method of the first object. `of_entries` has the indexes of each entry's facts.
    """

    def __init__(
        self, callee: types.MethodType, facts: Facts, of_entries: Sequence[Sequence[int]]
    ) -> None:
        self._kind, self._function = type(callee.__self__), callee.__func__
        self._facts = facts
        self._of_entries = of_entries
        self._shared = shared = _SharedFacts(callee, facts)
        self._own = [n for n in range(len(facts.facts)) if n not in shared.number_of]
        self._walk = _list_walk(facts, self._own)
        of_tensors = [n for n in self._own if facts.facts[n][1] in OF_TENSORS]
        self._of_tensors = frozenset(of_tensors)
        self._tensor_rows = sorted({facts.facts[n][0] for n in of_tensors})
        self._known_tensors: tuple[Callable[..., bool], frozenset[int]] | None = None
        """A check of the tensors of an object, and the facts about tensors that hold if the check
        succeeds."""
        self._holding: frozenset[int] = frozenset()
        """The shared facts that hold."""
        self._texts: dict[tuple[int, int], str] = {}
        """Texts about broken facts, because removing secrets from a text takes 0.1 ms."""
        self._lock = threading.Lock()
        self._watch = FactWatch(tuple(shared.items), [shared.table()])
        self._plans: list[_Reading | None] = []
        """What to check for each entry; None if a shared fact of the entry does not hold."""
        self._plan()

    def covers(self, callee: types.MethodType) -> bool:
        """Return whether `callee` is the same method of an object of the same class."""
        return type(callee.__self__) is self._kind and callee.__func__ is self._function

    def list_fitting(self, callee: types.MethodType) -> Fitting:
        """Return the entries whose facts hold for an object. Any thread may call this."""
        if not self._watch.unchanged():
            with self._lock:
                if not self._watch.unchanged():
                    self._watch.refresh()
                    self._plan()
        plans = self._plans
        objects, is_complete = self._look(callee)
        if not is_complete:
            return tuple(
                entry
                for entry, plan in enumerate(plans)
                if plan is not None and all(self._holds(n, objects) for n in plan.facts)
            )
        right_tensors = self._judge_tensors(objects) if self._tensor_rows else frozenset()
        return tuple(
            entry
            for entry, plan in enumerate(plans)
            if plan is not None
            and plan.of_tensors <= right_tensors
            and self._all_hold(plan, objects)
        )

    def why_unfit(self, entry: int, callee: types.MethodType) -> str:
        """Return the first fact of an entry that does not hold for an object, as text."""
        objects = self._facts.objects(callee)
        for number in self._of_entries[entry]:
            if number in self._holding:
                continue
            why = self._facts.find_broken(self._facts.facts[number], objects)
            if why is not None:
                return self._describe(number, objects, why)
        return "its facts changed during the call"

    def _describe(self, number: int, objects: Sequence[object], why: Why) -> str:
        """Return the text of a broken fact, which other objects may break in the same way."""
        row, kind, value = self._facts.facts[number]
        if kind in RELATIONS or isinstance(objects[row], Missing):
            return why()
        try:
            # The hash, because the value may belong to a request.
            key = number, hash(repr(expect(kind, objects[row], value)))
        except ANY_ERROR:
            return why()
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= TEXTS_KEPT:
                self._texts.clear()
            text = self._texts[key] = why()
        return text

    def _plan(self) -> None:
        """Make the checks for the shared facts that hold now."""
        holds = self._watch.list_holding()
        shared = self._shared
        plans: list[_Reading | None] = []
        for numbers in self._of_entries:
            own = [n for n in numbers if n not in shared.number_of]
            if all(holds[shared.number_of[n]] for n in numbers if n in shared.number_of):
                plans.append(_Reading(self._facts, own, shared, holds))
            else:
                plans.append(None)
        self._holding = frozenset(n for n, of_table in shared.number_of.items() if holds[of_table])
        self._plans = plans

    def _look(self, callee: types.MethodType) -> tuple[list[object], bool]:
        """Return the object of each row that an own fact needs, and whether all exist."""
        objects: list[object] = [None] * len(self._facts.steps)
        is_complete = True
        for row, start, take, argument in self._walk:
            if start < 0:
                found = callee if argument == CALLEE else module(argument)
            else:
                found = objects[start]
                if type(found) is not Missing:
                    try:
                        found = take(found, argument)
                    except ANY_ERROR as error:
                        found = Missing(f"{type(error).__name__}: {error}")
            objects[row] = found
            if type(found) is Missing:
                is_complete = False
        return objects, is_complete

    def _holds(self, number: int, objects: Sequence[object]) -> bool:
        return self._facts.find_broken(self._facts.facts[number], objects) is None

    def _all_hold(self, plan: _Reading, objects: Sequence[object]) -> bool:
        for number, check in plan.checks:
            try:
                if check(objects):
                    continue
            except ANY_ERROR:
                pass
            if not self._holds(number, objects):
                return False
        return True

    def _judge_tensors(self, objects: Sequence[Any]) -> frozenset[int]:
        """Return the facts about tensors that hold."""
        tensors = [objects[row] for row in self._tensor_rows]
        known = self._known_tensors
        check = None
        try:
            if known is not None and known[0](*tensors):
                return known[1]
            check = tensor_check(tensors)
        except ANY_ERROR:
            pass  # not a tensor
        right = frozenset(n for n in self._of_tensors if self._holds(n, objects))
        # Another thread may have changed a tensor before the facts were judged.
        if check is not None and check(*tensors):
            self._known_tensors = check, right
        return right


class _Reading:
    """The facts of one entry that must be checked for each object."""

    def __init__(
        self, facts: Facts, own: Collection[int], shared: _SharedFacts, holds: Sequence[bool]
    ) -> None:
        self.facts = own
        self.of_tensors = frozenset(n for n in own if facts.facts[n][1] in OF_TENSORS)
        self.checks = [
            (n, _make_check(facts.facts[n], shared.sample_of(n, holds)))
            for n in own
            if n not in self.of_tensors
        ]


class _SharedFacts:
    """The facts that do not depend on the object, as a table for a watch.

    The table's paths start from a tuple: the class of bound methods, the method's function, the
    class of the objects, and then samples. A sample is a class or a function that the first object
    led to. If another object leads to the same one, the watch knows about it.
    """

    def __init__(self, callee: types.MethodType, facts: Facts) -> None:
        self.items: list[object] = [types.MethodType, callee.__func__, type(callee.__self__)]
        self.number_of: dict[int, int] = {}
        """For each shared fact, its number in the table."""
        self._samples: dict[int, tuple[object, int]] = {}
        """For each fact about a sample, the sample and the number of a fact in the table."""
        self._steps: list[Step] = [(-1, "root", CALLEE)]
        self._facts: list[tuple[int, str, object]] = []
        self._row_of: dict[int, int] = {}
        bound, method, of_kind = (self._add_item(number) for number in range(3))
        methods, objects_of = self._add_steps(facts, method, of_kind)
        classes = {**dict.fromkeys(methods, bound), **dict.fromkeys(objects_of, of_kind)}
        objects = facts.objects(callee)
        for number, fact in enumerate(facts.facts):
            row, of, value = fact
            if of == "type" and row in classes:
                self.number_of[number] = self._add(classes[row], "class", value)
            elif of in RELATIONS:
                self._add_relation(number, fact)
            elif row in self._row_of:
                self.number_of[number] = self._add(self._row_of[row], of, value)
            elif not isinstance(objects[row], Missing):
                self._add_sample(number, of, value, objects[row])

    def _add_steps(self, facts: Facts, method: int, of_kind: int) -> tuple[set[int], set[int]]:
        """Add the steps that do not depend on the object.

        `method` and `of_kind` are the rows of the method's function and of the class in the table.
        Returns the rows of the method and of the object in `facts`.
        """
        methods: set[int] = set()
        objects: set[int] = set()
        for row, (start, step, argument) in enumerate(facts.steps):
            if step == "root" and argument == CALLEE:
                methods.add(row)
            elif start in methods and (step, argument) == ("attribute", "__self__"):
                objects.add(row)
            elif start in methods and (step, argument) == ("attribute", "__func__"):
                self._row_of[row] = method
            elif start in objects and step == "type":
                self._row_of[row] = of_kind
            elif start in self._row_of or step == "root":
                self._row_of[row] = len(self._steps)
                self._steps.append((self._row_of.get(start, -1), step, argument))
        return methods, objects

    def table(self) -> Facts:
        """Return the table of the shared facts."""
        return Facts(steps=tuple(self._steps), facts=tuple(self._facts))

    def sample_of(self, number: int, holds: Sequence[bool]) -> object:
        """Return the sample for which a fact holds, or None. `holds` is about the table's facts."""
        sample, of_table = self._samples.get(number, (None, 0))
        return sample if sample is not None and holds[of_table] else None

    def _add(self, row: int, kind: str, value: object) -> int:
        self._facts.append((row, kind, value))
        return len(self._facts) - 1

    def _add_item(self, number: int) -> int:
        self._steps.append((0, "item", number))
        return len(self._steps) - 1

    def _add_relation(self, number: int, fact: tuple[int, str, object]) -> None:
        row, kind, value = fact
        rows = [row, *others_of(kind, value)]
        if all(each in self._row_of for each in rows):
            first, *others = (self._row_of[each] for each in rows)
            self.number_of[number] = self._add(
                first, kind, others if kind == "distinct" else others[0]
            )

    def _add_sample(self, number: int, kind: str, value: object, found: object) -> None:
        sample = type(found) if kind == "type" else found
        if kind == "type":
            is_right = name_of_class(type(found)) == value
        else:
            is_lasting = isinstance(found, LASTING) and locate(found) is not None
            is_right = kind == "is" and is_lasting and identity(found) == value
        if is_right:
            self.items.append(sample)
            row = self._add_item(len(self.items) - 1)
            of_table = self._add(row, "class" if kind == "type" else kind, value)
            self._samples[number] = sample, of_table


Walk = list[tuple[int, int, Reader, object]]
"""A row, the row where its step starts, the step's function, and its argument."""


def _list_walk(facts: Facts, numbers: Collection[int]) -> Walk:
    """Return the steps to all rows that some facts are about."""
    rows: set[int] = set()
    for number in numbers:
        row, kind, value = facts.facts[number]
        waiting = [row, *(others_of(kind, value) if kind in RELATIONS else ())]
        while waiting:
            each = waiting.pop()
            if each >= 0 and each not in rows:
                rows.add(each)
                waiting.append(facts.steps[each][0])
    walk: Walk = []
    for row in sorted(rows):
        start, step, argument = facts.steps[row]
        is_plain_item = step == "item" and not isinstance(argument, list)
        walk.append((row, start, item if is_plain_item else TAKE.get(step, getattr), argument))
    return walk


def _make_check(fact: tuple[int, str, Any], sample: object) -> Check:
    """Return a fast check of a fact whose rows all have an object.

    `sample` is a class or an object for which the fact is known to hold, or None.
    """
    row, kind, value = fact
    if kind in RELATIONS:
        rows = (row, *others_of(kind, value))
        different = 1 if kind == "same" else len(rows)
        return lambda objects: len({id(objects[each]) for each in rows}) == different
    if sample is not None and kind == "type":
        return lambda objects: type(objects[row]) is sample
    if sample is not None:
        return lambda objects: objects[row] is sample
    if kind == "own":
        name, is_there = value
        return lambda objects: (name in objects[row].__dict__) is is_there
    if kind == "hooks" and value == [[], []]:
        return lambda objects: _has_no_hooks(objects[row])
    read = READERS[kind]
    return lambda objects: bool(read(objects[row], value) == value)


def _has_no_hooks(found: object) -> bool:
    own = vars(found)
    return CALL not in own and not any(map(own.get, HOOKS))
