# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A watch on everything that facts about one callable were read from.

Facts hold when they are looked at. A model changes afterwards, by library calls that nobody
announces: an adapter is switched, a config value set, a hook removed, a module put into a list.
`FactWatch` remembers where each fact was read from, and answers at every call whether any of these
places changed: most are dicts, whose versions are compared in C++ (6 µs for 255). After a change it
looks again at what was read from there, and at nothing else.

Some places are compared once a second only (`RELOOK_S`), by the call that comes then: see
`SLOW_KINDS`.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from serve_warm.precompile.call_checks import (
    backend_flags,
    dict_version,
    dict_versions,
    dicts_check,
    tensor_check,
)
from serve_warm.precompile.facts import (
    CALLEE,
    HOOKS,
    RELATIONS,
    UNREADABLE,
    Facts,
    Missing,
    Step,
    decode_key,
    describe_tensor,
    functions_of,
    module,
    name_of_class,
    others_of,
    take,
    under,
)

RELOOK_S = 1.0
"""How long a change of what `SLOW_KINDS` names may go unnoticed, while calls come."""

SLOW_KINDS = ("type", "dict", "code")
"""Sources that are compared once in `RELOOK_S`, as the flags of torch's backends are: a class or a
`__dict__` that is assigned to an object (`module.__class__ = Other`) and code that is assigned to a
function (`f.__code__ = ...`). There are as many as objects, and hardly anybody does any of them."""

NOISE = 2
"""After so many changes of a dict that no fact was about, its keys are compared one by one."""

HEAP_TYPE = 1 << 9
"""Flag of classes that can be changed (`Py_TPFLAGS_HEAPTYPE`)."""


class _Absent:
    """In place of what a dict, or an object, does not have."""


ABSENT = _Absent()


class _Methods:
    """The functions of a class and its bases, as one thing that has code."""

    __slots__ = ("functions",)

    def __init__(self, kind: type) -> None:
        bases = [base for base in kind.__mro__ if base.__flags__ & HEAP_TYPE]
        self.functions = [f for b in bases for value in vars(b).values() for f in under(value)]

    @property
    def __code__(self) -> tuple[types.CodeType, ...]:
        return tuple(function.__code__ for function in self.functions)


class _Source:
    """One place that rows or facts were read from, and what was there."""

    __slots__ = ("base", "kind", "name", "users", "value")

    def __init__(self, kind: str, base: Any, name: Any) -> None:
        self.kind = kind
        self.base = base
        self.name = name
        self.value: Any = None
        self.users: set[int] = set()
        """Rows as they are, facts as `~fact`."""

    def read(self) -> Any:
        try:
            return READ[self.kind](self.base, self.name)
        except UNREADABLE:
            return ABSENT

    def remember(self, value: Any) -> None:
        # What is compared at each call is held; a dict says by itself that it changed.
        self.value = _kept(value) if self.kind == "item" else value

    def is_built_in(self) -> bool:
        """Return whether its value, or a place, is built into the question at each call."""
        if self.kind == "keys":
            return _is_ordered(self.base)  # which asks for the order once there are two
        return self.kind in ("attribute", "tensor", "class")

    def has_what_is_there(self) -> bool:
        """Return whether its value is the thing itself, and is there."""
        return self.kind in ("attribute", "getitem") and self.value is not ABSENT

    def is_still(self, value: Any) -> bool:
        held = self.value
        if held is value:
            return True
        if self.kind in ("list", "keys", "set"):
            return (
                type(held) is tuple
                and type(value) is tuple
                and len(held) == len(value)
                and all(map(operator.is_, held, value))
            )
        if self.kind in COMPARED:
            return bool(held == value)
        # A number that a property makes anew each time is the same number.
        return type(held) is type(value) and type(value) in SCALARS and repr(held) == repr(value)


SCALARS = (bool, int, float, str, bytes, type(None))

COMPARED = ("class", "code", "length", "tensor")
"""Kinds whose values are compared as values."""


A_TENSOR = _Absent()
"""In place of a tensor, which is looked up whenever it is wanted.

A watch that held weights would keep those alive that an application replaced, and torch refuses to
swap what has a weak reference (`torch.utils.swap_tensors`).
"""


