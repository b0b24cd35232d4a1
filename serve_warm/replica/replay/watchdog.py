# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A thread that checks deadlines even while a handler blocks the event loop.

While the loop runs, the loop itself cancels late work. While a handler blocks the loop, none of the
loop's timeouts can fire. Without this thread, a start would wait until the handler returns.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from serve_warm.errors import WarmupTimeout
from serve_warm.private_apis.cpython import frame_of_thread

POLL_S = 0.1

GRACE_S = 0.4
"""If the loop does not run for this many seconds after the deadline, the loop counts as blocked. A
loop that is not blocked notices the deadline within this time, and ends the start itself."""


class Watchdog:
    """Checks deadlines every `POLL_S` seconds, from the watchdog's creation until `stop()`.

    Create the watchdog on the thread of the watched event loop. The watchdog calls these functions
    on its own thread:

    `overdue` returns the error for late work, or None.
    `late` is called once, as soon as some work is overdue.
    `stuck` is called once, with the line that blocks the loop, if the loop does not run in the
    next `GRACE_S` seconds. `stuck` can end the process.

    Once `stop()` has returned, none of these functions is running or will be called.
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
        """Stop checking. If a callback is running, wait until it returns or ends the process."""
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
        """Return whether the loop runs within `GRACE_S`."""
        ran = threading.Event()
        try:
            self._loop.call_soon_threadsafe(ran.set)
        except RuntimeError:
            return True  # the loop is closed: the start is over
        end = time.perf_counter() + GRACE_S
        while time.perf_counter() < end:
            if ran.wait(POLL_S) or self._stopped.is_set():
                return True
        return False

    def _where(self) -> str:
        """Return the line that the loop's thread is executing."""
        frame = frame_of_thread(self._loop_thread)
        if frame is None:
            return "an unknown line"
        code = frame.f_code
        return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
