# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as data: an application, a change of it, and the call whose answer is judged.

A group is an application whose entries are made once. Its rows change the application in different
ways. Most applications are one small module, whose answer is a matrix product times a number. All
their graphs are the same, so only the first graph is compiled. The number comes from the place that
a row changes.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

START = "start"
"""The change is made between the build and the start, so it is there when the replica loads
entries."""

READY = "ready"
"""The change is made after the replica has answered the same call from an entry."""


BOTH = (START, READY)


def nothing(app: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change, and the call after it."""

    name: str
    change: Callable[[Any], Any] = nothing
    """Takes the group's application. If it returns a function or method, this undoes a change that
    outlives the application."""
    when: Sequence[str] = (READY,)
    call: Callable[[Any], Any] | None = None
    """Makes the judged call. None means the call of the group."""
    around: Callable[[], Any] = contextlib.nullcontext
    """Context in which the judged call is made."""
    same: bool = False
    """Whether eager may give the same answer as before the change. If it must not and does, the row
    proves nothing."""
    slow: bool = False
    """Whether docs/concepts/levels.md says that serve_warm can take up to a second to notice the
    change."""
    make: Callable[[], Any] | None = None
    """Makes the application in its changed form, for a change before the start. None means that
    `change` changes the application."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """One application, and the rows that begin with its entries."""

    name: str
    kind: str
    """guard, change or input."""
    make: Callable[[], Any]
    """Returns a new module or function to compile, each time."""
    rows: Sequence[Row]
    call: Callable[[Any], Any] = field(default=lambda f: f(x()))
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"dynamic": False})
    """Arguments of torch.compile."""
    synthetic: str = ""
    """The guard kind that one guard gets as its name while entries are made."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Dynamo while entries are made."""
    needs: tuple[str, ...] = ()
    """Packages that the group needs. Without them it is skipped."""
    guards: tuple[str, ...] = ()
    """Methods of GuardBuilder that the rows are about."""


def x(*shape: int) -> torch.Tensor:
    """Return a tensor of this shape, with the same numbers each time."""
    count = torch.Size(shape or (4, 4)).numel()
    return (torch.arange(count, dtype=torch.float32) % 7 / 7 + 0.1).reshape(shape or (4, 4))


class Numbered(nn.Module):
    """A matrix product times a number. Each subclass gets the number from a different place."""

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
    """Return a group whose module has the number `number(self)` and the attributes `held()`."""

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
    # Make it importable by its name, like a class of an application.
    setattr(sys.modules[__name__], title, made)
    first = Row(name=name, change=change, when=when, same=same, slow=slow, around=around)
    rows = (*(() if change is nothing and around is contextlib.nullcontext else (first,)), *more)
    return Group(name=name, kind=kind, make=lambda: made().eval(), rows=rows, **settings)


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute that outlives an application. Return a function that restores it."""
    missing = object()
    before = vars(owner).get(name, missing)
    if isinstance(owner, types.FunctionType) and hasattr(types.FunctionType, name):
        before = getattr(owner, name)  # __code__ and similar ones are not in its __dict__
    setattr(owner, name, value)

    def undo() -> None:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def put_item(mapping: Any, key: Any, value: Any) -> Callable[[], None]:
    """Set an item of a mapping that outlives an application. Return a function that restores it."""
    missing = object()
    before = mapping.get(key, missing)
    mapping[key] = value

    def undo() -> None:
        if before is missing:
            del mapping[key]
        else:
            mapping[key] = before

    return undo


def calling(setter: Any, value: Any, getter: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a change that calls a setter of the process, with a function that undoes it."""

    def change(app: Any) -> Callable[[], None]:
        before = getter()
        setter(value)
        return lambda: setter(before)

    return change


@contextlib.contextmanager
def grad_on() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


def row(name: str, change: Callable[[Any], Any] = nothing, **more: Any) -> Row:
    return Row(name=name, change=change, **more)


def both(name: str, change: Callable[[Any], Any] = nothing, **more: Any) -> Row:
    """Return a row whose change is made at the start, and after READY."""
    return Row(name=name, change=change, when=BOTH, **more)


def group(
    name: str, make: Callable[[], nn.Module], *rows: Row, kind: str = "change", **more: Any
) -> Group:
    """Return a group that begins with the module of `make` in eval mode."""
    return Group(name=name, kind=kind, make=lambda: make().eval(), rows=rows, **more)


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
