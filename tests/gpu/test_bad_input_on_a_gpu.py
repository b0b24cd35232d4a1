# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that are hard to capture: out of memory, with unsupported work, on other threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpus import ON_A_GPU, two_layers
from levels import build, spans, started
from serve_warm import compile as serve_warm_compile
from serve_warm.compiler.imports import import_compiler
from serve_warm.compiler.watch import watch_process
from serve_warm.inputs import Input
from serve_warm.replica.record.progress import Progress
from serve_warm.replica.replay.passes import Replay
from serve_warm.replica.replay.timed_calls import Deadline, Limits
from serve_warm.report import CompileEvent

pytestmark = ON_A_GPU

GIB = 1 << 30
LARGE, SMALL = 64, 8
"""Rows of inputs for the operators below. Only large inputs make the captures fail."""


@torch.library.custom_op("serve_warm_test::greedy", mutates_args=())
def greedy(x: torch.Tensor) -> torch.Tensor:
    """Double x. While a large x is captured, request more memory than any GPU has."""
    if x.shape[0] >= LARGE and torch.cuda.is_current_stream_capturing():
        torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
    return x * 2


@torch.library.custom_op("serve_warm_test::nosy", mutates_args=())
def nosy(x: torch.Tensor) -> torch.Tensor:
    """Double x. For a large x, read a value, which must wait for the GPU."""
    if x.shape[0] >= LARGE and x.sum().item() < 0:
        raise AssertionError
    return x * 2


@greedy.register_fake
@nosy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Begin without compiled code, graphs and cached memory; lift the memory limit at the end."""
    watch_process()
    import_compiler()
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch._dynamo.reset()
    reset_cudagraph_trees()
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def rows(many: int, width: int = 16) -> torch.Tensor:
    return torch.rand(many, width, device="cuda")


def compiled(operator: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return operator(x + 1) - 1

    return torch.compile(forward, mode="reduce-overhead", fullgraph=True, dynamic=False)


def last(kind: str) -> CompileEvent:
    return [event for event in watch_process().events() if event.kind == kind][-1]


@contextlib.contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Limit torch to this much memory beyond the memory reserved now."""
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + more_bytes
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    ("operator", "word"), [(greedy, "out of memory"), (nosy, "captur")], ids=["memory", "sync"]
)
def test_a_size_whose_capture_fails_is_served_and_the_others_are_captured(operator: Any, word: str):
    """The capture runs out of memory or waits. All answers are right, and calls become quiet.

    The reason is the first error, and not that of the end of the broken capture.
    """
    model = compiled(operator)
    large, small = rows(LARGE), rows(SMALL)
    wanted = [(x + 1) * 2 - 1 for x in (large, small)]
    answers: list[torch.Tensor] = []

    def both() -> None:
        answers.extend(model(x).clone() for x in (large, small))

    found = spans(both, 5)

    assert [each.graph_skips for each in found] == [0, 1, 0, 0, 0]
    assert [each.captures for each in found] == [0, 1, 0, 0, 0]
    assert found[-1].quiet
    for i, answer in enumerate(answers):
        torch.testing.assert_close(answer, wanted[i % 2])
    assert "its capture failed" in last("skip").reason
    assert word in last("skip").reason
    assert "previous error" not in last("skip").reason
    assert f"[{LARGE}, 16]" in last("skip").signature
    assert f"[{SMALL}, 16]" in last("capture").signature


