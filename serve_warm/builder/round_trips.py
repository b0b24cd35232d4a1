# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Round trips: starts of fresh replicas with the new artifact, in parallel if resources allow.

There is one round trip for each level, because each level must work by itself. Round trips do not
depend on each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serve_warm._records import record
from serve_warm.builder.app import App
from serve_warm.builder.cluster import POLL_S, Cluster, Progress, ReplicaDied, Starting
from serve_warm.errors import BuildFailed


@record(frozen=True, kw_only=True)
class RoundTrip:
    """One start of a fresh replica with the new artifact."""

    label: str
    level: int
    """The highest level that the trip loads. At least one call must run at this level."""
    without_compiler: bool = False


def plan(stored: Mapping[str, bytes], entries: Sequence[Mapping[str, Any]]) -> list[RoundTrip]:
    """Return the round trips that test an artifact, one per level.

    Each level needs its own test. For example, a call that uses an entry does not test the caches,
    but a later start needs the caches if no entry matches. If every call has a library, the last
    round trip must not import the compiler.
    """
    trips = [RoundTrip(label="round trip", level=1)]
    if "precompiled" in stored:
        trips.append(RoundTrip(label="round trip, ahead of time", level=2))
    if "exported" in stored:
        alone = all(entry["level"] == 3 for entry in entries)
        trips.append(RoundTrip(label="round trip, libraries", level=3, without_compiler=alone))
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
    """Start fresh replicas with `settings`, and return the reports of the last trip.

    Trips run in parallel. While trips run, a new trip starts only if all running trips have
    received their resources and enough resources are still free. So a trip never waits for
    resources that another trip holds. A gang runs alone, because the code of its ranks may use a
    fixed port. `took` is called with the label and the wall-clock seconds of each trip.

    Raises:
        BuildFailed: a replica was not fully warm. The text begins with the label of the trip. The
            other trips are stopped.
    """
    waiting, under_way = list(trips), list[_UnderWay]()
    reports: dict[str, list[dict[str, Any]]] = {}
    alone, needs = app.replicas > 1, app.resources()
    with contextlib.ExitStack() as all_of_them:
        while waiting or under_way:
            if waiting and (
                not under_way
                or (
                    not alone
                    and all(each.starting.is_placed for each in under_way)
                    and on.has_room(needs)
                )
            ):
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
                    # Two models at once may need more memory than this machine has.
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


class _UnderWay:
    """A round trip in progress."""

    def __init__(
        self, trip: RoundTrip, app: App, settings: Mapping[str, Any], *, on: Cluster
    ) -> None:
        self.asked = trip
        self.was_beside = False
        """Whether another trip ever ran at the same time."""
        self._began = time.perf_counter()
        self._open = contextlib.ExitStack()
        self.starting: Starting = self._open.enter_context(
            on.starting(app, {**settings, "max_level": trip.level})
        )

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the trip began."""
        return time.perf_counter() - self._began

    def poll(self) -> list[dict[str, Any]] | None:
        """Return the reports of the trip's replicas, or None if not all replicas are ready yet.

        Raises:
            BuildFailed: a replica is not fully warm.
            ReplicaDied: a replica ended without reporting an error.
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
        """Delete the trip's application. A second call does nothing."""
        self._open.close()


def accept(report: Mapping[str, Any], *, level: int = 1, without_compiler: bool = False) -> None:
    """Raise unless the round trip was fully warm and at least one call ran at `level`."""
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
    problems += [f"it withdrew an entry: {failure}" for failure in parity.get("failures", ())]
    if level > 1 and not any(use["level"] == level for use in report["entries"]):
        why = next(
            (use["reason"] for use in report["entries"] if use["reason"]),
            "no declared input leads to a call that can run at this level",
        )
        problems.append(f"no call ran at level {level} ({why})")
    if without_compiler:
        problems += [
            f"{use['callable']}{use['call']} ran at level {use['level']}: {use['reason']}"
            for use in report["entries"]
            if use["level"] < 3
        ]
        if report["compiler_imported"] == "start":
            by = report["compiler_imported_by"]
            problems.append(
                f"torch's compiler was imported{f' by {by}' if by else ''}, although libraries do "
                "not need it"
            )
    if problems:
        raise BuildFailed(
            "a fresh replica loaded the artifact, but " + "; ".join(problems),
            hint="nothing was published. The usual cause is a graph that bypasses torch's caches "
            "(TORCH_LOGS=+inductor names it), or an input that is different at each start",
        )
