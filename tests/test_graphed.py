# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs of libraries, with a stand-in for CUDA that notes what a capture is to do at each launch.

On a GPU: tests/gpu/test_on_a_gpu.py.
"""

from __future__ import annotations

import contextlib
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from serve_warm import compiler, graphed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Graph:
    """A graph of CUDA: what is queued while it captures is done at each launch, and not before."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for work in self.queued:
            work()


class Device:
    """Queues work into the graph that captures, or does it."""

    def __init__(self) -> None:
        self.stream = 7
        self.breaks = ""
        self.pools: list[object] = []
        self._captures: Graph | None = None
        self._graphs: dict[object, weakref.WeakSet[Graph]] = {}
        self._under_way: set[object] = set()

    def set_stream(self, stream: Any) -> None:
        self.stream = stream.cuda_stream

    def do(self, work: Callable[[], Any]) -> None:
        if self._captures is None:
            work()
            return
        if self.breaks:
            raise RuntimeError(self.breaks)
        self._captures.queued.append(work)

    @contextlib.contextmanager
    def graph(
        self, graph: Graph, *, pool: object, stream: object, capture_error_mode: str
    ) -> Iterator[None]:
        self.stream, before = 99, self.stream
        # As the allocator does, before anything is captured.
        if pool in self._under_way:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        if not self._graphs.setdefault(pool, weakref.WeakSet([graph])):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self._graphs[pool].add(graph)
        self._under_way.add(pool)
        self._captures = graph
        try:
            yield
        finally:
            self._captures = None
        if graph.queued:
            self.pools.append(pool)
        self._under_way.remove(pool)
        self.stream = before  # as torch 2.11 does: not where the end of a capture raises

    def end(self, index: int, pool: object) -> None:
        """End for the allocator what has broken."""
        if pool not in self._under_way:
            raise RuntimeError("not currently recording to mempool_id")
        assert index == 0
        self._under_way.remove(pool)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", device.graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda _: SimpleNamespace(cuda_stream=device.stream, device_index=0),
    )
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", device.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *_: None, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: object())
    monkeypatch.setattr(torch.cuda, "set_stream", device.set_stream)
    monkeypatch.setattr(graphed, "_of_thread", graphed._OfThread())
    return device


class Scaled:
    """The code of a library: a product of its input with a weight, and a count of its calls."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.runs = 0

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        x, weight, calls = inputs
        out = torch.empty_like(x)
        self.device.do(lambda: out.copy_(x * weight))
        self.device.do(lambda: calls.add_(1))
        return [out]


def scaled(device: Device) -> tuple[Scaled, graphed.Graphed, list[torch.Tensor]]:
    code = Scaled(device)
    return (
        code,
        graphed.Graphed(code, device="cuda:0", brought=[0], inputs=3),
        [torch.tensor(3.0), torch.zeros(())],
    )


def test_the_first_call_runs_and_the_others_are_launched(device: Device):
    """Each with its own numbers; what is returned stays, and what is written is written once."""
    watch = compiler.watch()
    before = watch.counts()
    code, run, (weight, calls) = scaled(device)
    inputs = [torch.full((2,), float(number)) for number in range(4)]

    outputs = [run([x, weight, calls])[0] for x in inputs]

    assert [out.tolist() for out in outputs] == [[3.0 * number] * 2 for number in range(4)]
    assert code.runs == 2  # the first call, and what was captured
    assert calls.item() == 4
    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (1, 0)
    event = watch.events()[-1]
    assert (event.kind, event.function, event.reason) == ("capture", "a library", "")
    assert "float32[2]" in event.signature


def test_a_graph_that_was_captured_in_inference_mode_is_launched_outside(device: Device):
    """Its own tensors may be written into in every mode."""
    _, run, (weight, calls) = scaled(device)
    with torch.inference_mode():
        run([torch.ones(2), weight, calls])

    with torch.inference_mode():
        inside = run([torch.ones(2), weight, calls])[0]
    with torch.no_grad():
        outside = run([torch.ones(2) * 2, weight, calls])[0]

    assert (inside.tolist(), outside.tolist()) == ([3.0, 3.0], [6.0, 6.0])
    assert calls.item() == 3


def test_weights_that_moved_are_captured_anew(device: Device):
    """With that for a reason; those that were written into are not."""
    watch = compiler.watch()
    _, run, (weight, calls) = scaled(device)
    x = torch.ones(2)
    run([x, weight, calls])
    weight.fill_(5.0)
    before = watch.counts()

    written = run([x, weight, calls])[0]
    after_writing = watch.counts()
    elsewhere = torch.tensor(7.0)
    moved = [run([x, elsewhere, calls])[0] for _ in range(2)]

    assert written.tolist() == [5.0, 5.0]
    assert [out.tolist() for out in moved] == [[7.0, 7.0]] * 2
    assert (after_writing - before).captures == 0
    assert (watch.counts() - after_writing).captures == 1
    assert watch.events()[-1].reason == "captured 1 times before: its weights have moved"


def test_each_size_and_stream_has_a_graph_and_each_stream_a_pool(device: Device):
    """Graphs that run one after another may use the same memory, others may not."""
    watch = compiler.watch()
    before = watch.counts()
    _, run, (weight, calls) = scaled(device)

    for stream, size in ((7, 2), (7, 4), (9, 2), (7, 2), (7, 4), (9, 2)):
        device.stream = stream
        run([torch.ones(size), weight, calls])

    assert (watch.counts() - before).captures == 3
    first, second, third = device.pools
    assert first is second
    assert first is not third


def test_each_thread_captures_for_itself(device: Device):
    """Two that launch one graph would write into one another's tensors."""
    watch = compiler.watch()
    before = watch.counts()
    _, run, (weight, calls) = scaled(device)

    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: [run([torch.ones(2), weight, calls]) for _ in range(3)]).result()

    assert (watch.counts() - before).captures == 2


