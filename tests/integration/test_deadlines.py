# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a start whose handler blocks the event loop, in Serve."""

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


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("began")


@pytest.fixture(scope="module")
def apps(cluster: Cluster, began: Path) -> Iterator[dict[str, App]]:
    """Both start at once."""

    def blocking(name: str, seconds: float, deadline_s: float, **environ: str) -> Any:
        bound = shapes.Blocking.options(
            user_config={"warmup": {"input_deadline_s": deadline_s}},
            ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": environ}},
        )
        return bound.bind(seconds, str(began / name))

    started = cluster.start(
        {
            "fail": blocking("fail", 300.0, DEADLINE_S),
            "watched": blocking("watched", 22.0, 60.0, **PROBES),
        }
    )
    yield started
    cluster.delete(started)


def test_a_blocked_replica_ends_with_its_reason(
    cluster: Cluster, apps: dict[str, App], began: Path
):
    """`on_deadline: fail`: the state says FAILED and why, and Serve sees the process end."""

    def replicas() -> list[node.Replica]:
        return [r for r in node.look(cluster.state_dir) if r.names[0] == apps["fail"].name]

    def failure() -> dict[str, Any] | None:
        states = [each.state for each in replicas() if each.state]
        return next((state for state in states if state["stage"] == "FAILED"), None)

    state = wait_until("it has failed", failure)
    apps["fail"].failed()

    blocked_s = state["stage_boot_s"] - float((began / "fail").read_text())
    # The deadline began before the handler noted when it did, on a busy machine long before. It
    # ends the start within a second, or within two on a busy machine.
    assert 0 < blocked_s < DEADLINE_S + 2
    assert "input 'length=2' did not finish within 2 s" in state["error"]
    assert "the event loop is blocked in __call__ (apps.py:" in state["error"]
    assert {each.condition for each in replicas()} == {"dead"}


@pytest.mark.stress
def test_a_start_that_blocked_the_loop_is_not_ended_by_serve(apps: dict[str, App]):
    """From Ray 2.56 on, three missed probes end a start in DEPLOY_FAILED, although it succeeded."""
    report = apps["watched"].ready().report()

    assert report["stage"] == "READY"
    assert report["covered"]["proven"] == report["covered"]["expected"]
    assert any("Serve's watchdog would end this start" in text for text in report["warnings"])
