# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A node server's record of its replicas, and the metrics that it exports."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from serve_warm.node import CONDITIONS, STALE_S, WHO, Readiness, Replica, boot_s, number_of
from serve_warm.node_server.table import (
    BUCKETS,
    NODE_METRICS,
    OUTCOMES,
    OWN,
    labels_of,
    samples_of,
    utf8,
)

REMEMBERED = 100
"""Maximum number of dead replicas whose last metrics the server still exports."""


class _Histogram:
    """Counts by bucket, and the exact sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(BUCKETS, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the suffix, label and value of each series."""
        count = 0
        for bound, more in zip((*map(repr, BUCKETS), "+Inf"), self._counts, strict=True):
            count += more
            yield "_bucket", {"le": bound}, float(count)
        yield "_sum", {}, self._sum
        yield "_count", {}, float(count)


class Ledger(Collector):
    """A server's record of the replicas on its node."""

    def __init__(self, deployments: Iterable[str] = ()) -> None:
        self._seen: dict[str, Replica] = {}
        self._counted: set[str] = set()
        self._starts: dict[tuple[str, str, str], int] = {}
        self._took: dict[tuple[str, str, str], _Histogram] = {}
        self._first = True
        for name in deployments:
            application, _, deployment = name.rpartition("#")
            if application:
                self._expose(application, deployment)

    def note(self, readiness: Readiness) -> None:
        """Record the replicas found by one scan of the state directory."""
        self._readiness = readiness
        if readiness.unread:
            return  # a replica that could not be read is not gone
        found = {r.stem: r for r in readiness.replicas}
        for stem, old in self._seen.items():
            new = found.get(stem)
            if new is None:
                found[stem] = old._replace(condition="dead", why="its files are gone")
            elif new.state is None:
                found[stem] = new._replace(state=old.state, names=old.names)
        dead = [stem for stem, r in found.items() if r.condition == "dead"]
        dead.sort(key=lambda stem: found[stem].heartbeat_s)
        for stem in dead[: max(0, len(dead) - REMEMBERED)]:
            del found[stem]
        self._seen = found
        for stem, replica in found.items():
            if any(replica.names):
                self._count(stem, replica)
        self._counted &= found.keys()
        self._first = False

    def _expose(self, application: str, deployment: str) -> None:
        for outcome in OUTCOMES:
            self._starts.setdefault((application, deployment, outcome), 0)
            self._took.setdefault((application, deployment, outcome), _Histogram())

    def _count(self, stem: str, replica: Replica) -> None:
        application, deployment, _ = replica.names
        self._expose(application, deployment)
        state = replica.state or {}
        stage = state.get("stage")
        ended = stage in ("READY", "FAILED")
        if stem in self._counted or not (ended or replica.condition == "dead"):
            return
        if not (ended or self._first) and boot_s() - replica.heartbeat_s <= STALE_S:
            # Wait until the heartbeat is stale: if only the lock was removed, the replica makes a
            # new one by then. If the node itself ends, this server ends too.
            return
        self._counted.add(stem)
        if self._first:
            return  # ended before this server began
        outcome = state.get("verdict") if stage == "READY" else "failed" if ended else "died"
        if outcome not in OUTCOMES:
            return
        self._starts[application, deployment, outcome] += 1
        elapsed_s = _seconds(state.get("elapsed_s"))
        if elapsed_s is not None:
            self._took[application, deployment, outcome].observe(elapsed_s)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics: first the server's own, then the metrics that replicas wrote."""
        found, readiness = _Found(), self._readiness
        failed = dict(readiness.reasons)
        found.add("serve_warm_node_ready", {}, float(readiness.ready))
        found.add("serve_warm_node_states_readable", {}, float(not readiness.unread))
        for check in readiness.checks:
            found.add("serve_warm_node_check", {"check": check}, float(check not in failed))
        conditions = [r.condition for r in self._seen.values()]
        for condition in CONDITIONS:
            count = float(conditions.count(condition))
            found.add("serve_warm_node_replicas", {"condition": condition}, count)
        found.add("serve_warm_node_excused", {}, float(len(readiness.excused)))
        for start, number in sorted(self._starts.items()):
            found.add_own("serve_warm_starts", start, float(number))
        for start, took in sorted(self._took.items(), key=lambda item: item[0]):
            found.add_histogram("serve_warm_start_duration_seconds", start, took)
        now = boot_s()
        # A copy of a live replica's file looks like a dead replica of the same name. The series of
        # the live replica come last, so they replace those of the copy.
        for replica in sorted(self._seen.values(), key=lambda each: each.condition != "dead"):
            if any(replica.names):
                self._add_replica(found, replica, now)
        return found.families()

    def _add_replica(self, found: _Found, replica: Replica, now: float) -> None:
        alive = replica.condition != "dead"
        found.add_own("serve_warm_replica_alive", replica.names, float(alive))
        if alive:
            # The heartbeat in the state file, because on a full disk only the heartbeat in the lock
            # file continues.
            written_s = number_of(replica.state, "heartbeat_boot_s") or replica.heartbeat_s
            age_s = max(0.0, now - written_s)
            found.add_own("serve_warm_heartbeat_age_seconds", replica.names, age_s)
            since_s = number_of(replica.state, "stage_boot_s")
            if since_s is not None:
                age_s = max(0.0, now - since_s)
                found.add_own("serve_warm_stage_age_seconds", replica.names, age_s)
        who = labels_of(WHO, replica.names)
        for name, kind, text, labels, value in _own_rows(replica, now, alive=alive):
            found.add_written(name, kind, text, {**who, **labels}, value)


