# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One table, read through the node's server and through a registry: the same figures, exactly.

What Ray makes of the table is asked of a real cluster, in integration/test_lifecycle.py. Here is
what Ray is told, and how often.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from conftest import wait_until
from ray_exports import Exports
from reports import FULL
from serve_warm import metrics, node
from serve_warm.collector import NodeCollector
from serve_warm.node import BUCKETS, NODE_METRICS, OUTCOMES, Settings, boot_s, judge
from serve_warm.report import (
    ArtifactUse,
    Counts,
    Coverage,
    EntryUse,
    Parity,
    Report,
    Stage,
    StageTime,
    Verdict,
)
from state_files import (  # noqa: F401 - fixtures
    STARTS,
    WHO,
    Clock,
    clock_fixture,
    directory_fixture,
    replica_fixture,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from prometheus_client.core import Metric

REFUSED = Report(artifact=ArtifactUse(store="s3://bucket", source="s3", refused="untrusted"))

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

TYPICAL = dataclasses.replace(
    FULL,
    verdict=Verdict.FULL_HIT,
    degraded=(),
    covered=Coverage(expected=6, proven=6),
    stages=(
        StageTime(stage=Stage.PENDING, seconds=1.0),
        StageTime(stage=Stage.PULLING, seconds=2.0, hidden_s=1.5),
        StageTime(stage=Stage.VERIFYING, seconds=0.5),
        StageTime(stage=Stage.LOADING, seconds=3.0),
        StageTime(stage=Stage.REPLAYING, seconds=4.0),
        StageTime(stage=Stage.PROVING, seconds=2.0),
        StageTime(stage=Stage.PARITY, seconds=0.25),
    ),
    warmup=Counts(captures=6, capture_s=1.5),
    after_ready=Counts(),
    entries=tuple(
        EntryUse(callable="app.Net", call=f"call {number}", level=2, calls=1) for number in range(6)
    ),
    parity=Parity(entries=6, checked=6, results={"same": 6}, worst_error=1e-7),
    memory=FULL.memory[:1],
)
"""A start on one GPU that found all in its artifact, at level 2."""


class Sinks:
    """The server and a registry, side by side on one directory."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._settings = Settings(str(directory), urls=())
        self._server = node.Server(self._settings, host="127.0.0.1", port=0, clock=clock)
        self._server._http.server_close()  # its text is asked for as its handler does
        self.registry = CollectorRegistry()
        self.registry.register(NodeCollector(directory, clock=clock))

    def server(self) -> list[Metric]:
        return list(text_string_to_metric_families(self.text()))

    def text(self) -> str:
        status, _, text = node._answer(self._server, "/metrics")
        assert status == 200
        return text

    def registered(self) -> list[Metric]:
        return list(text_string_to_metric_families(generate_latest(self.registry).decode()))

    def both(self) -> Series:
        """Return what both export, having seen that it is the same but for the time between."""
        server, registered = series(self.server()), series(self.registered())
        assert server.keys() == registered.keys()
        for key, value in server.items():
            if "age_seconds" not in key[0] and "elapsed" not in key[0]:
                assert registered[key] == value
        return registered


@pytest.fixture(name="sinks")
def sinks_fixture(directory: Path, clock: Clock) -> Sinks:
    return Sinks(directory, clock)


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
    """Each value of each row, under its name, type and labels, to the last digit, from both.

    Zeros too, but for rows that say what is the case by one label of many.
    """
    replica(report)

    families = {family.name: family for family in sinks.server()}
    found = sinks.both()

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


def test_both_describe_the_same_families(sinks, replica):
    """Name, type and text of each, those of the server and of the table; and no other."""
    replica(FULL)
    replica(REFUSED, "r2")

    server, registered = (
        {(f.name, f.type, f.documentation) for f in each()}
        for each in (sinks.server, sinks.registered)
    )

    of_nodes = {(name, kind, text) for name, (kind, _, text) in NODE_METRICS.items()}
    of_replicas = {(m.name, m.kind, m.help) for m in metrics.METRICS}
    assert server == registered == of_nodes | of_replicas


def test_a_registry_knows_the_names_beforehand(sinks, directory):
    """A second collector, or anything of the same names, is refused when it is registered."""
    with pytest.raises(DuplicateTimeseries):
        sinks.registry.register(NodeCollector(directory))


@pytest.mark.parametrize("name", [name for name, (_, labels, _) in NODE_METRICS.items() if labels])
def test_what_the_server_adds_has_the_labels_that_are_documented(sinks, replica, name):
    """No other ones, but for the bounds of buckets."""
    replica(Report())
    sinks.both()
    replica(FULL)

    (family,) = (f for f in sinks.server() if f.name == name)

    found = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    assert found == {frozenset(NODE_METRICS[name][1])}


# --- in time -------------------------------------------------------------------------------


def test_zeros_are_there_before_there_is_work(sinks, replica):
    """A counter or a bucket that is born at 1 has no increase."""
    replica(Report())

    found = sinks.both()

    for outcome in OUTCOMES:
        labels = {**STARTS, "outcome": outcome}
        assert of(found, "serve_warm_starts_total", **labels) == 0.0
        assert of(found, "serve_warm_start_duration_seconds_count", **labels) == 0.0
        assert of(found, "serve_warm_start_duration_seconds_sum", **labels) == 0.0
        bounds = [value for (name, key), value in found.items() if name.endswith("_bucket")]
        assert bounds == [0.0] * (len(BUCKETS) + 1) * len(OUTCOMES)
    for metric in metrics.METRICS:
        if metric.kind == "counter":
            for key in metric.read(Report()):
                labels = {**WHO, **dict(zip(metric.labels, key, strict=True))}
                assert of(found, f"{metric.name}_total", **labels) == 0.0


def test_elapsed_time_is_of_the_scrape_and_not_of_the_state(sinks, replica):
    """It grows while a replica in a compile writes nothing, and ends with READY."""
    created_s = boot_s() - 1000.0
    replica(Report(stage=Stage.REPLAYING, created_boot_s=created_s, elapsed_s=1.0))

    before = boot_s() - created_s
    growing = [of(sinks.both(), "serve_warm_start_elapsed_seconds", **WHO) for _ in range(2)]
    after = boot_s() - created_s
    replica(dataclasses.replace(FULL, elapsed_s=1234.5678))
    ended = [of(sinks.both(), "serve_warm_start_elapsed_seconds", **WHO) for _ in range(2)]

    assert before < growing[0] < growing[1] < after
    assert ended == [1234.5678] * 2


@pytest.mark.parametrize("swept", [False, True])
def test_what_was_measured_survives_the_replica(sinks, replica, directory, swept):
    """Its current state is 0 or absent, and the facts of its start stay."""
    file = replica(FULL)
    before = sinks.both()
    file.close()
    if swept:
        for path in directory.iterdir():
            path.unlink()

    after = sinks.both()

    assert of(after, "serve_warm_replica_alive", **WHO) == 0.0
    for metric in metrics.METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        was = {key: value for key, value in before.items() if key[0] == name}
        now = {key: value for key, value in after.items() if key[0] == name}
        if metric.absent_after:
            assert now == {}
            continue
        # What of several labels was not the case has no series any more; counters have all.
        told = {k: v for k, v in was.items() if v or metric.kind == "counter" or not metric.labels}
        assert now == (dict.fromkeys(told, 0.0) if metric.while_alive else told)


def test_a_pod_that_saw_three_replicas_has_half_the_gauges(sinks, replica):
    """An ended replica has less than half of the metrics, those about its start."""
    files = [replica(TYPICAL, f"r{number}") for number in range(3)]
    for file in files[:2]:
        file.close()

    found = sinks.both()

    table = [metric.read(TYPICAL) for metric in metrics.METRICS if metric.kind == "gauge"]
    of_each = sum(map(len, table))
    counts = {
        name: sum(
            dict(labels).get("replica") == name and not series.endswith("_total")
            for series, labels in found
        )
        for name in ("r0", "r1", "r2")
    }
    assert counts["r0"] == counts["r1"] < 0.45 * of_each
    assert sum(counts.values()) < 0.5 * 3 * of_each
    for name in ("r0", "r1"):
        who = {**WHO, "replica": name}
        assert of(found, "serve_warm_verdict", **who, verdict="full_hit") == 1.0
        assert of(found, "serve_warm_traced", **who, traced="none") == 1.0
        assert of(found, "serve_warm_calls_known", **who, level="2") == 6.0
        assert of(found, "serve_warm_stage_seconds", **who, stage="loading") == 3.0
        # Which it was in when it ended; a sum over all replicas is 0 and not absent.
        assert of(found, "serve_warm_stage", **who, stage="ready") == 0.0
        assert of(found, "serve_warm_ready", **who) == 0.0


def test_what_a_living_replica_could_be_has_zeros(sinks, replica):
    """Stages and verdicts: a share or a sum over them is 0, and not absent, while none is so."""
    replica(TYPICAL)

    found = sinks.both()

    for name, label, values in (
        ("serve_warm_stage", "stage", [stage.value.lower() for stage in Stage]),
        ("serve_warm_verdict", "verdict", [verdict.value for verdict in Verdict]),
    ):
        shown = {value: of(found, name, **WHO, **{label: value}) for value in values}
        assert sorted(shown.values()) == [*[0.0] * (len(values) - 1), 1.0]


def test_a_replica_that_dies_while_it_starts_shows_where(sinks, replica):
    """Its stage is there, at 0."""
    replica(Report(stage=Stage.REPLAYING)).close()

    stages = {key: value for key, value in sinks.both().items() if key[0] == "serve_warm_stage"}

    labels = frozenset({**WHO, "stage": "replaying"}.items())
    assert stages == {("serve_warm_stage", labels): 0.0}


@pytest.mark.slow
def test_a_scrape_during_a_death_is_whole(sinks, replica):
    """Replicas come and go under both readers, in several threads, and every answer is one."""
    stop = threading.Event()

    def live_and_die() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            replica(FULL, f"r{number % 5}").close()

    def scrape() -> None:
        try:
            for _ in range(10):
                found = series(sinks.registered())
                whole.append(("serve_warm_node_ready", frozenset()) in found)
                whole.append(bool(series(sinks.server())))
        except (ValueError, KeyError, RuntimeError, AssertionError) as error:
            whole.append(error)

    whole: list[Any] = []
    dying, *scraping = [threading.Thread(target=each) for each in (live_and_die, scrape, scrape)]
    for each in (dying, *scraping):
        each.start()
    for each in scraping:
        each.join()
    stop.set()
    dying.join()

    assert whole == [True] * 40


def test_no_gauge_says_ready_where_the_probe_does_not(sinks, replica, directory, clock):
    """For a hanging or unreadable replica, facts of its start stay, and its age grows."""
    degraded = replica(FULL)
    replica(Report(stage=Stage.REPLAYING), "r2")
    ready = sinks.both()
    clock.move_on(node.STALE_S + 1)
    hanging = sinks.both()
    degraded.write({"stage": "READY", "metrics": metrics.as_data(FULL)})
    back = sinks.both()
    (directory / "app#Embedder#r1.json").write_text("{")
    damaged = sinks.both()

    said = {
        "serve_warm_ready": {},
        "serve_warm_degraded": {},
        "serve_warm_stage": {"stage": "ready"},
    }
    for found, value in ((ready, 1.0), (hanging, 0.0), (back, 1.0), (damaged, 0.0)):
        assert [of(found, name, **WHO, **own) for name, own in said.items()] == [value] * 3
    assert of(hanging, "serve_warm_node_ready") == 0.0
    assert of(hanging, "serve_warm_replica_alive", **WHO) == 1.0
    assert of(hanging, "serve_warm_heartbeat_age_seconds", **WHO) > node.STALE_S
    assert of(hanging, "serve_warm_stage", **STARTS, replica="r2", stage="replaying") == 1.0
    takes_back = {(name, frozenset({**WHO, **own}.items())) for name, own in said.items()}
    rest = {key for key in ready if "replica" in dict(key[1])} - takes_back
    same = {key for key in rest if ready[key] == hanging[key]}
    assert {name for name, _ in rest - same} == {
        "serve_warm_heartbeat_age_seconds",
        "serve_warm_stage_age_seconds",
        "serve_warm_start_elapsed_seconds",
    }


# --- starts that died ----------------------------------------------------------------------


def died(sinks: Sinks) -> dict[str, float]:
    """Return the outcomes of starts, only those that died."""
    found = sinks.both()
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
    assert of(sinks.both(), "serve_warm_start_duration_seconds_sum", **labels) == 7.5


def test_a_start_that_died_before_its_first_state_is_counted(sinks, replica, directory, clock):
    """Its lock has its names."""
    replica(Report()).close()
    (directory / "app#Embedder#r1.json").unlink()
    clock.move_on(node.STALE_S + 1)

    assert died(sinks) == {"died": 1.0}


@pytest.mark.parametrize("stage", [Stage.READY, Stage.FAILED])
def test_a_start_that_had_ended_did_not_die(sinks, replica, clock, stage):
    """An end after READY or FAILED has this outcome, and counts once."""
    replica(dataclasses.replace(FULL, stage=stage)).close()
    clock.move_on(node.STALE_S + 1)

    assert died(sinks) == {"partial" if stage is Stage.READY else "failed": 1.0}


def test_another_server_does_not_count_it_again(sinks, replica, directory, clock):
    """A start that ended before this server began is not counted."""
    replica(Report()).close()
    later = Sinks(directory, clock)
    clock.move_on(node.STALE_S + 1)

    assert died(sinks) == {"died": 1.0}
    assert died(later) == {}


def test_a_replica_that_lost_its_lock_did_not_die(sinks, replica, clock):
    """The replica takes another lock with a later heartbeat, and its start continues."""
    file = replica(Report())
    file.close()
    meanwhile = died(sinks)
    clock.move_on(node.HEARTBEAT_S)
    replica(FULL)
    clock.move_on(node.STALE_S + 1)

    assert meanwhile == {}
    assert died(sinks) == {"partial": 1.0}


# --- histograms ----------------------------------------------------------------------------


def test_sums_of_histograms_are_exact(sinks, replica):
    """Each start adds its own seconds, and counts in all higher buckets."""
    took = (0.1, 12.3, 500.0, 5000.25)
    for number, seconds in enumerate(took):
        replica(Report(), f"r{number}")
        sinks.both()
        replica(dataclasses.replace(FULL, elapsed_s=seconds), f"r{number}")

    for _ in range(2):  # once each, however often it is asked
        found = sinks.both()

        labels = {**STARTS, "outcome": "partial"}
        name = "serve_warm_start_duration_seconds"
        assert of(found, f"{name}_sum", **labels) == math.fsum(took)
        assert of(found, f"{name}_count", **labels) == len(took)
        bounds = {**{repr(bound): bound for bound in BUCKETS}, "+Inf": math.inf}
        assert {le: of(found, f"{name}_bucket", **labels, le=le) for le in bounds} == {
            le: float(sum(seconds <= bound for seconds in took)) for le, bound in bounds.items()
        }
        assert of(found, "serve_warm_starts_total", **labels) == len(took)


def test_stages_are_observed_by_the_outcome_of_their_start(sinks, replica):
    """Only stages that occurred have series, because all combinations would be 900 series each."""
    replica(Report())
    sinks.both()
    replica(dataclasses.replace(FULL, stage=Stage.FAILED))

    found = sinks.both()

    name = "serve_warm_stage_duration_seconds"
    sums = {labels: value for (each, labels), value in found.items() if each == f"{name}_sum"}
    assert {dict(labels)["stage"]: value for labels, value in sums.items()} == {
        "pulling": 0.75,
        "replaying": 2.0,
    }
    assert {dict(labels)["outcome"] for labels in sums} == {"failed"}
    assert sum(each == f"{name}_bucket" for each, _ in found) == 2 * (len(BUCKETS) + 1)


def test_buckets_are_in_order():
    """Each bucket includes the lower ones, and the default deadline is a bound."""
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert 1800.0 in BUCKETS


@pytest.mark.parametrize("odd", [None, "7", True, -1.0, math.nan, math.inf, 10**400, [1]])
def test_a_start_without_a_time_is_counted_all_the_same(sinks, replica, odd):
    """Its release is older, or its data is malformed. A bad number would spoil the sum."""
    replica(Report())
    sinks.both()
    replica(FULL, elapsed_s=odd, stage_seconds={"pulling": odd, "no stage": 1.0})

    found = sinks.both()

    labels = {**STARTS, "outcome": "partial"}
    assert of(found, "serve_warm_starts_total", **labels) == 1.0
    assert of(found, "serve_warm_start_duration_seconds_count", **labels) == 0.0
    assert not any(name.startswith("serve_warm_stage_duration_seconds_") for name in names(found))


# --- other releases ------------------------------------------------------------------------


def test_rows_of_an_earlier_release_are_read(sinks, replica):
    """A replica that has one label a row at most, and names it as the first releases did."""
    old = {"kind": "gauge", "help": "Old.", "while_alive": True}
    table = [
        {**old, "name": "serve_warm_plain", "label": None, "values": {"": 2.5}},
        {**old, "name": "serve_warm_labelled", "label": "stage", "values": {"old": 1.0}},
    ]
    file = replica(Report(), metrics=table)

    alive = sinks.both()
    file.close()
    dead = sinks.both()

    assert of(alive, "serve_warm_plain", **WHO) == 2.5
    assert of(alive, "serve_warm_labelled", **WHO, stage="old") == 1.0
    assert of(dead, "serve_warm_plain", **WHO) == 0.0


def test_an_earlier_server_reads_rows_of_one_label():
    """Such rows are unchanged.

    Rows with several labels have no `values`, so the server skips them.
    """
    rows = {row["name"]: row for row in metrics.as_data(FULL)}

    for metric in metrics.METRICS:
        row = rows[metric.name]
        if len(metric.labels) > 1:
            assert "values" not in row
        else:
            assert row["label"] == (metric.labels[0] if metric.labels else None)
            assert all(type(key) is str for key in row["values"])
    assert any("samples" in row for row in rows.values())


GAUGE = {"name": "serve_warm_x", "kind": "gauge", "help": "Odd."}


@pytest.mark.parametrize(
    "row",
    [
        {**GAUGE, "labels": ["a", "b"], "samples": 7},
        {**GAUGE, "labels": "ab", "samples": [[["1", "2"], 1.0]]},
        {**GAUGE, "labels": ["a", 7], "samples": [[["1", "2"], 1.0]]},
        {**GAUGE, "labels": ["a", "a"], "samples": [[["1", "2"], 1.0]]},
        {**GAUGE, "labels": ["a", "replica"], "samples": [[["1", "2"], 1.0]]},
        {**GAUGE, "labels": ["a", "le"], "samples": [[["1", "2"], 1.0]]},
        {**GAUGE, "labels": ["a", "__name__"], "samples": [[["1", "up"], 1.0]]},
        {
            **GAUGE,
            "name": "serve_warm_compiles_after_ready_total",
            "label": None,
            "values": {"": 7},
        },
        {**GAUGE, "labels": ["a", "b"], "samples": [[["1"], 1.0]]},
        {**GAUGE, "labels": ["a", "b"], "samples": [[["1", "2"], "1"]]},
        {**GAUGE, "labels": ["a", "b"], "samples": [[["1", "2"]]]},
        {**GAUGE, "labels": ["a", "b"], "samples": [7, "x", None]},
        {**GAUGE, "labels": ["a", "b"], "samples": [[["1", "2"], 10**400]]},
        {**GAUGE, "name": "serve_warm_starts_total", "label": None, "values": {"": 7}},
        {
            **GAUGE,
            "name": "serve_warm_start_duration_seconds_sum",
            "label": None,
            "values": {"": 7},
        },
    ],
    ids=lambda row: str({key: row[key] for key in row if row[key] not in GAUGE.values()})[:80],
)
def test_a_row_that_is_none_is_left_out(sinks, replica, row):
    """It breaks neither the scrape nor the server's own figures."""
    replica(Report(), metrics=[row, *metrics.as_data(FULL)])

    found = sinks.both()

    assert of(found, "serve_warm_to_proof_seconds", **WHO) == 3.5
    assert "serve_warm_x" not in names(found)
    assert not any(
        "replica" in dict(key) for name, key in found if "start" in name and "elapsed" not in name
    )


def test_names_that_utf8_does_not_have_are_exported(sinks, replica):
    """Such names are exported in a similar form, so that they do not break the scrape."""
    replica(FULL, "r\ud800")

    found = sinks.both()

    assert of(found, "serve_warm_to_proof_seconds", **STARTS, replica="r?") == 3.5


def test_a_poisoned_directory_is_a_failed_check(sinks, replica, directory):
    """As for the server, metrics continue, and the node is not warm."""
    replica(FULL)
    before = sinks.both()
    directory.chmod(0o777)

    after = sinks.both()

    assert of(before, "serve_warm_node_check", check="warm") == 1.0
    assert of(after, "serve_warm_node_check", check="warm") == 0.0
    assert of(after, "serve_warm_node_ready") == 0.0


def test_starts_are_counted_from_the_first_look_on(sinks, replica, directory):
    """Starts that ended before the registry's first look are not counted."""
    replica(FULL, "before")
    directory.chmod(0o777)
    registry = CollectorRegistry()
    registry.register(NodeCollector(directory))
    directory.chmod(0o700)
    generate_latest(registry)
    replica(FULL, "r1")

    found = series(text_string_to_metric_families(generate_latest(registry).decode()))

    started = [value for (name, _), value in found.items() if name == "serve_warm_starts_total"]
    assert sum(started) == 1.0


def test_what_is_noted_later_was_seen_later(directory, replica, monkeypatch):
    """A look and its note are one: with two collections at a time no replica becomes younger."""
    replica(FULL)
    collector = NodeCollector(directory)
    locked: list[bool] = []
    really = os.listdir

    def spy(*given: Any) -> Any:
        locked.append(collector._lock.locked())
        return really(*given)

    monkeypatch.setattr(os, "listdir", spy)
    first = next(iter(collector.collect()))

    assert locked == [True]
    assert not collector._lock.locked()
    assert first.name in NODE_METRICS


def test_nothing_there_is_a_scrape_too(sinks):
    """Before any replica, and before the directory exists."""
    found = sinks.both()

    assert of(found, "serve_warm_node_ready") == 0.0
    assert of(found, "serve_warm_node_replicas", condition="warm") == 0.0


def test_a_policy_is_the_registrys_own(directory, replica):
    """The policy decides readiness, like the server's options, and which zeros exist."""
    replica(Report())
    policy = node.Policy.of("allow-idle", deployments=("other#Named",))
    registry = CollectorRegistry()
    registry.register(NodeCollector(directory, policy=policy))

    found = series(text_string_to_metric_families(generate_latest(registry).decode()))

    assert of(found, "serve_warm_node_ready") == float(
        judge(Settings(str(directory), policy, urls=())).ready
    )
    labels = {"application": "other", "deployment": "Named", "outcome": "miss"}
    assert of(found, "serve_warm_starts_total", **labels) == 0.0


# --- Ray -----------------------------------------------------------------------------------


@pytest.fixture(name="exports")
def exports_fixture(monkeypatch: pytest.MonkeyPatch) -> Exports:
    return Exports(monkeypatch)


def sink_of(report: Callable[[], Report]) -> metrics.RaySink:
    """Export when asked; by itself it would only after an hour, so that all can be counted."""
    return metrics.RaySink(report, period_s=3600.0)


def test_counters_reach_ray_whole(exports):
    """However many changes one export has to tell: nothing is lost, and nothing told twice."""
    reports = [
        dataclasses.replace(FULL, after_ready=Counts(compiles=count, forbidden=2 * count))
        for count in range(1, 301)
    ]
    now = [reports[0]]
    sink = sink_of(lambda: now[0])

    for now[0] in reports:
        sink.changed()

    def all_told() -> bool:
        return exports.totals["serve_warm_compiles_after_ready"] >= 300

    wait_until("all are told", all_told)
    assert exports.totals["serve_warm_compiles_after_ready"] == 300
    assert exports.totals["serve_warm_forbidden_after_ready"] == 600
    assert len(exports.values["serve_warm_ready"]) <= 300


def test_who_asks_for_an_export_does_not_make_it(exports):
    """No call of Ray's is made on the thread that replays inputs and serves."""
    sink = sink_of(lambda: FULL)

    sink.changed()

    wait_until("it is exported", lambda: "serve_warm_ready_timestamp_seconds" in exports.values)
    assert threading.get_ident() not in exports.threads


def test_a_ray_that_takes_no_metrics_is_said_once_and_asked_again(exports, caplog):
    """The refused metrics are exported in full as soon as Ray accepts them."""
    exports.refusal = OSError("no agent on this node")
    sink = sink_of(lambda: FULL)
    for count in (1, 2, 3):
        sink.changed()
        wait_until("it is refused", lambda count=count: exports.refused == count)

    exports.refusal = None
    sink.changed()
    wait_until("it is exported", lambda: exports.totals["serve_warm_compiles_after_ready"])

    said = [record.getMessage() for record in caplog.records if record.exc_info]
    assert said == ["metrics are not exported: OSError: no agent on this node"]
    assert exports.totals["serve_warm_compiles_after_ready"] == 1
