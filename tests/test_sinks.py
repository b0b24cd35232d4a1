# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, read through the node's server: the same figures, exactly.

What Ray makes of the table is asked of a real cluster, in integration/test_lifecycle.py. Here is
what Ray is told, and how often.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import wait_until
from ray_exports import Exports
from reports import FULL
from serve_warm import metrics, node
from serve_warm.node import Settings, boot_s
from serve_warm.node_server.server import Server
from serve_warm.node_server.table import BUCKETS, NODE_METRICS, OUTCOMES
from serve_warm.report import ArtifactUse, Counts, Report, Stage
from state_files import STARTS, WHO, Clock, clock_fixture, directory_fixture, replica_fixture  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

REFUSED = Report(artifact=ArtifactUse(store="s3://bucket", source="s3", refused="untrusted"))

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Sinks:
    """What the server of one directory exports."""

    def __init__(self, directory: Path) -> None:
        self._settings = Settings(str(directory), urls=())
        self._server = Server(self._settings, host="127.0.0.1", port=0)
        self._server._http.server_close()  # its text is asked for as its handler does

    def server(self) -> list[Metric]:
        return list(text_string_to_metric_families(self.text()))

    def text(self) -> str:
        return self._server.metrics()[1].decode()

    def series(self) -> Series:
        return series(self.server())


@pytest.fixture(name="sinks")
def sinks_fixture(directory: Path) -> Sinks:
    return Sinks(directory)


def series(families: Iterable[Metric]) -> Series:
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = float(sample.value)
    return found


def of(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def names(found: Series) -> set[str]:
    return {name for name, _ in found}


# --- all of the table ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "report",
    [FULL, Report(), dataclasses.replace(FULL, stage=Stage.FAILED)],
    ids=["ready", "begun", "failed"],
)
def test_prometheus_reads_what_a_replica_measured(sinks, replica, report):
    """Each value of each row, under its name, type and labels, to the last digit, from both."""
    replica(report)

    families = {family.name: family for family in sinks.server()}
    found = sinks.series()

    for metric in metrics.METRICS:
        if metric.since(report) is not None:
            continue  # it grows
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        expected = {
            (name, frozenset({**WHO, **dict(zip(metric.labels, key, strict=True))}.items())): value
            for key, value in metric.read(report).items()
            if value or metric.zeros
        }
        assert {key: value for key, value in found.items() if key[0] == name} == expected
        if expected:
            assert families[metric.name].type == metric.kind
            assert families[metric.name].documentation == metric.help


def test_the_families_are_those_of_the_tables(sinks, replica):
    """Name, type and text of each, those of the server and of the table; and no other."""
    replica(FULL)
    replica(REFUSED, "r2")
    server = {(f.name, f.type, f.documentation) for f in sinks.server()}
    of_nodes = {(name, kind, text) for name, (kind, _, text) in NODE_METRICS.items()}
    of_replicas = {(m.name, m.kind, m.help) for m in metrics.METRICS}
    assert server == of_nodes | of_replicas


@pytest.mark.parametrize("name", [name for name, (_, labels, _) in NODE_METRICS.items() if labels])
def test_what_the_server_adds_has_the_labels_that_are_documented(sinks, replica, name):
    """No other ones, but for the bounds of buckets."""
    replica(Report())
    sinks.series()
    replica(FULL)
    (family,) = (f for f in sinks.server() if f.name == name)
    found = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    assert found == {frozenset(NODE_METRICS[name][1])}


# --- in time -------------------------------------------------------------------------------
def test_histograms_are_zero_before_there_is_work(sinks, replica):
    """A bucket that is born at 1 has no increase."""
    replica(Report())
    found = {key: value for key, value in sinks.series().items() if "_duration_" in key[0]}
    assert set(found.values()) == {0.0}
    assert len(found) == len(OUTCOMES) * (len(BUCKETS) + 3)


def test_elapsed_time_is_of_the_scrape_and_not_of_the_state(sinks, replica):
    """It grows while a replica in a compile writes nothing, and ends with READY."""
    created_s = boot_s() - 1000.0
    replica(Report(stage=Stage.REPLAYING, created_boot_s=created_s, elapsed_s=1.0))
    before = boot_s() - created_s
    growing = [of(sinks.series(), "serve_warm_start_elapsed_seconds", **WHO) for _ in range(2)]
    after = boot_s() - created_s
    replica(dataclasses.replace(FULL, elapsed_s=1234.5678))
    ended = [of(sinks.series(), "serve_warm_start_elapsed_seconds", **WHO) for _ in range(2)]
    assert before < growing[0] < growing[1] < after
    assert ended == [1234.5678] * 2