def test_what_cannot_be_captured_runs_as_it_is(device: Device):
    """From then on, on the stream of before, and without another attempt; torch says why."""
    watch = compiler.watch()
    before = watch.counts()
    code, run, (weight, calls) = scaled(device)
    device.breaks = "CUDA error: operation not permitted when stream is capturing\nMore about it"

    outputs = [run([torch.ones(2), weight, calls])[0].tolist() for _ in range(3)]

    assert outputs == [[3.0, 3.0]] * 3
    assert calls.item() == 3
    assert device.stream == 7
    assert code.runs == 4  # the attempt, too
    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (0, 1)
    first_line = device.breaks.splitlines()[0]
    assert watch.events()[-1].reason == f"a library cannot be captured: {first_line}"


def test_others_are_captured_after_one_that_cannot_be(device: Device):
    """The capture that broke has ended for the pool, which is kept."""
    watch = compiler.watch()
    _, run, (weight, calls) = scaled(device)
    device.breaks = "CUDA error: operation not permitted when stream is capturing"
    run([torch.ones(2), weight, calls])
    device.breaks = ""
    before = watch.counts()

    outputs = [run([torch.ones(size), weight, calls])[0].tolist() for size in (3, 3, 4, 4)]

    assert outputs == [[3.0] * 3, [3.0] * 3, [3.0] * 4, [3.0] * 4]
    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (2, 0), watch.events()[-1]


def test_a_pool_outlives_its_graphs(device: Device):
    """Of an artifact that was taken out of use, before another one is loaded."""
    watch = compiler.watch()
    code, run, (weight, calls) = scaled(device)
    run([torch.ones(2), weight, calls])
    del code, run
    before = watch.counts()

    _, again, _ = scaled(device)
    again([torch.ones(2), weight, calls])

    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (1, 0), watch.events()[-1]
    assert device.pools[0] is device.pools[1]


def test_of_sizes_without_end_the_oldest_graphs_go(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Their memory is the pool's again."""
    monkeypatch.setattr(graphed, "MOST_CAPTURES", 2)
    watch = compiler.watch()
    _, run, (weight, calls) = scaled(device)
    for size in (1, 2, 3):
        run([torch.ones(size), weight, calls])
    before = watch.counts()

    run([torch.ones(3), weight, calls])
    kept = watch.counts() - before
    run([torch.ones(1), weight, calls])

    assert kept.captures == 0
    assert (watch.counts() - before).captures == 1
