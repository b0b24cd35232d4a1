# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs of libraries, with a stand-in for CUDA that notes what a capture is to do at each launch.

On a GPU: tests/gpu/test_libraries_on_a_gpu.py.
"""

from __future__ import annotations

import contextlib
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import aoti_graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Graph:
    """A stand-in for a CUDA graph: it runs the captured work at each launch, and not before."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for work in self.queued:
            work()


class Device:
    """Queues work into the graph that captures, or does it."""

    def __init__(self) -> None:
        self.stream = 7
        self.index = 0
        self.breaks: BaseException | None = None
        self.pools: list[object] = []
        self.memory = aoti_graphs.Pools()
        self.captured_on: list[object] = []
        self._captures: Graph | None = None
        self._graphs: dict[object, weakref.WeakSet[Graph]] = {}
        self._under_way: set[object] = set()
        self._host_under_way: set[object] = set()

    @contextlib.contextmanager
    def using(self, device: str) -> Iterator[None]:
        before, self.index = self.index, int(device.partition(":")[2])
        try:
            yield
        finally:
            self.index = before

    @contextlib.contextmanager
    def streaming(self, stream: Any) -> Iterator[None]:
        try:
            yield
        finally:
            self.stream = stream.cuda_stream

    def do(self, work: Callable[[], Any]) -> None:
        if self._captures is None:
            work()
            return
        if self.breaks:
            raise self.breaks
        self._captures.queued.append(work)

    @contextlib.contextmanager
    def graph(
        self, graph: Graph, *, pool: object, stream: object, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.stream, before = 99, self.stream
        # As the allocators do, of the device and of memory that it copies from, before anything
        # is captured.
        if pool in self._under_way or pool in self._host_under_way:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        if not self._graphs.setdefault(pool, weakref.WeakSet([graph])):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self._graphs[pool].add(graph)
        self._under_way.add(pool)
        self._host_under_way.add(pool)
        self._captures = graph
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError):
                # As the end of the capture does, which comes after what broke it.
                raise RuntimeError("CUDA error: operation failed due to a previous error") from None
            raise
        finally:
            self._captures = None
        if graph.queued:
            self.pools.append(pool)
            self.captured_on.append(stream)
        self._under_way.remove(pool)
        self._host_under_way.remove(pool)
        self.stream = before  # as torch 2.11 does: not where the end of a capture raises

    def end(self, index: int, pool: object) -> None:
        """End for the device's allocator what has broken."""
        if pool not in self._under_way:
            raise RuntimeError("not currently recording to mempool_id")
        assert index == self.index
        self._under_way.remove(pool)

    def living(self) -> int:
        return sum(len(graphs_of) for graphs_of in self._graphs.values())

    @property
    def captures(self) -> bool:
        return bool(self._captures or self._under_way)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(aoti_graphs, "POOLS", device.memory)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", device.graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=device.stream)
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device.index)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "device", device.using)
    monkeypatch.setattr(torch.cuda, "stream", device.streaming)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", device.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *_: None, raising=False)
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

    @contextlib.contextmanager
    def reserve(self) -> Iterator[Callable[[Sequence[Any]], list[Any]]]:
        yield self


def scaled(device: Device) -> tuple[Scaled, aoti_graphs.Graphed, list[torch.Tensor]]:
    code = Scaled(device)
    return (
        code,
        aoti_graphs.Graphed(code, device="cuda:0", brought=[0], inputs=3),
        [torch.tensor(3.0), torch.zeros(())],
    )


def test_the_first_call_runs_and_the_others_are_launched(device: Device):
    """Each call has its own numbers. Results stay valid, and writes happen once."""
    watch = watch_process()
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
    """The reason says that weights moved. Changed values and other modules cause no capture."""
    watch = watch_process()
    _, run, (weight, calls) = scaled(device)
    x = torch.ones(2)
    run([x, weight, calls])
    weight.fill_(5.0)
    before = watch.counts()

    written = run([x, weight, calls])[0]
    after_writing = watch.counts()
    other = run([x, torch.tensor(2.0), calls])[0]
    of_the_other = watch.events()[-1].reason
    weight.data = torch.tensor(7.0)
    moved = [run([x, weight, calls])[0] for _ in range(2)]

    assert (written.tolist(), other.tolist()) == ([5.0, 5.0], [2.0, 2.0])
    assert [out.tolist() for out in moved] == [[7.0, 7.0]] * 2
    assert (after_writing - before).captures == 0
    assert (watch.counts() - after_writing).captures == 2
    assert of_the_other == ""
    assert watch.events()[-1].reason == (
        "captured again (earlier captures: 1): the weights have moved to new addresses"
    )


