# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A day of a small fleet in a real Prometheus: each panel has the right number.

The day is described in `recorded_day.DAY`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from boards import BOARD, SINKS, drawn, queries, substituted
from fleet import DAY_S, Fleet, Replica
from prometheus_server import Prometheus
from recorded_day import COLD, DAY, END, HIT, HIT_SLOWER, REFUSED, inlined, with_alerts
from recorded_day import recorded as recorded_series


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the data of the recorded day, and the alerts that its rules fired."""
    with with_alerts(tmp_path_factory.mktemp("day")) as running:
        yield running


Values = dict[str, float]


def ask(recorded: Prometheus, expression: str, minute: int = END) -> Values:
    """Return values by labels. A key has the labels' values by name, without implied labels."""
    found: Values = {}
    for labels, value in recorded.ask(inlined(expression), DAY.start_s + 60 * minute):
        above = {"namespace", "job"}
        if {"deployment", "replica"} & labels.keys():
            above.add("application")
        if "replica" in labels:
            above.add("deployment")
        key = "/".join(value for name, value in sorted(labels.items()) if name not in above)
        assert key not in found
        found[key] = value
    return found


OF_DEAD = ("a2", "b2")

BY_REPLICA = {"a1": 45.0, "a2": 50.0, "a3": 700.0, "b1": 300.0}
STAGE_SECONDS = {
    **{f"a1/{stage}": seconds for stage, seconds in HIT},
    **{f"a2/{stage}": seconds for stage, seconds in HIT_SLOWER},
    **{f"a3/{stage}": seconds for stage, seconds in COLD},
    **{f"b1/{stage}": seconds for stage, seconds in REFUSED},
}
RAY_P95 = {"Ranker": 240_000.0, "Embedder": 240_000.0, "Batch": 57_500.0}
LEVEL_OF = {"a1": 2, "a2": 2, "a3": 1, "b1": 1, "b2": 2, "b3": 1}
NOTHING_COUNTED = {"Ranker": 0.0, "Embedder": 0.0}

