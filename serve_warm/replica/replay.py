# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Run the declared inputs until nothing compiles any more, then prove it.

Nobody here knows how often a path must run to be warm: an Inductor hit still traces once, a
CUDA graph takes three calls, a graph break more. Passes are repeated until a whole one changes
no count, and then one more is run in which compiling is forbidden.

Ranks that compute together make the same passes: all go on until a pass was quiet on all of them,
and an input is proven when it is on all of them.

An input is proven by its own compiled calls (`serve_warm.compiler.evidence`). One that makes none,
because a guard clause or a remembered answer comes first, is quiet as well, and proves nothing.

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

from serve_warm.compiler import cuda_graphs, evidence
from serve_warm.compiler.compiled_objects import how_to_raise_the_limit
from serve_warm.compiler.evidence import CompiledCalls, Replayed
from serve_warm.compiler.proof import falls_counted, forbid
from serve_warm.compiler.watch import Watch
from serve_warm.errors import NotProven, ReplayFailed, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.replica.ranks import Ranks
from serve_warm.report import Counts, InputResult, Stage

logger = logging.getLogger(__name__)

WAIT_NOTICE_S = 10.0
"""After this long awaiting one input, the log says so: other deployments may not be up yet."""

CANCEL_S = 0.5
"""How long a late call may take to end once it is cancelled."""

PROOF_ATTEMPTS = 3
"""Proofs tried before giving up. A failed one is followed by passes in which compiling is
allowed again. Concurrent calls can lose a race in Dynamo's lookup and fail without cause."""

