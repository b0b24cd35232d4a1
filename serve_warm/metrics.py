# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One table of metrics: as data for the node's own server, and exported through Ray.

Each metric is a pure function of a `Report`. Ray's path to Prometheus sets the rules: a gauge
that is set once disappears after about 20 s, so all are set again every `PERIOD_S`; histogram
sums are rebuilt from bucket midpoints, so exact seconds are gauges; a counter cannot be
incremented by 0. Ray adds the labels application, deployment and replica, the prefix `ray_`, and
`_total` to counters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serve_warm.errors import REFUSAL_REASONS
from serve_warm.report import Report, Stage, StageTime, Verdict

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Ray exports what was set in the last 10 s, and its node agent forgets after two periods."""


LEVELS = (1, 2, 3)
"""What can answer a call: torch.compile, an entry made ahead of time, or a library."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One row of the table."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    help: str
    label: str | None = None
    """Its own label, beside those that the sink adds; values come from a closed set."""
    while_alive: bool = False
    """Whether it says what the replica is doing, which ends with it, and not how its start went."""
    read: Callable[[Report], Mapping[str, float]]
    """Value by label value; the label value is empty where the metric has none."""


def _one(value: Callable[[Report], float]) -> Callable[[Report], Mapping[str, float]]:
    return lambda report: {"": float(value(report))}


def _by_stage(value: Callable[[StageTime], float]) -> Callable[[Report], Mapping[str, float]]:
    def read(report: Report) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for took in report.stages:
            label = took.stage.value.lower()
            seconds[label] = seconds.get(label, 0.0) + value(took)
        return seconds

    return read


METRICS = (
    Metric(
        name="serve_warm_ready",
        kind="gauge",
        while_alive=True,
        help="1 once the replica is proven warm, or serves by policy; 0 before.",
        read=_one(lambda r: r.stage is Stage.READY),
    ),
    Metric(
        name="serve_warm_degraded",
        kind="gauge",
        while_alive=True,
        help="1 for a ready replica that serves late or with uncovered inputs.",
        read=_one(lambda r: bool(r.degraded)),
    ),
    Metric(
        name="serve_warm_stage",
        kind="gauge",
        while_alive=True,
        label="stage",
        help="1 for the stage that the start is in, 0 for the others.",
        read=lambda r: {s.value.lower(): float(r.stage is s) for s in Stage},
    ),
    Metric(
        name="serve_warm_verdict",
        kind="gauge",
        label="verdict",
        help="1 for the verdict of the artifact in this start, 0 for the others.",
        read=lambda r: {v.value: float(r.verdict is v) for v in Verdict},
    ),
    Metric(
        name="serve_warm_refused",
        kind="gauge",
        label="reason",
        help="1 for the reason why the artifact of this start was refused, 0 for the others.",
        read=lambda r: {
            reason: float(r.artifact is not None and r.artifact.refused == reason)
            for reason in REFUSAL_REASONS
        },
    ),
    Metric(
        name="serve_warm_unverified",
        kind="gauge",
        while_alive=True,
        help="1 while a replica runs an artifact that nobody who is trusted signed (unsigned_ok).",
        read=_one(lambda r: r.artifact is not None and r.artifact.believed == "unsigned_ok"),
    ),
    Metric(
        name="serve_warm_downloaded_bytes",
        kind="gauge",
        help="Bytes of artifact that this start downloaded; 0 where the node had them.",
        read=_one(lambda r: r.artifact.downloaded_bytes if r.artifact is not None else 0),
    ),
    Metric(
        name="serve_warm_stage_seconds",
        kind="gauge",
        label="stage",
        help="Exact wall seconds that the stages of this start took.",
        read=_by_stage(lambda took: took.seconds),
    ),
    Metric(
        name="serve_warm_stage_hidden_seconds",
        kind="gauge",
        label="stage",
        help="Seconds of the stages' work that were over when __init__ ended, beside it.",
        read=_by_stage(lambda took: took.hidden_s),
    ),
    Metric(
        name="serve_warm_to_proof_seconds",
        kind="gauge",
        help="Exact wall seconds from the end of __init__ to the end of the proof.",
        read=_one(lambda r: r.to_proof_s),
    ),
    Metric(
        name="serve_warm_inputs_expected",
        kind="gauge",
        help="Inputs that are declared.",
        read=_one(lambda r: r.covered.expected),
    ),
    Metric(
        name="serve_warm_inputs_proven",
        kind="gauge",
        help="Inputs that went through the pass in which compiling is forbidden.",
        read=_one(lambda r: r.covered.proven),
    ),
    Metric(
        name="serve_warm_calls_known",
        kind="gauge",
        label="level",
        help="Kinds of calls of what serve_warm.compile was given, by the level that answers them.",
        read=lambda r: {
            str(level): float(sum(use.level == level for use in r.entries)) for level in LEVELS
        },
    ),
    Metric(
        name="serve_warm_calls_without_entry",
        kind="counter",
        help="Calls of what serve_warm.compile was given that no entry fits: torch.compile ran.",
        read=_one(lambda r: sum(use.calls for use in r.entries if use.level == 1)),
    ),
    Metric(
        name="serve_warm_compiler_processes",
        kind="gauge",
        help="Compiler processes run during warm-up that produced an object.",
        read=_one(lambda r: r.warmup.compiler_processes),
    ),
    Metric(
        name="serve_warm_compiler_seconds",
        kind="gauge",
        help="Wall seconds in compiler processes during warm-up, summed over threads.",
        read=_one(lambda r: r.warmup.compiler_s),
    ),
    Metric(
        name="serve_warm_compiles_after_ready",
        kind="counter",
        help="Frames compiled in traffic after the replica was ready: should stay 0.",
        read=_one(lambda r: r.after_ready.compiles),
    ),
    Metric(
        name="serve_warm_captures_after_ready",
        kind="counter",
        help="CUDA graphs recorded in traffic after the replica was ready: should stay 0.",
        read=_one(lambda r: r.after_ready.captures),
    ),
    Metric(
        name="serve_warm_eager_falls_after_ready",
        kind="counter",
        help="Functions that fell to eager for good in traffic: should stay 0.",
        read=_one(lambda r: r.after_ready.eager_falls),
    ),
    Metric(
        name="serve_warm_forbidden_after_ready",
        kind="counter",
        help="Requests refused with 503 under after_ready: forbid, because they would compile.",
        read=_one(lambda r: r.after_ready.forbidden),
    ),
)


