# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A past fleet, minute by minute, as Prometheus would have scraped it from both sinks.

A test describes what happened to a few replicas. The series follow from this description, as
`serve_warm.metrics` and `serve_warm.node` export them. A node server continues to export dead
replicas, begins counters at zero, and leaves out states that do not apply. Ray drops dead replicas,
adds its own labels, and exports a counter only from the first count on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serve_warm.metrics import METRICS
from serve_warm.node_server.table import OUTCOMES
from serve_warm.report import Stage, Verdict
from serve_warm.seats.records import MISSES

DAY_S = 86_400.0
TABLE = {metric.name.removeprefix("serve_warm_"): metric for metric in METRICS}
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)

CALLS_A_MINUTE = 600.0

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], dict[int, float]]
"""Values by minute, for each name and labels."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The events of one replica, in minutes since the beginning of the scenario."""

    name: str
    deployment: str = "Ranker"
    application: str = "shop"
    born: int = 0
    took_s: float | None = 30.0
    """Seconds to READY; None if the replica never became ready."""
    dead: int | None = None
    """The minute in which the process ended."""
    hung: int | None = None
    """The minute from which the replica writes no heartbeat. Ray still hears from it."""
    gone: int | None = None
    """The minute in which the pod ended, together with its node server."""
    verdict: str = "full_hit"
    refused: str = ""
    configured: bool = True
    deadline_s: float = 1800.0
    artifact_days: float | None = 10.0
    """Age of the artifact at the beginning of the scenario; None without an artifact in use."""
    stage: str = "replaying"
    """Stage while the replica is not ready."""
    compiles: tuple[int, ...] = ()
    """Minutes in which a request caused a compile."""
    on_gpu: tuple[tuple[str, int], ...] = ()
    """Kinds of work without a compile that a request caused (`captures`, `kernels_built` or
    `tunings`), with minutes."""
    calls_a_minute: float = CALLS_A_MINUTE
    inputs: float = 6.0
    """Number of declared inputs."""
    eager: tuple[int, int] = (0, 0)
    """First and last minute of the time in which half of the calls ran eagerly."""
    stage_seconds: tuple[tuple[str, float], ...] = ()
    seat: str = ""
    """`hit`, or the reasons why the start used no seat, separated by blanks; empty without
    configured seats."""
    wrong: tuple[int, ...] = ()
    """Minutes in which an entry was withdrawn."""
    node: str = ""
    """Node of the replica. A pod that ended was alone on its node."""
    namespace: str = "prod"
    cluster: str = "blue"

    @property
    def host(self) -> str:
        return self.node or ("n1" if self.gone is None else f"of-{self.name}")

    @property
    def ready(self) -> float | None:
        """The minute in which the replica became ready."""
        return None if self.took_s is None else self.born + self.took_s / 60

    @property
    def who(self) -> dict[str, str]:
        return {
            "application": self.application,
            "deployment": self.deployment,
            "replica": self.name,
        }

    def exported(self, name: str, labels: dict[str, str], value: float, minute: int) -> bool:
        """Return whether the node server exports a row in a minute."""
        row = TABLE[name.removesuffix("_total")]
        if self.dead is None or minute < self.dead:
            return bool(value) or row.zeros
        is_ready = self.ready is not None and self.ready <= minute
        last = {"stage": "ready" if is_ready else self.stage}
        told = value or row.kind == "counter" or not labels or (name, labels) == ("stage", last)
        return bool(told) and row.at_end != "absent"

    def hangs(self, minute: int) -> bool:
        return self.hung is not None and self.hung <= minute

    def rows(
        self, minute: int, start_s: float, *, hangs: bool = False
    ) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the name, labels and value of each row of the metrics table in a minute.

        `hangs` says whether the exporter knows that the replica hangs.
        """
        alive = self.dead is None or minute < self.dead
        is_ready = self.ready is not None and self.ready <= minute
        stage = "ready" if is_ready else self.stage
        believed = alive and is_ready and not hangs
        yield "ready", {}, float(believed)
        yield "degraded", {}, float(believed and self.verdict == "late")
        for each in Stage:
            here = each.value.lower() == stage and (believed if is_ready else alive)
            yield "stage", {"stage": each.value.lower()}, float(here)
        for verdict in Verdict:
            yield "verdict", {"verdict": verdict.value}, float(verdict.value == self.verdict)
        for reason in ("untrusted", "bad_signature", "expired"):
            yield "refused", {"reason": reason}, float(reason == self.refused)
        for name, seconds in self.stage_seconds if is_ready else ():
            yield "stage_seconds", {"stage": name}, seconds
        hit = self.verdict in {"full_hit", "partial"}
        yield "to_proof_seconds", {}, self.lasted_s - 5 if is_ready else 0.0
        yield "unverified", {}, 0.0
        yield "narrow", {}, float(self.verdict == "miss") if is_ready else 0.0
        yield "inputs_expected", {}, self.inputs
        yield "inputs_done", {}, self.inputs if is_ready else self.inputs / 2
        yield "inputs_proven", {}, self.inputs if is_ready else 0.0
        yield from self._rows_of_the_gpu(minute, is_ready=is_ready, alive=alive)
        yield "calls_known", {"level": "1"}, 0.0 if hit else 2.0
        yield "calls_known", {"level": "2"}, 2.0 if hit else 0.0
        yield "calls_known", {"level": "3"}, 0.0
        counted = float(sum(at <= minute for at in self.compiles))
        yield "compiles_after_ready_total", {}, counted
        yield "eager_falls_after_ready_total", {}, counted
        yield "forbidden_after_ready_total", {}, 0.0
        lived = max(0.0, minute - (minute if self.ready is None else self.ready))
        calls = self.calls_a_minute * lived
        first, last = self.eager
        eager = 0.5 * self.calls_a_minute * max(0, min(minute, last) - first)
        yield "calls_after_ready_total", {}, calls
        of = {"callable": "shop.Model", "reason": "unforeseen"}
        yield "eager_calls_total", of, eager
        yield "eager_call_seconds_total", of, eager / 10
        wrong = float(sum(at <= minute for at in self.wrong))
        for result, count in (("same", 4.0), ("different", wrong)):
            yield "parity_checks_total", {"result": result}, count if hit else 0.0
        yield "parity_failures_total", {}, wrong
        yield from self._rows_of_seats(alive=alive)
        yield "artifact_configured", {}, float(self.configured)
        yield "deadline_seconds", {}, self.deadline_s
        if alive:
            yield from self._rows_of_the_living(minute, start_s)
        if self.ready is not None and self.ready <= minute:
            yield "ready_seconds", {}, self.lasted_s
            yield "ready_timestamp_seconds", {}, start_s + self.ready * 60

    def _rows_of_seats(self, *, alive: bool) -> Iterator[tuple[str, dict[str, str], float]]:
        if self.seat:
            for reason in MISSES:
                is_it = reason in self.seat.split()
                yield "seat_misses_total", {"reason": reason}, float(is_it)
        if self.seat and alive:
            yield "seats", {}, float(self.seat == "hit")

    def _rows_of_the_gpu(
        self, minute: int, *, is_ready: bool, alive: bool
    ) -> Iterator[tuple[str, dict[str, str], float]]:
        for what in ("captures", "kernels_built", "tunings"):
            # A compile causes all three kinds of work.
            met = [at for each, at in self.on_gpu if each == what]
            counted = float(sum(at <= minute for at in (*self.compiles, *met)))
            yield f"{what}_after_ready_total", {}, counted
        for name, size in (("graph_pool", 6e8), ("gpu_reserved", 2e9), ("gpu_reserved_peak", 3e9)):
            if is_ready:
                yield f"{name}_bytes", {"device": "cuda:0"}, size * alive

    def _rows_of_the_living(
        self, minute: int, start_s: float
    ) -> Iterator[tuple[str, dict[str, str], float]]:
        versions = {"version": "0.5.0", "ray_version": "2.60.0", "torch_version": "2.13.0"}
        yield "build_info", versions, 1.0
        end = minute if self.ready is None else min(self.ready, minute)
        yield "start_elapsed_seconds", {}, 60 * (end - self.born)
        if self.artifact_days is not None:
            info = {"source": "s3", "statement": "147378e2d3f5", "created": "2026-02-28"}
            yield "artifact_info", info, 1.0
            yield "artifact_created_timestamp_seconds", {}, start_s - self.artifact_days * DAY_S

    @property
    def lasted_s(self) -> float:
        """Duration of the start in seconds, regardless of its outcome."""
        if self.took_s is not None:
            return self.took_s
        assert self.dead is not None
        return 60.0 * (self.dead - self.born)

    def outcome(self, minute: int) -> str:
        """Return the outcome of the start, as the node server counts it; empty while it runs."""
        if self.ready is not None and self.ready <= minute:
            return self.verdict
        return "died" if self.dead is not None and self.dead <= minute else ""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas, and the series that are scraped from them."""

    replicas: tuple[Replica, ...]
    minutes: int
    """Length of the scenario, in minutes."""
    start_s: float = 0.0
    """Beginning of the scenario, in seconds since the epoch."""
    step: int = 1
    """Minutes between two scrapes."""
    queued: Mapping[str, Mapping[int, float]] = dataclasses.field(default_factory=dict)
    """Numbers of waiting requests by deployment, each with the minute from which it holds."""
    unreadable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Minute from which a node server cannot read the states of its replicas, by node."""

    def node_server(self) -> Series:
        series: Series = {}
        nodes = {r.host: [p for p in self.replicas if p.host == r.host] for r in self.replicas}
        for node, replicas in nodes.items():
            target = {"instance": f"{node}:8099", "job": "serve-warm-node"}
            target |= {"namespace": replicas[0].namespace, "ray_io_cluster": replicas[0].cluster}
            gone = [r.gone for r in replicas]
            end = max((g for g in gone if g is not None), default=None)
            ends = self.minutes + 1 if None in gone or end is None else end
            for minute in range(0, ends, self.step):
                unreadable = self.unreadable.get(node, self.minutes + 1)
                for name, labels, value in self._of_node(replicas, minute, unreadable):
                    key = (f"serve_warm_{name}", _sorted({**target, **labels}))
                    series.setdefault(key, {})[minute] = value
        return series

    def _of_node(
        self, replicas: list[Replica], minute: int, unreadable: int
    ) -> Iterator[tuple[str, dict[str, str], float]]:
        readable = minute < unreadable
        minute = minute if readable else unreadable - 1
        seen = [r for r in replicas if r.born <= minute]
        alive = [r for r in seen if r.dead is None or minute < r.dead]
        stale = [r for r in alive if r.hangs(minute)]
        warm = [
            r for r in alive if r.ready is not None and r.ready <= minute and not r.hangs(minute)
        ]
        is_ready = bool(warm) and readable
        yield "node_states_readable", {}, float(readable)
        yield "node_ready", {}, float(is_ready)
        for check, passes in (("warm", is_ready), ("raylet", True), ("proxy", True)):
            yield "node_check", {"check": check}, float(passes)
        conditions = {"warm": len(warm), "warming": len(alive) - len(warm) - len(stale)}
        conditions |= {"dead": len(seen) - len(alive), "stale": len(stale)}
        conditions |= {"failed": 0, "unreadable": 0}
        for condition, number in conditions.items():
            yield "node_replicas", {"condition": condition}, float(number)
        yield "node_excused", {}, 0.0
        for replica in seen:
            lives = replica in alive
            yield "replica_alive", replica.who, float(lives)
            if lives:
                hung = replica.hung
                late_s = 2.0 if hung is None or minute < hung else 60.0 * (minute - hung)
                yield "heartbeat_age_seconds", replica.who, late_s
                yield "stage_age_seconds", replica.who, 60.0 * (minute - replica.born)
            hangs = replica.hangs(minute)
            for name, labels, value in replica.rows(minute, self.start_s, hangs=hangs):
                if replica.exported(name, labels, value, minute):
                    yield name, {**replica.who, **labels}, value
        for names, group in _by_deployment(seen):
            yield from _ended(names, [(r.outcome(minute), r) for r in group])

    def ray(self) -> Series:
        """Return the series that Ray exported: those of serve_warm and its own."""
        series: Series = {}
        for minute in range(0, self.minutes + 1, self.step):
            for replica in self.replicas:
                ends = [e for e in (replica.dead, replica.gone) if e is not None]
                if replica.born <= minute < min(ends, default=self.minutes + 1):
                    own = {**replica.who, **self._ray_target(replica), "WorkerId": replica.name * 3}
                    for name, labels, value in replica.rows(minute, self.start_s):
                        if value or not name.endswith("_total"):
                            key = (f"ray_serve_warm_{name}", _sorted({**own, **labels}))
                            series.setdefault(key, {})[minute] = value
            for name, labels, value in self._of_ray(minute):
                series.setdefault((f"ray_serve_{name}", _sorted(labels)), {})[minute] = value
        return series

    def _ray_target(self, replica: Replica) -> dict[str, str]:
        target = {"instance": f"{replica.host}:8080", "job": "ray-workers"}
        target |= {"namespace": replica.namespace, "ray_io_cluster": replica.cluster}
        return {**target, "SessionName": "session_2026", "NodeAddress": replica.host}

    def _of_ray(self, minute: int) -> Iterator[tuple[str, dict[str, str], float]]:
        for (application, deployment), group in _by_deployment(self.replicas):
            of = {**self._ray_target(group[0]), "application": application}
            of["deployment"] = deployment
            since = self.queued.get(deployment, {})
            waiting = [value for begin, value in sorted(since.items()) if begin <= minute]
            handle = {"handle": "h1", "actor_id": "a1"}
            yield "deployment_queued_queries", {**of, **handle}, waiting[-1] if waiting else 0.0
            took = [r.lasted_s for r in group if r.ready is not None and r.ready <= minute]
            if took:
                for name in ("replica_startup_latency_ms", "replica_initialization_latency_ms"):
                    bounds = (1000, 10_000, 60_000, 240_000)
                    yield from _histogram(name, of, [1000 * t for t in took], bounds)


def _ended(
    names: tuple[str, str], replicas: list[tuple[str, Replica]]
) -> Iterator[tuple[str, dict[str, str], float]]:
    of = {"application": names[0], "deployment": names[1]}
    for outcome in OUTCOMES:
        took = [r.lasted_s for ended, r in replicas if ended == outcome]
        yield "starts_total", {**of, "outcome": outcome}, float(len(took))
        yield from _histogram("start_duration_seconds", {**of, "outcome": outcome}, took)


def _histogram(
    name: str, labels: dict[str, str], values: list[float], bounds: tuple[float, ...] = BUCKETS
) -> Iterator[tuple[str, dict[str, str], float]]:
    for bound in bounds:
        le = {**labels, "le": f"{float(bound)}"}
        yield f"{name}_bucket", le, float(sum(value <= bound for value in values))
    yield f"{name}_bucket", {**labels, "le": "+Inf"}, float(len(values))
    yield f"{name}_sum", labels, float(sum(values))
    yield f"{name}_count", labels, float(len(values))


def _by_deployment(
    replicas: tuple[Replica, ...] | list[Replica],
) -> Iterator[tuple[tuple[str, str], list[Replica]]]:
    ordered = sorted(replicas, key=lambda r: (r.application, r.deployment))
    for names, group in itertools.groupby(ordered, key=lambda r: (r.application, r.deployment)):
        yield names, list(group)


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def selector(name: str, labels: Labels) -> str:
    """Return a series in the exposition format."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inside}}}"


def as_promtool(series: Series, minutes: int) -> list[dict[str, str]]:
    """Return series in the form of `promtool test rules`, with one value per minute."""
    found = []
    for (name, labels), values in series.items():
        words = []
        for minute in range(minutes + 1):
            if minute in values:
                words.append(repr(values[minute]))
            else:
                words.append("stale" if minute - 1 in values else "_")
        runs = [(word, len(list(run))) for word, run in itertools.groupby(words)]
        # `_x3` means three missing samples, but `1x3` means 1 and three more samples.
        times = [(word, number if word == "_" else number - 1) for word, number in runs]
        text = " ".join(f"{word}x{number}" if number else word for word, number in times)
        found.append({"series": selector(name, labels), "values": text})
    return found


def as_openmetrics(series: Series, start_s: float) -> Iterator[str]:
    """Yield the lines of an exposition with a time for each sample."""
    for (name, labels), values in series.items():
        who = selector(name, labels)
        for minute, value in values.items():
            yield f"{who} {value!r} {start_s + 60 * minute:.0f}\n"
    yield "# EOF\n"
