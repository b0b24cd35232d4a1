# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica takes no traffic before its proof, whatever happens around it meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import ray
import requests
from prometheus_client.parser import text_string_to_metric_families

from conftest import HANG_S, wait_until
from integration import apps as shapes
from integration.clients import CLIENTS, Clients
from serve_warm import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import App, Cluster

pytestmark = pytest.mark.ray

GAUGE_AGE_S = 60.0
"""So long after its start a replica's gauge is looked for."""


def wait_for_replay(cluster: Cluster, app: App) -> dict[str, Any]:
    """Wait until the replica replays its inputs, and return its state."""

    def replaying() -> dict[str, Any] | None:
        states = [s for s in node.read_states(cluster.state_dir) if s["application"] == app.name]
        return states[-1] if states and states[-1].get("stage") == "REPLAYING" else None

    return wait_until(f"{app.name} replays", replaying)


class Requests(Clients):
    """Clients that send requests of declared lengths."""

    def __init__(self, app: App) -> None:
        self._app, self._lock = app, threading.Lock()
        self._sessions = [requests.Session() for _ in range(CLIENTS)]
        self.sent = 0
        self.answered = 0
        """Those that reached a replica: Serve answers 404 until it knows the route."""
        super().__init__(self._send_both)

    def _send_both(self, number: int) -> None:
        for length in (1, 2):
            with self._lock:
                self.sent += 1
            response = self._sessions[number].post(
                self._app.url,
                json={"values": [1.0] * length},
                headers={"client": "yes"},
                timeout=HANG_S,
            )
            with self._lock:
                if response.status_code == 404:
                    self.sent -= 1
                    continue
                self.answered += 1
                if response.json() != {"values": [3.0] * length}:
                    self.errors.append(f"{response.status_code} {response.text}")


@pytest.fixture
def clients() -> Iterator[Callable[[App], Requests]]:
    with contextlib.ExitStack() as stack:

        def begin(app: App) -> Requests:
            begun = Requests(app)
            stack.callback(begun.stop)
            return begun

        yield begin


@pytest.fixture(scope="module")
def apps(cluster: Cluster) -> Iterator[dict[str, App]]:
    """Applications that already run when their tests begin. All start at once."""
    waiting = shapes.Caller.options(user_config={"warmup": {"input_deadline_s": 10}})
    started = cluster.start(
        {
            "calls a late one": shapes.Caller.bind(shapes.LateStarter.bind(5.0)),
            "calls an absent one": waiting.bind(
                shapes.LateStarter.options(name="Absent").bind(3600.0)
            ),
            "exported": shapes.Embedder.bind(),
        }
    )
    yield started
    cluster.delete(started)


# --- traffic ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("apps")
def test_no_request_reaches_a_replica_before_its_proof(cluster, start, clients):
    """Eight clients send from the first moment on: all wait, then all meet compiled code."""
    app = start(shapes.SlowToWarm.bind(3.4))
    sending = clients(app)

    wait_for_replay(cluster, app)
    wait_until("all clients wait", lambda: sending.sent - sending.answered == CLIENTS)
    answered_in_replay = sending.answered
    app.ready()
    wait_until("the clients are answered", lambda: sending.answered >= 200)
    sending.stop()

    stages = [note["stage"] for note in app.call("noted") if "stage" in note]
    report = app.report()
    assert answered_in_replay == 0
    assert sending.errors == []
    assert len(stages) == sending.answered
    assert set(stages) == {"READY"}
    assert report["after_ready"]["compiles"] == 0
    assert report["covered"] == {"expected": 3, "proven": 3}


# --- other deployments ------------------------------------------------------------------------


def test_a_deployment_that_is_ready_later_is_waited_for(apps):
    """An input that calls another deployment waits until that one answers, and is proven."""
    report = apps["calls a late one"].ready().report()

    assert report["covered"] == {"expected": 1, "proven": 1}
    assert report["degraded"] == []


def test_a_deployment_that_never_comes_is_named(apps):
    """The deadline of the input passes, and the text says whom it may have waited for."""

    def message() -> str:
        # The application itself stays DEPLOYING: the other deployment has not failed.
        text: str = apps["calls an absent one"].status()[1]
        return text if "WarmupTimeout" in text else ""

    text = wait_until("the caller gives up", message)

    assert "input 'embed' did not finish within 10 s" in text
    assert "it might be waiting for other deployments: Absent" in text


# --- later changes ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_changed_setting_is_started_with_by_a_changed_option_of_the_actor(cluster):
    """A variable that no code uses makes Serve restart the replica, as the documents say."""
    target = ("integration.apps:sync_configured", "SyncConfigured")
    app = cluster.configure(*target, {"scale": 1, "warmup": {}}).ready()
    before = app.call("process")

    restarted = {"num_cpus": 0, "runtime_env": {"env_vars": {"RESTARTED": "2026-01-31"}}}
    changed = {"scale": 1, "warmup": {"deadline_s": 900}}
    cluster.configure(*target, changed, name=app.name, ray_actor_options=restarted)

    def started_again() -> bool:
        states = [s for s in node.read_states(cluster.state_dir) if s["application"] == app.name]
        return [s["stage"] for s in states if s["pid"] != before] == ["READY"]

    wait_until("another one is ready", started_again)
    wait_until("Serve says so", lambda: app.status()[0] == "RUNNING")
    report = app.report()
    cluster.delete({app.name: app})

    assert report["pid"] != before
    assert report["deadline_s"] == 900


# --- a new controller --------------------------------------------------------------------------


@pytest.mark.stress
@pytest.mark.long
def test_a_killed_controller_costs_no_cold_request(cluster, start, clients):
    """Serve's controller dies during warm-up. The same process continues, and then serves."""
    app = start(shapes.SlowToWarm.bind(3.0))
    before = wait_for_replay(cluster, app)
    sending = clients(app)

    ray.kill(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve"), no_restart=False)
    app.ready()
    wait_until("the clients are answered", lambda: sending.answered >= 50)
    sending.stop()

    notes = app.call("noted")
    report = app.report()
    assert sending.errors == []
    assert app.call("process") == before["pid"] == report["pid"]
    assert {note["stage"] for note in notes if "stage" in note} == {"READY"}
    assert [n for n in notes if "asked_for_inputs" in n] == [{"asked_for_inputs": True}]
    assert report["covered"] == {"expected": 3, "proven": 3}
    assert report["after_ready"]["compiles"] == 0


# --- metrics ----------------------------------------------------------------------------------


@pytest.mark.stress
def test_the_ready_gauge_is_exported_for_as_long_as_the_replica_lives(apps):
    """Ray drops a gauge that is set once after 20 to 30 s: ours is still there much later."""
    app = apps["exported"].ready()
    report, address = app.report(), ray.nodes()[0]
    url = f"http://{address['NodeManagerAddress']}:{address['MetricsExportPort']}/metrics"

    def exported_late() -> dict[str, float]:
        if time.time() < report["started_unix"] + GAUGE_AGE_S:
            return {}
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(requests.get(url, timeout=10).text)
            for sample in family.samples
            if sample.labels.get("application") == app.name
        }
        return found if "ray_serve_warm_ready" in found else {}

    found = wait_until("the gauge is exported", exported_late)

    assert found["ray_serve_warm_ready"] == 1.0
    assert found["ray_serve_warm_ready_seconds"] == report["elapsed_s"]
