# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Parts that torch can trace, in a module that torch cannot trace as a whole.

If torch could not trace a call, the build looks for such parts. The reported reason then suggests
compiling these parts instead. Nothing is compiled here: torch traces each kind of part once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from serve_warm.precompile.aot_compile import capture
from serve_warm.precompile.aot_load import FAILURES, as_reasons
from serve_warm.precompile.call_signature import describe, module_of
from serve_warm.precompile.eager_check import run_on_copies
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.settling_calls import eagerly
from serve_warm.precompile.trace_notes import callable_once

if TYPE_CHECKING:
    import torch

LIMIT_S = 30.0
"""Seconds after which no further part is traced."""

Call = tuple[Sequence[Any], dict[str, Any]]
"""Arguments of a module's first call, by position and by keyword."""


def is_of_trace(failure: NoEntry) -> bool:
    """Return whether a call has no entry because torch could not trace the call into one graph."""
    from torch._dynamo.exc import TorchDynamoException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(failure.__cause__, (TorchDynamoException, GuardOnDataDependentSymNode))


def is_of_forward(failure: NoEntry) -> bool:
    """Return whether a call has no entry at any level, because Dynamo cannot trace its code."""
    from torch._dynamo.exc import Unsupported, UserError

    return isinstance(failure.__cause__, (Unsupported, UserError))


def advise(callee: Any, function: Callable[..., Any], tensors: Sequence[Any]) -> str:
    """Return advice on which parts of a module to compile, or an empty string if there are none.

    Runs the call once more on copies, eagerly, to see how the module's parts are called.
    """
    module = module_of(callee)
    if module is None or not list(module.children()):
        return ""
    try:
        calls = _calls_of_parts(callee, module, function, tensors)
    except FAILURES:  # the call itself fails, and reports its own error
        return ""
    kinds = _without_inner(module, dict.fromkeys(_find(module, calls)))
    names = sorted({kind.__name__ for kind in kinds})
    if not names:
        return ""
    return f"torch can trace these parts of it: serve_warm.compile_regions(model, {names!r})"


def _calls_of_parts(
    callee: Any, module: Any, function: Callable[..., Any], tensors: Sequence[Any]
) -> dict[Any, Call]:
    calls: dict[Any, Call] = {}

    def note(part: Any, args: Any, kwargs: Any) -> None:
        calls.setdefault(part, (args, kwargs))

    parts = [part for part in module.modules() if part is not module and _has_work(part)]
    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts]
    try:
        with eagerly():  # otherwise, entries of other callables would contain the hooks
            run_on_copies(callee, function, tensors)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _has_work(part: Any) -> bool:
    # Compiling a single small layer does not pay off.
    return bool(list(part.children())) or len(list(part.parameters(recurse=False))) > 2


def _find(module: Any, calls: dict[Any, Call]) -> Iterator[type]:
    """Yield the classes of the outermost parts that torch can trace."""
    ends = time.monotonic() + LIMIT_S
    known: dict[type, bool] = {}
    queue = list(module.children())
    while queue:
        part = queue.pop(0)
        kind = type(part)
        if part in calls and kind not in known and time.monotonic() < ends:
            known[kind] = _has_graph(part, *calls[part])
        if part in calls and known.get(kind, False):
            yield kind
        else:
            queue += part.children()


def _has_graph(part: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    try:
        signature, tensors = describe(args, kwargs)
        settings = {"backend": lambda graph, _: callable_once(graph), "dynamic": False}
        with as_reasons():
            capture(signature.function("entry"), part, tensors, settings)
    except NoEntry:
        return False
    return True


def _without_inner(module: torch.nn.Module, kinds: dict[type, None]) -> list[type]:
    """Return the outermost classes in `kinds`.

    A class is left out if one of its objects is inside an object of another class in `kinds`.
    """
    inner = {
        type(below)
        for part in module.modules()
        if type(part) in kinds
        for below in part.modules()
        if below is not part and type(below) is not type(part)
    }
    return [kind for kind in kinds if kind not in inner]
