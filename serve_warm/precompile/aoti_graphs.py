# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of libraries (level 3), which come without those of Inductor.

As with torch's own, each thread captures for itself, and a call's tensors are copied to where the
graph reads them. Otherwise than with those, what is returned is a copy and stays right.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from serve_warm.compiler import cuda_graphs
from serve_warm.inputs import InputSignature

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Native code: tensors in, tensors out."""


class Code(Protocol):
    """Native code that several threads may run."""

    def __call__(self, inputs: Sequence[Any], /) -> Sequence[Any]:
        """Run on tensors as they are, and return the outputs."""

    def reserved(self) -> contextlib.AbstractContextManager[Run]:
        """Have a run of it that nobody else has for as long as the block lasts."""


MOST_CAPTURES = 64
"""Graphs that one library keeps for the same weights in a thread. One more, of a dynamic size,
frees the one that was not launched for the longest time."""

Key = tuple[Any, ...]
"""A kind of call: its stream, the addresses of weights, and what its tensors are like."""


class _Pool:
    """Memory that graphs share, and an empty graph that keeps it.

    Without one torch refuses all that are captured after the last of the pool's graphs is gone
    (`use_count > 0`). Its own graph trees keep theirs in the same way (2.11 to 2.15):
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
    """

    def __init__(self) -> None:
        """Take the current device."""
        cuda: Any = torch.cuda
        self.handle = cuda.graph_pool_handle()
        # One for each pool: cuBLAS has a workspace for each stream that it is captured on, and
        # graphs of one pool alone are launched one after another.
        self._stream = cuda.Stream()
        self._kept_by: Any = None

    def keep(self) -> None:
        """Capture the empty graph."""
        empty = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with cuda_graphs.count_elsewhere(), self.capturing(empty):
                pass
        self._kept_by = empty

    def capturing(self, graph: Any) -> contextlib.AbstractContextManager[None]:
        """Capture what this thread queues in the block into `graph`."""
        cuda: Any = torch.cuda
        block: contextlib.AbstractContextManager[None] = cuda.graph(
            graph,
            pool=self.handle,
            stream=self._stream,
            # As graph trees do: what another thread allocates meanwhile is no error.
            capture_error_mode="thread_local",
        )
        return block


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pools: dict[tuple[str, int], _Pool] = {}
        """One for the graphs of all libraries, by the device and stream that they are launched on:
        what runs on one stream runs one after another, so that it may use the same memory."""


_of_thread = _OfThread()


class Graphed:
    """Native code that is captured at the first call of a kind, and launched from the second on.

    A kind is a stream, the addresses of weights, and sizes and strides of what a call brings. The
    first call runs the code as it is, which also loads and chooses what no capture could; so what
    it writes is written once. Modules of one structure share the code, each with its weights.
    """

    def __init__(self, code: Code, *, device: str, brought: Sequence[int], inputs: int) -> None:
        """Take the code, and which of its inputs are the call's own; the others are weights."""
        self._code = code
        self._device = device
        self._brought = tuple(brought)
        self._fixed = tuple(index for index in range(inputs) if index not in self._brought)
        self._local = threading.local()

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on tensors as they are, and return the outputs.

        Raises:
            RuntimeError: it failed.
        """
        if cuda_graphs.is_under_way():
            return self._code(inputs)  # becomes a part of that graph
        stream = torch.cuda.current_stream(self._device).cuda_stream
        like = tuple([(inputs[index].shape, inputs[index].stride()) for index in self._brought])
        key = (stream, tuple([inputs[index].data_ptr() for index in self._fixed]), like)
        mine = vars(self._local)
        kept: dict[Key, _Kept] = mine.setdefault("kept", {})
        found = kept.pop(key, None)
        if found is None:
            if "never" in mine:
                return self._code(inputs)
            # Nobody else may have it before it is captured: one that is made in a capture, for
            # want of an idle one, loads its kernels there.
            with self._code.reserved() as run:
                outputs = run(inputs)
                moved = sum(
                    (other[0], other[2]) == (key[0], key[2]) and each.weights_are_gone()
                    for other, each in kept.items()
                )
                _make_room(kept, key)
                launch = self._capture(run, inputs, outputs, stream, moved=moved)
                weights = [(weakref.ref(inputs[i]), inputs[i].data_ptr()) for i in self._fixed]
                kept[key] = _Kept(launch=launch, weights=weights)
            return outputs
        kept[key] = found  # the last one to be freed
        return found.launch(inputs)

    def _capture(
        self, run: Run, inputs: Sequence[Any], like: Sequence[Any], stream: int, *, moved: int
    ) -> Run:
        """Return the graph for calls like this one, whose outputs are `like` these.

        Or the code itself, where no graph can be had.
        """
        if any(map(overlaps_itself, like)):
            return self._never("an output of it is expanded, and cannot be copied")
        handled = sys.exc_info()[1]
        for again in (False, True):
            try:
                return self._attempt(run, inputs, stream, moved=moved)
            except RuntimeError as error:
                short = cuda_graphs.ran_out_of_memory(error)
                reason = f"a library cannot be captured: {cuda_graphs.first_words(error, handled)}"
            if not short:
                return self._never(reason)
            if not again:
                # Not in the handler, whose traceback holds what was allocated until then.
                cuda_graphs.free_memory()
        cuda_graphs.note_skip(reason)
        return self._code

    def _attempt(self, run: Run, inputs: Sequence[Any], stream: int, *, moved: int) -> Run:
        """Capture a call like this one, and return its launch.

        Raises:
            RuntimeError: it cannot be captured.
        """
        brought = {f"input {index}": inputs[index] for index in self._brought}
        reason = f"captured {moved} times before: its weights have moved" if moved else ""
        signature = str(InputSignature.of(brought))
        pools, place = _of_thread.pools, (self._device, stream)
        # Both are given back whatever happens; a capture that fails does not do it.
        with torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            try:
                # Tensors of its own are written into in whatever mode a call is made.
                with torch.inference_mode(mode=False), torch.no_grad(), cuda_graphs.alone():
                    given = list(inputs)
                    for index in self._brought:
                        tensor = inputs[index]
                        # With its strides, which the code was compiled for.
                        given[index] = tensor.new_empty_strided(tensor.shape, tensor.stride())
                    if place not in pools:
                        pools[place] = _Pool()
                        pools[place].keep()
                    graph = torch.cuda.CUDAGraph()
                    with (
                        cuda_graphs.capturing("a library", signature, reason=reason),
                        pools[place].capturing(graph),
                    ):
                        outputs = run(given)
            except RuntimeError:
                self._recover(place)
                raise
        own = [(index, given[index]) for index in self._brought]

        def launch(inputs: Sequence[Any]) -> list[Any]:
            for index, tensor in own:
                tensor.copy_(inputs[index])
            graph.replay()
            return [
                output.new_empty_strided(output.shape, output.stride()).copy_(output)
                for output in outputs
            ]

        return launch

    def _never(self, reason: str) -> Run:
        """Capture nothing more in this thread: what has failed would fail for each size."""
        cuda_graphs.note_skip(reason)
        vars(self._local)["never"] = reason
        return self._code

    def _recover(self, place: tuple[str, int]) -> None:
        """Have another pool after a capture that failed; graphs that live keep theirs.

        Torch takes none into a pool that a broken capture was under way for. The empty graph of
        the new one is also the capture that ends well: until then torch's random numbers believe
        that they are being captured.
        """
        pools = _of_thread.pools
        failed = pools.pop(place, None)
        if failed is None:
            return
        cuda_graphs.end_broken(torch.cuda.current_device(), failed.handle)
        pool = _Pool()
        with contextlib.suppress(RuntimeError), cuda_graphs.alone():
            pool.keep()
            pools[place] = pool


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A graph, and the weights that it reads."""

    launch: Run
    weights: Sequence[tuple[weakref.ref[Any], int]]

    def weights_are_gone(self) -> bool:
        """Return whether one of them is no longer where the graph reads it."""
        found = ((weight(), address) for weight, address in self.weights)
        return any(weight is None or weight.data_ptr() != address for weight, address in found)


def _make_room(kept: dict[Key, _Kept], key: Key) -> None:
    """Free a graph where there are many: the coldest of these weights, or of ones that are gone.

    Not of another module's: with more of them than there may be graphs, each round of calls would
    free what the next one needs.
    """
    own = [other for other in kept if other[1] == key[1]]
    if len(own) >= MOST_CAPTURES:
        del kept[own[0]]
    elif len(kept) >= MOST_CAPTURES:
        gone = (other for other, each in kept.items() if each.weights_are_gone())
        kept.pop(next(gone, key), None)


def overlaps_itself(tensor: Any) -> bool:
    """Return whether elements share memory, as those of an expanded tensor do."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and not step for size, step in sizes)
