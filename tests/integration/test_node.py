# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Probe and server of a node beside a real Ray cluster: never ready before the replica is."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration import apps as shapes
from serve_warm import node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import App, Cluster

pytestmark = pytest.mark.ray


class Server:
    """A server process, asked again and again: each answer is kept with the truth around it."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._state_dir = cluster.state_dir
        self._app = app
        self._options = ("--state-dir", str(cluster.state_dir), "--raylet", "none")
        # Of the tests that share the cluster, only this one's deployment.
        self._options += ("--deployment", f"{app.name}#SlowToWarm")
        self._options += ("--proxy", f"{cluster.url}/-/healthz")
        self.false: list[str] = []
        self.begin()

    def begin(self) -> None:
        command = [sys.executable, "-I", "-S", node.__file__, "serve", *self._options]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        first = self.process.stderr.readline()
        self._port = int(re.search(r"answers on port (\d+)", first)[1])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def states(self) -> list[dict[str, Any]]:
        """Return what the application's living replicas say, oldest first."""
        found = [s for s in node.read_states(self._state_dir) if s["application"] == self._app.name]
        return sorted(found, key=lambda state: state["began_boot_s"])

    def ready(self) -> bool:
        """Ask, and note an answer that no moment around the question allows."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            connection.request("GET", "/readyz?verbose")
            response = connection.getresponse()
            status, text = response.status, response.read().decode()
        # After the answer: who is ready now may not have been then, never the other way round,
        # but for one that has been killed since, which the tests do themselves.
        after = [state["stage"] for state in self.states()]
        if status == 200 and "READY" not in after:
            self.false.append(f"{after}: {text}")
        return status == 200

    def probe(self) -> tuple[int, str]:
        command = [sys.executable, "-I", "-S", node.__file__, "probe", *self._options]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout

    def metric(self, name: str) -> float:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.rpartition(" ")[2])


def deployed(cluster: Cluster, *, replicas: int, name: str = "") -> App:
    target = ("integration.apps:slow_to_warm", "SlowToWarm", None)
    return cluster.configure(*target, name=name, num_replicas=replicas)


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    started = deployed(cluster, replicas=1)
    yield started
    cluster.delete({started.name: started})


@pytest.fixture
def server(cluster: Cluster, app: App) -> Iterator[Server]:
    started = Server(cluster, app)
    yield started
    started.end()


def test_probe_and_server_follow_the_truth(cluster: Cluster, server: Server, app: App) -> None:
    """Through a start, a second replica, the death of one and of both, and of the server itself."""
    # The start: red until the replica's own proof, then green.
    seen_warming = wait_until("it replays", lambda: not server.ready() and server.states())
    code_before, why = server.probe()
    wait_until("it is ready", server.ready)
    code_after, _ = server.probe()
    (first,) = server.states()

    assert seen_warming[0]["stage"] != "READY"
    assert (code_before, code_after) == (1, 0)
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

    # One is killed: seen dead at once, the other one carries the node, and a new one follows.
    pids = [state["pid"] for state in server.states()]
    os.kill(pids[0], signal.SIGKILL)
    wait_until("it is dead", lambda: pids[0] not in [s["pid"] for s in server.states()])
    assert server.ready()
    assert server.probe()[0] == 0

    # The server is killed and comes back: it knows what it knew, since the replicas tell it.
    server.end()
    server.begin()
    assert server.ready()

    # All are killed: not ready with the very next answer, until one has proven itself again.
    killed = [state["pid"] for state in server.states()]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until("they are dead", lambda: not {s["pid"] for s in server.states()} & set(killed))
    if not any(state["stage"] == "READY" for state in server.states()):
        assert not server.ready()
    wait_until("one is ready again", server.ready)
    assert "READY" in [state["stage"] for state in server.states()]
    assert server.false == []


def test_a_disabled_warm_up_does_not_take_a_node_out(cluster: Cluster) -> None:
    """The kill switch leaves a replica that serves, and a probe that says so."""
    bound = {"off": shapes.Embedder.options(user_config={"warmup": {"enabled": False}}).bind()}
    (app,) = cluster.start(bound).values()
    app.ready()

    def state() -> dict[str, Any]:
        found = [s for s in node.read_states(cluster.state_dir) if s["application"] == app.name]
        return found[0] if found and found[0]["stage"] == "READY" else {}

    said = wait_until("it is ready", state)
    cluster.delete({app.name: app})

    assert (said["verdict"], said["inputs_expected"]) == ("off", 0)


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
