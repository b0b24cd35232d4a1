# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica says and does while a handler blocks its event loop past the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration import apps as shapes
from serve_warm import node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import App, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.long]

DEADLINE_S = 2.0
PROBES = {
    "RAY_SERVE_USER_HEALTH_CHECK_PROBE_INTERVAL_S": "6",
    "RAY_SERVE_USER_HEALTH_CHECK_PROBE_TIMEOUT_S": "1",
}
"""Serve's times, scaled down. Three probes fail within 21 s."""
SAID_WITHIN_S = 1.0
"""After the deadline. The tests allow as much again, on a busy machine."""


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("began")


@pytest.fixture(scope="module")
def apps(cluster: Cluster, began: Path) -> Iterator[dict[str, App]]:
    """One application for each policy. All start at once."""

    def blocking(name: str, seconds: float, *, probes: bool = False, **settings: Any) -> Any:
        configured = {"warmup": {"input_deadline_s": DEADLINE_S, **settings}}
        times = PROBES if probes else {}
        bound = shapes.Blocking.options(
            user_config=configured,
            ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": times}},
        )
        return bound.bind(seconds, str(began / name))

    started = cluster.start(
        {
            "fail": blocking("fail", 300.0),
            "serve": blocking("serve", 10.0, on_deadline="serve"),
            "watched": blocking("watched", 22.0, probes=True, input_deadline_s=60.0),
        }
    )
    yield started
    cluster.delete(started)


def replica_of(cluster: Cluster, app: App, began: Path) -> tuple[node.Replica, float] | None:
    """Return the state of an application's newest replica, and how long it was blocked."""
    found = [r for r in node.look(cluster.state_dir) if r.names[0] == app.name and r.state]
    if not found or not began.exists() or not began.read_text():
        return None
    return max(found, key=lambda each: each.began_s), node.boot_s() - float(began.read_text())


def test_a_blocked_replica_is_late_while_it_is_blocked(
    cluster: Cluster, apps: dict[str, App], began: Path
):
    """`on_deadline: serve`: state, probe and metric say late at once; READY follows the block."""

    def late() -> tuple[node.Replica, float] | None:
        found = replica_of(cluster, apps["serve"], began / "serve")
        return found if found and found[0].state["verdict"] == "late" else None

    replica, blocked_s = wait_until("it is late", late)
    report = apps["serve"].ready().report()

    assert blocked_s < DEADLINE_S + 2 * SAID_WITHIN_S
    assert replica.state is not None
    assert replica.state["stage"] == "REPLAYING"
    assert replica.state["degraded"][0].startswith("late: input 'length=2' did not finish")
    assert replica.condition == "warming"
    assert "late: its deadline has passed" in replica.why
    [verdicts] = [m for m in replica.state["metrics"] if m["name"] == "serve_warm_verdict"]
    assert [["late"], 1.0] in verdicts["samples"]
    assert (report["stage"], report["verdict"]) == ("READY", "late")
    assert apps["serve"].post(json={"values": [1.0, 1.0]}).json() == {"values": [3.0, 3.0]}


def test_a_blocked_replica_ends_with_its_reason(
    cluster: Cluster, apps: dict[str, App], began: Path
):
    """`on_deadline: fail`: the state says FAILED and why, and Serve sees the process end."""

    def failed() -> node.Replica | None:
        found = replica_of(cluster, apps["fail"], began / "fail")
        return found[0] if found and found[0].state["stage"] == "FAILED" else None

    replica = wait_until("it has failed", failed)
    apps["fail"].failed()

    assert replica.state is not None
    blocked_s = replica.state["stage_boot_s"] - float((began / "fail").read_text())
    # The deadline began before the handler noted when it did, on a busy machine long before.
    assert 0 < blocked_s < DEADLINE_S + 2 * SAID_WITHIN_S
    assert "input 'length=2' did not finish within 2 s" in replica.state["error"]
    assert "the event loop is blocked in __call__ (apps.py:" in replica.state["error"]
    found = [r for r in node.look(cluster.state_dir) if r.names[0] == apps["fail"].name]
    assert {each.condition for each in found} == {"dead"}


def test_a_start_that_blocked_the_loop_is_not_ended_by_serve(apps: dict[str, App]):
    """From Ray 2.56 on, three missed probes end a start in DEPLOY_FAILED, although it succeeded."""
    report = apps["watched"].ready().report()

    assert report["stage"] == "READY"
    assert report["covered"]["proven"] == report["covered"]["expected"]
    assert any("Serve's watchdog would end this start" in text for text in report["warnings"])