def as_data(report: Report) -> list[dict[str, Any]]:
    """Return all rows with their values, for a replica's state file.

    `serve_warm.node` exports them as they are: it knows no row of this table, so that a server can
    be older or newer than the replicas of its node.
    """
    return [
        {
            "name": metric.name,
            "kind": metric.kind,
            "help": metric.help,
            "label": metric.label,
            "while_alive": metric.while_alive,
            "values": dict(metric.read(report)),
        }
        for metric in METRICS
    ]


class RaySink:
    """Exports the table through `ray.serve.metrics`, again and again, from a daemon thread."""

    def __init__(self, report: Callable[[], Report]) -> None:
        from ray.serve import metrics  # not at the top: the table is read without Ray

        self._report = report
        self._lock = threading.Lock()
        self._exported: dict[tuple[str, str], float] = {}
        self._series: list[tuple[Metric, Any]] = []
        for metric in METRICS:
            kind = metrics.Gauge if metric.kind == "gauge" else metrics.Counter
            keys: tuple[Any, ...] = (metric.label,) if metric.label else ()
            self._series.append((metric, kind(metric.name, description=metric.help, tag_keys=keys)))
        # The user loop may be blocked by a compile for minutes, so a thread; a daemon, because
        # nothing here is worth keeping a process alive for.
        threading.Thread(target=self._repeat, name="serve_warm-metrics", daemon=True).start()

    def __call__(self, report: Report) -> None:
        """Export one report: gauges are set, counters move on by what was added."""
        with self._lock:
            for metric, series in self._series:
                for label, value in metric.read(report).items():
                    tags = {metric.label: label} if metric.label else {}
                    if metric.kind == "gauge":
                        series.set(value, tags=tags)
                        continue
                    added = value - self._exported.get((metric.name, label), 0.0)
                    if added > 0:
                        series.inc(added, tags=tags)
                        self._exported[metric.name, label] = value

    def _repeat(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            try:
                self(self._report())
            except (RuntimeError, ValueError, TypeError):
                # What Ray raises while a node goes away; the next turn may find it again.
                logger.warning("metrics were not exported this time", exc_info=True)


def markdown() -> str:
    """Return the table for the documentation."""
    rows = [
        f"| `{m.name}` | {m.kind} | {f'`{m.label}`' if m.label else ''} | {m.help} |"
        for m in METRICS
    ]
    return "\n".join(["| metric | type | label | meaning |", "|---|---|---|---|", *rows])