PANELS: dict[str, list[Values]] = {
    "Ready replicas": [{"": 3.0}],
    "Starting replicas": [{"": 1.0}],
    # b2.
    "Failed starts (node server only)": [{"": 1.0}],
    # a3, b1 and b3, of all replicas except c1, which has no artifact configured.
    "Cold share": [{"": 3 / 6}],
    "Firing alerts": [
        {
            "ServeWarmColdStart/Embedder/servewarmcoldstart/warning": 1.0,
            "ServeWarmStartNearDeadline/Embedder/servewarmstartneardeadline/warning": 1.0,
            "ServeWarmArtifactOld/Ranker/servewarmartifactold/warning": 1.0,
            "ServeWarmSeatsUnusable/Embedder/servewarmseatsunusable/warning": 1.0,
        }
    ],
    # a1, a2 and c1; not a3, b1 and b2.
    "Objective met, 28 days": [{"": 3 / 6}],
    "Compiles after ready": [{"": 3.0}],
    "Degraded replicas": [{"": 0.0}],
    "Oldest artifact": [{"": 46 * DAY_S}],
    "Stages of each replica": [{"a1": 8.0, "a3": 8.0, "b1": 8.0, "b3": 5.0}],
    "Replicas by stage": [
        dict.fromkeys(("pending", "pulling", "verifying", "loading", "proving"), 0.0)
        | {"parity": 0.0, "replaying": 1.0, "ready": 3.0, "failed": 0.0}
    ],
    "Time to ready of each replica, and the objective": [BY_REPLICA, {"": 60.0}],
    "Stage breakdown": [
        {
            "pulling": (2 + 1) / 2,
            "verifying": 1.0,
            "loading": 3.0,
            "replaying": (20 + 600 + 260) / 3,
            "proving": (10 + 12 + 12) / 3,
        }
    ],
    "Elapsed start time, as a share of deadline_s": [{"b3": 0.9}],
    "Seats: workers with finished imports": [{"Ranker": 1.0, "Embedder": 0.0}],
    "Starts that could not use a seat, by reason": [{"failed": 1.0, "unavailable": 1.0}],
    "Live replicas by verdict: hit, miss, refused": [
        {"full_hit": 1.0, "partial": 0.0, "miss": 2.0, "refused": 1.0, "late": 0.0, "off": 0.0}
        | {"eager": 0.0}
    ],
    "Refused artifacts by reason": [{"untrusted": 1.0}],
    "Artifact age": [{"Ranker": 46 * DAY_S}],
    "Artifacts in use": [{"2026-02-28/Ranker/s3/147378e2d3f5": 1.0}],
    "Versions": [{"2.60.0/2.13.0/0.5.0": 4.0}],
    "Compiles, captures and tuning after ready": [
        {"Ranker": 0.0, "Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Ranker": 0.0, "Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Ranker": 0.0, "Embedder": 3.0},
        NOTHING_COUNTED,
    ],
    "Eager share of calls": [{"Ranker": 0.0, "Embedder": 0.0}],
    "Eager calls": [{}],
    "Waiting requests and starting replicas": [
        {"Ranker": 0.0, "Embedder": 7.0, "Batch": 0.0},
        {"Ranker": 0.0, "Embedder": 1.0},
    ],
    "Entries compared with eager execution": [{"same": 12.0, "different": 0.0}, NOTHING_COUNTED],
    "Ray's own start-up histograms, 95th percentile": [RAY_P95, RAY_P95],
    "Ready nodes (node server only)": [{"": 1.0}, {"": 1.0}, {"": 0.0}],
    "Failing checks (node server only)": [{"warm": 0.0, "raylet": 0.0, "proxy": 0.0}],
    "Replicas by condition (node server only)": [
        {"warm": 3.0, "warming": 1.0, "dead": 2.0, "failed": 0.0, "stale": 0.0, "unreadable": 0.0}
    ],
    "Starts in the time range by outcome (node server only)": [
        {"full_hit": 2.0, "miss": 1.0, "refused": 1.0, "died": 1.0, "off": 1.0}
        | {"partial": 0.0, "late": 0.0, "failed": 0.0, "eager": 0.0}
    ],
    "Duration of starts, median and 95th percentile (node server only)": [
        {"full_hit": 45.0, "miss": 900.0, "refused": 210.0, "died": 90.0},
        {"full_hit": 58.5, "miss": 1170.0, "refused": 291.0, "died": 117.0},
    ],
    "Heartbeat age (node server only)": [dict.fromkeys(("a1", "a3", "b1", "b3"), 2.0)],
    "Time in the current stage (node server only)": [{"b3": 1800.0}],
    "Memory of CUDA graphs": [dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 6e8)],
    "GPU memory that torch reserves": [
        dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 2e9),
        dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 3e9),
    ],
    "Time to ready and time to proof": [
        BY_REPLICA,
        {name: seconds - 5 for name, seconds in BY_REPLICA.items()} | {"b2": 0.0, "b3": 0.0},
    ],
    "Stages of each start": [STAGE_SECONDS],
    "Proven share of inputs": [
        {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 1.0, "b2": 0.0, "b3": 0.0},
        {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 1.0, "b2": 0.5, "b3": 0.5},
    ],
    "Kinds of calls by level": [{f"{level}/{name}": 2.0 for name, level in LEVEL_OF.items()}],
    "Degraded, unverified or narrow": [
        dict.fromkeys(("a1", "a3", "b1", "b3"), 0.0),
        dict.fromkeys(("a1", "a3", "b1", "b3"), 0.0),
        {"a1": 0.0, "a3": 1.0, "b1": 0.0, "b3": 0.0},
    ],
    "Elapsed seconds of the start": [{"a1": 45.0, "a3": 700.0, "b1": 300.0, "b3": 1800.0}],
}
"""Values at the end of the day from the node server, for each expression of each panel."""

BY_RAY: dict[str, list[Values]] = {
    # Ray exports a counter only from its first count on.
    "Compiles, captures and tuning after ready": [
        {"Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Embedder": 3.0},
        {},
    ],
    "Entries compared with eager execution": [{"same": 4.0}, {}],
    # Ray exports the zeros that a node server leaves out.
    "Kinds of calls by level": [
        {
            f"{each}/{name}": 2.0 * (each == level)
            for name, level in LEVEL_OF.items()
            for each in (1, 2, 3)
            if name not in OF_DEAD
        }
    ],
}
"""Values that differ in Ray's export, which also lacks all replicas that have ended."""


