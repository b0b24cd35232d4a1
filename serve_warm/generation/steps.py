# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled steps of a `transformers` model, and the cache that these steps write.

The cache consists of module buffers, which are allocated once, at full size. The shapes and
addresses of the buffers never change, and torch treats buffers like weights. So every decode step
uses the same code and the same CUDA graph. While torch is tracing a step, the step makes the
model's own cache objects from these buffers. Each row of the cache is a slot. Each slot holds one
sequence without padding, with each token at its own position. Positions and lengths are tensors,
because torch would recompile for each value of a plain number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from serve_warm._package import public
from serve_warm._records import record

GRAPH = 1
"""Version of the graphs that this module's code makes. Increase it if the graphs change. Entries
are checked against this version, because facts contain no digest of this package's code."""

_OUTPUTS = {field.name for field in dataclasses.fields(CausalLMOutputWithPast)}

CACHE = "cache" if "cache" in _OUTPUTS else "past_key_values"
"""Name of the argument and of the output with a model's cache. `transformers` 5.24 renamed both."""


@record(frozen=True, kw_only=True)
class LayerShape:
    """The shape of one layer's cache: heads, widths and the number of positions kept."""

    heads: int
    key_width: int
    value_width: int
    window: int
    """Number of positions that a token attends to, including its own position."""


@record(frozen=True, kw_only=True)
class CallForm:
    """The arguments that a model expects in a step: its masks, positions and encoder states."""

    dtype: torch.dtype
    has_bool_masks: bool
    window: int
    """Number of positions that every layer attends to, unless `layer_types` has several values."""
    prompt_window: int
    """The same for the tokens of a prompt. Some models ignore the window in their masks, but drop
    keys from their cache after the prompt."""
    layer_types: tuple[tuple[str, int], ...] = ()
    """Layer types with their windows, if the model takes a separate mask for each layer type."""
    prompt_layer_types: tuple[tuple[str, int], ...] = ()
    """The same for the tokens of a prompt."""
    positions: str = ""
    """Name of the argument for token positions; empty if the model derives them from its cache."""
    has_logits_to_keep: bool = False
    """Whether the model can run its head on one token of a prompt."""
    masks_encoder: bool = False
    """Whether attention takes a mask of the encoder's padding."""
    encoder_width: int = 0
    """Width of the encoder's states; 0 without an encoder."""


@public
class LayerCache(nn.Module):
    """Keys and values of one layer, as a ring of `window` positions for each slot.

    Padding and the tokens of idle slots are written behind the ring, where nothing reads them.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, shape: LayerShape, size: int, *, slots: int, like: torch.Tensor) -> None:
        super().__init__()
        self.window = shape.window
        for name, width in (("keys", shape.key_width), ("values", shape.value_width)):
            zeros = like.new_zeros((slots, shape.heads, size, width))
            self.register_buffer(name, zeros, persistent=False)


@public
class SlotCache(nn.Module):
    """A model's cache: one `LayerCache` for each layer, or two for each in encoder-decoders."""

    encoder_lengths: torch.Tensor

    def __init__(
        self,
        layers: Sequence[LayerShape],
        cross: Sequence[LayerShape],
        *,
        slots: int,
        max_length: int,
        like: torch.Tensor,
    ) -> None:
        super().__init__()
        self.count, self.max_length = slots, max_length
        self.layers = nn.ModuleList(
            LayerCache(one, _size(one.window), slots=slots, like=like) for one in layers
        )
        # Cross-attention reads the whole cache, in some models without a mask, so this cache has no
        # positions behind the ring.
        self.cross = nn.ModuleList(
            LayerCache(one, one.window, slots=slots, like=like) for one in cross
        )
        lengths = torch.ones(slots, dtype=torch.int64, device=like.device)
        self.register_buffer("encoder_lengths", lengths, persistent=False)


def _size(window: int) -> int:
    """Return the smallest multiple of 8 that has room for a ring and one more position."""
    return (window + 8) // 8 * 8


