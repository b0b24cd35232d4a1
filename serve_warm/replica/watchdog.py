# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A look at deadlines from a thread, where a handler that blocks the event loop cannot hide them.

The loop cancels what is late by itself, as long as it runs. While a handler blocks it, no timeout
fires, and the start takes as long as the handler does.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from serve_warm.errors import WarmupTimeout

POLL_S = 0.1

GRACE_S = 0.4
"""A loop that has not run for so long after the deadline is blocked. One that runs has noticed the
deadline by then, and ends the start in its own way."""


class Watchdog:
    """Looks at deadlines every `POLL_S`, from its making on until `stop()`.

    Made on the thread of the loop that it watches. `overdue` returns what is late, or None; it is
    called from the watchdog's thread, and so are the other two:

    `late` once, as soon as something is overdue.
    `stuck` once, with where the loop is blocked, when it has not run for `GRACE_S` after that. It
    may end the process.

    After `stop()` has returned, none of them is running or will be called.
    """

    def __init__(
        self,
        overdue: Callable[[], WarmupTimeout | None],
        *,
        late: Callable[[WarmupTimeout], None],
        stuck: Callable[[WarmupTimeout, str], None],
    ) -> None:
        self._overdue, self._late, self._stuck = overdue, late, stuck
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._firing = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="serve_warm-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the watch. Waits for what it is doing, which may end the process."""
        with self._firing:
            self._stopped.set()

    def _run(self) -> None:
        is_late, is_stuck = False, False
        while not self._stopped.wait(POLL_S):
            error = self._overdue()
            if error is None:
                continue
            if not is_late:
                is_late = True
                self._fire(functools.partial(self._late, error))
            if not is_stuck and not self._loop_runs():
                is_stuck = True
                self._fire(functools.partial(self._stuck, error, self._where()))

    def _fire(self, act: Callable[[], None]) -> None:
        with self._firing:
            if not self._stopped.is_set():
                act()

    def _loop_runs(self) -> bool:
        """Return whether the loop runs something within `GRACE_S`."""
        ran = threading.Event()
        try:
            self._loop.call_soon_threadsafe(ran.set)
        except RuntimeError:
            return True  # it is closed, and the start is over
        end = time.perf_counter() + GRACE_S
        while time.perf_counter() < end:
            if ran.wait(POLL_S) or self._stopped.is_set():
                return True
        return False

    def _where(self) -> str:
        """Return the line that the loop's thread is at."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented
        if frame is None:
            return "a line that is not known"
        code = frame.f_code
        return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