def _kept(value: Any) -> Any:
    return A_TENSOR if isinstance(value, torch.Tensor) else value


READ: Mapping[str, Callable[[Any, Any], Any]] = {
    "item": lambda base, name: dict.get(base, name, ABSENT),
    # `move_to_end` is no change of the dict below.
    "keys": lambda base, _: tuple((OrderedDict if _is_ordered(base) else dict).keys(base)),
    "list": lambda base, _: tuple(base),
    "set": lambda base, _: tuple(base),
    "length": lambda base, _: len(base),
    "attribute": getattr,
    "getitem": operator.getitem,
    "referent": lambda base, _: base(),
    "type": lambda base, _: type(base),
    "dict": lambda base, _: vars(base),
    "code": lambda base, _: base.__code__,
    "class": lambda base, _: tuple(dict_versions(_class_dicts(base))),
    "tensor": lambda base, _: describe_tensor(base),
}


def _class_dicts(kind: type) -> list[dict[str, Any]]:
    """Return the dicts of a class and its bases, of those that can be changed."""
    return [_dict_of(vars(base)) for base in kind.__mro__ if base.__flags__ & HEAP_TYPE]


def _dict_of(mapping: Any) -> Any:
    """Return the dict behind a mapping proxy, which is what has a version."""
    if type(mapping) is types.MappingProxyType:
        return next((each for each in gc.get_referents(mapping) if isinstance(each, dict)), None)
    return mapping


@dataclass(kw_only=True)
class _Merged:
    """The facts of several entries in one table; made once for all callables that share them."""

    steps: list[Step] = field(default_factory=list)
    facts: list[tuple[int, str, Any]] = field(default_factory=list)
    of_table: list[list[int]] = field(default_factory=list)
    """Numbers of the facts of each of the tables that went in."""

    @classmethod
    def of(cls, tables: Sequence[Facts]) -> _Merged:
        merged = cls()
        rows: dict[str, int] = {}
        facts: dict[str, int] = {}
        known: dict[int, list[int]] = {}
        for table in tables:
            if id(table) not in known:
                known[id(table)] = merged._add(table, rows, facts)
            merged.of_table.append(known[id(table)])
        return merged

    def _add(self, table: Facts, rows: dict[str, int], facts: dict[str, int]) -> list[int]:
        row_of: list[int] = []
        for start, step, argument in table.steps:
            moved = (row_of[start] if start >= 0 else -1, step, argument)
            row_of.append(_number(moved, self.steps, rows))
        numbers = []
        for row, kind, value in table.facts:
            if kind == "same":
                value = row_of[value]  # noqa: PLW2901 - of this table, and now of all
            elif kind == "distinct":
                value = [row_of[other] for other in value]  # noqa: PLW2901
            numbers.append(_number((row_of[row], kind, value), self.facts, facts))
        return numbers


def _number(value: Any, values: list[Any], known: dict[str, int]) -> int:
    key = repr(value)
    if key not in known:
        known[key] = len(values)
        values.append(value)
    return known[key]


@dataclass(kw_only=True)
class _Groups:
    """Sources by how they are compared."""

    of_dict: dict[int, list[_Source]] = field(default_factory=dict)
    """Items and keys, by the id of their dict: read only once its version moves."""
    of_class: set[int] = field(default_factory=set)
    """Ids of the dicts of classes, whose versions are all that is known of them."""
    others: list[_Source] = field(default_factory=list)
    """Read at each look: all but the slow ones, and what a dict's version speaks for."""
    slow: list[_Source] = field(default_factory=list)
    checks: list[Callable[[], bool]] = field(default_factory=list)
    """Of all but dicts and slow ones, asked at each call."""


