# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts with images: embeddings that a model's own code makes from tokens and images.

A model such as LLaVA replaces the embeddings of some tokens with the states of its image encoder,
and passes the result to its text decoder. serve_warm runs the model's own code eagerly up to the
decoder call, and passes the embeddings to the prefill step instead of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from serve_warm.errors import GenerationRefused
from serve_warm.private_apis.nn_module import MODULES, own_modules

PICTURES = ("mm_encoder_outputs", "pixel_values", "image_sizes")
"""Arguments of a model call that hold images or image states. `generate` sets these arguments, but
not for a prompt without images. `transformers` (5.23) runs the image encoder before the first call
and passes the encoder's states."""


def pictures_in(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that are images or image states."""
    found = {name: given.get(name) for name in PICTURES}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, torch.Tensor) or (isinstance(value, Mapping) and value)
    }


def embed(model: Any, tokens: torch.Tensor, pictures: Mapping[str, Any]) -> torch.Tensor:
    """Return the embeddings, of shape (rows, length, width), for prompts with images.

    Raises:
        GenerationRefused: the decoder of this model needs inputs other than embeddings.
    """
    decoder, name = model.get_decoder(), type(model).__name__
    parent, key = _holder_of(model, decoder, name)
    # Change only a copy of the parent, because entries rely on the model as it is.
    copy: Any = object.__new__(type(parent))
    vars(copy).update(vars(parent))
    vars(copy)[MODULES] = {**own_modules(parent), key: _Instead(decoder)}
    try:
        with torch.inference_mode():
            type(copy).forward(copy, input_ids=tokens, **pictures)
    except _DecoderCalled as called:
        given = called.given
    else:
        raise _refused(name, "the model does not call its text decoder")
    embedded: torch.Tensor | None = given.pop("inputs_embeds", None)
    if embedded is None:
        raise _refused(name, "the model passes no embeddings to its decoder")
    more = sorted(key for key, value in given.items() if isinstance(value, NEVER_IGNORED))
    if more:
        raise _refused(name, f"the model also passes {' and '.join(more)} to its decoder")
    return embedded


NEVER_IGNORED = (torch.Tensor, list, tuple, Mapping)
"""Types of arguments that can affect the answer, such as masks, positions and states for deeper
layers."""


class _DecoderCalled(Exception):
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given


class _Instead(nn.Module):
    """Stand-in for a decoder: has the decoder's attributes, but a call raises `_DecoderCalled`."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        vars(self)["decoder"] = decoder  # not a child module: it belongs to the model

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["decoder"], name)

    def forward(self, **given: Any) -> Any:
        raise _DecoderCalled(given)


def _holder_of(model: Any, decoder: Any, name: str) -> tuple[Any, str]:
    """Return the module that calls the decoder, and the decoder's name in that module."""
    for parent in model.modules():
        for key, child in own_modules(parent).items():
            if child is decoder and parent is not model:
                return parent, key
    raise _refused(name, "the model has no text decoder that is separate from its image input")


def _refused(name: str, why: str) -> GenerationRefused:
    return GenerationRefused(f"The compiled steps do not support images for a {name}: {why}.")
