# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, as data for the node server and as an export through Ray.

Each metric is a pure function of a `Report`, and is exported as soon as it has a value. These rules
follow from how Ray exports metrics to Prometheus:

- A gauge disappears about 20 s after it was last set, so all gauges are set every `PERIOD_S`.
- Ray estimates histogram sums from bucket midpoints. Exact seconds are therefore gauges, and only
  the node server has histograms.
- A counter cannot be incremented by 0.

Ray adds the labels application, deployment and replica, and the prefix `ray_`. Ray also appends
`_total` to the names of counters.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from serve_warm._records import record
from serve_warm._redaction import loggable, redact
from serve_warm.errors import REFUSAL_REASONS
from serve_warm.report import (
    DeviceMemory,
    EagerCalls,
    EagerReason,
    ParityResult,
    Report,
    Stage,
    Verdict,
)
from serve_warm.seats.records import MISSES

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Seconds between exports. Ray exports the values that were set in the last 10 s. Ray's node agent
drops a value after two periods of 10 s."""

Samples = Mapping[tuple[str, ...], float]
"""A value for each combination of label values. Empty if nothing has been recorded yet."""


@record(frozen=True, kw_only=True)
class Metric:
    """One row of the table of metrics."""

    name: str
    """The name, without Ray's prefix `ray_` and without a counter's suffix `_total`."""
    kind: str = "gauge"
    """`gauge` or `counter`."""
    help: str
    labels: tuple[str, ...] = ()
    """Labels, except labels that the exporter adds. The set of label values is fixed, except in
    metrics whose name ends in `_info`, which have one series per replica, and for the label
    `callable`, which has the names of the application's functions."""
    at_end: Literal["kept", "zero", "absent"] = "kept"
    """What becomes of the metric when the replica ends. `kept`: it describes the start. `zero` and
    `absent`: it describes the live replica. A 0 would be wrong for a date or an age, and would
    leave a series for each ended replica."""
    zeros: bool = True
    """Whether the node server exports values of 0. If false, reasons or levels that do not apply
    have no series. `RaySink` always exports zeros: Ray would otherwise repeat an old value."""
    says_ready: tuple[tuple[str, ...], ...] = ()
    """Label values of the series that report a ready replica. The node server exports 0 for these
    series if the probe does not count the replica as ready. An example is a replica that hangs."""
    read: Callable[[Report], Samples]
    since: Callable[[Report], float | None] = lambda _: None
    """The CLOCK_BOOTTIME at which the measured interval began, or None if the interval is not
    growing. Readers of a state file use this time to compute the current value."""


def _one(value: Callable[[Report], float | None]) -> Callable[[Report], Samples]:
    def read(report: Report) -> Samples:
        found = value(report)
        return {} if found is None else {(): float(found)}

    return read


def _build(report: Report) -> Samples:
    versions = tuple(report.versions.get(name, "") for name in ("serve_warm", "ray", "torch"))
    return {versions: 1.0} if all(versions) else {}


def _artifact(report: Report) -> Samples:
    used = report.artifact
    if used is None or not used.in_use:
        return {}
    return {(used.source, used.digits, used.created[:10]): 1.0}


def _seat_misses(report: Report) -> Samples:
    seat = report.seat
    why = {seat.miss, "unavailable" if seat.problem else ""} if seat and seat.count else set()
    return {(r,): 1.0 for r in MISSES if r in why} or {(r,): 0.0 for r in MISSES}


def _memory(value: Callable[[DeviceMemory], int]) -> Callable[[Report], Samples]:
    return lambda report: {(each.device,): float(value(each)) for each in report.memory}


def _eager(value: Callable[[EagerCalls], float]) -> Callable[[Report], Samples]:
    def read(report: Report) -> Samples:
        # A counter begins at 0, so that its first count is an increase.
        known = {use.callable for use in report.entries}
        begun = ((name, EagerReason.UNFORESEEN.value) for name in known)
        sums: dict[tuple[str, ...], float] = dict.fromkeys(begun, 0.0)
        for each in report.eager_calls:
            key = each.callable, each.reason.value
            sums[key] = sums.get(key, 0.0) + value(each)
        return sums

    return read


