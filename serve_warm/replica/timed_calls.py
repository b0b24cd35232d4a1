# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of inputs as traffic would make them, each within its deadline, and what they reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from serve_warm._redaction import describe_error
from serve_warm.errors import ReplayFailed, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.replica.raised_at import find_line
from serve_warm.report import InputResult, Stage

logger = logging.getLogger(__name__)

Call = Callable[[Input], Awaitable[None]]
"""Replays one input once, the way traffic would, and raises what the target raised."""

CANCEL_S = 0.5
"""How long a late call may take to end once it is cancelled."""

WAIT_NOTICE_S = 10.0
"""After this long awaiting one input, the log says so: other deployments may not be up yet."""


class Deadline:
    """A point in time, and how long is left until then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.perf_counter() + seconds

    def left(self) -> float:
        """Return the seconds left, negative when it has passed."""
        return self._at - time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    """A replay that has begun and not ended."""

    item: Input
    limit_s: float
    limit: Deadline

    def is_late(self) -> bool:
        return self.limit.left() <= 0


@dataclass
class Progress:
    """What a replay has reached; observers read it while it changes."""

    inputs: Sequence[Input] = ()
    passes: int = 0
    """Passes begun."""
    done: int = 0
    """Inputs replayed in the pass under way."""
    first_s: dict[str, float] = field(default_factory=dict)
    steady_s: dict[str, float] = field(default_factory=dict)
    compiles: dict[str, int] = field(default_factory=dict)
    unproven: dict[str, str] = field(default_factory=dict)
    """Reason by input name, for those that the proof did not go through."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reason by input name, for those that memory did not suffice for; no pass replays them."""
    proven: set[str] = field(default_factory=set)
    threads: set[int] = field(default_factory=set)
    """Native ids of the threads that made compiled calls in the proof pass."""
    has_compiled: bool = True
    """Whether this process has anything compiled, as far as the proof has shown."""

    def results(self) -> tuple[InputResult, ...]:
        """Return one record an input, in replay order."""
        return tuple(
            InputResult(
                name=item.name,
                proven=item.name in self.proven,
                first_s=self.first_s.get(item.name, 0.0),
                steady_s=self.steady_s.get(item.name, 0.0),
                compiles=self.compiles.get(item.name, 0),
                note=""
                if item.name in self.proven
                else self.unproven.get(item.name) or self.left_out.get(item.name, "not reached"),
                left_out=item.name in self.left_out,
            )
            for item in self.inputs
        )


class TimedCalls:
    """Makes one call at a time, and says of the one under way whether it is late."""

    def __init__(
        self,
        call: Call,
        progress: Progress,
        *,
        deadline: Deadline,
        input_deadline_s: float,
        waits_for: Sequence[str],
    ) -> None:
        self._call = call
        self._progress = progress
        self._deadline = deadline
        self._input_deadline_s = input_deadline_s
        self._waits_for = tuple(waits_for)
        self._under_way: tuple[_UnderWay, ...] = ()
        """The call that has begun and not ended, if any."""

    def overdue(self) -> WarmupTimeout | None:
        """Return why the replay under way is late, or None. From any thread."""
        late = (self._timeout(now.item, now.limit_s) for now in self._under_way if now.is_late())
        return next(late, None)

    def require_time(self, item: Input, seconds: float) -> None:
        """Raise if a replay that blocked the loop, where nothing could cancel it, was late."""
        if seconds > self._input_deadline_s:
            raise self._timeout(item, self._input_deadline_s)
        if self._deadline.left() < 0:
            raise self._timeout(item, self._deadline.seconds)

    async def make(self, item: Input) -> tuple[float, ReplayFailed | None]:
        """Call what an input names, and return the seconds, and what it raised.

        Raises:
            WarmupTimeout: its deadline passed.
        """
        limit_s = min(self._input_deadline_s, self._deadline.left())
        if limit_s <= 0:
            raise self._timeout(item, self._deadline.seconds)
        start = time.perf_counter()
        self._under_way = (_UnderWay(item=item, limit_s=limit_s, limit=Deadline(limit_s)),)
        # A task rather than wait_for: its exception is a value, so that whatever the target
        # raises is named with its input, and nothing is swallowed on the way.
        task = asyncio.ensure_future(self._call_without_exit(item))
        try:
            while not task.done():
                left = limit_s - (time.perf_counter() - start)
                if left <= 0:
                    raise self._timeout(item, limit_s)
                await asyncio.wait({task}, timeout=min(left, WAIT_NOTICE_S))
                if not task.done():
                    logger.info(
                        "still waiting for input=%r after %.0f s%s",
                        item.name,
                        time.perf_counter() - start,
                        self._waiting_text(),
                    )
        finally:
            if not task.done():  # late, or the warm-up itself is cancelled
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_S)
            self._under_way = ()
        seconds = time.perf_counter() - start
        # Cancelled by nobody here: something inside the target has cancelled itself.
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return seconds, None
        if not isinstance(error, (Exception, asyncio.CancelledError)):
            raise error
        failed = ReplayFailed(
            f"input {item.name!r} raised {describe_error(error)}{_at(error)}",
            # An error of ours knows better what to do.
            hint=getattr(error, "hint", "")
            or "warm-up replays it as traffic would: call the same method with the same "
            "arguments, or correct warmup_inputs()",
            stage=Stage.REPLAYING.value,
            input=item.name,
        )
        failed.__cause__ = error
        return seconds, failed

    async def _call_without_exit(self, item: Input) -> None:
        """Call what an input names; an exit of what it runs is an error like any other.

        Raised in a task, asyncio would take it for the end of the process.
        """
        try:
            await self._call(item)
        except SystemExit as exit_:
            raise RuntimeError(f"it ends the process: SystemExit({exit_.code!r})") from exit_

    def _timeout(self, item: Input, limit_s: float) -> WarmupTimeout:
        progress = self._progress
        covered = f"{len(progress.first_s)} of {len(progress.inputs)} inputs were replayed"
        return WarmupTimeout(
            f"input {item.name!r} did not finish within {limit_s:.0f} s; {covered}, "
            f"{len(progress.proven)} proven{self._waiting_text()}",
            hint="raise deadline_s or input_deadline_s, build an artifact so that less is "
            "compiled, or set on_deadline: serve",
            stage=Stage.REPLAYING.value,
            covered=covered,
        )

    def _waiting_text(self) -> str:
        if not self._waits_for:
            return ""
        return "; it may wait for other deployments: " + ", ".join(self._waits_for)


def _at(error: BaseException) -> str:
    where = find_line(error)
    return f" ({where})" if where else ""
