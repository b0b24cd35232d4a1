# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as data: an application, a change of it, and the call whose answer is judged.

A group is an application that entries are made for once; its rows change it in different ways. Most
applications are one small module whose answer is a number times a product of matrices: the graphs
are the same, so that only the first one is compiled, and the number comes from wherever a row is
about.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

START = "start"
"""The change comes between the build and the start: the replica has it when it loads entries."""

READY = "ready"
"""The change comes once the replica has answered the same call from an entry."""


BOTH = (START, READY)


def nothing(app: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change, and the call after it."""

    name: str
    change: Callable[[Any], Any] = nothing
    """Takes what the group made; returns how to undo what outlives that, or None."""
    when: Sequence[str] = (READY,)
    call: Callable[[Any], Any] | None = None
    """Makes the call that is judged; None for that of the group."""
    around: Callable[[], Any] = contextlib.nullcontext
    """Context in which that call is made."""
    same: bool = False
    """Eager may answer as before the change. Elsewhere it must not, or the row proves nothing."""
    slow: bool = False
    """It is one of the changes that docs/concepts/levels.md says are noticed within a second."""
    make: Callable[[], Any] | None = None
    """Makes the application that was changed before the start; None where `change` does that."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """One application, and the rows that begin with its entries."""

    name: str
    kind: str
    """guard, change or input."""
    make: Callable[[], Any]
    """Returns what is compiled, a module or a function, new each time."""
    rows: Sequence[Row]
    call: Callable[[Any], Any] = field(default=lambda f: f(x()))
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"dynamic": False})
    """For torch.compile."""
    synthetic: str = ""
    """Guard kind that one guard is renamed to while entries are made."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Dynamo while entries are made."""
    needs: tuple[str, ...] = ()
    """Packages without which the group is left out."""
    guards: tuple[str, ...] = ()
    """Methods of GuardBuilder that the rows are about."""


def x(*shape: int) -> torch.Tensor:
    """Return the same numbers each time."""
    count = torch.Size(shape or (4, 4)).numel()
    return (torch.arange(count, dtype=torch.float32) % 7 / 7 + 0.1).reshape(shape or (4, 4))


class Numbered(nn.Module):
    """A product of matrices, times a number: each subclass finds the number somewhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(4, 4))
        self.bias = nn.Parameter(x(4))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x, self.weight, alpha=float(self.number()))


def numbered(
    name: str,
    number: Callable[[Any], float],
    change: Callable[[Any], Any] = nothing,
    held: Callable[[], Mapping[str, Any]] = dict,
    *,
    kind: str = "guard",
    when: Sequence[str] = (START, READY),
    more: Sequence[Row] = (),
    same: bool = False,
    slow: bool = False,
    around: Callable[[], Any] = contextlib.nullcontext,
    **settings: Any,
) -> Group:
    """Return the group of a module whose number is `number(self)`, and which holds `held()`."""

    def initialize(self: Any) -> None:
        Numbered.__init__(self)
        for attribute, value in held().items():
            setattr(self, attribute, value)

    title = "Numbered" + "".join(c if c.isalnum() else "_" for c in name)
    found = {
        "__init__": initialize,
        "number": number,
        "__module__": __name__,
        "__qualname__": title,
    }
    made = type(title, (Numbered,), found)
    # As a class of an application has it: importable by its name.
    setattr(sys.modules[__name__], title, made)
    first = Row(name=name, change=change, when=when, same=same, slow=slow, around=around)
    rows = (*(() if change is nothing and around is contextlib.nullcontext else (first,)), *more)
    return Group(name=name, kind=kind, make=lambda: made().eval(), rows=rows, **settings)


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute that outlives an application; return how to set it back."""
    missing = object()
    before = vars(owner).get(name, missing)
    if isinstance(owner, types.FunctionType) and hasattr(types.FunctionType, name):
        before = getattr(owner, name)  # __code__ and the like are not in its __dict__
    setattr(owner, name, value)

    def undo() -> None:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def put_item(mapping: Any, key: Any, value: Any) -> Callable[[], None]:
    """Do the same for an item of a mapping."""
    missing = object()
    before = mapping.get(key, missing)
    mapping[key] = value

    def undo() -> None:
        if before is missing:
            del mapping[key]
        else:
            mapping[key] = before

    return undo


def calling(setter: Callable[[Any], Any], value: Any, before: Any) -> Callable[[Any], Any]:
    """Return a change that calls a setter of the process, and calls it back."""

    def change(app: Any) -> Callable[[], None]:
        setter(value)
        return lambda: setter(before)

    return change


def row(name: str, change: Any, **more: Any) -> Row:
    return Row(name=name, change=change, **more)


def no(change: Any) -> Any:
    """Return a change without its result."""

    def changing(app: Any) -> None:
        change(app)

    return changing


def of(name: str, attribute: str, value: Any) -> Any:
    """Return a change of an attribute of an object in the module."""
    return lambda app: setattr(getattr(app, name), attribute, value)


def own(name: str, value: Any) -> Any:
    return lambda app: setattr(app, name, value)


def on(owner: Any, name: str, value: Any) -> Any:
    """Return a change of a class or function, which outlives the application."""
    return lambda app: put(owner, name, value)


def method_of(value: int) -> Any:
    def number(self: Any) -> int:
        return value

    return number


def linear(seed: int) -> nn.Linear:
    layer = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(x(4, 4) + seed / 4)
    return layer.eval()
