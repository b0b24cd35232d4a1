# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to a compiled model: batches, streams, and what is refused without harm to others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from components import require_module
from generators import (  # noqa: F401 - a fixture
    BATCH,
    IMAGE,
    MAX_LENGTH,
    TEXT,
    batch_of,
    best,
    draw,
    eagerly,
    generate,
    load,
    load_adapted,
    load_compiled,
    with_steps,
)
from serve_warm.errors import GenerationRefused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


@pytest.fixture
def model() -> Any:
    return load_compiled("llama")


def free(model: Any) -> int:
    """Return the number of free slots: as many can be taken."""
    decoder = model._serve_warm_decoder
    for count in range(decoder.slots, 0, -1):
        try:
            slots = decoder.take(count)
        except GenerationRefused:
            continue
        decoder.release(slots)
        return count
    return 0


def streamed(stream: Any) -> list[list[int]]:
    """Return the tokens of each row."""
    return [list(row) for row in zip(*(tokens.tolist() for tokens in stream), strict=True)]


def rest_of(stream: Any) -> list[int]:
    """Return the further tokens of a stream with one row."""
    return [token for tokens in stream for token in tokens.tolist()]


# Batches and streams --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_a_row_does_not_depend_on_its_batch(name: str):
    model, batch = load_compiled(name), batch_of(name, (12, 4, 7))
    together = best(model, batch, max_new_tokens=12)
    for row, keep in enumerate(batch["attention_mask"].bool()):
        alone = {"input_ids": batch["input_ids"][row : row + 1, keep]}
        assert best(model, alone, max_new_tokens=12)[0] == together[row]


def test_a_stream_yields_the_tokens_of_generate(model: Any):
    batch = batch_of("llama")
    rows = streamed(model.stream(**batch, max_new_tokens=32))
    assert rows == best(load("llama"), batch)
    assert free(model) == BATCH


def test_a_stream_chooses_as_it_is_told(model: Any):
    """`choose` gets the logits of all rows, and the next step takes its result."""
    batch = batch_of("llama", (5, 5))

    def choose(logits: torch.Tensor) -> torch.Tensor:
        return logits.neg_().argmax(-1)  # in place, as processors of logits do

    rows = streamed(model.stream(**batch, max_new_tokens=6, choose=choose))

    ids, expected = batch["input_ids"], []
    for _ in range(6):
        with torch.no_grad():
            worst = load("llama")(input_ids=ids).logits[:, -1].argmin(-1)
        expected.append(worst.tolist())
        ids = torch.cat([ids, worst[:, None]], 1)
    assert rows == [list(row) for row in zip(*expected, strict=True)]


def test_streams_and_batches_share_the_cache(model: Any):
    prompts = [batch_of("llama", (length,)) for length in (5, 16, 9)]
    expected = [best(load("llama"), prompt) for prompt in prompts]
    streams = [model.stream(**prompt, max_new_tokens=32) for prompt in prompts[:2]]
    made: list[list[int]] = [[], []]
    for step in range(32):
        for number, stream in enumerate(streams):
            made[number] += next(stream).tolist()
        if step % 10 == 5:
            assert best(model, prompts[2]) == expected[2]

    assert made == [expected[0][0], expected[1][0]]


def test_a_client_that_leaves_frees_its_slots(model: Any):
    batch = batch_of("llama", (5, 9))
    stays = model.stream(**batch_of("llama", (7,)), max_new_tokens=8)
    begun = next(stays).tolist()
    leaves = model.stream(**batch, max_new_tokens=32)
    next(leaves)
    assert free(model) == 0
    leaves.close()

    assert free(model) == 2
    expected = best(load("llama"), batch_of("llama", (7,)), max_new_tokens=8)
    assert [begun + rest_of(stays)] == expected


def test_a_streamer_that_raises_frees_the_slots(model: Any):
    streamers = require_module("transformers", "pip install 'serve-warm[generation]'")

    class Left(streamers.TextStreamer):
        def __init__(self) -> None:
            self.calls = 0

        def put(self, value: torch.Tensor) -> None:
            self.calls += 1
            if self.calls == 4:
                raise ConnectionError("the client has left")

    with pytest.raises(ConnectionError, match="has left"):
        generate(model, batch_of("llama", (5,)), streamer=Left())

    assert free(model) == BATCH


