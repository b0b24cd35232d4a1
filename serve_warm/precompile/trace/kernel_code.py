# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Python code that torch runs below Dynamo to compile the operators of a graph.

Dynamo puts a custom operator into the graph as a whole. Its kernels in Python, its decompositions,
its rules for fake tensors and `vmap`, lowerings and passes of Inductor run later, and Dynamo
neither reports nor guards their code. This module adds that code to the record of `subclass_hooks`.
The names of torch are private (seen in 2.11 to 2.15).
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from serve_warm.precompile.facts.names import is_own, is_own_module
from serve_warm.precompile.trace.subclass_hooks import Dispatched, is_of_torch, recording
from serve_warm.private_apis import inductor
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    import torch

BUILT_IN = ("aten", "prim", "prims", "quantized", "inductor", "higher_order")
"""Namespaces of torch's own operators."""


def noting_kernels(found: Dispatched) -> Iterator[Change]:
    """Record the code that runs for the custom operators of a graph, and the code registered."""

    def noting(run: Callable[..., object]) -> Callable[..., object]:
        def run_node(tracer: object, node: torch.fx.Node, *args: object) -> object:
            if node.op != "call_function" or not _is_custom(node.target):
                return run(tracer, node, *args)
            for function in inductor.registered_for(node.target):
                add_code(function, found)
            with recording(found):
                return run(tracer, node, *args)

        return run_node

    yield Change("run_node", noting)


def add_code_of_inductor(found: Dispatched) -> None:
    """Add the code of the application's decompositions, lowerings and passes."""
    for function in inductor.registered_in_inductor():
        add_code(function, found)


def _is_custom(target: object) -> bool:
    namespace = inductor.namespace_of(target)
    return namespace is not None and namespace not in BUILT_IN


def add_code(found: object, into: Dispatched) -> None:
    """Add the code of a function of the application, and of the functions that it names."""
    queue: list[object] = [found]
    seen: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in seen or value is None:
            continue
        seen.add(id(value))
        if isinstance(value, functools.partial):
            queue.append(value.func)
        elif isinstance(value, types.MethodType):
            queue.append(value.__func__)
        elif isinstance(value, types.FunctionType):
            queue += _names_in(value, into)
        elif isinstance(value, type):
            if not is_own(value) and not is_of_torch(value.__module__):
                queue += [f for f in vars(value).values() if isinstance(f, types.FunctionType)]
        elif not isinstance(value, types.ModuleType) and callable(value):
            queue.append(type(value))


def _names_in(function: types.FunctionType, into: Dispatched) -> list[object]:
    """Return what a function wraps, closes over and names, and add its code."""
    more: list[object] = [getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if isinstance(value, (types.FunctionType, functools.partial, types.MethodType)):
            more.append(value)
    space = function.__globals__
    module = str(space.get("__name__"))
    if is_own_module(module) or is_of_torch(module):
        return more
    into.codes.setdefault(function.__code__, space)
    for name in _all_names(function.__code__):
        value = space.get(name)
        if isinstance(value, (types.FunctionType, type, functools.partial)):
            more.append(value)
        elif isinstance(value, types.ModuleType) and not is_own_module(value.__name__):
            members = (vars(value).get(each) for each in _all_names(function.__code__))
            more += [each for each in members if inspect.isfunction(each) or inspect.isclass(each)]
    return more


def _all_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _all_names(value)