class _Found:
    """Samples grouped by metric, so that each family is written once, without duplicate series."""

    def __init__(self) -> None:
        self._families = {
            name: _family(name, text, kind) for name, (kind, _, text) in NODE_METRICS.items()
        }
        self._samples: dict[tuple[str, ...], tuple[str, dict[str, str], float]] = {}

    def add(self, name: str, labels: dict[str, str], value: float, *, suffix: str = "") -> None:
        kind = self._families[name].type
        full = name + (suffix or ("_total" if kind == "counter" else ""))
        series = (name, full, *labels.values())
        self._samples[series] = (full, labels, value)

    def add_own(self, name: str, values: Iterable[str], value: float) -> None:
        self.add(name, labels_of(NODE_METRICS[name][1], values), value)

    def add_histogram(self, name: str, values: Iterable[str], took: _Histogram) -> None:
        labels = labels_of(NODE_METRICS[name][1], values)
        for suffix, more, value in took.samples():
            self.add(name, {**labels, **more}, value, suffix=suffix)

    def add_written(
        self, name: str, kind: str, text: str, labels: dict[str, str], value: float
    ) -> None:
        """Add a sample that a replica wrote, unless a metric of the server has the same name."""
        if name in NODE_METRICS or name.startswith(OWN):
            return
        if name not in self._families:
            self._families[name] = _family(name, utf8(text), kind)
        if self._families[name].type == kind:
            self.add(name, labels, value)

    def families(self) -> Iterator[Metric]:
        for (name, *_), sample in self._samples.items():
            self._families[name].add_sample(*sample)
        return iter(self._families.values())


def _family(name: str, text: str, kind: str) -> Metric:
    unit = name.rpartition("_")[2]
    return Metric(name, text, kind, unit if unit in ("seconds", "bytes") else "")


def _own_rows(
    replica: Replica, now: float, *, alive: bool
) -> Iterator[tuple[str, str, str, dict[str, str], float]]:
    """Yield the name, kind, help, labels and value of each sample that a replica wrote."""
    table = (replica.state or {}).get("metrics")
    for row in table if isinstance(table, list) else ():
        if not isinstance(row, dict):
            continue
        name, kind = row.get("name"), row.get("kind")
        if not isinstance(name, str) or not re.fullmatch(r"serve_warm_[a-z_]{1,100}", name):
            continue
        if name.endswith(("_total", "_created")):  # suffixes of the counter's own samples
            continue
        if kind not in ("gauge", "counter"):
            continue
        # Some metrics are zero or absent once the replica is dead.
        ended = not alive and row.get("while_alive") is True
        if ended and row.get("absent_after") is True:
            continue
        text = row.get("help")
        text = text if isinstance(text, str) else ""
        claims = row.get("says_ready") if replica.condition != "warm" else None
        since_s = number_of(row, "since_boot_s") if alive else None
        for labels, written in samples_of(row):
            if kind == "counter" and not 0 <= written < float("inf"):
                continue  # not a counter in OpenMetrics, and the whole page would be invalid
            if kind == "gauge" and not alive and labels and not written:
                continue  # zeros of ended starts would only add series
            value = written if since_s is None else max(0.0, now - since_s)
            # The replica says ready, but the probe disagrees, for example if the replica hangs.
            claimed = isinstance(claims, list) and list(labels.values()) in claims
            yield name, kind, text, labels, 0.0 if ended or claimed else value


def _seconds(value: Any) -> float | None:
    """Return `value` if it is a number that is at least 0 and below 1e9; otherwise None.

    A NaN would make every sum NaN.
    """
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if ok else None
