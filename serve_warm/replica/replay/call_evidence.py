# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled calls of each input, which show that the input reached compiled code.

An input is proven by the compiled code that it runs (`serve_warm.compiler.evidence`). If the
handler returns early or returns a cached answer, the input does not reach the model. A replay of
such an input compiles nothing and proves nothing. The same holds if torch runs the model eagerly.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

from serve_warm.compiler import evidence
from serve_warm.compiler.evidence import Replayed
from serve_warm.compiler.switches import find_switch
from serve_warm.inputs import Input
from serve_warm.replica.record.progress import HEALTH_CHECK
from serve_warm.replica.replay.ranked_calls import InputCalls

IDLE_S = (0.25, 5.0)
"""Minimum and maximum idle time, in seconds. Between these limits, the idle time is the duration of
the slowest replay whose calls may come from other threads. No input is replayed during the idle
time. So all compiled calls in this time come from threads that work independently of replays."""

MOST_NAMED = 3
"""How many functions that run eagerly one reason names."""


class CallEvidence:
    """The compiled calls of each input, and the inputs that these calls prove."""

    def __init__(self, calls: InputCalls, *, has_compiled: Callable[[], bool]) -> None:
        # If no compiled call was made, `has_compiled` shows whether the app has compiled code.
        self._calls = calls
        self._progress = calls.progress
        self._has_compiled = has_compiled
        self.any_seen = False
        """Whether any compiled function was called."""
        self.called_before: set[str] = set()
        """Names of the inputs that made compiled calls in a pass before the proof."""
        self.of_last_pass: dict[str, Replayed] = {}
        """Compiled calls of each input in the last pass before the proof."""
        self.began_a_task = False
        """Whether a task of the last pass is still running, such as the task of `@serve.batch`.
        Such a task keeps the mark of the replay that began the task. So calls that the task makes
        later cannot be assigned to another replay."""
        self.of_proof: dict[str, Replayed] = {}
        """Compiled calls by input, in the last proof pass."""
        self._idle: list[set[int]] = []
        """The threads that made compiled calls during the idle time before the proof. The list is
        empty if there was no idle time."""

    async def require_calls(self) -> None:
        """Mark inputs as not proven if their replays made no compiled call in the proof.

        An app without compiled functions does not need compiled calls. Ranks count as one app: a
        call on any rank counts for the input.
        """
        progress, calls = self._progress, self.of_proof
        mine = {
            "own": [name for name in calls if calls[name].own],
            "beside": [name for name in calls if calls[name].beside and name in progress.proven],
            "has compiled": self.any_seen or self._has_compiled(),
        }
        said = await self._calls.agree("compiled calls", mine)
        progress.has_compiled = any(theirs["has compiled"] for theirs in said)
        self._name_switches()
        if not progress.has_compiled:
            return
        called = {name for theirs in said for name in theirs["own"]}
        beside = {name for theirs in said for name in theirs["beside"]} - called
        if self._calls.in_traffic:
            # Requests make such calls all the time. The start has shown that they belong to inputs.
            called, beside = called | beside, set()
        beside -= (confirmed_before := self._find_confirmed(beside))
        called |= confirmed_before
        doubtful = [item for item in progress.inputs if item.name in beside]
        if doubtful:
            confirmed = await self._confirm(doubtful)
            for theirs in await self._calls.agree("compiled calls beside", confirmed):
                called.update(theirs)
        for item in progress.inputs:
            if item.name not in progress.proven - called:
                continue
            progress.proven.discard(item.name)
            if item.target_name == HEALTH_CHECK:
                # It may run the model only after a time without requests. Then there is no proof.
                progress.inputs = [each for each in progress.inputs if each is not item]
            else:
                progress.unproven[item.name] = self._why_no_call(item.name, beside)

    def _name_switches(self) -> None:
        """Mark inputs as not proven for which torch's compiler is off, and name the switch."""
        progress = self._progress
        # Without torch, nothing is there to be compiled.
        whole = find_switch() if "torch" in sys.modules and not progress.has_compiled else ""
        for item in progress.inputs:
            replayed = self.of_last_pass.get(item.name, Replayed())
            switch = whole or replayed.switch
            if item.name in progress.left_out or not switch:
                continue
            if switch == evidence.NO_ENTRY:  # other calls of this input may have entries
                progress.proven.discard(item.name)
                progress.unproven[item.name] = f"runs eagerly: {switch}"
            elif not replayed.own:
                progress.proven.discard(item.name)
                progress.unproven[item.name] = f"runs eagerly, and nothing is compiled: {switch}"

    def _why_no_call(self, name: str, beside: set[str]) -> str:
        if name in beside:
            return (
                "makes no compiled call in the replay's context, and compiled calls outside that "
                "context might come from other threads. Either those other threads also make "
                "compiled calls between replays, or a second replay of this input made no compiled "
                "call. Call the model with `await self.on_model_thread(self.model, ...)`"
            )
        if self.of_proof[name].entered:
            return f"calls a compiled function, but torch runs it eagerly: {self._why_eager()}"
        if name in self.called_before:
            return (
                "made a compiled call in an earlier pass, but not in the proof: its handler "
                "caches the answer, or no longer calls the model; make the replay reach the model"
            )
        return (
            "makes no compiled call: its handler answers without the model; change the arguments "
            "so that the handler calls the model, or do not declare this input"
        )

    def _why_eager(self) -> str:
        given_up = self._calls.seen.given_up
        if not given_up:
            return (
                "it finds nothing to compile there, for example because the function is marked "
                "with @torch.compiler.disable. Remove the mark, or do not compile the function"
            )
        named = [f"{function}: {why}" for function, why in given_up.items()][:MOST_NAMED]
        more = len(given_up) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more else "")

    async def stand_idle(self) -> None:
        """Record the threads that make compiled calls between the last pass and the proof.

        This waits only if the last pass shows that the compiled calls in the proof might come from
        other threads. The two passes, and the idle time between them, show whether a call belongs
        to a replay or comes from a thread that works independently of replays. So no extra pass is
        needed.
        """
        self._idle = []
        doubtful = [
            name
            for name, found in self.of_last_pass.items()
            if (found.own and self.began_a_task) or (found.beside and not found.own)
        ]
        # All ranks would have to be idle together, and traffic is never idle.
        if not doubtful or not self._calls.is_alone or self._calls.in_traffic:
            return
        slowest_s = max(self._progress.steady_s.get(name, 0.0) for name in doubtful)
        with evidence.note_calls() as calls, calls.of_replay() as idle:
            await asyncio.sleep(self._idle_s(slowest_s))
        self._idle = [idle.beside]

    def _idle_s(self, slowest_s: float) -> float:
        return min(max(slowest_s, IDLE_S[0]), IDLE_S[1], max(0.0, self._calls.deadline.left()))

    def _find_confirmed(self, beside: set[str]) -> set[str]:
        """Return the inputs in `beside` whose calls stopped in the idle time and then resumed."""
        if not self._idle:
            return set()
        [idle] = self._idle
        found = {
            name
            for name in beside
            if self.of_proof[name].beside - idle
            and (last := self.of_last_pass.get(name)) is not None
            and (last.own or last.beside - idle)
        }
        if found:
            self._progress.threads -= idle
        return found

    async def _confirm(self, doubtful: Sequence[Input]) -> list[str]:
        """Return the names of inputs whose calls stop during idle time and then resume.

        Pool threads, a thread that reads a queue, and the `@serve.batch` task are not marked as
        part of a replay. If such a thread or task works for a replay, its calls stop when the
        replay ends, and resume with the next replay.
        """
        slowest_s = max(self._progress.steady_s.get(item.name, 0.0) for item in doubtful)
        idle_s = self._idle_s(slowest_s)
        confirmed = []
        with evidence.note_calls() as calls, self._calls.forbidding():
            with calls.of_replay() as idle:
                await asyncio.sleep(idle_s)
            self._progress.threads -= idle.beside
            for item in doubtful:
                before = self.of_proof.get(item.name, Replayed())
                again = await self._calls.prove(item, calls)
                first = before.beside - idle.beside
                if first and (again.own or again.beside - idle.beside):
                    confirmed.append(item.name)
        return confirmed
