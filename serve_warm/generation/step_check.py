# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison of a model's decoding steps with the model itself, before the steps are compiled.

The steps call a model with masks, positions and a cache that serve_warm makes. A model may ignore
them, or compute its own, such as a local window that depends on the size of the cache. The build
compares each compiled step with the same step in eager mode, so the build cannot notice this. So a
process that will compile the steps first runs them eagerly on two short sequences, and compares the
logits with calls of the model that use the cache of its `generate`.

A sequence must be longer than a window of the model to show what the model does with the window.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from serve_warm._redaction import describe_error
from serve_warm.errors import ConfigError, GenerationRefused
from serve_warm.generation.decoder import CachedDecoder
from serve_warm.generation.reading import ERRORS, count_tokens, make_cache
from serve_warm.generation.steps import CACHE

LENGTHS = (2, 5)
"""Prompt lengths of the compared sequences, if the longest bucket allows them."""

STEPS = 2
"""Number of decode steps after each prompt, if the cache allows."""

LONGEST = 4097
"""Maximum number of tokens of a prompt that exceeds a window. Longer windows are not compared."""

MOST_STEPS = 64
"""Maximum number of decode steps, for a prompt that is shorter than a window."""

LARGEST_ERROR = {4: 1e-2, 2: 0.08}
"""Largest allowed difference, relative to the largest logit, for each element size in bytes. With
correct steps, logits of random Llamas differ by up to 0.02 (32 layers, 16 bits) or 0.002 (80
layers, TF32), because sums are rounded in a different order. A wrong mask in one of 24 layers
changed logits by 0.1, and wrong positions changed them by about their own size."""

LARGEST_OF_EXPERTS = 0.6
"""The limit for mixture-of-experts models with 16 bits. Rounding can make such a model choose
different experts. With 16 layers, this changed logits by up to 0.53."""

MASKED = 1e30
"""Logits beyond this number are masks, such as `torch.finfo(dtype).min`."""


