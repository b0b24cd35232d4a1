# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The expected answers of the text generator, from a second decoder without a cache.

The two decoders share only the weights. This decoder computes attention explicitly and rotates
positions as complex numbers, so that it does not repeat a mistake in the model.
"""

from __future__ import annotations

from typing import Any

import torch

from deployments.text_generator.model import Decoder


@torch.inference_mode()
def full_logits(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Return the logits after each of `tokens` (length, vocabulary), all computed from scratch."""
    shape, length = model.shape, len(tokens)
    pairs = shape.head_width // 2
    speeds = torch.tensor([10_000.0 ** (-pair / pairs) for pair in range(pairs)])
    turns = torch.polar(torch.ones(length, pairs), torch.arange(length)[:, None] * speeds)
    future = torch.ones(length, length).triu(1).bool()

    def turned(heads: torch.Tensor) -> torch.Tensor:
        complex_ = torch.complex(heads[..., :pairs], heads[..., pairs:]) * turns
        return torch.cat((complex_.real, complex_.imag), -1)

    hidden = model.embedding.weight[tokens]
    block: Any
    for block in model.blocks:
        parts = block.attention_norm(hidden) @ block.queries_keys_values.weight.T
        queries, keys, values = (
            part.view(length, shape.heads, shape.head_width).transpose(0, 1)
            for part in parts.split(shape.width, -1)
        )
        scores = turned(queries) @ turned(keys).transpose(1, 2) / shape.head_width**0.5
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ values
        hidden = hidden + mixed.transpose(0, 1).reshape(length, -1) @ block.attended.weight.T
        fed = torch.nn.functional.gelu(block.feed_forward_norm(hidden) @ block.up.weight.T)
        hidden = hidden + fed @ block.down.weight.T
    return model.norm(hidden) @ model.head.weight.T


def greedy(model: Decoder, prompt: list[int], *, count: int) -> list[int]:
    """Return the `count` best tokens after the prompt, with one full forward pass for each."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(full_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def best_at_each(model: Decoder, prompt: list[int], tokens: list[int]) -> list[int]:
    """Return the best token at each position of `tokens`: equal to `tokens` if those are the best.

    This takes one forward pass in total, while `greedy` takes one for each token.
    """
    logits = full_logits(model, prompt + tokens[:-1])[len(prompt) - 1 :]
    best: list[int] = logits.argmax(-1).tolist()
    return best


def prompt_of(length: int, *, vocabulary: int) -> list[int]:
    """Return a prompt that is different for each length."""
    return [(31 * length + 7 * index + index * index) % vocabulary for index in range(length)]
