# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows about lookups that find nothing at the build, and about dicts that are read as a whole.

The forward catches the error of the lookup, or passes a default. Each row then adds what was
missing.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import types
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

from soundness.rows import BOTH, Group, numbered, put

# Attributes that are missing ------------------------------------------------------------------


class Plain:
    """A class without attributes."""


class Child(Plain):
    """A class that inherits nothing."""


class Slotted:
    __slots__ = ("absent",)


class Guarded:
    """A class whose property reads an attribute that can be missing."""

    @property
    def absent(self) -> float:
        return self.inner  # type: ignore[attr-defined, no-any-return]


class Falling:
    """A class whose `__getattr__` raises for unknown names."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def plain() -> int:
    return 2


SETTINGS = types.ModuleType("soundness_settings")
sys.modules["soundness_settings"] = SETTINGS


def caught(found: Any) -> float:
    try:
        return float(found.absent)
    except AttributeError:
        return 2.0


def caught_in_a_tuple(found: Any) -> float:
    try:
        return float(found.absent)
    except (KeyError, AttributeError):
        return 2.0


def caught_with_any_error(found: Any) -> float:
    try:
        return float(found.absent)
    except Exception:  # noqa: BLE001 - as an application does
        return 2.0


def suppressed(found: Any) -> float:
    value = 2.0
    with contextlib.suppress(AttributeError):
        value = float(found.absent)
    return value


def of_two_arguments(found: Any) -> float:
    try:
        return float(getattr(found, "absent"))  # noqa: B009 - the form that the row is about
    except AttributeError:
        return 2.0


def with_a_default(found: Any) -> float:
    return float(getattr(found, "absent", 2.0))


def asked_first(found: Any) -> float:
    return float(found.absent) if hasattr(found, "absent") else 2.0


def caught_by_the_caller(found: Any) -> float:
    def read() -> float:
        return float(found.absent)

    try:
        return read()
    except AttributeError:
        return 2.0


def finally_left(found: Any) -> float:
    value = 1.0
    try:
        try:
            value = float(found.absent)
        finally:
            value += 1.0
    except AttributeError:
        return value
    return value


CATCHING: Mapping[str, Callable[[Any], float]] = {
    "caught": caught,
    "caught in a tuple of errors": caught_in_a_tuple,
    "caught with any error": caught_with_any_error,
    "suppressed": suppressed,
    "getattr with two arguments": of_two_arguments,
    "getattr with a default": with_a_default,
    "hasattr": asked_first,
    "caught by the caller": caught_by_the_caller,
    "after a finally": finally_left,
}

HOLDERS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an object": (Plain, lambda app: app.held),
    "an object of a subclass": (Child, lambda app: app.held),
    "a namespace": (SimpleNamespace, lambda app: app.held),
    "an object's slot": (Slotted, lambda app: app.held),
    "an object with __getattr__": (Falling, lambda app: app.held),
    "the module itself": (Plain, lambda app: app),
    "a submodule": (lambda: nn.Linear(2, 2), lambda app: app.held),
    "a function": (Plain, lambda app: plain),
    "a class": (Plain, lambda app: Plain),
    "a class's base": (Plain, lambda app: Child),
    "a Python module": (Plain, lambda app: SETTINGS),
    "a weight": (Plain, lambda app: app.weight),
}
"""What the module holds as `held`, and the object without the attribute. An object has a row for
each way of catching the error."""


def adding(find: Callable[[Any], Any], owner: Any = None, name: str = "absent") -> Any:
    return lambda app: put_any(find(app) if owner is None else owner, name, 3.0)


def put_any(owner: Any, name: str, value: Any) -> Any:
    """Set an attribute of any object. Return a function that deletes the attribute."""
    if isinstance(owner, (type, types.ModuleType, types.FunctionType)):
        return put(owner, name, value)
    setattr(owner, name, value)
    return None


MISSING = [
    numbered(
        f"an attribute missing in {holder}, {how}",
        lambda self, read=read, find=find: read(find(self)),
        adding(find, Plain if holder == "a class's base" else None),
        lambda make=make: {"held": make()},
        kind="change",
    )
    for holder, (make, find) in HOLDERS.items()
    for how, read in CATCHING.items()
    if holder == "an object" or how in ("caught", "getattr with a default")
]

OTHER_MISSING = [
    numbered(
        f"an attribute behind a property, {how}",
        lambda self, read=read: read(self.held),
        lambda app: setattr(app.held, "inner", 3.0),
        lambda: {"held": Guarded()},
        kind="change",
    )
    for how, read in CATCHING.items()
    if how in ("caught", "hasattr", "suppressed")
] + [
    numbered(
        f"an attribute missing in the class of an object, {how}",
        lambda self, read=read: read(self.held),
        adding(lambda app: Plain),
        lambda: {"held": Child()},
        kind="change",
    )
    for how, read in CATCHING.items()
    if how in ("caught", "getattr with a default")
]


def hiding() -> Any:
    """Return a change that adds a global with the name of a built-in."""
    return lambda app: put(sys.modules[__name__], "max", lambda *_: 3)


# Dicts that are read as a whole ---------------------------------------------------------------


class First:
    pass


class Second:
    pass


class Third:
    pass


def extended(table: Any) -> int:
    items: list[Any] = []
    items.extend(table)
    return len(items)


def updated(table: Any) -> int:
    items: set[Any] = set()
    items.update(table)
    return len(items)


def starred(*items: Any) -> int:
    return len(items)


WHOLE: Mapping[str, Callable[[Any], Any]] = {
    "unpacked into a list": lambda table: len([*table]),
    "unpacked into a tuple": lambda table: len((*table,)),
    "unpacked into a set": lambda table: len({*table}),
    "unpacked into a dict": lambda table: len({**table}),
    "unpacked into arguments": lambda table: starred(*table),
    "list.extend": extended,
    "set.update": updated,
    "str": lambda table: len(str(table)),
    "repr": lambda table: len(repr(table)),
    "an f-string": lambda table: len(f"{table}"),
    "set.isdisjoint": lambda table: 2 if {Third, 9}.isdisjoint(table) else 3,
    "set.union": lambda table: len({0}.union(table)),
    "set.intersection": lambda table: len({Third, 9, 1}.intersection(table)) + 1,
    "set.issubset": lambda table: 3 if {9}.issubset(table) or {Third}.issubset(table) else 2,
    "list": lambda table: len(list(table)),
    "tuple": lambda table: len(tuple(table)),
    "set": lambda table: len(set(table)),
    "dict": lambda table: len(dict(table)),
    "len": len,
    "sorted": lambda table: len(sorted(table, key=lambda key: 0)),
    "enumerate": lambda table: len(list(enumerate(table))),
    "zip": lambda table: len(list(zip(table, range(9), strict=False))),
    "map": lambda table: len(list(map(str, table))),
    "values": lambda table: sum(table.values()),
    "items": lambda table: sum(value for _, value in table.items()),
    "keys": lambda table: len(table.keys()),
    "the union of dicts": lambda table: len(table | {0: 1}),
    "equality": lambda table: 3 if len(table) == 3 or table == {} else 2,
    "a comprehension": lambda table: len([key for key in table]),  # noqa: C416
    "dict.fromkeys": lambda table: len(dict.fromkeys(table)),
    "copy": lambda table: len(table.copy()),
}

TABLES: Mapping[str, Callable[[], Any]] = {
    "a dict": lambda: {1: 1, 2: 1},
    "a dict of classes": lambda: {First: 1, Second: 1},
    "an OrderedDict": lambda: collections.OrderedDict({1: 1, 2: 1}),
    "a defaultdict": lambda: collections.defaultdict(int, {1: 1, 2: 1}),
}

OF_EACH_KIND = (
    "unpacked into a list",
    "str",
    "an f-string",
    "list.extend",
    "set.isdisjoint",
    "len",
)
"""Reads that each kind of dict has rows for. A plain dict has a row for every read."""

UNPACKED = [
    numbered(
        f"{kind}, {how}",
        lambda self, read=read: float(read(self.table)),
        lambda app, key=Third if "classes" in kind else 9: app.table.update({key: 1}),
        lambda make=make: {"table": make()},
        kind="change",
    )
    for kind, make in TABLES.items()
    for how, read in WHOLE.items()
    if kind == "a dict" or how in OF_EACH_KIND
]

GROUPS: tuple[Group, ...] = (
    *MISSING,
    *OTHER_MISSING,
    *UNPACKED,
    numbered(
        "a global that hides a built-in",
        lambda self: float(max(1, 2)),
        hiding(),
        kind="change",
        when=BOTH,
    ),
)