class FactWatch:
    """The facts of some entries about one callable: which hold, and whether that may have changed.

    `refresh` and `why_broken` belong to one thread at a time; `unchanged` to any, and once a
    refresh began the one from before says no.
    """

    def __init__(self, callee: Any, tables: Sequence[Facts]) -> None:
        self._callee = callee
        self._merged = merged = _Merged.of(tables)
        self._facts = Facts(steps=tuple(merged.steps), facts=tuple(merged.facts))
        self._objects: list[Any] = [Missing("not looked at")] * len(merged.steps)
        self._broken: list[str] = [""] * len(merged.facts)
        self._children: list[list[int]] = [[] for _ in merged.steps]
        for row, (start, _, _) in enumerate(merged.steps):
            if start >= 0:
                self._children[start].append(row)
        self._facts_at: list[list[int]] = [[] for _ in merged.steps]
        for number, (row, kind, value) in enumerate(merged.facts):
            for each in (row, *(others_of(kind, value) if kind in RELATIONS else ())):
                self._facts_at[each].append(number)
        self._sources: dict[Any, _Source] = {}
        self._used: dict[int, list[_Source]] = {}
        self._versions: dict[int, tuple[Any, int]] = {}
        """Dict and version, by the id of the dict."""
        self._noise: dict[int, int] = {}
        self._orphans: dict[Any, _Source] = {}
        """Sources without a user, which may be read again before the look ends."""
        self._groups = _Groups()
        self._is_stale = True
        """Whether sources were added or dropped since they were grouped."""
        self._hot: set[int] = set()
        """Ids of dicts that changed before. They are compared apart from the others, so that the
        next change costs a new comparison of these alone."""
        self._cold: tuple[list[tuple[int, int]], Callable[[], bool]] = ([], lambda: True)
        """Ids and versions of the other dicts, and their comparison."""
        self._timer = _Timer()
        self._turn = _Turn()
        self._torn: tuple[set[int], set[int]] = (set(), set())
        """Rows and facts to look at again, because something changed while they were looked at."""
        self._class_names: dict[type, str] = {}
        self._methods: dict[type, _Methods] = {}
        self._user = 0
        self.unchanged: Callable[[], bool] = lambda: False
        """Answers whether everything is as it was when it was last looked at; a few µs."""
        self._look_and_compile(set(range(len(merged.steps))), set(range(len(merged.facts))))

    def why_broken(self, table: int) -> str:
        """Return the first fact of a table that does not hold, in words; empty if all hold."""
        broken = self._broken
        return next((broken[n] for n in self._merged.of_table[table] if broken[n]), "")

    def refresh(self) -> None:
        """Look again at what changed since the last look."""
        # Before anything is remembered, which the last `unchanged` would compare with.
        self._turn.is_over = True
        self._turn = _Turn()
        # Here too: where something changes before each call, `unchanged` never comes to it.
        is_due = time.monotonic() > self._timer.due
        if is_due:
            backend_flags()
            self._timer.restart()
        rows, facts = self._changed(self._groups.slow if is_due else ())
        rows |= self._torn[0]
        facts |= self._torn[1]
        self._look_and_compile(rows, facts)

    # What changed ------------------------------------------------------------------------------

    def _changed(self, slow: Sequence[_Source]) -> tuple[set[int], set[int]]:
        """Return the rows and the facts that were read from a place that changed."""
        moved: set[int] = set()
        # Before anything is read from a dict: a change from here on is seen at the next call.
        versions = dict_versions([place for place, _ in self._versions.values()])
        for (key, (place, version)), now in zip(
            list(self._versions.items()), versions, strict=True
        ):
            if now != version:
                moved.add(key)
                self._versions[key] = (place, now)
        self._hot |= moved
        rows: set[int] = set()
        facts: set[int] = set()
        quiet = set(moved)
        in_moved = [each for key in moved for each in self._groups.of_dict.get(key, ())]
        for source in (*self._groups.others, *slow, *in_moved):
            now = source.read()
            if source.is_still(now):
                continue
            source.remember(now)
            self._is_stale |= source.is_built_in()
            quiet.discard(id(source.base))
            if source.kind == "code":
                self._class_names.clear()
            if source.kind == "class":
                self._class_names.clear()
                self._methods.clear()
                quiet.difference_update(map(id, _class_dicts(source.base)))
            rows.update(user for user in source.users if user >= 0)
            facts.update(~user for user in source.users if user < 0)
        for key in quiet - self._groups.of_class:
            self._noise[key] = self._noise.get(key, 0) + 1
            self._is_stale |= self._noise[key] == NOISE + 1
        return rows, facts

    def _look_and_compile(self, rows: set[int], facts: set[int]) -> None:
        looked = self._look(rows, facts) if rows or facts else (rows, facts)
        self.unchanged = self._compile()
        # Another thread may change something after it was remembered and before a fact is judged by
        # it. What is remembered may then come back without being seen: judge these once more.
        is_torn = self.unchanged is _never
        self._torn = looked if is_torn else (set(), set())

    def _look(self, rows: set[int], facts: set[int]) -> tuple[set[int], set[int]]:
        """Walk these rows and all that follow from a changed one, and judge facts anew.

        Returns the rows and facts that were looked at.
        """
        dirty, judged = set(rows), set(facts)
        for row in range(len(self._objects)) if dirty else ():
            if row not in dirty:
                continue
            before = self._objects[row]
            now = self._walk(row)
            self._objects[row] = _kept(now)
            if now is not before:
                dirty.update(self._children[row])
                judged.update(self._facts_at[row])
        for number in sorted(judged):
            self._broken[number] = self._judge(number)
        for key, source in self._orphans.items():
            if not source.users:
                del self._sources[key]
                self._is_stale = True
        self._orphans.clear()
        return dirty, judged

    def _object(self, row: int) -> Any:
        kept = self._objects[row]
        if kept is not A_TENSOR:
            return kept
        start, step, argument = self._merged.steps[row]
        return self._callee if start < 0 else take(self._object(start), step, argument)

    def _walk(self, row: int) -> Any:
        start, step, argument = self._merged.steps[row]
        self._begin(row)
        if step == "root":
            return self._callee if argument == CALLEE else module(argument)
        base = self._object(start)
        return base if isinstance(base, Missing) else self._step(base, step, argument)

    def _step(self, base: Any, step: str, argument: Any) -> Any:
        try:
            source = self._note_step(base, step, argument)
        except UNREADABLE as error:
            return Missing(f"{type(error).__name__}: {error}"[:200])
        # As it was remembered, which what is there at this moment need not be.
        if source is not None and source.kind == "list":
            return take(source.value, step, argument)
        if source is not None and source.has_what_is_there():
            return source.value
        if step == "attribute" and argument == "__dict__":
            return _dict_of(vars(base))
        return take(_dict_of(base) if step in ("item", "nth", "nth_key") else base, step, argument)

    def _judge(self, number: int) -> str:
        fact = row, kind, value = self._merged.facts[number]
        self._begin(~number)
        found = self._object(row)
        if kind not in RELATIONS and not isinstance(found, Missing):
            with contextlib.suppress(*UNREADABLE):  # what cannot be read breaks the fact below
                self._note_fact(found, fact)
            if kind == "type":
                return self._judge_class(fact, type(found))
        rows = (row, *others_of(kind, value)) if kind in RELATIONS else ()
        return self._facts.why_broken(fact, {row: found, **{r: self._object(r) for r in rows}})

    def _judge_class(self, fact: tuple[int, str, Any], found: type) -> str:
        # Most facts are of this kind, and most objects of a few classes.
        if found not in self._class_names:
            self._class_names[found] = name_of_class(found)
        if self._class_names[found] == fact[2]:
            return ""
        return self._facts.why_broken(fact, {fact[0]: self._object(fact[0])})

    # Where things are read from ----------------------------------------------------------------

    def _begin(self, user: int) -> None:
        """Begin to read for a row or a fact, and forget what it was read from before."""
        self._user = user
        for source in self._used.pop(user, ()):
            source.users.discard(user)
            if not source.users:
                self._orphans[_key(source.kind, source.base, source.name)] = source

    def _note(self, kind: str, base: Any, name: Any = None) -> _Source:
        key = _key(kind, base, name)
        source = self._sources.get(key)
        if source is None:
            # Versions before values: what changes in between is seen at the next call.
            if kind in ("item", "keys"):
                self._version(base)
            elif kind == "class":
                for place in _class_dicts(base):
                    self._version(place)
            source = self._sources[key] = _Source(kind, base, name)
            source.remember(source.read())
            self._is_stale = True
        elif not source.users:
            now = source.read()
            self._is_stale |= source.is_built_in() and not source.is_still(now)
            source.remember(now)
        if self._user not in source.users:
            source.users.add(self._user)
            self._used.setdefault(self._user, []).append(source)
        return source

    def _version(self, place: Any) -> None:
        if id(place) not in self._versions:
            self._versions[id(place)] = (place, dict_version(place))

    def _note_step(self, base: Any, step: str, argument: Any) -> _Source | None:
        """Note what decides about a step, and return the source that alone does."""
        if step == "attribute":
            return self._note_attribute(base, argument)
        if step == "own":
            self._note_attribute(base, argument)
        elif step == "item":
            return self._note_item(base, decode_key(argument))
        elif step in ("nth", "nth_key"):
            place = _dict_of(base)
            self._note("keys", place)
            if step == "nth":
                self._note("item", place, list(dict.keys(place))[argument])
        elif step == "type":
            self._note("type", base)
        elif step == "weakref":
            self._note("referent", base)
        return None

    def _note_item(self, base: Any, key: Any) -> _Source | None:
        place = _dict_of(base)
        if isinstance(place, dict):
            return self._note("item", place, key)
        if isinstance(place, list):
            return self._note("list", place)
        if not isinstance(place, tuple):
            return self._note("getitem", place, key)
        return None

    def _note_attribute(self, base: Any, name: str) -> _Source | None:
        """Note what decides about `getattr(base, name)`, and return the source that says it all."""
        kind = type(base)
        if name == "__dict__":
            if type(vars(base)) is dict:
                self._note("dict", base)
            return None
        if name == "__code__" and isinstance(base, types.FunctionType):
            self._note("code", base)
        elif isinstance(base, types.ModuleType) and name in vars(base):
            self._note("item", vars(base), name)
        elif isinstance(base, type):
            if _defined(base, name) is ABSENT:
                self._note("attribute", base, name)  # of the metaclass
            self._note("class", base)
        elif _defined(kind, "__getattribute__") is not vars(object)["__getattribute__"]:
            return self._note("attribute", base, name)
        else:
            return self._note_of_instance(base, kind, name)
        return None

    def _note_of_instance(self, base: Any, kind: type, name: str) -> _Source | None:
        found = _defined(kind, name)
        own = getattr(base, "__dict__", None)
        if hasattr(type(found), "__set__") or not isinstance(own, dict):
            # A property, a slot, or what an object of C has: read again at each call.
            return self._note("attribute", base, name)
        self._note("class", kind)
        self._note("dict", base)
        self._note("item", own, name)
        if name in own or isinstance(found, (types.FunctionType, staticmethod, classmethod)):
            return None
        if found is not ABSENT and not hasattr(type(found), "__get__"):
            return None
        if found is ABSENT and isinstance(base, torch.nn.Module) and _is_plain_module(kind):
            for table in ("_parameters", "_buffers", "_modules"):
                if isinstance(own.get(table), dict):
                    self._note("item", own[table], name)
            return None
        return self._note("attribute", base, name)

    def _note_fact(self, found: Any, fact: tuple[int, str, Any]) -> None:
        _, kind, about = fact
        if kind in ("contains", "keys", "length"):
            self._note_container(found, kind, about)
        elif kind == "attribute":
            self._note_attribute(found, about[0])
        elif kind == "own":
            own = getattr(found, "__dict__", None)
            if own is not None:
                self._note("dict", found)
                self._note("item", _dict_of(own), about[0])
        elif kind == "value":
            self._note_contents(found)
        elif kind == "type":
            self._note_class(found)
        elif kind == "hooks":
            self._note_hooks(found)
        elif kind == "tensor":
            self._note("tensor", found)
        elif kind == "is":
            self._note_code(found)

    def _note_class(self, found: Any) -> None:
        kind = type(found)
        self._note("type", found)
        self._note("class", kind)
        if kind not in self._methods:
            self._methods[kind] = _Methods(kind)
        if self._methods[kind].functions:
            self._note("code", self._methods[kind])

    def _note_hooks(self, found: Any) -> None:
        own = vars(found)
        for name, marks in HOOKS.items():
            table = own.get(name)
            self._note("item", own, name)
            if isinstance(table, dict):
                self._note("keys", table)
            if table and isinstance(own.get(marks), dict):
                self._note("item", own, marks)
                self._note("keys", own[marks])

    def _note_container(self, found: Any, kind: str, about: Any) -> None:
        place = _dict_of(found)
        if isinstance(place, dict):
            if kind == "contains":
                self._note("item", place, decode_key(about[0]))
            else:
                self._note("keys", place)
        elif isinstance(place, list):
            self._note("list", place)
        elif isinstance(place, set):
            self._note("set", place)
        elif kind == "length" and not isinstance(place, tuple):
            self._note("length", place)

    def _note_contents(self, found: Any) -> None:
        if isinstance(found, dict):
            self._note("keys", found)
            for key in found:
                self._note("item", found, key)
        elif isinstance(found, list):
            self._note("list", found)
        elif isinstance(found, set):
            self._note("set", found)
        if isinstance(found, (dict, list, tuple)):
            for each in found.values() if isinstance(found, dict) else found:
                self._note_contents(each)

    def _note_code(self, found: Any) -> None:
        if isinstance(found, type):
            self._note("class", found)
            return
        for function in functions_of(found):
            self._note("code", function)
            for cell in function.__closure__ or ():
                self._note("attribute", cell, "cell_contents")

    # The question at each call -----------------------------------------------------------------

    def _compile(self) -> Callable[[], bool]:
        """Make `unchanged` of what is known now; `_never` if something changed already."""
        if self._is_stale:
            self._group()
        hot: list[Any] = []
        cold: list[Any] = []
        cold_versions: list[tuple[int, int]] = []
        noisy = {key for key, count in self._noise.items() if count > NOISE}
        noisy -= self._groups.of_class
        for key, (place, version) in self._versions.items():
            if key in noisy:
                continue
            if key in self._hot:
                hot.append(place)
            else:
                cold.append(place)
                cold_versions.append((key, version))
        if self._cold[0] != cold_versions:
            self._cold = (cold_versions, _same_dicts(cold))
        of_hot = [_same_dicts(hot)] if hot else []
        checks = [self._cold[1], *of_hot, *self._groups.checks]
        held = [place for place, _ in self._versions.values()]
        if [version for _, version in self._versions.values()] != dict_versions(held):
            self._cold = ([], lambda: True)  # it compares with now
            return _never
        if not all(check() for check in self._groups.checks):
            return _never
        return _all_of(checks, self._groups.slow, self._timer, self._turn)

    def _group(self) -> None:
        """Sort the sources by how they are compared."""
        self._is_stale = False
        dicts: dict[int, tuple[Any, int]] = {}
        kinds: dict[str, list[_Source]] = {}
        found = self._groups = _Groups()
        for source in self._sources.values():
            if source.kind == "class":
                found.others.append(source)
                places = _class_dicts(source.base)
                found.of_class.update(map(id, places))
            elif source.kind in ("item", "keys"):
                places = [source.base]
                if self._is_noisy(source.base):
                    found.others.append(source)
                    kinds.setdefault(source.kind, []).append(source)
                else:
                    if source.kind == "keys" and _is_ordered(source.base) and len(source.value) > 1:
                        found.others.append(source)
                        kinds.setdefault("keys", []).append(source)
                    found.of_dict.setdefault(id(source.base), []).append(source)
            elif source.kind in SLOW_KINDS:
                found.slow.append(source)
                continue
            else:
                found.others.append(source)
                kinds.setdefault(source.kind, []).append(source)
                continue
            dicts.update({id(place): self._versions[id(place)] for place in places})
        self._versions = dicts
        # Another dict may come to stand at the address of one that is gone.
        self._noise = {key: count for key, count in self._noise.items() if key in dicts}
        self._hot &= dicts.keys()
        if "attribute" in kinds:
            found.checks.append(_same_attributes(kinds.pop("attribute")))
        if "tensor" in kinds:
            found.checks.append(_same_tensors([source.base for source in kinds.pop("tensor")]))
        found.checks += [_same_source(source) for sources in kinds.values() for source in sources]

    def _is_noisy(self, place: Any) -> bool:
        return id(place) not in self._groups.of_class and self._noise.get(id(place), 0) > NOISE


