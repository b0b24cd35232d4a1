# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica does when inputs, deadlines, artifacts or traffic are not as declared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration import apps as shapes
from serve_warm import node
from serve_warm.cli import observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import App, Cluster
    from serve_warm.cli.observed import Observed

pytestmark = [pytest.mark.ray, pytest.mark.long]

TOO_MANY = tuple(range(2, 14))
"""Twelve lengths, and torch keeps eight compiled variants of a function."""


def embedder(*lengths: int, **settings: Any) -> Any:
    """Return an `Embedder` that is warmed up for `lengths`, with `settings` in its user_config."""
    configured = shapes.Embedder.options(user_config={"warmup": settings})
    return configured.bind(lengths or (1, 2))


@pytest.fixture(scope="module")
def apps(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, App]]:
    """One application for each policy. All start at once."""
    store = str(tmp_path_factory.mktemp("empty") / "store")
    off = {"num_cpus": 0, "runtime_env": {"env_vars": {"SERVE_WARM_ENABLED": "false"}}}
    stuck = {"input_deadline_s": 10}
    started = cluster.start(
        {
            "too many, serve": embedder(*TOO_MANY),
            "count": embedder(max_passes=4),
            "forbid": embedder(after_ready="forbid"),
            "miss, fail": embedder(artifact=store, on_missing="fail"),
            "off by user_config": embedder(enabled=False, artifact=store, on_missing="fail"),
            "off by environment": shapes.Embedder.options(ray_actor_options=off).bind(),
            "deadline, fail": shapes.Stuck.options(user_config={"warmup": stuck}).bind(),
            "deadline, serve": shapes.Stuck.options(
                user_config={"warmup": {**stuck, "on_deadline": "serve"}}
            ).bind(),
            "guarded, serve": shapes.Guarded.bind(),
            "guarded, fail": shapes.Guarded.options(
                user_config={"warmup": {"on_uncovered": "fail"}}
            ).bind(),
            "pooled": shapes.Pooled.bind(),
            "little memory": shapes.LittleMemory.bind((1, 2, 3)),
        }
    )
    yield started
    cluster.delete(started)


# --- more inputs than torch keeps compiled ----------------------------------------------------


def test_inputs_above_the_recompile_limit_are_counted_and_explained(apps):
    """Torch runs them eagerly without a word; the report says how many, which, and the fix."""
    report = apps["too many, serve"].ready().report()

    unproven = [i for i in report["inputs"] if not i["proven"]]
    assert report["covered"] == {"expected": 12, "proven": 8}
    assert len(unproven) == 4
    assert all("recompile_limit=" in i["note"] for i in unproven)
    (degraded,) = report["degraded"]
    assert degraded.startswith("uncovered: 4 of 12 inputs are not proven warm")


def test_uncovered_inputs_are_served_by_default(apps):
    """With `on_uncovered: serve`, unproven inputs are still answered."""
    app = apps["too many, serve"].ready()

    answers = [app.post(json={"values": [1.0] * n}).json()["values"] for n in TOO_MANY]

    assert answers == [[3.0] * n for n in TOO_MANY]


# --- inputs that call nothing compiled --------------------------------------------------------


def test_an_input_that_a_guard_clause_answers_is_not_proven(apps):
    """The replica serves by default, and reports that it is not fully warm."""
    report = apps["guarded, serve"].ready().report()

    (unproven,) = [i for i in report["inputs"] if not i["proven"]]
    (degraded,) = report["degraded"]
    assert unproven["name"] == "length=1"
    assert "makes no compiled call" in unproven["note"]
    assert degraded.startswith("uncovered: 1 of 2 inputs are not proven warm; 'length=1'")


def test_an_input_that_a_guard_clause_answers_can_fail_the_start(apps):
    """`on_uncovered: fail`: Serve's own status names the input and what to do about it."""
    message = apps["guarded, fail"].failed()

    assert "'length=1' makes no compiled call" in message
    assert "do not declare this input" in message


def test_a_handler_with_a_thread_pool_is_proven_beside_a_busy_thread(apps):
    """Its calls are told from those of a thread that calls a model of its own all the time."""
    report = apps["pooled"].ready().report()

    assert report["covered"] == {"expected": 1, "proven": 1}
    assert report["degraded"] == []
    assert report["after_ready"]["compiles"] == 0


# --- an input that memory does not suffice for ------------------------------------------------


def test_an_input_that_lacks_memory_is_left_out_and_the_replica_serves(apps):
    """The others are proven and answered; its own requests fail, until there is memory."""
    app = apps["little memory"].ready()
    report = app.report()

    failed = app.post(json={"values": [1.0] * 3})
    served = app.post(json={"values": [1.0] * 2})
    app.call("make_room")
    later = app.post(json={"values": [1.0] * 3})

    assert report["covered"] == {"expected": 3, "proven": 2}
    assert [i["name"] for i in report["inputs"] if i["left_out"]] == ["length=3"]
    (degraded,) = report["degraded"]
    assert "1 of 3 inputs are not proven warm; 'length=3' left out because memory ran" in degraded
    assert failed.status_code == 500
    assert served.json() == {"values": [3.0] * 2}
    assert later.json() == {"values": [3.0] * 3}
    assert app.report()["after_ready"]["compiles"] == 1


