# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An entry's function: its graph, with checks of the tensors that guards do not cover."""

from __future__ import annotations

import random
import traceback
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING

import torch

from serve_warm.precompile.calls.apart import ApartInMemory
from serve_warm.precompile.calls.copies import copy_outputs
from serve_warm.precompile.calls.forms import WrapsCode, innermost
from serve_warm.precompile.calls.torch_state import refuse_unusual, tensor_check
from serve_warm.precompile.facts.names import describe_tensor
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import Plan
from serve_warm.precompile.facts.tensor_parts import Whole, has_parts
from serve_warm.private_apis import dynamo

if TYPE_CHECKING:
    from serve_warm.private_apis.dynamo_objects import CompiledEntry

FindCopies = Callable[[Sequence[object], Sequence[object]], Sequence[int]]
"""Takes the arguments and outputs of a graph's first run, and returns the outputs to copy."""


class _CheckedGraph:
    """The compiled graph of an entry.

    The graph runs only on tensors that are like the tensors of the build.

    The dispatcher checks the arguments at each call, but it checks weights only when it binds the
    callable. Later changes to weights, such as `.data =` or `torch.func.functional_call`, can go
    unnoticed, and compiled code does not check its inputs. So, like Dynamo's guards, this class
    checks all tensors at each call.
    """

    def __init__(
        self,
        compiled: Callable[..., Sequence[object]],
        plan: Plan,
        *,
        writes: bool,
        captures: bool,
        find_copies: FindCopies | None = None,
    ) -> None:
        self._compiled = compiled
        self._plan = plan
        self._copies: Sequence[int] = plan.get("copies", ())
        self._find_copies = find_copies
        self._begin_generation = dynamo.begin_generation() if captures else None
        self.writes = writes
        """Whether the graph writes into its inputs. If so, no two inputs may overlap."""
        self.input_ids: frozenset[int] = frozenset()
        """Ids of the tensors in the last run that created a new check. Read these ids directly
        after that run."""
        self._checks: tuple[Callable[..., bool], ...] = ()
        self._apart = ApartInMemory()

    def __call__(self, *args: object) -> Sequence[object]:
        if not any(same(*args) for same in self._checks):
            self._learn(args)
        if self.writes:
            self._apart.check(args)
        if self._begin_generation is not None:
            self._begin_generation()
        outputs = self._compiled(*args)
        if self._find_copies is not None:
            find, self._find_copies = self._find_copies, None
            self._copies = find(args, outputs)
        return copy_outputs(outputs, self._copies) if self._copies else outputs

    def _learn(self, args: Sequence[object]) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        dynamic = len(tensors) < len(args)  # sizes are among the inputs
        self._apart.has_fixed_sizes = not dynamic
        for tensor in tensors:
            if not has_parts(tensor):
                refuse_unusual(tensor)
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            raise NoEntry("two tensors of its graph are now the same tensor")
        every = [(range(t.dim()), range(t.dim())) if dynamic else ((), ()) for t in tensors]
        whole = Whole(tensors)
        if dynamic and whole.parts:
            raise NoEntry(
                "its sizes are dynamic, and an input of its graph is composed of other tensors"
            )
        for part in whole.parts:
            refuse_unusual(part)
        if len({id(part) for part in whole.parts}) < len(whole.parts):
            raise NoEntry("two tensors of its graph contain the same inner tensor")
        texts = (describe_tensor(t, free=free) for t, free in zip(tensors, every, strict=True))
        try:
            said = [*texts, *whole.describe(tensors)]
        except TypeError as error:
            raise NoEntry(f"a tensor of its graph cannot be described: {error}") from error
        known = self._plan.setdefault("tensors", said)
        if said != known:
            pairs = zip(said, known)  # noqa: B905 - lengths differ if a tensor is gone
            now, was = next((pair for pair in pairs if pair[0] != pair[1]), (said, known))
            raise NoEntry(f"a tensor that its graph reads is {now}, but was {was} in the build")
        self.input_ids = frozenset(map(id, tensors))
        # The check distinguishes inference tensors from others, but the code treats both the same.
        self._checks = (
            _of_tensors(
                tensor_check(
                    [*tensors, *whole.parts], free=dict(enumerate(every)) if dynamic else None
                ),
                dynamic=dynamic,
                whole=whole,
            ),
            *self._checks[:3],
        )


_graphs: weakref.WeakKeyDictionary[Callable[..., object], _CheckedGraph] = (
    weakref.WeakKeyDictionary()
)
"""The graph of each entry's function."""


def _graph_of(fn: Callable[..., object]) -> _CheckedGraph | None:
    code = innermost(fn)
    return _graphs.get(code) if isinstance(code, FunctionType) else None


def inputs_of(fn: Callable[..., object]) -> frozenset[int]:
    """Return the ids of the tensors that a function's graph received in its first run.

    Call this right after that run, while the tensors still exist.
    """
    found: frozenset[int] = getattr(_graph_of(fn) or innermost(fn), "input_ids", frozenset())
    return found


def may_run_again(fn: Callable[..., object], error: BaseException) -> bool:
    """Return whether other code may run a call after the entry for this call raised an error.

    Before a graph runs, the bytecode around it looks up modules and attributes. If one of these no
    longer exists, other code can run the call. An error in the graph itself is the call's result.
    If a graph writes into its inputs, other code must not run the call, because the graph might
    have written before the error.
    """
    if writes(fn):
        return False
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return _CheckedGraph.__call__.__code__ not in frames


def writes(fn: Callable[..., object]) -> bool:
    """Return whether an entry writes into its inputs or buffers; true if unknown."""
    graph = _graph_of(fn)
    return graph is None or graph.writes


def _of_tensors(check: Callable[..., bool], *, dynamic: bool, whole: Whole) -> Callable[..., bool]:
    if whole.parts:

        def check_parts(*args: torch.Tensor) -> bool:
            parts = whole.read_same(args)
            return parts is not None and check(*args, *parts)

        return check_parts
    if not dynamic:
        return check
    return lambda *args: check(*(arg for arg in args if isinstance(arg, torch.Tensor)))


def with_checks(
    entry: CompiledEntry, plan: Plan, find_copies: FindCopies | None = None
) -> Callable[..., object]:
    """Return an entry's function, which runs the checks of `_CheckedGraph` before the graph.

    In a build, the first run calls `find_copies` with the graph's arguments and outputs, to find
    the outputs that each run copies.
    """
    name = dynamo.graph_name(entry)
    compiled = entry.fn.__globals__[name]
    inputs = compiled.compiled_fn.serialize().runtime_metadata.input_info
    writes = any(info.mutates_data or info.mutates_metadata for info in inputs)
    captures = bool(plan.get("settings"))
    fn = entry.fn
    _graphs[fn] = entry.fn.__globals__[name] = _CheckedGraph(
        compiled, plan, writes=writes, captures=captures, find_copies=find_copies
    )
    return _Undrawing(fn) if plan.get("numbers") else fn


class _Undrawing(WrapsCode):
    """An entry's code, which leaves Python's generator unchanged if the entry refuses a call.

    The code around a graph draws numbers before the graph checks its tensors. If a check fails,
    other code runs the call and draws the numbers again.
    """

    def __call__(self, callee: object, /, *tensors: torch.Tensor) -> object:
        """Run the entry."""
        before = random.getstate()
        try:
            return self._fn(callee, *tensors)
        except (NoEntry, LookupError, AttributeError) as error:
            if isinstance(error, NoEntry) or may_run_again(self._fn, error):
                random.setstate(before)
            raise
