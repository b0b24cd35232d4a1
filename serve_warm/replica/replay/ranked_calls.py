# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The replay of single inputs on one rank, with compiling allowed or forbidden.

If the GPU runs out of memory for an input, that input is skipped and reported. The largest inputs
are replayed first, while the most memory is free.
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
from serve_warm.compiler.watch import CompileCounter
from serve_warm.errors import ReplayFailed
from serve_warm.inputs import Input
from serve_warm.learn.recorded import NotRepeatable
from serve_warm.replica.replay.ranks import Ranks
from serve_warm.replica.replay.timed_calls import TimedCalls
from serve_warm.report import Counts, Stage

logger = logging.getLogger(__name__)


class InputCalls:
    """Replays one input at a time. `seen` counts the compiles, and `progress` gets the results.

    If there are several ranks, all ranks must answer before `deadline`.
    """

    def __init__(self, timed: TimedCalls, ranks: Ranks, *, in_traffic: bool) -> None:
        self._timed = timed
        self._ranks = ranks
        self.progress, self.seen, self.deadline = timed.progress, timed.seen, timed.deadline
        self.in_traffic = in_traffic
        self.is_alone = ranks.size == 1
        """Whether this rank is the only one."""
        self._forbids = self.is_alone and not in_traffic

    async def agree(self, what: str, mine: Any) -> list[Any]:
        """Return the answers of all ranks; see `Ranks.agree`."""
        return await self._ranks.agree(what, mine, timeout_s=max(0.1, self.deadline.left()))

    def forbidding(self) -> contextlib.AbstractContextManager[None]:
        """Forbid compiling in the block if this rank is the only one and there is no traffic."""
        # Several ranks only count compiles. A rank that refused to compile would skip the rest of
        # the call. Then other ranks would wait in a collective, or match the collectives of
        # different inputs. Nor is compiling forbidden in traffic: a request may share a batch with
        # a replayed input, and must not fail.
        return forbid() if self._forbids else contextlib.nullcontext()

    async def replay(self, item: Input) -> float | None:
        """Replay an input. Return the duration in seconds, or None if the input was skipped.

        An input is skipped if two attempts run out of memory. Cached memory is freed before the
        second attempt. A call of a plan is also skipped if it cannot be repeated.
        """
        if item.name in self.progress.left_out:
            return None
        why = ""
        for _ in range(2):
            seconds, error = await self._timed.make(item)
            if error is None:
                return seconds
            if self._is_not_repeatable(error):
                self._leave_out_call(item, error)
                return None
            if not self.may_be_left_out(error):
                raise error
            why = describe_error(error.__cause__ or error)
            # First drop the error, which keeps alive the frames that ran out of memory, with their
            # tensors.
            error = None
            cuda_graphs.free_memory()
        self._leave_out(item, why)
        return None

    async def prove(self, item: Input, calls: CompiledCalls) -> Replayed:
        """Replay an input with compiling forbidden. Record the result, and return the calls."""
        progress = self.progress
        before = self.seen.counts()
        falls = contextlib.nullcontext() if self._forbids else falls_counted()
        with calls.of_replay() as replayed, falls:
            seconds, error = await self._timed.make(item)
        change = self.seen.counts() - before
        why = ""
        if change.eager_falls:
            why = self.describe_eager()
        elif change.forbidden:
            why = f"would compile: {describe_last(self.seen)}"
        elif error is not None and self.may_be_left_out(error):
            # The passes after a failed proof show whether the input must be skipped.
            why = f"ran out of memory: {describe_error(error.__cause__ or error)}"
            error = None
            cuda_graphs.free_memory()
        elif error is not None and self._is_not_repeatable(error):
            why = self._leave_out_call(item, error)
        elif error is not None:
            raise error
        elif not change.quiet:
            why = f"still needed compile work: {describe_counts(change)}"
            if change.compiles:  # compiles by any thread; the name shows which function compiled
                why += f"; {describe_last(self.seen)}"
        if why:
            progress.proven.discard(item.name)
            progress.unproven[item.name] = why
        else:
            if item.name not in progress.unproven:
                progress.proven.add(item.name)
            progress.steady_s[item.name] = seconds
        self._timed.require_time(item, seconds)
        return replayed

    def _is_not_repeatable(self, error: ReplayFailed) -> bool:
        """Return whether an input of a plan failed because of the plan: no start fails for it."""
        return isinstance(error.__cause__, NotRepeatable) and self.is_alone

    def _leave_out_call(self, item: Input, error: ReplayFailed) -> str:
        """Record that an input of a plan raised an error, and return the reason to report."""
        why = f"left out, because it cannot be repeated: {error.__cause__}"
        self.progress.left_out[item.name] = why
        logger.warning("a call of the plan is %s: %s", why, item.name)
        return why

    def describe_eager(self) -> str:
        """Return the reason to report for an input that runs eagerly due to the recompile limit."""
        needed = len(self.progress.inputs)
        return (
            "runs eagerly without a message from torch: a function has more compiled variants than "
            f"the recompile limit allows; {how_to_raise_the_limit(max(16, needed))} "
            "or declare fewer shapes; for a plan, pass --most to serve-warm plan"
        )

    def may_be_left_out(self, error: ReplayFailed) -> bool:
        """Return whether a replay ran out of memory and other inputs can still be replayed."""
        # With several ranks, no other input can be replayed, because the other ranks are still in
        # the middle of this call.
        return self.is_alone and cuda_graphs.ran_out_of_memory(error)

    def _leave_out(self, item: Input, why: str) -> None:
        """Record that an input ran out of memory; raise an error if all inputs did."""
        progress = self.progress
        progress.left_out[item.name] = f"left out because memory ran out: {why}"
        if len(progress.left_out) == len(progress.inputs):
            raise ReplayFailed(
                f"all {len(progress.inputs)} inputs ran out of memory; the last error was {why}",
                hint="declare smaller inputs, or give the replica a whole GPU",
                stage=Stage.REPLAYING.value,
            )
        logger.warning("skipped input=%r because memory ran out: %s", item.name, why)


def describe_counts(change: Counts) -> str:
    """Return text that lists compiles, captures and builds."""
    parts = {
        "compiles": change.compiles,
        "compiler runs": change.compiler_processes,
        "captures": change.captures,
        "eager runs before a capture": change.eager_runs,
        "kernels built": change.kernels,
        "autotuning runs": change.tunings,
        "fallbacks to eager": change.eager_falls,
    }
    return ", ".join(f"{count} {name}" for name, count in parts.items() if count) or "nothing"


def describe_last(seen: CompileCounter) -> str:
    """Describe the last compile and its reason; return "" if nothing compiled."""
    events = seen.events()
    if not events:
        return ""
    last = events[-1]
    return f"{last.function} with {last.signature}: {last.reason}".rstrip(": ")
