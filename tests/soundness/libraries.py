# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change models of `transformers` through their configuration and their own methods."""

from __future__ import annotations

from typing import Any

import torch

from soundness.rows import both, group, row

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, use_cache=False, attn_implementation="eager")
    ).eval()


def bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    return BertModel(BertConfig(**sizes)).eval()


def tokens() -> torch.Tensor:
    return torch.arange(1, 7).reshape(1, 6)


def call(f: Any) -> Any:
    return f(input_ids=tokens())


def config(name: str, *, value: Any) -> Any:
    return lambda app: setattr(app.config, name, value)


def attention(app: Any) -> Any:
    return app.model.layers[0].self_attn


def tie(app: Any) -> None:
    app.lm_head.weight = app.model.embed_tokens.weight


def heads(app: Any) -> None:
    with torch.no_grad():
        app.lm_head.weight = torch.nn.Parameter(app.lm_head.weight + 1)


GROUPS = (
    group(
        "llama",
        llama,
        both("config.output_hidden_states", config("output_hidden_states", value=True)),
        both("config.use_cache", config("use_cache", value=True)),
        row("config.output_attentions", config("output_attentions", value=True)),
        row("set_attn_implementation", lambda app: app.set_attn_implementation("sdpa"), same=True),
        row("resize_token_embeddings", lambda app: app.resize_token_embeddings(48)),
        row("tie_weights", tie),
        row("variance_epsilon", lambda app: setattr(app.model.norm, "variance_epsilon", 1.0)),
        row("scaling of attention", lambda app: setattr(attention(app), "scaling", 5.0)),
        row("lm_head", heads),
        row(
            "layers that are dropped",
            lambda app: setattr(app.model, "layers", app.model.layers[:0]),
        ),
        row(
            "gradient_checkpointing_enable",
            lambda app: app.gradient_checkpointing_enable(),
            same=True,
        ),
        # The mask that the model passes makes attention causal too.
        row(
            "is_causal of attention",
            lambda app: setattr(attention(app), "is_causal", False),
            same=True,
        ),
        row("activation", lambda app: setattr(app.model.layers[0].mlp, "act_fn", torch.nn.ReLU())),
        row(
            "keyword output_hidden_states",
            call=lambda f: f(input_ids=tokens(), output_hidden_states=True),
        ),
        row("longer input", call=lambda f: f(input_ids=torch.arange(1, 9).reshape(1, 8))),
        row(
            "attention mask",
            call=lambda f: f(input_ids=tokens(), attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]])),
        ),
        call=call,
        needs=("transformers",),
    ),
    group(
        "bert",
        bert,
        both("config.output_hidden_states of bert", config("output_hidden_states", value=True)),
        both("pooler that is removed", lambda app: setattr(app, "pooler", None)),
        row(
            "layers of bert that are dropped",
            lambda app: setattr(app.encoder, "layer", app.encoder.layer[:0]),
        ),
        call=call,
        needs=("transformers",),
    ),
)
