# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change what a forward reads during serving: attributes, items, globals, functions."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

from torch import nn

from soundness.rows import READY, Group, Numbered, method_of, numbered, of, on, own, put, row

SCALE = 2
LIMITS = {"scale": 2, "nested": [1, 2]}


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2


@dataclasses.dataclass
class Settings:
    scale: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: int = 2


class Backed:
    """A class with a property, and the value behind it."""

    def __init__(self) -> None:
        self._scale = 2

    @property
    def scale(self) -> int:
        return self._scale


class Dynamic:
    """A class with computed attributes."""

    def __init__(self) -> None:
        self.__dict__["values"] = {"scale": 2}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["values"][name]


class Descriptor:
    def __get__(self, instance: Any, owner: Any = None) -> int:
        return instance.__dict__.get("backing", 2)


class Described:
    scale = Descriptor()


class WithClassAttribute:
    scale = 2


class Child(WithClassAttribute):
    pass


class Methods:
    def number(self) -> int:
        return 2

    @staticmethod
    def static() -> int:
        return 2

    @classmethod
    def of_class(cls) -> int:
        return 2


def with_default(scale: int = 2) -> int:
    return scale


def with_keyword(*, scale: int = 2) -> int:
    return scale


def plain() -> int:
    return 2


def three() -> int:
    return 3


def closed(scale: int) -> Any:
    def number() -> int:
        return scale

    return number


CLOSED = closed(2)


def tagged() -> int:
    return tagged.scale  # type: ignore[attr-defined]


tagged.scale = 2  # type: ignore[attr-defined]


def change_cell(app: Any) -> Any:
    cell = CLOSED.__closure__[0]
    cell.cell_contents = 3

    def undo() -> None:
        cell.cell_contents = 2

    return undo


def here(name: str, value: Any) -> Any:
    return lambda app: put(sys.modules[__name__], name, value)


def held(**kinds: Any) -> Any:
    return lambda: {name: kind() for name, kind in kinds.items()}


def change(name: str, number: Any, change: Any, held: Any = dict, **more: Any) -> Group:
    return numbered(name, number, change, held, kind="change", when=(READY,), **more)


class Tripled(Numbered):
    def number(self) -> int:
        return 3


def reconfigure(app: Any, **values: Any) -> None:
    """Set attributes by name, as a handler's `reconfigure` does."""
    for name, value in values.items():
        setattr(app, name, value)


