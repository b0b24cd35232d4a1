# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Continuous batches: each sequence has one cache slot, and each decode step handles all slots.

Nothing runs in the background. A sequence that needs a token runs a step, which makes one token for
every running sequence. So sequences can begin and end at any time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from serve_warm._package import public
from serve_warm.errors import GenerationRefused
from serve_warm.generation.decoder import CachedDecoder

Call = Callable[..., Awaitable[Any]]
"""Runs `fn(*args)` on the model's thread, in the order of the calls."""

ChooseToken = Callable[[torch.Tensor], int]
"""Maps one sequence's logits, of shape (vocabulary,), to its next token, on the model's thread."""


@dataclass
class Sequence:
    """One running sequence: its newest token and position, and the tokens still to be yielded."""

    token: int
    position: int
    left: int
    """Number of tokens that are still to be generated."""
    choose: ChooseToken | None
    made: deque[int | Exception] = field(default_factory=deque)

    def extend(self, token: int | Exception) -> None:
        """Add a token, or an exception that ends the sequence."""
        self.made.append(token)
        if isinstance(token, Exception):
            self.left = 0
            return
        self.token = token
        self.position += 1
        self.left -= 1


@public
class Slots:
    """Generates one sequence in each slot of a decoder; more sequences wait for a free slot.

    This object takes and keeps all of the decoder's slots. `call` runs a function on the model's
    thread, for example a deployment's `on_model_thread`.

        self.slots = self.model.continuous(call=self.on_model_thread)
        async for token in self.slots.tokens(prompt, count=16): ...
    """

    def __init__(self, decoder: CachedDecoder, *, call: Call) -> None:
        if not decoder.has_positions:
            raise GenerationRefused(
                "All slots of this model share one position counter, so all sequences must begin "
                "together: use generate."
            )
        self._decoder = decoder
        self._call = call
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in decoder.take(decoder.slots):
            self._free.put_nowait(slot)
        self._running: dict[int, Sequence] = {}
        self._stepping = asyncio.Lock()

    async def tokens(
        self, prompt: list[int], *, count: int, choose: ChooseToken | None = None
    ) -> AsyncGenerator[int, None]:
        """Yield `count` tokens after the prompt, each as soon as it exists.

        `choose` maps logits to a token. By default, `choose` takes the token with the largest
        logit. Close the generator to end the sequence early and free its slot.

        Raises:
            GenerationRefused: the prompt is empty or longer than the longest bucket, the sequence
            does not fit into a slot, or a token is not in the vocabulary. Other sequences continue.
        """
        self._decoder.bucket(len(prompt))
        if count < 1:
            raise GenerationRefused(f"A sequence needs at least one new token, not count={count}.")
        self._decoder.check_length(len(prompt) + count)
        for token in prompt:
            self._decoder.check_token(token)
        slot = await self._free.get()
        try:
            # A cancelled call may still run. The model thread runs it before any call for the
            # slot's next sequence.
            token = await self._call(self._prefill, slot, prompt, choose)
            sequence = Sequence(token=token, position=len(prompt), left=count - 1, choose=choose)
            self._running[slot] = sequence
            yield token
            for _ in range(count - 1):
                yield await self._next(sequence)
        finally:
            self._running.pop(slot, None)
            self._free.put_nowait(slot)

    async def _next(self, sequence: Sequence) -> int:
        async with self._stepping:
            if not sequence.made:  # another sequence may have run the step
                await self._step()
        made = sequence.made.popleft()
        if isinstance(made, Exception):
            raise made
        return made

    async def _step(self) -> None:
        running = {slot: item for slot, item in self._running.items() if item.left}
        newest = {slot: (item.token, item.position) for slot, item in running.items()}
        choosers = {slot: item.choose for slot, item in running.items()}
        # If this call is cancelled, another sequence repeats the step and writes the same values.
        made = await self._call(self._decode, newest, choosers)
        for slot, sequence in running.items():
            sequence.extend(made[slot])

    # Both methods block, so they run on the model thread.

    def _prefill(self, slot: int, prompt: list[int], choose: ChooseToken | None) -> int:
        logits = self._decoder.prefill(slot, torch.tensor(prompt))
        if choose is None:
            return int(logits.argmax())
        return self._decoder.check_token(choose(logits.clone()))

    def _decode(
        self, newest: Mapping[int, tuple[int, int]], choosers: Mapping[int, ChooseToken | None]
    ) -> dict[int, int | Exception]:
        # Only these sequences raise the error. Sequences that began later continue.
        refused: dict[int, int | Exception] = {**self._decoder.find_changed(newest)}
        newest = {slot: each for slot, each in newest.items() if slot not in refused}
        if not newest:
            return refused
        logits = self._decoder.decode(newest)
        best: list[int] = logits.argmax(-1).tolist()
        made = {
            slot: best[slot] if choose is None else self._chosen(choose, logits[slot])
            for slot, choose in choosers.items()
            if slot not in refused
        }
        # Another thread may have changed the adapter meanwhile.
        return {**made, **self._decoder.find_changed(newest), **refused}

    def _chosen(self, choose: ChooseToken, logits: torch.Tensor) -> int | Exception:
        try:
            # Pass a copy: the logits are inference tensors, which `choose` could not change in
            # place.
            return self._decoder.check_token(choose(logits.clone()))
        # `choose` is code of one request, and other sequences share the step. So return the error,
        # which only this request's sequence raises.
        except Exception as error:  # noqa: BLE001
            return error