def test_each_size_and_stream_has_a_graph_and_each_stream_a_pool(device: Device):
    """Graphs that run one after another may use the same memory, others may not."""
    watch = watch_process()
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
    watch = watch_process()
    before = watch.counts()
    _, run, (weight, calls) = scaled(device)

    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: [run([torch.ones(2), weight, calls]) for _ in range(3)]).result()

    assert (watch.counts() - before).captures == 2


BROKEN = "CUDA error: operation not permitted when stream is capturing"


def test_what_cannot_be_captured_runs_as_it_is(device: Device):
    """From then on, in every size, and without another attempt; torch says why."""
    watch = watch_process()
    before = watch.counts()
    code, run, (weight, calls) = scaled(device)
    device.breaks = RuntimeError(f"{BROKEN}\nMore about it")

    outputs = [run([torch.ones(2), weight, calls])[0].tolist() for _ in range(3)]
    other = run([torch.ones(1), weight, calls])[0].tolist()

    assert (outputs, other) == ([[3.0, 3.0]] * 3, [3.0])
    assert calls.item() == 4
    assert (device.stream, device.index, device.captures) == (7, 0, False)
    assert code.runs == 5  # the attempt, too
    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (0, 1)
    assert watch.events()[-1].reason == f"a library cannot be captured: {BROKEN}"


def test_other_libraries_are_captured_after_one_that_cannot_be(device: Device):
    """Into another pool: torch takes none into that of a capture that has broken."""
    watch = watch_process()
    _, good, (weight, calls) = scaled(device)
    good([torch.ones(2), weight, calls])
    device.breaks = RuntimeError(BROKEN)
    _, bad, _ = scaled(device)
    bad([torch.ones(2), weight, calls])
    device.breaks = None
    before = watch.counts()

    again = [good([torch.ones(size), weight, calls])[0].tolist() for size in (2, 3, 3)]
    outputs = [scaled(device)[1]([torch.ones(2), weight, calls])[0].tolist() for _ in range(2)]

    assert (again, outputs) == ([[3.0] * 2, [3.0] * 3, [3.0] * 3], [[3.0] * 2] * 2)
    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (3, 0), watch.events()[-1]
    assert (device.stream, device.index, device.captures) == (7, 0, False)


@pytest.mark.slow
def test_a_size_that_memory_does_not_suffice_for_costs_no_other_its_graph(device: Device):
    """Other sizes keep their graphs, and a size without a graph is not tried again."""
    watch = watch_process()
    code, run, (weight, calls) = scaled(device)
    device.breaks = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    run([torch.ones(8), weight, calls])
    device.breaks = None
    before = watch.counts()

    for size in (8, 2, 2):
        run([torch.ones(size), weight, calls])

    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (1, 0)
    assert code.runs == 6  # one attempt more, after all was given back that was free


@pytest.mark.slow
def test_memory_that_is_kept_for_later_is_given_back_for_a_graph(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    """Once: then the capture is made once more."""
    watch = watch_process()
    _, run, (weight, calls) = scaled(device)
    device.breaks = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(device, "breaks", None))
    before = watch.counts()

    outputs = [run([torch.ones(2), weight, calls])[0].tolist() for _ in range(2)]

    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (1, 0)
    assert outputs == [[3.0] * 2] * 2


