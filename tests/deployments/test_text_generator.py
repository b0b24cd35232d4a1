# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The text generator without a cluster: its cache, its slots, and the requests it refuses."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastapi.exceptions import RequestValidationError
from functorch.compile import make_boxed_func
from pydantic import ValidationError
from torch._dynamo.testing import CompileCounter
from torch._inductor.compile_fx import compile_fx

from decoding import full_logits, greedy, prompt_of
from deployments.text_generator.app import (
    MAX_PROMPT,
    SHAPE,
    Prompt,
    TextGenerator,
    not_a_prompt,
    problem,
)
from deployments.text_generator.model import Decoder, Shape, compiled, decoder_of, load_model
from serve_warm import compile_regions
from serve_warm.compiler.compiled_objects import HandedOver, compile_arguments
from serve_warm.generation import Slots
from serve_warm.inputs import sort_by_size

SMALL = Shape(layers=3, width=32, heads=2, vocabulary=64, slots=3, max_length=24)
BUCKETS = [4, 8, 16]

TOLERANCE = 2e-5
"""Of logits about 1 in size."""


@pytest.fixture
def model() -> Decoder:
    return load_model(SMALL)


class ModelThread:
    """Runs calls one after the other on one thread, and notes their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.executor = ThreadPoolExecutor(1)
        self.awaited: dict[int, asyncio.Event] = {}

    async def reaches(self, calls: int) -> None:
        await self.awaited.setdefault(calls, asyncio.Event()).wait()

    async def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.names.append(fn.__name__)
        self.awaited.setdefault(len(self.names), asyncio.Event()).set()
        return await asyncio.get_running_loop().run_in_executor(self.executor, fn, *args)


@pytest.fixture
def thread() -> Iterator[ModelThread]:
    thread = ModelThread()
    yield thread
    thread.executor.shutdown()


@pytest.fixture
def slots(model: Decoder, thread: ModelThread) -> Slots:
    return Slots(decoder_of(model, BUCKETS), call=thread)


async def generated(slots: Slots, prompt: list[int], count: int) -> list[int]:
    return [token async for token in slots.tokens(prompt, count=count)]


async def together(*tasks: Awaitable[list[int]]) -> list[list[int]]:
    return list(await asyncio.gather(*tasks))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, timeout=400))


def prompt(length: int) -> list[int]:
    return prompt_of(length, vocabulary=SMALL.vocabulary)


def prefill(model: Decoder, tokens: list[int], *, bucket: int, slot: int) -> torch.Tensor:
    padded = torch.tensor([tokens + [0] * (bucket - len(tokens))])
    logits: torch.Tensor = model.prefill(
        padded, torch.tensor([slot]), torch.tensor([len(tokens) - 1])
    )
    return logits


# The cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(SMALL.slots))
@pytest.mark.parametrize("bucket", BUCKETS)
@torch.inference_mode()
def test_every_step_equals_the_full_forward_without_a_cache(model, slot, bucket):
    """Prefill and each decode step give the logits of the whole sequence computed anew."""
    sequence = prompt(SMALL.max_length)
    length = bucket - 1  # one token of padding
    rest = SMALL.max_length - 1

    logits = [prefill(model, sequence[:length], bucket=bucket, slot=slot)]
    for position in range(length, SMALL.max_length):
        tokens, positions = torch.zeros(SMALL.slots).long(), torch.full((SMALL.slots,), rest)
        tokens[slot], positions[slot] = sequence[position], position
        logits.append(model.decode(tokens, positions)[slot])

    expected = full_logits(model, sequence)[length - 1 :]
    torch.testing.assert_close(torch.stack(logits), expected, atol=TOLERANCE, rtol=0)


def test_what_a_slot_held_before_does_not_matter(model, slots):
    """A used cache gives the tokens of an empty one: no position is read before it is written."""
    for block in model.blocks:
        block.keys.normal_(std=10)
        block.values.normal_(std=10)

    tokens = run(generated(slots, prompt(5), 12))

    assert tokens == greedy(model, prompt(5), count=12)


def test_the_cache_keeps_its_place(model, slots):
    """Buffers are written in place: a graph that was captured with them stays right."""
    before = [(block.keys.data_ptr(), block.values.data_ptr()) for block in model.blocks]

    run(generated(slots, prompt(5), 6))

    assert [(b.keys.data_ptr(), b.values.data_ptr()) for b in model.blocks] == before
    assert all(b.keys.any() and b.values.any() for b in model.blocks)


@pytest.mark.slow
def test_layers_positions_and_slots_share_compiled_code(model, thread):
    """One compile for each bucket and one for decode are enough for all layers and slots."""
    torch.compiler.reset()
    counter = CompileCounter()
    slots = Slots(
        decoder_of(compile_regions(model, backend=counter, dynamic=False), BUCKETS), call=thread
    )
    lengths = [1, 4, 5, 8, 9, 16]

    answers = run(together(*(generated(slots, prompt(length), 8) for length in lengths)))

    torch.compiler.reset()
    assert counter.frame_count == len(BUCKETS) + 1
    assert answers == [greedy(model, prompt(length), count=8) for length in lengths]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_a_step_writes_only_into_what_keeps_its_address(model, step):
    """A step changes only buffers, which are static for torch: else it captures no graph."""
    written: set[int] = set()
    static: set[int] = set()

    def look(graph: torch.fx.GraphModule, _inputs: Any, **settings: Any) -> Any:
        places = {
            node: index for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        }
        copied = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        written.update(places[node.args[0]] for node in copied)
        static.update(settings["static_input_idxs"])
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    looked_at = functools.partial(compile_fx, inner_compile=look)
    compiled_step = torch.compile(getattr(model, step), backend=looked_at, fullgraph=True)
    ones = torch.ones(SMALL.slots).long()
    arguments = {"prefill": (ones[None], ones[:1], ones[:1]), "decode": (ones, ones)}
    with torch.inference_mode():
        compiled_step(*arguments[step])

    torch.compiler.reset()
    assert len(written) == 2 * SMALL.layers
    assert written <= static


def test_with_a_mode_each_step_is_compiled_whole(model):
    """A step that becomes one CUDA graph contains all layers: no block is compiled alone."""
    whole = compiled(model, mode="reduce-overhead")

    owner = SimpleNamespace(model=whole)
    assert "triton.cudagraphs=True" in compile_arguments(owner)["model"]
    assert all(isinstance(step._serve_warm, HandedOver) for step in (whole.prefill, whole.decode))
    assert not any("_compiled_call_impl" in vars(block) for block in whole.blocks)


def test_weights_are_the_same_at_every_start():
    """Two loads give the same weights, and do not change the random number generator."""
    torch.manual_seed(7)
    first, second = load_model(SMALL).state_dict(), load_model(SMALL).state_dict()
    drawn = torch.rand(1)

    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(drawn, torch.rand(1, generator=torch.Generator().manual_seed(7)))


# Slots ----------------------------------------------------------------------------------------


def test_the_longest_sequence_is_right_beside_rows_that_idle(model, slots):
    """A sequence that fills the cache gets its own tokens to the last, whoever comes and goes."""
    length = 8
    count = SMALL.max_length - length

    async def beside() -> list[list[int]]:
        longest = asyncio.create_task(generated(slots, prompt(length), count))
        for other in (3, 4, 5):
            await generated(slots, prompt(other), 2)
        again = await generated(slots, prompt(6), count)
        return [await longest, again]

    assert run(beside()) == [
        greedy(model, prompt(length), count=count),
        greedy(model, prompt(6), count=count),
    ]


@pytest.mark.parametrize("length", range(1, 5))
def test_a_sequence_that_was_left_writes_to_no_slot_any_more(slots, model, length):
    """A longer prompt in the slot of a closed stream stays whole while others take steps."""
    longest = SMALL.max_length - 16

    async def scenario() -> list[list[int]]:
        steps = asyncio.create_task(generated(slots, prompt(4), 20))
        left = slots.tokens(prompt(length), count=20)
        for _ in range(3):
            await anext(left)
        await left.aclose()
        # Slots are taken in turn: the second of these gets the one that was left.
        answers = await together(*(generated(slots, prompt(16), longest) for _ in range(2)))
        await steps
        return answers

    assert run(scenario()) == [greedy(model, prompt(16), count=longest)] * 2


@pytest.mark.parametrize("after_calls", range(1, 9))
def test_a_request_cancelled_in_a_call_harms_no_other(slots, model, thread, after_calls):
    """Whenever one is cancelled, in its prefill or a step, the others get their own tokens."""

    async def scenario() -> list[list[int]]:
        cancelled = asyncio.create_task(generated(slots, prompt(16), 8))
        others = [asyncio.create_task(generated(slots, prompt(n), 8)) for n in range(1, 6)]
        await thread.reaches(after_calls)
        cancelled.cancel()
        answers = [await other for other in others]
        await asyncio.wait([cancelled])
        return [*answers, *await together(*(generated(slots, prompt(n), 4) for n in (7, 8, 9)))]

    assert run(scenario()) == [
        *(greedy(model, prompt(n), count=8) for n in range(1, 6)),
        *(greedy(model, prompt(n), count=4) for n in (7, 8, 9)),
    ]


# Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Prompt(prompt=[]), "A prompt needs at least one token, but this one is empty."),
        (
            Prompt(prompt=[1] * (MAX_PROMPT + 1)),
            "A prompt has at most 128 tokens, but this one has 129.",
        ),
        (Prompt(prompt=[1, -1]), "A token is a number from 0 to 4095, but -1 is not."),
        (Prompt(prompt=[2**70]), f"A token is a number from 0 to 4095, but {2**70} is not."),
        (Prompt(prompt=[1], max_new_tokens=0), "max_new_tokens is at least 1, but here it is 0."),
        (
            Prompt(prompt=[1] * 100, max_new_tokens=157),
            (
                "The cache holds 256 tokens of a sequence, but this sequence would have 257: "
                "100 in the prompt and 157 new ones."
            ),
        ),
    ],
    ids=["empty", "too long", "negative", "too large", "no new tokens", "cache too small"],
)
def test_a_request_that_cannot_be_answered_is_told_why_in_one_sentence(request_, expected):
    """The sentence gives the numbers: an empty, too long or invalid prompt, or too many tokens."""
    assert problem(request_) == expected


@pytest.mark.parametrize(
    "request_",
    [
        Prompt(prompt=[0], max_new_tokens=1),
        Prompt(prompt=[SHAPE.vocabulary - 1] * MAX_PROMPT),
        Prompt(prompt=[1] * 100, max_new_tokens=SHAPE.max_length - 100),
    ],
    ids=["least", "longest prompt", "full cache"],
)
def test_a_request_at_a_limit_is_answered(request_):
    """A request that exactly reaches a limit is accepted."""
    assert problem(request_) == ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"prompt": "hello"}, "prompt: Input should be a valid list"),
        ({"prompt": [1, "2"]}, "prompt.1: Input should be a valid integer"),
        ({"prompt": [True]}, "prompt.0: Input should be a valid integer"),
        ({}, "prompt: Field required"),
        ({"prompt": [1], "tokens": 3}, "tokens: Extra inputs are not permitted"),
    ],
    ids=["text", "text inside", "bool inside", "nothing", "unknown field"],
)
def test_a_body_of_another_form_is_told_why_in_one_sentence(body, why):
    """A body that is no prompt is answered 400 with its form and the first thing wrong with it."""
    with pytest.raises(ValidationError) as caught:
        Prompt.model_validate(body)
    # FastAPI puts where in the request it looked before each.
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]

    response = asyncio.run(not_a_prompt(None, RequestValidationError(errors)))

    assert response.status_code == 400
    assert bytes(response.body).decode() == (
        f'The body is not {{"prompt": [whole numbers], "max_new_tokens": a whole number}}: {why}.\n'
    )


def test_warmup_prompts_fill_their_buckets_and_decode():
    """Every bucket has one input of its full length, and each input also runs a decode step."""
    cls = TextGenerator.func_or_class
    declared = cls.warmup_inputs(cls)

    prompts = [Prompt.model_validate(item.json) for item in declared]
    assert [len(item.prompt) for item in prompts] == sorted(cls.buckets["length"], reverse=True)
    assert all(item.max_new_tokens > 1 and not problem(item) for item in prompts)
    assert sort_by_size(declared, of="TextGenerator") == declared
