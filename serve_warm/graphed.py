# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of libraries (level 3), which come without those of Inductor.

As with torch's own, each thread captures for itself, and a call's tensors are copied to where the
graph reads them. Otherwise than with those, what is returned is a copy and stays right.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from serve_warm import graphs
from serve_warm.inputs import InputSignature

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Native code: tensors in, tensors out."""

MOST_CAPTURES = 64
"""Graphs that one library keeps in a thread. One more, of a dynamic size, frees the oldest."""


class _Pool:
    """Memory that graphs share, and an empty graph that keeps it.

    Without one torch refuses all that are captured after the last of the pool's graphs is gone
    (`use_count > 0`; 2.0 to 2.13). Its own graph trees keep theirs in the same way.
    """

    def __init__(self, stream: Any) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.keep(stream)

    def keep(self, stream: Any) -> None:
        """Capture the empty graph, on `stream`.

        After a capture that failed it is the one that ends well: until then torch's random numbers
        believe that they are being captured.
        """
        empty = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with self.capturing(empty, stream):
                pass
        self._kept_by = empty

    def capturing(self, graph: Any, stream: Any) -> contextlib.AbstractContextManager[None]:
        """Capture what is queued in the block, by this thread, into `graph`."""
        cuda: Any = torch.cuda
        block: contextlib.AbstractContextManager[None] = cuda.graph(
            graph,
            pool=self.handle,
            stream=stream,
            # As graph trees do: what another thread allocates meanwhile is no error.
            capture_error_mode="thread_local",
        )
        return block


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pools: dict[int, _Pool] = {}
        """One for the graphs of all libraries, by the stream that they are launched on: what runs
        on one stream runs one after another, so that they may use the same memory."""
        self.streams: dict[Any, Any] = {}
        """What is captured on, by device: torch's own is one for all threads."""


_of_thread = _OfThread()

_one_at_a_time = threading.Lock()
"""Captures may not overlap (`torch.cuda.graph`), and torch's own hold no lock before 2.13."""


class Graphed:
    """Native code that is captured at the first call of a kind, and launched from the second on.

    A kind is a stream, the addresses of weights, and the sizes of what a call brings. The first
    call runs the code as it is, which also loads and chooses what no capture could; so what it
    writes is written once.
    """

    def __init__(self, run: Run, *, device: str, brought: Sequence[int], inputs: int) -> None:
        """Take the code, and which of its inputs are the call's own; the others are weights."""
        self._run = run
        self._device = device
        self._brought = tuple(brought)
        self._fixed = tuple(index for index in range(inputs) if index not in self._brought)
        self._local = threading.local()

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run on tensors as they are, and return the outputs.

        Raises:
            RuntimeError: it failed.
        """
        stream = torch.cuda.current_stream(self._device).cuda_stream
        sizes = tuple([inputs[index].shape for index in self._brought])
        key = (stream, sizes, tuple([inputs[index].data_ptr() for index in self._fixed]))
        kept: dict[Any, Run] = vars(self._local).setdefault("kept", {})
        if key in kept:
            return kept[key](inputs)
        outputs = self._run(inputs)
        while len(kept) >= MOST_CAPTURES:
            kept.pop(next(iter(kept)))
        kept[key] = self._captured(inputs, stream, again=sum(k[:2] == key[:2] for k in kept))
        return outputs

    def _captured(self, inputs: Sequence[Any], stream: int, *, again: int) -> Run:
        """Return the graph for calls like this one; or the code itself, where none can be had."""
        brought = {f"input {index}": inputs[index] for index in self._brought}
        reason = f"captured {again} times before: its weights have moved" if again else ""
        pools, streams = _of_thread.pools, _of_thread.streams
        before = torch.cuda.current_stream(self._device)
        try:
            # Tensors of its own are written into in whatever mode a call is made.
            with torch.inference_mode(mode=False), torch.no_grad():
                given = list(inputs)
                for index in self._brought:
                    tensor = inputs[index]
                    # With its strides, which the code was compiled for.
                    given[index] = tensor.new_empty_strided(tensor.shape, tensor.stride())
                if self._device not in streams:
                    cuda: Any = torch.cuda
                    streams[self._device] = cuda.Stream(self._device)
                on, graph = streams[self._device], torch.cuda.CUDAGraph()
                with (
                    _one_at_a_time,
                    graphs.capturing("a library", str(InputSignature.of(brought)), reason=reason),
                ):
                    if stream not in pools:
                        pools[stream] = _Pool(on)
                    with pools[stream].capturing(graph, on):
                        outputs = self._run(given)
        except RuntimeError as error:
            # What raises at the beginning of a capture, or at its end, does not give it back.
            torch.cuda.set_stream(before)
            if stream in pools:
                graphs.end_broken(before.device_index, pools[stream].handle)
                with _one_at_a_time, contextlib.suppress(RuntimeError):
                    pools[stream].keep(streams[self._device])
            words = str(error).strip().splitlines() or [type(error).__name__]
            graphs.skipped(f"a library cannot be captured: {words[0]}")
            return self._run
        own = [(index, given[index]) for index in self._brought]

        def launch(inputs: Sequence[Any]) -> list[Any]:
            for index, tensor in own:
                tensor.copy_(inputs[index])
            graph.replay()
            return [output.clone() for output in outputs]

        return launch
