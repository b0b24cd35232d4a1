# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Probe and server of a node beside a real Ray cluster: never ready before the replica is."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import ray
from ray.exceptions import RayActorError

from conftest import Cluster, wait_until
from serve_warm import node
from witness import NodeServer, Witness, false_readies, late_readies, probed

pytestmark = pytest.mark.ray


def options(cluster: Cluster, name: str, deployment: str) -> tuple[str, ...]:
    """Return the options of a probe for one of the deployments on the shared cluster."""
    return (
        *("--state-dir", str(cluster.state_dir), "--raylet", "none"),
        *("--proxy", f"{cluster.url}/-/healthz", "--deployment", f"{name}#{deployment}"),
    )


PERIOD_S = 5.0
"""From one question of a kubelet to the next, as the documents recommend it."""


@pytest.mark.stress
@pytest.mark.long
def test_no_answer_is_ahead_of_the_truth(cluster: Cluster) -> None:
    """Nor do answers lag after deaths, a rolling update, a new controller or a new server."""
    target = ("integration.apps:witnessed", "Witnessed", None)
    name = f"witnessed-{next(cluster.numbers)}"
    asked = options(cluster, name, "Witnessed")
    with contextlib.ExitStack() as stack:
        server, strict = (
            stack.enter_context(NodeServer(*asked, *latch)) for latch in ((), ("--no-latch",))
        )
        ask = {
            "/readyz": server.readyz,
            "/metrics": server.scraped,
            "probe": lambda: probed(*asked),
            "no latch": strict.readyz,
        }
        witness = stack.enter_context(
            Witness(cluster.state_dir, name, inputs=3, ask=ask, pause_s=0.2)
        )
        # After the servers: they need seconds to begin, and the replica replays for one.
        app = cluster.configure(*target, name=name)

        def replaying() -> int:
            states = node.read_states(cluster.state_dir)
            mine = [s for s in states if s["application"] == name]
            return next((s["pid"] for s in mine if s["stage"] == "REPLAYING"), 0)

        def gone(pid: int) -> None:
            wait_until("it ends", lambda: pid not in [life.pid for life in witness.living()])

        def kill(pid: int) -> None:
            os.kill(pid, signal.SIGKILL)
            gone(pid)

        def warm() -> int:
            (life,) = wait_until("one is warm", witness.warm)
            wait_until("all say so", witness.agree)
            return life.pid

        kill(wait_until("it replays", replaying))
        first = warm()
        cluster.configure("integration.apps:witnessed_again", *target[1:], name=name)
        gone(first)
        second = warm()
        kill_controller()
        server.kill()
        server.begin()
        kill(second)
        warm()
    cluster.delete({name: app})
    lives = witness.lives()

    for source in witness.sources:
        latch = "off" if source == "no latch" else "on"
        answers = witness.of(source)
        assert false_readies(answers, lives, latch=latch) == []
        assert late_readies(answers, lives, latch=latch, period_s=PERIOD_S) == []
        assert {answer.ready for answer in answers} == {True, False}
    assert len(lives) >= 4


def kill_controller() -> None:
    """Kill Serve's controller and wait until Ray has made it again."""
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    killed = ray.get(controller.get_pid.remote())
    os.kill(killed, signal.SIGKILL)

    def back() -> bool:
        try:
            return ray.get(controller.get_pid.remote()) != killed
        except RayActorError:
            return False

    wait_until("the controller is back", back)
