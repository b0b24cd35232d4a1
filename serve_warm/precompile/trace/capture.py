# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation of one function for one input. For builds. Starts use `pickles`.

`torch.compile(f, fullgraph=True).aot_compile(...)` returns one graph, the bytecode around the
graph, and a guard check. The result can be pickled, except for its guards. This module returns the
guards' content as facts, which the caller checks (`facts.table`, `dispatch.dispatcher`).

Seen in torch 2.13:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/aot_compile.py
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from serve_warm.precompile.calls.compile_options import CAPTURES, captures, options_of
from serve_warm.precompile.calls.python_random import read_draws, unchanged
from serve_warm.precompile.facts.names import locate, source_file
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import Plan
from serve_warm.precompile.facts.source_files import file_digest
from serve_warm.precompile.facts.tensor_parts import classes_of
from serve_warm.precompile.facts.torch_errors import FAILURES, enable_aot_compile
from serve_warm.precompile.trace import guard_facts, set_orders
from serve_warm.precompile.trace.captured import Captured
from serve_warm.precompile.trace.dynamo_hooks import all_guarded, mark_of
from serve_warm.precompile.trace.guards import Guard, guard_from
from serve_warm.precompile.trace.kernel_code import add_code_of_inductor
from serve_warm.precompile.trace.subclass_hooks import has_own_hooks
from serve_warm.private_apis import dynamo

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import CompiledEntry, GuardEntry

OWN_SOURCES = ("torch", "builtins", "serve_warm")
"""Packages whose code is not hashed: the fingerprint already contains their versions and builds.
serve_warm's own code is not part of a graph."""


def capture(
    function: Callable[..., object],
    callee: object,
    tensors: Sequence[torch.Tensor],
    arguments: Mapping[str, object],
    *,
    has_plan: bool = False,
) -> Captured:
    """Trace `function(callee, *tensors)`, and compile its graph with the backend in `arguments`.

    With `has_plan`, a plan replaces the code around the graph, so the facts also cover the objects
    that this code reads.

    Does not convert torch's exceptions, so call this function inside `as_reasons()`.
    """

    def trace(settings: Mapping[str, object], into: set_orders.Orders) -> tuple[Captured, bool]:
        return _restarting(lambda: _capture(function, callee, tensors, settings, into, has_plan))

    orders = set_orders.Orders()
    captured, is_complete = trace(arguments, orders)
    if not is_complete:
        # torch took the graph from its cache, so the code of its tensor subclasses did not run.
        # Compile again with a new cache key, which causes a miss. Do not turn the cache off,
        # because torch would then have nothing to write to a file.
        config: Any = torch.compiler.config
        with config.patch(cache_key_tag=f"{config.cache_key_tag}{uuid.uuid4()}"):
            captured, _ = trace(arguments, orders)
    if not orders.sets:
        return captured

    def trace_again(backend: Callable[..., object], others: set_orders.Orders) -> Captured:
        return trace({"backend": backend, "dynamic": arguments.get("dynamic")}, others)[0]

    return set_orders.join_orders(captured, orders, trace_again, callee, tensors)


RESTARTS = 20
"""Maximum number of times that one call is traced. Each trace learns one thing from the trace
before it, such as a size that must be a constant."""


def _restarting(ask: Callable[[], tuple[Captured, bool]]) -> tuple[Captured, bool]:
    """Return the result of a capture; capture again if torch requests a new trace.

    torch can request a new trace while it compiles the graph. torch.compile then makes a new trace.
    In torch 2.11 to 2.13, ahead-of-time compilation ignores such requests, because it compiles the
    graph only after tracing has ended.
    """
    restart_class = dynamo.restart_class()
    for _ in range(RESTARTS):
        try:
            return ask()
        except restart_class as restart:
            why = getattr(restart, "restart_reason", None) or type(restart).__name__
    raise RuntimeError(f"the trace restarted {RESTARTS} times: {why}")


