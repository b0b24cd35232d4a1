# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The slots of a model's cache, the owner of each slot, and the compiled steps that fill the slots.

Callers can be on several threads. Each caller has its own slots, and only one step runs at a time.
A step handles all slots, but changes only the slots of its caller.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from serve_warm._package import public
from serve_warm.errors import ConfigError, GenerationRefused
from serve_warm.generation.same_model import Active, SameModel, refuse_change
from serve_warm.precompile import SESSION, describe_failure
from serve_warm.private_apis import dynamo


def _no_step(*_arguments: Any) -> Any:
    raise GenerationRefused("The model was compiled without this step.")


@public
class CachedDecoder:
    """Runs prefill and decode steps on the slots of one model.

    `decode(tokens, positions)` maps the newest token of each slot, of shape (slots,), to logits of
    shape (slots, vocabulary). `prefill(tokens, slot, last)` fills one slot with a padded prompt of
    shape (1, length), and returns the logits after the prompt's last token, of shape (vocabulary,).
    An encoder-decoder has `encode` and `begin` instead of `prefill`. A slot without a sequence has
    the position `idle_position`, by default `max_length`. A step must not change the cache of such
    a slot.
    """

    def __init__(
        self,
        *,
        decode: Callable[..., Any],
        prefill: Callable[..., Any] = _no_step,
        encode: Callable[..., Any] = _no_step,
        begin: Callable[..., Any] = _no_step,
        slots: int,
        max_length: int,
        prompt_lengths: Sequence[int],
        device: torch.device,
        has_positions: bool = True,
        idle_position: int | None = None,
        same_model: SameModel | None = None,
        vocabulary: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._decode, self._prefill, self._encode, self._begin = decode, prefill, encode, begin
        self.slots, self.max_length = slots, max_length
        self.prompt_lengths = sorted(prompt_lengths)
        self.device = device
        self.has_positions = has_positions
        """Whether each slot has its own position. If not, only one caller at a time can decode."""
        self.needs_equal_lengths = False
        """Whether all prompts of a batch must have the same length."""
        self._idle = max_length if idle_position is None else idle_position
        # Written in place, because a captured step always reads the same addresses.
        self._tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._tokens)
        self.dispatcher = getattr(decode, "__dict__", {}).get("_serve_warm")
        """The dispatcher of the decode step; None if the step was not compiled."""
        self._same_model = same_model
        self._began: dict[int, Active] = {}
        """For each slot, the adapters that were active when the slot was filled."""
        self._vocabulary = vocabulary
        """Returns the number of tokens that the encoder and the decoder know."""
        self._token_limits = sys.maxsize, sys.maxsize
        self._lock = threading.Lock()
        self._free = list(range(slots))

    def has_entries(self) -> bool:
        """Return whether a loaded artifact has compiled code for the decode step.

        The build has compared such a step with the model.
        """
        dispatcher = self.dispatcher
        if SESSION.loaded is None or dispatcher is None:
            return False
        # Facts may need another look: an import or an attribute can change after the binding.
        with dispatcher.binder.lock:
            return bool(dispatcher.binder.bind_again().entries)

    def take(self, count: int) -> list[int]:
        """Reserve and return `count` free slots; `release` gives the slots back.

        Raises:
            GenerationRefused: too few slots are free.
        """
        with self._lock:
            if count > self.slots:
                raise GenerationRefused(
                    f"A batch of {count} sequences does not fit into the {self.slots} slots of "
                    "this model."
                )
            others = self.slots - len(self._free)
            if count > len(self._free):
                raise GenerationRefused(
                    f"The batch needs {count} slot{'s' * (count > 1)}, but other sequences still "
                    f"use {others} of the {self.slots} slots."
                )
            if others and not self.has_positions:
                raise GenerationRefused(
                    "All slots of this model share one position counter, so the next batch can "
                    "start only when the current batch has ended."
                )
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def release(self, slots: Sequence[int]) -> None:
        """Give slots back; their content is lost."""
        with self._lock:
            self._free = sorted({*self._free, *slots})

    def bucket(self, length: int) -> int:
        """Return the shortest prompt length that holds `length` tokens.

        Raises:
            GenerationRefused: the prompt is empty, or longer than the longest bucket.
        """
        if not length:
            raise GenerationRefused("A prompt needs at least one token, but this one is empty.")
        for bucket in self.prompt_lengths:
            if length <= bucket:
                return bucket
        raise GenerationRefused(
            f"The prompt has {length} tokens, but the longest bucket has {self.prompt_lengths[-1]}."
        )

    def check_length(self, length: int) -> None:
        """Raise `GenerationRefused` if a sequence does not fit into a slot."""
        if length > self.max_length:
            raise GenerationRefused(
                f"A sequence of {length} tokens, including the prompt, does not fit into a cache "
                f"of {self.max_length} tokens."
            )

    def prefill(self, slot: int, prompt: torch.Tensor) -> torch.Tensor:
        """Fill a slot with a prompt; return the logits after the prompt, of shape (vocabulary,).

        `prompt` contains tokens, of shape (length,), or embeddings, of shape (length, width).
        """
        length = len(prompt)
        kind = prompt.dtype if prompt.is_floating_point() else torch.int64
        tokens = prompt.new_zeros((1, self.bucket(length), *prompt.shape[1:]), dtype=kind)
        tokens[0, :length] = prompt
        self._begin_slot(slot)
        if not prompt.is_floating_point():
            self._check_tokens(prompt.tolist())
        with self._lock, torch.inference_mode():
            last = torch.tensor([length - 1])
            given = self._moved(tokens, torch.tensor([slot]), last)
            return self._run(self._prefill, *given)

    def encode(self, inputs: torch.Tensor, *, is_text: bool) -> torch.Tensor:
        """Return the encoder's states, of shape (1, bucket, width), for one unbatched input."""
        if is_text:
            self._count_tokens()
            self._check_tokens(inputs.tolist(), limit=self._token_limits[0])
        with self._lock, torch.inference_mode():
            length = len(inputs)
            if is_text:
                padded = torch.zeros(self.bucket(length), dtype=torch.int64)
                padded[:length] = inputs
                inputs = padded
            given = self._moved(inputs[None], torch.tensor([length if is_text else 1]))
            return self._run(self._encode, *given)

    def begin(self, slot: int, states: torch.Tensor, length: int, token: int) -> torch.Tensor:
        """Fill a slot from the encoder's states; return the logits after a first token."""
        self._begin_slot(slot)
        self._check_tokens([token])
        with self._lock, torch.inference_mode():
            rest = (torch.tensor([length]), torch.tensor([token]), torch.tensor([slot]))
            return self._run(self._begin, *self._moved(states, *rest))

    def decode(self, newest: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Add one token to some slots; return the logits, of shape (slots, vocabulary).

        `newest` maps each of these slots to its new token and the token's position. The logits of
        other slots are meaningless.

        Raises:
            GenerationRefused: a token is not in the vocabulary, or a sequence is too long.
        """
        tokens, positions = [0] * self.slots, [self._idle] * self.slots
        for slot, (token, position) in newest.items():
            self.check_length(position + 1)
            if type(token) is not int or not 0 <= token < self._token_limits[1]:
                token = self.check_token(token)  # noqa: PLW2901 - rare, and takes longer
            tokens[slot], positions[slot] = token, position
        with self._lock, torch.inference_mode():
            self._tokens.copy_(torch.tensor(tokens))
            self._positions.copy_(torch.tensor(positions))
            return self._run(self._decode, self._tokens, self._positions)

    def _run(self, step: Callable[..., Any], *given: torch.Tensor) -> torch.Tensor:
        try:
            made: torch.Tensor = step(*given)
        except dynamo.imported_errors_without_graph() as error:
            raise ConfigError(
                f"a step of the model cannot be compiled as one graph: {describe_failure(error)}",
                hint="change that line of the model, or serve the model without compile_generation",
            ) from error
        # The next run of a CUDA graph overwrites the original.
        return made.clone() if made.is_cuda else made

    def check_settings(self) -> None:
        """Raise `GenerationRefused` if the model's settings no longer fit its steps."""
        if self._same_model is not None:
            self._same_model.read()

    def _begin_slot(self, slot: int) -> None:
        if self._same_model is not None:
            self._began[slot] = self._same_model.read()
        self._count_tokens()

    def _count_tokens(self) -> None:
        if self._vocabulary is not None:
            self._token_limits = self._vocabulary()

    def find_changed(self, slots: Iterable[int]) -> dict[int, GenerationRefused]:
        """Return the slots whose sequences cannot continue, because the model has changed."""
        if self._same_model is None:
            return {}
        try:
            now = self._same_model.read()
        except GenerationRefused as why:
            return dict.fromkeys(slots, why)
        began = self._began
        return {slot: refuse_change(began[slot], now) for slot in slots if began[slot] != now}

    def check_token(self, token: Any, limit: int | None = None) -> int:
        """Return a token as an int.

        Raises:
            GenerationRefused: the token is not a whole number, or is outside the vocabulary.
            Compiled code does not check tokens: on a CPU, a wrong token would end the process.
        """
        try:
            found = operator.index(token)
        except (TypeError, RuntimeError):  # RuntimeError for a tensor of several items
            raise GenerationRefused(f"A token must be a whole number, not {token!r:.40}.") from None
        limit = self._token_limits[1] if limit is None else limit
        if not 0 <= found < limit:
            raise GenerationRefused(f"Token {found} is not in the vocabulary of {limit} tokens.")
        return found

    def _check_tokens(self, tokens: Sequence[int], limit: int | None = None) -> None:
        for token in {min(tokens), max(tokens)} if tokens else ():
            self.check_token(token, limit)

    def _moved(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.to(self.device) for tensor in tensors]