def expected(title: str, sink: str) -> list[Values]:
    """Return the values of a panel's expressions, by the chosen sink."""
    if sink == "serve_warm" or "node server only" in title:
        return PANELS[title]
    living = [
        {key: value for key, value in values.items() if not {*key.split("/")} & {*OF_DEAD}}
        for values in PANELS[title]
    ]
    return BY_RAY.get(title, living)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("title", PANELS)
def test_a_panel_shows_the_right_numbers(recorded: Prometheus, title: str, sink: str) -> None:
    """At the end of the day, with either sink."""
    found = [ask(recorded, substituted(query, sink=sink)) for query in queries(title)]

    assert found == [pytest.approx(values) for values in expected(title, sink)]


def test_every_panel_has_its_numbers() -> None:
    assert [panel["title"] for panel in drawn(BOARD)] == list(PANELS)


NUMBERS = {panel["title"]: panel for panel in drawn(BOARD) if panel["type"] == "stat"}
"""The panels at the top, with one number each."""


def shown(asked: Prometheus, title: str, minute: int = END, **chosen: str) -> tuple[str, str]:
    """Return the text and the color of a number, by the mappings and limits of its panel."""
    panel = NUMBERS[title]
    defaults, [target] = panel["fieldConfig"]["defaults"], panel["targets"]
    expression = inlined(substituted(target["expr"], **chosen))
    values = [value for _, value in asked.ask(expression, DAY.start_s + 60 * minute)]
    mappings = {each["type"]: each["options"] for each in defaults["mappings"]}
    if not values:
        return mappings["special"]["result"]["text"], mappings["special"]["result"]["color"]
    [value] = values
    if found := mappings.get("value", {}).get(f"{value:g}"):
        return found["text"], found["color"]
    steps = defaults["thresholds"]["steps"]
    reached = [step for step in steps if step["value"] is None or step["value"] <= value]
    is_share = defaults["unit"] == "percentunit"
    return f"{100 * value:.3g} %" if is_share else f"{value:.4g}", reached[-1]["color"]


COLORS = {
    "Ready replicas": "green",
    "Starting replicas": "blue",
    "Failed starts (node server only)": "red",
    "Cold share": "red",
    "Objective met, 28 days": "red",
    "Compiles after ready": "red",
    "Degraded replicas": "green",
    "Oldest artifact": "orange",
}
"""Colors of the numbers at the top, at the end of the day."""


def test_a_bad_day_looks_bad(recorded: Prometheus) -> None:
    """Bad numbers have the color of a bad value, and no number is left out."""
    assert {title: shown(recorded, title)[1] for title in NUMBERS} == COLORS


def test_seats_that_no_start_can_use_look_bad(recorded: Prometheus) -> None:
    """Each reason is a red line; without data there is no line, and the panel says why."""
    (panel,) = (p for p in drawn(BOARD) if p["title"].startswith("Starts that could not use"))
    config, [target] = panel["fieldConfig"], panel["targets"]
    fixed = {
        override["matcher"]["options"]: made["value"]["fixedColor"]
        for override in config["overrides"]
        for made in override["properties"]
    }

    reasons = ask(recorded, substituted(target["expr"]))

    assert {reason: fixed[reason] for reason in reasons} == {"failed": "red", "unavailable": "red"}
    assert ask(recorded, substituted(target["expr"], Namespace="nothing")) == {}
    assert "no problem has been counted, or no seats" in config["defaults"]["noValue"]


def test_no_data_looks_neither_good_nor_bad(recorded: Prometheus) -> None:
    """If nothing is exported, every number is gray."""
    found = {shown(recorded, title, Namespace="nothing")[1] for title in NUMBERS}

    assert found == {"#6e6e6e"}


def test_no_panel_divides_by_nothing(tmp_path: Path) -> None:
    """A replica without inputs that nobody calls, and a deployment that started long ago."""
    idle = Replica(name="a1", calls_a_minute=0.0, inputs=0.0)
    fleet = Fleet(start_s=DAY.start_s, minutes=60, step=2, replicas=(idle,))
    with recorded_series({**fleet.node_server(), **fleet.ray()}, tmp_path / "idle") as running:
        undefined = {
            f"{title}, {sink}"
            for title in PANELS
            for sink in SINKS
            for query in queries(title)
            for value in ask(running, substituted(query, sink=sink), fleet.minutes).values()
            if not math.isfinite(value)
        }

    assert undefined == set()


