# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The function of an entry: its graph, and what the graph needs of tensors that no guard has."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

from serve_warm.precompile.call_checks import refuse_unusual, tensor_check
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import describe_tensor


class Plan(TypedDict, total=False):
    """How the code of an entry is loaded and called, as it is stored beside the code."""

    once: str
    """Why its calls may not run twice, empty if they may."""
    settings: dict[str, Any]
    """Of level 2: settings of Inductor that it is loaded under, where there are any."""
    sha256: str
    """Of level 3, as all below: the digest of the library."""
    inputs: list[dict[str, Any]]
    """Where each input comes from, and what it was like (`aoti_library.Input`)."""
    outputs: int
    result: list[Any]
    """What is made of the outputs."""
    writes: bool
    """Whether it writes into its inputs."""
    draws: bool
    """Whether it uses random numbers."""
    device: str
    """Of a library that is not for the CPU."""
    captures: str
    """Why it is not captured in a CUDA graph, empty if it is; not there where nobody asked."""


class _Graph:
    """The compiled graph of an entry. It runs on tensors like those of its first run only.

    The dispatcher has looked at the arguments, and at the weights when it was bound. Weights can be
    exchanged since without a trace (`.data =`, `torch.func.functional_call`), and compiled code
    reads what it gets as what it expects. Dynamo's guards look at all of them at each call, too.
    """

    def __init__(self, compiled: Callable[..., Any], *, writes: bool, captures: bool) -> None:
        self._compiled = compiled
        self._generations: Any = None
        if captures:
            from torch._dynamo.mutation_guard import GenerationTracker

            self._generations = GenerationTracker
        self.writes = writes
        """Whether it writes into its inputs: then none of them may overlap another."""
        self.input_ids: frozenset[int] = frozenset()
        """Of the tensors of its last run with new ones, for whoever asks right after it."""
        self._known: list[tuple[str, ...]] = []
        self._checks: tuple[Callable[..., bool], ...] = ()

    def __call__(self, *args: Any) -> Any:
        if not any(same(*args) for same in self._checks):
            self._learn(args)
        if self.writes:
            refuse_overlap(args)
        if self._generations is not None:
            # As torch.compile does at each call: what the one before returned is over. While it is
            # kept, each call would be taken for the next part of the one before, and captured.
            self._generations.generation += 1
        return self._compiled(*args)

    def _learn(self, args: Sequence[Any]) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        dynamic = len(tensors) < len(args)  # sizes are among the inputs
        for tensor in tensors:
            refuse_unusual(tensor)
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            raise NoEntry("two of the tensors in its graph are one and the same now")
        every = [(range(t.dim()), range(t.dim())) if dynamic else ((), ()) for t in tensors]
        said = tuple(describe_tensor(t, free=free) for t, free in zip(tensors, every, strict=True))
        if self._known and said not in self._known:
            pairs = zip(said, self._known[0])  # noqa: B905 - of different lengths where one is gone
            now, was = next((pair for pair in pairs if pair[0] != pair[1]), (said, self._known[0]))
            raise NoEntry(f"a tensor that its graph finds by itself is {now}, and was {was}")
        self._known = [said]
        self.input_ids = frozenset(map(id, tensors))
        # Inference tensors and others are told apart by the check, and are one to the code.
        self._checks = (
            _of_tensors(
                tensor_check(tensors, free=dict(enumerate(every)) if dynamic else None),
                dynamic=dynamic,
            ),
            *self._checks[:3],
        )


def _graph_of(fn: Callable[..., Any]) -> _Graph | None:
    found = getattr(fn, "__globals__", {}).values()
    return next((value for value in found if isinstance(value, _Graph)), None)


def inputs_of(fn: Callable[..., Any]) -> frozenset[int]:
    """Return the ids of the tensors that the graph of a function took in its first run.

    To be asked right after that run, while the tensors live.
    """
    found: frozenset[int] = getattr(_graph_of(fn) or fn, "input_ids", frozenset())
    return found


def may_run_again(fn: Callable[..., Any], error: BaseException) -> bool:
    """Return whether the call in which an entry raised can be made by other code instead.

    The bytecode around a graph looks up modules and attributes before it, and may not find one that
    was there. What the graph raises is the call's own answer, and a graph that writes into its
    inputs may have done so by the time that something after it raised.
    """
    if writes(fn):
        return False
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return _Graph.__call__.__code__ not in frames


def writes(fn: Callable[..., Any]) -> bool:
    """Return whether an entry writes into its inputs, buffers included; true if that is unknown."""
    graph = _graph_of(fn)
    return graph is None or graph.writes


def _of_tensors(check: Callable[..., bool], *, dynamic: bool) -> Callable[..., bool]:
    if not dynamic:
        return check
    return lambda *args: check(*(arg for arg in args if isinstance(arg, torch.Tensor)))


def refuse_overlap(args: Sequence[Any]) -> None:
    """Raise `NoEntry` where two tensors share memory; a few µs where each has its own."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.numel()]
    spans = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        spans.append((start, start + storage.nbytes()))
    if not _meet(spans):
        return
    # Parts of one storage, as caches are: from the first element to the last.
    spans = []
    for tensor in tensors:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((start, start + (last + 1) * tensor.element_size()))
    if _meet(spans):
        raise NoEntry("it writes into a tensor that overlaps another one in memory")


def _meet(spans: list[tuple[int, int]]) -> bool:
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            return True
        end = stop
    return False


def with_checks(entry: Any, plan: Plan) -> Callable[..., Any]:
    """Return the function of an entry with its graph behind the checks above."""
    name = entry._artifacts.backend_id
    compiled = entry.fn.__globals__[name]
    inputs = compiled.compiled_fn.serialize().runtime_metadata.input_info
    writes = any(info.mutates_data or info.mutates_metadata for info in inputs)
    captures = bool(plan.get("settings"))
    entry.fn.__globals__[name] = _Graph(compiled, writes=writes, captures=captures)
    fn: Callable[..., Any] = entry.fn
    return fn
