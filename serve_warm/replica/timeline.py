# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline of a start: when each of its parts began and ended, on one clock.

The clock is CLOCK_BOOTTIME, which all processes of a machine share, and which /proc has for what
began before any code of this package ran. Who serves the metrics of a node, another process,
counts on from it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve_warm.node import boot_s
from serve_warm.report import Span

ACTOR_THREAD = "AsyncIO Thread: default"
"""Ray starts it in a worker when the worker becomes an actor (2.53 to 2.60), which then imports the
app. A worker that Ray has started in advance waits before that."""


def spans_before(created_boot_s: float) -> tuple[Span, ...]:
    """Return what passed in this process before the replica's object was made.

    `process` lasts until Ray makes the process an actor, `imports` from there on. Where Ray's
    thread is not found they are one.
    """
    began_s = _began_s(Path("/proc/self"))
    actor = next((t for t in threading.enumerate() if t.name == ACTOR_THREAD), None)
    marks = [(began_s, "process")]
    if actor is not None and actor.native_id is not None:
        marks.append((_began_s(Path(f"/proc/self/task/{actor.native_id}")), "imports"))
    else:
        marks = [(began_s, "process and imports")]
    ends = [*(mark for mark, _ in marks[1:]), created_boot_s]
    return tuple(
        Span(name=name, began_boot_s=mark, seconds=max(0.0, end - mark))
        for (mark, name), end in zip(marks, ends, strict=True)
    )


def _began_s(process: Path) -> float:
    # The name of the program, in parentheses, may hold anything. Field 22 of proc(5), in ticks.
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


class Timeline:
    """The spans of one start, added by whoever knows when a part ended. From any thread."""

    def __init__(self, before: tuple[Span, ...] = ()) -> None:
        self._spans = list(before)
        self._under_way: dict[str, tuple[float, bool]] = {}
        self._said = ""

    def add(self, name: str, began_boot_s: float, ended_boot_s: float) -> None:
        """Add a part that has ended."""
        seconds = max(0.0, ended_boot_s - began_boot_s)
        self._spans.append(Span(name=name, began_boot_s=began_boot_s, seconds=seconds))

    @contextmanager
    def span(self, name: str, *, beside: bool = False) -> Iterator[None]:
        """Add the block as a part; `beside` where it runs in a thread beside the others."""
        began_s = boot_s()
        self._under_way[name] = (began_s, beside)
        try:
            yield
        finally:
            self._under_way.pop(name, None)
            self._spans.append(
                Span(name=name, began_boot_s=began_s, seconds=boot_s() - began_s, beside=beside)
            )

    def say(self, text: str) -> None:
        """Have `doing` be this text, until it is set to none."""
        self._said = text

    @property
    def doing(self) -> str:
        """What was said, or the part that began last and has not ended, but for those beside."""
        if self._said:
            return self._said
        names = [name for name, (_, beside) in list(self._under_way.items()) if not beside]
        return names[-1] if names else ""

    def spans(self) -> tuple[Span, ...]:
        """Return all parts that have ended, in the order in which they began."""
        return tuple(sorted(self._spans, key=lambda span: span.began_boot_s))
