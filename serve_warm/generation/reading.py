# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cache that a `transformers` model needs, found by calling the model once.

The call is eager and takes one token. The call fills a dynamic cache, which shows the heads and
widths of each layer. No configuration setting gives the heads and widths for all models.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm.errors import ConfigError
from serve_warm.generation.steps import CACHE, CallForm, LayerShape
from serve_warm.private_apis.transformers import attention_of

SLIDING = ("sliding_attention",)
FULL = ("full_attention",)
MASKS = {"sdpa": True, "eager": False}
"""Attention implementations that take a mask. The value says whether the mask is boolean."""

ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""Exceptions that a model raises if it does not work with the cache or the mask that it gets."""


@record(frozen=True, kw_only=True)
class Needs:
    """The caches that a model needs, and the arguments that the model expects in a step."""

    layers: Sequence[LayerShape]
    cross: Sequence[LayerShape]
    """Caches of cross-attention, one for each layer; empty without an encoder."""
    form: CallForm
    like: torch.Tensor
    """An empty tensor with the cache's dtype and device."""
    encoder_length: int = 0
    """Number of positions in the encoder's states; 0 if the length of the input can vary."""
    features: torch.Tensor | None = None
    """An input for the encoder, if its length is fixed."""


def read(model: Any, *, max_length: int, prompt_lengths: Sequence[int]) -> Needs:
    """Return the caches that a model needs, and the arguments that the model expects in a step.

    Raises:
        ConfigError: the model cannot generate, or a layer has no cache of a fixed size.
    """
    _check_kind(model)
    config = model.config.get_text_config(decoder=True)
    attention = attention_of(config)
    if attention not in MASKS:
        raise ConfigError(
            f"{type(model).__name__} uses attention {attention!r}, whose masks are not tensors",
            hint="load the model with attn_implementation='sdpa'",
        )
    try:
        cache, states, features = _call_once(model)
    except ERRORS as error:
        raise _refuse("cache", model, error) from error
    encoder_length = 0 if features is None or states is None else states.shape[1]
    own, cross = cache, None
    if isinstance(cache, EncoderDecoderCache):
        own, cross = cache.self_attention_cache, cache.cross_attention_cache
    kinds = getattr(config, "layer_types", None)
    windows = _windows(model, own, kinds, max_length)
    try:
        whole = _find_whole_prompts(model, own, windows, kinds, prompt_lengths)
    except ERRORS as error:
        raise _refuse("masks", model, error) from error
    accepted = inspect.signature(model.forward).parameters
    # `GenerationMixin` also passes a separate mask for each layer type to such models (5.20, 5.24).
    types = sorted(dict(zip(kinds, windows, strict=True)).items()) if kinds else []
    prompt_types = [(kind, max_length if kind in whole else each) for kind, each in types]
    form = CallForm(
        dtype=model.dtype,
        has_bool_masks=MASKS[attention],
        window=windows[0],
        prompt_window=max_length if "" in whole else windows[0],
        layer_types=tuple(types),
        prompt_layer_types=tuple(prompt_types),
        positions=next((k for k in ("position_ids", "decoder_position_ids") if k in accepted), ""),
        has_logits_to_keep="logits_to_keep" in accepted,
        masks_encoder=cross is not None and _has_mask(model.get_encoder()),
        encoder_width=0 if states is None else states.shape[-1],
    )
    return Needs(
        layers=[_shape(layer, size) for layer, size in zip(own.layers, windows, strict=True)],
        cross=[
            _shape(layer, encoder_length or max(prompt_lengths))
            for layer in (cross.layers if cross is not None else ())
        ],
        form=form,
        like=own.layers[0].keys.new_empty(0),
        encoder_length=encoder_length,
        features=features,
    )


def make_cache(model: Any) -> Any:
    """Return an empty cache, as the model's `generate` makes it."""
    config = model.config.get_text_config(decoder=True)
    if not model.config.is_encoder_decoder:
        return DynamicCache(config=config)
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


def count_tokens(model: Any) -> tuple[int, int]:
    """Return how many tokens the encoder and the decoder of a model know."""

    def count(part: Any) -> int:
        return int(part.get_input_embeddings().weight.shape[0])

    if not model.config.is_encoder_decoder:
        return count(model), count(model)
    encoder = model.get_encoder()
    is_text = model.main_input_name == "input_ids"
    return count(encoder) if is_text else 0, count(model.get_decoder())


def _refuse(what: str, model: Any, error: Exception) -> ConfigError:
    return ConfigError(
        f"compile_generation could not find the {what} of {type(model).__name__}: "
        f"{describe_error(error)}",
        hint="serve it with serve_warm.compile, without a cache",
    )


def _check_kind(model: Any) -> None:
    name = type(model).__name__
    can_generate = getattr(model, "can_generate", None)
    if can_generate is None or not can_generate():
        raise ConfigError(
            f"compile_generation got a {name}, which has no generate()",
            hint="pass a transformers model with a language-model head, for example from "
            "AutoModelForCausalLM",
        )
    if model.training:
        raise ConfigError(
            f"compile_generation got a {name} in training mode",
            hint="call model.eval() first, because with dropout every answer is different",
        )
    if getattr(model, "hf_device_map", None) and len(set(model.hf_device_map.values())) > 1:
        raise ConfigError(
            f"compile_generation got a {name} on several devices",
            hint="load the model on one device",
        )


