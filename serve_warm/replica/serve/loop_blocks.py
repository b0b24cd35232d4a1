# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ray Serve's watchdog over the user's event loop, which may end a start that has succeeded.

From Ray 2.56 on, Serve looks at the loop from the replica's creation on. If the loop does not run
for three probes, each of 300 s by default, the next health check fails. Serve makes one as soon as
`reconfigure` returns. A long compile in an async handler blocks the loop until it ends. But one
probe that the loop answers makes Serve forget the failed ones. So a start that was blocked for so
long waits for the next probe before it becomes ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable

from serve_warm.private_apis.ray_serve import watchdog

logger = logging.getLogger(__name__)

MOST_FAILED = "RAY_SERVE_USER_HEALTH_CHECK_PROBE_MAX_FAIL"
"""The variable with the number of failed probes after which Serve's watchdog ends a start."""

BEATS = 4
"""How often the loop is expected to run within the time of one probe."""

MARGIN_S = 1.0
"""Seconds to wait in addition, because the probe runs on another thread."""


def longest_block_s() -> float:
    """Return for how many seconds a start may block the event loop."""
    return watchdog("MAX_FAIL", 0.0) * watchdog("TIMEOUT_S", 300.0) or math.inf


class LoopBlocks:
    """How often Serve's watchdog may have found the event loop blocked."""

    def __init__(self) -> None:
        self._limit = watchdog("MAX_FAIL", 0.0)
        self._timeout_s = watchdog("TIMEOUT_S", 300.0)
        self._interval_s = watchdog("INTERVAL_S", 60.0)
        self.failed_probes = 0
        """Largest number of probes that the loop may have missed."""
        self.longest_s = 0.0
        """The longest time for which the loop did not run."""

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the loop while the block runs."""
        beating = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        pause_s = self._timeout_s / BEATS
        while True:
            began = time.perf_counter()
            await asyncio.sleep(pause_s)
            took_s = time.perf_counter() - began
            self.add(took_s if took_s > 2 * pause_s else 0.0)

    def add(self, blocked_s: float) -> None:
        """Record that the loop did not run for so many seconds.

        >>> blocks = LoopBlocks()
        >>> for seconds in (20.0, 301.0, 650.0):
        ...     blocks.add(seconds)
        >>> blocks.failed_probes, blocks.longest_s
        (3, 650.0)
        """
        self.longest_s = max(self.longest_s, blocked_s)
        self.failed_probes += int(blocked_s // self._timeout_s)

    async def outlast(self, warn: Callable[[str], None]) -> None:
        """If Serve would end this start, warn, and wait until Serve has seen the loop run."""
        if not self._limit or self.failed_probes < self._limit:
            return
        wait_s = self._interval_s + MARGIN_S
        warn(
            f"the event loop was blocked for {self.longest_s:.0f} s, so that Serve's watchdog "
            f"would end this start: it waits {wait_s:.0f} s more, until Serve sees the loop run. "
            "To avoid this, call the model with `await self.on_model_thread(...)`, or set "
            f"{MOST_FAILED}=0 in the runtime_env of the deployment"
        )
        await asyncio.sleep(wait_s)