# --- traffic that was not declared ------------------------------------------------------------


def test_user_config_with_our_key_alone_needs_no_reconfigure(apps):
    """A class without reconfigure takes `user_config: {warmup: ...}`, and is warm."""
    report = apps["count"].ready().report()

    assert not hasattr(shapes.Embedder.func_or_class, "reconfigure")
    assert report["covered"] == {"expected": 2, "proven": 2}


def test_an_undeclared_shape_is_counted_with_reason_and_signature(apps):
    """`after_ready: count`: it is answered, and the report names the guard and the input."""
    app = apps["count"].ready()

    answer = app.post(json={"values": [1.0] * 5})

    report = app.report()
    (event,) = report["events"]
    assert answer.json() == {"values": [3.0] * 5}
    assert report["after_ready"]["compiles"] == 1
    assert event["kind"] == "recompile"
    assert event["signature"] == "x=float32[5]"
    assert "size mismatch" in event["reason"]
    assert event["function"].startswith("triple (apps.py:")


def test_a_compile_in_traffic_is_seen_from_outside(cluster, apps):
    """`serve-warm status` shows it with its reason, and the replica as ready as it is."""
    app = apps["count"].ready()
    app.post(json={"values": [1.0] * 6})

    def shown() -> Observed | None:
        look = observed.of_directory(str(cluster.state_dir)).of(app.name, ())
        return next((each for each in look.living if each.event), None)

    seen = wait_until("the state file says so", shown)

    assert (seen.condition, seen.stage, seen.verdict) == ("warm", "READY", "off")
    assert seen.inputs_done == seen.inputs_expected > 0
    assert re.match(r"after ready: \d compiles, last: recompile of triple \(apps\.py:", seen.event)


def test_a_forbidden_compile_is_answered_503_and_breaks_nothing(apps):
    """With `after_ready: forbid`, undeclared shapes are refused, and declared shapes work."""
    app = apps["forbid"].ready()

    refused = app.post(json={"values": [1.0] * 5})
    declared = [app.post(json={"values": [1.0] * n}) for n in (1, 2, 1)]

    report = app.report()
    assert refused.status_code == 503
    assert "must not compile after it is ready" in refused.text
    assert [d.status_code for d in declared] == [200] * 3
    assert report["after_ready"]["compiles"] == 0
    assert [event["kind"] for event in report["events"]] == ["forbidden"]


# --- deadlines --------------------------------------------------------------------------------


def test_a_passed_deadline_fails_the_start_and_says_what_was_covered(apps):
    """`on_deadline: fail`: the text names the input that did not end and counts the others."""
    message = apps["deadline, fail"].failed()

    assert "WarmupTimeout: input 'never' did not finish within 10 s" in message
    assert "2 of 3 inputs were replayed" in message
    assert "on_deadline: serve" in message


def test_a_passed_deadline_can_be_served_late(apps):
    """`on_deadline: serve`: the replica answers, and is marked late and degraded."""
    app = apps["deadline, serve"].ready()

    answer = app.post(json={"values": [1.0, 1.0]})

    report = app.report()
    assert answer.json() == {"values": [3.0, 3.0]}
    assert report["verdict"] == "late"
    assert report["degraded"][0].startswith("late: input 'never' did not finish")
    assert report["covered"] == {"expected": 3, "proven": 0}


# --- no artifact ------------------------------------------------------------------------------


def test_an_empty_store_can_fail_the_start(apps):
    """`on_missing: fail`: the text says which policy, and that nothing is there."""
    message = apps["miss, fail"].failed()

    assert "verdict miss, and on_missing is 'fail'" in message


# --- the kill switch --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["off by user_config", "off by environment"])
def test_the_kill_switch_leaves_the_replica_as_without_us(apps, where):
    """`enabled: false`: no inputs asked for, caches not moved, compiled when called."""
    app = apps[where].ready()

    answer = app.post(json={"values": [1.0] * 2})

    report = app.report()
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


def test_the_kill_switch_does_not_take_a_node_out(cluster, apps):
    """The state file of such a replica says READY, and expects no inputs."""
    app = apps["off by user_config"].ready()

    def state() -> dict[str, Any]:
        found = [s for s in node.read_states(cluster.state_dir) if s["application"] == app.name]
        return found[0] if found and found[0]["stage"] == "READY" else {}

    said = wait_until("it is ready", state)

    assert (said["verdict"], said["inputs_expected"]) == ("off", 0)


def test_caches_are_private_before_user_code_runs(apps):
    """Without the switch, the variables name a private directory already in `__init__`."""
    caches = apps["count"].ready().call("caches")

    assert len(caches["in __init__"]) == 2
    assert all("/serve_warm-" in cache for cache in caches["in __init__"])
    assert caches["now"] == caches["in __init__"]
