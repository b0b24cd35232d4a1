# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, read from reports. What each sink makes of it is in test_sinks.py."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from boards import BOARD, drawn, names, substituted
from helm.observability import rules
from reports import FULL
from serve_warm.errors import REFUSAL_REASONS
from serve_warm.metrics import METRICS, Metric, Samples, as_data
from serve_warm.node_server.table import NODE_METRICS
from serve_warm.report import LEVELS, ArtifactUse, EagerReason, ParityResult, Report, Stage, Verdict
from serve_warm.seats.records import MISSES, SeatUse

ROOT = Path(__file__).parents[1]
REPORTS = [pytest.param(Report(), id="default"), pytest.param(FULL, id="full")]
ROWS = [pytest.param(metric, id=metric.name) for metric in METRICS]

CLOSED = {
    "stage": {stage.value.lower() for stage in Stage},
    "verdict": {verdict.value for verdict in Verdict},
    "reason": {*REFUSAL_REASONS, *MISSES, *(reason.value for reason in EagerReason)},
    "callable": {"app.Net"},  # names of functions and classes in the code of the application
    "level": set(map(str, LEVELS)),
    "result": {result.value for result in ParityResult},
    "device": {f"cuda:{index}" for index in range(16)},
}


def read(name: str, report: Report) -> Samples:
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return metric.read(report)


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("metric", ROWS)
def test_every_row_reads_every_report(metric: Metric, report: Report):
    """Finite numbers, from 0 on, with a value for each label."""
    samples = metric.read(report)
    assert {len(key) for key in samples} <= {len(metric.labels)}
    assert all(type(each) is str and each for key in samples for each in key)
    assert all(type(value) is float for value in samples.values())
    assert all(math.isfinite(value) and value >= 0 for value in samples.values())


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("metric", ROWS)
def test_labels_are_of_closed_sets(metric: Metric, report: Report):
    """Never a path, a shape or an id; but for the one series of an `_info`."""
    samples = metric.read(report)
    if metric.name.endswith("_info"):
        assert len(samples) <= 1
        return
    for key in samples:
        assert all(value in CLOSED[label] for label, value in zip(metric.labels, key, strict=True))


