# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline of a start: when each part begins and ends, measured by one clock.

The clock is CLOCK_BOOTTIME, which all processes on a machine share. /proc uses the same clock, and
records when each process and thread began. So the timeline can include parts that began before any
code of this package ran. The node's metrics server also uses this clock to compute current values.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve_warm._spans import Span
from serve_warm.node import boot_s
from serve_warm.private_apis.module_names import ACTOR_THREAD


def spans_before(created_boot_s: float, *, seat: bool = False) -> tuple[Span, ...]:
    """Return the phases of this process up to the creation of the replica's object.

    `process` lasts until Ray makes the process an actor. Then `imports` begins. If Ray's thread is
    not found, `process` and `imports` are returned as one part. If `seat` is true, the phase
    `process` is left out, because it ended before the replica's start.
    """
    began_s = _began_s(Path("/proc/self"))
    actor = next((t for t in threading.enumerate() if t.name == ACTOR_THREAD), None)
    marks = [(began_s, "process")]
    if actor is not None and actor.native_id is not None:
        imports = (_began_s(Path(f"/proc/self/task/{actor.native_id}")), "imports")
        marks = [imports] if seat else [*marks, imports]
    else:
        marks = [(began_s, "process and imports")]
    ends = [*(mark for mark, _ in marks[1:]), created_boot_s]
    return tuple(
        Span(name=name, began_boot_s=mark, seconds=max(0.0, end - mark))
        for (mark, name), end in zip(marks, ends, strict=True)
    )


def _began_s(process: Path) -> float:
    # The program name in parentheses may contain anything. The start time is field 22 (see
    # proc(5)), in ticks.
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


class Timeline:
    """The spans of one start. It is safe to add spans on any thread."""

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
        """Add a part that lasts as long as the `with` block.

        `beside` marks a part that runs in another thread, in parallel with the start.
        """
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
        """Set `doing` to this text; an empty string clears `doing`."""
        self._said = text

    @property
    def doing(self) -> str:
        """The text set by `say`, or the latest running part that is not in a parallel thread."""
        if self._said:
            return self._said
        names = [name for name, (_, beside) in list(self._under_way.items()) if not beside]
        return names[-1] if names else ""

    def spans(self) -> tuple[Span, ...]:
        """Return all ended parts, in the order in which they began."""
        return tuple(sorted(self._spans, key=lambda span: span.began_boot_s))
