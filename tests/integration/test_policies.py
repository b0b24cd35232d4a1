# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica does when traffic is not as declared, and with the kill switch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import App, Cluster, wait_until
from integration import apps as shapes
from serve_warm import node
from serve_warm.cli import observed
from serve_warm.cli.observed import Observed

pytestmark = [pytest.mark.ray, pytest.mark.long]


def embedder(*lengths: int, **settings: Any) -> Any:
    """Return an `Embedder` that is warmed up for `lengths`, with `settings` in its user_config."""
    configured = shapes.Embedder.options(user_config={"warmup": settings})
    return configured.bind(lengths or (1, 2))


@pytest.fixture(scope="module")
def apps(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, App]]:
    """One application for each policy. All start at once."""
    store = str(tmp_path_factory.mktemp("empty") / "store")
    off = {"num_cpus": 0, "runtime_env": {"env_vars": {"SERVE_WARM_ENABLED": "false"}}}
    started = cluster.start(
        {
            "count": embedder(),
            "off by user_config": embedder(enabled=False, artifact=store, on_missing="fail"),
            "off by environment": shapes.Embedder.options(ray_actor_options=off).bind(),
        }
    )
    yield started
    cluster.delete(started)


# --- traffic that was not declared ------------------------------------------------------------


def test_an_undeclared_shape_is_counted_with_reason_and_signature(cluster, apps):
    """`after_ready: count`: it is answered, and the report names the guard and the input.

    `serve-warm status` shows it with its reason, and the replica as ready as it is.
    """
    app = apps["count"].ready()
    answer = app.post(json={"values": [1.0] * 5})

    def shown() -> Observed | None:
        look = observed.of_directory(str(cluster.state_dir)).of(app.name, ())
        return next((each for each in look.living if "after ready" in each.event), None)

    seen = wait_until("the state file says so", shown)

    report = app.report()
    (event,) = report["events"]
    assert answer.json() == {"values": [3.0] * 5}
    assert report["after_ready"]["compiles"] == 1
    assert (event["kind"], event["signature"]) == ("recompile", "x=float32[5]")
    assert "size mismatch" in event["reason"]
    assert event["function"].startswith("triple (apps.py:")
    assert (seen.condition, seen.stage, seen.verdict) == ("warm", "READY", "off")
    assert seen.inputs_done == seen.inputs_expected > 0
    assert re.match(r"after ready: \d compiles, last: recompile of triple \(apps\.py:", seen.event)


# --- the kill switch --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["off by user_config", "off by environment"])
def test_the_kill_switch_leaves_the_replica_as_without_us(cluster, apps, where):
    """`enabled: false`: no inputs asked for, caches not moved, compiled when called.

    The state file says READY, so the replica does not take its node out.
    """
    app = apps[where].ready()

    def ready_state() -> dict[str, Any] | None:
        found = [s for s in node.read_states(cluster.state_dir) if s["application"] == app.name]
        return next((state for state in found if state["stage"] == "READY"), None)

    answer = app.post(json={"values": [1.0] * 2})
    state = wait_until("the state file says so", ready_state)

    report = app.report()
    assert (state["verdict"], state["inputs_expected"]) == ("off", 0)
    assert answer.json() == {"values": [3.0] * 2}
    assert app.call("noted") == []
    caches = app.call("caches")
    assert caches["in __init__"] == []
    assert not any("/serve_warm-" in cache for cache in caches["now"])
    assert (report["stage"], report["verdict"]) == ("READY", "off")
    assert report["stages"] == []
    assert report["artifact_configured"] is False
    assert report["ready_unix"] > 0
    assert app.report()["elapsed_s"] == report["elapsed_s"] > 0


def test_caches_are_private_before_user_code_runs(apps):
    """Without the switch, the variables name a private directory already in `__init__`."""
    caches = apps["count"].ready().call("caches")

    assert len(caches["in __init__"]) == 2
    assert all("/serve_warm-" in cache for cache in caches["in __init__"])
    assert caches["now"] == caches["in __init__"]
