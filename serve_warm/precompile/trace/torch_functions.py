# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that a trace runs, or puts into its graph.

Dynamo runs some functions while it traces, such as `torch.distributed.is_initialized`, and keeps
their results without a guard. It also puts functions and tensor methods into the graph that torch's
own modules look up by name, without a guard on the name. The hooks use private torch code (seen in
2.11 to 2.15).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from serve_warm.precompile.facts.names import literal, locate
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import encode_key
from serve_warm.private_apis import dynamo, inductor
from serve_warm.private_apis.patches import Change

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import (
        Args,
        CallTorchFunction,
        Kwargs,
        ModelOfTorchFunction,
        Translator,
        Variable,
    )

Place = tuple[str, str]
"""A module, and the qualified name of an object in it."""

STEADY = frozenset(
    {
        *("promote_types", "is_complex", "is_floating_point", "get_enum", "is_available"),
        *("get_device_properties", "current_accelerator", "is_tensor", "is_tensor_like", "numel"),
        *dynamo.OF_THE_MACHINE,
    }
)
"""Names of functions whose result depends only on their arguments and the machine. The artifact's
fingerprint covers the machine."""

CHECKED_EACH_CALL = frozenset(
    {
        *("is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype"),
        *("are_deterministic_algorithms_enabled", "is_autocast_enabled"),
        *("is_autocast_cpu_enabled", "is_autocast_cache_enabled", *dynamo.OF_CALLS),
    }
)
"""Names of functions whose result is part of the state that each call compares."""


@dataclass(frozen=True)
class TorchFunctions:
    """The functions of torch that one trace ran or called."""

    results: dict[str, tuple[Place, list[object], str]] = field(default_factory=dict)
    """The functions that ran: place, encoded arguments, and result as text."""
    called: dict[Place, object] = field(default_factory=dict)
    """The functions and tensor methods in the graph, by place."""


def noting_torch_functions(found: TorchFunctions) -> Iterator[Change]:
    """Record the functions that a trace runs, and those that it puts into its graph."""
    about_tracing = dynamo.functions_about_tracing()  # their results hold for each trace

    def noting_results(call: CallTorchFunction) -> CallTorchFunction:
        def call_function(
            self: ModelOfTorchFunction, tx: Translator, args: Args, kwargs: Kwargs
        ) -> Variable | None:
            result = call(self, tx, args, kwargs)
            if self.value not in about_tracing:
                _note_result(found, self.value, args, kwargs, result)
            return result

        return call_function

    def noting_calls(create: Callable[..., object]) -> Callable[..., object]:
        def create_proxy(
            self: object, kind: str, target: Any, *args: Any, **kwargs: object
        ) -> object:
            if kind == "call_method":
                _note_method(found, target)
            elif target is getattr and args and len(args[0]) > 1:
                _note_method(found, args[0][1])  # a property, such as `x.mT`
            elif kind == "call_function":
                _note_function(found, target)
            return create(self, kind, target, *args, **kwargs)

        return create_proxy

    yield Change("TorchInGraphFunctionVariable.call_function", noting_results)
    yield Change("SubgraphTracer.create_proxy", noting_calls)


def _note_result(
    found: TorchFunctions,
    function: Callable[..., object],
    args: Args,
    kwargs: Kwargs,
    result: Variable | None,
) -> None:
    name = getattr(function, "__name__", "")
    if name in STEADY | CHECKED_EACH_CALL or result is None or not result.is_python_constant():
        return
    given = [*args, *kwargs.values()]
    if not all(each.is_python_constant() for each in given):
        return
    said, place = literal(result.as_python_constant()), _place(function)
    if said is None or place is None:
        return
    try:
        call: list[object] = [
            [encode_key(each.as_python_constant()) for each in args],
            {key: encode_key(each.as_python_constant()) for key, each in kwargs.items()},
        ]
    except NoEntry:
        return
    found.results[repr((place, call))] = (place, call, said)


def _note_function(found: TorchFunctions, function: object) -> None:
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        for form in (f"__{name.strip('_')}__", f"__r{name.strip('_')}__"):
            _note_method(found, form)
    elif (place := _place(function)) is not None and place[0].partition(".")[0] == "torch":
        found.called[place] = function
        # torch traces the function's own code only below Dynamo.
        for inner in getattr(getattr(function, "__code__", None), "co_names", ()):
            if isinstance(vars(torch).get(inner), types.BuiltinFunctionType):
                found.called["torch", inner] = vars(torch)[inner]


def _note_method(found: TorchFunctions, name: str) -> None:
    method = getattr(torch.Tensor, name, None)
    if method is not None:
        found.called["torch", f"Tensor.{name}"] = method


def _place(function: object) -> Place | None:
    name = getattr(function, "__name__", "")
    if name and getattr(torch, name, None) is function:
        return "torch", name
    return None if inductor.is_overload(function) else locate(function)
