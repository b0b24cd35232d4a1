# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A day of a small fleet in a real Prometheus: each panel and each rule has the right number.

The day is described in DAY, short enough that the numbers below are known by hand.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from boards import BOARD, SINKS, drawn, queries, substituted
from components import require
from fleet import DAY_S, Fleet, Replica, as_openmetrics
from helm.observability import rules
from prometheus_server import INSTALL, Prometheus, prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator

HIT = (("pulling", 2.0), ("loading", 3.0), ("replaying", 20.0), ("proving", 10.0))
HIT_SLOWER = (("pulling", 4.0), *HIT[1:])
COLD = (("pulling", 1.0), ("replaying", 600.0), ("proving", 12.0))
REFUSED = (("verifying", 1.0), ("replaying", 260.0), ("proving", 12.0))

DAY = Fleet(
    start_s=1_773_100_800.0,  # 2026-03-10, midnight
    minutes=24 * 60,
    step=4,
    queued={"Embedder": {1412: 7.0}},
    replicas=(
        # Lives all day, on an artifact of 45 days, in an image of 8. Captures a graph in traffic at
        # 15:00, and tunes a kernel at 15:02.
        Replica(
            name="a1",
            took_s=45.0,
            artifact_days=45.0,
            stage_seconds=HIT,
            lookups=(("fx", "hit", 6.0), ("aot", "hit", 4.0)),
            on_gpu=(("captures", 900), ("tunings", 902)),
        ),
        # From 6:00 to 18:00; its node server remembers it.
        Replica(name="a2", born=360, took_s=50.0, dead=1080, stage_seconds=HIT_SLOWER),
        # Cold, from 8:00 on.
        Replica(
            name="a3",
            born=480,
            took_s=700.0,
            verdict="miss",
            artifact_days=None,
            stage_seconds=COLD,
            lookups=(("fx", "miss", 6.0),),
        ),
        # Refused its artifact; compiles in traffic at 14:00, 14:02 and 20:00.
        Replica(
            name="b1",
            deployment="Embedder",
            took_s=300.0,
            verdict="refused",
            refused="untrusted",
            artifact_days=None,
            stage_seconds=REFUSED,
            compiles=(840, 842, 1200),
        ),
        # Died at 10:02, two minutes after its creation.
        Replica(name="b2", deployment="Embedder", born=600, took_s=None, dead=602),
        # Has been starting since 23:30, and has 2000 s for it.
        Replica(
            name="b3",
            deployment="Embedder",
            born=1410,
            took_s=None,
            verdict="miss",
            artifact_days=None,
            deadline_s=2000.0,
        ),
        # Wants no artifact; its pod is there from 0:00 to 13:00, and the replica since noon.
        Replica(
            name="c1",
            application="night",
            deployment="Batch",
            born=720,
            took_s=20.0,
            verdict="off",
            configured=False,
            artifact_days=None,
            gone=780,
            cluster="green",
        ),
    ),
)
END = DAY.minutes

