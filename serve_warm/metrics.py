# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One table of metrics: as data for the node's own server, and exported through Ray.

Each metric is a pure function of a `Report`, and is not exported before it has a value. Ray's path
to Prometheus sets the rules: a gauge that is set once disappears after about 20 s, so all are set
again every `PERIOD_S`; histogram sums are rebuilt from bucket midpoints, so exact seconds are
gauges, and histograms are left to the node's server; a counter cannot be incremented by 0. Ray adds
the labels application, deployment and replica, the prefix `ray_`, and `_total` to counters.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_warm._redaction import loggable, redact
from serve_warm.errors import REFUSAL_REASONS
from serve_warm.report import TRACED, Counts, DeviceMemory, ParityResult, Report, Stage, Verdict

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Ray exports what was set in the last 10 s, and its node agent forgets after two periods."""

LAYERS = ("fx", "aot")
"""torch's caches: Inductor's graphs, and AOTAutograd's."""

RESULTS = ("hit", "miss", "bypass")

Samples = Mapping[tuple[str, ...], float]
"""Value by the values of the labels; none where there is nothing to say yet."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One row of the table."""

    name: str
    """As it is written; Ray puts `ray_` before it, and counters end in `_total` everywhere."""
    kind: str
    """`gauge` or `counter`."""
    help: str
    labels: tuple[str, ...] = ()
    """Its own ones, beside those that the sink adds; values come from closed sets, or there is one
    series of it a replica, and its name ends in `_info`."""
    while_alive: bool = False
    """Whether it says what the replica is doing, which ends with it, and not how its start went."""
    absent_after: bool = False
    """Whether it then has no value, and not 0: of a date or an age 0 would be wrong, and of the
    others it would be one more series for each replica that has ended."""
    zeros: bool = True
    """Whether a node's server exports values of 0; without them a gauge has one series for what is
    the case, and none for what else could be. Ray has all, since it goes on with the last value."""
    says_ready: tuple[tuple[str, ...], ...] = ()
    """Labels of its series that say that the replica is ready. The node's server exports 0 in their
    place while the probe does not believe it: of one that hangs, these are its last words."""
    read: Callable[[Report], Samples]
    since: Callable[[Report], float | None] = lambda _: None
    """The moment that it is counted from while it grows by itself, of CLOCK_BOOTTIME: who reads a
    state file says how much it is by then."""


def _one(value: Callable[[Report], float | None]) -> Callable[[Report], Samples]:
    def read(report: Report) -> Samples:
        found = value(report)
        return {} if found is None else {(): float(found)}

    return read


def _hidden(report: Report) -> Samples:
    seconds: dict[tuple[str, ...], float] = {}
    for took in report.stages:
        stage = (took.stage.value.lower(),)
        seconds[stage] = seconds.get(stage, 0.0) + took.hidden_s
    return seconds


def _build(report: Report) -> Samples:
    versions = tuple(report.versions.get(name, "") for name in ("serve_warm", "ray", "torch"))
    return {versions: 1.0} if all(versions) else {}


def _artifact(report: Report) -> Samples:
    used = report.artifact
    if used is None or not used.in_use:
        return {}
    return {(used.source, used.digits, used.created[:10]): 1.0}


def _memory(value: Callable[[DeviceMemory], int]) -> Callable[[Report], Samples]:
    return lambda report: {(each.device,): float(value(each)) for each in report.memory}


def _parity_checks(report: Report) -> Samples:
    results = report.parity.results if report.parity is not None else {}
    return {(each.value,): float(results.get(each.value, 0)) for each in ParityResult}


def _lookups(counts: Counts) -> Samples:
    found = (
        *(counts.fx_hits, counts.fx_misses, counts.fx_bypasses),
        *(counts.aot_hits, counts.aot_misses, counts.aot_bypasses),
    )
    keys = [(layer, result) for layer in LAYERS for result in RESULTS]
    return {key: float(count) for key, count in zip(keys, found, strict=True)}


