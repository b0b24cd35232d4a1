# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Gives entries to what an application compiles with torch.compile itself.

In a process of a wrapped application, `torch.compile`, its decorator forms and `Module.compile`
return what `serve_warm.compile` returns. Some calls stay torch's own, and the report says why.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from serve_warm._package import PACKAGE
from serve_warm.compiler.imports import when_imported
from serve_warm.private_apis import patches
from serve_warm.private_apis.cpython import calling_frame
from serve_warm.private_apis.patches import Change
from serve_warm.report import CompiledByApp

SAME_CODE_LIMIT = 16
"""How often the same code may be compiled. An application that compiles a function or a lambda in
each request would otherwise make a dispatcher for each."""

CALLS_KEPT = 256
"""Maximum number of calls of torch.compile that are listed."""


class TakenCalls:
    """The calls of torch.compile in this process, and what became of them."""

    def __init__(self) -> None:
        self.is_for_process = False
        """Whether torch.compile is taken for the life of the process."""
        self.is_late = False
        """Whether the replica is READY: what it compiles now is not warm at the next start."""
        self._calls: list[CompiledByApp] = []
        self._codes: Counter[CodeType] = Counter()
        self._lock = threading.Lock()

    def add(self, target: object, *, left: str = "") -> None:
        """Note a call for this target. `left` says why torch's own torch.compile answers it."""
        with self._lock:
            if len(self._calls) < CALLS_KEPT:
                name = _name_of(target)
                self._calls.append(CompiledByApp(name=name, left=left, late=self.is_late))

    def count(self, code: CodeType) -> int:
        """Count a call for a function with this code, and return the number of calls so far."""
        with self._lock:
            if len(self._codes) < CALLS_KEPT or code in self._codes:
                self._codes[code] += 1
            return self._codes[code]

    def calls(self) -> tuple[CompiledByApp, ...]:
        """Return the calls so far, without repetitions."""
        with self._lock:
            return tuple(dict.fromkeys(self._calls))


TAKEN = TakenCalls()
"""The calls that this process has taken or left."""


def take_compile() -> None:
    """From the import of torch on, give entries to what the application compiles itself.

    Calling this again has no effect.
    """
    when_imported("torch", _take)


@contextlib.contextmanager
def compile_taken() -> Iterator[None]:
    """Give entries to what is compiled in the block, as the import of an application does."""
    import torch  # noqa: F401 - what is taken

    changes = [Change("compile", _wrap_compile), Change("Module.compile", _wrap_module_compile)]
    with patches.replaced([] if TAKEN.is_for_process else changes):
        yield


def _take(_: ModuleType) -> None:
    TAKEN.is_for_process = True
    patches.replace("compile", _wrap_compile)
    patches.replace("Module.compile", _wrap_module_compile)


def _wrap_compile(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def compile(model: Any = None, *args: Any, **arguments: Any) -> Any:  # noqa: A001 - torch's name
        if args or _is_called_by_library():
            return stock(model, *args, **arguments)
        if model is None:
            return functools.partial(compile, **arguments)
        left = _why_left(model, arguments)
        _note(model, left)
        if left:
            return stock(model, **arguments)
        from serve_warm.precompile.compiled import compile as with_entries

        return with_entries(model, **arguments)

    return compile


def _wrap_module_compile(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def compile(self: Any, *args: Any, **arguments: Any) -> Any:  # noqa: A001 - torch's name
        left = "it has positional arguments" if args else _why_left(self, arguments)
        left = left or _why_not_in_place(arguments)
        _note(self, left)
        if left:
            return stock(self, *args, **arguments)
        from serve_warm.precompile.compiled import compile_in_place

        return compile_in_place(self, arguments)

    return compile


def _note(target: object, left: str) -> None:
    # An application may import `compile` by name. Its class is then pickled with the function, and
    # with the globals that the function names: this function, by its name, and not TAKEN.
    TAKEN.add(target, left=left)


def _is_called_by_library() -> bool:
    """Return whether torch itself or serve_warm calls torch.compile."""
    name = str(calling_frame(2).f_globals.get("__name__", ""))
    if name == "torch.compiler":  # its `compile` is another name of torch.compile
        name = str(calling_frame(3).f_globals.get("__name__", ""))
    return f"{name}.".startswith(("torch.", f"{PACKAGE}."))


def _why_left(target: Any, arguments: Mapping[str, Any]) -> str:
    """Return why a call is torch's own; empty if its result gets entries."""
    import torch

    if not isinstance(arguments.get("backend", "inductor"), str):
        return "its backend is a function or object"
    if arguments.get("disable"):
        return "it has disable=True"
    if isinstance(target, torch.nn.Module):
        return ""
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    if code is None:
        return "its target is not a module, a function or a method"
    if TAKEN.count(code) > SAME_CODE_LIMIT:
        return f"the same code was compiled {SAME_CODE_LIMIT} times before, as in each request"
    return ""


def _why_not_in_place(arguments: Mapping[str, Any]) -> str:
    import torch

    if torch.cuda.is_available():
        from serve_warm.precompile.calls.compile_options import captures

        if captures(arguments):
            return "a module that is compiled in place has no entries with CUDA graphs"
    return ""


def _name_of(target: object) -> str:
    from serve_warm.precompile.dispatch.dispatcher import name_of

    if isinstance(target, type) or not callable(target):
        kind = target if isinstance(target, type) else type(target)
        return f"{kind.__module__}.{kind.__qualname__}"
    return name_of(target)