def _places(positions: Any, cache: Any, limit: int) -> Any:
    """Return each token's index in the cache: behind the ring if its position is >= `limit`."""
    return torch.where(positions < limit, positions % cache.window, cache.keys.shape[2] - 1)


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The object that a model's layer uses as its cache; each trace makes a new one."""

    is_compileable = True
    is_sliding = False

    def __init__(
        self, cache: Any, rows: Any, places: Any, *, seen: Any, is_prompt: bool, kept: Any = None
    ) -> None:
        """`kept` marks the prompt tokens that are stored in the ring."""
        self.cache, self.rows, self.places, self.seen = cache, rows, places, seen
        self.is_prompt, self.kept = is_prompt, kept
        self.keys, self.values = cache.keys, cache.values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        pass

    def update(self, key_states: Any, value_states: Any, *_args: Any, **_kwargs: Any) -> Any:
        # Indices on both sides of a slice move the indexed dimensions to the front.
        self.cache.keys[self.rows, :, self.places] = self._written(key_states)
        self.cache.values[self.rows, :, self.places] = self._written(value_states)
        # The prompt is the first content of a slot, so it attends only to itself.
        if self.is_prompt:
            return key_states, value_states
        return self.cache.keys, self.cache.values

    def _written(self, states: Any) -> Any:
        by_token = states.transpose(1, 2)
        if self.kept is None:
            return by_token
        # All padding is written to one position, and a GPU writes in any order. If all padding has
        # the same value, each call leaves the same cache.
        return by_token.masked_fill(~self.kept[..., None, None], 0)

    def get_seq_length(self) -> Any:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length if self.is_prompt else self.cache.keys.shape[2], 0

    def get_max_length(self) -> int:
        return int(self.cache.window)


class _Step(nn.Module):
    """One kind of call: the model, the cache, and the form of the model's arguments."""

    def __init__(self, model: Any, slots: SlotCache, form: CallForm) -> None:
        super().__init__()
        self.model, self.slots, self.form = model, slots, form
        self.graph = GRAPH

    def _check_graph(self) -> None:
        if self.graph != GRAPH:  # makes the version a fact of each entry
            raise AssertionError

    def _mask(self, keep: Any) -> Any:
        """Return a mask in the form that the model's attention expects."""
        if self.form.has_bool_masks:
            return keep
        low = torch.finfo(self.form.dtype).min
        return torch.zeros_like(keep, dtype=self.form.dtype).masked_fill(~keep, low)

    def _masks(self, of_window: Any, window: int, types: tuple[tuple[str, int], ...]) -> Any:
        if not types:
            return self._mask(of_window(window))
        return {kind: self._mask(of_window(each)) for kind, each in types}

    def _call(self, tokens: Any, positions: Any, layers: Any, masks: Any, **more: Any) -> Any:
        decoder = "decoder_" if self.form.encoder_width else ""
        # Prompts of models that take images have a third dimension: they are embeddings.
        name = "inputs_embeds" if tokens.dim() == 3 else f"{decoder}input_ids"
        arguments = {name: tokens, f"{decoder}attention_mask": masks, **more}
        arguments.setdefault(CACHE, Cache(layers=layers))
        if self.form.positions:
            arguments[self.form.positions] = positions
        return self.model(use_cache=True, **arguments).logits


@public
class Prefill(_Step):
    """Fills one slot with a prompt and returns the logits after it, of shape (vocabulary,).

    `tokens` has shape (1, bucket): the prompt and any padding after it. Embeddings instead of
    tokens have shape (1, bucket, width). `slot` and `last`, the prompt's last position, have shape
    (1,).
    """

    def forward(self, tokens: Any, slot: Any, last: Any) -> Any:
        """Return the logits after the prompt."""
        self._check_graph()
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)[None]
        query, key = positions[0][:, None], positions

        def of_window(window: int) -> Any:
            keep = key <= query
            return (keep & (key > query - window) if window < length else keep)[None, None]

        layers, limit = [], self.slots.max_length
        for cache in self.slots.layers:
            # Write padding behind the ring, and also tokens that later tokens would overwrite.
            kept = (positions <= last) & (positions > last - cache.window)
            places = _places(positions.masked_fill(~kept, limit), cache, limit)
            layers.append(_Layer(cache, slot[:, None], places, seen=0, is_prompt=True, kept=kept))
        masks = self._masks(of_window, self.form.prompt_window, self.form.prompt_layer_types)
        if self.form.has_logits_to_keep:
            return self._call(tokens, positions, layers, masks, logits_to_keep=last)[0, 0]
        return self._call(tokens, positions, layers, masks)[0].index_select(0, last)[0]


