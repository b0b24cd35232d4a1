# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, read from reports. What Ray exports of it is tested with Ray."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from reports import FULL
from serve_warm.errors import REFUSAL_REASONS
from serve_warm.metrics import LEVELS, METRICS, Metric, markdown
from serve_warm.report import Report, Stage, Verdict

REPORTS = [pytest.param(Report(), id="default"), pytest.param(FULL, id="full")]
ROWS = [pytest.param(metric, id=metric.name) for metric in METRICS]

CLOSED = {
    None: {""},
    "stage": {stage.value.lower() for stage in Stage},
    "verdict": {verdict.value for verdict in Verdict},
    "reason": set(REFUSAL_REASONS),
    "level": set(map(str, LEVELS)),
}


def read(name: str, report: Report) -> dict[str, float]:
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return dict(metric.read(report))


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("metric", ROWS)
def test_every_row_reads_every_report(metric: Metric, report: Report):
    """Finite numbers, from 0 on, under labels of a closed set: never a path, a shape or an id."""
    values = metric.read(report)

    assert values.keys() <= CLOSED[metric.label]
    assert all(type(value) is float for value in values.values())
    assert all(math.isfinite(value) and value >= 0 for value in values.values())


@pytest.mark.parametrize("metric", ROWS)
def test_every_row_is_well_named(metric: Metric):
    """Prometheus' rules: the prefix, seconds spelled out, and `_total` left to Ray."""
    assert re.fullmatch(r"serve_warm_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.kind in {"gauge", "counter"}
    assert not metric.name.endswith("_total")
    assert not metric.name.endswith("_s")
    assert metric.help.endswith(".")


def test_names_are_unique():
    """Two rows of one name would be one series with two meanings."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    "metric", [m for m in METRICS if m.kind == "counter"], ids=lambda m: m.name
)
def test_counters_begin_at_zero_and_grow_with_the_report(metric: Metric):
    """A counter of nothing is 0, and what happens after ready moves it."""
    assert set(metric.read(Report()).values()) == {0.0}
    assert all(value > 0 for value in metric.read(FULL).values())


@pytest.mark.parametrize("stage", Stage)
def test_one_stage_is_one_and_the_others_are_zero(stage: Stage):
    """A gauge per stage, so that a stage that is over is not shown for ever."""
    values = read("serve_warm_stage", Report(stage=stage))

    assert values == {s.value.lower(): float(s is stage) for s in Stage}


@pytest.mark.parametrize("verdict", Verdict)
def test_one_verdict_is_one_and_the_others_are_zero(verdict: Verdict):
    """As for stages."""
    values = read("serve_warm_verdict", Report(verdict=verdict))

    assert values == {v.value: float(v is verdict) for v in Verdict}


def test_only_ready_is_ready():
    """No other stage counts as ready, whatever else a report says."""
    ready = {s for s in Stage if read("serve_warm_ready", Report(stage=s)) == {"": 1.0}}

    assert ready == {Stage.READY}


def test_a_degraded_replica_does_not_look_clean():
    """Ready and degraded are two series, so that an alert can tell them apart."""
    assert read("serve_warm_degraded", FULL) == {"": 1.0}
    assert read("serve_warm_degraded", dataclasses.replace(FULL, degraded=())) == {"": 0.0}


def test_seconds_of_a_stage_are_exact_and_summed():
    """A stage that was entered twice has the seconds of both times."""
    assert read("serve_warm_stage_seconds", FULL) == {"pulling": 0.75, "replaying": 2.0}
    assert read("serve_warm_to_proof_seconds", FULL) == {"": 3.5}


def test_numbers_come_from_the_span_that_the_help_names():
    """Warm-up's compiler runs and traffic's compiles are not mixed up."""
    assert read("serve_warm_compiler_processes", FULL) == {"": 3.0}
    assert read("serve_warm_compiles_after_ready", FULL) == {"": 1.0}
    assert read("serve_warm_captures_after_ready", FULL) == {"": 2.0}
    assert read("serve_warm_eager_falls_after_ready", FULL) == {"": 4.0}
    assert read("serve_warm_inputs_expected", FULL) == {"": 2.0}
    assert read("serve_warm_inputs_proven", FULL) == {"": 1.0}


def test_the_documentation_has_a_line_for_every_row():
    """The table in the README is this table."""
    lines = markdown().splitlines()

    assert len(lines) == len(METRICS) + 2
    assert all(
        f"| `{m.name}` | {m.kind} |" in line for m, line in zip(METRICS, lines[2:], strict=True)
    )