def test_a_call_within_a_capture_of_the_users_becomes_a_part_of_it(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    """A capture of its own would break that one."""
    watch = watch_process()
    code, run, (weight, calls) = scaled(device)
    before = watch.counts()

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    run([torch.ones(2), weight, calls])

    found = watch.counts() - before
    assert (found.captures, found.graph_skips, code.runs) == (0, 0, 1)


def test_devices_have_pools_of_their_own(device: Device):
    """Their default streams have one number."""
    codes = [Scaled(device) for _ in range(2)]
    on = [
        aoti_graphs.Graphed(code, device=f"cuda:{index}", brought=[0], inputs=3)
        for index, code in enumerate(codes)
    ]
    weights = torch.tensor(3.0), torch.zeros(())

    for run in on:
        run([torch.ones(2), *weights])

    assert device.pools[0] is not device.pools[1]
    assert device.captured_on[0] is not device.captured_on[1]
    assert device.index == 0


class Strided(Scaled):
    """Returns what its input is, in steps of two and expanded."""

    def __init__(self, device: Device, *, expanded: bool) -> None:
        super().__init__(device)
        self.expanded = expanded

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        out = torch.empty(4)[::2]
        self.device.do(lambda: out.copy_(inputs[0]))
        return [out.expand(3, 2) if self.expanded else out]


def test_strides_are_those_of_the_first_call(device: Device):
    """Later code may be compiled for these strides. An expanded output cannot be copied."""
    watch = watch_process()
    before = watch.counts()
    found = {}
    for expanded in (False, True):
        code = Strided(device, expanded=expanded)
        run = aoti_graphs.Graphed(code, device="cuda:0", brought=[0], inputs=1)
        outputs = [run([torch.tensor([1.0, 2.0]) * n])[0] for n in range(3)]
        found[expanded] = [(out.stride(), out.sum().item()) for out in outputs]

    assert found[False] == [((2,), 0.0), ((2,), 3.0), ((2,), 6.0)]
    assert found[True] == [((0, 2), 0.0), ((0, 2), 9.0), ((0, 2), 18.0)]
    counts = watch.counts() - before
    assert (counts.captures, counts.graph_skips) == (1, 1)


def test_a_pool_outlives_its_graphs(device: Device):
    """The pool of a discarded artifact stays until another artifact is loaded."""
    watch = watch_process()
    code, run, (weight, calls) = scaled(device)
    run([torch.ones(2), weight, calls])
    del code, run
    before = watch.counts()

    _, again, _ = scaled(device)
    again([torch.ones(2), weight, calls])

    found = watch.counts() - before
    assert (found.captures, found.graph_skips) == (1, 0), watch.events()[-1]
    assert device.pools[0] is device.pools[1]


def test_of_sizes_without_end_the_coldest_graphs_go(device: Device):
    """Memory of freed graphs returns to the pool. A graph that is launched sometimes stays."""
    watch = watch_process()
    _, run, (weight, calls) = scaled(device)
    for size in (*range(1, 65), 1, 65, 1):
        run([torch.ones(size), weight, calls])
    before = watch.counts()

    run([torch.ones(1), weight, calls])
    kept = watch.counts() - before
    run([torch.ones(2), weight, calls])

    assert kept.captures == 0
    assert (watch.counts() - before).captures == 1


def test_modules_of_one_structure_take_no_graphs_from_one_another(device: Device):
    """The modules share a library, and each call of a round finds its graph."""
    watch = watch_process()
    before = watch.counts()
    _, run, _ = scaled(device)
    modules = [(torch.tensor(float(number)), torch.zeros(())) for number in range(80)]

    rounds = [
        [run([torch.ones(2), *module])[0].sum().item() for module in modules] for _ in range(3)
    ]

    assert rounds == [[2.0 * number for number in range(80)]] * 3
    assert (watch.counts() - before).captures == 80


def test_graphs_of_weights_that_are_gone_are_freed(device: Device):
    """Weights may move at each call, for example in a module that gets new weights."""
    _, run, (weight, calls) = scaled(device)
    data = [torch.tensor(float(number)) for number in range(100)]

    outputs = []
    for each in data:
        weight.data = each
        outputs.append(run([torch.ones(2), weight, calls])[0].sum().item())

    assert outputs == [2.0 * number for number in range(100)]
    assert device.living() <= aoti_graphs.MOST_CAPTURES + 1  # the one that keeps the pool


def test_a_shape_with_other_strides_is_another_kind(device: Device):
    """A copy into overlapping elements would give other values."""
    watch = watch_process()
    before = watch.counts()
    code = Scaled(device)
    run = aoti_graphs.Graphed(code, device="cuda:0", brought=[0], inputs=3)
    windows = torch.arange(4.0).unfold(0, 3, 1)
    dense = torch.arange(6.0).reshape(2, 3)
    weights = torch.tensor(1.0), torch.zeros(())

    outputs = [run([x, *weights])[0] for x in (windows, dense, dense)]

    assert torch.equal(outputs[1], dense)
    assert torch.equal(outputs[2], dense)
    assert (watch.counts() - before).captures == 2