@pytest.mark.parametrize("lengths", [(12,), (12, 9), (3, 9, 12)])
def test_images_of_a_prompt_are_seen(lengths: tuple[int, ...]):
    model, batch = load_compiled("llava"), batch_of("llava", lengths)
    other = {**batch, "pixel_values": batch["pixel_values"].flip(0, 2)}
    made = best(model, batch)
    assert made == best(load("llava"), batch)
    assert made[-1] != best(model, other)[-1]
    assert free(model) == BATCH


@pytest.mark.parametrize("name", ["llama", "bart", "llava"])
def test_several_answers_for_one_prompt_take_a_slot_each(name: str):
    """`num_return_sequences` is a batch like any other."""
    batch, options = batch_of(name, (5,)), {"num_return_sequences": 3, "max_new_tokens": 12}
    made = generate(load_compiled(name), batch, **options)
    assert made == generate(load(name), batch, **options)
    assert len({tuple(row) for row in made}) > 1


@pytest.mark.parametrize("pads", ["right", "left"])
def test_states_of_the_encoder_may_be_handed_over(pads: str):
    model, eager, batch = load_compiled("bart"), load("bart"), batch_of("bart")
    if pads == "left":
        batch = {name: rows.flip(1) for name, rows in batch.items()}
    with torch.no_grad():
        states = eager.get_encoder()(**batch)
    given = {"encoder_outputs": states, "attention_mask": batch["attention_mask"]}

    if pads == "left":
        with pytest.raises(GenerationRefused, match="these outputs must be padded on the right"):
            best(model, given)
    else:
        assert best(model, given, max_new_tokens=8) == best(eager, batch, max_new_tokens=8)


def test_logits_processors_and_stops_work_as_before(model: Any):
    """Penalties, a minimum length and an end token are outside the compiled steps."""
    batch = batch_of("llama")
    options: dict[str, Any] = {
        "repetition_penalty": 1.7,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 3,
        "eos_token_id": best(load("llama"), batch)[0][5],
    }
    ours, theirs = draw(model, batch, **options), draw(load("llama"), batch, **options)

    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("whose", ["original", "served"])
def test_a_hook_of_the_model_runs_once_a_token(whose: str):
    """Before, a hook ran in the step and again around it, so a bias was added twice."""

    def add_bias(_module: Any, _inputs: Any, out: Any) -> Any:
        out.logits = out.logits + torch.arange(64) / 8
        return out

    original, eager = load("llama"), load("llama")
    eager.register_forward_hook(add_bias)
    if whose == "original":
        original.register_forward_hook(add_bias)
    model = with_steps(original)
    if whose == "served":
        model.register_forward_hook(add_bias)
    asked = batch_of("llama")

    assert generate(model, asked) == generate(eager, asked)
    ids = asked["input_ids"]
    torch.testing.assert_close(model(input_ids=ids).logits, eager(input_ids=ids).logits)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("name", ["llama", "t5", "whisper"])
def test_a_copy_has_its_own_weights_and_cache(name: str, again: Any):
    model = load_compiled(name)
    model.generation_config = copy.deepcopy(model.generation_config)
    model.generation_config.max_new_tokens = 7
    inputs = batch_of(name)
    before = best(model, inputs)
    other = again(model)
    same = best(other, inputs)
    with torch.no_grad():
        other.get_output_embeddings().weight.neg_()

    assert type(other).__mro__[1:] == type(model).__mro__[1:]
    assert other.generation_config.max_new_tokens == 7
    assert same == before == best(model, inputs)
    assert best(other, inputs) != before


def test_the_cache_stays_where_it_is(model: Any):
    """CUDA graphs read the addresses of their capture: no step replaces a buffer."""
    buffers = model._serve_warm_buffers
    before = [buffer.data_ptr() for buffer in buffers.buffers()]
    generate(model, batch_of("llama"), cache_implementation="static")
    assert [buffer.data_ptr() for buffer in buffers.buffers()] == before


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_step_leaves_the_slots_of_others(name: str):
    model = load_compiled(name)
    decoder, buffers = model._serve_warm_decoder, model._serve_warm_buffers
    decoder.prefill(1, torch.arange(3, 12))
    windows = [(layer.window, layer) for layer in buffers.layers]
    before = [layer.keys[:, :, :window].clone() for window, layer in windows]
    decoder.decode({0: (5, 0)})

    for (window, layer), kept in zip(windows, before, strict=True):
        assert torch.equal(layer.keys[1:, :, :window], kept[1:])
        assert not torch.equal(layer.keys[0, :, :window], kept[0])


