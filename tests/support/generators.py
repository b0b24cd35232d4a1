# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Small random models of `transformers` that generate text, and their inputs.

Weights are larger than the library's initial weights. So tokens differ from step to step, and a
wrong cache changes the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import serve_warm
from components import require_module
from levels import eager_below, forget_callables

TOKENS = 32
"""New tokens of a generation."""
BATCH, MAX_LENGTH, PROMPT_LENGTHS = 3, 60, (4, 16)
SLIDING_WINDOW = 8
IMAGE, PATCHES = 63, 4
"""Token that stands for a patch of an image, and patches of each image."""

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.5,
}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWO_STACKS = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
    "init_std": 0.15,
    **ENDS,
}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", TEXT),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**TEXT, "head_dim": 8}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "initializer_range": 0.5,
            **ENDS,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **TEXT,
            "head_dim": 8,
            "num_hidden_layers": 3,
            "sliding_window": SLIDING_WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "initializer_range": 0.1,
        },
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**TEXT, "sliding_window": SLIDING_WINDOW}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**TEXT, "num_experts_per_tok": 2, "num_local_experts": 4},
    ),
    "llava": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 48,
                "image_size": 16,
                "patch_size": 8,
            },
            "image_token_index": IMAGE,
            "initializer_range": 0.5,
        },
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
            "eos_token_id": 2,
            "initializer_factor": 2.0,
            "tie_word_embeddings": False,
        },
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {**TWO_STACKS, "max_position_embeddings": 64, "forced_eos_token_id": None},
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {**TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64},
    ),
}


@pytest.fixture
def eagerly() -> Iterator[None]:
    """Run steps without a compiler, in tests of results that do not need entries."""
    with eager_below():
        yield
    forget_callables()


def random_model(name: str, kind: str = "ForCausalLM", **settings: Any) -> Any:
    """Return a model of `transformers` with these settings."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}{kind}")(config).eval()


def with_steps(model: Any, **options: Any) -> Any:
    given = {"batch": BATCH, "max_length": MAX_LENGTH, "prompt_lengths": PROMPT_LENGTHS, **options}
    return serve_warm.compile_generation(model, **given)


def load(name: str) -> Any:
    """Return a model with random weights, which are equal in all processes."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    config, model, settings = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
    if name == "mixtral":
        # In float32, the default is an operator of transformers (5.23) that no library can call.
        made.set_experts_implementation("batched_mm")
    return made


def load_compiled(
    name: str, *, batch: int = BATCH, lengths: Sequence[int] = PROMPT_LENGTHS, **arguments: Any
) -> Any:
    if name == "whisper":
        lengths = ()  # its encoder takes only one length
    return serve_warm.compile_generation(
        load(name), batch=batch, max_length=MAX_LENGTH, prompt_lengths=lengths, **arguments
    )


class Adapted(torch.nn.Module):
    """A layer with adapters, which has the attributes of a peft layer."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.merged_adapters = base, list[str]()
        self.name, self.is_off = "a", False

    @property
    def active_adapters(self) -> list[str]:
        return [self.name]

    @property
    def disable_adapters(self) -> bool:
        return self.is_off

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made = self.base(given)
        return made.roll(0 if self.is_off else ord(self.name), -1)


def load_adapted() -> Any:
    """Return a compiled Llama whose head has adapters; `model.lm_head.name` is the active one."""
    model = load("llama")
    model.lm_head = Adapted(model.lm_head)
    return with_steps(model)


def batch_of(name: str, lengths: tuple[int, ...] = (12, 9)) -> dict[str, torch.Tensor]:
    """Return prompts of these lengths, padded as the model's tokenizer would pad them."""
    noise = torch.Generator().manual_seed(sum(lengths))
    if name == "whisper":
        return {"input_features": torch.randn(len(lengths), 8, 32, generator=noise)}
    ids = torch.randint(3, 60, (len(lengths), max(lengths)), generator=noise)
    mask = torch.ones_like(ids)
    pads_left = name not in ("t5", "bart")
    for row, length in enumerate(lengths):
        padding = slice(0, max(lengths) - length) if pads_left else slice(length, None)
        ids[row, padding], mask[row, padding] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name == "llava":
        # Prompts that are long enough begin with an image.
        shown = [row for row, length in enumerate(lengths) if length > PATCHES]
        for row in shown:
            begin = max(lengths) - lengths[row]
            ids[row, begin : begin + PATCHES] = IMAGE
        if shown:
            inputs["pixel_values"] = torch.randn(len(shown), 3, 16, 16, generator=noise)
    return inputs


def generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[list[int]]:
    """Return the tokens of each row, sampled from the model's distribution with a fixed seed.

    Tokens are sampled, because a random model soon repeats its best token, which would hide a wrong
    cache.
    """
    return new_tokens(draw(model, inputs, **options), **options)


def new_tokens(sequences: torch.Tensor, *, max_new_tokens: int = TOKENS, **_: Any) -> Any:
    return sequences[:, -max_new_tokens:].tolist()


def draw(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    """Return the result of `generate`, with a fixed seed. `options` override the sampling."""
    torch.manual_seed(3)
    settings = {"max_new_tokens": TOKENS, "do_sample": True, "top_k": 8, "eos_token_id": None}
    return model.generate(**inputs, **{**settings, **options})


def best(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[list[int]]:
    return generate(model, inputs, **{"do_sample": False, "top_k": None, **options})
