# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a tensor-parallel group, which compute together and so must start together.

Each rank holds a part of one model, and the compiled code on all ranks communicates in collectives.
A collective ends only when all ranks have called it. If one rank compiles, or makes fewer passes
than the others, the other ranks wait. So each decision of a start uses the answers of all ranks.

To agree, ranks use the store of the process group that user code created, instead of collectives.
The store needs no GPU, does not interfere with the model's collectives, and shows which rank has
not answered. A rank that fails writes its error to the store. The other ranks also notice if a rank
ends without writing an error.

This module uses a private torch function: `distributed_c10d._get_default_store` (seen in 2.13).
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

from serve_warm._redaction import excerpt, first_line
from serve_warm.errors import RankFailed, ServeWarmError
from serve_warm.fingerprint import read_rank
from serve_warm.private_apis.distributed import default_store

PULSE_S = 5.0
"""Seconds between two pulses, which show that a rank is alive. The pulse thread also runs during
compiles."""

SILENT_S = 60.0
"""Seconds. A rank that sends no pulse for this long is taken to have ended, even if it is alive and
its code merely blocks all Python threads."""

POLL_S = (0.001, 0.05)
"""The first wait and the longest wait, in seconds, between two checks for answers."""

WORDS = 500
"""Maximum number of characters in the failure message of a rank."""


class Ranks:
    """The ranks that start together, as seen by one of them. By default, there is only one rank."""

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._turn = 0
        # Each key contains the start's number, so answers of earlier starts do not count.
        self._start = 0 if store is None else store.add(f"serve_warm/{rank}/starts", 1)

    async def agree(self, what: str, mine: Any, *, timeout_s: float) -> list[Any]:
        """Return the answers of all ranks, in rank order, once all ranks have answered.

        `mine` must be JSON data. All ranks must make the same calls with the same `what`.

        Raises:
            RankFailed: another rank has failed or ended, has not answered within `timeout_s`, or
            has answered for a different `what`.
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
                        f"rank {missing[0]} of {self.size} did not answer at step {what!r} within "
                        f"{timeout_s:.0f} s",
                        hint="see the log or report of that rank; raise deadline_s if that rank "
                        "needs more time",
                    )
                if ended.wait(pause_s):
                    return []  # cancelled: nobody waits for the answers
                pause_s = min(2 * pause_s, POLL_S[1])
            answers = [self._read_answer(rank, turn) for rank in range(self.size)]
        for rank, (theirs, _) in enumerate(answers):
            if theirs != what:
                raise RankFailed(
                    f"rank {self.rank} of {self.size} is at step {what!r}, but rank {rank} is at "
                    f"step {theirs!r}",
                    hint="all ranks need the same inputs and the same warm-up settings",
                )
        return [answer for _, answer in answers]

    def _check(self, rank: int, what: str, pulses: _Pulses) -> None:
        """Raise `RankFailed` if a rank has failed, or has ended without writing an error."""
        if self._has_said(rank, "failed"):
            raise RankFailed(
                self._read_answer(rank, "failed"), hint="see the log and report of that rank"
            )
        count = self._store.add(self._key(rank, "pulse"), 0)
        # Without a first pulse, the rank has not begun its warm-up. Loading weights may take long.
        if count and pulses.silent_s(rank, count) > SILENT_S:
            raise RankFailed(
                f"rank {rank} of {self.size} has sent no pulse for {SILENT_S:.0f} s, and has "
                f"not answered rank {self.rank} at step {what!r}",
                hint="the process of that rank has ended or is hung: see its log",
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
        """Tell the other ranks why this rank failed; do nothing if the store cannot be reached."""
        text = error.message if isinstance(error, ServeWarmError) else repr(error)
        if not isinstance(error, RankFailed):  # that error already names the rank that failed first
            text = f"rank {self.rank} of {self.size} has failed: {text}"
        with contextlib.suppress(RuntimeError):  # the store is gone: other ranks notice this
            self._say("failed", excerpt(text, WORDS))

    def give_pulse(self, ended: threading.Event) -> None:
        """Send this rank's pulses until `ended` is set."""
        # Use a separate connection: a caller that waits for a key blocks its own connection.
        with contextlib.suppress(RuntimeError):
            store = self._store.clone()
            while True:
                store.add(self._key(self.rank, "pulse"), 1)
                if ended.wait(PULSE_S):
                    return


class _Pulses:
    """The times at which the pulses of other ranks last changed, as seen by a waiting rank."""

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
    """Join the other ranks while the block runs. If the block raises, tell the other ranks.

    Raises:
        RankFailed: the store of the process group does not answer.
    """
    here = read_rank()
    if here is None:
        yield Ranks()
        return
    with _translate():
        ranks = Ranks(*here, default_store().clone())
    ended = threading.Event()
    threading.Thread(
        target=ranks.give_pulse, args=(ended,), name="serve_warm-pulse", daemon=True
    ).start()
    try:
        yield ranks
    finally:
        raised = sys.exc_info()[1]
        if raised is not None:  # any exception, including a cancellation
            ranks.say_failed(raised)
        ended.set()


@contextlib.contextmanager
def _translate() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.distributed.DistError and its predecessor
        raise RankFailed(
            f"torch's store for the process group does not answer: {first_line(str(error), 200)}",
            hint="the process that hosts this store, usually rank 0, has ended: see the log of "
            "that process",
        ) from error