def _parity_checks(report: Report) -> Samples:
    results = report.parity.results if report.parity is not None else {}
    return {(each.value,): float(results.get(each.value, 0)) for each in ParityResult}


METRICS = (
    Metric(
        name="serve_warm_build_info",
        at_end="absent",
        labels=("version", "ray_version", "torch_version"),
        help="Always 1. The labels give the replica's serve_warm, Ray and torch versions.",
        read=_build,
    ),
    Metric(
        name="serve_warm_ready",
        at_end="zero",
        says_ready=((),),
        help="1 if the replica is proven warm, or a policy lets it serve anyway. 0 if it is hung.",
        read=_one(lambda r: r.stage is Stage.READY),
    ),
    Metric(
        name="serve_warm_degraded",
        at_end="absent",
        says_ready=((),),
        help=(
            "1 for a ready replica with a missed deadline, unproven inputs, an incomplete artifact "
            "or withdrawn entries."
        ),
        read=_one(lambda r: r.stage is Stage.READY and bool(r.degraded)),
    ),
    Metric(
        name="serve_warm_narrow",
        at_end="absent",
        help="What all declared inputs have in common although a request that differs would "
        "compile, such as sizes, and compiled objects and branches that no input reaches. "
        "Should be 0.",
        read=_one(lambda r: len(r.narrow)),
    ),
    Metric(
        name="serve_warm_stage",
        at_end="zero",
        says_ready=((Stage.READY.value.lower(),),),
        labels=("stage",),
        help="1 for the current stage, else 0. If a ready replica is hung, all series are 0.",
        read=lambda r: {(s.value.lower(),): float(r.stage is s) for s in Stage},
    ),
    Metric(
        name="serve_warm_verdict",
        labels=("verdict",),
        help="1 for the verdict on this start's artifact, 0 for the other verdicts.",
        read=lambda r: {(v.value,): float(r.verdict is v) for v in Verdict},
    ),
    Metric(
        name="serve_warm_refused",
        zeros=False,
        labels=("reason",),
        help="1 for the reason why the replica refused its artifact.",
        read=lambda r: {
            (reason,): float(r.artifact is not None and r.artifact.refused == reason)
            for reason in REFUSAL_REASONS
        },
    ),
    Metric(
        name="serve_warm_unverified",
        at_end="absent",
        help="1 while the replica uses an untrusted artifact that unsigned_ok allows.",
        read=_one(lambda r: r.artifact is not None and r.artifact.believed == "unsigned_ok"),
    ),
    Metric(
        name="serve_warm_stage_seconds",
        labels=("stage",),
        help="Wall seconds that this start spent in each stage.",
        read=lambda r: {(stage,): took for stage, took in r.stage_seconds.items()},
    ),
    Metric(
        name="serve_warm_to_proof_seconds",
        help="Wall seconds from the end of __init__ to the end of the proof.",
        read=_one(lambda r: r.to_proof_s),
    ),
    Metric(
        name="serve_warm_inputs_expected",
        help="Inputs that the deployment declares.",
        read=_one(lambda r: r.covered.expected),
    ),
    Metric(
        name="serve_warm_inputs_done",
        help="Inputs replayed in the current pass, or in the last pass if warm-up has ended.",
        read=_one(lambda r: r.inputs_done),
    ),
    Metric(
        name="serve_warm_inputs_proven",
        help="Inputs that passed the proof, during which compiling is forbidden.",
        read=_one(lambda r: r.covered.proven),
    ),
    Metric(
        name="serve_warm_calls_known",
        zeros=False,
        labels=("level",),
        help="Distinct kinds of calls to functions compiled with serve_warm.compile, by level.",
        read=lambda r: {(level,): float(count) for level, count in r.levels.items()},
    ),
    Metric(
        name="serve_warm_parity_checks",
        kind="counter",
        labels=("result",),
        help="Checks of entries against eager execution, by result, including skipped checks.",
        read=_parity_checks,
    ),
    Metric(
        name="serve_warm_parity_failures",
        kind="counter",
        help="Entries withdrawn because their results differ from eager. Should stay at 0.",
        read=_one(lambda r: r.parity.failed if r.parity is not None else 0),
    ),
    Metric(
        name="serve_warm_graph_pool_bytes",
        at_end="absent",
        labels=("device",),
        help="GPU memory reserved by CUDA graph pools in the ready replica.",
        read=_memory(lambda m: m.pool_bytes),
    ),
    Metric(
        name="serve_warm_gpu_reserved_bytes",
        at_end="absent",
        labels=("device",),
        help="GPU memory reserved by torch in the ready replica. Includes CUDA graph pools.",
        read=_memory(lambda m: m.reserved_bytes),
    ),
    Metric(
        name="serve_warm_gpu_reserved_peak_bytes",
        at_end="absent",
        labels=("device",),
        help="Peak GPU memory reserved by torch since the start of the replica.",
        read=_memory(lambda m: m.reserved_peak_bytes),
    ),
    Metric(
        name="serve_warm_compiles_after_ready",
        kind="counter",
        help="Frames that Dynamo compiled after the replica was ready. Should stay at 0.",
        read=_one(lambda r: r.after_ready.compiles),
    ),
    Metric(
        name="serve_warm_captures_after_ready",
        kind="counter",
        help="CUDA graphs captured after the replica was ready. Should stay at 0.",
        read=_one(lambda r: r.after_ready.captures),
    ),
    Metric(
        name="serve_warm_kernels_built_after_ready",
        kind="counter",
        help="Triton kernels built after the replica was ready. Should stay at 0.",
        read=_one(lambda r: r.after_ready.kernels),
    ),
    Metric(
        name="serve_warm_tunings_after_ready",
        kind="counter",
        help="Triton kernels and templates autotuned after READY. Should stay at 0.",
        read=_one(lambda r: r.after_ready.tunings),
    ),
    Metric(
        name="serve_warm_eager_falls_after_ready",
        kind="counter",
        help="Functions that permanently fell back to eager after READY. Should stay at 0.",
        read=_one(lambda r: r.after_ready.eager_falls),
    ),
    Metric(
        name="serve_warm_calls_after_ready",
        kind="counter",
        help="Calls of compiled functions and modules after READY, eager ones included.",
        read=_one(lambda r: r.after_ready.calls),
    ),
    Metric(
        name="serve_warm_eager_calls",
        kind="counter",
        labels=("callable", "reason"),
        help="Calls after READY that ran uncompiled code instead of waiting for a compile.",
        read=_eager(lambda each: each.calls),
    ),
    Metric(
        name="serve_warm_eager_call_seconds",
        kind="counter",
        labels=("callable", "reason"),
        help="Wall seconds of these calls, except those of functions of torch.compile itself.",
        read=_eager(lambda each: each.seconds),
    ),
    Metric(
        name="serve_warm_forbidden_after_ready",
        kind="counter",
        help="Requests refused with HTTP 503 because they needed a compile (after_ready: forbid).",
        read=_one(lambda r: r.after_ready.forbidden),
    ),
    Metric(
        name="serve_warm_deadline_seconds",
        help="The deadline_s setting: the time limit from the end of __init__ to READY.",
        read=_one(lambda r: r.deadline_s or None),
    ),
    Metric(
        name="serve_warm_start_elapsed_seconds",
        at_end="absent",
        help="Seconds since the replica was created. The value stops growing at READY or FAILED.",
        read=_one(lambda r: r.elapsed_s),
        since=lambda r: None if r.ended else r.created_boot_s,
    ),
    Metric(
        name="serve_warm_ready_seconds",
        help="Seconds from the replica's creation (before __init__) to READY.",
        read=_one(lambda r: r.elapsed_s if r.stage is Stage.READY else None),
    ),
    Metric(
        name="serve_warm_ready_timestamp_seconds",
        help="Unix time at which the replica became ready.",
        read=_one(lambda r: r.ready_unix if r.stage is Stage.READY else None),
    ),
    Metric(
        name="serve_warm_artifact_configured",
        help="1 if a store is configured and warm-up is enabled.",
        read=_one(lambda r: r.artifact_configured),
    ),
    Metric(
        name="serve_warm_seats",
        at_end="absent",
        help="Free seats on this node. Only the replica that keeps the seats reports this number.",
        read=_one(lambda r: r.seat.waiting if r.seat is not None else None),
    ),
    Metric(
        name="serve_warm_seat_misses",
        kind="counter",
        labels=("reason",),
        help="Replicas that used no seat, or cannot keep the configured seats, by reason.",
        read=_seat_misses,
    ),
    Metric(
        name="serve_warm_artifact_info",
        at_end="absent",
        labels=("source", "statement", "created"),
        help="Always 1. The labels give the artifact's store kind, statement and build date.",
        read=_artifact,
    ),
    Metric(
        name="serve_warm_artifact_created_timestamp_seconds",
        at_end="absent",
        help="Unix time at which the artifact in use was built.",
        read=_one(lambda r: r.artifact.created_unix if r.artifact and r.artifact.in_use else None),
    ),
)


