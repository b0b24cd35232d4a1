# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Continuous batches of a model of `transformers`: sequences that begin and end at any time.

`tests/deployments/test_text_generator.py` tests the same slots over a handwritten decoder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from generators import batch_of, best, draw, eagerly, load, load_adapted, load_compiled  # noqa: F401 - a fixture
from serve_warm.errors import GenerationRefused
from serve_warm.generation import Slots

pytestmark = pytest.mark.usefixtures("eagerly")

COUNT = 12


@pytest.fixture
def model() -> Any:
    return load_compiled("llama")


async def on_this_thread(fn: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0)  # other sequences get their turn, as with a thread
    return fn(*args)


def prompt(length: int) -> list[int]:
    return batch_of("llama", (length,))["input_ids"][0].tolist()


def expected(length: int, count: int = COUNT) -> list[int]:
    return best(load("llama"), batch_of("llama", (length,)), max_new_tokens=count)[0]


async def generated(slots: Slots, length: int, count: int = COUNT, **options: Any) -> list[int]:
    return [token async for token in slots.tokens(prompt(length), count=count, **options)]


def run(model: Any, *requests: Callable[[Slots], Any]) -> list[Any]:
    """Return the answers of requests that begin together, exceptions among them."""

    async def every() -> list[Any]:
        slots = model.continuous(call=on_this_thread)
        return await asyncio.gather(*(each(slots) for each in requests), return_exceptions=True)

    return asyncio.run(every())


def alone_among_others(model: Any, request: Callable[[Slots], Any]) -> Any:
    """Return the answer of a request; the sequences beside it must get their tokens."""
    lengths = (9, 4, 12)
    answer, *others = run(model, request, *(lambda s, n=n: generated(s, n) for n in lengths))
    assert others == [expected(n) for n in lengths]
    return answer


@pytest.mark.slow
def test_more_sequences_than_slots_all_get_their_tokens(model: Any):
    lengths = [5, 16, 1, 9, 4, 12]
    answers = run(model, *(lambda s, n=n: generated(s, n, COUNT + n) for n in lengths))
    assert answers == [expected(n, COUNT + n) for n in lengths]


def test_sequences_share_their_steps(model: Any):
    calls: list[str] = []

    async def call(fn: Callable[..., Any], *args: Any) -> Any:
        calls.append(fn.__name__)
        return await on_this_thread(fn, *args)

    async def every() -> None:
        slots = model.continuous(call=call)
        await asyncio.gather(*(generated(slots, 5) for _ in range(3)))

    asyncio.run(every())

    assert calls.count("_prefill") == 3
    assert calls.count("_decode") <= COUNT + 2  # prompts are taken one after the other


def test_each_sequence_chooses_its_own_tokens(model: Any):
    worst, one = run(
        model,
        lambda s: generated(s, 5, choose=lambda logits: int(logits.argmin())),
        lambda s: generated(s, 9),
    )

    assert one == expected(9)
    ids = torch.tensor([prompt(5)])
    for token in worst:
        with torch.no_grad():
            assert int(load("llama")(input_ids=ids).logits[0, -1].argmin()) == token
        ids = torch.cat([ids, torch.tensor([[token]])], 1)


def raise_error(_: torch.Tensor) -> int:
    raise KeyError("no such token")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (raise_error, "'no such token'"),
        (64, "Token 64 is not in the vocabulary of 64 tokens."),
        (-1, "Token -1 is not in the vocabulary of 64 tokens."),
        (2.5, "A token must be a whole number, not 2.5."),
        (torch.tensor([3, 4]), "A token must be a whole number, not tensor"),
    ],
)
@pytest.mark.parametrize("after", [0, 3])
def test_a_choice_that_is_no_token_ends_its_own_sequence(model, choice, message, after):
    """Before, the shared step failed for all sequences, or compiled code ended the process."""
    made: list[int] = []

    def choose(logits: torch.Tensor) -> Any:
        if len(made) == after:
            return choice(logits) if choice is raise_error else choice
        made.append(int(logits.argmax()))
        return made[-1]

    failed = alone_among_others(model, lambda s: generated(s, 5, choose=choose))

    assert isinstance(failed, KeyError if choice is raise_error else GenerationRefused)
    assert str(failed).startswith(message)


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_slot(model: Any):
    async def leaves(slots: Slots) -> int:
        tokens = slots.tokens(prompt(5), count=32)
        first = await anext(tokens)
        await tokens.aclose()
        return first

    assert alone_among_others(model, leaves) == expected(5)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "count", "message"),
    [
        ([], 4, "A prompt needs at least one token, but this one is empty."),
        ([5] * 17, 4, "The prompt has 17 tokens, but the longest bucket has 16."),
        ([5] * 16, 45, "A sequence of 61 tokens, including the prompt, does not fit"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_alone(model, given, count, message):
    async def unfit(slots: Slots) -> None:
        await anext(slots.tokens(given, count=count))

    refused = alone_among_others(model, unfit)

    assert isinstance(refused, GenerationRefused)
    assert message in str(refused)


def test_continuous_batches_keep_all_slots(model: Any):
    model.continuous(call=on_this_thread)
    with pytest.raises(GenerationRefused, match="still use 3 of the 3 slots"):
        draw(model, batch_of("llama"))
    with pytest.raises(GenerationRefused, match="still use 3 of the 3 slots"):
        model.continuous(call=on_this_thread)


@pytest.mark.slow
def test_a_changed_adapter_ends_the_sequences_that_began_before():
    model = load_adapted()

    async def requests() -> tuple[list[int], str]:
        slots = model.continuous(call=on_this_thread)
        before = slots.tokens(prompt(5), count=COUNT)
        await anext(before)
        after = slots.tokens(prompt(9), count=COUNT)
        model.lm_head.name = "b"
        made = [await anext(after)]
        with pytest.raises(GenerationRefused) as refused:
            await anext(before)
        return made + [token async for token in after], str(refused.value)

    made, why = asyncio.run(requests())

    alone = load_adapted()
    alone.lm_head.name = "b"
    assert made == best(alone, batch_of("llama", (9,)), max_new_tokens=COUNT)[0]
    assert why == (
        "The adapter changed from 'a' to 'b' during this generation, but the cache was made with "
        "the first adapter: generate again."
    )
