# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs for libraries (level 3). Inductor does not capture these graphs, so serve_warm does.

As in torch's graph trees, each thread captures its own graphs, and each call copies its tensors to
the addresses that the graph reads. Unlike in torch's graph trees, a call returns a copy of the
result, so later calls cannot overwrite the result.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from serve_warm._records import record
from serve_warm.compiler import cuda_graphs
from serve_warm.inputs import InputSignature
from serve_warm.precompile.calls.apart import Addresses, addresses_of

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Native code that takes the input tensors and returns the output tensors."""


class Code(Protocol):
    """Native code that several threads can run."""

    def __call__(self, inputs: Sequence[torch.Tensor], /) -> Sequence[torch.Tensor]:
        """Run the code on the given tensors, and return the outputs."""

    def reserve(self) -> contextlib.AbstractContextManager[Run]:
        """Yield a function that runs the code and that no other thread uses during the block."""


MOST_CAPTURES = 64
"""Maximum number of graphs that one library keeps for the same weights in a thread. Above this
number, a new graph replaces the least recently launched graph."""

Layouts = tuple[tuple[torch.Size, tuple[int, ...]], ...]
"""The sizes and strides of a call's tensors."""

Key = tuple[int, Addresses, Layouts]
"""A kind of call: the stream, the weights' addresses, and the sizes and strides of the tensors."""


class _Pool:
    """Memory that graphs share, and an empty graph that keeps the memory allocated.

    Without the empty graph, torch refuses all captures after the pool's last graph has been freed
    (`use_count > 0`). torch's graph trees keep their pools in the same way (2.11 to 2.15):
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
    """

    def __init__(self) -> None:
        """Create a pool on the current device."""
        cuda: Any = torch.cuda
        self.handle = cuda.graph_pool_handle()
        # One stream per pool: cuBLAS keeps a workspace for each stream that it is captured on, and
        # only graphs of the same pool are sure to run one after another.
        self._stream = cuda.Stream()
        self._kept_by: torch.cuda.CUDAGraph | None = None

    def keep(self) -> None:
        empty = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with cuda_graphs.count_elsewhere(), self.capturing(empty):
                pass
        self._kept_by = empty

    def capturing(self, graph: torch.cuda.CUDAGraph) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the work that this thread queues is captured into `graph`."""
        cuda: Any = torch.cuda
        block: contextlib.AbstractContextManager[None] = cuda.graph(
            graph,
            pool=self.handle,
            stream=self._stream,
            # As in graph trees, other threads are allowed to allocate memory during the capture.
            capture_error_mode="thread_local",
        )
        return block


class Pools(threading.local):
    """The memory pools of each thread's graphs."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, int], _Pool] = {}
        """Maps a device and a stream to the pool for graphs that are launched there. Work on one
        stream runs in order, so it can share memory."""


POOLS = Pools()
"""The pools that all libraries of this process share."""


