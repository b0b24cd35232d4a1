# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs of libraries, with a stand-in for CUDA that notes what a capture is to do at each launch.

On a GPU: tests/gpu/test_libraries_on_a_gpu.py.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.libraries import cuda_graphs

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="a build of torch for CUDA asks the driver, which is missing, even of stand-ins",
)


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
        self.memory = cuda_graphs.Pools()
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
    monkeypatch.setattr(cuda_graphs, "POOLS", device.memory)
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


class Library:
    """A library with graphs, and what it takes beside the input of a call."""

    def __init__(self, device: Device, code: Scaled | None = None, on: str = "cuda:0") -> None:
        self.code = code or Scaled(device)
        self.weight, self.calls = torch.tensor(3.0), torch.zeros(())
        inputs = 1 if isinstance(code, Strided) else 3
        self._run = cuda_graphs.Graphed(self.code, device=on, brought=[0], inputs=inputs)

    def __call__(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        if isinstance(self.code, Strided):
            return self._run([x])[0]
        return self._run([x, *(others or (self.weight, self.calls))])[0]

    def ones(self, size: int = 2) -> list[float]:
        return self(torch.ones(size)).tolist()


@pytest.fixture
def library(device: Device) -> Library:
    return Library(device)


class Seen:
    """What the watch of the process has counted since somebody looked."""

    def __init__(self) -> None:
        self.watch = watch_process()
        self._before = self.watch.counts()

    def look(self) -> tuple[int, int]:
        """Return the captures and skips since the last look."""
        now = self.watch.counts()
        found, self._before = now - self._before, now
        return found.captures, found.graph_skips

    @property
    def last(self) -> Any:
        return self.watch.events()[-1]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_the_first_call_runs_and_the_others_are_launched(library: Library, seen: Seen):
    """Each call has its own numbers. Results stay valid, and writes happen once."""
    outputs = [library(torch.full((2,), float(number))) for number in range(4)]
    assert [out.tolist() for out in outputs] == [[3.0 * number] * 2 for number in range(4)]
    assert library.code.runs == 2  # the first call, and what was captured
    assert library.calls.item() == 4
    assert seen.look() == (1, 0)
    assert (seen.last.kind, seen.last.function, seen.last.reason) == ("capture", "a library", "")
    assert "float32[2]" in seen.last.signature


def test_a_graph_that_was_captured_in_inference_mode_is_launched_outside(library: Library):
    """Its own tensors may be written into in every mode."""
    with torch.inference_mode():
        library.ones()
        inside = library.ones()
    with torch.no_grad():
        outside = library(torch.ones(2) * 2).tolist()
    assert (inside, outside) == ([3.0, 3.0], [6.0, 6.0])
    assert library.calls.item() == 3


def test_weights_that_moved_are_captured_anew(library: Library, seen: Seen):
    """The reason says that weights moved. Changed values and other modules cause no capture."""
    library.ones()
    library.weight.fill_(5.0)
    seen.look()
    written = library.ones()
    after_writing = seen.look()
    other = library(torch.ones(2), torch.tensor(2.0), library.calls).tolist()
    of_the_other = seen.last.reason
    library.weight.data = torch.tensor(7.0)
    moved = [library.ones() for _ in range(2)]

    assert (written, other, moved) == ([5.0, 5.0], [2.0, 2.0], [[7.0, 7.0]] * 2)
    assert (after_writing[0], seen.look()[0], of_the_other) == (0, 2, "")
    assert seen.last.reason == (
        "captured again (earlier captures: 1): the weights have moved to new addresses"
    )


def test_each_size_and_stream_has_a_graph_and_each_stream_a_pool(device, library, seen):
    """Graphs that run one after another may use the same memory, others may not."""
    for stream, size in ((7, 2), (7, 4), (9, 2), (7, 2), (7, 4), (9, 2)):
        device.stream = stream
        library.ones(size)
    assert seen.look()[0] == 3
    first, second, third = device.pools
    assert first is second
    assert first is not third


def test_each_thread_captures_for_itself(library: Library, seen: Seen):
    """Two that launch one graph would write into one another's tensors."""
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: [library.ones() for _ in range(3)]).result()
    assert seen.look()[0] == 2


BROKEN = "CUDA error: operation not permitted when stream is capturing"
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_what_cannot_be_captured_runs_as_it_is(device: Device, library: Library, seen: Seen):
    """From then on, in every size, and without another attempt; torch says why."""
    device.breaks = RuntimeError(f"{BROKEN}\nMore about it")
    outputs = [library.ones() for _ in range(3)]
    assert (outputs, library.ones(1)) == ([[3.0, 3.0]] * 3, [3.0])
    assert library.calls.item() == 4
    assert (device.stream, device.index, device.captures) == (7, 0, False)
    assert library.code.runs == 5  # the attempt, too
    assert seen.look() == (0, 1)
    assert seen.last.reason == f"a library cannot be captured: {BROKEN}"