@pytest.mark.parametrize("swept", [False, True])
def test_what_was_measured_survives_the_replica(sinks, replica, directory, swept):
    """Its current state is 0 or absent, and the facts of its start stay."""
    file = replica(FULL)
    before = sinks.series()
    file.close()
    if swept:
        for path in directory.iterdir():
            path.unlink()

    after = sinks.series()

    assert of(after, "serve_warm_replica_alive", **WHO) == 0.0
    for metric in metrics.METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        was = {key: value for key, value in before.items() if key[0] == name}
        now = {key: value for key, value in after.items() if key[0] == name}
        if metric.at_end == "absent":
            assert now == {}
            continue
        # What of several labels was not the case has no series any more; counters have all.
        told = {k: v for k, v in was.items() if v or metric.kind == "counter" or not metric.labels}
        assert now == (dict.fromkeys(told, 0.0) if metric.at_end == "zero" else told)


def test_no_gauge_says_ready_where_the_probe_does_not(sinks, replica, directory, clock):
    """For a hanging or unreadable replica, facts of its start stay, and its age grows."""
    degraded = replica(FULL)
    replica(Report(stage=Stage.REPLAYING), "r2")
    ready = sinks.series()
    clock.move_on(node.STALE_S + 1)
    hanging = sinks.series()
    degraded.write({"stage": "READY", "metrics": metrics.as_data(FULL)})
    back = sinks.series()
    (directory / "app#Embedder#r1.json").write_text("{")
    damaged = sinks.series()

    said = {"serve_warm_ready": {}, "serve_warm_degraded": {}}
    said["serve_warm_stage"] = {"stage": "ready"}
    for found, value in ((ready, 1.0), (hanging, 0.0), (back, 1.0), (damaged, 0.0)):
        assert [of(found, name, **WHO, **own) for name, own in said.items()] == [value] * 3
    assert of(hanging, "serve_warm_node_ready") == 0.0
    assert of(hanging, "serve_warm_replica_alive", **WHO) == 1.0
    assert of(hanging, "serve_warm_heartbeat_age_seconds", **WHO) > node.STALE_S
    assert of(hanging, "serve_warm_stage", **STARTS, replica="r2", stage="replaying") == 1.0
    takes_back = {(name, frozenset({**WHO, **own}.items())) for name, own in said.items()}
    rest = {key for key in ready if "replica" in dict(key[1])} - takes_back
    same = {key for key in rest if ready[key] == hanging[key]}
    growing = ("heartbeat_age", "stage_age", "start_elapsed")
    assert {name for name, _ in rest - same} == {f"serve_warm_{name}_seconds" for name in growing}


# --- starts that died ----------------------------------------------------------------------
def died(sinks: Sinks) -> dict[str, float]:
    """Return the outcomes of starts, only those that died."""
    found = sinks.series()
    return {
        outcome: count
        for outcome in OUTCOMES
        if (count := of(found, "serve_warm_starts_total", **STARTS, outcome=outcome))
    }


def test_a_start_that_died_is_counted_once(sinks, replica, directory, clock):
    """After a while, with the time until it last wrote; once, also when its files are swept."""
    replica(Report(stage=Stage.REPLAYING, elapsed_s=7.5)).close()
    at_once = died(sinks)
    clock.move_on(node.STALE_S + 1)
    seen = [died(sinks), died(sinks)]
    for path in directory.iterdir():
        path.unlink()
    seen.append(died(sinks))
    assert at_once == {}
    assert seen == [{"died": 1.0}] * 3
    labels = {**STARTS, "outcome": "died"}
    assert of(sinks.series(), "serve_warm_start_duration_seconds_sum", **labels) == 7.5


@pytest.mark.parametrize("stage", [Stage.READY, Stage.FAILED])
def test_a_start_that_had_ended_did_not_die(sinks, replica, clock, stage):
    replica(dataclasses.replace(FULL, stage=stage)).close()
    clock.move_on(node.STALE_S + 1)
    assert died(sinks) == {"partial" if stage is Stage.READY else "failed": 1.0}


def test_another_server_does_not_count_it_again(sinks, replica, directory, clock):
    replica(Report()).close()
    later = Sinks(directory)
    clock.move_on(node.STALE_S + 1)
    assert died(sinks) == {"died": 1.0}
    assert died(later) == {}