METRICS = (
    Metric(
        name="serve_warm_build_info",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        labels=("version", "ray_version", "torch_version"),
        help="1, with the versions of serve_warm, Ray and torch that the replica runs.",
        read=_build,
    ),
    Metric(
        name="serve_warm_ready",
        kind="gauge",
        while_alive=True,
        says_ready=((),),
        help="1 once the replica is proven warm, or serves by policy; 0 before, or while it hangs.",
        read=_one(lambda r: r.stage is Stage.READY),
    ),
    Metric(
        name="serve_warm_degraded",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        says_ready=((),),
        help="1 for a ready replica that is late, uncovered, partial, or has withdrawn entries.",
        read=_one(lambda r: r.stage is Stage.READY and bool(r.degraded)),
    ),
    Metric(
        name="serve_warm_stage",
        kind="gauge",
        while_alive=True,
        says_ready=((Stage.READY.value.lower(),),),
        labels=("stage",),
        help="1 for the stage that the start is in, 0 for the others and for READY while it hangs.",
        read=lambda r: {(s.value.lower(),): float(r.stage is s) for s in Stage},
    ),
    Metric(
        name="serve_warm_verdict",
        kind="gauge",
        labels=("verdict",),
        help="1 for the verdict of the artifact in this start, 0 for the others.",
        read=lambda r: {(v.value,): float(r.verdict is v) for v in Verdict},
    ),
    Metric(
        name="serve_warm_refused",
        kind="gauge",
        zeros=False,
        labels=("reason",),
        help="1 for the reason why the artifact of this start was refused.",
        read=lambda r: {
            (reason,): float(r.artifact is not None and r.artifact.refused == reason)
            for reason in REFUSAL_REASONS
        },
    ),
    Metric(
        name="serve_warm_unverified",
        kind="gauge",
        while_alive=True,
        absent_after=True,
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
        labels=("stage",),
        help="Exact wall seconds that the stages of this start took.",
        read=lambda r: {(stage,): took for stage, took in r.stage_seconds.items()},
    ),
    Metric(
        name="serve_warm_stage_hidden_seconds",
        kind="gauge",
        zeros=False,
        labels=("stage",),
        help="Seconds of the stages' work that were over when __init__ ended, beside it.",
        read=_hidden,
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
        name="serve_warm_inputs_done",
        kind="gauge",
        help="Inputs that were replayed in the pass under way, or in the last one.",
        read=_one(lambda r: r.inputs_done),
    ),
    Metric(
        name="serve_warm_inputs_proven",
        kind="gauge",
        help="Inputs that went through the pass in which compiling is forbidden.",
        read=_one(lambda r: r.covered.proven),
    ),
    Metric(
        name="serve_warm_inputs_left_out",
        kind="gauge",
        help="Inputs that warm-up left out, because memory did not suffice for them.",
        read=_one(lambda r: sum(i.left_out for i in r.inputs)),
    ),
    Metric(
        name="serve_warm_calls_known",
        kind="gauge",
        zeros=False,
        labels=("level",),
        help="Kinds of calls of what serve_warm.compile was given, by the level that answers them.",
        read=lambda r: {(level,): float(count) for level, count in r.levels.items()},
    ),
    Metric(
        name="serve_warm_traced",
        kind="gauge",
        zeros=False,
        labels=("traced",),
        help="1 for how many compiled calls of the start Dynamo traced: none, some, all.",
        read=lambda r: {(traced,): float(r.traced == traced) for traced in TRACED},
    ),
    Metric(
        name="serve_warm_calls_without_entry",
        kind="counter",
        help="Calls of what serve_warm.compile was given that no entry fits: torch.compile ran.",
        read=_one(lambda r: sum(use.calls for use in r.entries if use.level == 1)),
    ),
    Metric(
        name="serve_warm_parity_checks",
        kind="counter",
        labels=("result",),
        help="Calls of entries held against eager, by result; not_sampled and not_comparable too.",
        read=_parity_checks,
    ),
    Metric(
        name="serve_warm_parity_failures",
        kind="counter",
        help="Entries withdrawn because they differ from eager on this replica: should stay 0.",
        read=_one(lambda r: r.parity.failed if r.parity is not None else 0),
    ),
    Metric(
        name="serve_warm_parity_worst_error",
        kind="gauge",
        help="Largest difference from eager that passed a check, as a part of the largest value.",
        read=_one(lambda r: r.parity.worst_error if r.parity is not None else None),
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
        name="serve_warm_captures",
        kind="gauge",
        help="CUDA graphs captured during warm-up: no artifact holds one.",
        read=_one(lambda r: r.warmup.captures),
    ),
    Metric(
        name="serve_warm_capture_seconds",
        kind="gauge",
        help="Wall seconds capturing CUDA graphs during warm-up, each first launch included.",
        read=_one(lambda r: r.warmup.capture_s),
    ),
    Metric(
        name="serve_warm_graph_skips",
        kind="gauge",
        help="CUDA graphs that torch was to capture during warm-up and does not.",
        read=_one(lambda r: r.warmup.graph_skips),
    ),
    Metric(
        name="serve_warm_kernels_built",
        kind="gauge",
        help="Triton kernels built during warm-up, by whichever process: 0 for a full hit.",
        read=_one(lambda r: r.warmup.kernels),
    ),
    Metric(
        name="serve_warm_tunings",
        kind="gauge",
        help="Triton kernels and templates tuned during warm-up: 0 for a full hit.",
        read=_one(lambda r: r.warmup.tunings),
    ),
    Metric(
        name="serve_warm_tuning_seconds",
        kind="gauge",
        help="Wall seconds in tunings of kernels during warm-up.",
        read=_one(lambda r: r.warmup.tuning_s),
    ),
    Metric(
        name="serve_warm_graph_pool_bytes",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        labels=("device",),
        help="Bytes of GPU memory that CUDA graphs keep for themselves once the replica is ready.",
        read=_memory(lambda m: m.pool_bytes),
    ),
    Metric(
        name="serve_warm_gpu_reserved_bytes",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        labels=("device",),
        help="Bytes of GPU memory that torch keeps once the replica is ready, graph pools too.",
        read=_memory(lambda m: m.reserved_bytes),
    ),
    Metric(
        name="serve_warm_gpu_reserved_peak_bytes",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        labels=("device",),
        help="The most bytes of GPU memory that torch has kept at a time, from the start on.",
        read=_memory(lambda m: m.reserved_peak_bytes),
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
        help="CUDA graphs captured in traffic after the replica was ready: should stay 0.",
        read=_one(lambda r: r.after_ready.captures),
    ),
    Metric(
        name="serve_warm_capture_after_ready_seconds",
        kind="counter",
        help="Wall seconds capturing CUDA graphs in traffic, in which requests wait.",
        read=_one(lambda r: r.after_ready.capture_s),
    ),
    Metric(
        name="serve_warm_graph_skips_after_ready",
        kind="counter",
        help="CUDA graphs that torch was to capture in traffic and does not: should stay 0.",
        read=_one(lambda r: r.after_ready.graph_skips),
    ),
    Metric(
        name="serve_warm_kernels_built_after_ready",
        kind="counter",
        help="Triton kernels built in traffic after the replica was ready: should stay 0.",
        read=_one(lambda r: r.after_ready.kernels),
    ),
    Metric(
        name="serve_warm_tunings_after_ready",
        kind="counter",
        help="Triton kernels and templates tuned in traffic: should stay 0.",
        read=_one(lambda r: r.after_ready.tunings),
    ),
    Metric(
        name="serve_warm_tuning_after_ready_seconds",
        kind="counter",
        help="Wall seconds in tunings of kernels in traffic, in which requests wait.",
        read=_one(lambda r: r.after_ready.tuning_s),
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
    Metric(
        name="serve_warm_cache_lookups",
        kind="gauge",
        zeros=False,
        labels=("layer", "result"),
        help="Lookups in torch's caches during warm-up: of Inductor (fx) and AOTAutograd (aot).",
        read=lambda r: _lookups(r.warmup),
    ),
    Metric(
        name="serve_warm_deadline_seconds",
        kind="gauge",
        help="What the warm-up of this start is given: deadline_s.",
        read=_one(lambda r: r.deadline_s or None),
    ),
    Metric(
        name="serve_warm_start_elapsed_seconds",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        help="Seconds since the replica was created; once READY or FAILED, until it was.",
        read=_one(lambda r: r.elapsed_s),
        since=lambda r: None if r.ended else r.created_boot_s,
    ),
    Metric(
        name="serve_warm_ready_seconds",
        kind="gauge",
        help="Exact seconds from the replica's creation, before its __init__, to READY.",
        read=_one(lambda r: r.elapsed_s if r.stage is Stage.READY else None),
    ),
    Metric(
        name="serve_warm_ready_timestamp_seconds",
        kind="gauge",
        help="When the replica became ready.",
        read=_one(lambda r: r.ready_unix if r.stage is Stage.READY else None),
    ),
    Metric(
        name="serve_warm_artifact_configured",
        kind="gauge",
        help="1 where a store is named and enabled is not false.",
        read=_one(lambda r: r.artifact_configured),
    ),
    Metric(
        name="serve_warm_artifact_info",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        labels=("source", "statement", "created"),
        help="1 for the artifact in use: kind of its store, digits of its statement, day of build.",
        read=_artifact,
    ),
    Metric(
        name="serve_warm_artifact_created_timestamp_seconds",
        kind="gauge",
        while_alive=True,
        absent_after=True,
        help="When the artifact in use was built.",
        read=_one(lambda r: r.artifact.created_unix if r.artifact and r.artifact.in_use else None),
    ),
)


def as_data(report: Report) -> list[dict[str, Any]]:
    """Return all rows with their values, for a replica's state file.

    `serve_warm.node` exports them as they are: it knows no row of this table, so that a server can
    be older or newer than the replicas of its node. One that knows no row of several labels leaves
    these out, since they have no `values`.
    """
    return [
        {
            "name": metric.name,
            "kind": metric.kind,
            "help": metric.help,
            "while_alive": metric.while_alive,
            "absent_after": metric.absent_after,
            **({"says_ready": [*map(list, metric.says_ready)]} if metric.says_ready else {}),
            "since_boot_s": metric.since(report),
            **_values(metric, _exported(metric, report)),
        }
        for metric in METRICS
    ]


def _exported(metric: Metric, report: Report) -> Samples:
    return {key: value for key, value in metric.read(report).items() if value or metric.zeros}


def _values(metric: Metric, samples: Samples) -> dict[str, Any]:
    if len(metric.labels) > 1:
        flat = [[list(key), value] for key, value in samples.items()]
        return {"labels": list(metric.labels), "samples": flat}
    label = metric.labels[0] if metric.labels else None
    return {"label": label, "values": {"".join(key): value for key, value in samples.items()}}


class RaySink:
    """Exports the table through `ray.serve.metrics`, from a daemon thread of its own.

    At `changed()` and every `PERIOD_S`, and nowhere else: the table is some 90 series, and whoever
    replays inputs is the thread that serves. A thread too because the user's loop may be blocked by
    a compile for minutes; a daemon, because nothing here is worth keeping a process alive for.
    """

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report
        self._changed = threading.Event()
        self._trouble = ""
        self._exported: dict[tuple[str, tuple[str, ...]], float] = {}
        self._series: Sequence[tuple[Metric, Any]] = ()
        threading.Thread(target=self._repeat, name="serve_warm-metrics", daemon=True).start()

    def changed(self) -> None:
        """Have the table exported now. Returns at once."""
        self._changed.set()

    def _repeat(self) -> None:
        while True:
            self._changed.wait(PERIOD_S)
            self._changed.clear()  # first: what changes from here on is exported in the next turn
            trouble = ""
            try:
                self._export(self._report())
            # What Ray raises without an agent, and while a node goes away; the next turn may find
            # it again. A report is read while other threads write it: sizes of dicts change.
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                trouble = f"{type(error).__name__}: {error}"
                if trouble != self._trouble:
                    logger.warning(
                        "metrics are not exported: %s", redact(trouble), exc_info=loggable(error)
                    )
            self._trouble = trouble

    def _export(self, report: Report) -> None:
        """Set the gauges, and move counters on by what was added since the last export."""
        # Not when it is made: what Ray raises here costs the metrics, and no start.
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
    """Declare the table to Ray, and return each row with Ray's metric of it."""
    from ray.serve import metrics  # not at the top: the table is read without Ray

    kinds: dict[str, Any] = {"gauge": metrics.Gauge, "counter": metrics.Counter}
    return [
        (row, kinds[row.kind](row.name, description=row.help, tag_keys=row.labels))
        for row in METRICS
    ]