def _capture(  # noqa: PLR0917 - each is a part of one call
    function: Callable[..., object],
    callee: object,
    tensors: Sequence[torch.Tensor],
    arguments: Mapping[str, object],
    orders: set_orders.Orders,
    has_plan: bool,  # noqa: FBT001 - passed on by `capture`
) -> tuple[Captured, bool]:
    """Return the graph, and whether all code of its tensor subclasses is known."""
    guards: list[Guard] = []
    conditions: list[str] = []

    def take_all(entries: Sequence[GuardEntry]) -> list[bool]:
        # torch calls this function once with all guards, while their objects still exist. The
        # result drops every guard.
        guards.extend(map(guard_from, entries))
        for entry in entries:
            if entry.guard_type == "SHAPE_ENV":
                conditions.extend(entry.orig_guard.code_list or ())
        return [False] * len(entries)

    # Floats become constants of the graph. A float in the arguments is part of the signature, and
    # any other float is a fact. With a dynamic float, `dynamic=True` fails in torch's pass that
    # puts floats into tensors (2.13).
    with enable_aot_compile(), _settings_of_trace(), all_guarded(orders.begin) as unguarded:
        settings = _with_filter({**arguments, "fullgraph": True}, take_all)
        compiled: Any = torch.compile(function, **settings)
        try:
            entry: CompiledEntry = compiled.aot_compile(((callee, *tensors), {}))
        except FAILURES as error:
            if unguarded.refusals:  # the trace may fail for this reason
                raise NoEntry(unguarded.refusals[0]) from error
            raise
    if unguarded.refusals:
        raise NoEntry(unguarded.refusals[0])
    dispatched = unguarded.dispatched
    has_hooks = bool(dispatched.codes)
    add_code_of_inductor(dispatched)
    captured = Captured(
        entry=entry,
        facts=guard_facts.collect(
            [*guards, *unguarded.guards],
            callee,
            names=_aliases(entry),
            scopes={a: id(v) for a, v in entry.fn.__globals__.items() if type(v) is dict},
            marked=mark_of,
            results=unguarded.results,
            lookups=unguarded.lookups,
            returned=unguarded.returned if has_plan else {},
            functions=unguarded.functions,
            globals_read=dispatched.globals_read(),
        ),
        conditions=(*conditions, *guard_facts.conditions_of([*guards, *unguarded.guards])),
        sources=_sources(entry, dispatched.modules()),
        plan={**_settings_at_load(arguments), **_numbers(entry)},
    )
    with_parts = [guard.value for guard in guards if guard.kind == guard_facts.OF_PARTS]
    needs_code = any(has_own_hooks(each) for value in with_parts for each in classes_of(value))
    return captured, has_hooks or not needs_code


def _aliases(entry: CompiledEntry) -> dict[str, tuple[str, str]]:
    """Return the module and qualified name of each object in the globals of compiled code."""
    found = {alias: (name, "") for alias, name in dynamo.imports_of(entry).items()}
    for alias, value in entry.fn.__globals__.items():
        if alias not in found and (place := locate(value)) is not None:
            found[alias] = place
    return found


def _settings_at_load(arguments: Mapping[str, object]) -> Plan:
    """Return the CUDA-graph setting if it is on; an entry itself does not store this setting.

    torch (2.11 to 2.13) reads this setting each time it assembles a loaded entry
    (`_functorch/_aot_autograd/aot_autograd_result.py`).
    """
    return {"settings": {CAPTURES: True}} if captures(arguments) else {}


@contextlib.contextmanager
def _settings_of_trace() -> Iterator[None]:
    # Recurrent layers are allowed, because `trace.dynamo_hooks` limits the number of their steps.
    # While Dynamo traces, it draws an example of each number from Python's generator.
    with unchanged(), dynamo.patched_settings(specialize_float=True, allow_rnn=True):
        yield


def _with_filter(
    arguments: Mapping[str, object], take_all: Callable[[Sequence[GuardEntry]], list[bool]]
) -> dict[str, Any]:
    """Replace `mode` with the options of that mode, then add a guard filter to `options`."""
    given = {k: v for k, v in arguments.items() if k not in ("mode", "options", "recompile_limit")}
    return {**given, "options": {**options_of(arguments), "guard_filter_fn": take_all}}


def _numbers(entry: CompiledEntry) -> Plan:
    """Return the numbers that a call draws from Python's `random` module."""
    names = dynamo.external_references(entry)
    found = {name: read_draws(entry.fn.__globals__.get(name)) for name in sorted(names)}
    numbers = {name: draws for name, draws in found.items() if draws is not None}
    return {"numbers": numbers} if numbers else {}


def _sources(entry: CompiledEntry, more: Collection[str]) -> dict[str, str]:
    """Return digests of the files that contain the graph's code, except torch's and Python's files.

    `more` names other modules whose code is in the graph.
    """
    names = {*more, *(source.module for source in entry.source_info().inlined_sources)}
    files = {name: source_file(name) for name in names}
    library = str(Path(contextlib.__file__).parent)
    return {
        name: file_digest(name)
        for name, file in sorted(files.items())
        if name.partition(".")[0] not in OWN_SOURCES
        and file
        and (not file.startswith(library) or "site-packages" in file)
    }