def test_padding_leaves_nothing_that_depends_on_the_order_of_writes(model: Any):
    """All padding goes to one place, and a GPU writes it in any order: so all of it is the same."""
    model._serve_warm_decoder.prefill(1, torch.arange(3, 6))
    for layer in model._serve_warm_buffers.layers:
        behind = layer.window
        assert not layer.keys[1, :, behind:].any()
        assert not layer.values[1, :, behind:].any()


# Refusals -------------------------------------------------------------------------------------


def prompt(length: int, rows: int = 1) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.full((rows, length), 5)}


def assistant(model: Any) -> Any:
    return draw(model, prompt(4), assistant_model=load("llama"))


def own_cache(name: str = "") -> Callable[[Any], Any]:
    def asked(model: Any) -> Any:
        caches = require_module("transformers", "pip install 'serve-warm[generation]'")
        from serve_warm.generation.steps import CACHE

        return draw(model, prompt(4), **{name or CACHE: caches.DynamicCache()})

    return asked


def cache_of_another(model: Any) -> Any:
    options = {"return_dict_in_generate": True}
    cache = draw(load_compiled("llama"), prompt(4), **options).past_key_values
    return model(input_ids=prompt(1)["input_ids"], past_key_values=cache)


def ended_cache(model: Any) -> Any:
    cache = draw(model, prompt(4), return_dict_in_generate=True).past_key_values
    return model(input_ids=prompt(1)["input_ids"], past_key_values=cache)


def stream(given: Any, **options: Any) -> Callable[[Any], Any]:
    ids = prompt(given)["input_ids"] if isinstance(given, int) else torch.tensor([given])
    return lambda model: list(model.stream(ids, **options))


def options(length: int = 4, rows: int = 1, **given: Any) -> Callable[[Any], Any]:
    return lambda model: draw(model, prompt(length, rows), **given)


def tokens(*given: Any) -> Callable[[Any], Any]:
    return lambda model: best(model, {"input_ids": torch.tensor([given])})


def no_token(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_full((1,), 64)


REFUSALS: list[tuple[Callable[[Any], Any], str]] = [
    (options(17, max_new_tokens=2), "The prompt has 17 tokens, but the longest bucket has 16."),
    (options(rows=4), "A batch of 4 sequences does not fit into the 3 slots of this model."),
    (options(rows=3), "The batch needs 3 slots, but other sequences still use 1 of the 3 slots."),
    (
        options(16, max_new_tokens=45),
        "A sequence of 61 tokens, including the prompt, does not fit into a cache of 60.",
    ),
    (stream(16, max_new_tokens=45), "A sequence of 61 tokens, including the prompt, does not fit"),
    (stream(17, max_new_tokens=2), "The prompt has 17 tokens, but the longest bucket"),
    (
        options(attention_mask=torch.zeros(1, 4, dtype=torch.int64)),
        "A prompt needs at least one token, but this one is empty.",
    ),
    (
        stream(4, attention_mask=torch.ones(1, 5), max_new_tokens=2),
        r"An attention_mask of shape \(1, 5\) does not match tokens of shape \(1, 4\).",
    ),
    (options(num_beams=2, do_sample=False, top_k=None), "do not support num_beams=2: "),
    (options(output_hidden_states=True), "do not support output_hidden_states=True: "),
    (options(output_attentions=True), "do not support output_attentions=True: "),
    (options(use_cache=False), "do not support use_cache=False: "),
    (options(cache_implementation="quantized"), "support cache_implementation='quantized': "),
    (options(prefill_chunk_size=2), "do not support prefill_chunk_size=2: "),
    (options(guidance_scale=2.0), "do not support guidance_scale=2.0: "),
    (options(prompt_lookup_num_tokens=2), "do not support prompt_lookup_num_tokens=2: "),
    (options(custom_generate=lambda *_: None), "do not support custom_generate=: "),
    (options(inputs_embeds=torch.zeros(1, 4, 32)), "do not support inputs_embeds=: "),
    (options(position_ids=torch.tensor([[4, 5, 6, 7]])), "do not support position_ids=: "),
    (assistant, "steps do not support assistant_model=: assisted decoding"),
    (own_cache(), "is a DynamicCache, but the compiled steps have their own cache"),
    (own_cache("past_key_values"), "is a DynamicCache, but the compiled steps have their own"),
    (cache_of_another, "is the cache of another model, but the compiled steps have their own"),
    (ended_cache, "This cache belongs to a generation that has ended, so the cache cannot"),
    (tokens(5, 64), "Token 64 is not in the vocabulary of 64 tokens."),
    (stream([5, -1], max_new_tokens=2), "Token -1 is not in the vocabulary of 64 tokens."),
    (stream(4, max_new_tokens=3, choose=no_token), "A token must be a whole number, not 64.0."),
    (tokens(1.5, 2.0), "Token ids must be whole numbers, not torch.float32."),
    (
        lambda model: model.stream(**prompt(4), max_new_tokens=0),
        "A stream needs at least one new token, not max_new_tokens=0.",
    ),
]


@pytest.mark.parametrize(("request_", "message"), REFUSALS)
def test_a_request_that_steps_cannot_have_is_refused_in_one_sentence(model, request_, message):
    beside = model.stream(**batch_of("llama", (7,)), max_new_tokens=8)
    made = next(beside).tolist()
    with pytest.raises(GenerationRefused, match=message) as refused:
        request_(model)

    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)
    assert free(model) == BATCH - 1
    made += rest_of(beside)
    assert [made] == best(load("llama"), batch_of("llama", (7,)), max_new_tokens=8)


