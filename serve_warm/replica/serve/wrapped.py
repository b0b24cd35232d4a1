# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Deployments of an application that names no serve_warm: their classes, and what they compile."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from serve_warm.config import WarmupConfig
from serve_warm.errors import ConfigError, did_you_mean
from serve_warm.precompile.compiled import compile as compile_with_entries
from serve_warm.precompile.taking import compile_taken
from serve_warm.replica.serve.deployment import WarmupMixin, derive
from serve_warm.replica.serve.takes_compile import TakesCompile

__all__ = ["WrappedMixin", "compile_named", "compile_taken", "wrap_class", "wrap_function"]


class WrappedMixin(WarmupMixin):
    """Mixin of classes that need not declare inputs, because a plan has them."""

    warmup_inputs = None  # type: ignore[assignment]

    warmup_compile: Sequence[str] = ()
    """Attributes that become compiled modules after `__init__`, as `model` or `pipe.unet`."""


def wrap_class(cls: type, config: WarmupConfig, *, to_compile: Sequence[str] = ()) -> type:
    """Return the class that replicas use instead of a deployment's class."""
    return derive(cls, WrappedMixin, config, first=TakesCompile, warmup_compile=tuple(to_compile))


def wrap_function(function: Callable[..., Any], config: WarmupConfig) -> type:
    """Return a class that answers requests as a function deployment does."""
    # Serve looks at the kind of the function that it calls.
    if inspect.isasyncgenfunction(function):

        async def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            async for each in function(*args, **kwargs):
                yield each

    elif inspect.iscoroutinefunction(function):

        async def call(_: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            yield from function(*args, **kwargs)

    else:

        def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    functools.update_wrapper(call, function)
    call.__name__ = "__call__"
    # Serve passes the request only if the signature has a parameter. Without this, `inspect` would
    # take the signature of the function, and drop its first parameter as that of a method.
    signature = inspect.signature(function)
    own = inspect.Parameter("_serve_warm", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [own, *signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    names = ("__module__", "__doc__")
    body = {**{name: getattr(function, name) for name in names}, "__call__": call}
    return wrap_class(type(function.__name__, (), body), config)


def compile_named(owner: object, names: Sequence[str]) -> None:
    """Compile the modules at these attributes of an object, and put the results there.

    Raises:
        ConfigError: the object has no such attribute, or it is not a module.
    """
    for path in names:
        *parents, name = path.split(".")
        holder: Any = owner
        for each in parents:
            holder = _attribute(holder, each, path, owner)
        module = _attribute(holder, name, path, owner)
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(
                f"`compile: {path}` names a {type(module).__name__} of {type(owner).__name__}, "
                "not a module",
                hint="name attributes that are torch.nn.Module objects after __init__",
            )
        setattr(holder, name, compile_with_entries(module))


def _attribute(holder: object, name: str, path: str, owner: object) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError as error:
        names = [each for each in getattr(holder, "__dict__", {}) if not each.startswith("_")]
        raise ConfigError(
            f"`compile: {path}`: {type(owner).__name__} has no attribute {path!r} after __init__",
            hint=did_you_mean(name, names) or f"its attributes: {', '.join(names) or 'none'}",
        ) from error
