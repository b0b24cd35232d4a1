# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What objects read that a forward itself creates: Dynamo has no guard on it (2.11 to 2.15).

`forward` may run `Scale().get()`. Dynamo knows no path to the functions of such an object, so it
puts what they hold into the graph: the variables of the functions around them, their default
arguments, and what `super()` finds. The name of a class covers constants (`facts.names`), so here
only the values are refused that can change in place, and the variables that a function assigns.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from typing import TYPE_CHECKING

import torch

from serve_warm.precompile.facts.names import assigned_names, is_own, is_own_module, name_of
from serve_warm.private_apis.cpython import is_frozen
from serve_warm.private_apis.patches import Change
from serve_warm.private_apis.table import RESOLVE_SUPER

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import (
        BindArguments,
        ModelOfPythonFunction,
        ModelOfSuper,
        ObjectSource,
        ResolveSuper,
        Translator,
        Variable,
    )


def refusing_created_objects(refusals: list[str]) -> Iterator[Change]:
    """Add a reason to `refusals` for each unguarded value that may change in place."""

    def refusing(bind: BindArguments) -> BindArguments:
        def bind_args(
            self: ModelOfPythonFunction,
            parent: Translator,
            args: list[Variable],
            kwargs: dict[str, Variable],
        ) -> dict[str, Variable]:
            function = self.get_function()
            if self.get_source() is None and not is_own(function):
                held = _held(function, args, kwargs)
                names = [name for name, value in held if may_change(value)]
                names += sorted(assigned_names(function.__code__))
                refusals.extend(_why(name, function) for name in dict.fromkeys(names))
            return bind(self, parent, args, kwargs)

        return bind_args

    def refusing_constants(resolve: ResolveSuper) -> ResolveSuper:
        def resolve_constants(
            self: ModelOfSuper, tx: Translator, name: str
        ) -> tuple[object, ObjectSource | None]:
            value, source = resolve(self, tx, name)
            if source is None and not isinstance(value, FUNCTIONS):
                of = self.objvar
                kind = name_of(of.python_type()) if of is not None else "an unknown class"
                refusals.append(
                    f"it creates an object of {kind}, which reads super().{name}, and torch has no "
                    f"guard on it: read self.{name}, or create the object outside of forward"
                )
            return value, source

        return resolve_constants

    yield Change("UserFunctionVariable.bind_args", refusing)
    yield Change(RESOLVE_SUPER, refusing_constants)


FUNCTIONS = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, property),
    *(staticmethod, classmethod, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.MethodWrapperType),
)
"""What `super()` may find without a reason: Dynamo runs it, or it belongs to Python."""


def _why(name: str, function: Callable[..., object]) -> str:
    return (
        f"it calls {name_of(function)} of an object that it creates. The function reads {name!r}, "
        f"which may change, and torch has no guard on it: create the object outside of forward"
    )


def _held(
    function: types.FunctionType, args: Iterable[object], kwargs: dict[str, Variable]
) -> Iterator[tuple[str, object]]:
    """Yield what a call reads without a guard: the function's outer variables, and defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # no value yet: the call fails, if it reads it
        if name != "__class__":
            yield name, value
    signature = inspect.Signature.from_callable(function, follow_wrapped=False)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return  # the call fails
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is not parameter.empty:
            yield name, parameter.default


def may_change(value: object, depth: int = 0) -> bool:
    """Return whether a value can change in place, or holds one that can.

    `depth` is the number of values around it.
    """
    inner: Iterable[object] = ()
    if depth > DEEP or isinstance(value, CONTAINERS):
        return True
    if isinstance(value, (tuple, frozenset)):
        inner = value
    elif isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        inner = (value.__self__,)
    elif isinstance(value, type):
        return not is_own(value)  # its attributes have no guard either
    elif isinstance(value, types.ModuleType):
        return not is_own_module(value.__name__)
    elif isinstance(value, STEADY) or type(value).__module__.partition(".")[0] == "torch":
        pass
    elif dataclasses.is_dataclass(value) and is_frozen(type(value)):
        inner = vars(value).values()
    else:
        return bool(getattr(value, "__dict__", None))
    return any(may_change(each, depth + 1) for each in inner)


DEEP = 5
"""Levels of tuples that are searched."""

CONTAINERS = (
    *(MutableMapping, MutableSequence, MutableSet, types.MappingProxyType),
    *(torch.Tensor, torch.nn.Module),
)

STEADY = (types.FunctionType, enum.Enum)
"""Values that are looked at where a trace uses them: a function's variables when it is called, and
the values of members when an enumeration is read."""
