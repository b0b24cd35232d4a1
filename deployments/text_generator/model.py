# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder: pre-norm blocks of one class, each with its part of a static key-value cache.

Each block has two buffers for its part of the cache, allocated once at full size. The shapes and
addresses of these buffers never change, and torch treats a buffer like a weight. So the code and
the CUDA graph of one step are correct for every step. A token's position is a tensor, because torch
would compile the code again for each value of a Python number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import serve_warm
from serve_warm.generation import CachedDecoder


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a decoder and of its cache."""

    layers: int = 12
    width: int = 384
    heads: int = 6
    vocabulary: int = 4096
    slots: int = 4
    """Number of sequences in the cache, and of rows in each decode step."""
    max_length: int = 256
    """Number of positions of each sequence in the cache."""

    @property
    def head_width(self) -> int:
        """The width of one head."""
        return self.width // self.heads


def load_model(shape: Shape | None = None, *, device: str = "cpu") -> Decoder:
    """Return the eager decoder with random weights, which are the same at every start.

    Nothing is downloaded.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Generated on the CPU, so that the weights are the same on every device.
        return Decoder(shape or Shape()).eval().to(device)


def compiled(model: Decoder, *, mode: str | None = None) -> Decoder:
    """Return the decoder with compiled blocks, or with each whole step compiled if `mode` is set.

    With compiled blocks, one block is compiled, and all layers use its code. But with CUDA graphs,
    each compiled block would be a graph with its own launch. A step that is compiled as a whole is
    one graph with one launch.
    """
    if mode is None:
        return serve_warm.compile_regions(model, dynamic=False)
    for step in ("prefill", "decode"):
        made = serve_warm.compile(getattr(model, step), mode=mode, fullgraph=True, dynamic=False)
        setattr(model, step, made)
    return model


def decoder_of(model: Decoder, lengths: Sequence[int]) -> CachedDecoder:
    """Return a decoder's steps and slots as one object, for prompts padded to these lengths."""
    shape = model.shape
    return CachedDecoder(
        prefill=model.prefill,
        decode=model.decode,
        slots=shape.slots,
        max_length=shape.max_length,
        prompt_lengths=lengths,
        device=model.head.weight.device,
        # No sequence reads this position, because the last token of the longest sequence is
        # returned but not written into the cache.
        idle_position=shape.max_length - 1,
        vocabulary=lambda: (shape.vocabulary, shape.vocabulary),
    )


class Decoder(nn.Module):
    """Maps token ids to the logits of the next token, with a cache for `shape.slots` sequences.

    `prefill` processes the prompt of one slot. `decode` processes one more token of every slot.
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
        # Rotary positions: pair i of a head turns by position / 10000^(i / pairs).
        pairs = shape.head_width // 2
        turns = 10_000.0 ** (-torch.arange(pairs) / pairs)
        angles = torch.arange(shape.max_length)[:, None] * turns
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def prefill(self, tokens: torch.Tensor, slot: torch.Tensor, last: torch.Tensor) -> Any:
        """Fill a slot with a prompt, and return the next token's logits in shape (vocabulary,).

        `tokens` has shape (1, bucket): the prompt and any padding after it. `slot` and `last`, the
        prompt's last position, have shape (1,). Padding in the cache is never read: the real
        token of a position overwrites the padding before any token attends to this position.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden = self._hidden(tokens, positions, slot, None)
        return self.head(self.norm(hidden[0].index_select(0, last)))[0]

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        """Add a token to each slot, and return the next logits in shape (slots, vocabulary).

        Both arguments have shape (slots,). Each token is written into the cache at its position,
        and attends to all positions up to and including its own position.
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
    """Attention and a feed-forward part, each after a norm and with a residual connection.

    A block does not know its layer's number, so all blocks can use the code that is compiled for
    one block.
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
        # Without training, attention would be uniform, so only the last token would matter. Larger
        # queries and keys make attention selective, so that a wrong cache changes the tokens.
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
        """Return the hidden states after this block, in the same shape.

        Keys and values go into the cache at `slots` and `positions`. Without `seen`, the input is a
        whole prompt, and each token attends to itself and earlier tokens of the prompt. With
        `seen`, each row is a slot and attends to the cache positions that `seen` keeps.
        """
        projected = self.queries_keys_values(self.attention_norm(hidden))
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        # From (rows, length, heads, head width) to (rows, heads, length, head width).
        queries = rotated(queries.transpose(1, 2), cosines, sines)
        keys = rotated(keys.transpose(1, 2), cosines, sines)
        values = values.transpose(1, 2)
        # Write in place. Indices on both sides of a slice move the indexed dimensions to the front.
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
    """Return each head with its pairs (i, i + half) rotated by the angle of the position."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, first * sines + second * cosines), dim=-1)