def test_other_libraries_are_captured_after_one_that_cannot_be(device, library, seen):
    """Into another pool: torch takes none into that of a capture that has broken."""
    library.ones()
    device.breaks = RuntimeError(BROKEN)
    Library(device).ones()
    device.breaks = None
    seen.look()
    again = [library.ones(size) for size in (2, 3, 3)]
    outputs = [Library(device).ones() for _ in range(2)]

    assert (again, outputs) == ([[3.0] * 2, [3.0] * 3, [3.0] * 3], [[3.0] * 2] * 2)
    assert seen.look() == (3, 0), seen.last
    assert (device.stream, device.index, device.captures) == (7, 0, False)


@pytest.mark.slow
def test_a_size_that_memory_does_not_suffice_for_costs_no_other_its_graph(device, library, seen):
    """Other sizes keep their graphs, and a size without a graph is not tried again."""
    device.breaks = torch.OutOfMemoryError(NO_MEMORY)
    library.ones(8)
    device.breaks = None
    seen.look()
    for size in (8, 2, 2):
        library.ones(size)
    assert seen.look() == (1, 0)
    assert library.code.runs == 6  # one attempt more, after all was given back that was free


@pytest.mark.slow
def test_memory_that_is_kept_for_later_is_given_back_for_a_graph(
    device: Device, library: Library, seen: Seen, monkeypatch: pytest.MonkeyPatch
):
    """Once: then the capture is made once more."""
    device.breaks = torch.OutOfMemoryError(NO_MEMORY)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(device, "breaks", None))
    assert [library.ones() for _ in range(2)] == [[3.0] * 2] * 2
    assert seen.look() == (1, 0)


def test_a_call_within_a_capture_of_the_users_becomes_a_part_of_it(library, seen, monkeypatch):
    """A capture of its own would break that one."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    library.ones()
    assert (*seen.look(), library.code.runs) == (0, 0, 1)


def test_devices_have_pools_of_their_own(device: Device):
    """Their default streams have one number."""
    for index in range(2):
        Library(device, on=f"cuda:{index}").ones()
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


def test_strides_are_those_of_the_first_call(device: Device, seen: Seen):
    """Later code may be compiled for these strides. An expanded output cannot be copied."""
    found = {}
    for expanded in (False, True):
        run = Library(device, Strided(device, expanded=expanded))
        outputs = [run(torch.tensor([1.0, 2.0]) * n) for n in range(3)]
        found[expanded] = [(out.stride(), out.sum().item()) for out in outputs]
    assert found[False] == [((2,), 0.0), ((2,), 3.0), ((2,), 6.0)]
    assert found[True] == [((0, 2), 0.0), ((0, 2), 9.0), ((0, 2), 18.0)]
    assert seen.look() == (1, 1)


def test_a_pool_outlives_its_graphs(device: Device, seen: Seen):
    """The pool of a discarded artifact stays until another artifact is loaded."""
    Library(device).ones()
    seen.look()
    Library(device).ones()
    assert seen.look() == (1, 0), seen.last
    assert device.pools[0] is device.pools[1]


def test_of_sizes_without_end_the_coldest_graphs_go(library: Library, seen: Seen):
    """Memory of freed graphs returns to the pool. A graph that is launched sometimes stays."""
    for size in (*range(1, 65), 1, 65, 1):
        library.ones(size)
    seen.look()
    library.ones(1)
    kept = seen.look()
    library.ones(2)
    assert (kept[0], seen.look()[0]) == (0, 1)


def test_modules_of_one_structure_take_no_graphs_from_one_another(library: Library, seen: Seen):
    modules = [(torch.tensor(float(number)), torch.zeros(())) for number in range(80)]
    rounds = [[library(torch.ones(2), *each).sum().item() for each in modules] for _ in range(3)]
    assert rounds == [[2.0 * number for number in range(80)]] * 3
    assert seen.look()[0] == 80


def test_graphs_of_weights_that_are_gone_are_freed(device: Device, library: Library):
    """Weights may move at each call, for example in a module that gets new weights."""
    data = [torch.tensor(float(number)) for number in range(100)]
    for number, each in enumerate(data):
        library.weight.data = each
        assert library.ones() == [number, number]
    assert device.living() <= cuda_graphs.MOST_CAPTURES + 1  # the one that keeps the pool


def test_a_shape_with_other_strides_is_another_kind(library: Library, seen: Seen):
    """A copy into overlapping elements would give other values."""
    windows = torch.arange(4.0).unfold(0, 3, 1)
    dense = torch.arange(6.0).reshape(2, 3)
    weights = torch.tensor(1.0), torch.zeros(())
    _, *outputs = [library(x, *weights) for x in (windows, dense, dense)]
    assert all(torch.equal(output, dense) for output in outputs)
    assert seen.look()[0] == 2
