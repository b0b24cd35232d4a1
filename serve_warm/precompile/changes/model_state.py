# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a callable as text: what a call may change in it."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from serve_warm.precompile.calls.plain_state import COMPILERS
from serve_warm.precompile.facts.names import describe_tensor, is_own_module, under
from serve_warm.precompile.facts.table import UNREADABLE
from serve_warm.private_apis.nn_module import BUFFERS, MODULES, PARAMETERS

VALUES_READ = 100_000
"""Maximum number of values to compare for each callable."""


ITEMS_READ = 64
"""Maximum number of items to compare in each list, set or dict."""


DEPTH = 40
"""Maximum number of steps from the callable to a compared value."""


PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device)


def state_of(callee: object) -> Mapping[str, object]:
    """Return, by path, the Python state that calls to a callable can change.

    The result leaves out the values in tensors, because tensors are inputs of a graph.
    """
    found: dict[str, object] = {}
    seen: set[int] = set()
    classes: set[type] = {types.FunctionType, types.MethodType}
    queue: deque[tuple[int, str, object]] = deque([(0, "callee", callee)])
    while queue and len(found) < VALUES_READ:
        depth, path, value = queue.popleft()
        kind = type(value)
        if kind in PLAIN:
            found[path] = (kind, value)
        elif kind in (float, complex):
            found[path] = (kind, repr(value))  # a NaN differs from itself
        elif issubclass(kind, torch.Tensor):
            found[path] = _describe(value)
        elif id(value) not in seen:
            seen.add(id(value))
            found[path] = kind
            if depth < DEPTH:
                queue.extend((depth + 1, f"{path}{step}", part) for step, part in _read(value))
            if kind not in classes:
                classes.add(kind)
                queue.extend((depth + 1, step, part) for step, part in _globals_of(kind))
    return found


def _describe(tensor: Any) -> str:
    try:
        return describe_tensor(tensor)
    except (RuntimeError, TypeError, AttributeError):  # a nested or sparse tensor has no strides
        return type(tensor).__name__


def _read(value: object) -> list[tuple[str, object]]:
    try:
        return [*_parts(value)]
    except UNREADABLE:  # another thread changes it
        return []


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield an object's parts, each with its step in a path, without running the object's code."""
    kind = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return
    if str(kind.__module__).startswith(COMPILERS):  # state of these objects changes at any call
        if issubclass(kind, torch.nn.Module):
            yield from ((f".{name}", part) for name, part in vars(value)[MODULES].items())
        return
    if kind is types.MethodType:
        yield "", value.__func__
        yield ".__self__", value.__self__
    elif kind is types.FunctionType:
        yield ".__code__", id(value.__code__)
        for number, cell in enumerate(value.__closure__ or ()):
            yield f"[cell {number}]", _content(cell)
    elif issubclass(kind, (dict, *SEQUENCES)):
        yield from _items(value, kind)
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(own) is dict:
        yield from _attributes(own)


SEQUENCES = (list, tuple, set, frozenset)


def _items(value: Any, kind: type) -> Iterator[tuple[str, object]]:
    if issubclass(kind, dict):
        yield "[length]", dict.__len__(value)
        for key, item in [*dict.items(value)][:ITEMS_READ]:
            yield f"[{key!r}]" if type(key) in PLAIN else f"[{type(key).__name__}]", item
        return
    base = next(each for each in SEQUENCES if issubclass(kind, each))
    items = [*base.__iter__(value)]
    yield "[length]", len(items)
    if base in (set, frozenset):  # the order differs in each process
        items = sorted(repr(item) for item in items if type(item) in PLAIN)
    yield from ((f"[{number}]", item) for number, item in enumerate(items[:ITEMS_READ]))


def _globals_of(kind: type) -> Iterator[tuple[str, object]]:
    """Yield globals that a class's methods use, if they are plain values, dicts, lists or sets."""
    for base in kind.__mro__:
        if is_own_module(base.__module__):
            continue
        for attribute in [*vars(base).values()]:
            for function in under(attribute):
                space = function.__globals__
                for name in function.__code__.co_names:
                    held = space.get(name)
                    if type(held) in PLAIN or issubclass(type(held), (dict, list, set)):
                        yield f"{base.__module__}.{name}", held


def _attributes(own: dict[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in [*own.items()]:
        if type(value) is not dict:
            yield f".{name}", value
            continue
        # A module's dicts: most are empty. Read every parameter, buffer and module.
        for key, item in [*value.items()] if name in TABLES else ():
            yield f".{key}", item
        if value and name not in TABLES:
            yield f".{name}", value


TABLES = (PARAMETERS, BUFFERS, MODULES)
"""Attributes of a module that hold its tensors and its submodules."""


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