# What Prometheus adds of the pod of c1, whose server is not answered from 13:00 to 14:00; a replica
# that only Ray knows of, from 16:40 to 17:20; and two starts, from 18:20 and 18:28 to the minute 8
# later, that only Ray saw. A node without replicas cannot read its states from 20:00 on.
OTHERS = {
    (
        "up",
        (("instance", "of-c1:8099"), ("job", "serve-warm-node"), ("namespace", "prod")),
    ): {m: float(m < 780) for m in range(0, 840, 4)},
    (
        "ray_serve_warm_ready",
        (
            ("application", "night"),
            ("deployment", "Stray"),
            ("namespace", "prod"),
            ("replica", "x"),
        ),
    ): dict.fromkeys(range(1000, 1040, 4), 1.0),
    (
        "serve_warm_node_states_readable",
        (("instance", "n4:8099"), ("job", "serve-warm-node"), ("namespace", "prod")),
    ): {m: float(m < 1200) for m in range(1100, 1300, 4)},
    **{
        (
            "ray_serve_warm_stage",
            (
                ("application", "night"),
                ("deployment", "Lost"),
                ("namespace", "prod"),
                ("replica", name),
                ("stage", "replaying"),
            ),
        ): dict.fromkeys(range(begin, begin + 8, 4), 1.0)
        for name, begin in (("l1", 1100), ("l2", 1108))
    },
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has the day."""
    directory = tmp_path_factory.mktemp("day")
    series = {**DAY.node_server(), **DAY.ray(), **OTHERS}
    with (directory / "day.om").open("w") as file:
        file.writelines(as_openmetrics(series, DAY.start_s))
    command = [require("promtool", INSTALL), "tsdb", "create-blocks-from", "openmetrics", "-q"]
    # One block for all of it, where it would read the file once for each two hours.
    command.append("--max-block-duration=24h")
    subprocess.run([*command, directory / "day.om", directory / "data"], check=True)
    with prometheus(directory) as running:
        yield running


Values = dict[str, float]


def ask(recorded: Prometheus, expression: str, minute: int = END) -> Values:
    """Return value by labels: their values in the order of their names, without those above."""
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


RECORDED: dict[str, str] = {
    rule["record"]: rule["expr"] for rule in yaml.safe_load(rules.plain())["groups"][0]["rules"]
}


def inlined(expression: str) -> str:
    """Put what is recorded in the place of the record's name: the day has scrapes alone."""
    for name, text in reversed(RECORDED.items()):

        def expression_of(match: re.Match[str], text: str = text) -> str:
            matchers, span = match[1] or "", match[2]
            # A matcher goes to all selectors that could have the label.
            inner = selected(text, matchers[1:-1]) if matchers else text
            if not span:
                return f"({inner})"
            return f"({inner})[{span}:{'5m' if span[-1] in 'hd' else '1m'}]"

        pattern = re.escape(name) + r"(?![\w:])(\{[^}]*\})?(?:\[(\w+)\])?"
        expression = re.sub(pattern, expression_of, expression)
    return expression


def selected(text: str, matchers: str) -> str:
    """Return an expression with more matchers in each of its selectors of a metric or record."""
    return re.sub(
        r"\b((?:replica:|deployment:|ray_)?serve_warm_[\w:]+)(?:\{([^}]*)\})?",
        lambda match: f"{match[1]}{{{','.join(m for m in (match[2], matchers) if m)}}}",
        text,
    )


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
    # a3, b1 and b3 of all but c1, which wants none.
    "Cold share": [{"": 3 / 6}],
    # a1, a2 and c1; not a3, b1 and b2.
    "Starts within the objective, 28 days": [{"": 3 / 6}],
    "Compiles after ready": [{"": 3.0}],
    "Oldest artifact": [{"": 46 * DAY_S}],
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
    "Used share of the deadline": [{"b3": 0.9}],
    "Living replicas by verdict: hit, miss, refused": [
        {"full_hit": 1.0, "partial": 0.0, "miss": 2.0, "refused": 1.0, "late": 0.0, "off": 0.0}
    ],
    "Refused artifacts by reason": [{"untrusted": 1.0}],
    "Artifact age": [{"Ranker": 46 * DAY_S}],
    "Artifacts in use": [{"2026-02-28/Ranker/s3/147378e2d3f5": 1.0}],
    "Versions": [{"2.60.0/2.13.0/0.5.0": 4.0}],
    "Downloaded by each start": [
        {"a1": 50e6, "a2": 50e6, "a3": 0.0, "b1": 0.0, "b2": 50e6, "b3": 0.0}
    ],
    "Look-ups in torch's caches during warm-up": [{"aot/hit": 4.0, "fx/hit": 6.0, "fx/miss": 6.0}],
    "Compiles and the like after ready": [
        {"Ranker": 0.0, "Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        NOTHING_COUNTED,
        {"Ranker": 0.0, "Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Ranker": 0.0, "Embedder": 3.0},
        NOTHING_COUNTED,
    ],
    "Queue waiting behind warm-up": [
        {"Ranker": 0.0, "Embedder": 7.0, "Batch": 0.0},
        {"Ranker": 0.0, "Embedder": 1.0},
    ],
    "Entries against eager": [{"same": 12.0, "different": 0.0}, NOTHING_COUNTED],
    "Calls without an entry": [{"Ranker": 0.0, "Embedder": 9.0}],
    "Ray's own start-up histograms, 95 %": [RAY_P95, RAY_P95],
    "Ready nodes (node server only)": [{"": 1.0}, {"": 1.0}, {"": 0.0}],
    "Failing checks (node server only)": [{"warm": 0.0, "raylet": 0.0, "proxy": 0.0}],
    "Replicas by condition (node server only)": [
        {"warm": 3.0, "warming": 1.0, "dead": 2.0, "failed": 0.0, "stale": 0.0, "unreadable": 0.0}
    ],
    "Starts of the time range by outcome (node server only)": [
        {"full_hit": 2.0, "miss": 1.0, "refused": 1.0, "died": 1.0, "off": 1.0}
        | {"partial": 0.0, "late": 0.0, "failed": 0.0}
    ],
    "Duration of starts, half and 95 % (node server only)": [
        {"full_hit": 45.0, "miss": 900.0, "refused": 210.0, "died": 90.0},
        {"full_hit": 58.5, "miss": 1170.0, "refused": 291.0, "died": 117.0},
    ],
    "Duration of stages, 95 % (node server only)": [
        {"pulling": 4.625, "verifying": 0.975, "loading": 4.875, "replaying": 540.0}
        | {"proving": 19.0}
    ],
    "Heartbeat age (node server only)": [dict.fromkeys(("a1", "a3", "b1", "b3"), 2.0)],
    "Time in the present stage (node server only)": [{"b3": 1800.0}],
    "Captures, kernels and tunings in warm-up": [
        {"a1": 6.0, "a2": 6.0, "a3": 6.0, "b1": 6.0, "b2": 2.0, "b3": 2.0},
        dict.fromkeys(("a1", "a2", "a3", "b1", "b2", "b3"), 0.0),
        {"a1": 0.0, "a2": 0.0, "a3": 12.0, "b1": 12.0, "b2": 0.0, "b3": 12.0},
        {"a1": 0.0, "a2": 0.0, "a3": 3.0, "b1": 3.0, "b2": 0.0, "b3": 3.0},
    ],
    "Time of captures and tunings in warm-up": [
        {"a1": 1.5, "a2": 1.5, "a3": 1.5, "b1": 1.5, "b2": 0.5, "b3": 0.5},
        {"a1": 0.0, "a2": 0.0, "a3": 7.5, "b1": 7.5, "b2": 0.0, "b3": 7.5},
    ],
    "Time of captures and tunings in traffic": [
        {"Ranker": 0.5, "Embedder": 1.5},
        {"Ranker": 0.5, "Embedder": 1.5},
    ],
    "Memory of CUDA graphs": [dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 6e8)],
    "GPU memory that torch keeps": [
        dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 2e9),
        dict.fromkeys(("cuda:0/a1", "cuda:0/a3", "cuda:0/b1"), 3e9),
    ],
    "Stages of each replica": [{"a1": 8.0, "a3": 8.0, "b1": 8.0, "b3": 5.0}],
    "Time to ready, and to the proof": [
        BY_REPLICA,
        {name: seconds - 5 for name, seconds in BY_REPLICA.items()} | {"b2": 0.0, "b3": 0.0},
    ],
    "Stages of each start": [STAGE_SECONDS],
    "Proven share of inputs": [
        {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 1.0, "b2": 0.0, "b3": 0.0},
        {"a1": 1.0, "a2": 1.0, "a3": 1.0, "b1": 1.0, "b2": 0.5, "b3": 0.5},
    ],
    "Compiler processes in warm-up": [
        {"a1": 0.0, "a2": 0.0, "a3": 14.0, "b1": 14.0, "b2": 0.0, "b3": 14.0}
    ],
    "Compiler time in warm-up": [
        {"a1": 0.0, "a2": 0.0, "a3": 40.5, "b1": 40.5, "b2": 0.0, "b3": 40.5}
    ],
    "Kinds of calls by level": [
        {f"{level}/{name}": 2.0 for name, level in LEVEL_OF.items()},
    ],
    "Work hidden beside __init__": [{"a1/pulling": 1.5, "a2/pulling": 1.5}],
    "Degraded or unverified": [
        dict.fromkeys(("a1", "a3", "b1", "b3"), 0.0),
        dict.fromkeys(("a1", "a3", "b1", "b3"), 0.0),
    ],
    "Seconds of the start so far": [{"a1": 45.0, "a3": 700.0, "b1": 300.0, "b3": 1800.0}],
}
"""At the end of the day, by the node server: for each expression of each panel."""

