# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence that inputs reached compiled code: calls of their own, in the passes and in the proof.

An input is proven by its own compiled calls (`serve_warm.compiler.evidence`). One that makes none,
because a guard clause or a remembered answer comes first, is quiet as well, and proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from serve_warm.compiler import evidence
from serve_warm.compiler.evidence import Replayed
from serve_warm.inputs import Input
from serve_warm.replica.input_calls import InputCalls
from serve_warm.replica.timed_calls import Deadline, Progress

IDLE_S = (0.25, 5.0)
"""Shortest and longest time without a replay, in which threads that call compiled functions for
reasons of their own show themselves. In between it is as long as the slowest replay in doubt."""


class CallEvidence:
    """Compiled calls by input, and which inputs are proven by them."""

    def __init__(
        self,
        calls: InputCalls,
        progress: Progress,
        *,
        deadline: Deadline,
        has_compiled: Callable[[], bool],
    ) -> None:
        # `has_compiled` is asked where no compiled call was seen: whether there is anything that an
        # input could have called.
        self._calls = calls
        self._progress = progress
        self._deadline = deadline
        self._has_compiled = has_compiled
        self.any_seen = False
        """Whether anything compiled was called at all."""
        self.called_before: set[str] = set()
        """Names of the inputs that made compiled calls in some pass before the proof."""
        self.of_last_pass: dict[str, Replayed] = {}
        """Compiled calls of each input in the last pass before the proof."""
        self.began_a_task = False
        """Whether a task goes on that the last pass began. It carries the mark of the replay that
        it was begun in, as that of `@serve.batch` does, so that its later calls are no replay's."""
        self.of_proof: dict[str, Replayed] = {}
        """Compiled calls of the last proof pass, by input."""
        self._idle: list[set[int]] = []
        """Threads that made compiled calls while nothing was replayed before the proof; empty if
        nobody looked."""

    async def require_calls(self) -> None:
        """Take those inputs for not proven that made no compiled call in the proof.

        An app without anything compiled has nothing to call. Ranks count as one app: a call on any
        of them is a call of the input.
        """
        progress, calls = self._progress, self.of_proof
        mine = {
            "own": [name for name in calls if calls[name].own],
            "beside": [name for name in calls if calls[name].beside and name in progress.proven],
            "has compiled": self.any_seen or self._has_compiled(),
        }
        said = await self._calls.agree("compiled calls", mine)
        progress.has_compiled = any(theirs["has compiled"] for theirs in said)
        if not progress.has_compiled:
            return
        called = {name for theirs in said for name in theirs["own"]}
        beside = {name for theirs in said for name in theirs["beside"]} - called
        beside -= (confirmed_before := self._find_confirmed(beside))
        called |= confirmed_before
        doubtful = [item for item in progress.inputs if item.name in beside]
        if doubtful:
            confirmed = await self._confirm(doubtful)
            for theirs in await self._calls.agree("compiled calls beside", confirmed):
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
        if name in self.called_before:
            return (
                "made no compiled call in the proof, and did in an earlier pass: its handler "
                "remembers the answer; have the replay bypass that cache"
            )
        return (
            "makes no compiled call: its handler answers without the model; correct its arguments "
            "so that they reach the model, or do not declare it"
        )

    async def stand_idle(self) -> None:
        """Note who makes compiled calls while nothing is replayed, between last pass and proof.

        Only where calls of the proof may be made beside it, by what the last pass has shown.
        Together with both passes that tells calls for a replay from those of a thread with reasons
        of its own, without one more pass.
        """
        self._idle = []
        doubtful = [
            name
            for name, found in self.of_last_pass.items()
            if (found.own and self.began_a_task) or (found.beside and not found.own)
        ]
        if not doubtful or not self._calls.is_alone:  # all ranks would have to stand idle at once
            return
        slowest_s = max(self._progress.steady_s.get(name, 0.0) for name in doubtful)
        with evidence.note_calls() as calls, calls.of_replay() as idle:
            await asyncio.sleep(self._idle_s(slowest_s))
        self._idle = [idle.beside]

    def _idle_s(self, slowest_s: float) -> float:
        return min(max(slowest_s, IDLE_S[0]), IDLE_S[1], max(0.0, self._deadline.left()))

    def _find_confirmed(self, beside: set[str]) -> set[str]:
        """Return the inputs whose calls came, stopped while nothing ran, and came again."""
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
        """Return the names of inputs whose calls stop while nothing is replayed, and come again.

        Threads of a pool, a thread that reads a queue and the task of `@serve.batch` do not carry
        the mark of a replay. What they do for it ends with it, and is done at each replay.
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
