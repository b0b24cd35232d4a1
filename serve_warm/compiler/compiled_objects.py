# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled callables on a user's object: whether any exist, and their compile arguments.

Torch keeps a backend on a compiled callable under private names (`dynamo_ctx`,
`_compiled_call_impl`, `_torchdynamo_orig_callable`; seen in torch 2.13.0).
"""

from __future__ import annotations

import abc
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import CellType, CodeType, ModuleType
from typing import Any


class HandedOver(abc.ABC):
    """A compiled callable's dispatcher, which can pass calls to the result of `torch.compile`.

    This object is stored in a compiled module, or in the `_serve_warm` attribute of the user's
    callable.
    """

    torch_compiled: Callable[[], Any]
    """Function that returns the result of `torch.compile`. `torch.compile` imports Dynamo."""

    @abc.abstractmethod
    def library_arguments(self) -> str:
        """Return the compile arguments as text if libraries are requested, or else an empty string.

        Does not need Dynamo.
        """


def _find_dispatcher(value: Any) -> HandedOver | None:
    """Return a callable's dispatcher, or `None`. The callable can itself be the dispatcher."""
    if isinstance(value, HandedOver):
        return value
    # Compare the type, because `functools.wraps` copies all attributes to a wrapper in user code.
    if type(value).__module__.partition(".")[0] != "serve_warm":
        return None
    found = getattr(value, "__dict__", {}).get("_serve_warm")
    return found if isinstance(found, HandedOver) else None


def compile_arguments(owner: Any) -> dict[str, str]:
    """Return the compile arguments of each compiled attribute of `owner`, by attribute name.

    This function finds compiled attributes and modules compiled in place. It does not find compiled
    functions elsewhere. The arguments of such functions are still in torch's own cache keys. If one
    of these arguments differs, torch later reports a cache miss, without naming the argument.
    """
    found = {}
    for name, value in vars(owner).items():
        handed_over = _find_dispatcher(value)
        if handed_over is not None and handed_over.library_arguments():
            found[name] = handed_over.library_arguments()
            continue
        backends = [_describe(backend) for backend in _backends_of(value)]
        if backends:
            found[name] = ";".join(dict.fromkeys(backends))
    return found


FOREIGN = {"torch", "ray", "serve_warm"}
"""Packages whose objects and functions are not searched for compiled callables."""


LOOKED_AT = 20_000
"""Maximum number of objects that `reaches_compiled` looks at. Looking at this many objects takes
tens of milliseconds."""


def reaches_compiled(owner: Any) -> bool:
    """Return whether the user's object refers to compiled code, without running the object's code.

    The search covers attributes and their contents, and the globals that methods use. Unused
    imports do not count, because a router might be in the same Python file as a model.
    """
    if "torch" not in sys.modules:
        return False
    waiting, seen = [owner], {id(owner)}
    while waiting and len(seen) < LOOKED_AT:
        value = waiting.pop()
        if _is_compiled(value):
            return True
        for below in _list_held(value):
            if id(below) not in seen:
                seen.add(id(below))
                waiting.append(below)
    return False


def _is_compiled(value: Any) -> bool:
    import torch

    if _find_dispatcher(value) is not None:
        return True
    if isinstance(value, torch.nn.Module):
        return any(_backends_of(module) for module in value.modules())
    return bool(_backends_of(value))