GROUPS = (
    change(
        "attribute of the module",
        lambda self: self.scale,
        own("scale", 3),
        lambda: {"scale": 2},
        more=(
            row("attribute in __dict__", lambda app: app.__dict__.update(scale=3)),
            row("attribute in vars()", lambda app: vars(app).__setitem__("scale", 3)),
            row("attribute by object.__setattr__", lambda app: object.__setattr__(app, "scale", 3)),
            row(
                "attribute by __setstate__",
                lambda app: app.__setstate__({**app.__dict__, "scale": 3}),
            ),
            row(
                "__dict__ that is replaced",
                lambda app: setattr(app, "__dict__", {**app.__dict__, "scale": 3}),
                slow=True,
            ),
            row("class of the module", lambda app: setattr(app, "__class__", Tripled), slow=True),
            row("attribute of another type", own("scale", 3.5)),
            row("attribute that is deleted", lambda app: delattr(app, "scale")),
            row("attribute that is set by name", lambda app: reconfigure(app, scale=3)),
        ),
    ),
    change(
        "training of the module",
        lambda self: 3 if self.training else 2,
        own("training", True),
        more=(
            row("train()", lambda app: app.train()),
            row("train() of all", lambda app: app.apply(nn.Module.train)),
            row("train() and eval()", lambda app: app.train().eval(), same=True),
        ),
    ),
    change(
        "attribute of a plain object",
        lambda self: self.config.scale,
        of("config", "scale", 3),
        lambda: {"config": SimpleNamespace(scale=2)},
        more=(
            row("plain object that is replaced", own("config", SimpleNamespace(scale=3))),
            row("plain object's __dict__", lambda app: app.config.__dict__.update(scale=3)),
        ),
    ),
    change(
        "attribute two objects away",
        lambda self: self.config.inner.scale,
        lambda app: setattr(app.config.inner, "scale", 3),
        lambda: {"config": SimpleNamespace(inner=SimpleNamespace(scale=2))},
    ),
    change(
        "item of a list",
        lambda self: self.sizes[0],
        lambda app: app.sizes.__setitem__(0, 3),
        lambda: {"sizes": [2, 5]},
        more=(
            row("list that is reversed", lambda app: app.sizes.reverse()),
            row("list that is sorted", lambda app: app.sizes.sort(reverse=True)),
            row("list that loses an item", lambda app: app.sizes.pop(0)),
        ),
    ),
    change(
        "sum of a list",
        lambda self: sum(self.sizes),
        lambda app: app.sizes.append(1),
        lambda: {"sizes": [1, 1]},
    ),
    change(
        "item of a dict",
        lambda self: self.table["scale"],
        lambda app: app.table.update(scale=3),
        lambda: {"table": {"scale": 2}},
    ),
    change(
        "item of a list in a dict",
        lambda self: self.table["sizes"][1],
        lambda app: app.table["sizes"].__setitem__(1, 3),
        lambda: {"table": {"sizes": [1, 2]}},
    ),
    change("global", lambda self: SCALE, here("SCALE", 3)),
    change(
        "item of a global",
        lambda self: LIMITS["scale"],
        lambda app: (LIMITS.update(scale=3), lambda: LIMITS.update(scale=2))[1],
    ),
    change("slot", lambda self: self.config.scale, of("config", "scale", 3), held(config=Slotted)),
    change(
        "field of a dataclass",
        lambda self: self.config.scale,
        of("config", "scale", 3),
        held(config=Settings),
        more=(row("dataclass that is replaced", own("config", Settings(3))),),
    ),
    change(
        "field of a frozen dataclass",
        lambda self: self.config.scale,
        lambda app: object.__setattr__(app.config, "scale", 3),
        held(config=Frozen),
    ),
    change(
        "value behind a property",
        lambda self: self.config.scale,
        of("config", "_scale", 3),
        held(config=Backed),
        more=(
            row(
                "property of the class", lambda app: put(Backed, "scale", property(lambda self: 3))
            ),
        ),
    ),
    change(
        "value behind __getattr__",
        lambda self: self.config.scale,
        lambda app: app.config.__dict__["values"].update(scale=3),
        held(config=Dynamic),
    ),
    change(
        "value behind a descriptor",
        lambda self: self.config.scale,
        of("config", "backing", 3),
        held(config=Described),
    ),
    change(
        "class attribute",
        lambda self: self.config.scale,
        on(WithClassAttribute, "scale", 3),
        held(config=WithClassAttribute),
        more=(row("class attribute that an instance hides", of("config", "scale", 3)),),
    ),
    change(
        "attribute of a base class",
        lambda self: self.config.scale,
        on(WithClassAttribute, "scale", 3),
        held(config=Child),
        more=(row("attribute that a subclass hides", on(Child, "scale", 3)),),
    ),
    change(
        "method of a plain object",
        lambda self: self.config.number(),
        of("config", "number", three),
        held(config=Methods),
        more=(row("method of a plain object's class", on(Methods, "number", method_of(3))),),
    ),
    change(
        "static method",
        lambda self: self.config.static(),
        on(Methods, "static", staticmethod(three)),
        held(config=Methods),
    ),
    change(
        "class method",
        lambda self: self.config.of_class(),
        on(Methods, "of_class", classmethod(method_of(3))),
        held(config=Methods),
    ),
    change(
        "default of a function", lambda self: with_default(), on(with_default, "__defaults__", (3,))
    ),
    change(
        "default of a keyword",
        lambda self: with_keyword(),
        lambda app: (
            with_keyword.__kwdefaults__.update(scale=3),
            lambda: with_keyword.__kwdefaults__.update(scale=2),
        )[1],
    ),
    change(
        "code of a function",
        lambda self: plain(),
        on(plain, "__code__", three.__code__),
        slow=True,
        more=(row("function of a module that is replaced", here("plain", three)),),
    ),
    change("closure cell", lambda self: CLOSED(), change_cell),
    change("attribute of a function", lambda self: tagged(), on(tagged, "scale", 3)),
)
