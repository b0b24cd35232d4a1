# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the chart: their records, and when alerts fire and stop.

Prometheus' own `promtool test rules` evaluates them for small fleets that a case describes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from components import require
from fleet import Fleet, Replica, Series, as_promtool, selector
from helm.observability import rules
from processes import run_to_end
from serve_warm.builder.cluster import build_name

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "serve-warm" / "rules"
READ = set(re.findall(r"\b(?:ray_)?serve_warm_\w+|\bup\b", rules.plain()))
"""Names of the series that the rules read. For speed, other series are left out."""
BY = "application, deployment, reason, instance"
NOBODY: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fleet, and the expected results of the rules."""

    id: str
    says: str
    """The property that it shows."""
    replicas: tuple[Replica, ...] = ()
    minutes: int = 60
    sinks: str = "node ray"
    unreadable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """As in `Fleet`."""
    evaluated: str = "1m"
    """Interval between evaluations; longer in scenarios of many hours."""
    others: tuple[tuple[str, dict[str, str], dict[int, float]], ...] = ()
    """Further series, beside those of the sinks."""
    expected: dict[str, dict[int, dict[str, float]]]
    """Values by name of a record or alert, by minute, and by the labels that tell series apart. A
    firing alert has the value 1."""

    def series(self) -> Series:
        fleet = Fleet(
            replicas=self.replicas, minutes=self.minutes, unreadable=dict(self.unreadable)
        )
        found: Series = {}
        if "node" in self.sinks:
            found |= fleet.node_server()
        if "ray" in self.sinks:
            found |= fleet.ray()
        for name, labels, values in self.others:
            found[name, tuple(sorted(labels.items()))] = values
        return {(name, labels): values for (name, labels), values in found.items() if name in READ}


def labelled(key: str) -> str:
    """Return the labels that `shop/Ranker`, `shop/Ranker/expired`, `r=a1` or `at=n1` stand for."""
    if "=" in key:
        kind, _, name = key.partition("=")
        return selector("", (({"r": "replica", "at": "instance"}[kind], name),))
    names = ("application", "deployment", "reason")
    return selector("", tuple(zip(names, key.split("/"), strict=False)))


def promtool(tmp_path: Path, *given: tuple[Case, dict[str, list]]) -> str:
    """Return the output of failed checks of cases; empty if all results are as expected."""
    command = require("promtool", "apt-get install prometheus (.ci/install-components)")
    test = {
        "rule_files": [str(RULES / "serve-warm.yaml")],
        "evaluation_interval": given[0][0].evaluated,
        "group_eval_order": [group["name"] for group in rules.GROUPS],
        "tests": [
            {"interval": "1m", "input_series": as_promtool(case.series(), case.minutes), **checks}
            for case, checks in given
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(test))  # JSON is valid YAML
    ended = run_to_end([command, "test", "rules", str(file)])
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def slow_and_fast(slow: int, fast: int, *, every: int = 1) -> tuple[Replica, ...]:
    """Return starts, one after the other: first fast ones of 30 s, then slow ones of 90 s."""
    took = [30.0] * fast + [90.0] * slow
    return tuple(Replica(name=f"s{i}", born=i * every, took_s=t) for i, t in enumerate(took))


def fails(deployment: str, *, gone: int | None = None) -> tuple[Replica, ...]:
    """Return three starts of a minute, one after the other, after which Serve gives up."""
    return tuple(
        Replica(
            name=f"{deployment}{i}",
            deployment=deployment,
            born=1 + i,
            took_s=None,
            dead=2 + i,
            gone=gone,
        )
        for i in range(3)
    )


RANKER = {"shop/Ranker": 1.0}
GAVE_UP = {"shop/Ranker": 1.0, "shop/Gone": 1.0, "shop/Rolled": 1.0}

THREE_STARTS = (
    Replica(name="fast", born=1, took_s=30.0),
    # Ready in time, and dead long after that, so the start did not fail.
    Replica(name="quick", born=1, took_s=60.0, dead=15),
    Replica(name="slow", born=1, took_s=120.0),
    Replica(name="killed", born=1, took_s=None, dead=4),
    Replica(name="starts", born=1, took_s=None),
)

CASES = [
    Case(
        id="starts-counted-once",
        says="A start counts once, in one sink or both, during the 10 minutes after its end.",
        replicas=THREE_STARTS,
        minutes=60,
        expected={
            "replica:serve_warm_start:within_slo": {
                0: NOBODY,
                2: {"r=fast": 1.0, "r=quick": 1.0},
                5: {"r=fast": 1.0, "r=quick": 1.0, "r=slow": 0.0, "r=killed": 0.0},
                20: NOBODY,
            },
            "deployment:serve_warm_starts:count30m": {20: {"shop/Ranker": 4.0}, 55: NOBODY},
            "deployment:serve_warm_starts_missed:ratio30m": {
                2: {"shop/Ranker": 0.0},
                20: {"shop/Ranker": 0.5},
                55: NOBODY,
            },
            "deployment:serve_warm_starts:count6h": {55: {"shop/Ranker": 4.0}},
            "deployment:serve_warm_starts_missed:ratio6h": {55: {"shop/Ranker": 0.5}},
            "deployment:serve_warm_starts:count3d": {55: {"shop/Ranker": 4.0}},
            "deployment:serve_warm_starts_missed:ratio3d": {55: {"shop/Ranker": 0.5}},
            "deployment:serve_warm_starts:count28d": {55: {"shop/Ranker": 4.0}},
            "deployment:serve_warm_starts_missed:ratio28d": {55: {"shop/Ranker": 0.5}},
        },
    ),
    Case(
        id="starts-without-node-server",
        says="With Ray's export alone, a replica that died before it was ready does not count.",
        replicas=THREE_STARTS,
        sinks="ray",
        expected={
            "deployment:serve_warm_starts:count30m": {20: {"shop/Ranker": 3.0}},
            "deployment:serve_warm_starts_missed:ratio30m": {2: {"shop/Ranker": 0.0}, 55: NOBODY},
        },
    ),
    Case(
        id="starts-of-a-pod-that-went",
        says="A start still counts when its pod, and all that was scraped there, is gone.",
        replicas=(Replica(name="a", took_s=90.0, gone=8),),
        minutes=50,
        expected={
            "replica:serve_warm_start:within_slo": {7: {"r=a": 0.0}, 9: NOBODY},
            "deployment:serve_warm_starts:count6h": {50: {"shop/Ranker": 1.0}},
            "deployment:serve_warm_starts_missed:ratio6h": {50: {"shop/Ranker": 1.0}},
            "deployment:serve_warm_replicas_ready:count": {7: {"shop/Ranker": 1.0}, 9: NOBODY},
            "replica:serve_warm_stage:now": {7: {"r=a": 1.0}, 9: NOBODY},
        },
    ),
    Case(
        id="stages",
        says="A live replica has one stage, even while the sinks disagree. A dead one has none.",
        replicas=(
            Replica(name="a", took_s=300.0),
            Replica(name="b", took_s=30.0, dead=10, verdict="off", configured=False),
        ),
        minutes=90,
        others=(
            # Ray still exports a stage that is over.
            (
                "ray_serve_warm_stage",
                {"application": "shop", "deployment": "Ranker", "replica": "a", "stage": "proving"}
                | {"namespace": "prod"},
                dict.fromkeys(range(91), 1.0),
            ),
        ),
        expected={
            "replica:serve_warm_stage:now": {2: {"r=a": 1.0, "r=b": 1.0}, 12: {"r=a": 1.0}},
            "deployment:serve_warm_replicas_starting:count": {2: RANKER, 12: NOBODY},
            "deployment:serve_warm_replicas_ready:count": {
                2: RANKER,
                9: {"shop/Ranker": 2.0},
                12: RANKER,
            },
            "replica:serve_warm_start:recent": {
                2: {"r=a": 1.0, "r=b": 1.0},
                30: {"r=a": 1.0, "r=b": 1.0},
                85: NOBODY,
            },
        },
    ),
    Case(
        id="hung",
        says="A ready replica that hangs is not ready, despite Ray's export. A start goes on.",
        replicas=(
            Replica(name="a", hung=20),
            Replica(name="b"),
            Replica(name="c", took_s=None, hung=20),
            Replica(name="d", took_s=None, deployment="Other"),
            Replica(name="e", hung=20, deployment="Other"),
        ),
        minutes=40,
        expected={
            "replica:serve_warm_stage:now": {
                19: dict.fromkeys(("r=a", "r=b", "r=c", "r=d", "r=e"), 1.0),
                21: dict.fromkeys(("r=b", "r=c", "r=d"), 1.0),
            },
            "deployment:serve_warm_replicas_ready:count": {
                19: {"shop/Ranker": 2.0, "shop/Other": 1.0},
                21: RANKER,
            },
            "deployment:serve_warm_replicas_starting:count": {21: RANKER | {"shop/Other": 1.0}},
            "ServeWarmNoReadyReplica": {29: NOBODY, 32: {"shop/Other": 1.0}},
        },
    ),
    Case(
        id="cold",
        says="A cold start raises an alert until an hour after it, if an artifact is configured.",
        replicas=(
            Replica(name="a", born=1, took_s=600.0, verdict="miss", artifact_days=None),
            Replica(name="b", verdict="off", configured=False, deployment="Plain"),
            Replica(name="c", verdict="full_hit", deployment="Warm"),
            Replica(name="d", verdict="miss", configured=False, deployment="Odd"),
        ),
        minutes=100,
        expected={"ServeWarmColdStart": {0: NOBODY, 5: RANKER, 70: RANKER, 95: NOBODY}},
    ),
    Case(
        id="cold-and-failed",
        says="If on_missing: fail ends a start at once, its node server raises the alert.",
        replicas=(Replica(name="a", born=2, took_s=None, dead=2, verdict="miss"),),
        minutes=10,
        sinks="node",
        expected={"ServeWarmColdStart": {1: NOBODY, 3: RANKER}},
    ),
    Case(
        id="refused",
        says="A refusal raises an alert with its reason, with Ray's export alone too.",
        replicas=(
            Replica(name="a", born=1, took_s=120.0, verdict="refused", refused="expired"),
            Replica(name="b", born=1, took_s=None, verdict="refused", refused="untrusted", gone=8),
        ),
        minutes=90,
        sinks="ray",
        expected={
            "ServeWarmArtifactRefused": {
                0: NOBODY,
                5: {"shop/Ranker/expired": 1.0, "shop/Ranker/untrusted": 1.0},
                20: {"shop/Ranker/expired": 1.0},
                80: NOBODY,
            }
        },
    ),
    Case(
        id="wrong-entries",
        says="A withdrawn entry raises an alert while its replica lives, also before READY.",
        replicas=(
            Replica(name="a", born=2, took_s=60.0, wrong=(2,), dead=40),
            Replica(name="b", deployment="Traffic", wrong=(20, 25), dead=40),
            Replica(name="c", deployment="Right"),
        ),
        minutes=50,
        expected={
            "ServeWarmParityFailed": {
                1: NOBODY,
                4: RANKER,
                26: {"shop/Ranker": 1.0, "shop/Traffic": 1.0},
                45: NOBODY,
            }
        },
    ),
    Case(
        id="near-the-deadline",
        says="A start older than 0.8 of deadline_s raises an alert until it is ready, or gone.",
        replicas=(
            Replica(name="a", took_s=570.0, deadline_s=600.0),
            Replica(name="b", took_s=None, deadline_s=600.0, deployment="Gone", gone=12),
            Replica(name="c", took_s=None, deadline_s=6000.0, deployment="InTime"),
        ),
        minutes=20,
        expected={
            "ServeWarmStartNearDeadline": {
                8: NOBODY,
                9: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                10: {"shop/Gone": 1.0},
                13: NOBODY,
            }
        },
    ),
    Case(
        id="compiles",
        says="A compile in traffic raises an alert for 10 minutes. Other replicas raise none.",
        replicas=(
            Replica(name="a", compiles=(20,)),
            Replica(name="b", deployment="Quiet"),
            Replica(name="c", deployment="Gone", compiles=(20,), gone=24),
        ),
        minutes=45,
        sinks="node",
        expected={
            "ServeWarmCompilesAfterReady": {
                19: NOBODY,
                21: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                29: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                36: NOBODY,
            }
        },
    ),
    *(
        Case(
            id=f"seats-by-{sinks}",
            says="An unusable seat raises an alert. A used seat, or a missing first one, does not.",
            replicas=(
                Replica(name="a", born=2, seat="hit"),
                Replica(name="b", born=2, seat="failed", deployment="Fails"),
                Replica(name="c", born=2, seat="none unavailable", deployment="Alone"),
                Replica(name="d", born=2, seat="none", deployment="First"),
                Replica(name="e", deployment="Unset"),
                Replica(name="f", born=2, seat="unavailable", deployment="Gone", dead=20, gone=20),
            ),
            minutes=120,
            sinks=sinks,
            expected={
                "ServeWarmSeatsUnusable": {
                    1: NOBODY,
                    12: {
                        "shop/Fails/failed": 1.0,
                        "shop/Alone/unavailable": 1.0,
                        "shop/Gone/unavailable": 1.0,
                    },
                    100: {"shop/Alone/unavailable": 1.0},
                }
            },
        )
        for sinks in ("node", "ray")
    ),
    Case(
        id="compiles-by-ray",
        says="The same holds for Ray's export, whose counter begins with the first compile.",
        replicas=(Replica(name="a", compiles=(20, 40)), Replica(name="b", deployment="Quiet")),
        minutes=60,
        sinks="ray",
        expected={
            "ServeWarmCompilesAfterReady": {19: NOBODY, 21: RANKER, 35: NOBODY, 41: RANKER}
            | {55: NOBODY}
        },
    ),
    *(
        Case(
            id=f"eager-by-{sinks}",
            says="Half of the calls run eagerly for half an hour. Five minutes raise no alert.",
            replicas=(
                Replica(name="a", eager=(20, 50)),
                Replica(name="b", eager=(20, 25), deployment="Shortly"),
                Replica(name="c", deployment="Quiet"),
            ),
            minutes=80,
            sinks=sinks,
            expected={
                "ServeWarmEagerCalls": {
                    30: NOBODY,
                    45: RANKER,
                    75: NOBODY,
                }
            },
        )
        for sinks in ("node", "ray")
    ),
    Case(
        id="captures",
        says="A capture, a kernel or a tuning in traffic raises an alert, unless code is compiled.",
        replicas=(
            Replica(name="a", on_gpu=(("captures", 20),)),
            Replica(name="b", on_gpu=(("tunings", 25),), deployment="Tunes"),
            Replica(name="c", on_gpu=(("kernels_built", 20),), deployment="Gone", gone=24),
            # A later request captures the graph of the compiled code.
            Replica(name="d", compiles=(20,), on_gpu=(("captures", 34),), deployment="Compiles"),
            Replica(name="e", compiles=(5,), on_gpu=(("captures", 80),), deployment="Late"),
            Replica(name="f", deployment="Quiet"),
        ),
        minutes=95,
        sinks="node",
        expected={
            "ServeWarmCapturesAfterReady": {
                6: NOBODY,
                19: NOBODY,
                21: RANKER | {"shop/Gone": 1.0},
                26: RANKER | {"shop/Gone": 1.0, "shop/Tunes": 1.0},
                32: {"shop/Tunes": 1.0},
                37: NOBODY,
                81: {"shop/Late": 1.0},
                92: NOBODY,
            },
            "ServeWarmCompilesAfterReady": {6: {"shop/Late": 1.0}, 21: {"shop/Compiles": 1.0}}
            | {37: NOBODY},
        },
    ),
    Case(
        id="none-ready",
        says="If one starts and none is ready for 10 minutes, the alert fires until one is.",
        replicas=(
            Replica(name="a", took_s=1200.0),
            Replica(name="b", took_s=1200.0, deployment="Scales"),
            Replica(name="c", took_s=10.0, deployment="Scales"),
            Replica(name="d", took_s=None, deployment="Gone", gone=14),
        ),
        minutes=40,
        expected={
            "ServeWarmNoReadyReplica": {
                9: NOBODY,
                11: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                # Some minutes of grace, in which the next of several failing starts can begin.
                17: RANKER | {"shop/Gone": 1.0},
                19: RANKER,
                21: NOBODY,
            }
        },
    ),
    Case(
        id="none-ready-in-a-loop",
        says="Starts that fail one after the other do not reset the alert.",
        replicas=tuple(
            Replica(name=f"a{i}", born=4 * i, took_s=None, dead=4 * i + 3) for i in range(6)
        ),
        minutes=40,
        sinks="node",
        expected={"ServeWarmNoReadyReplica": {9: NOBODY, 12: RANKER, 24: RANKER, 32: NOBODY}},
    ),
    Case(
        id="starts-failed",
        says="If no start follows on starts that fail fast, an alert fires for an hour.",
        replicas=(
            *fails("Ranker"),
            *fails("Gone", gone=6),
            # A ready replica is stopped for a release that does not start.
            Replica(name="old", deployment="Rolled", dead=2),
            *fails("Rolled"),
            # The next start becomes ready. In Zero, its replica is stopped later.
            *fails("Retried"),
            Replica(name="good", deployment="Retried", born=5),
            *fails("Zero"),
            Replica(name="last", deployment="Zero", born=5, dead=20),
            # The deployment is deleted while it scales up.
            Replica(name="one", deployment="Deleted", dead=12),
            Replica(name="two", deployment="Deleted", born=8, took_s=None, dead=12),
            # Another start is still in progress.
            *fails("Long"),
            Replica(name="long", deployment="Long", born=5, took_s=None),
        ),
        minutes=140,
        sinks="node",
        expected={
            "replica:serve_warm_unready:timestamp": {
                2: {"r=Ranker0": 120.0, "r=Ranker1": 120.0}
                | {"r=Rolled0": 120.0, "r=Rolled1": 120.0, "r=Retried0": 120.0}
                | {"r=Retried1": 120.0, "r=Zero0": 120.0, "r=Zero1": 120.0}
                | {"r=Gone0": 120.0, "r=Gone1": 120.0, "r=Long0": 120.0, "r=Long1": 120.0},
                30: {"r=long": 1800.0},
            },
            "deployment:serve_warm_replicas_ready:timestamp": {
                1: {"shop/Rolled": 60.0, "shop/Deleted": 60.0},
                4: {"shop/Deleted": 240.0},
                30: {"shop/Retried": 1800.0},
            },
            "ServeWarmStartsFailed": {
                8: NOBODY,
                10: GAVE_UP,
                64: GAVE_UP,
                # The start in a pod that ended was last seen when the pod ended.
                70: {"shop/Ranker": 1.0, "shop/Rolled": 1.0},
                78: NOBODY,
                138: NOBODY,
            },
        },
    ),
    Case(
        id="starts-failed-by-ray",
        says="The same holds for Ray's export, where a start that was scraped is missing later.",
        replicas=(
            *fails("Ranker"),
            *fails("Gone", gone=6),
            *fails("Retried"),
            Replica(name="good", deployment="Retried", born=5),
            *fails("Zero"),
            Replica(name="last", deployment="Zero", born=5, dead=20),
        ),
        minutes=75,
        sinks="ray",
        expected={
            "ServeWarmStartsFailed": {
                7: NOBODY,
                10: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                60: {"shop/Ranker": 1.0, "shop/Gone": 1.0},
                70: NOBODY,
            }
        },
    ),
    Case(
        id="states-unreadable",
        says="A node that cannot read states raises an alert. Its replicas do not count as ready.",
        replicas=(
            # It died, and its node server has not seen it.
            Replica(name="a", node="n1"),
            Replica(name="b", node="n2", born=7, took_s=None),
            # It is not known whether this start goes on.
            Replica(name="c", node="n1", took_s=None, deployment="Unknown"),
            Replica(name="d", node="n1", deployment="Alone"),
        ),
        minutes=40,
        sinks="node",
        unreadable={"n1": 5},
        expected={
            "deployment:serve_warm_replicas_ready:count": {
                4: RANKER | {"shop/Alone": 1.0},
                6: NOBODY,
            },
            "ServeWarmStatesUnreadable": {9: NOBODY, 11: {"at=n1:8099": 1.0}},
            "ServeWarmNoReadyReplica": {16: NOBODY, 18: RANKER},
            "ServeWarmStartsFailed": {12: NOBODY, 40: NOBODY},
        },
    ),
    Case(
        id="states-unreadable-with-ray",
        says="If a node cannot read states, Ray's export counts.",
        replicas=(
            Replica(name="a", node="n1"),
            Replica(name="b", node="n1", dead=10, deployment="Dead"),
        ),
        minutes=20,
        unreadable={"n1": 5},
        expected={
            "replica:serve_warm_stage:now": {9: {"r=a": 1.0, "r=b": 1.0}, 12: {"r=a": 1.0}},
            "deployment:serve_warm_replicas_ready:count": {12: RANKER},
        },
    ),
    Case(
        id="dead-before-the-hour",
        says="A start that died long ago did not die again when scrapes were missed.",
        replicas=(Replica(name="a", took_s=None, dead=2),),
        minutes=150,
        sinks="none",
        others=(
            (
                "serve_warm_replica_alive",
                Replica(name="a").who | {"namespace": "prod"},
                {m: float(m < 2) for m in range(151) if m not in (100, 101)},
            ),
        ),
        expected={
            "replica:serve_warm_start:within_slo": {5: {"r=a": 0.0}, 102: NOBODY, 111: NOBODY},
            "replica:serve_warm_unready:timestamp": {5: {"r=a": 300.0}, 111: NOBODY},
            "deployment:serve_warm_replicas_ready:timestamp": {5: NOBODY},
            "ServeWarmStartsFailed": {8: RANKER, 102: NOBODY, 118: NOBODY},
        },
    ),
    Case(
        id="old",
        says="An artifact is old from the day in the rules, if a live replica runs it.",
        replicas=(
            Replica(name="a", artifact_days=29.98),
            Replica(name="b", artifact_days=40.0, deployment="Dead", dead=20),
            Replica(name="c", artifact_days=40.0, deployment="Gone", gone=70),
            Replica(name="d", artifact_days=None, deployment="Never"),
        ),
        minutes=110,
        expected={
            "ServeWarmArtifactOld": {59: NOBODY, 61: {"shop/Gone": 1.0}, 72: NOBODY, 95: RANKER}
        },
    ),
    Case(
        id="burns-fast",
        says="2 slow starts of 5 raise an alert, until half an hour passes without a slow one.",
        replicas=slow_and_fast(2, 3),
        minutes=80,
        expected={"ServeWarmStartBudgetBurnsFast": {4: NOBODY, 8: RANKER, 40: RANKER, 60: NOBODY}},
    ),
    Case(
        id="too-few-to-burn",
        says="4 slow starts of 4 are too few for a critical alert, or for a ticket.",
        replicas=slow_and_fast(4, 0),
        minutes=40,
        expected={
            "ServeWarmStartBudgetBurnsFast": {10: NOBODY, 30: NOBODY},
            "ServeWarmStartBudgetBurnsSlowly": {10: NOBODY, 30: NOBODY},
        },
    ),
    Case(
        id="burns-at-the-limit",
        says="3 slow starts of 10 are six times the allowed share, not more: one alert fires.",
        replicas=slow_and_fast(3, 7),
        minutes=30,
        expected={
            "ServeWarmStartBudgetBurnsFast": {12: NOBODY, 30: NOBODY},
            "ServeWarmStartBudgetBurnsSlowly": {8: NOBODY, 13: RANKER},
        },
    ),
    Case(
        id="burns-slowly",
        says="1 slow start of 20 is allowed. 1 of 10 is not, as long as it is within 6 h.",
        replicas=tuple(
            dataclasses.replace(replica, deployment=deployment, gone=replica.born + 15)
            for deployment, fast in (("Ranker", 9), ("Good", 19))
            for replica in slow_and_fast(1, fast)
        ),
        minutes=400,
        evaluated="5m",
        sinks="ray",
        expected={
            "ServeWarmStartBudgetBurnsSlowly": {30: RANKER, 300: RANKER, 398: NOBODY},
            "ServeWarmStartBudgetBurnsFast": {30: NOBODY},
        },
    ),
    Case(
        id="failed-starts-burn",
        says="Starts that end in seconds without being ready miss the objective.",
        replicas=tuple(Replica(name=f"f{i}", born=i, took_s=None, dead=i) for i in range(5)),
        minutes=30,
        sinks="node",
        expected={
            "deployment:serve_warm_starts_missed:ratio30m": {10: {"shop/Ranker": 1.0}},
            "ServeWarmStartBudgetBurnsFast": {10: RANKER},
        },
    ),
    Case(
        id="node-server-down",
        says="A silent node server raises an alert. Other targets, and ended pods, do not.",
        replicas=(
            Replica(name="a", node="n1", gone=10),
            Replica(name="b", node="n2", gone=10),
            Replica(name="c", node="n3"),
        ),
        minutes=40,
        sinks="node",
        others=tuple(
            (
                "up",
                {"instance": name, "job": "serve-warm-node", "namespace": "prod"}
                | {"ray_io_cluster": "blue"},
                {m: float(m < 10 or name == "n3:8099") for m in range(end)},
            )
            for name, end in (("n1:8099", 30), ("n2:8099", 10), ("n3:8099", 41), ("x:9100", 41))
        ),
        expected={"ServeWarmNodeServerDown": {14: NOBODY, 16: {"at=n1:8099": 1.0}, 31: NOBODY}},
    ),
    Case(
        id="node-server-absent",
        says="Replicas that only Ray exports raise an alert, in namespaces that had node servers.",
        replicas=(
            Replica(name="a", node="n1"),
            Replica(name="b", node="n2"),
            Replica(name="c", node="n3", deployment="Elsewhere", namespace="other"),
        ),
        minutes=60,
        sinks="ray",
        others=tuple(
            (
                name,
                {"instance": "n1:8099", "job": "node", "namespace": "prod", **labels},
                dict.fromkeys(range(20), 1.0),
            )
            for name, labels in (
                ("serve_warm_node_ready", {}),
                ("serve_warm_replica_alive", Replica(name="a").who),
                ("serve_warm_replica_alive", Replica(name="b").who),
            )
        ),
        expected={"ServeWarmNodeServerAbsent": {19: NOBODY, 34: NOBODY, 36: RANKER}},
    ),
    Case(
        id="node-server-never-there",
        says="If only Ray's export is in use, a missing node server raises no alert.",
        replicas=(Replica(name="a"),),
        minutes=40,
        sinks="ray",
        expected={
            "ServeWarmNodeServerAbsent": {39: NOBODY},
            "ServeWarmNodeServerDown": {39: NOBODY},
        },
    ),
]

ALERTS = [rule["alert"] for rule in rules.ALERTS]


def asked(name: str) -> str:
    """Return a query for the series of a record or of a firing alert, by the labels in keys."""
    if name in ALERTS:
        return f'count by ({BY}) (ALERTS{{alertname="{name}",alertstate="firing"}})'
    return f"max by ({'replica' if name.startswith('replica:') else BY}) ({name})"


BUILD = "serve_warm-0a1b2c3d"
"""A name like that of the application that `serve-warm build --address` starts."""


def of_a_build(case: Case) -> Case:
    """Return a case whose replicas belong to a build, and which then has no results.

    Alerts that name no application have results as before.
    """
    others = tuple(
        (series, labels | ({"application": BUILD} if "application" in labels else {}), values)
        for series, labels, values in case.others
    )
    replicas = tuple(dataclasses.replace(each, application=BUILD) for each in case.replicas)
    expected = {
        name: dict.fromkeys(at, NOBODY)
        for name, at in case.expected.items()
        if any(not key.startswith("at=") for values in at.values() for key in values)
    }
    return dataclasses.replace(case, replicas=replicas, others=others, expected=expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rules_say_what_became_of_a_fleet(case: Case, tmp_path: Path) -> None:
    """The results equal the expectations of the case, and there are none of a build."""
    given = []
    for each in (case, of_a_build(case)):
        checks = [
            {
                "expr": asked(name),
                "eval_time": f"{minute}m",
                "exp_samples": [
                    {"labels": labelled(key), "value": value} for key, value in values.items()
                ],
            }
            for name, at in each.expected.items()
            for minute, values in at.items()
        ]
        given.append((each, {"promql_expr_test": checks}))

    wrong = promtool(tmp_path, *given)

    assert wrong == "", f"{case.says}\n{wrong}"


def test_a_build_is_called_as_the_rules_expect() -> None:
    """The rules leave out the names that the builder gives, and no similar ones."""
    left_out = re.search('"(.*)"', rules.NO_BUILD)[1]

    assert all(re.fullmatch(left_out, name) for name in (BUILD, build_name(), build_name()))
    similar = ("serve_warm-demo", "serve_warm", f"my-{BUILD}", f"{BUILD}-2")
    assert not any(re.fullmatch(left_out, name) for name in similar)


@pytest.mark.parametrize("name", [*ALERTS, *(rule["record"] for rule in rules.RECORDS)])
def test_every_rule_is_seen_to_begin_and_to_end(name: str) -> None:
    """In some case the rule has a result, and in some case it has none."""
    seen = [values for case in CASES for values in case.expected.get(name, {}).values()]

    # The long windows outlast all scenarios, and end like the short ones.
    ends = not name.endswith(("6h", "3d", "28d")) or name in ALERTS
    assert any(seen)
    assert not ends or not all(seen)


TEXTS = {
    "ServeWarmStartNearDeadline": (
        "near-the-deadline",
        10,
        "A replica of shop#Gone has been starting for 100% of deadline_s",
        (
            "The percentage includes the time in __init__, but deadline_s covers only the time "
            "from the end of __init__ to READY. After deadline_s, the start fails. If on_deadline "
            "is 'serve', a late replica serves without proof instead of failing."
        ),
    ),
    "ServeWarmArtifactOld": (
        "old",
        95,
        "shop#Ranker runs an artifact that is 30 days old",
        (
            "The limit for this alert is 30 days. Replicas refuse an artifact that is older than "
            "the age limit in the trust files (a year by default), and then start cold."
        ),
    ),
}
"""Texts with a share and with a rounded number."""


@pytest.mark.parametrize("name", TEXTS)
def test_an_alert_reads_well(name: str, tmp_path: Path) -> None:
    """Its texts name the affected object, the numbers and the runbook."""
    which, minute, summary, description = TEXTS[name]
    (case,) = (case for case in CASES if case.id == which)
    (key,) = case.expected[name][minute]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', labelled(key))) | {"namespace": "prod"}
    if "instance" in labels:
        labels |= {"job": "serve-warm-node", "ray_io_cluster": "blue"}
    (rule,) = (rule for rule in rules.ALERTS if rule["alert"] == name)
    expected = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {
            "summary": summary,
            "description": description,
            "runbook_url": f"docs/runbooks.md#{name.lower()}",
        },
    }
    test = {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": [expected]}

    wrong = promtool(tmp_path, (case, {"alert_rule_test": [test]}))

    assert wrong == ""


# --- the files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "written"), [("serve-warm.yaml", rules.plain), ("serve-warm.tpl.yaml", rules.template)]
)
def test_the_files_in_the_chart_are_up_to_date(file: str, written) -> None:
    """`python helm/observability/rules.py` would change nothing."""
    assert (RULES / file).read_text() == written()


def test_the_template_renders_to_the_rules() -> None:
    """With default values, Helm renders the plain file. Other values are used too."""
    other = {name: f"{number}7" for name, number in rules.DEFAULTS.items()}

    def rendered(values: dict[str, str]) -> str:
        # Does what text/template does with the only three forms in the file.
        text = re.sub(
            r"\{\{ \.Values\.alerts\.(\w+)( \| default \"[^\"]*\")? \}\}",
            lambda match: values[match[1]],
            rules.template(),
        )
        return re.sub(r"\{\{`(.*?)`\}\}", r"\1", text)

    assert rendered(rules.DEFAULTS) == rules.plain()
    assert rendered(other) == rules.plain(**other)
    assert yaml.safe_load(rendered(other)) != yaml.safe_load(rules.plain())


def test_every_alert_says_who_is_told_and_where_to_read() -> None:
    """Each alert has a known severity, texts that name its labels, and its runbook's anchor."""
    for rule in rules.ALERTS:
        keys = {
            key for c in CASES for at in c.expected.get(rule["alert"], {}).values() for key in at
        }
        labels = set().union(*(re.findall(r'(\w+)="', labelled(key)) for key in keys))
        named = re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values()))
        assert set(named) <= labels
        assert rule["labels"].keys() == {"severity", "runbook"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"]["runbook"] == rule["alert"].lower()
        assert rule["annotations"]["runbook_url"].endswith(f"#{rule['labels']['runbook']}")