class Graphed:
    """Native code that runs as a CUDA graph, except in the first call of each kind.

    A kind consists of a stream, the weights' addresses, and the sizes and strides of the call's
    tensors. The first call runs the code directly. The direct run loads and selects kernels, which
    a capture cannot do. Then the call is captured. The capture itself runs nothing, so the call's
    writes happen only once. Modules of the same structure share the code, and each call uses its
    module's weights.
    """

    def __init__(self, code: Code, *, device: str, brought: Sequence[int], inputs: int) -> None:
        """`brought` lists the inputs that come from the call. The other inputs are weights."""
        self._code = code
        self._device = device
        self._brought = tuple(brought)
        self._fixed = tuple(index for index in range(inputs) if index not in self._brought)
        self._of_weights = _picker(self._fixed)
        self._stream = cuda_graphs.reader_of_stream(device)
        self._local = threading.local()

    def __call__(
        self, inputs: Sequence[torch.Tensor], addresses: Addresses | None = None
    ) -> Sequence[torch.Tensor]:
        """Run the code or its graph on the given tensors, and return the outputs.

        `addresses` has the addresses of the inputs, if the caller has read these addresses.

        Raises:
            RuntimeError: the code failed.
        """
        if cuda_graphs.is_under_way():
            return self._code(inputs)  # becomes a part of the graph under capture
        stream = self._stream()
        like = tuple([(inputs[index].shape, inputs[index].stride()) for index in self._brought])
        if addresses is None:
            addresses = addresses_of(inputs)
        call = (stream, like, addresses)
        mine = vars(self._local)
        latest: _Latest | None = mine.get("latest")
        if latest is not None and latest.call == call:
            return latest.launch(inputs)
        key = (stream, self._of_weights(addresses), like)
        kept: dict[Key, _KeptGraph] = mine.setdefault("kept", {})
        mine["latest"] = None
        found = kept.pop(key, None)
        if found is None:
            if "never" in mine:
                return self._code(inputs)
            # Reserve the model until the capture has ended. If another thread used this model
            # meanwhile, the capture would need a new model, which would load its kernels inside the
            # capture.
            with self._code.reserve() as run:
                outputs = run(inputs)
                moved = sum(
                    (other[0], other[2]) == (key[0], key[2]) and each.weights_are_gone()
                    for other, each in kept.items()
                )
                _make_room(kept, key)
                launch = self._capture(run, inputs, outputs, stream, moved=moved)
                weights = [(weakref.ref(inputs[i]), inputs[i].data_ptr()) for i in self._fixed]
                kept[key] = _KeptGraph(launch=launch, weights=weights)
            return outputs
        kept[key] = found  # moved to the end, so that it is freed last
        mine["latest"] = _Latest(call=call, launch=found.launch)
        return found.launch(inputs)

    def _capture(
        self,
        run: Run,
        inputs: Sequence[torch.Tensor],
        like: Sequence[torch.Tensor],
        stream: int,
        *,
        moved: int,
    ) -> Run:
        """Return a function that launches the graph for calls like this one.

        `like` has this call's outputs. If the code cannot be captured, the code itself is returned.
        """
        if any(map(overlaps_itself, like)):
            return self._never(
                "its output is an expanded tensor, and values cannot be copied into such a tensor"
            )
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
                # Do this outside the handler: the traceback there keeps all allocated memory alive.
                cuda_graphs.free_memory()
        cuda_graphs.note_skip(reason)
        return self._code

    def _attempt(self, run: Run, inputs: Sequence[torch.Tensor], stream: int, *, moved: int) -> Run:
        """Capture a call like this one, and return the function that launches the graph.

        Raises:
            RuntimeError: the call cannot be captured.
        """
        brought = {f"input {index}": inputs[index] for index in self._brought}
        reason = (
            f"captured again (earlier captures: {moved}): the weights have moved to new addresses"
            if moved
            else ""
        )
        signature = str(InputSignature.of(brought))
        pools, place = POOLS.by_place, (self._device, stream)
        # These contexts restore the device and the stream; a failed capture does not.
        with torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            try:
                # Make no inference tensors: calls with any grad mode must be able to write to the
                # graph's tensors.
                with torch.inference_mode(mode=False), torch.no_grad(), cuda_graphs.alone():
                    given = list(inputs)
                    for index in self._brought:
                        tensor = inputs[index]
                        # Keep the strides, because the code was compiled for them.
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

        def launch(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            for index, tensor in own:
                tensor.copy_(inputs[index])
            graph.replay()
            return [
                output.new_empty_strided(output.shape, output.stride()).copy_(output)
                for output in outputs
            ]

        return launch

    def _never(self, reason: str) -> Run:
        """Return the code, and stop capturing in this thread, because every capture would fail."""
        cuda_graphs.note_skip(reason)
        vars(self._local)["never"] = reason
        return self._code

    def _recover(self, place: tuple[str, int]) -> None:
        """Replace the pool after a failed capture. Existing graphs keep the old pool.

        torch cannot capture into a pool after a broken capture. Until a capture succeeds, torch's
        random number generator acts as if a capture were running. Capturing the new pool's empty
        graph ends this state.
        """
        pools = POOLS.by_place
        failed = pools.pop(place, None)
        if failed is None:
            return
        cuda_graphs.end_broken(torch.cuda.current_device(), failed.handle)
        pool = _Pool()
        with contextlib.suppress(RuntimeError), cuda_graphs.alone():
            pool.keep()
            pools[place] = pool


@record(frozen=True, kw_only=True)
class _KeptGraph:
    """A graph, and the weights that it reads."""

    launch: Run
    weights: Sequence[tuple[weakref.ref[torch.Tensor], int]]

    def weights_are_gone(self) -> bool:
        """Return whether a weight has moved from the address that the graph reads."""
        found = ((weight(), address) for weight, address in self.weights)
        return any(weight is None or weight.data_ptr() != address for weight, address in found)


@record(frozen=True, kw_only=True)
class _Latest:
    """The graph that a thread launched last.

    Most calls are like the previous call. Comparing hundreds of addresses takes less time than
    hashing them.
    """

    call: tuple[int, Layouts, Addresses]
    """The stream, the sizes and strides of the call's tensors, and the addresses of all inputs."""
    launch: Run


def _picker(indexes: Sequence[int]) -> Callable[[Addresses], Addresses]:
    """Return a function that picks the items at `indexes` from a tuple."""
    if len(indexes) < 2:  # one index would return an item and no tuple
        return lambda items: tuple(items[index] for index in indexes)
    pick: Callable[[Addresses], Addresses] = operator.itemgetter(*indexes)
    return pick


def _make_room(kept: dict[Key, _KeptGraph], key: Key) -> None:
    """Free a graph if this thread keeps too many graphs.

    Frees the least recently launched graph for the same weights, or a graph whose weights moved.

    A valid graph of another module is never freed. With more than `MOST_CAPTURES` modules, each
    call might otherwise free a graph that a later call needs.
    """
    own = [other for other in kept if other[1] == key[1]]
    if len(own) >= MOST_CAPTURES:
        del kept[own[0]]
    elif len(kept) >= MOST_CAPTURES:
        gone = (other for other, each in kept.items() if each.weights_are_gone())
        kept.pop(next(gone, key), None)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor share memory, as after `expand`."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and not step for size, step in sizes)
