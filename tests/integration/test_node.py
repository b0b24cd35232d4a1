# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Probe and server of a node beside a real Ray cluster: never ready before the replica is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from conftest import App, Cluster, wait_until
from integration import apps as shapes
from serve_warm import node
from witness import NodeServer, Witness, false_readies, late_readies, probed

pytestmark = pytest.mark.ray


class Server(NodeServer):
    """A server process, asked again and again: each answer is kept with the truth around it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._state_dir = cluster.state_dir
        self.name = name
        self.false: list[str] = []
        super().__init__(*options(cluster, name, "SlowToWarm"))

    def states(self) -> list[dict[str, Any]]:
        """Return the states of the application's live replicas, oldest first."""
        found = [s for s in node.read_states(self._state_dir) if s["application"] == self.name]
        return sorted(found, key=lambda state: state["began_boot_s"])

    def ready(self) -> bool:
        """Ask, and note an answer that no moment around the question allows."""
        ready, text = self.readyz()
        # After the answer: who is ready now may not have been then, never the other way round,
        # but for one that has been killed since, which the tests do themselves.
        after = [state["stage"] for state in self.states()]
        if ready and "READY" not in after:
            self.false.append(f"{after}: {text}")
        return ready


def options(cluster: Cluster, name: str, deployment: str) -> tuple[str, ...]:
    """Return the options of a probe for one of the deployments on the shared cluster."""
    return (
        *("--state-dir", str(cluster.state_dir), "--raylet", "none"),
        *("--proxy", f"{cluster.url}/-/healthz", "--deployment", f"{name}#{deployment}"),
    )


def deployed(cluster: Cluster, *, replicas: int, name: str) -> App:
    target = ("integration.apps:slow_to_warm", "SlowToWarm", None)
    return cluster.configure(*target, name=name, num_replicas=replicas)


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    started = Server(cluster, f"slow-{next(cluster.numbers)}")
    yield started
    started.kill()


@pytest.fixture
def app(cluster: Cluster, server: Server) -> Iterator[App]:
    """Return an application that starts after its server, which needs seconds to begin."""
    started = deployed(cluster, replicas=1, name=server.name)
    yield started
    cluster.delete({started.name: started})


@pytest.mark.long
def test_probe_and_server_follow_the_truth(cluster: Cluster, server: Server, app: App) -> None:
    """Through a start, the start of a second replica beside it, and the death of one of them."""
    # The start: red until the replica's own proof, then green.
    seen_warming = wait_until("it replays", lambda: not server.ready() and server.states())
    asked = options(cluster, app.name, "SlowToWarm")
    before, why = probed(*asked)
    wait_until("it is ready", server.ready)
    after, _ = probed(*asked)
    (first,) = server.states()

    assert seen_warming[0]["stage"] != "READY"
    assert (before, after) == (False, True)
    assert why.startswith("warm: ")
    assert app.ready().report()["stage"] == first["stage"] == "READY"

    # A second replica warms up beside it: the node stays in service, and says that one is excused.
    deployed(cluster, replicas=2, name=app.name)
    red: list[str] = []

    def stages() -> list[str]:
        if not server.ready():
            red.append(str(server.states()))
        return [state["stage"] for state in server.states()]

    wait_until("the second one begins", lambda: len(stages()) == 2)
    excused = server.metric("serve_warm_node_excused")
    still_warming = stages() != ["READY", "READY"]
    wait_until("both are ready", lambda: stages() == ["READY", "READY"])
    assert red == []
    assert excused == 1.0
    assert still_warming
    assert server.metric("serve_warm_node_excused") == 0.0
    assert server.states()[0]["pid"] == first["pid"]

    # One is killed: seen dead at once, and the other one carries the node. The test below has the
    # deaths of all, and of the server.
    pids = [state["pid"] for state in server.states()]
    os.kill(pids[0], signal.SIGKILL)
    wait_until("it is dead", lambda: pids[0] not in [s["pid"] for s in server.states()])
    assert server.ready()
    assert probed(*asked)[0]
    assert server.false == []


PERIOD_S = 5.0
"""From one question of a kubelet to the next, as the documents recommend it."""


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


@pytest.mark.long
def test_a_state_directory_that_cannot_be_used_stops_no_replica(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Nobody sees it then, and it serves."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    settings = {"warmup": {"state_dir": str(tmp_path / "state")}}
    (app,) = cluster.start({"blind": shapes.Embedder.options(user_config=settings).bind()}).values()

    answer = app.ready().post(json={"values": [1.0]}).json()
    cluster.delete({app.name: app})

    assert answer == {"values": [3.0]}
    assert list((tmp_path / "state").iterdir()) == []
