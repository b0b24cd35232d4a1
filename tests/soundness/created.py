# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows about objects that a forward creates, whose class changed between the build and the start.

After READY, neither Dynamo's guards nor facts cover these changes (docs/concepts/levels.md).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from soundness.rows import START, numbered, on


def scaled(factor: float) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def inner(self: Any) -> Any:
            return function(self) * factor

        return inner

    return decorate


def sized(factor: float) -> Any:
    return property(lambda self: self.value * factor)


class Plain:
    size = sized(2.0)

    def __init__(self, value: float = 2.0) -> None:
        self.value = value

    def __call__(self, factor: float = 1.0) -> float:
        return self.value * factor

    def __getitem__(self, key: int, factor: float = 1.0) -> float:
        return self.value * factor + key

    def get(self, *, more: float = 1.0) -> float:
        return self.value + more

    @staticmethod
    def fixed(value: float = 2.0) -> float:
        return value

    @classmethod
    def of_class(cls, value: float = 2.0) -> float:
        return cls(value).value

    @scaled(2.0)
    def get_scaled(self) -> float:
        return self.value


class Child(Plain):
    pass


class New:
    def __new__(cls, value: float = 2.0) -> Any:
        made = object.__new__(cls)
        made.value = value  # type: ignore[attr-defined]
        return made


@dataclasses.dataclass
class Data:
    factor: dataclasses.InitVar[float] = 2.0
    scale: float = dataclasses.field(default=2.0, kw_only=True)

    def __post_init__(self, factor: float, more: float = 1.0) -> None:  # noqa: RUF033 - as a user may write it
        self.result = factor * self.scale + more

    def get(self, factor: float = 1.0) -> float:
        return self.result * factor


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0
    shift: float = 1.0

    def get(self, factor: float = 1.0) -> float:
        return self.scale * factor


class Pair(NamedTuple):
    first: float = 2.0


def defaults(function: Any, value: Any = (3.0,)) -> Any:
    return on(function, "__defaults__", value)


RAW = Plain.get_scaled.__wrapped__  # type: ignore[attr-defined]

CREATED: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "__init__": (lambda _: Plain().value, defaults(Plain.__init__)),
    "an inherited __init__": (lambda _: Child().value, defaults(Plain.__init__)),
    "__new__": (lambda _: New().value, defaults(New.__new__)),
    "__call__": (lambda _: Plain()(), defaults(Plain.__call__)),
    "__getitem__": (lambda _: Plain()[1], defaults(Plain.__getitem__)),
    "a keyword": (lambda _: Plain().get(), on(Plain.get, "__kwdefaults__", {"more": 3.0})),
    "a static method": (lambda _: Plain().fixed(), defaults(Plain.fixed)),
    "a class method": (lambda _: Plain().of_class(), defaults(Plain.of_class.__func__)),
    "a dataclass": (lambda _: Data().result, on(Data.__init__, "__defaults__", (3.0,))),
    "a keyword of a dataclass": (
        lambda _: Data().result,
        on(Data.__init__, "__kwdefaults__", {"scale": 3.0}),
    ),
    "__post_init__": (lambda _: Data().result, defaults(Data.__post_init__)),
    "a frozen dataclass": (lambda _: Frozen().scale, defaults(Frozen.__init__, (3.0, 1.0))),
    "a named tuple": (lambda _: Pair().first, defaults(Pair.__new__)),
    "a copy": (lambda self: copy.copy(self.plain)(), defaults(Plain.__call__)),
    "a replaced dataclass": (
        lambda self: dataclasses.replace(self.frozen, shift=3.0).get(),
        defaults(Frozen.get),
    ),
    "the class of an object": (lambda self: type(self.plain)().value, defaults(Plain.__init__)),
}

CLOSURES: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "a method": (lambda _: Plain().get_scaled(), on(Plain, "get_scaled", scaled(3.0)(RAW))),
    "a property": (lambda _: Plain().size, on(Plain, "size", sized(3.0))),
}

GROUPS = tuple(
    numbered(
        f"{what} of {name}, in an object that the forward creates",
        lambda self, read=read: float(read(self)),
        change,
        lambda: {"plain": Plain(1.0), "frozen": Frozen(2.0)},
        kind="change",
        when=(START,),
    )
    for what, cases in (("default", CREATED), ("closure", CLOSURES))
    for name, (read, change) in cases.items()
)