class StepCheck:
    """Compares a model's steps with the model itself, on a few short sequences."""

    def __init__(
        self,
        model: Any,
        steps: Mapping[str, Any],
        decoder: CachedDecoder,
        *,
        positions: str = "",
        features: torch.Tensor | None = None,
    ) -> None:
        """`steps` are not compiled. `features` is an encoder's input of fixed size, if any.

        `positions` is the name of the model's argument for positions, which `generate` passes too.
        """
        self.is_done = False
        """Whether `check` has found that the steps are right."""
        self._lock = threading.Lock()
        self._positions = positions
        windows = [cache.window for cache in steps["decode"].slots.layers]
        within = [each for each in windows if each < min(decoder.max_length, LONGEST)]
        self._past_windows = max(within, default=0) + 1
        """Number of tokens of a sequence that exceeds the windows."""
        self.model, self._real, self._features = model, decoder, features
        self._largest = LARGEST_ERROR.get(model.dtype.itemsize, LARGEST_ERROR[4])
        if model.dtype.itemsize < 4 and _has_experts(model.config):
            self._largest = LARGEST_OF_EXPERTS
        self._decoder = CachedDecoder(
            **steps,
            slots=decoder.slots,
            max_length=decoder.max_length,
            prompt_lengths=decoder.prompt_lengths,
            device=decoder.device,
        )

    def find_error(self, lengths: Sequence[int] | None = None) -> float:
        """Return the largest difference between logits, relative to the largest logit.

        `lengths` are the prompt lengths to compare, by default those of `lengths()`.

        Uses free slots of the decoder during the comparison.

        Raises:
            ConfigError: the model does not work with the steps.
            GenerationRefused: too few slots are free.
        """
        lengths = self.lengths() if lengths is None else lengths
        slots = self._real.take(min(len(lengths), self._real.slots))
        try:
            with torch.inference_mode():
                pairs = self._compare(slots, lengths)
        except torch.OutOfMemoryError:
            raise
        except ERRORS as error:
            raise ConfigError(
                f"{type(self.model).__name__} cannot run with serve_warm's decoding steps: "
                f"{describe_error(error)}",
                hint="serve it with serve_warm.compile, without a cache",
            ) from error
        finally:
            self._real.release(slots)
        return max(_difference(ours, theirs) for ours, theirs in pairs)

    def find_equal_lengths(self) -> None:
        """Find out whether all prompts of a batch need the same length, and tell the decoder.

        A decoder-only model without an argument for positions computes the positions itself. It
        might use one position for all rows.
        """
        if not self._positions and not self.model.config.is_encoder_decoder:
            is_right = self.find_error(self.lengths()) <= self._largest
            self._real.needs_equal_lengths = not is_right

    def check(self) -> None:
        """Raise `ConfigError` if the steps and the model give different logits."""
        with self._lock:
            if self.is_done:
                return
            lengths = self.lengths()
            try:
                error, is_whole = self.find_error(lengths), True
            except GenerationRefused:  # other sequences run, so compare the rest another time
                error, is_whole = self.find_error(lengths[-1:]), False
            is_right = error <= self._largest  # False for NaN
            self.is_done = is_right and is_whole
        # The served model has its own flag, but shares all parts.
        if not is_right and any(part.training for part in self.model.modules()):
            raise GenerationRefused("The model is in training mode: call eval().")
        if not is_right:
            raise ConfigError(
                f"{type(self.model).__name__} gives different logits with serve_warm's decoding "
                f"steps than with its own cache: they differ by {error:.0e}, relative to the "
                f"largest logit (limit {self._largest:g}). The model may compute masks or "
                "positions from the size of its cache",
                hint="serve it with serve_warm.compile, without a cache",
            )

    def lengths(self) -> Sequence[int]:
        """Return the prompt lengths to compare."""
        longest = max(self._decoder.prompt_lengths, default=1)
        short, long = LENGTHS
        found = [min(short, longest), min(max(long, self._past_windows), longest)]
        return found[-1:] * 2 if self._real.needs_equal_lengths else found

    def _compare(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        config = self.model.config
        count = min(each for each in count_tokens(self.model) if each)
        prompts = [
            [(7 * place + 3 * row + 5) % count for place in range(length)]
            for row, length in enumerate(lengths[: len(slots)])
        ]
        first = 1 if config.is_encoder_decoder else max(map(len, prompts))
        more = min(self._past_windows - first, MOST_STEPS)
        steps = max(0, min(max(STEPS, more), self._decoder.max_length - first))
        tokens = [
            [(5 * step + row + 2) % count for step in range(steps)] for row in range(len(slots))
        ]
        begin = self._begin_encoder if config.is_encoder_decoder else self._begin
        begun = [begin(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
        made = [[logits] for logits, _ in begun]
        starts = [start for _, start in begun]
        for step in range(steps):
            newest = {
                slot: (tokens[row][step], starts[row] + step) for row, slot in enumerate(slots)
            }
            logits = self._decoder.decode(newest)
            for row, slot in enumerate(slots):
                made[row].append(logits[slot].clone())
        pairs = []
        for row, prompt in enumerate(prompts):
            theirs = self._own(prompt, tokens[row])
            pairs.append((torch.stack(made[row]).float(), torch.stack(theirs).float()))
        return pairs

    def _begin(self, slot: int, prompt: list[int]) -> tuple[torch.Tensor, int]:
        return self._decoder.prefill(slot, torch.tensor(prompt)).clone(), len(prompt)

    def _begin_encoder(self, slot: int, prompt: list[int]) -> tuple[torch.Tensor, int]:
        is_text = self._features is None
        inputs = torch.tensor(prompt) if self._features is None else self._features[0]
        states = self._decoder.encode(inputs, is_text=is_text)
        length = len(prompt) if is_text else states.shape[1]
        return self._decoder.begin(slot, states, length, 1).clone(), 1

    def _own(self, prompt: list[int], tokens: list[int]) -> list[torch.Tensor]:
        """Return the model's own logits after a prompt, and after each of these tokens."""
        model, device = self.model, self._decoder.device
        name, begin, more = "input_ids", prompt, dict[str, Any]()
        if model.config.is_encoder_decoder:
            given = torch.tensor([prompt], device=device)
            inputs = given if self._features is None else self._features
            states = model.get_encoder()(inputs).last_hidden_state
            name, begin, more = "decoder_input_ids", [1], {"encoder_outputs": (states,)}
        cache, found, seen = make_cache(model), [], 0
        for part in (begin, *([token] for token in tokens)):
            if self._positions:
                place = torch.arange(seen, seen + len(part), device=device)
                more[self._positions] = place[None]
            more[name] = torch.tensor([part], device=device)
            logits = model(use_cache=True, **{CACHE: cache}, **more).logits
            found.append(logits[0, -1])
            seen += len(part)
        return found


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value; inf if masks differ."""
    is_masked = theirs.abs() > MASKED
    if not torch.equal(is_masked, ours.abs() > MASKED):
        return math.inf
    zero = torch.zeros_like(theirs)
    theirs, ours = torch.where(is_masked, zero, theirs), torch.where(is_masked, zero, ours)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-9))


def _has_experts(config: Any) -> bool:
    own = vars(config.get_text_config(decoder=True))
    return any("experts" in name and value for name, value in own.items())
