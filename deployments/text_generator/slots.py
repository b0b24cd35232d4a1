# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which sequences share a step: one slot of the cache each, all slots in every decode step.

Nothing here runs in the background. Whoever needs a token and has none runs a step, and a step
makes one token for every sequence under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from serve_warm import Buckets

from .model import Decoder

Call = Callable[..., Awaitable[Any]]
"""Awaits `fn(*args)` on the one thread that runs the model, in the order of the calls."""


@dataclass
class Sequence:
    """One sequence under way: its newest token, where that stands, and what nobody took yet."""

    token: int
    position: int
    left: int
    """Tokens still to be made."""
    made: deque[int] = field(default_factory=deque)

    def extend(self, token: int) -> None:
        self.token = token
        self.position += 1
        self.left -= 1
        self.made.append(token)


class Slots:
    """Greedy generation of as many sequences at once as the cache has slots; others wait."""

    def __init__(self, model: Decoder, buckets: Buckets, *, call: Call) -> None:
        self._model = model
        self._buckets = buckets
        self._call = call
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(model.shape.slots):
            self._free.put_nowait(slot)
        self._running: dict[int, Sequence] = {}
        self._stepping = asyncio.Lock()
        # Written in place at each step: a captured step reads from where it was captured.
        device = model.head.weight.device
        self._tokens = torch.zeros(model.shape.slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._tokens)

    async def tokens(self, prompt: list[int], *, count: int) -> AsyncGenerator[int, None]:
        """Yield `count` tokens that follow the prompt, each when it is made.

        `len(prompt) + count` is at most the cache's length.
        """
        slot = await self._free.get()
        try:
            # A cancelled call may still run: before any call for the slot's next sequence,
            # because there is one thread.
            token = await self._call(self._prefill, slot, prompt)
            sequence = Sequence(token=token, position=len(prompt), left=count - 1)
            self._running[slot] = sequence
            yield token
            for _ in range(count - 1):
                yield await self._next(sequence)
        finally:
            self._running.pop(slot, None)
            self._free.put_nowait(slot)

    async def _next(self, sequence: Sequence) -> int:
        async with self._stepping:
            if not sequence.made:  # the one before us at the lock has made ours too
                await self._step()
        return sequence.made.popleft()

    async def _step(self) -> None:
        running = {slot: item for slot, item in self._running.items() if item.left}
        # A row without a sequence writes to the last position, which no sequence reads: the
        # last token of the longest one is answered and not put into the cache.
        tokens = [0] * self._model.shape.slots
        positions = [self._model.shape.max_length - 1] * self._model.shape.slots
        for slot, sequence in running.items():
            tokens[slot], positions[slot] = sequence.token, sequence.position
        # Cancelled here, the step is run again by another one, and writes the same once more.
        made = await self._call(self._decode, tokens, positions)
        for slot, sequence in running.items():
            sequence.extend(made[slot])

    # Both block: for the model thread. The mode is the thread's, so it is set here.

    def _prefill(self, slot: int, prompt: list[int]) -> int:
        padding = self._buckets.fit(length=len(prompt))["length"] - len(prompt)
        with torch.inference_mode():
            device = self._tokens.device
            tokens = torch.tensor([prompt + [0] * padding], device=device)
            where = torch.tensor([slot], device=device)
            last = torch.tensor([len(prompt) - 1], device=device)
            return int(self._model.prefill(tokens, where, last).argmax())

    def _decode(self, tokens: list[int], positions: list[int]) -> list[int]:
        with torch.inference_mode():
            self._tokens.copy_(torch.tensor(tokens))
            self._positions.copy_(torch.tensor(positions))
            made: list[int] = self._model.decode(self._tokens, self._positions).argmax(-1).tolist()
        return made
