# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The replay of the declared inputs until nothing compiles, and the proof.

serve_warm cannot know in advance how often code must run until it is warm. Even with an Inductor
cache hit, code is traced once. A CUDA graph needs three calls, and code with a graph break needs
more. So all inputs are replayed, pass after pass, until a whole pass is quiet: no compile, build,
autotuning run, capture or fallback to eager. Then one more pass runs with compiling forbidden.

Ranks that compute together make the same passes. The passes continue until one pass is quiet on all
ranks. An input counts as proven only if all ranks have proven it.

`call_evidence` checks that each input reached compiled code, and `ranked_calls` replays a single
input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from serve_warm.compiler import evidence
from serve_warm.compiler.evidence import CompiledCalls
from serve_warm.compiler.gpus import find_gpu_error, is_gpu_in_use
from serve_warm.compiler.proof import run_eagerly
from serve_warm.compiler.watch import CompileCounter
from serve_warm.errors import NotProven, ReplayFailed, WarmupFailed
from serve_warm.inputs import Input
from serve_warm.precompile import SESSION
from serve_warm.replica.record.progress import Progress
from serve_warm.replica.replay.call_evidence import CallEvidence
from serve_warm.replica.replay.narrow import Varied
from serve_warm.replica.replay.ranked_calls import InputCalls, describe_counts, describe_last
from serve_warm.replica.replay.ranks import Ranks
from serve_warm.replica.replay.timed_calls import Call, GivenUp, Limits, TimedCalls
from serve_warm.replica.replay.waits import Waits
from serve_warm.report import Stage

logger = logging.getLogger(__name__)

MAX_PASSES = 8
"""Maximum number of passes over the inputs until a pass is quiet."""

PROOF_ATTEMPTS = 3
"""Maximum number of proofs. After a failed proof, the inputs are replayed with compiling allowed.
Repeating a proof is useful, because a concurrent call can fail by chance, through a race condition
in Dynamo's lookup."""

TRIAL_S, TRIAL_FACTOR = 2.0, 10.0
"""Limit of an undeclared call: at least this number of seconds, and at least this number of times
the duration of the slowest declared call."""


