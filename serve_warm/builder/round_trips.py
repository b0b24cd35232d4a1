# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Round trips: starts of fresh replicas on what was built, beside each other where there is room.

One a level, since each level must hold by itself. They wait for nothing of each other's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_warm.builder.app import App
from serve_warm.builder.cluster import POLL_S, Cluster, Progress, ReplicaDied, Starting
from serve_warm.errors import BuildFailed


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """One start of a fresh replica on what was built."""

    label: str
    parts: list[str]
    level: int
    """The highest one that its parts have; at least one call must be answered by it."""
    without_compiler: bool = False


def plan(stored: Mapping[str, bytes], entries: Sequence[Mapping[str, Any]]) -> list[RoundTrip]:
    """Return the round trips that prove what was built, one a level.

    Each level by itself: what the entries answer never asks the caches, and the caches must answer
    where an entry does not fit. Libraries need neither, where every call has one.
    """
    trips = [RoundTrip(label="round trip", parts=["cache"], level=1)]
    if "precompiled" in stored:
        parts = ["cache", "precompiled"]
        trips.append(RoundTrip(label="round trip, ahead of time", parts=parts, level=2))
    if "exported" in stored:
        alone = all(entry["level"] == 3 for entry in entries)
        rest = [name for name in ("cache", "precompiled") if name in stored and not alone]
        parts = [*rest, "exported"]
        trips.append(
            RoundTrip(label="round trip, libraries", parts=parts, level=3, without_compiler=alone)
        )
    return trips


def prove(
    trips: Sequence[RoundTrip],
    app: App,
    settings: Mapping[str, Any],
    *,
    on: Cluster,
    progress: Progress,
    took: Callable[[str, float], None],
) -> list[dict[str, Any]]:
    """Start fresh replicas with `settings`, and return the reports of the last trip's.

    A trip begins beside others once these have all their resources, and enough is free for it: so
    each of them can end, and nothing waits for what another holds. A gang has the cluster for
    itself, because its ranks meet at a port that their code names. `took` is told the wall seconds
    of each trip, by its label.

    Raises:
        BuildFailed: one was not warm through and through; its label comes first, and the others
            are ended.
    """
    waiting, under_way = list(trips), list[_UnderWay]()
    reports: dict[str, list[dict[str, Any]]] = {}
    alone, needs = app.replicas > 1, app.resources()
    with contextlib.ExitStack() as all_of_them:
        while waiting or under_way:
            if waiting and (not under_way or (not alone and _has_room(on, needs, under_way))):
                trip = _UnderWay(waiting.pop(0), app, settings, on=on)
                all_of_them.callback(trip.close)
                for other in under_way:
                    other.was_beside = trip.was_beside = True
                under_way.append(trip)
            for trip in list(under_way):
                try:
                    found = trip.poll()
                except ReplicaDied:
                    if not trip.was_beside:
                        raise
                    # Two models in memory may be one too many for this machine.
                    alone = True
                    waiting.append(trip.asked)
                    found = []
                if found is not None:
                    under_way.remove(trip)
                    trip.close()
                    took(trip.asked.label, trip.seconds)
                    reports[trip.asked.label] = found
            if under_way:
                progress(
                    "; ".join(f"{each.asked.label}: {each.starting.said}" for each in under_way)
                )
                time.sleep(POLL_S)
    return reports[trips[-1].label]


def _has_room(on: Cluster, needs: Mapping[str, float], under_way: Sequence[_UnderWay]) -> bool:
    return all(each.starting.is_placed for each in under_way) and on.has_room(needs)


class _UnderWay:
    """A round trip that has begun."""

    def __init__(
        self, trip: RoundTrip, app: App, settings: Mapping[str, Any], *, on: Cluster
    ) -> None:
        self.asked = trip
        self.was_beside = False
        """Whether another one was under way at any time of it."""
        self._began = time.perf_counter()
        self._open = contextlib.ExitStack()
        self.starting: Starting = self._open.enter_context(
            on.starting(app, {**settings, "parts": trip.parts})
        )

    @property
    def seconds(self) -> float:
        """Wall seconds since it began."""
        return time.perf_counter() - self._began

    def poll(self) -> list[dict[str, Any]] | None:
        """Return the reports of its replicas if they are ready, and None if they are not yet.

        Raises:
            BuildFailed: they are not warm through and through.
            ReplicaDied: one ended without a word.
        """
        try:
            start = self.starting.poll()
            if start is None:
                return None
            reports = start.ask("warmup_report", timeout_s=60)
            for report in reports:
                accept(report, level=self.asked.level, without_compiler=self.asked.without_compiler)
        except BuildFailed as failure:
            raise type(failure)(
                f"{self.asked.label}: {failure.message}", hint=failure.hint
            ) from failure
        return reports

    def close(self) -> None:
        """Delete its application. Does nothing the second time."""
        self._open.close()


def accept(report: Mapping[str, Any], *, level: int = 1, without_compiler: bool = False) -> None:
    """Raise unless the round trip was warm through and through, and used what is of `level`."""
    problems = []
    if report["verdict"] != "full_hit":
        reason = (report["artifact"] or {}).get("reason", "")
        problems.append(
            f"its verdict is {report['verdict']}, not full_hit ({reason or 'no reason'})"
        )
    runs = report["warmup"]["compiler_processes"]
    if runs:
        problems.append(f"it ran the compiler {runs} times")
    covered = report["covered"]
    if covered["proven"] != covered["expected"] or not covered["expected"]:
        problems.append(f"it proved {covered['proven']} of {covered['expected']} inputs")
    parity = report.get("parity") or {}
    problems += [f"it withdrew {failure}" for failure in parity.get("failures", ())]
    if level > 1 and not any(use["level"] == level for use in report["entries"]):
        why = next((use["reason"] for use in report["entries"] if use["reason"]), "no call of them")
        problems.append(f"no call was answered at level {level} ({why})")
    if without_compiler:
        problems += [
            f"{use['callable']}{use['call']} was served by level {use['level']}: {use['reason']}"
            for use in report["entries"]
            if use["level"] < 3
        ]
        if report["compiler_imported"] == "start":
            problems.append("torch's compiler was imported, which libraries do without")
    if problems:
        raise BuildFailed(
            "a fresh replica loaded the artifact, and " + "; ".join(problems),
            hint="nothing was published. What is not cached is usually a graph that bypasses "
            "torch's caches (TORCH_LOGS=+inductor names it), or an input that differs per start",
        )
