# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The text generator's steps on a real GPU: each is one CUDA graph, and its tokens are eager's.

PYTHONPATH=. python -m pytest tests/gpu --confcutdir tests/gpu
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import greedy, prompt_of
from deployments.text_generator.model import Shape, compiled, decoder_of, load_model
from gpus import ON_A_GPU
from levels import build, started
from serve_warm.compiler.watch import watch_process
from serve_warm.generation import Slots

SHAPE = Shape(layers=3, width=64, heads=2, vocabulary=64, slots=3, max_length=32)
BUCKETS = [8, 16]
GRAPHS = len(BUCKETS) + 1
LENGTHS = (3, 8, 9, 15)
COUNT = 12

pytestmark = ON_A_GPU


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@contextlib.contextmanager
def generator() -> Iterator[Callable[[], list[list[int]]]]:
    """Yield a function that generates from prompts of all buckets, with more prompts than slots.

    It always uses the same thread, because a graph belongs to the thread that captured it.
    """
    with ThreadPoolExecutor(1) as thread:
        yield generating(thread)


def generating(thread: ThreadPoolExecutor) -> Callable[[], list[list[int]]]:
    model = compiled(load_model(SHAPE, device="cuda"), mode="reduce-overhead")

    async def call(fn: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, fn, *args)

    async def one(slots: Slots, prompt: list[int]) -> list[int]:
        return [token async for token in slots.tokens(prompt, count=COUNT)]

    async def every() -> list[list[int]]:
        slots = Slots(decoder_of(model, BUCKETS), call=call)
        return list(await asyncio.gather(*(one(slots, prompt) for prompt in prompts())))

    return lambda: asyncio.run(every())


def prompts() -> list[list[int]]:
    return [prompt_of(length, vocabulary=SHAPE.vocabulary) for length in LENGTHS]


def eager() -> list[list[int]]:
    model = load_model(SHAPE)
    return [greedy(model, prompt, count=COUNT) for prompt in prompts()]


def test_every_step_is_one_graph():
    """Each bucket and the decode step are captured once, and none is skipped. Then it is quiet."""
    watch = watch_process()
    before = watch.counts()

    with generator() as generate:
        generate()
        generate()
        warm = watch.counts()
        answers = generate()

    first, then = warm - before, watch.counts() - warm
    assert (first.captures, first.graph_skips) == (GRAPHS, 0)
    assert then.quiet
    assert then.graph_skips == 0
    assert answers == eager()


def test_entries_of_the_steps_capture(tmp_path: Path):
    """At level 2, nothing is compiled. Graphs write the same values to the cache as eager."""
    watch = watch_process()  # before torch 2.13, other threads need it to capture
    with generator() as generate:
        library = build(tmp_path / "entries", generate)
    assert not library.refused

    with started(tmp_path / "entries"), generator() as generate:
        before = watch.counts()
        generate()
        generate()
        warm = watch.counts()
        answers = generate()
        then = watch.counts() - warm

    first = warm - before
    assert first.compiles == 0
    assert (first.captures, first.graph_skips) == (GRAPHS, 0)
    assert then.quiet
    assert answers == eager()
