# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines about compiles in traffic, at a limited rate and with advice.

The watch (`compiler.watch`) counts all compiles. A compile in traffic has one of three causes: an
undeclared input, a call on a thread other than the model's, or a change since the proof.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from serve_warm.report import CompileEvent

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Minimum seconds between two log lines. A line includes the number of compiles since the previous
line."""

KEEP_ON_ONE_THREAD = (
    "make the handler `async def`, or call the model with "
    "`await self.on_model_thread(self.model, ...)`, which keeps the model on one thread"
)
"""Advice if compiled calls run on threads that live only for one request."""

LOST_RACE = "Unexpected recompilation"
"""torch's reason contains this text if another thread was compiling and no guard failed (2.13)."""


class TrafficLog:
    """The log lines about compiles in one replica; safe to use on any thread."""

    def __init__(self) -> None:
        self.warmed: Collection[tuple[str, str]] = ()
        """Function and signature of each warm-up compile that the watch still remembers."""
        self.lasting: Collection[int] = ()
        """Native ids of the threads that live as long as the replica."""
        self._silent_until = 0.0
        self._unlogged = 0

    def log(
        self,
        event: CompileEvent,
        *,
        proven_on: Collection[int],
        suggest: Callable[[CompileEvent], str],
        fields: Callable[..., dict[str, Any]],
    ) -> None:
        """Log a compile, or only count it for the next line; `suggest` returns an input to declare.

        `proven_on` contains the native ids of the threads that made compiled calls in the proof.
        """
        self._unlogged += 1
        if time.monotonic() < self._silent_until:
            return
        self._silent_until = time.monotonic() + PERIOD_S
        logger.warning(
            "after ready: kind=%s function=%s input=[%s] seconds=%.2f%s events=%d; %s",
            event.kind,
            event.function,
            event.signature,
            event.seconds,
            _describe_reason(event),
            self._unlogged,
            self._advise(event, proven_on, suggest),
            extra=fields(
                "compile",
                kind=event.kind,
                function=event.function,
                signature=event.signature,
                seconds=event.seconds,
                reason=event.reason,
                events=self._unlogged,
            ),
        )
        self._unlogged = 0

    def _advise(
        self,
        event: CompileEvent,
        proven_on: Collection[int],
        suggest: Callable[[CompileEvent], str],
    ) -> str:
        """Return advice on how to avoid a compile."""
        if event.kind == "capture" and proven_on and event.thread not in proven_on:
            return (
                "a CUDA graph works only on the thread that captured it, but warm-up called the "
                "model on another thread: call the model with `await "
                "self.on_model_thread(self.model, ...)`"
            )
        if event.kind == "capture" and event.reason:
            return "a CUDA graph reads memory that has moved: update weights and caches in place"
        is_of_request = bool(self.lasting) and event.thread not in self.lasting
        if (event.function, event.signature) in self.warmed:
            if is_of_request or LOST_RACE in event.reason:
                return (
                    "the input is declared and proven, but concurrent calls on several threads can "
                    f"hit a race condition in Dynamo's lookup: {KEEP_ON_ONE_THREAD}"
                )
            return (
                "the input is declared and proven, but a value changed after the proof; the reason "
                "in this line names the value: do not change that value"
            )
        # Call `suggest` only if a line is written, because it inspects the current request.
        declare = f"declare this input in warmup_inputs(), or pad to a bucket: {suggest(event)}"
        return f"{KEEP_ON_ONE_THREAD}; and {declare}" if is_of_request else declare


def _describe_reason(event: CompileEvent) -> str:
    """Return the reason field of a line; torch gives no reason for a function's first compile."""
    reason = event.reason or "first compile of this function" * (event.kind == "compile")
    return f" reason=[{reason}]" if reason else ""