ALL_ENDED, JUST_GONE, GONE = 100, 130, 170
"""Minutes at which all replicas have ended, their node servers have just gone, and have been gone
for long."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with two pods, whose replicas ended at 1:00, and which ended at 2:00."""
    replicas = (
        Replica(name="a", dead=60, gone=120),
        Replica(name="b", dead=60, gone=120, deployment="Plain", verdict="off", configured=False),
    )
    fleet = Fleet(start_s=DAY.start_s, minutes=180, replicas=replicas)
    with recorded_series(fleet.node_server(), tmp_path_factory.mktemp("ended")) as running:
        yield running


def tiles(asked: Prometheus, minute: int, **chosen: str) -> dict[str, str]:
    """Return the text of each number on the dashboard, for a time range of half an hour."""
    return {title: shown(asked, title, minute, __range="30m", **chosen)[0] for title in NUMBERS}


ZEROS = {
    "Ready replicas": "0",
    "Starting replicas": "0",
    "Failed starts (node server only)": "0",
    "Cold share": "0 %",
    "Objective met, 28 days": "100 %",
    "Compiles after ready": "0",
    "Degraded replicas": "0",
    "Oldest artifact": "none in use",
}


def test_where_all_replicas_have_ended_numbers_are_zero(ended: Prometheus) -> None:
    """The node server still exports zeros. Without a configured artifact, no share exists."""
    assert tiles(ended, ALL_ENDED) == ZEROS
    assert tiles(ended, ALL_ENDED, Deployment="Plain") == ZEROS | {
        "Cold share": "no artifact configured"
    }


def test_where_nobody_exports_numbers_say_no_data(ended: Prometheus) -> None:
    """A zero comes from an exporter. A missing exporter exports nothing."""
    found = tiles(ended, GONE)

    assert found.pop("Objective met, 28 days") == "100 %"
    assert set(found.values()) == {"not exported"}
    assert tiles(ended, GONE, Namespace="nothing") == dict.fromkeys(ZEROS, "not exported") | {
        "Objective met, 28 days": "no starts, or no rules"
    }


def test_an_exporter_that_went_just_now_is_missed(ended: Prometheus) -> None:
    """Numbers about the present have no data, even if the time range has replicas."""
    found = tiles(ended, JUST_GONE)

    missing = {title for title, text in found.items() if text == "not exported"}
    assert missing == {
        "Ready replicas",
        "Starting replicas",
        "Degraded replicas",
        "Oldest artifact",
    }


def test_lines_go_on_at_zero_where_all_replicas_have_ended(ended: Prometheus) -> None:
    """This holds for starting replicas, until the node server is gone."""
    (_, starting) = queries("Waiting requests and starting replicas")

    assert len(ended.ask(substituted(starting), DAY.start_s + 60 * ALL_ENDED)) == 2
    assert ended.ask(substituted(starting), DAY.start_s + 60 * GONE) == []


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_obeys_the_variables(recorded: Prometheus, title: str) -> None:
    """A panel shows nothing of a cluster, application or replica that is not selected."""
    clean = {"Time to ready of each replica, and the objective"}
    for query in queries(title):
        for name in ("Namespace", "Cluster", "Application", "Deployment", "Replica"):
            if f"${name}" not in query:
                continue
            found = ask(recorded, substituted(query, **{name: "nothing"}))
            assert found == {} or (title in clean and found == {"": 60.0})


def test_one_deployment_can_be_looked_at(recorded: Prometheus) -> None:
    """A variable selects one value, or several values with a bar between them."""
    (query,) = queries("Ready replicas")

    assert ask(recorded, substituted(query, Deployment="Embedder")) == {"": 1.0}
    assert ask(recorded, substituted(query, Deployment="Ranker|Embedder")) == {"": 3.0}
    assert ask(recorded, substituted(query, Replica="a1|b1")) == {"": 2.0}
    assert ask(recorded, substituted(query, Cluster="green"), 740) == {"": 1.0}
