# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a tensor-parallel group: how processes that compute together start together.

Each rank has a share of one model, and its compiled code meets that of the others in collectives. A
collective is over when all ranks have called it: one that compiles, or that replays its inputs once
less, keeps the others waiting. So what a start decides is decided by all ranks, from what each of
them says.

They talk through the store of the process group that user code has made, not by collectives: it
needs no GPU, cannot get out of step with the model's own, and shows which rank has not answered.
A rank that fails says so there, and one that ends without a word is missed.

Private name of torch that is used: `distributed_c10d._get_default_store` (seen in 2.13).
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/distributed_c10d.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from serve_warm.errors import RankFailed, ServeWarmError
from serve_warm.fingerprint import read_rank

PULSE_S = 5.0
"""How often a rank says that it lives, from a thread that goes on while the model compiles."""

SILENT_S = 60.0
"""After this long without a pulse a rank is gone. Code that keeps Python's other threads from
running for as long would look like that, too."""

POLL_S = (0.001, 0.05)
"""First and longest pause between two looks at the answers."""

WORDS = 500
"""Characters that one rank says of its failure, at most."""


class Ranks:
    """The ranks that start together, as one of them sees them; by default a process by itself."""

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._turn = 0
        # Keys are of one start: whatever was said in an earlier one of this group is not heard.
        self._start = 0 if store is None else store.add(f"serve_warm/{rank}/starts", 1)

    async def agree(self, what: str, mine: Any, *, timeout_s: float) -> list[Any]:
        """Return what each rank says, in their order, once all have; `mine` is fit for JSON.

        All ranks must come here with the same `what`, equally often.

        Raises:
            RankFailed: another rank has failed or ended, says nothing for `timeout_s`, or speaks
                of something else.
        """
        if self.size == 1:
            return [mine]
        self._turn += 1
        ended = threading.Event()
        try:
            return await asyncio.to_thread(self._wait_for_all, what, mine, timeout_s, ended)
        finally:
            ended.set()

    def _wait_for_all(
        self, what: str, mine: Any, timeout_s: float, ended: threading.Event
    ) -> list[Any]:
        began, pause_s = time.monotonic(), POLL_S[0]
        turn, pulses = f"turn {self._turn}", _Pulses()
        missing = [rank for rank in range(self.size) if rank != self.rank]
        with _translate():
            self._say(turn, [what, mine])
            while missing := [rank for rank in missing if not self._has_said(rank, turn)]:
                for rank in missing:
                    self._check(rank, what, pulses)
                if time.monotonic() - began > timeout_s:
                    raise RankFailed(
                        f"rank {missing[0]} of {self.size} said nothing about {what} within "
                        f"{timeout_s:.0f} s",
                        hint="its log or report says what it does; deadline_s is the limit",
                    )
                if ended.wait(pause_s):
                    return []  # cancelled: nobody waits for it
                pause_s = min(2 * pause_s, POLL_S[1])
            answers = [self._read_answer(rank, turn) for rank in range(self.size)]
        for rank, (theirs, _) in enumerate(answers):
            if theirs != what:
                raise RankFailed(
                    f"rank {self.rank} of {self.size} has come to {what}, and rank {rank} to "
                    f"{theirs}",
                    hint="all ranks need the same inputs and the same settings of warm-up",
                )
        return [answer for _, answer in answers]

    def _check(self, rank: int, what: str, pulses: _Pulses) -> None:
        """Raise `RankFailed` for a rank that has failed, or has ended without a word."""
        if self._has_said(rank, "failed"):
            raise RankFailed(self._read_answer(rank, "failed"), hint="its log and report say more")
        count = self._store.add(self._key(rank, "pulse"), 0)
        # None yet: it has not come so far, and its weights may take their time.
        if count and pulses.silent_s(rank, count) > SILENT_S:
            raise RankFailed(
                f"rank {rank} of {self.size} has given no sign for {SILENT_S:.0f} s, and rank "
                f"{self.rank} waits for its word about {what}",
                hint="its process has ended, or hangs: see its log",
            )

    # The store ------------------------------------------------------------------------------

    def _key(self, rank: int, name: str) -> str:
        return f"serve_warm/{rank}/{self._start}/{name}"

    def _say(self, name: str, value: Any) -> None:
        self._store.set(self._key(self.rank, name), json.dumps(value))

    def _has_said(self, rank: int, name: str) -> bool:
        return bool(self._store.check([self._key(rank, name)]))

    def _read_answer(self, rank: int, name: str) -> Any:
        return json.loads(self._store.get(self._key(rank, name)))

    def say_failed(self, error: BaseException) -> None:
        """Tell the others why this rank does not go on; nothing where they cannot be told."""
        text = error.message if isinstance(error, ServeWarmError) else repr(error)
        if not isinstance(error, RankFailed):  # that one names the rank where it began
            text = f"rank {self.rank} of {self.size} has failed: {text}"
        with contextlib.suppress(RuntimeError):  # the store is gone: they find out by themselves
            self._say("failed", text[:WORDS])

    def give_pulse(self, ended: threading.Event) -> None:
        """Say again and again that this rank lives, until `ended` is set."""
        # A connection of its own: whoever waits for a key holds his for as long.
        with contextlib.suppress(RuntimeError):
            store = self._store.clone()
            while True:
                store.add(self._key(self.rank, "pulse"), 1)
                if ended.wait(PULSE_S):
                    return


class _Pulses:
    """When the pulses of other ranks last changed, as one who waits for them sees it."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float]] = {}

    def silent_s(self, rank: int, count: int) -> float:
        now = time.monotonic()
        last, since = self._last.get(rank, (0, now))
        if count != last:
            since = now
        self._last[rank] = count, since
        return now - since


@contextlib.contextmanager
def join() -> Iterator[Ranks]:
    """Be one of the ranks for as long as the block lasts; they learn when it raises.

    Raises:
        RankFailed: the store of the process group does not answer.
    """
    here = read_rank()
    if here is None:
        yield Ranks()
        return
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    with _translate():
        ranks = Ranks(*here, store.clone())
    ended = threading.Event()
    threading.Thread(
        target=ranks.give_pulse, args=(ended,), name="serve_warm-pulse", daemon=True
    ).start()
    try:
        yield ranks
    finally:
        raised = sys.exc_info()[1]
        if raised is not None:  # whatever it is, a cancellation included
            ranks.say_failed(raised)
        ended.set()


@contextlib.contextmanager
def _translate() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.distributed.DistError, and what it was before
        said = str(error).partition("\n")[0][:200]
        raise RankFailed(
            f"the store of the process group does not answer: {said}",
            hint="the process that keeps it, as a rule rank 0, has ended: see its log",
        ) from error