def _key(kind: str, base: Any, name: Any) -> Any:
    # 1, True and 1.0 are one key of a dict, and three names.
    return (kind, id(base), type(name), repr(name) if type(name) is float else name)


def _is_ordered(mapping: Any) -> bool:
    return isinstance(mapping, OrderedDict)


def _defined(kind: type, name: str) -> Any:
    """Return what a class, or one of its bases, has under a name."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), ABSENT)


def _is_plain_module(kind: type) -> bool:
    return _defined(kind, "__getattr__") is vars(torch.nn.Module)["__getattr__"]


def _never() -> bool:
    return False


class _Turn:
    """The time from one look to the next."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class _Timer:
    """When to look at what is looked at once in `RELOOK_S`; one for all questions of a watch."""

    def __init__(self) -> None:
        self.due = 0.0
        self.restart()

    def restart(self) -> None:
        self.due = time.monotonic() + RELOOK_S


def _all_of(
    checks: Sequence[Callable[[], bool]], slow: Sequence[_Source], timer: _Timer, turn: _Turn
) -> Callable[[], bool]:
    first, *others = checks
    clock = time.monotonic

    def unchanged() -> bool:
        if not first():
            return False
        for check in others:
            if not check():
                return False
        if clock() > timer.due:
            backend_flags()  # which each kind of call is compared with
            if not all(source.is_still(source.read()) for source in slow):
                return False  # also when asked again, until all is looked at anew
            timer.restart()
        # Last: another thread that looks anew remembers values that those above compared with.
        return not turn.is_over

    return unchanged