@public
class Encode(_Step):
    """Returns the encoder's states for one input: tokens of shape (1, bucket), or features.

    `length`, of shape (1,), is the length of a text without padding.
    """

    def forward(self, inputs: Any, length: Any) -> Any:
        """Return the encoder's states."""
        self._check_graph()
        if not self.form.masks_encoder:
            return self.model(inputs).last_hidden_state
        keep = torch.arange(inputs.shape[1], device=inputs.device)[None] < length[:, None]
        mask = self._mask(keep[:, None, None])
        return self.model(inputs, attention_mask=mask).last_hidden_state


@public
class Begin(_Step):
    """Fills one slot from the encoder's states and a first token; returns the next logits.

    `states` has shape (1, bucket, width); `length`, `token` and `slot` have shape (1,).
    """

    def forward(self, states: Any, length: Any, token: Any, slot: Any) -> Any:
        """Return the logits after the first token."""
        self._check_graph()
        self.slots.encoder_lengths[slot] = length
        zero = torch.zeros_like(token)[None]
        everywhere = torch.arange(states.shape[1], device=states.device)[None]
        own: list[Any] = [
            _Layer(cache, slot[:, None], zero, seen=0, is_prompt=True)
            for cache in self.slots.layers
        ]
        cross: list[Any] = [
            _Layer(cache, slot[:, None], everywhere, seen=0, is_prompt=True)
            for cache in self.slots.cross
        ]
        more = {CACHE: EncoderDecoderCache(Cache(layers=own), Cache(layers=cross))}
        if self.form.masks_encoder:
            keep = everywhere < length[:, None]
            more["attention_mask"] = self._mask(keep[:, None, None])
        masks = self._mask(torch.ones_like(zero, dtype=torch.bool)[:, None, None])
        return self._call(token[None], zero, own, masks, encoder_outputs=(states,), **more)[0, -1]


@public
class Decode(_Step):
    """Returns the logits for the next token of every slot, of shape (slots, vocabulary).

    `tokens` and `positions` have shape (slots,). A slot whose position is `max_length` is idle: its
    cache does not change, and its logits are meaningless.
    """

    def forward(self, tokens: Any, positions: Any) -> Any:
        """Return the logits after one more token in each slot."""
        self._check_graph()
        limit = self.slots.max_length
        rows = torch.arange(self.slots.count, device=tokens.device)[:, None]
        where = positions[:, None]
        # Idle slots have position 0, because some models choose factors by the largest position.
        own = where.masked_fill(where >= limit, 0)
        # Models without an argument for positions use one position for all rows.
        seen = own.amax()

        def of_window(window: int) -> Any:
            place = torch.arange(_size(window), device=tokens.device)[None]
            keep = ((place <= own) | (own >= window)) & (place < window)
            return keep[:, None, None]

        layers: list[Any] = [
            _Layer(cache, rows, _places(where, cache, limit), seen=seen, is_prompt=False)
            for cache in self.slots.layers
        ]
        masks = self._masks(of_window, self.form.window, self.form.layer_types)
        if not self.form.encoder_width:
            return self._call(tokens[:, None], own, layers, masks)[:, -1]
        cross: list[Any] = [
            _Layer(cache, rows, where, seen=1, is_prompt=False) for cache in self.slots.cross
        ]
        more = {CACHE: EncoderDecoderCache(Cache(layers=layers), Cache(layers=cross))}
        if self.form.masks_encoder:
            place = torch.arange(cross[0].keys.shape[2], device=tokens.device)[None]
            keep = place < self.slots.encoder_lengths[:, None]
            more["attention_mask"] = self._mask(keep[:, None, None])
        # Its values are never read, because the cross-attention of all layers is in the cache.
        states = cross[0].keys.new_zeros((self.slots.count, 1, self.form.encoder_width))
        return self._call(tokens[:, None], own, layers, masks, encoder_outputs=(states,), **more)[
            :, -1
        ]
