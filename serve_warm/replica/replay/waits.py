# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The times during which replays wait for replicas of other deployments, as spans of a start.

A replay that calls another deployment waits until that deployment has a replica. The warm-up of
that replica might not be done yet. Without these spans, the wait would look like a slow replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serve_warm._spans import WAITING
from serve_warm.node import boot_s
from serve_warm.replica.record.timeline import Timeline

LOOK_S = 0.05
"""Seconds between two checks of whether a running replay is waiting."""


class Waits:
    """Records when replays wait for other deployments.

    Call `look()` often, and `end()` after a replay.
    """

    def __init__(
        self,
        names: Sequence[str],
        list_absent: Callable[[], Sequence[str]],
        *,
        timeline: Timeline,
        changed: Callable[[], None],
    ) -> None:
        self.names = tuple(names)
        """The deployments that a replay may wait for."""
        # `list_absent` returns the names of called deployments without a replica.
        self._list_absent = list_absent
        self._timeline = timeline
        self._changed = changed
        self._began_boot_s = 0.0
        self._missed: dict[str, None] = {}
        """Names of the deployments that the current wait is for, in the order in which they were
        found."""

    def look(self) -> None:
        """Begin or end a wait, depending on which deployments now have no replica."""
        absent = self._list_absent()
        if not absent:
            self.end()
            return
        if not self._missed:
            self._began_boot_s = boot_s()
        if not self._missed.keys() >= set(absent):
            self._missed.update(dict.fromkeys(absent))
            self._timeline.say(f"a replica of {self._describe()}")
            self._changed()

    def end(self) -> None:
        """End the current wait, if any."""
        if self._missed:
            self._timeline.add(f"{WAITING}{self._describe()}", self._began_boot_s, boot_s())
            self._missed = {}
            self._timeline.say("")
            self._changed()

    def _describe(self) -> str:
        return " and ".join(self._missed)
