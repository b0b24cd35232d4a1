# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines that are looked at from a thread, with real loops that are blocked or not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from serve_warm.errors import WarmupTimeout
from serve_warm.replica.replay.watchdog import GRACE_S, POLL_S, Watchdog


class Told:
    """The calls of a watchdog, in order, with their threads."""

    def __init__(self, *, overdue: bool = True) -> None:
        self.overdue = overdue
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.stuck_at = threading.Event()

    def watch(self) -> Watchdog:
        return Watchdog(self._is_overdue, late=self._late, stuck=self._stuck)

    def _is_overdue(self) -> WarmupTimeout | None:
        return WarmupTimeout("late") if self.overdue else None

    def _late(self, error: WarmupTimeout) -> None:
        self.calls.append(f"late: {error.message}")
        self.threads.add(threading.get_ident())

    def _stuck(self, error: WarmupTimeout, where: str) -> None:
        self.calls.append(f"stuck: {where}")
        self.stuck_at.set()


def block(seconds: float) -> None:
    time.sleep(seconds)


def watched(told: Told, work: Callable[[Watchdog], Any]) -> list[str]:
    """Run `work` in a loop that is watched, and return what was told."""

    async def handler() -> None:
        watchdog = told.watch()
        waits = work(watchdog)
        if waits is not None:
            await waits
        watchdog.stop()

    asyncio.run(handler())
    return told.calls


@pytest.mark.slow
def test_a_blocked_loop_is_told_once_with_the_line_that_blocks_it():
    """First that something is late, then that the loop is stuck; each once, however long it is."""
    told = Told()
    late, stuck = watched(told, lambda _: block(2 * GRACE_S + 10 * POLL_S))
    assert late == "late: late"
    assert stuck.startswith("stuck: block (test_watchdog.py:")
    assert told.threads == told.threads - {threading.get_ident()}


@pytest.mark.slow
def test_a_loop_that_runs_is_late_and_not_stuck():
    """Such a loop has its own timeouts, so nothing else ends it."""
    assert watched(Told(), lambda _: asyncio.sleep(2 * GRACE_S)) == ["late: late"]


@pytest.mark.slow
def test_a_blocked_loop_that_is_not_late_is_left_alone():
    """A compile may take minutes, and the deadline limits it."""
    assert watched(Told(overdue=False), lambda _: block(2 * GRACE_S)) == []


@pytest.mark.slow
def test_nothing_is_told_after_the_stop():
    """After `stop()`, a watchdog never fires, whatever is overdue."""
    told = Told(overdue=False)

    async def work(watchdog: Watchdog) -> None:
        await asyncio.sleep(2 * POLL_S)
        watchdog.stop()
        told.overdue = True
        block(2 * GRACE_S)

    assert watched(told, work) == []
