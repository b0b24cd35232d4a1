# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Run the declared inputs until nothing compiles any more, then prove it.

Nobody here knows how often a path must run to be warm: an Inductor hit still traces once, a
CUDA graph takes three calls, a graph break more. Passes are repeated until a whole one changes
no count, and then one more is run in which compiling is forbidden.

Ranks that compute together make the same passes: all go on until a pass was quiet on all of them,
and an input is proven when it is on all of them.

An input for which the GPU's memory does not suffice is left out, and named. Inputs come largest
first, so that there is room for the others then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_warm import compiler, graphs
from serve_warm.errors import NotProven, ReplayFailed, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.ranks import Ranks
from serve_warm.report import Counts, InputResult, Stage

logger = logging.getLogger(__name__)

WAIT_NOTICE_S = 10.0
"""After this long awaiting one input, the log says so: other deployments may not be up yet."""

PROOF_ATTEMPTS = 3
"""Proofs tried before giving up. A failed one is followed by passes in which compiling is
allowed again. Concurrent calls can lose a race in Dynamo's lookup and fail without cause."""

Call = Callable[[Input], Awaitable[None]]
"""Replays one input once, the way traffic would, and raises what the target raised."""


class Deadline:
    """A point in time, and how long is left until then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.perf_counter() + seconds

    def left(self) -> float:
        """Return the seconds left, negative when it has passed."""
        return self._at - time.perf_counter()


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


class Replay:
    """Replays `inputs` through `call`, counting with `seen`; `changed` is called on progress."""

    def __init__(
        self,
        inputs: Sequence[Input],
        call: Call,
        *,
        seen: compiler.Watch,
        deadline: Deadline,
        input_deadline_s: float,
        max_passes: int,
        ranks: Ranks | None = None,
        waits_for: Sequence[str] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.progress = Progress(inputs=inputs)
        self._call = call
        self._seen = seen
        self._deadline = deadline
        self._input_deadline_s = input_deadline_s
        self._max_passes = max_passes
        self._ranks = ranks or Ranks()
        self._waits_for = tuple(waits_for)
        self._changed = changed

    async def until_quiet(self) -> None:
        """Replay all inputs until a whole pass changes no compile or capture count.

        Raises:
            ReplayFailed: an input raised, or memory did not suffice for any.
            WarmupTimeout: a deadline passed.
            NotProven: `max_passes` passes, and the last one still compiled.
            RankFailed: another rank does not come as far.
        """
        for _ in range(self._max_passes):
            before = self._seen.counts()
            await self._one_pass()
            changed = self._seen.counts() - before
            quiet = await self._agree(f"pass {self.progress.passes}", changed.quiet)
            if all(quiet):
                return
        what = f"{_described(changed)} in the last pass"
        if changed.quiet:
            what = f"on rank {quiet.index(False)}, not here"
        raise NotProven(
            f"after {self._max_passes} passes over {len(self.progress.inputs)} inputs the model "
            f"still compiles ({what})",
            hint="look for inputs that change from call to call (Python numbers, strides, new "
            f"shapes); the last reason was: {_last_reason(self._seen) or 'none given'}",
            stage=Stage.REPLAYING.value,
        )

    async def once(self) -> None:
        """Replay all inputs once, for what that does to the callables; nothing is proven by it.

        Raises:
            ReplayFailed: an input raised.
            WarmupTimeout: a deadline passed.
        """
        for item in self.progress.inputs:
            await self._replay_if_it_fits(item)

    async def prove(self, *, attempts: int = PROOF_ATTEMPTS) -> None:
        """Replay all inputs once with compiling forbidden, and note which went through.

        Not raising does not mean that all are proven: `progress` says which are.

        Raises:
            ReplayFailed: an input raised for another reason than the proof.
            WarmupTimeout: a deadline passed.
            RankFailed: another rank does not come as far.
        """
        for attempt in range(1, attempts + 1):
            await self._proof_pass()
            # More passes change nothing about what the recompile limit has made eager.
            hopeless = self._runs_eagerly()
            mine = [
                name
                for name, why in self.progress.unproven.items()
                if why != hopeless and name not in self.progress.left_out
            ]
            failed = sum(await self._agree("inputs to replay again", len(mine)))
            if not failed or attempt == attempts:
                await self._prove_together()
                return
            logger.warning("proof attempt=%d failed inputs=%d, replaying", attempt, failed)
            try:
                await self.until_quiet()
            except NotProven:
                await self._prove_together()
                return  # what the last proof has found stands

    async def _prove_together(self) -> None:
        """Take what is not proven on another rank for not proven: its calls are calls of all."""
        progress = self.progress
        for rank, unproven in enumerate(await self._agree("the proof", progress.unproven)):
            for name, why in unproven.items():
                progress.proven.discard(name)
                progress.unproven.setdefault(name, f"rank {rank}: {why}")

    async def _agree(self, what: str, mine: Any) -> list[Any]:
        return await self._ranks.agree(what, mine, timeout_s=max(0.1, self._deadline.left()))

    async def _one_pass(self) -> None:
        progress = self.progress
        progress.passes += 1
        progress.done = 0
        for item in progress.inputs:
            before = self._seen.counts()
            seconds = await self._replay_if_it_fits(item)
            change = self._seen.counts() - before
            if seconds is not None:
                progress.first_s.setdefault(item.name, seconds)
                progress.steady_s[item.name] = seconds
            progress.compiles[item.name] = progress.compiles.get(item.name, 0) + change.compiles
            progress.done += 1
            self._changed()

    async def _proof_pass(self) -> None:
        progress = self.progress
        progress.passes += 1
        progress.done = 0
        progress.proven.clear()
        progress.unproven.clear()
        progress.unproven.update(progress.left_out)
        # Ranks only count. One that refuses to compile makes no further call, and the others wait
        # for it in their collectives, or meet it in that of another input.
        alone = self._ranks.size == 1
        forbidding = compiler.forbid() if alone else contextlib.nullcontext()
        with self._seen.calling_threads() as threads, forbidding:
            for item in progress.inputs:
                if item.name in progress.left_out:
                    progress.done += 1
                    continue
                before = self._seen.counts()
                with contextlib.nullcontext() if alone else compiler.falls_counted():
                    seconds, error = await self._replay_reporting(item)
                change = self._seen.counts() - before
                if change.eager_falls:
                    progress.unproven[item.name] = self._runs_eagerly()
                elif change.forbidden:
                    reason = _last_reason(self._seen)
                    progress.unproven[item.name] = f"would compile: {reason}"
                elif error is not None and self._may_be_left_out(error):
                    # Passes that follow a failed proof show whether it has to be left out.
                    progress.unproven[item.name] = f"memory does not suffice: {_raised(error)}"
                    error = None
                    graphs.free_memory()
                elif error is not None:
                    raise error
                elif not change.quiet:
                    progress.unproven[item.name] = f"not quiet: {_described(change)}"
                else:
                    progress.proven.add(item.name)
                    progress.steady_s[item.name] = seconds
                progress.done += 1
                self._changed()
        progress.threads = set(threads)

    def _runs_eagerly(self) -> str:
        needed = len(self.progress.inputs)
        return (
            "runs eagerly, without a word from torch: there are more compiled variants than the "
            f"recompile limit allows; {compiler.how_to_raise_the_limit(max(16, needed))} "
            "or declare fewer shapes"
        )

    async def _replay_if_it_fits(self, item: Input) -> float | None:
        """Return the seconds of a replay; None for an input that is left out, now or before.

        It is when memory does not suffice twice, the second time with all given back that is free.
        """
        if item.name in self.progress.left_out:
            return None
        why = ""
        for _ in range(2):
            seconds, error = await self._replay_reporting(item)
            if error is None:
                return seconds
            if not self._may_be_left_out(error):
                raise error
            why = _raised(error)
            # What it holds goes first: the frames that ran out of memory, with their tensors.
            error = None
            graphs.free_memory()
        self._leave_out(item, why)
        return None

    def _may_be_left_out(self, error: ReplayFailed) -> bool:
        # Not on one of several ranks: the others are in the middle of the same call.
        return self._ranks.size == 1 and graphs.ran_out_of_memory(error)

    def _leave_out(self, item: Input, why: str) -> None:
        """Note that memory does not suffice for an input, and raise where it does for none."""
        progress = self.progress
        progress.left_out[item.name] = f"left out, memory does not suffice: {why}"
        if len(progress.left_out) == len(progress.inputs):
            raise ReplayFailed(
                f"memory does not suffice for any of {len(progress.inputs)} inputs; the last was "
                f"{why}",
                hint="declare smaller inputs, or give the replica a GPU of its own",
                stage=Stage.REPLAYING.value,
                input=item.name,
            )
        logger.warning("left out input=%r, memory does not suffice: %s", item.name, why)

    async def _replay_reporting(self, item: Input) -> tuple[float, ReplayFailed | None]:
        limit_s = min(self._input_deadline_s, self._deadline.left())
        if limit_s <= 0:
            raise self._timeout(item, self._deadline.seconds)
        start = time.perf_counter()
        # A task rather than wait_for: its exception is a value, so that whatever the target
        # raises is named with its input, and nothing is swallowed on the way.
        task = asyncio.ensure_future(self._call(item))
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
                await asyncio.wait({task}, timeout=1.0)
        seconds = time.perf_counter() - start
        # Cancelled by nobody here: something inside the target has cancelled itself.
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return seconds, None
        if not isinstance(error, (Exception, asyncio.CancelledError)):
            raise error
        failed = ReplayFailed(
            f"input {item.name!r} raised {type(error).__name__}: {_first_line(error)}",
            # An error of ours knows better what to do.
            hint=getattr(error, "hint", "")
            or "warm-up replays it as traffic would: call the same method with the same "
            "arguments, or correct warmup_inputs()",
            stage=Stage.REPLAYING.value,
            input=item.name,
        )
        failed.__cause__ = error
        return seconds, failed

    def _timeout(self, item: Input, limit_s: float) -> WarmupTimeout:
        progress = self.progress
        covered = f"{len(progress.first_s)} of {len(progress.inputs)} inputs were replayed"
        return WarmupTimeout(
            f"no end of input {item.name!r} within {limit_s:.0f} s; {covered}, "
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


def _described(change: Counts) -> str:
    parts = {
        "compiles": change.compiles,
        "compiler runs": change.compiler_processes,
        "captures": change.captures,
        "eager runs before a capture": change.eager_runs,
        "kernels built": change.kernels,
        "tunings": change.tunings,
        "falls to eager": change.eager_falls,
    }
    return ", ".join(f"{count} {name}" for name, count in parts.items() if count) or "nothing"


def _last_reason(seen: compiler.Watch) -> str:
    events = seen.events()
    if not events:
        return ""
    last = events[-1]
    return f"{last.function} with {last.signature}: {last.reason}".rstrip(": ")


def _raised(failed: ReplayFailed) -> str:
    cause = failed.__cause__ or failed
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