class Replay:
    """Replays `inputs` with `call`.

    `seen` counts the compiles, and `changed` is called after the replay of each input. If requests
    arrive meanwhile (`in_traffic`), the proof counts compiles instead of forbidding them.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        call: Call,
        *,
        seen: CompileCounter,
        limits: Limits,
        ranks: Ranks | None = None,
        waits: Waits | None = None,
        changed: Callable[[], None] = lambda: None,
        has_compiled: Callable[[], bool] = lambda: False,
        in_traffic: bool = False,
    ) -> None:
        self.progress = progress = Progress(inputs=inputs)
        self._seen = seen
        self._changed = changed
        self._timed = TimedCalls(call, progress, limits=limits, waits=waits, seen=seen)
        self.overdue = self._timed.overdue
        """Function that returns an error if the current replay is late, else None. Any thread may
        call it."""
        self._calls = InputCalls(self._timed, ranks or Ranks(), in_traffic=in_traffic)
        self._evidence = CallEvidence(self._calls, has_compiled=has_compiled)

    async def until_quiet(self) -> None:
        """Replay all inputs until a whole pass has no compile, no capture and no settling call.

        Settling calls run eagerly, to create state that entries need. An entry that needs such
        state runs for the first time in the next pass.

        Raises:
            ReplayFailed: an input raised an exception, or all inputs ran out of memory.
            WarmupTimeout: a deadline passed.
            NotProven: something still compiled in the last allowed pass.
            RankFailed: another rank failed or stopped answering.
        """
        for _ in range(MAX_PASSES):
            before, settling = self._seen.counts(), SESSION.settling_calls
            await self._one_pass()
            changed = self._seen.counts() - before
            is_quiet = changed.quiet and SESSION.settling_calls == settling
            quiet = await self._calls.agree(f"pass {self.progress.passes}", is_quiet)
            if all(quiet):
                return
        what = f"{describe_counts(changed)} in the last pass"
        if changed.quiet:
            what = f"on rank {quiet.index(False)}, not on this rank"
        raise NotProven(
            f"after {MAX_PASSES} passes over {len(self.progress.inputs)} inputs, the model "
            f"still compiles ({what})",
            hint="look for inputs that change from call to call (Python numbers, strides, new "
            f"shapes); the last compile was: {describe_last(self._seen) or 'none'}",
            stage=Stage.REPLAYING.value,
        )

    async def once(
        self, around: Callable[[Input], contextlib.AbstractContextManager[object]] | None = None
    ) -> None:
        """Replay all inputs once, only for the effect on compiled functions. Proves nothing.

        `around` returns the block in which an input is replayed.

        Raises:
            ReplayFailed: an input raised an exception.
            WarmupTimeout: a deadline passed.
        """
        for item in self.progress.inputs:
            with contextlib.nullcontext() if around is None else around(item):
                await self._calls.replay(item)

    async def run_eagerly(self, why: str) -> None:
        """Replay all inputs once, in a start that compiles nothing. Proves nothing, because `why`.

        The replay finds errors in inputs, and does the work of first calls: reserving memory,
        creating lazy modules, choosing algorithms of cuDNN.

        Raises:
            ReplayFailed: an input raised an exception, or all inputs ran out of memory.
            WarmupTimeout: a deadline passed.
        """
        await self._one_pass()
        self.progress.unproven.update((item.name, why) for item in self.progress.inputs)
        self.progress.unproven.update(self.progress.left_out)

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Replay each input at most once, smallest first, until `is_done()` returns True.

        Raises:
            ReplayFailed: an input raised an exception.
            WarmupTimeout: a deadline passed.
        """
        for item in reversed(self.progress.inputs):
            if is_done():
                return
            if item.name in self.progress.left_out:
                continue
            with evidence.note_calls() as calls, calls.of_replay():
                _, error = await self._timed.make(item)
            if error is not None and not self._calls.may_be_left_out(error):
                raise error
            self._changed()

    async def try_again(self, name: str) -> ReplayFailed | None:
        """Replay the input with this name once more, and return the error, if any.

        Raises:
            WarmupTimeout: a deadline passed.
        """
        item = next(item for item in self.progress.inputs if item.name == name)
        _, error = await self._timed.make(item)
        return error

    async def prove(self, *, attempts: int = PROOF_ATTEMPTS) -> None:
        """Replay all inputs with compiling forbidden, and record in `progress` which are proven.

        If inputs are not proven, replay all inputs and prove again, with at most `attempts` proofs.
        Some inputs can still be unproven when this returns.

        Raises:
            ReplayFailed: an input raised an exception that was not about a forbidden compile.
            WarmupTimeout: a deadline passed.
            RankFailed: another rank failed or stopped answering.
        """
        for attempt in range(1, attempts + 1):
            await self._evidence.stand_idle()
            await self._proof_pass()
            # More passes do not help an input that runs eagerly because of the recompile limit.
            hopeless = self._calls.describe_eager()
            mine = [
                name
                for name, why in self.progress.unproven.items()
                if why != hopeless and name not in self.progress.left_out
            ]
            failed = sum(await self._calls.agree("inputs to replay again", len(mine)))
            if not failed or attempt == attempts:
                break
            logger.warning("proof attempt=%d unproven_inputs=%d, replaying again", attempt, failed)
            try:
                await self.until_quiet()
            except NotProven:
                break  # the result of the last proof is final
        await self._evidence.require_calls()
        await self._prove_together()

    async def find_narrow(
        self, varied: Sequence[Varied], what: str, *, passes: float
    ) -> tuple[list[Varied], list[str]]:
        """Return the inputs that would compile, although the handler accepts them.

        Also returns lines about what was not found out; `what` names the inputs. To save time, this
        stops after `passes` passes or `passes` seconds, whichever is longer. It also stops after a
        call that does not end, because a thread may go on with that call, and once the handler
        refuses a declared input. The handler accepts an input if an eager call raises no error.

        Raises:
            WarmupTimeout: a deadline passed.
            WarmupFailed: a call ended the work of this process on a GPU.
        """
        found: list[Varied] = []
        accepted = set[str]()
        refused, taken = set[str](), set[str]()
        pass_s = sum(self.progress.steady_s.values())
        until_s = time.perf_counter() + passes * max(1.0, pass_s)
        with SESSION.probing():
            for number, each in enumerate(varied):
                left = f"{len(varied) - number} of {len(varied)} {what}"
                if time.perf_counter() > until_s:
                    return found, [f"{left}, to save time"]
                if each.is_extra and any(each.arguments & known.arguments for known in found):
                    continue
                if each.only_if and each.only_if not in accepted:
                    continue
                would_compile, error, why = await self._try_varied(each)
                if why:
                    logger.warning("no more inputs are varied: %s", why)
                    return found, [f"{left}, because {why}"]
                if would_compile and error is None and not each.is_probe:
                    found.append(each)
                if error is None and not (would_compile and each.is_probe):
                    accepted.add(each.axes)
                (refused if error is not None else taken).update(each.texts)
        opaque = sorted(refused - taken)
        return found, [f"{name}, because every variation was refused" for name in opaque]

    async def _try_varied(self, varied: Varied) -> tuple[bool, BaseException | None, str]:
        """Return whether a call would compile, its error, and why no other call may follow.

        If the call would compile, the error is that of an eager call.

        Raises:
            WarmupFailed: the call ended the work of this process on a GPU.
        """
        item, why = varied.item, ""
        with evidence.note_calls() as calls, self._calls.forbidding():
            would_compile, error = await self._would_compile(item, calls)
        if would_compile:
            error = await self._try_eagerly(item)
        _require_gpu(varied)  # before a declared input fails for it
        if error is not None and not isinstance(error, GivenUp):
            if await self._refuses_declared(item):
                why = f"a declared input was refused after another value ({varied.axes})"
            elif would_compile:
                error = await self._try_eagerly(item)
        if isinstance(error, GivenUp):
            why = f"the call with another value ({varied.axes}) did not end"
        return would_compile, error, why

    async def _try_eagerly(self, item: Input) -> BaseException | None:
        with run_eagerly():
            return await self._timed.try_out(item, self._trial_s())

    async def _refuses_declared(self, varied: Input) -> bool:
        """Return whether a handler also refuses a proven input of the target of a varied one.

        For example, it may refuse all calls for some time after an error.
        """
        target, progress = varied.target_name.partition("?")[0], self.progress
        known = [
            item
            for item in progress.inputs
            if item.name in progress.proven and item.target_name.partition("?")[0] == target
        ]
        if not known:
            return False
        cheapest = min(known, key=lambda item: item.size)
        with self._calls.forbidding():
            return await self._timed.try_out(cheapest, self._trial_s()) is not None

    def _trial_s(self) -> float:
        """Return the limit of an undeclared call, which may wait for something that never comes."""
        return max(TRIAL_S, TRIAL_FACTOR * max(self.progress.steady_s.values(), default=0.0))

    async def _would_compile(
        self, item: Input, calls: CompiledCalls
    ) -> tuple[bool, BaseException | None]:
        """Return whether a call is refused while compiling is forbidden, and its error."""
        before = self._seen.counts()
        with calls.of_replay():
            error = await self._timed.try_out(item, self._trial_s())
        change = self._seen.counts() - before
        return bool(change.forbidden or change.compiles), error

    async def _prove_together(self) -> None:
        """Mark an input as unproven if another rank has not proven this input."""
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
                if replayed.own:  # calls outside the replay may come from an unrelated thread
                    self._evidence.called_before.add(item.name)
                if seconds is not None:
                    progress.first_s.setdefault(item.name, seconds)
                    progress.steady_s[item.name] = seconds
                progress.compiles[item.name] = progress.compiles.get(item.name, 0) + change.compiles
                if not change.quiet:
                    progress.worked.add(item.name)
                progress.done += 1
                self._changed()
                self._timed.require_time(item, seconds or 0.0)
        self._evidence.began_a_task = bool(asyncio.all_tasks() - tasks)
        self._evidence.any_seen = self._evidence.any_seen or calls.entered

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
        self._evidence.any_seen = self._evidence.any_seen or calls.entered
        progress.threads = set(calls.threads)


def _require_gpu(varied: Varied) -> None:
    """Raise an error if the GPU no longer works for this process after a varied call.

    Otherwise the next innocent call would raise it.
    """
    error = find_gpu_error() if is_gpu_in_use() else ""
    if error:
        raise WarmupFailed(
            f"a call with another value ({varied.axes}) ended all work of this process on the GPU: "
            f"{error}",
            hint="a request like it would end a replica: let the handler refuse such values before "
            "they reach the GPU, or declare the input with fixed=",
            stage=Stage.PROVING.value,
            input=varied.item.name,
        )
