# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: `on_missing: eager` never turns a fleet eager that runs compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration.clients import Clients

if TYPE_CHECKING:
    from conftest import App, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

TARGET = ("integration.rollout_app:app", "Rolled")
REPLICAS = 3


def deploy(
    cluster: Cluster, policy: str, version: str, *, name: str = "", replicas: int = REPLICAS
) -> App:
    """Deploy a version of the application, or roll it out, without any artifact."""
    store = str(cluster.state_dir.parent / "nothing-was-built")
    settings: dict[str, Any] = {"artifact": store, "on_missing": policy, "after_ready": "eager"}
    return cluster.configure(
        *TARGET,
        {"warmup": settings},
        name=name,
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": {"VERSION": version}}},
    )


@pytest.mark.stress
def test_a_rollout_never_puts_an_eager_replica_beside_compiled_ones(cluster: Cluster):
    """A code change under eight clients, with three compiled replicas and no artifact for it."""
    app = deploy(cluster, "compile", "1").ready()
    answers: list[tuple[int, str, str, list[float]]] = []
    clients = Clients(lambda number: answers.append(tuple(app.call("score", 2 + number % 4))))
    try:
        wait_until("all have answers", lambda: clients.errors or len(answers) > 50)
        deploy(cluster, "eager", "2", name=app.name)

        def all_are_new() -> bool:
            latest = answers[-200:]
            new = {process for process, version, *_ in latest if version == "2"}
            old = any(version == "1" for _, version, *_ in latest)
            return bool(clients.errors) or (len(new) == REPLICAS and not old)

        wait_until("all replicas are new", all_are_new)
        report = app.report()
    finally:
        clients.stop()
        cluster.delete({app.name: app})

    assert clients.errors == []
    assert {verdict for _, _, verdict, _ in answers} == {"miss"}
    assert all(answer == [3.0] * len(answer) for *_, answer in answers)
    assert any(
        "runs compiled code" in each or "run compiled" in each for each in report["warnings"]
    )
    assert report["after_ready"]["compiles"] == 0


def test_a_first_deployment_is_eager_and_so_are_the_replicas_added_to_it(cluster: Cluster):
    app = deploy(cluster, "eager", "1", replicas=1).ready()
    try:
        assert app.call("score", 2)[2] == "eager"
        deploy(cluster, "eager", "1", name=app.name, replicas=2)
        verdicts: dict[int, str] = {}

        def two() -> bool:
            process, _, verdict, _ = app.call("score", 7)
            verdicts[process] = verdict
            return len(verdicts) == 2

        wait_until("both replicas have answered", two)
    finally:
        cluster.delete({app.name: app})
    assert set(verdicts.values()) == {"eager"}