# --- histograms ----------------------------------------------------------------------------
def test_sums_of_histograms_are_exact(sinks, replica):
    took = (0.1, 12.3, 500.0, 5000.25)
    for number, seconds in enumerate(took):
        replica(Report(), f"r{number}")
        sinks.series()
        replica(dataclasses.replace(FULL, elapsed_s=seconds), f"r{number}")

    for _ in range(2):  # once each, however often it is asked
        found = sinks.series()

        labels = {**STARTS, "outcome": "partial"}
        name = "serve_warm_start_duration_seconds"
        assert of(found, f"{name}_sum", **labels) == math.fsum(took)
        assert of(found, f"{name}_count", **labels) == len(took)
        bounds = {**{repr(bound): bound for bound in BUCKETS}, "+Inf": math.inf}
        assert {le: of(found, f"{name}_bucket", **labels, le=le) for le in bounds} == {
            le: float(sum(seconds <= bound for seconds in took)) for le, bound in bounds.items()
        }
        assert of(found, "serve_warm_starts_total", **labels) == len(took)


def row(labels: Any, samples: Any, name: str = "serve_warm_x") -> dict[str, Any]:
    return {"name": name, "kind": "gauge", "help": "Odd.", "labels": labels, "samples": samples}


TWO = [[["1", "2"], 1.0]]
OWN_NAMES = ("compiles_after_ready_total", "starts_total", "start_duration_seconds_sum")


@pytest.mark.parametrize(
    "odd",
    [
        *(
            row(labels, TWO)
            for labels in ("ab", ["a", 7], ["a", "a"], ["a", "replica"], ["a", "le"])
        ),
        row(["a", "__name__"], [[["1", "up"], 1.0]]),
        *(row(["a", "b"], samples) for samples in (7, [[["1"], 1.0]], [[["1", "2"], "1"]])),
        *(row(["a", "b"], samples) for samples in ([[["1", "2"]]], [7, "x", None])),
        row(["a", "b"], [[["1", "2"], 10**400]]),
        *(row([], [[[], 7]], f"serve_warm_{name}") for name in OWN_NAMES),
    ],
    ids=lambda odd: f"{odd['name']} {odd['labels']} {odd['samples']}"[:80],
)
def test_a_row_that_is_none_is_left_out(sinks, replica, odd):
    """It breaks neither the scrape nor the server's own figures."""
    replica(Report(), metrics=[odd, *metrics.as_data(FULL)])
    found = sinks.series()
    assert of(found, "serve_warm_to_proof_seconds", **WHO) == 3.5
    assert "serve_warm_x" not in names(found)
    starts = [key for name, key in found if "start" in name and "elapsed" not in name]
    assert not any("replica" in dict(key) for key in starts)


# --- Ray -----------------------------------------------------------------------------------
@pytest.fixture(name="exports")
def exports_fixture(monkeypatch: pytest.MonkeyPatch) -> Exports:
    # Sinks export only when asked, so that all exports can be counted.
    monkeypatch.setattr(metrics, "PERIOD_S", 3600.0)
    return Exports(monkeypatch)


def test_counters_reach_ray_whole(exports):
    """However many changes one export has to tell: nothing is lost, and nothing told twice."""
    reports = [
        dataclasses.replace(FULL, after_ready=Counts(compiles=count, forbidden=2 * count))
        for count in range(1, 301)
    ]
    now = [reports[0]]
    sink = metrics.RaySink(lambda: now[0])
    for now[0] in reports:
        sink.changed()
    compiles = "serve_warm_compiles_after_ready"
    wait_until("all are told", lambda: exports.totals[compiles] >= 300)
    assert exports.totals[compiles] == 300
    assert exports.totals["serve_warm_forbidden_after_ready"] == 600
    assert len(exports.values["serve_warm_ready"]) <= 300


def test_a_ray_that_takes_no_metrics_is_said_once_and_asked_again(exports, caplog):
    """The refused metrics are exported in full as soon as Ray accepts them."""
    exports.refusal = OSError("no agent on this node")
    sink = metrics.RaySink(lambda: FULL)
    for count in (1, 2, 3):
        sink.changed()
        wait_until("it is refused", lambda count=count: exports.refused == count)
    exports.refusal = None
    sink.changed()
    wait_until("it is exported", lambda: exports.totals["serve_warm_compiles_after_ready"])
    said = [record.getMessage() for record in caplog.records if record.exc_info]
    assert said == ["metrics are not exported: OSError: no agent on this node"]
    assert exports.totals["serve_warm_compiles_after_ready"] == 1
