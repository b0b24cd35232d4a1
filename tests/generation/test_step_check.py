# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models whose own masks or positions do not fit the steps are refused, not served wrongly."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from generators import (  # noqa: F401 - a fixture
    BATCH,
    ENDS,
    MAX_LENGTH,
    MODELS,
    PROMPT_LENGTHS,
    TEXT,
    TWO_STACKS,
    batch_of,
    best,
    eagerly,
    load,
    load_compiled,
    random_model,
    with_steps,
)
from serve_warm.errors import ConfigError, GenerationRefused
from serve_warm.generation.step_check import LARGEST_ERROR

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


def gpt_neo() -> Any:
    """Its local layers compute their window from the length of the cache."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8}
    more = {"max_position_embeddings": 64, "initializer_range": 0.5, **ENDS}
    return random_model("GPTNeo", attention_types=[[["global", "local"], 1]], **sizes, **more)


def bart_decoder() -> Any:
    """It takes no positions, and uses one for all rows."""
    options = {**TWO_STACKS, "max_position_embeddings": 64, "is_decoder": True}
    return random_model("Bart", **{**options, "is_encoder_decoder": False})


def long_rope(kind: str = "longrope") -> Any:
    rope = {
        "rope_type": kind,
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": 32,
        "factor": 2.0,
    }
    return random_model("Phi3", **TEXT, original_max_position_embeddings=32, rope_parameters=rope)


def test_a_model_whose_layers_mask_by_themselves_is_refused():
    """Before, each token after the first was wrong, and nothing said so."""
    model = with_steps(gpt_neo())
    for _ in range(2):
        with pytest.raises(ConfigError, match="GPTNeoForCausalLM gives different logits") as error:
            best(model, batch_of("llama"))
    assert "serve it with serve_warm.compile" in str(error.value.hint)
    with pytest.raises(ConfigError, match="gives different logits"):
        next(model.stream(**batch_of("llama"), max_new_tokens=2))


def test_a_model_with_one_position_for_all_rows_needs_prompts_of_one_length():
    eager = bart_decoder()
    model = with_steps(bart_decoder())
    together = {"input_ids": batch_of("llama", (9, 9))["input_ids"]}
    rows = best(model, together)
    assert rows == [best(eager, {"input_ids": ids[None]})[0] for ids in together["input_ids"]]
    with pytest.raises(GenerationRefused, match="all prompts of a batch need the same length"):
        best(model, batch_of("llama", (9, 4)))


def test_rope_that_depends_on_the_longest_row_is_refused_beyond_its_first_length():
    """Within this length, all rows have the short factors."""
    with pytest.raises(ConfigError, match="rope type 'longrope'") as error:
        with_steps(long_rope())
    model, eager = with_steps(long_rope(), max_length=32), long_rope()
    rows = best(model, batch_of("llama"), max_new_tokens=16)

    assert error.value.hint == "pass max_length=32 or less"
    asked = batch_of("llama")
    for row, keep in enumerate(asked["attention_mask"].bool()):
        alone = {"input_ids": asked["input_ids"][row : row + 1, keep]}
        assert best(eager, alone, max_new_tokens=16)[0] == rows[row]


def test_a_model_that_cannot_run_with_the_steps_is_refused_in_one_sentence():
    """LED's layers expect masks of another form."""
    sizes = {f"max_{stack}_position_embeddings": 64 for stack in ("encoder", "decoder")}
    kind = "ForConditionalGeneration"
    model = with_steps(random_model("LED", kind, **TWO_STACKS, **sizes, attention_window=4))
    with pytest.raises(ConfigError, match="LEDForConditionalGeneration cannot run with serve_warm"):
        best(model, batch_of("bart"))


def test_steps_with_compiled_code_from_an_artifact_are_not_compared_again(monkeypatch):
    """The build has compared them. A start would need six more eager calls of the model."""
    model = load_compiled("llama")
    decoder = model._serve_warm_decoder
    monkeypatch.setattr(decoder, "has_entries", lambda: True)
    monkeypatch.setattr(model._serve_warm_check, "check", lambda: pytest.fail("compared again"))
    assert best(model, batch_of("llama")) == best(load("llama"), batch_of("llama"))


def test_a_comparison_uses_free_slots_and_gives_them_back():
    model, asked = load_compiled("llama"), batch_of("llama", (7,))
    stream = model.stream(**asked, max_new_tokens=8)
    tokens = next(stream).tolist()

    assert model._serve_warm_check.find_error() < LARGEST_ERROR[4]
    others = model._serve_warm_decoder.take(2)
    with pytest.raises(GenerationRefused, match="needs 2 slots, but"):
        model._serve_warm_check.find_error()
    model._serve_warm_decoder.release(others)
    tokens += [token for each in stream for token in each.tolist()]
    assert [tokens] == best(load("llama"), asked, max_new_tokens=8)


@pytest.mark.parametrize("value", [torch.finfo(torch.float32).min, float("-inf")])
def test_logits_that_a_model_masks_do_not_hide_a_difference(value: float):
    """Before, the difference was divided by the mask, or was NaN."""

    def masked(model: Any) -> Any:
        original = model.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            out = original(*args, **kwargs)
            out.logits[..., 60:] = value
            return out

        model.forward = forward
        return with_steps(model)

    good, bad = masked(load("llama")), masked(gpt_neo())

    assert good._serve_warm_check.find_error((2, 5)) < 1e-4
    assert bad._serve_warm_check.find_error((2, 5)) > 0.1


def test_a_model_that_is_in_training_mode_at_its_first_call_is_refused_for_that():
    """Dropout would make every comparison fail."""
    model = load_compiled("gpt2")
    model.train()
    with pytest.raises(GenerationRefused, match="The model is in training mode: call eval"):
        best(model, batch_of("gpt2"))


def test_a_decoder_with_its_own_vocabulary_takes_its_own_tokens():
    """Before, tokens that the model itself chose were refused."""
    settings = {**TWO_STACKS, "vocab_size": 40, "decoder_vocab_size": 96, "pad_token_id": 0}
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    eager = random_model("Marian", "MTModel", **settings, **apart)
    model, asked = with_steps(eager), {"input_ids": torch.tensor([[5, 6, 7]])}
    tokens = best(model, asked, max_new_tokens=8)

    assert tokens == best(eager, asked, max_new_tokens=8)
    with pytest.raises(GenerationRefused, match="Token 40 is not in the vocabulary of 40 tokens"):
        best(model, {"input_ids": torch.tensor([[5, 40]])})


def test_a_served_model_and_a_peft_model_are_refused():
    """A wrapper's generate() would not use the steps."""
    model = load_compiled("llama")
    with pytest.raises(ConfigError, match="that it has already returned"):
        with_steps(model)
    wrapper = load("llama")
    wrapper.peft_config, wrapper.get_base_model = {}, lambda: None
    with pytest.raises(ConfigError, match="whose generate") as error:
        with_steps(wrapper)
    assert "get_base_model()" in str(error.value.hint)