IDLE_S = (0.25, 5.0)
"""Shortest and longest time without a replay, in which threads that call compiled functions for
reasons of their own show themselves. In between it is as long as the slowest replay in doubt."""

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


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    """A replay that has begun and not ended."""

    item: Input
    limit_s: float
    limit: Deadline


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
        # `has_compiled` is asked where no compiled call was seen: whether there is anything that an
        # input could have called.
        self.progress = Progress(inputs=inputs)
        self._call = call
        self._seen = seen
        self._deadline = deadline
        self._input_deadline_s = input_deadline_s
        self._max_passes = max_passes
        self._ranks = ranks or Ranks()
        self._waits_for = tuple(waits_for)
        self._changed = changed
        self._has_compiled = has_compiled
        self._under_way: _UnderWay | None = None
        self._calls_seen = False
        self._called_before: set[str] = set()
        """Names of the inputs that made compiled calls in some pass before the proof."""
        self._pass_calls: dict[str, Replayed] = {}
        """Compiled calls of each input in the last pass before the proof."""
        self._began_a_task = False
        """Whether a task goes on that the last pass began. It carries the mark of the replay that
        it was begun in, as that of `@serve.batch` does, so that its later calls are no replay's."""
        self._proof_calls: dict[str, Replayed] = {}
        self._idle: set[int] | None = None
        """Threads that made compiled calls while nothing was replayed before the proof; None if
        nobody looked."""
        """Compiled calls of the last proof pass, by input."""

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

    def overdue(self) -> WarmupTimeout | None:
        """Return why the replay under way is late, or None. From any thread."""
        now = self._under_way
        if now is None or now.limit.left() > 0:
            return None
        return self._timeout(now.item, now.limit_s)

    async def once(self) -> None:
        """Replay all inputs once, for what that does to the callables; nothing is proven by it.

        Raises:
            ReplayFailed: an input raised.
            WarmupTimeout: a deadline passed.
        """
        for item in self.progress.inputs:
            await self._replay_if_it_fits(item)

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
            _, error = await self._replay_reporting(item)
            if error is not None and not self._may_be_left_out(error):
                raise error
            self._changed()

    async def prove(self, *, attempts: int = PROOF_ATTEMPTS) -> None:
        """Replay all inputs once with compiling forbidden, and note which went through.

        Not raising does not mean that all are proven: `progress` says which are.

        Raises:
            ReplayFailed: an input raised for another reason than the proof.
            WarmupTimeout: a deadline passed.
            RankFailed: another rank does not come as far.
        """
        for attempt in range(1, attempts + 1):
            await self._stand_idle()
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
                break
            logger.warning("proof attempt=%d failed inputs=%d, replaying", attempt, failed)
            try:
                await self.until_quiet()
            except NotProven:
                break  # what the last proof has found stands
        await self._require_compiled_calls()
        await self._prove_together()

    async def _require_compiled_calls(self) -> None:
        """Take those inputs for not proven that made no compiled call in the proof.

        An app without anything compiled has nothing to call. Ranks count as one app: a call on any
        of them is a call of the input.
        """
        progress, calls = self.progress, self._proof_calls
        mine = {
            "own": [name for name in calls if calls[name].own],
            "beside": [name for name in calls if calls[name].beside and name in progress.proven],
            "has compiled": self._calls_seen or self._has_compiled(),
        }
        said = await self._agree("compiled calls", mine)
        progress.has_compiled = any(theirs["has compiled"] for theirs in said)
        if not progress.has_compiled:
            return
        called = {name for theirs in said for name in theirs["own"]}
        beside = {name for theirs in said for name in theirs["beside"]} - called
        beside -= (confirmed_before := self._confirmed_by_the_last_pass(beside))
        called |= confirmed_before
        doubtful = [item for item in progress.inputs if item.name in beside]
        if doubtful:
            confirmed = await self._confirm(doubtful)
            for theirs in await self._agree("compiled calls beside", confirmed):
                called.update(theirs)
        for item in progress.inputs:
            if item.name in progress.proven - called:
                progress.proven.discard(item.name)
                progress.unproven[item.name] = self._why_no_call(item.name, beside)

    def _why_no_call(self, name: str, beside: set[str]) -> str:
        if name in beside:
            return (
                "makes no compiled call that can be told from those of other threads: they call "
                "compiled functions while nothing is replayed, too, or did so only once; call the "
                "model with `await self.on_model_thread(self.model, ...)`"
            )
        if name in self._called_before:
            return (
                "made no compiled call in the proof, and did in an earlier pass: its handler "
                "remembers the answer; have the replay bypass that cache"
            )
        return (
            "makes no compiled call: its handler answers without the model; correct its arguments "
            "so that they reach the model, or do not declare it"
        )

    async def _stand_idle(self) -> None:
        """Note who makes compiled calls while nothing is replayed, between last pass and proof.

        Only where calls of the proof may be made beside it, by what the last pass has shown.
        Together with both passes that tells calls for a replay from those of a thread with reasons
        of its own, without one more pass.
        """
        self._idle = None
        doubtful = [
            name
            for name, found in self._pass_calls.items()
            if (found.own and self._began_a_task) or (found.beside and not found.own)
        ]
        if not doubtful or self._ranks.size > 1:  # all ranks would have to stand idle at once
            return
        slowest_s = max(self.progress.steady_s.get(name, 0.0) for name in doubtful)
        with evidence.note_calls() as calls, calls.of_replay() as idle:
            await asyncio.sleep(self._idle_s(slowest_s))
        self._idle = idle.beside

    def _idle_s(self, slowest_s: float) -> float:
        return min(max(slowest_s, IDLE_S[0]), IDLE_S[1], max(0.0, self._deadline.left()))

    def _confirmed_by_the_last_pass(self, beside: set[str]) -> set[str]:
        """Return the inputs whose calls came, stopped while nothing ran, and came again."""
        idle = self._idle
        if idle is None:
            return set()
        found = {
            name
            for name in beside
            if self._proof_calls[name].beside - idle
            and (last := self._pass_calls.get(name)) is not None
            and (last.own or last.beside - idle)
        }
        if found:
            self.progress.threads -= idle
        return found

    async def _confirm(self, doubtful: Sequence[Input]) -> list[str]:
        """Return the names of inputs whose calls stop while nothing is replayed, and come again.

        Threads of a pool, a thread that reads a queue and the task of `@serve.batch` do not carry
        the mark of a replay. What they do for it ends with it, and is done at each replay.
        """
        slowest_s = max(self.progress.steady_s.get(item.name, 0.0) for item in doubtful)
        idle_s = self._idle_s(slowest_s)
        confirmed = []
        with evidence.note_calls() as calls, self._forbidding():
            with calls.of_replay() as idle:
                await asyncio.sleep(idle_s)
            self.progress.threads -= idle.beside
            for item in doubtful:
                before = self._proof_calls.get(item.name, Replayed())
                again = await self._prove_one(item, calls)
                first = before.beside - idle.beside
                if first and (again.own or again.beside - idle.beside):
                    confirmed.append(item.name)
        return confirmed

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
        tasks = asyncio.all_tasks()
        with evidence.note_calls() as calls:
            for item in progress.inputs:
                before = self._seen.counts()
                with calls.of_replay() as replayed:
                    seconds = await self._replay_if_it_fits(item)
                change = self._seen.counts() - before
                self._pass_calls[item.name] = replayed
                if replayed.own:  # what is beside it may be another thread's
                    self._called_before.add(item.name)
                if seconds is not None:
                    progress.first_s.setdefault(item.name, seconds)
                    progress.steady_s[item.name] = seconds
                progress.compiles[item.name] = progress.compiles.get(item.name, 0) + change.compiles
                progress.done += 1
                self._changed()
                self._require_time(item, seconds or 0.0)
        self._began_a_task = bool(asyncio.all_tasks() - tasks)
        self._calls_seen = self._calls_seen or bool(calls.threads)

    async def _proof_pass(self) -> None:
        progress = self.progress
        progress.passes += 1
        progress.done = 0
        progress.proven.clear()
        progress.unproven.clear()
        progress.unproven.update(progress.left_out)
        self._proof_calls.clear()
        with evidence.note_calls() as calls, self._forbidding():
            for item in progress.inputs:
                if item.name not in progress.left_out:
                    self._proof_calls[item.name] = await self._prove_one(item, calls)
                progress.done += 1
                self._changed()
        self._calls_seen = self._calls_seen or bool(calls.threads)
        progress.threads = set(calls.threads)

    def _forbidding(self) -> contextlib.AbstractContextManager[None]:
        # Ranks only count. One that refuses to compile makes no further call, and the others wait
        # for it in their collectives, or meet it in that of another input.
        return forbid() if self._ranks.size == 1 else contextlib.nullcontext()

    async def _prove_one(self, item: Input, calls: CompiledCalls) -> Replayed:
        """Replay one input where compiling is forbidden, note the result, and return its calls."""
        progress = self.progress
        alone = self._ranks.size == 1
        before = self._seen.counts()
        falls = contextlib.nullcontext() if alone else falls_counted()
        with calls.of_replay() as replayed, falls:
            seconds, error = await self._replay_reporting(item)
        change = self._seen.counts() - before
        why = ""
        if change.eager_falls:
            why = self._runs_eagerly()
        elif change.forbidden:
            why = f"would compile: {_last_reason(self._seen)}"
        elif error is not None and self._may_be_left_out(error):
            # Passes that follow a failed proof show whether it has to be left out.
            why = f"memory does not suffice: {_raised(error)}"
            error = None
            cuda_graphs.free_memory()
        elif error is not None:
            raise error
        elif not change.quiet:
            why = f"not quiet: {_described(change)}"
            if change.compiles:  # by any thread: the name tells whose it was
                why += f"; {_last_reason(self._seen)}"
        if why:
            progress.proven.discard(item.name)
            progress.unproven[item.name] = why
        else:
            if item.name not in progress.unproven:
                progress.proven.add(item.name)
            progress.steady_s[item.name] = seconds
        self._require_time(item, seconds)
        return replayed

    def _require_time(self, item: Input, seconds: float) -> None:
        """Raise if a replay that blocked the loop, where nothing could cancel it, was late."""
        if seconds > self._input_deadline_s:
            raise self._timeout(item, self._input_deadline_s)
        if self._deadline.left() < 0:
            raise self._timeout(item, self._deadline.seconds)

    def _runs_eagerly(self) -> str:
        needed = len(self.progress.inputs)
        return (
            "runs eagerly, without a word from torch: there are more compiled variants than the "
            f"recompile limit allows; {how_to_raise_the_limit(max(16, needed))} "
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
            cuda_graphs.free_memory()
        self._leave_out(item, why)
        return None

    def _may_be_left_out(self, error: ReplayFailed) -> bool:
        # Not on one of several ranks: the others are in the middle of the same call.
        return self._ranks.size == 1 and cuda_graphs.ran_out_of_memory(error)

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
        self._under_way = _UnderWay(item=item, limit_s=limit_s, limit=Deadline(limit_s))
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
                await asyncio.wait({task}, timeout=CANCEL_S)
            self._under_way = None
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


def _last_reason(seen: Watch) -> str:
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
