# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which objects of a trace are the same, and which are different.

Dynamo guards neither that two objects are different, nor that two names share an object. A name and
a digest of code cannot tell two functions of one factory apart. So facts say which paths lead to
the same object (`same`), and which lead to different ones (`distinct`).
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Mapping, Sequence

import torch

from serve_warm.precompile.facts.names import CACHED, identity, is_own, literal, locate, name_of
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import Facts, Missing, Step

OF_PYTHON = ("__dict__", "__closure__")
"""Attributes whose values are never shared by two objects."""

MADE_BY_FACTORIES = (type, types.FunctionType, functools.partial, CACHED)
"""Kinds of objects that have a name, which other objects can have too."""


def is_one_of_many(value: object) -> bool:
    """Return whether only identity distinguishes `value` from similar objects.

    A factory can make several classes and functions with the same name and the same code.
    """
    if isinstance(value, (list, dict, set)):
        return True
    if isinstance(value, (torch.Tensor, types.ModuleType)):
        return False
    if isinstance(value, MADE_BY_FACTORIES):
        return locate(value) is None
    return literal(value) is None and not identity(value)


def find_on_paths(steps: Sequence[Step], callee: object) -> dict[int, object]:
    """Return each object on a path, guarded or not, if it might have a second name."""
    found = Facts(steps=tuple(steps)).objects(callee)
    return {
        row: value
        for row, value in enumerate(found)
        if steps[row][1] != "dict"
        and steps[row][2] not in OF_PYTHON
        and not isinstance(value, Missing)
        and is_one_of_many(value)
    }


def relate_named(
    steps: Sequence[Step],
    found: Sequence[object],
    typed: Mapping[int, object],
    row_of_class: Callable[[int, int], int],
) -> list[tuple[int, str, object]]:
    """Return facts about classes and functions of the application that a module has by name.

    If the module is loaded again, the name leads to a new class or function, with the same name and
    code. So facts say which rows lead to the same one. `found` has the object of each row, `typed`
    has the objects whose class is guarded, and `row_of_class(row, n)` returns a row for the n-th
    class in the MRO of an object.
    """
    groups: dict[str, dict[int, object]] = {}
    members: dict[int, object] = {}
    for row, value in enumerate(found):
        if _is_direct(steps, row) and _is_of_app(value):
            groups.setdefault(name_of(value), {})[row] = value
        elif isinstance(value, enum.Enum):
            members[row] = value
    for row, value in [*typed.items(), *members.items()]:
        for number, kind in enumerate(type(value).__mro__):
            if name_of(kind) in groups and _is_of_app(kind):
                groups[name_of(kind)][row_of_class(row, number)] = kind
    return [fact for group in groups.values() for fact in partition(group)]


def _is_direct(steps: Sequence[Step], row: int) -> bool:
    """Return whether a path leads to a row without reading the class of an object.

    Each object of a class leads to the same methods and bases, which need no facts.
    """
    while row >= 0:
        start, step, argument = steps[row]
        if step == "type" or argument == "__class__":
            return False
        row = start
    return True


def _is_of_app(value: object) -> bool:
    return isinstance(value, (type, types.FunctionType)) and not is_own(value)


def partition(objects: Mapping[int, object]) -> list[tuple[int, str, object]]:
    """Return facts that say which rows refer to the same object, and which to different objects.

    Dynamo does not check that two objects are different, or that two names share a list.
    """
    first: dict[int, int] = {}
    facts: list[tuple[int, str, object]] = []
    for row, value in objects.items():
        before = first.setdefault(id(value), row)
        if before != row:
            facts.append((row, "same", before))
    start, *others = first.values() or (0,)
    return [*facts, (start, "distinct", others)] if others else facts


def refuse_bare_identity(
    collected: Facts, by_identity: Mapping[int, str], objects: Mapping[int, object]
) -> None:
    """Raise `NoEntry` for an object that is guarded only by its identity.

    `by_identity` maps the row of each such object to the line that needs the guard.

    A plain sentinel is allowed, because facts state which rows are the same object. Objects of C
    classes, such as regular expressions, are refused: the graph might depend on their content.
    """
    for row, where in by_identity.items():
        if len(objects) < 2 or row not in objects or not _is_of_python(type(objects[row])):
            kind = type(objects[row]).__name__ if row in objects else "object"
            what = f"{collected.path(row)}{show_line(where)}, a {kind},"
            raise NoEntry(f"{what} can be recognized only by its identity. {INSTEAD}")


INSTEAD = "Compute what depends on it outside the call, and pass tensors or plain values"
"""Advice if a guard cannot become a fact."""


def show_line(where: str) -> str:
    """Return the place of a guard for a message: an empty string if the place is unknown."""
    return f" at {where}" if where else ""


def _is_of_python(kind: type) -> bool:
    """Return whether a class is `object`, or was made by a `class` statement."""
    return kind is object or bool({"__dict__", "__slots__"} & vars(kind).keys())
