# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs of a library: the arguments of a call, and the weights of its callee.

A library holds no weights, so each call reads them from the modules of the callee. A callable has
hundreds of weights, and most calls find the same modules. So only the first call walks through the
modules. As long as the callable's watch says that no module was replaced, later calls read the
weights directly from the dicts that hold them.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from serve_warm._records import record
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import item
from serve_warm.private_apis.nn_module import (
    BUFFERS,
    MODULES,
    PARAMETERS,
    own_buffers,
    own_modules,
    own_parameters,
)

if TYPE_CHECKING:
    import torch

STEPS: Mapping[str, Callable[[object, Any], object]] = {
    "attribute": getattr,
    # Bypasses the class's own attribute lookup.
    "own": object.__getattribute__,
    "item": item,
}

PLACES = {"parameter": PARAMETERS, "buffer": BUFFERS}
"""Maps a kind of input to the attribute of a module that holds inputs of this kind."""

KINDS = ("argument", *PLACES, "attribute", "path")

GONE = (AttributeError, LookupError, TypeError)
"""Exceptions raised when a part of the callee is missing."""

Read = Callable[[object, "Sequence[torch.Tensor]"], list[Any]]
"""A function that takes the callee and a call's tensors, and returns the inputs of the library."""


@record(frozen=True, kw_only=True)
class TensorSource:
    """Where one input of the native code comes from."""

    kind: str
    """`argument`: a tensor of the call. `parameter`, `buffer` or `attribute`: a tensor of a module.
    `path`: any other place that can be reached from the callee."""
    owner: str = ""
    """Path of the module, as in `named_modules`."""
    name: str = ""
    index: int = 0
    """Number of the argument."""
    path: Sequence[Sequence[Any]] = ()
    """Steps from the callee. Each step has a kind from `STEPS`, and a name or key."""
    said: str = ""
    """Properties of the input that compiled code relies on."""

    def __post_init__(self) -> None:
        unknown = {self.kind} - {*KINDS} | {kind for kind, _ in self.path} - {*STEPS}
        if unknown:
            raise ValueError(
                f"the path to a library input contains the unknown step {min(unknown)!r}"
            )


class Watched(Protocol):
    """Reports whether the dicts of a callable are unchanged (`changes.fact_watch.FactWatch`)."""

    unchanged: Callable[[], bool]
    readers: dict[object, Read]
    """The readers of libraries. After each change, the watch puts a new dict here, so that no
    reader keeps replaced modules alive."""

    def covers(self, mapping: Mapping[str, object]) -> bool:
        """Return whether `unchanged` returns False after any change to this dict."""


_Take = tuple[str, int, str, int, Callable[[object], object]]
"""One input: its kind, the row of its module, its name, the number of the argument, and the
function that follows its path."""


class Inputs:
    """Where all inputs of a library come from."""

    def __init__(self, inputs: Sequence[TensorSource]) -> None:
        self._modules, rows = _modules(sorted({i.owner for i in inputs if i.owner}))
        self._takes: list[_Take] = [
            (i.kind, rows.get(i.owner, 0), i.name, i.index, follow(i.path)) for i in inputs
        ]

    def read(self, callee: object, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Return the input tensors of the native code for a call.

        Raises:
            NoEntry: an input is missing.
        """
        inputs: list[object] = []
        try:
            modules = self._walk(callee)
            for kind, row, name, index, walk in self._takes:
                if kind == "parameter":
                    inputs.append(own_parameters(modules[row])[name])
                elif kind == "argument":
                    inputs.append(tensors[index])
                elif kind == "buffer":
                    inputs.append(own_buffers(modules[row])[name])
                elif kind == "attribute":
                    inputs.append(vars(modules[row])[name])
                else:
                    inputs.append(walk(callee))
        except GONE as error:
            raise explain_missing(error) from error
        return inputs

    def reader(self, callee: object, watched: Watched) -> Read:
        """Return a function that can replace `read` until `watched` reports a change.

        Returns `read` itself if a part of the callee is not watched.
        """
        try:
            modules = self._walk(callee)
            parents = {parent for parent, _ in self._modules}
            for row, module in enumerate(modules):
                if not _is_watched(module, watched, is_parent=row in parents):
                    return self.read
            holders = [self._holder(modules, take) for take in self._takes]
        except GONE:
            return self.read
        held = [
            (holder, name)
            for holder, (_, _, name, _, _) in zip(holders, self._takes, strict=True)
            if holder is not None
        ]
        dicts, names = [holder for holder, _ in held], [name for _, name in held]
        others = [
            (number, None if kind == "path" else index, walk)
            for number, (kind, _, _, index, walk) in enumerate(self._takes)
            if holders[number] is None
        ]

        def read(callee: object, tensors: Sequence[torch.Tensor]) -> list[Any]:
            try:
                inputs = list(map(operator.getitem, dicts, names))
                for number, index, walk in others:  # in order, so each has its place
                    inputs.insert(number, walk(callee) if index is None else tensors[index])
            except GONE as error:
                raise explain_missing(error) from error
            return inputs

        return read

    def _walk(self, callee: Any) -> list[torch.nn.Module]:
        modules: list[torch.nn.Module] = [getattr(callee, "__self__", callee)]
        for parent, name in self._modules:
            modules.append(own_modules(modules[parent])[name])
        return modules

    @staticmethod
    def _holder(modules: Sequence[torch.nn.Module], take: _Take) -> dict[str, object] | None:
        """Return the dict that holds an input, or None if the input is in no dict of a module."""
        kind, row = take[:2]
        if kind not in ("attribute", *PLACES):
            return None
        own = vars(modules[row])
        holder: dict[str, object] = own if kind == "attribute" else own[PLACES[kind]]
        return holder


def _is_watched(module: torch.nn.Module, watched: Watched, *, is_parent: bool) -> bool:
    """Return whether a watch notices if the dicts or submodules of a module are replaced."""
    own = vars(module)
    names = (MODULES, *PLACES.values())
    return (
        type(own) is dict
        and all(type(own[name]) in (dict, OrderedDict) for name in names)
        and all(getattr(module, name) is own[name] for name in names)
        and watched.covers(own)
        and (not is_parent or watched.covers(own[MODULES]))
    )


def explain_missing(error: BaseException) -> NoEntry:
    """Return the error for a callee that lacks a part which a library needs."""
    return NoEntry(f"its module is not the same as at build time; missing: {error}")


def follow(path: Sequence[Sequence[Any]]) -> Callable[[object], object]:
    """Return a function that follows a path from the callee."""
    steps = [(STEPS[kind], argument) for kind, argument in path]

    def walk(found: object) -> object:
        for step, argument in steps:
            found = step(found, argument)
        return found

    return walk


def _modules(owners: Sequence[str]) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """Return one row per module on the owners' paths, and the row number for each path."""
    rows = {"": 0}
    steps: list[tuple[int, str]] = []
    for owner in owners:
        path = ""
        for name in owner.split("."):
            parent, path = rows[path], f"{path}.{name}".lstrip(".")
            if path not in rows:
                steps.append((parent, name))
                rows[path] = len(steps)
    return steps, rows
