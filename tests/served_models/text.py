# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` for text: encoders, decoders, and encoders with decoders."""

from __future__ import annotations

from typing import Any

from served_models.rows import (
    DYNAMIC,
    TWO,
    encoder_decoder,
    ids,
    masked,
    no_cache,
    transformers_row,
)

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
"""Also of models for images and for audio."""
TOKENS: dict[str, Any] = {
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {**SIZES, **TOKENS}
TEXT = {**BERT, "num_key_value_heads": 2}
HEADS = {**TEXT, "head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}
BART = {
    **TOKENS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
}
T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}


def _cache_inside(_: Any, more: int) -> dict[str, Any]:
    return {"input_ids": ids(more)}


def _dynamic_cache(model: Any, more: int) -> dict[str, Any]:
    import transformers

    from serve_warm.generation.steps import CACHE

    cache: Any = transformers.DynamicCache(config=model.config)
    return {"input_ids": ids(more), CACHE: cache}


def _static_cache(model: Any, more: int) -> dict[str, Any]:
    import transformers

    from serve_warm.generation.steps import CACHE

    cache: Any = transformers.StaticCache(config=model.config, max_cache_len=16)
    return {"input_ids": ids(more), CACHE: cache}


LM = "ForCausalLM"
CLASSES = "ForSequenceClassification"
SEQ2SEQ = "ForConditionalGeneration"

ENCODERS = [
    transformers_row("bert", "Bert", BERT, masked, shapes=TWO),
    transformers_row("roberta", "Roberta", BERT, masked, shapes=DYNAMIC),
    transformers_row(
        "distilbert",
        "DistilBert",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        masked,
        shapes=TWO,
    ),
    transformers_row("electra", "Electra", {**BERT, "embedding_size": 32}, masked, CLASSES),
    transformers_row("albert", "Albert", {**BERT, "embedding_size": 16}, masked, shapes=TWO),
    transformers_row("mpnet", "MPNet", BERT, masked, shapes=TWO),
    transformers_row(
        "deberta-v2",
        "DebertaV2",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        masked,
        shapes=TWO,
    ),
    transformers_row("modernbert", "ModernBert", BERT, masked, shapes=DYNAMIC),
    transformers_row("xlm-roberta reranker", "XLMRoberta", BERT, masked, CLASSES, DYNAMIC),
    transformers_row(
        "bert, named entities", "Bert", BERT, masked, "ForTokenClassification", DYNAMIC
    ),
    transformers_row(
        "bert, question answering", "Bert", BERT, masked, "ForQuestionAnswering", DYNAMIC
    ),
    transformers_row("longformer", "Longformer", {**BERT, "attention_window": 4}, masked),
]

DECODERS = [
    transformers_row(
        "gpt2",
        "GPT2",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        no_cache,
        "LMHeadModel",
        TWO,
    ),
    transformers_row("llama", "Llama", TEXT, no_cache, LM, TWO),
    transformers_row("qwen3", "Qwen3", HEADS, no_cache, LM, DYNAMIC),
    transformers_row("gemma2", "Gemma2", HEADS, no_cache, LM, TWO),
    transformers_row("llama, cache made inside", "Llama", TEXT, _cache_inside, LM),
    transformers_row("llama, DynamicCache given", "Llama", TEXT, _dynamic_cache, LM),
    transformers_row("llama, StaticCache given", "Llama", TEXT, _static_cache, LM),
    transformers_row("mixtral", "Mixtral", {**TEXT, **EXPERTS}, no_cache, LM),
    transformers_row(
        "qwen3-moe", "Qwen3Moe", {**HEADS, **EXPERTS, "moe_intermediate_size": 16}, no_cache, LM
    ),
    transformers_row(
        "mamba",
        "Mamba",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        no_cache,
        LM,
    ),
    transformers_row(
        "mistral, sliding window", "Mistral", {**HEADS, "sliding_window": 6}, no_cache, LM, TWO
    ),
    transformers_row("qwen2", "Qwen2", TEXT, no_cache, LM, DYNAMIC),
    transformers_row(
        "gemma3",
        "Gemma3",
        {**HEADS, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        no_cache,
        "ForCausalLM",
    ),
    transformers_row(
        "phi3, longrope",
        "Phi3",
        {
            **TEXT,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 32,
            },
        },
        no_cache,
        LM,
    ),
    transformers_row(
        "llama, dynamic rope",
        "Llama",
        {**TEXT, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        no_cache,
        LM,
    ),
    transformers_row(
        "gpt-oss",
        "GptOss",
        {**HEADS, **EXPERTS, "sliding_window": 6, "num_local_experts": 4},
        no_cache,
        LM,
    ),
    transformers_row("gpt-neox", "GPTNeoX", BERT, no_cache, LM, DYNAMIC),
    transformers_row(
        "rwkv",
        "Rwkv",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 32},
        no_cache,
        LM,
    ),
]

TRANSLATORS = [
    transformers_row("t5", "T5", T5, encoder_decoder, SEQ2SEQ, TWO),
    transformers_row("bart", "Bart", BART, encoder_decoder, shapes=TWO),
    transformers_row("marian", "Marian", BART, encoder_decoder, "MTModel"),
]

ROWS = [*ENCODERS, *DECODERS, *TRANSLATORS]
