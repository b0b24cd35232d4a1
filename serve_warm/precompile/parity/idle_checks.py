# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the kept calls while a replica is idle."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_warm.precompile.parity.checks import Checks


IDLE_S = 1.0
"""A replica is idle after this many seconds without a call of its entries."""


BUSY_S = 60.0
"""Kept calls that wait longer than this many seconds are dropped. Their entries are then checked in
later requests."""


class IdleChecks:
    """Checks kept calls one at a time, on the threads that made them, while a replica is idle."""

    def __init__(
        self,
        checks: Checks,
        loop: asyncio.AbstractEventLoop,
        *,
        model_thread: Callable[[], tuple[Executor | None, int]],
    ) -> None:
        self._checks = checks
        self._loop = loop
        self._model_thread = model_thread
        self._until_s = time.monotonic() + BUSY_S

    def begin(self) -> None:
        """Schedule checks of kept calls on the event loop, until there are no more kept calls."""
        self._loop.call_later(IDLE_S, self._look)

    def _look(self) -> None:
        thread = self._checks.kept.thread_of_next()
        if thread is None:
            self._checks.forget_calls()
            return
        if time.monotonic() > self._until_s:
            self._checks.kept.drop()
        elif self._checks.idle_s() >= IDLE_S:
            executor, its_thread = self._model_thread()
            if thread == threading.get_native_id():
                self._checks.kept.check_one()
            elif executor is not None and thread == its_thread:
                executor.submit(self._checks.kept.check_one).add_done_callback(self._go_on)
                return
            else:
                # a thread of a sync handler ends with its request
                self._checks.kept.drop(thread)
        self.begin()

    def _go_on(self, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self.begin)