@pytest.mark.parametrize("metric", ROWS)
def test_every_row_is_well_named(metric: Metric):
    """Prometheus' rules: the prefix, seconds spelled out, and `_total` left to the sinks."""
    assert re.fullmatch(r"serve_warm_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.kind in {"gauge", "counter"}
    assert not metric.name.endswith("_total")
    assert not metric.name.endswith("_s")
    assert metric.help.endswith(".")


def test_every_row_has_a_value_once_a_start_is_over():
    assert [metric.name for metric in METRICS if not metric.read(FULL)] == []


@pytest.mark.parametrize("metric", [row for row in ROWS if row.values[0].kind == "counter"])
def test_counters_begin_at_zero_and_grow_with_the_report(metric: Metric):
    assert set(metric.read(Report(entries=FULL.entries)).values()) == {0.0}
    assert all(value > 0 for value in metric.read(FULL).values())


def test_one_stage_and_one_verdict_are_1_and_the_others_are_0():
    """Each has a series, so that Ray does not repeat the 1 of an earlier stage."""
    for stage in Stage:
        values = read("serve_warm_stage", Report(stage=stage))
        assert values == {(s.value.lower(),): float(s is stage) for s in Stage}
    for verdict in Verdict:
        values = read("serve_warm_verdict", Report(verdict=verdict))
        assert values == {(v.value,): float(v is verdict) for v in Verdict}


def test_a_start_without_a_seat_counts_by_its_reason():
    """Only if seats are configured. Without seats nothing can be missed."""
    missed = Report(seat=SeatUse(count=1, miss="none"))
    alone = Report(seat=SeatUse(count=0, miss="none"))
    gone = Report(seat=SeatUse(count=1, hit=True, problem="no such request"))
    assert read("serve_warm_seat_misses", missed) == {("none",): 1.0}
    assert read("serve_warm_seat_misses", gone) == {("unavailable",): 1.0}
    assert set(read("serve_warm_seat_misses", alone).values()) == {0.0}
    assert read("serve_warm_seats", missed) == {}


@pytest.mark.parametrize("metric", ROWS)
def test_what_says_ready_is_1_of_a_ready_replica_alone(metric: Metric):
    """The node server takes back exactly these series from a hanging replica."""
    ready, before = (
        metric.read(dataclasses.replace(FULL, stage=stage, degraded=degraded))
        for stage, degraded in ((Stage.READY, ("late",)), (Stage.PROVING, ()))
    )
    about_now = {"serve_warm_ready", "serve_warm_degraded", "serve_warm_stage"}
    turned = {key for key in ready if (ready[key], before.get(key)) == (1.0, 0.0)}
    assert set(metric.says_ready) == (turned if metric.name in about_now else set())


def test_a_degraded_replica_does_not_look_clean():
    """Ready and degraded are two series, so that an alert can tell them apart."""
    assert read("serve_warm_degraded", FULL) == {(): 1.0}
    assert read("serve_warm_degraded", dataclasses.replace(FULL, degraded=())) == {(): 0.0}
    failed = dataclasses.replace(FULL, stage=Stage.FAILED)
    assert read("serve_warm_degraded", failed) == {(): 0.0}


def test_what_the_inputs_do_not_cover_is_counted():
    narrow = ("ids[1], always 16", "batches of requests to embed, always 4 of at most 8")
    assert read("serve_warm_narrow", dataclasses.replace(FULL, narrow=narrow)) == {(): 2.0}
    assert read("serve_warm_narrow", dataclasses.replace(FULL, narrow=())) == {(): 0.0}


def test_numbers_come_from_the_span_that_the_help_names():
    """The counts after READY, and the inputs, checks and withdrawn entries of the start."""
    assert read("serve_warm_compiles_after_ready", FULL) == {(): 1.0}
    assert read("serve_warm_captures_after_ready", FULL) == {(): 2.0}
    assert read("serve_warm_eager_falls_after_ready", FULL) == {(): 4.0}
    assert read("serve_warm_kernels_built_after_ready", FULL) == {(): 7.0}
    assert read("serve_warm_tunings_after_ready", FULL) == {(): 8.0}
    assert read("serve_warm_parity_failures", FULL) == {(): 1.0}
    assert read("serve_warm_parity_checks", FULL)[("same",)] == 5.0
    assert read("serve_warm_inputs_expected", FULL) == {(): 2.0}
    assert read("serve_warm_inputs_done", FULL) == {(): 2.0}
    assert read("serve_warm_inputs_proven", FULL) == {(): 1.0}


def test_memory_is_told_by_device():
    """All pools of a GPU are one figure: which there are is in the report."""
    assert read("serve_warm_graph_pool_bytes", FULL) == {("cuda:0",): 32.5e6, ("cuda:1",): 0.0}
    assert read("serve_warm_gpu_reserved_bytes", FULL) == {("cuda:0",): 60e6, ("cuda:1",): 4e6}
    peaks = read("serve_warm_gpu_reserved_peak_bytes", FULL)
    assert peaks == {("cuda:0",): 80e6, ("cuda:1",): 5e6}


def test_the_time_to_ready_is_there_once_it_is_known():
    """An unfinished or failed start has no time to ready, because it would count as fast."""
    names = ("serve_warm_ready_seconds", "serve_warm_ready_timestamp_seconds")
    for stage in Stage:
        found = [read(name, dataclasses.replace(FULL, stage=stage)) for name in names]
        assert found == ([{(): 5.25}, {(): 1795172503.5}] if stage is Stage.READY else [{}, {}])


@pytest.mark.parametrize("stage", Stage)
def test_elapsed_time_grows_until_the_start_is_over(stage: Stage):
    """A reader of the state file counts on from the replica's creation until READY or FAILED."""
    rows = as_data(dataclasses.replace(FULL, stage=stage))
    (row,) = (row for row in rows if row["name"] == "serve_warm_start_elapsed_seconds")
    over = stage in (Stage.READY, Stage.FAILED)
    assert row["since_boot_s"] == (None if over else 100.0)
    assert row["samples"] == [[[], 5.25]]


def test_an_artifact_is_described_while_it_is_in_use():
    """By the kind of its store, 12 digits of its statement and the day; by no path."""
    info = read("serve_warm_artifact_info", FULL)
    created = read("serve_warm_artifact_created_timestamp_seconds", FULL)
    assert info == {("file", "147378e2d3f5", "2026-11-20"): 1.0}
    assert created == {(): 1795168800.0}


@pytest.mark.parametrize(
    "artifact",
    [
        None,
        {},
        {"reason": "none fits"},
        # A refused one is named in the report, and was not loaded.
        {"statement": "statements/x/147378e2d3f56607.dsse.json", "refused": "digest_mismatch"},
    ],
    ids=["none configured", "looked for", "missed", "refused"],
)
def test_no_artifact_is_described_that_is_not_in_use(artifact: dict[str, str] | None):
    """An alert on the age of artifacts would fire for what nobody runs."""
    used = None if artifact is None else ArtifactUse(store="s3://bucket", source="s3", **artifact)
    report = dataclasses.replace(FULL, artifact=used)
    assert read("serve_warm_artifact_info", report) == {}
    assert read("serve_warm_artifact_created_timestamp_seconds", report) == {}


def test_what_is_not_known_has_no_value():
    """For example, an unknown deadline is absent instead of 0."""
    absent = {metric.name for metric in METRICS if not metric.read(Report())}
    assert {name.removeprefix("serve_warm_") for name in absent} == {
        *("build_info", "stage_seconds", "graph_pool_bytes", "gpu_reserved_bytes", "seats"),
        *("gpu_reserved_peak_bytes", "deadline_seconds", "ready_seconds", "artifact_info"),
        *("ready_timestamp_seconds", "artifact_created_timestamp_seconds"),
        *("eager_calls", "eager_call_seconds"),
    }


TEXTS = [
    *(target["expr"] for panel in drawn(BOARD) for target in panel["targets"]),
    *(rule["expr"] for group in rules.GROUPS for rule in group["rules"]),
    *re.findall(r"(?m)^.*serve_warm_.*$", (ROOT / "docs" / "runbooks.md").read_text()),
    *(ROOT / "README.md").read_text().split("\n\n"),
]
"""Expressions of the dashboard and the rules, lines of the runbooks, paragraphs of the README."""


def reads(text: str, label: str) -> bool:
    """Return whether a query selects or groups by a label, or a document names it as code."""
    grouped = re.findall(r"\b(?:by|on|group_left) ?\(([^()]*)\)", text)
    named = {name.strip() for names in grouped for name in names.split(",")}
    return label in named or bool(re.search(rf"`{label}`|[{{,] ?{label} ?(?:=|!)", text))


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        *((metric.name, metric.kind, metric.labels) for metric in METRICS),
        *((name, kind, labels) for name, (kind, labels, _) in NODE_METRICS.items()),
    ],
)
def test_every_metric_and_label_has_a_user(name: str, kind: str, labels: tuple[str, ...]):
    """A panel, a rule, a runbook or the README reads the metric, and each of its labels."""
    end = {"counter": "_total", "histogram": "_bucket"}.get(kind, "")
    using = [text for text in TEXTS if name + end in names(substituted(text))]
    assert using
    assert [label for label in labels if not any(reads(text, label) for text in using)] == []