def as_data(report: Report) -> list[dict[str, Any]]:
    """Return all rows with their values, for a replica's state file.

    `serve_warm.node` exports these rows unchanged. The node server does not use this table, so the
    server can be older or newer than the replicas on its node.
    """
    return [
        {
            "name": metric.name,
            "kind": metric.kind,
            "help": metric.help,
            "while_alive": metric.at_end != "kept",
            "absent_after": metric.at_end == "absent",
            **({"says_ready": [*map(list, metric.says_ready)]} if metric.says_ready else {}),
            "since_boot_s": metric.since(report),
            "labels": list(metric.labels),
            "samples": [[list(key), value] for key, value in _exported(metric, report).items()],
        }
        for metric in METRICS
    ]


def _exported(metric: Metric, report: Report) -> Samples:
    return {key: value for key, value in metric.read(report).items() if value or metric.zeros}


class RaySink:
    """Exports the table through `ray.serve.metrics`, from a daemon thread.

    The thread exports every `PERIOD_S` seconds, and after each call to `changed()`. The table has
    about 80 series, so an export would slow down the thread that serves requests. A compile can
    also block the user's event loop for minutes.
    """

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report
        self._changed = threading.Event()
        self._trouble = ""
        self._exported: dict[tuple[str, tuple[str, ...]], float] = {}
        self._series: Sequence[tuple[Metric, Any]] = ()
        threading.Thread(target=self._repeat, name="serve_warm-metrics", daemon=True).start()

    def changed(self) -> None:
        """Request an export now. Returns at once."""
        self._changed.set()

    def _repeat(self) -> None:
        while True:
            self._changed.wait(PERIOD_S)
            self._changed.clear()  # first, so that later changes are exported in the next turn
            trouble = ""
            try:
                self._export(self._report())
            # Ray raises these without an agent, or while a node shuts down. The next export might
            # work. Other threads can change the report and its dicts while it is being read.
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                trouble = f"{type(error).__name__}: {error}"
                if trouble != self._trouble:
                    logger.warning(
                        "metrics are not exported: %s", redact(trouble), exc_info=loggable(error)
                    )
            self._trouble = trouble

    def _export(self, report: Report) -> None:
        """Set the gauges, and increment counters by their growth since the last export."""
        # Declare now, not in the constructor, so that an error in Ray cannot fail the start.
        self._series = self._series or _declare()
        for metric, series in self._series:
            for key, value in metric.read(report).items():
                tags = dict(zip(metric.labels, key, strict=True))
                if metric.kind == "gauge":
                    series.set(value, tags=tags)
                    continue
                added = value - self._exported.get((metric.name, key), 0.0)
                if added > 0:
                    series.inc(added, tags=tags)
                    self._exported[metric.name, key] = value


def _declare() -> Sequence[tuple[Metric, Any]]:
    """Register all metrics with Ray, and return each row of the table with its Ray metric."""
    from ray.serve import metrics  # not at the top: commands read the table without Ray

    kinds: dict[str, Any] = {"gauge": metrics.Gauge, "counter": metrics.Counter}
    return [
        (row, kinds[row.kind](row.name, description=row.help, tag_keys=row.labels))
        for row in METRICS
    ]