TYPES = {"token_type_ids": torch.ones(2, 12, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", TYPES, "do not support token_type_ids=: "),
        ("bart", {"decoder_attention_mask": torch.zeros(2, 1)}, "decoder_attention_mask=: "),
        ("t5", {"max_new_tokens": 61}, "does not fit into a cache of 60"),
    ],
)
def test_other_models_refuse_likewise(name: str, options: dict[str, Any], message: str):
    model, batch = load_compiled(name), batch_of(name)
    with pytest.raises(GenerationRefused, match=message):
        draw(model, batch, **options)
    assert best(model, batch, max_new_tokens=4) == best(load(name), batch, max_new_tokens=4)


def test_a_prompt_of_an_encoder_beyond_every_bucket_is_refused():
    with pytest.raises(GenerationRefused, match="17 tokens, but the longest bucket has 16"):
        draw(load_compiled("t5"), prompt(17))


def qwen2_vl() -> Any:
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 8}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={**vision, "mlp_ratio": 2},
        image_token_id=IMAGE,
        vision_start_token_id=62,
    )
    torch.manual_seed(0)
    return transformers.Qwen2VLForConditionalGeneration(config).eval()


def grid() -> dict[str, Any]:
    """Return a prompt with an image of four by four patches, as Qwen2-VL's processor does."""
    tokens = torch.cat([torch.full((1, 4), IMAGE), prompt(4)["input_ids"]], dim=1)
    return {
        "input_ids": tokens,
        "pixel_values": torch.rand(16, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (tokens == IMAGE).int(),
    }


def test_images_whose_tokens_have_other_positions_are_refused():
    """Qwen2-VL counts the rows and columns of an image; its prompts of text are served."""
    eager = qwen2_vl()
    model = with_steps(eager)
    asked = grid()
    says = r"mm_token_type_ids=: this model gives image tokens"
    with pytest.raises(GenerationRefused, match=says):
        draw(model, asked)

    assert best(model, prompt(7), max_new_tokens=8) == best(eager, prompt(7), max_new_tokens=8)
    # Without kinds of tokens, `generate` gives them the positions of a text.
    asked.pop("mm_token_type_ids")
    assert best(model, asked, max_new_tokens=8) == best(eager, asked, max_new_tokens=8)


def test_a_decoder_that_takes_more_than_embeddings_is_refused():
    """Qwen3-VL adds states of an image to later layers, which the prefill step does not take."""
    model = load("llava")
    inner: Any = model.model

    class Deeper(type(inner)):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, **given: Any) -> Any:
            embedded = self.get_input_embeddings()(input_ids)
            names = ("cache", "past_key_values", "attention_mask", "position_ids", "use_cache")
            rest = {key: given[key] for key in names if key in given}
            more = {"deepstack": [embedded]} if given.get("mm_encoder_outputs") else {}
            out = self.language_model(inputs_embeds=embedded, **rest, **more)
            out.image_hidden_states = out.image_outputs = None  # the second since 5.24
            return out

    inner.__class__ = Deeper
    model = with_steps(model)

    with pytest.raises(GenerationRefused, match="the model also passes deepstack to its decoder"):
        draw(model, batch_of("llava"))


@pytest.mark.parametrize("ask", ["stream", "continuous"])
def test_an_encoder_decoder_has_batches_alone(ask: str):
    """Its sequences begin together, from the encoder's states."""
    model = load_compiled("t5")
    calls = {
        "stream": lambda: model.stream(torch.ones(1, 2), max_new_tokens=2),
        "continuous": lambda: model.continuous(call=None),
    }
    with pytest.raises(GenerationRefused, match=r"decoder-only models"):
        calls[ask]()
