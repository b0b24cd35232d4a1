# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replays of single inputs on one rank: with compiling allowed, with it forbidden, out of memory.

An input for which the GPU's memory does not suffice is left out, and named. Inputs come largest
first, so that there is room for the others then.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from serve_warm._redaction import describe_error
from serve_warm.compiler import cuda_graphs
from serve_warm.compiler.compiled_objects import how_to_raise_the_limit
from serve_warm.compiler.evidence import CompiledCalls, Replayed
from serve_warm.compiler.proof import falls_counted, forbid
from serve_warm.compiler.watch import Watch
from serve_warm.errors import ReplayFailed
from serve_warm.inputs import Input
from serve_warm.replica.ranks import Ranks
from serve_warm.replica.timed_calls import Deadline, Progress, TimedCalls
from serve_warm.report import Counts, Stage

logger = logging.getLogger(__name__)


class InputCalls:
    """Replays one input at a time, counting with `seen`, and notes in `progress` what came of it.

    Of several ranks this one agrees with the others before `deadline`.
    """

    def __init__(
        self,
        timed: TimedCalls,
        progress: Progress,
        *,
        seen: Watch,
        ranks: Ranks,
        deadline: Deadline,
    ) -> None:
        self._timed = timed
        self._progress = progress
        self._seen = seen
        self._ranks = ranks
        self._deadline = deadline
        self.is_alone = ranks.size == 1
        """Whether no other rank computes together with this one."""

    async def agree(self, what: str, mine: Any) -> list[Any]:
        """Return what each rank says, as `Ranks.agree` does."""
        return await self._ranks.agree(what, mine, timeout_s=max(0.1, self._deadline.left()))

    def forbidding(self) -> contextlib.AbstractContextManager[None]:
        """Forbid compiling in the block, where this rank is alone."""
        # Ranks only count. One that refuses to compile makes no further call, and the others wait
        # for it in their collectives, or meet it in that of another input.
        return forbid() if self.is_alone else contextlib.nullcontext()

    async def replay(self, item: Input) -> float | None:
        """Return the seconds of a replay; None for an input that is left out, now or before.

        It is when memory does not suffice twice, the second time with all given back that is free.
        """
        if item.name in self._progress.left_out:
            return None
        why = ""
        for _ in range(2):
            seconds, error = await self._timed.make(item)
            if error is None:
                return seconds
            if not self.may_be_left_out(error):
                raise error
            why = describe_error(error.__cause__ or error)
            # What it holds goes first: the frames that ran out of memory, with their tensors.
            error = None
            cuda_graphs.free_memory()
        self._leave_out(item, why)
        return None

    async def prove(self, item: Input, calls: CompiledCalls) -> Replayed:
        """Replay one input where compiling is forbidden, note the result, and return its calls."""
        progress = self._progress
        alone = self.is_alone
        before = self._seen.counts()
        falls = contextlib.nullcontext() if alone else falls_counted()
        with calls.of_replay() as replayed, falls:
            seconds, error = await self._timed.make(item)
        change = self._seen.counts() - before
        why = ""
        if change.eager_falls:
            why = self.describe_eager()
        elif change.forbidden:
            why = f"would compile: {describe_last(self._seen)}"
        elif error is not None and self.may_be_left_out(error):
            # Passes that follow a failed proof show whether it has to be left out.
            why = f"memory does not suffice: {describe_error(error.__cause__ or error)}"
            error = None
            cuda_graphs.free_memory()
        elif error is not None:
            raise error
        elif not change.quiet:
            why = f"not quiet: {describe_counts(change)}"
            if change.compiles:  # by any thread: the name tells whose it was
                why += f"; {describe_last(self._seen)}"
        if why:
            progress.proven.discard(item.name)
            progress.unproven[item.name] = why
        else:
            if item.name not in progress.unproven:
                progress.proven.add(item.name)
            progress.steady_s[item.name] = seconds
        self._timed.require_time(item, seconds)
        return replayed

    def describe_eager(self) -> str:
        """Return why an input is not proven that the recompile limit has made eager."""
        needed = len(self._progress.inputs)
        return (
            "runs eagerly, without a word from torch: there are more compiled variants than the "
            f"recompile limit allows; {how_to_raise_the_limit(max(16, needed))} "
            "or declare fewer shapes"
        )

    def may_be_left_out(self, error: ReplayFailed) -> bool:
        """Return whether memory did not suffice, and the other inputs may go on."""
        # Not on one of several ranks: the others are in the middle of the same call.
        return self.is_alone and cuda_graphs.ran_out_of_memory(error)

    def _leave_out(self, item: Input, why: str) -> None:
        """Note that memory does not suffice for an input, and raise where it does for none."""
        progress = self._progress
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


def describe_counts(change: Counts) -> str:
    """Return in words what was compiled, captured and built."""
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


def describe_last(seen: Watch) -> str:
    """Return in words what compiled last, and why; empty where nothing has."""
    events = seen.events()
    if not events:
        return ""
    last = events[-1]
    return f"{last.function} with {last.signature}: {last.reason}".rstrip(": ")
