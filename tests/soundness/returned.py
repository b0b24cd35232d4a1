# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows about objects that a forward returns or stores, and that its graph does not read."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from soundness.rows import Group, both, group, put, row, x


@dataclasses.dataclass
class Label:
    name: str
    number: int = 1


class Pair(NamedTuple):
    first: int
    second: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


VALUES: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "an int": (lambda: 1, lambda: 2),
    "a bool": (lambda: False, lambda: True),
    "a float": (lambda: 1.5, lambda: 2.5),
    "a str": (lambda: "v1", lambda: "v2"),
    "None": (lambda: None, lambda: "v2"),
    "a tuple": (lambda: (1, "a"), lambda: (1, "b")),
    "a list": (lambda: ["cat"], lambda: ["cow"]),
    "a dict": (lambda: {0: "cat"}, lambda: {0: "cow"}),
    "an OrderedDict": (lambda: collections.OrderedDict(a=1), lambda: collections.OrderedDict(a=2)),
    "a set": (lambda: {1}, lambda: {2}),
    "a dataclass": (lambda: Label("cat"), lambda: Label("cow")),
    "a named tuple": (lambda: Pair(1, 2), lambda: Pair(1, 3)),
    "an enum member": (lambda: Colour.RED, lambda: Colour.BLUE),
    "a dtype": (lambda: torch.float16, lambda: torch.bfloat16),
    "an object": (lambda: SimpleNamespace(a=1), lambda: SimpleNamespace(a=2)),
    "a nested list": (lambda: [["cat"], 1], lambda: [["cow"], 1]),
}
"""What the forward returns besides its tensor: at the build, and after the change."""

LABELS: Any = None
"""A global that a forward returns."""


class Labelled(nn.Module):
    """Returns a tensor, and something else. Each subclass finds the latter in another place."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(x(2, 4))
        self.put(made)

    def put(self, made: Any) -> None:
        self.labels = made

    def read(self) -> Any:
        return self.labels

    def forward(self, given: Any) -> Any:
        return {"logits": self.linear(given), "labels": self.read()}


PUT_AND_READ: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a config": (
        lambda self, made: setattr(self, "config", SimpleNamespace(labels=made)),
        lambda self: self.config.labels,
    ),
    "a dict": (
        lambda self, made: setattr(self, "table", {"labels": made}),
        lambda self: self.table["labels"],
    ),
    "a list": (lambda self, made: setattr(self, "items", [0, made]), lambda self: self.items[1]),
    "a global": (lambda self, made: globals().update(LABELS=made), lambda self: LABELS),
    "a closure": (
        lambda self, made: setattr(self, "reader", lambda: made),
        lambda self: self.reader(),
    ),
    "a default": (
        lambda self, made: setattr(self, "reader", lambda value=made: value),
        lambda self: self.reader(),
    ),
    "a class attribute": (
        lambda self, made: setattr(type(self), "kept", made),
        lambda self: self.kept,
    ),
    "a property": (lambda self, made: setattr(self, "inner", made), lambda self: self.outer),
    "a tuple of the result": (Labelled.put, lambda self: (1, [self.labels])),
    "a dataclass of the result": (Labelled.put, lambda self: Label("new", self.labels)),
}
"""How an object gets to a place, and how the forward finds it there."""


def labelled(number: int, put_and_read: tuple[Any, Any]) -> type[Labelled]:
    """Return a subclass for a place, which can be imported by its name, as one of an app."""
    found = dict(zip(("put", "read"), put_and_read, strict=True))
    found |= {"outer": property(lambda self: self.inner), "__module__": __name__}
    made = type(f"Labelled{number}", (Labelled,), found)
    setattr(sys.modules[__name__], made.__name__, made)
    return made


PLACES: Mapping[str, type[Labelled]] = {
    "an attribute": Labelled,
    **{place: labelled(n, how) for n, (place, how) in enumerate(PUT_AND_READ.items())},
}

EVERYWHERE = ("an int", "a str", "a dict")
"""Values that are tried in each place. An attribute of the module has rows for every value."""


def returned(value: str, place: str) -> Group:
    """Return a group that replaces a returned object."""
    built, changed = VALUES[value]
    kind = PLACES[place]

    def change(app: Any) -> Any:
        undo = put(sys.modules[__name__], "LABELS", LABELS) if place == "a global" else None
        app.put(changed())
        return undo

    name = f"{value} in {place} that is returned"
    changed_row = both(name, change, make=lambda: kind(changed()).eval())
    return group(name, lambda: kind(built()), changed_row)


def same_object(f: Any) -> Any:
    """Return whether the result contains the module's own object."""
    result = f(x())
    return {"logits": result["logits"], "same": result["labels"] is f.labels}


def added(app: Any) -> None:
    app.labels["cow"] = 1


GROUPS = (
    *(
        returned(value, place)
        for place in PLACES
        for value in VALUES
        if place == "an attribute" or value in EVERYWHERE
    ),
    group(
        "the object that is returned",
        lambda: Labelled({"cat": 1}),
        row("the object that is returned, changed in place", added, same=True),
        row("the object that is returned, replaced", lambda app: app.put({"cat": 1}), same=True),
        call=same_object,
    ),
)