def _list_held(value: Any) -> list[Any]:
    """Return objects that a value contains or uses and that might lead to compiled code."""
    plain = (str, bytes, int, float, type, ModuleType)
    if isinstance(value, plain) or _is_foreign(type(value)):
        return []
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return list(value.values() if isinstance(value, Mapping) else value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        return _list_used(value)
    methods = [function for base in type(value).__mro__ for function in vars(base).values()]
    return [*getattr(value, "__dict__", {}).values(), *methods]


def _list_used(function: Any) -> list[Any]:
    """Return the globals that a function's code names, and the contents of its closure."""
    if _is_foreign(function):
        return []
    used = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    codes = [function.__code__]
    for code in codes:  # the list grows with nested functions
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            found = function.__globals__.get(name)
            used.append(found)
            if isinstance(found, ModuleType) and not _is_foreign(found):
                used += [vars(found)[other] for other in code.co_names if other in vars(found)]
    return used


def _is_foreign(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    package = str(module).partition(".")[0]
    return package in FOREIGN or (
        not isinstance(value, type) and package in sys.stdlib_module_names
    )


def _describe(backend: Any) -> str:
    config = dict(getattr(backend, "config", {}) or {})
    words = [
        str(getattr(backend, "compiler_name", type(backend).__name__)),
        f"dynamic={getattr(backend, 'dynamic', None)}",
        *(f"{key}={config[key]}" for key in sorted(config)),
    ]
    return ",".join(words)


def how_to_raise_the_limit(limit: int) -> str:
    """Return a hint on how to allow `limit` variants of one function in this version of torch."""
    torch = sys.modules.get("torch")  # without torch, callers never show the text
    if torch is None or "recompile_limit" in inspect.signature(torch.compile).parameters:
        return f"pass torch.compile(..., recompile_limit={limit})"
    # 2.11 does not have the argument. Its settings are process-wide; later versions have settings
    # for each context.
    return f"set torch._dynamo.config.recompile_limit={limit} before the first call"


def uses_cuda_graphs(owner: Any) -> bool:
    """Return whether compiled code on `owner` records CUDA graphs on this machine."""
    if "torch._dynamo" not in sys.modules:
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    values = list(vars(owner).values())  # a copy, because another thread may set an attribute
    backends = [backend for value in values for backend in _backends_of(value)]
    return any((getattr(b, "config", None) or {}).get("triton.cudagraphs") for b in backends)


def _backends_of(value: Any) -> list[Any]:
    """Return the backend objects of a compiled function, or of a module's compiled parts."""
    if "torch._dynamo" not in sys.modules:  # imported by torch.compile
        return []
    import torch

    if isinstance(value, torch.nn.Module):
        whole: Any = getattr(value, "_compiled_call_impl", None) or _region_of(value)
        compiled = [whole] if whole else _methods_of(value) or [value]
    elif inspect.isroutine(value) or _find_dispatcher(value) is not None:
        compiled = [value]
    else:
        return []
    return [backend for each in compiled if (backend := _backend_of(each)) is not None]


def _backend_of(compiled: Any) -> Any:
    """Return the backend object that a callable was compiled with, or `None`."""
    from torch._dynamo.eval_frame import innermost_backend

    handed_over = _find_dispatcher(compiled)
    if handed_over is not None:
        compiled = handed_over.torch_compiled()
    context = getattr(compiled, "dynamo_ctx", None)
    callback = getattr(context, "callback", None)
    if callback is None:
        closure = getattr(compiled, "__closure__", None)
        names = getattr(getattr(compiled, "__code__", None), "co_freevars", ())
        if closure and "callback" in names and hasattr(compiled, "_torchdynamo_orig_callable"):
            callback = closure[names.index("callback")].cell_contents
    return innermost_backend(callback) if callback not in (None, False) else None


def _region_of(module: Any) -> Any:
    """Return the compiled call of a block that `serve_warm.compile_regions` compiled, or `None`."""
    calls = (vars(block).get("_compiled_call_impl") for block in module.modules())
    return next((call for call in calls if isinstance(call, HandedOver)), None)


def _methods_of(module: Any) -> list[Any]:
    """Return compiled functions that replace a module's methods.

    Guides for decoder models recommend such replacements:

        model.forward = torch.compile(model.forward, mode="reduce-overhead")
    """
    if hasattr(module, "dynamo_ctx"):  # torch.compile's wrapper also replaces `forward`
        return []
    return [
        value
        for name, value in vars(module).items()
        if _find_dispatcher(value) is not None
        # Dynamo also marks functions that must not be compiled. Such functions have no backend.
        or (
            inspect.isroutine(value)
            and hasattr(type(module), name)
            and hasattr(value, "_torchdynamo_orig_callable")
        )
    ]
