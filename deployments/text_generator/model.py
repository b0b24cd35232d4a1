# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder: pre-norm blocks of one class, each with its part of a static key-value cache.

The cache is two buffers of each block, made once at their full size. Their shapes and addresses
never change, and torch treats a buffer as it treats a weight: what is compiled, or captured in
a CUDA graph, for one step is right for every step. Where a token stands is a tensor, because a
Python number would be compiled into the code, once for each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import serve_warm


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a decoder and of its cache."""

    layers: int = 12
    width: int = 384
    heads: int = 6
    vocabulary: int = 4096
    slots: int = 4
    """Sequences that the cache holds at once: the rows of each decode step."""
    max_length: int = 256
    """Positions that the cache holds of each sequence."""

    @property
    def head_width(self) -> int:
        """The share of the width that one head has."""
        return self.width // self.heads


def load_model(shape: Shape | None = None, *, device: str = "cpu") -> Decoder:
    """Return the eager decoder with random weights, the same at every start: no download."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Drawn on the CPU, so that the weights are the same on every device.
        return Decoder(shape or Shape()).eval().to(device)


def compiled(model: Decoder, *, mode: str | None = None) -> Decoder:
    """Return the decoder with compiled steps: by block, and with a `mode` of torch.compile whole.

    A block is compiled once for all layers. A CUDA graph is of one layer then, with a launch for
    each; whole, a step is one graph and one launch.
    """
    if mode is None:
        return serve_warm.compile_regions(model, dynamic=False)
    for step in ("prefill", "decode"):
        made = serve_warm.compile(getattr(model, step), mode=mode, fullgraph=True, dynamic=False)
        setattr(model, step, made)
    return model


class Decoder(nn.Module):
    """Token ids to the logits of the next token, with a cache of `shape.slots` sequences.

    `prefill` takes in the prompt of one slot, `decode` one more token of every slot.
    """

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        # Positions by rotation: pair i of a head turns by position / 10000^(i / pairs).
        pairs = shape.head_width // 2
        turns = 10_000.0 ** (-torch.arange(pairs) / pairs)
        angles = torch.arange(shape.max_length)[:, None] * turns
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def prefill(self, tokens: torch.Tensor, slot: torch.Tensor, last: torch.Tensor) -> Any:
        """Return the logits that follow a prompt, of shape (vocabulary,); its slot is filled.

        `tokens` has shape (1, bucket): the prompt and any padding behind it. `slot` and `last`,
        the prompt's last position, have shape (1,). What the padding leaves in the cache is
        never read: each position is written by its own token before any later one attends to it.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden = self._hidden(tokens, positions, slot, None)
        return self.head(self.norm(hidden[0].index_select(0, last)))[0]

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        """Return the logits that follow one more token of each slot, (slots, vocabulary).

        Both arguments have shape (slots,). Each token is written into the cache at its position
        and attends to all positions up to it.
        """
        everywhere = torch.arange(self.shape.max_length, device=tokens.device)
        seen = everywhere <= positions[:, None, None, None]
        slots = torch.arange(self.shape.slots, device=tokens.device)
        hidden = self._hidden(tokens[:, None], positions[:, None], slots, seen)
        return self.head(self.norm(hidden[:, 0]))

    def _hidden(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        cosines, sines = self.cosines[positions][:, None], self.sines[positions][:, None]
        hidden: torch.Tensor = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, cosines, sines, positions, slots, seen=seen)
        return hidden


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and added to what came in.

    No block knows which layer it is, so that the code compiled for one serves them all.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.RMSNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attended = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)
        # Untrained, attention would be the same everywhere and the last token would decide
        # alone. Larger queries and keys make it choose, so that a wrong cache shows in tokens.
        nn.init.normal_(self.queries_keys_values.weight, std=2.0 / shape.width**0.5)
        cache = (shape.slots, shape.heads, shape.max_length, shape.head_width)
        self.register_buffer("keys", torch.zeros(cache), persistent=False)
        self.register_buffer("values", torch.zeros(cache), persistent=False)

    def forward(
        self,
        hidden: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        *,
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the hidden states after this block, of the shape they came in.

        Keys and values go into the cache at `slots` and `positions`. Without `seen` they are
        those of a whole prompt, which attends to itself alone, each token up to its own place.
        With it, row for row a slot, they attend to what `seen` keeps of the cache.
        """
        projected = self.queries_keys_values(self.attention_norm(hidden))
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        # From (rows, length, heads, head width) to (rows, heads, length, head width).
        queries = rotated(queries.transpose(1, 2), cosines, sines)
        keys = rotated(keys.transpose(1, 2), cosines, sines)
        values = values.transpose(1, 2)
        # In place. Indices on both sides of a slice put their own dimensions first.
        self.keys[slots[:, None], :, positions] = keys.transpose(1, 2)
        self.values[slots[:, None], :, positions] = values.transpose(1, 2)
        if seen is None:
            mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            mixed = scaled_dot_product_attention(queries, self.keys, self.values, attn_mask=seen)
        hidden = hidden + self.attended(mixed.transpose(1, 2).flatten(-2))
        fed: torch.Tensor = self.down(gelu(self.up(self.feed_forward_norm(hidden))))
        return hidden + fed


def rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return each head's pairs (i, i + half) turned by the angle of its position."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, first * sines + second * cosines), dim=-1)