STEADY = 32
"""After so many questions with one answer the versions of dicts are compared in C++. A comparison
takes 8 µs a dict to build, and a start has thousands of dicts and asks a few times."""


def _same_dicts(dicts: Sequence[Any]) -> Callable[[], bool]:
    """Return a question whether none of these dicts was changed since now."""
    versions = dict_versions(dicts)
    in_cpp: Callable[[], bool] | None = None
    asked = 0

    def check() -> bool:
        nonlocal in_cpp, asked
        if in_cpp is not None:
            return in_cpp()
        if dict_versions(dicts) != versions:
            return False
        asked += 1
        if asked == STEADY:
            built = dicts_check(dicts)
            # It compares with now, which another thread may have changed meanwhile.
            if dict_versions(dicts) == versions:
                in_cpp = built
        return True

    return check


def _same_attributes(sources: Sequence[_Source]) -> Callable[[], bool]:
    # In C, one after the other, where the very same object comes back each time. An attribute that
    # is not there is ABSENT each time; a config with a `__getattribute__` of its own has many.
    steady = [source for source in sources if _read_in_c(source) is source.value]
    others = [source for source in sources if source not in steady]
    bases = [source.base for source in steady]
    names = [source.name for source in steady]
    values = [source.value for source in steady]
    absent = [ABSENT] * len(steady)

    def check() -> bool:
        try:
            if not all(map(operator.is_, map(getattr, bases, names, absent), values)):
                return False
        except UNREADABLE:
            return False
        return not others or all(source.is_still(source.read()) for source in others)

    return check


def _read_in_c(source: _Source) -> Any:
    """Return what `getattr` finds, ABSENT if there is none, the source itself if it raises."""
    with contextlib.suppress(*UNREADABLE):
        return getattr(source.base, source.name, ABSENT)
    return source  # as an empty cell: no source holds itself


def _same_tensors(tensors: Sequence[Any]) -> Callable[[], bool]:
    same = tensor_check(tensors)
    return lambda: same(*tensors)


def _same_source(source: _Source) -> Callable[[], bool]:
    return lambda: source.is_still(source.read())
