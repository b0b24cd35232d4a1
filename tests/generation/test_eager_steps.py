# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of a generation that run eagerly beside compiled ones, and the cache that they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from generators import TOKENS, batch_of, best, load, load_compiled
from levels import answered_eagerly, forget_callables
from serve_warm.report import EagerReason

pytestmark = pytest.mark.slow

SHORT, LONG = (3,), (12,)
"""Prompts of two of the declared lengths."""


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    forget_callables()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def eager_calls(record: Any) -> dict[str, int]:
    """Return how many calls ran eagerly, by callable."""
    found: dict[str, int] = {}
    for each in record.calls():
        assert each.reason is EagerReason.UNFORESEEN
        found[each.callable] = found.get(each.callable, 0) + each.calls
    return found


def test_a_prompt_runs_eagerly_and_its_steps_compiled():
    expected = best(load("llama"), batch_of("llama", LONG))
    model = load_compiled("llama", backend="eager", dynamic=False)
    foreseen = best(model, batch_of("llama", SHORT))
    with answered_eagerly() as record:
        assert best(model, batch_of("llama", LONG)) == expected
        assert best(model, batch_of("llama", SHORT)) == foreseen
    assert list(eager_calls(record).values()) == [1]


def test_a_prompt_runs_compiled_and_its_steps_eagerly():
    prompts = [batch_of("llama", length) for length in (SHORT, LONG)]
    expected = [best(load("llama"), prompt) for prompt in prompts]
    model = load_compiled("llama", backend="eager", dynamic=False)
    for prompt in prompts:
        best(model, prompt, max_new_tokens=1)
    with answered_eagerly() as record:
        assert [best(model, prompt) for prompt in prompts] == expected
    assert eager_calls(record) == {"serve_warm.Decode": 2 * (TOKENS - 1)}


def test_streams_in_one_cache_run_compiled_and_eagerly_in_turns():
    """A compiled step reads what an eager prompt wrote, and the other way round."""
    prompts = [batch_of("llama", length) for length in (SHORT, LONG, SHORT)]
    expected = [best(load("llama"), prompt) for prompt in prompts]
    model = load_compiled("llama", backend="eager", dynamic=False)
    best(model, prompts[0])
    streams = [model.stream(**prompts[0], max_new_tokens=TOKENS)]
    made: list[list[int]] = [[], [], []]
    with answered_eagerly() as record:
        for step in range(TOKENS + 2):
            if step in (1, 2):
                streams.append(model.stream(**prompts[step], max_new_tokens=TOKENS))
            for number, stream in enumerate(streams):
                made[number] += next(stream, torch.zeros(0, dtype=torch.int64)).tolist()
    assert made == [rows[0] for rows in expected]
    assert list(eager_calls(record).values()) == [1]