def _call_once(model: Any) -> tuple[Any, Any, torch.Tensor | None]:
    """Return the cache after a one-token call, the encoder's states, and the encoder's input.

    The states are None without an encoder. The input is None if its length can vary.
    """
    name, device = type(model).__name__, model.device
    token = torch.zeros((1, 1), dtype=torch.int64, device=device)
    cache = make_cache(model)
    with torch.inference_mode():
        if not model.config.is_encoder_decoder:
            out = model(input_ids=token, use_cache=True, **{CACHE: cache})
            features, states = None, None
        else:
            features = _features(model)
            given = token if features is None else features
            states = model.get_encoder()(given).last_hidden_state
            out = model(
                encoder_outputs=(states,),
                decoder_input_ids=token,
                use_cache=True,
                **{CACHE: cache},
            )
    if getattr(out, CACHE, None) is not cache:
        raise ConfigError(
            f"{name} does not keep its state in a transformers key-value cache",
            hint="serve it with serve_warm.compile, without a cache",
        )
    return cache, states, features


def _features(model: Any) -> torch.Tensor | None:
    """Return an input for an encoder whose input has a fixed length; None for a text encoder."""
    if model.main_input_name == "input_ids":
        return None
    config, encoder = model.config, model.get_encoder()
    is_known = model.main_input_name == "input_features" and hasattr(encoder, "conv2")
    if is_known and hasattr(config, "max_source_positions"):
        stride = encoder.conv1.stride[0] * encoder.conv2.stride[0]
        length = config.max_source_positions * stride
        shape = (1, config.num_mel_bins, length)
        return torch.zeros(shape, dtype=model.dtype, device=model.device)
    raise ConfigError(
        f"compile_generation does not know the length of {model.main_input_name!r} for a "
        f"{type(model).__name__}",
        hint="use Whisper, or a model with a text encoder",
    )


def _has_mask(encoder: Any) -> bool:
    # Whisper's encoder has a mask argument, but ignores it.
    return "attention_mask" in inspect.signature(encoder.forward).parameters and not hasattr(
        encoder, "conv1"
    )


def _windows(model: Any, cache: Any, kinds: Sequence[str] | None, max_length: int) -> list[int]:
    """Return the number of positions that each layer's cache keeps."""
    found = []
    for number, layer in enumerate(cache.layers):
        # `generate` makes the same cache, so a window counts even if the model has no use for it.
        window = getattr(layer, "sliding_window", None)
        kind = kinds[number] if kinds else ("sliding_attention" if window else "full_attention")
        has_keys = isinstance(layer, DynamicLayer) and layer.keys is not None
        if kind not in (*SLIDING, *FULL) or not has_keys:
            raise ConfigError(
                f"layer {number} of {type(model).__name__} has no static key-value cache: "
                f"the layer's kind is {kind.replace('_', ' ')}, and its cache is a "
                f"{type(layer).__name__}",
                hint="full and sliding-window attention are supported",
            )
        found.append(min(window, max_length) if window else max_length)
    if not found:
        raise ConfigError(
            f"{type(model).__name__} put nothing into its cache",
            hint="set use_cache=True in the configuration of the model",
        )
    return found


def _find_whole_prompts(
    model: Any,
    cache: Any,
    windows: Sequence[int],
    kinds: Sequence[str] | None,
    prompt_lengths: Sequence[int],
) -> set[str]:
    """Return the layer types whose window the model ignores while it reads a prompt.

    Without layer types, the type of all layers is "". A configuration can have a window that the
    model's masks ignore, for example a window that was left over in the configuration of a Llama.
    """
    window, longest = min(windows), max(prompt_lengths, default=0)
    if model.config.is_encoder_decoder or longest <= window:
        return set()
    of_layers = kinds or [""] * len(windows)
    narrow = {kind for kind, size in zip(of_layers, windows, strict=True) if size == window}

    def call(kind: str | None) -> torch.Tensor:
        """Return the logits of one token after `window` others, the first of which stands out."""
        past = DynamicCache()
        for number, layer in enumerate(cache.layers):
            keys, values = (
                each.new_zeros((1, each.shape[1], window, each.shape[3]))
                for each in (layer.keys, layer.values)
            )
            if of_layers[number] == kind:
                values[:, :, 0] = OUTSTANDING
            past.update(keys, values, number)
        token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        logits: torch.Tensor = model(input_ids=token, use_cache=True, **{CACHE: past}).logits
        return logits.float()

    with torch.inference_mode():
        plain = call(None)
        limit = VISIBLE * plain.abs().max()
        return {kind for kind in narrow if (call(kind) - plain).abs().max() > limit}


OUTSTANDING = 1e4
"""Value of a cached token that attention cannot overlook. Half precision can represent it."""

VISIBLE = 1e-3
"""Smallest change of logits, relative to the largest logit, that shows that a token was read."""


def _shape(layer: Any, window: int) -> LayerShape:
    return LayerShape(
        heads=layer.keys.shape[1],
        key_width=layer.keys.shape[3],
        value_width=layer.values.shape[3],
        window=window,
    )