BY_RAY: dict[str, list[Values]] = {
    # A counter is not there before its first count.
    "Compiles and the like after ready": [
        {"Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {},
        {"Embedder": 3.0},
        {"Ranker": 1.0, "Embedder": 3.0},
        {"Embedder": 3.0},
        {},
    ],
    "Entries against eager": [{"same": 4.0}, {}],
    "Calls without an entry": [{"Embedder": 9.0}],
    # Ray has the zeros that a node server leaves out.
    "Kinds of calls by level": [
        {
            f"{each}/{name}": 2.0 * (each == level)
            for name, level in LEVEL_OF.items()
            for each in (1, 2, 3)
            if name not in OF_DEAD
        }
    ],
}
"""What is different in Ray's export, beside that replicas that have ended are not there."""


def expected(title: str, sink: str) -> list[Values]:
    """Return what the expressions of a panel have, by the sink that is chosen."""
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
    """No panel is left out above."""
    assert [panel["title"] for panel in drawn(BOARD)] == list(PANELS)


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_obeys_the_variables(recorded: Prometheus, title: str) -> None:
    """Of a cluster, application, deployment or replica that is not chosen nothing is shown."""
    clean = {"Time to ready of each replica, and the objective", "Compiles after ready"}
    for query in queries(title):
        for name in ("Cluster", "Application", "Deployment", "Replica"):
            if f"${name}" not in query:
                continue
            found = ask(recorded, substituted(query, **{name: "nothing"}))
            assert found == {} or (title in clean and found in ({"": 60.0}, {"": 0.0}))


def test_one_deployment_can_be_looked_at(recorded: Prometheus) -> None:
    """The same panels, of one deployment: several can be chosen with a bar between."""
    (query,) = queries("Ready replicas")

    assert ask(recorded, substituted(query, Deployment="Embedder")) == {"": 1.0}
    assert ask(recorded, substituted(query, Deployment="Ranker|Embedder")) == {"": 3.0}
    assert ask(recorded, substituted(query, Replica="a1|b1")) == {"": 2.0}
    assert ask(recorded, substituted(query, Cluster="green"), 740) == {"": 1.0}


RULES: dict[str, dict[int, Values]] = {
    "replica:serve_warm_stage:now": {
        4: {"a1/ready": 1.0, "b1/replaying": 1.0},
        END: {"a1/ready": 1.0, "a3/ready": 1.0, "b1/ready": 1.0, "b3/replaying": 1.0},
    },
    "deployment:serve_warm_replicas_ready:count": {END: {"Ranker": 2.0, "Embedder": 1.0}},
    "deployment:serve_warm_replicas_starting:count": {4: {"Embedder": 1.0}, END: {"Embedder": 1.0}},
    "replica:serve_warm_start:within_slo": {
        8: {"a1": 1.0, "b1": 0.0},
        496: {"a3": 0.0},
        608: {"b2": 0.0},
        724: {"c1": 1.0},
        END: {},
    },
    "replica:serve_warm_unready:timestamp": {
        604: {"b2": DAY.start_s + 604 * 60},
        1100: {"l1": DAY.start_s + 1100 * 60},
        END: {"b3": DAY.start_s + END * 60},
    },
    "deployment:serve_warm_replicas_ready:timestamp": {
        END: dict.fromkeys(("Ranker", "Embedder"), DAY.start_s + END * 60)
    },
    "replica:serve_warm_start:recent": {528: {"a3": 1.0}, END: {"b3": 1.0}},
    "deployment:serve_warm_starts:count30m": {740: {"Batch": 1.0}, END: {}},
    "deployment:serve_warm_starts_missed:ratio30m": {620: {"Embedder": 1.0}, 740: {"Batch": 0.0}},
    "deployment:serve_warm_starts:count6h": {
        760: {"Ranker": 1.0, "Embedder": 1.0, "Batch": 1.0},
        END: {},
    },
    "deployment:serve_warm_starts_missed:ratio6h": {
        760: {"Ranker": 1.0, "Embedder": 1.0, "Batch": 0.0}
    },
    "deployment:serve_warm_starts:count3d": {END: {"Ranker": 3.0, "Embedder": 2.0, "Batch": 1.0}},
    "deployment:serve_warm_starts_missed:ratio3d": {
        END: {"Ranker": 1 / 3, "Embedder": 1.0, "Batch": 0.0}
    },
    "deployment:serve_warm_starts:count28d": {END: {"Ranker": 3.0, "Embedder": 2.0, "Batch": 1.0}},
    "deployment:serve_warm_starts_missed:ratio28d": {
        END: {"Ranker": 1 / 3, "Embedder": 1.0, "Batch": 0.0}
    },
    "ServeWarmColdStart": {300: {}, 488: {"Ranker": 1.0}, END: {"Embedder": 1.0}},
    "ServeWarmArtifactRefused": {28: {"Embedder/untrusted": 1.0}, END: {}},
    "ServeWarmParityFailed": {END: {}},
    "ServeWarmStartNearDeadline": {1432: {}, END: {"Embedder": 0.9}},
    "ServeWarmCompilesAfterReady": {836: {}, 844: {"Embedder": 2.0}, END: {}},
    "ServeWarmCapturesAfterReady": {
        844: {},
        896: {},
        900: {"Ranker": 1.0},
        912: {"Ranker": 1.0},
        END: {},
    },
    "ServeWarmNoReadyReplica": {4: {"Embedder": 1.0}, END: {}},
    # The dead start of Embedder at 10:02 is none, while b1 is ready.
    "ServeWarmStartsFailed": {620: {}, 1108: {}, 1130: {"Lost": 2.0}, END: {}},
    "ServeWarmArtifactOld": {END: {"Ranker": 46.0}},
    # With fewer starts than a day like this has, they would say nothing: see FEW.
    "ServeWarmStartBudgetBurnsFast": {620: {"Embedder": 1.0}, END: {}},
    "ServeWarmStartBudgetBurnsSlowly": {620: {"Ranker": 1 / 3, "Embedder": 1.0}, END: {}},
    "ServeWarmNodeServerDown": {772: {}, 800: {"of-c1:8099": 0.0}, END: {}},
    "ServeWarmNodeServerAbsent": {992: {}, 1020: {"Stray": 1.0}, END: {}},
    "ServeWarmStatesUnreadable": {1196: {}, 1200: {"n4:8099": 0.0}, END: {}},
}
FEW = {"minStarts": "1"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_the_right_numbers(recorded: Prometheus, name: str) -> None:
    """At the minutes of the day that matter to it."""
    groups = yaml.safe_load(rules.plain(**FEW))["groups"]
    (rule,) = (r for g in groups for r in g["rules"] if name in (r.get("record"), r.get("alert")))

    found = {minute: ask(recorded, rule["expr"], minute) for minute in RULES[name]}

    assert found == {minute: pytest.approx(values) for minute, values in RULES[name].items()}


def test_every_rule_has_its_numbers() -> None:
    """No rule is left out above."""
    names = [rule.get("record") or rule["alert"] for g in rules.GROUPS for rule in g["rules"]]

    assert sorted(names) == sorted(RULES)
