# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Run the declared inputs until nothing compiles any more, then prove it.

Nobody here knows how often a path must run to be warm: an Inductor hit still traces once, a
CUDA graph takes three calls, a graph break more. Passes are repeated until a whole one changes
no count, and then one more is run in which compiling is forbidden.

Ranks that compute together make the same passes: all go on until a pass was quiet on all of them,
and an input is proven when it is on all of them.

What proves an input beside quiet is in `call_evidence`, how one of them is replayed in
`input_calls`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from serve_warm.compiler import evidence
from serve_warm.compiler.watch import Watch
from serve_warm.errors import NotProven, ReplayFailed
from serve_warm.inputs import Input
from serve_warm.replica.call_evidence import CallEvidence
from serve_warm.replica.input_calls import InputCalls, describe_counts, describe_last
from serve_warm.replica.ranks import Ranks
from serve_warm.replica.timed_calls import Call, Deadline, Progress, TimedCalls
from serve_warm.report import Stage

logger = logging.getLogger(__name__)

PROOF_ATTEMPTS = 3
"""Proofs tried before giving up. A failed one is followed by passes in which compiling is
allowed again. Concurrent calls can lose a race in Dynamo's lookup and fail without cause."""


class Replay:
    """Replays `inputs` through `call`, counting with `seen`; `changed` is called on progress."""

    def __init__(
        self,
        inputs: Sequence[Input],
        call: Call,
        *,
        seen: Watch,
        deadline: Deadline,
        input_deadline_s: float,
        max_passes: int,
        ranks: Ranks | None = None,
        waits_for: Sequence[str] = (),
        changed: Callable[[], None] = lambda: None,
        has_compiled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.progress = progress = Progress(inputs=inputs)
        self._seen = seen
        self._max_passes = max_passes
        self._changed = changed
        self._timed = TimedCalls(
            call,
            progress,
            deadline=deadline,
            input_deadline_s=input_deadline_s,
            waits_for=waits_for,
        )
        self.overdue = self._timed.overdue
        """Returns why the replay under way is late, or None; from any thread."""
        self._calls = InputCalls(
            self._timed, progress, seen=seen, ranks=ranks or Ranks(), deadline=deadline
        )
        self._evidence = CallEvidence(
            self._calls, progress, deadline=deadline, has_compiled=has_compiled
        )

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
            quiet = await self._calls.agree(f"pass {self.progress.passes}", changed.quiet)
            if all(quiet):
                return
        what = f"{describe_counts(changed)} in the last pass"
        if changed.quiet:
            what = f"on rank {quiet.index(False)}, not here"
        raise NotProven(
            f"after {self._max_passes} passes over {len(self.progress.inputs)} inputs the model "
            f"still compiles ({what})",
            hint="look for inputs that change from call to call (Python numbers, strides, new "
            f"shapes); the last reason was: {describe_last(self._seen) or 'none given'}",
            stage=Stage.REPLAYING.value,
        )

    async def once(self, begins: Callable[[int, int], None] = lambda _done, _of: None) -> None:
        """Replay all inputs once, for what that does to the callables; nothing is proven by it.

        `begins` is called before each, with its number and how many there are.

        Raises:
            ReplayFailed: an input raised.
            WarmupTimeout: a deadline passed.
        """
        for number, item in enumerate(self.progress.inputs, start=1):
            begins(number, len(self.progress.inputs))
            await self._calls.replay(item)

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Replay the inputs smallest first, each once at most, until `is_done()`.

        Raises:
            ReplayFailed: an input raised.
            WarmupTimeout: a deadline passed.
        """
        for item in reversed(self.progress.inputs):
            if is_done():
                return
            if item.name in self.progress.left_out:
                continue
            _, error = await self._timed.make(item)
            if error is not None and not self._calls.may_be_left_out(error):
                raise error
            self._changed()

    async def try_again(self, name: str) -> ReplayFailed | None:
        """Replay the input of this name once more, and return what it raised.

        Raises:
            WarmupTimeout: a deadline passed.
        """
        item = next(item for item in self.progress.inputs if item.name == name)
        _, error = await self._timed.make(item)
        return error

    async def prove(self, *, attempts: int = PROOF_ATTEMPTS) -> None:
        """Replay all inputs once with compiling forbidden, and note which went through.

        Not raising does not mean that all are proven: `progress` says which are.

        Raises:
            ReplayFailed: an input raised for another reason than the proof.
            WarmupTimeout: a deadline passed.
            RankFailed: another rank does not come as far.
        """
        for attempt in range(1, attempts + 1):
            await self._evidence.stand_idle()
            await self._proof_pass()
            # More passes change nothing about what the recompile limit has made eager.
            hopeless = self._calls.describe_eager()
            mine = [
                name
                for name, why in self.progress.unproven.items()
                if why != hopeless and name not in self.progress.left_out
            ]
            failed = sum(await self._calls.agree("inputs to replay again", len(mine)))
            if not failed or attempt == attempts:
                break
            logger.warning("proof attempt=%d failed inputs=%d, replaying", attempt, failed)
            try:
                await self.until_quiet()
            except NotProven:
                break  # what the last proof has found stands
        await self._evidence.require_calls()
        await self._prove_together()

    async def find_compiling(self, items: Sequence[Input]) -> list[Input]:
        """Replay each of `items` with compiling forbidden, and return those that would compile.

        They are not among the declared inputs: nothing of this counts for or against those.

        Raises:
            WarmupTimeout: a deadline passed.
        """
        found = []
        with evidence.note_calls() as calls, self._calls.forbidding():
            for item in items:
                before = self._seen.counts()
                with calls.of_replay():
                    await self._timed.make(item)  # what it raises for another reason is traffic's
                change = self._seen.counts() - before
                if change.forbidden or change.compiles:
                    found.append(item)
        return found

    async def _prove_together(self) -> None:
        """Take what is not proven on another rank for not proven: its calls are calls of all."""
        progress = self.progress
        for rank, unproven in enumerate(await self._calls.agree("the proof", progress.unproven)):
            for name, why in unproven.items():
                progress.proven.discard(name)
                progress.unproven.setdefault(name, f"rank {rank}: {why}")

    async def _one_pass(self) -> None:
        progress = self.progress
        progress.passes += 1
        progress.done = 0
        tasks = asyncio.all_tasks()
        with evidence.note_calls() as calls:
            for item in progress.inputs:
                before = self._seen.counts()
                with calls.of_replay() as replayed:
                    seconds = await self._calls.replay(item)
                change = self._seen.counts() - before
                self._evidence.of_last_pass[item.name] = replayed
                if replayed.own:  # what is beside it may be another thread's
                    self._evidence.called_before.add(item.name)
                if seconds is not None:
                    progress.first_s.setdefault(item.name, seconds)
                    progress.steady_s[item.name] = seconds
                progress.compiles[item.name] = progress.compiles.get(item.name, 0) + change.compiles
                progress.done += 1
                self._changed()
                self._timed.require_time(item, seconds or 0.0)
        self._evidence.began_a_task = bool(asyncio.all_tasks() - tasks)
        self._evidence.any_seen = self._evidence.any_seen or bool(calls.threads)

    async def _proof_pass(self) -> None:
        progress = self.progress
        progress.passes += 1
        progress.done = 0
        progress.proven.clear()
        progress.unproven.clear()
        progress.unproven.update(progress.left_out)
        self._evidence.of_proof.clear()
        with evidence.note_calls() as calls, self._calls.forbidding():
            for item in progress.inputs:
                if item.name not in progress.left_out:
                    self._evidence.of_proof[item.name] = await self._calls.prove(item, calls)
                progress.done += 1
                self._changed()
        self._evidence.any_seen = self._evidence.any_seen or bool(calls.threads)
        progress.threads = set(calls.threads)