@pytest.mark.parametrize("operator", [greedy, nosy])
def test_a_failed_capture_leaves_the_process_as_it_was(operator: Any):
    """Stream, random numbers and captures of the user work as before.

    The allocator frees cached memory if needed.
    """
    model, large = compiled(operator), rows(LARGE)
    stream = torch.cuda.current_stream()

    spans(lambda: model(large), 3)

    assert torch.cuda.current_stream() == stream
    assert torch.rand(4, device="cuda").shape == (4,)
    torch.cuda.empty_cache()
    kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del kept
    with at_most(GIB // 2):
        # More than the cached memory, and more than the limit allows beside it.
        assert torch.empty(GIB + GIB // 4, dtype=torch.uint8, device="cuda").numel() > GIB
    graph, x = torch.cuda.CUDAGraph(), rows(SMALL)
    with torch.cuda.graph(graph):
        y = x * 3
    graph.replay()
    torch.testing.assert_close(y, x * 3)


def test_an_entry_whose_capture_fails_is_served(tmp_path: Path):
    """The same holds at level 2."""

    class Nosy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nosy(x + 1) - 1

    model, large = Nosy().cuda().eval(), rows(LARGE)
    entry = serve_warm_compile(model, mode="reduce-overhead")
    library = build(tmp_path / "entries", lambda: entry(large))
    assert not library.refused

    with started(tmp_path / "entries"):
        found = spans(lambda: entry(large), 4)
        with torch.inference_mode():
            out = entry(large).clone()

    assert [each.compiles for each in found] == [0, 0, 0, 0]
    assert sum(each.captures for each in found) == 0
    assert sum(each.graph_skips for each in found) >= 1
    assert found[-1].quiet
    torch.testing.assert_close(out, (large + 1) * 2 - 1)


# --- a real limit of memory ------------------------------------------------------------------

WIDTH = 16384
"""Of a model whose activations take 64 KiB for each row, so 1 GiB for 16384 rows."""


def replayed(model: Any, **sizes: torch.Tensor) -> Progress:
    """Replay inputs in the given order until quiet, and prove them."""
    inputs = [Input(target="forward", name=name, args=(x,)) for name, x in sizes.items()]

    async def call(item: Input) -> None:
        with torch.inference_mode():
            model(*item.args)

    replay = Replay(
        inputs, call, seen=watch_process(), limits=Limits(deadline=Deadline(60), input_s=60)
    )

    async def run() -> None:
        await replay.until_quiet()
        await replay.prove()

    asyncio.run(run())
    return replay.progress


def test_an_input_that_does_not_fit_is_left_out_and_served_once_it_does():
    """The small input is captured and proven. The large one is answered once memory is free."""
    eager = two_layers(WIDTH)
    model = torch.compile(eager, mode="reduce-overhead", dynamic=False)
    large, small = rows(4 * 16384), rows(64)
    before = watch_process().counts()

    with at_most(GIB):
        progress = replayed(model, large=large, small=small)

    assert list(progress.left_out) == ["large"]
    assert "out of memory" in progress.left_out["large"]
    assert progress.proven == {"small"}
    assert (watch_process().counts() - before).captures >= 1
    with torch.inference_mode():
        answer, wanted = model(large), eager(large)
    torch.testing.assert_close(answer, wanted, rtol=1e-2, atol=1e-2)


def test_memory_that_is_kept_for_later_is_used_for_graphs():
    """If a capture runs out of memory, cached memory is freed, and the graph is captured."""
    model = torch.compile(two_layers(WIDTH), mode="reduce-overhead", dynamic=False)
    small, large = rows(64), rows(16384)
    spans(lambda: model(small), 3)
    kept = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
    del kept

    with at_most(GIB // 2):
        progress = replayed(model, large=large, small=small)

    assert progress.left_out == {}
    assert progress.proven == {"large", "small"}
    captured = [e.signature for e in watch_process().events() if e.kind == "capture"]
    assert f"[{large.shape[0]}, 16]" in captured[-1]


# --- threads, sizes and models -----------------------------------------------------------------


def in_thread(call: Callable[[], Any], name: str) -> None:
    """Call a function in a thread of this name, and raise its exception."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except (RuntimeError, AssertionError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_another_thread_may_capture_and_is_named():
    """Before torch 2.13, only the thread that imported the graph trees could capture."""
    model = compiled(torch.relu)
    small, large = rows(SMALL) - 0.5, rows(LARGE) - 0.5
    answers: list[torch.Tensor] = []
    spans(lambda: model(small), 3)

    in_thread(lambda: spans(lambda: answers.append(model(large).clone()), 4), name="my-pool_0")

    assert "my-pool_0" in last("capture").reason
    assert f"[{LARGE}, 16]" in last("capture").signature
    for answer in answers:
        torch.testing.assert_close(answer, torch.relu(large + 1) - 1)


def test_entries_that_one_thread_has_loaded_are_captured_by_another(tmp_path: Path):
    """In a replica, a worker thread loads the artifact, and the model's thread serves."""
    torch.manual_seed(0)
    eager, x = torch.nn.Linear(16, 4).cuda().eval(), rows(SMALL)
    entry = serve_warm_compile(eager, mode="reduce-overhead")
    build(tmp_path / "entries", lambda: entry(x))
    found: list[Any] = []
    loaded = contextlib.ExitStack()

    with loaded:
        in_thread(lambda: loaded.enter_context(started(tmp_path / "entries")), name="loader")
        in_thread(lambda: found.extend(spans(lambda: entry(x), 4)), name="model")

    assert [each.compiles for each in found] == [0, 0, 0, 0]
    assert sum(each.captures for each in found) == 1
    assert found[-1].quiet
