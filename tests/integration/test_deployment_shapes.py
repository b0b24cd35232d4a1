# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Every shape that a Serve deployment can have is warmed up, and works as it did without us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from ray import serve
from ray.serve._private import constants as serve_constants

from conftest import App, Cluster, wait_until
from integration import apps as shapes
from serve_warm import WarmupMixin, warmup
from serve_warm.errors import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.long]

PASSES = 3
"""Compile, quiet, proof. After calls with other values, there is one more."""


@pytest.fixture(scope="module")
def apps(cluster: Cluster) -> Iterator[dict[str, App]]:
    """One application of each shape. All start at once, to use two cores well."""
    handlers = shapes.Handlers.options(
        name="Renamed", user_config={"warmup": {"on_unproven": "fail"}}
    )
    started = cluster.start(
        {
            "handlers": handlers.bind(0.5, ids=("large", "small")),
            "sync": shapes.SyncHandlers.bind(),
            "one_thread": shapes.OneThread.bind(),
            "routes": shapes.Routes.bind({"values": [1.0, 2.0]}),
            "decorated": shapes.Decorated.bind(1.0),
            "decorated_routes": shapes.DecoratedRoutes.bind(1.0),
            "inherited": shapes.Inherited.options(
                user_config={"scale": 3, "warmup": {"max_level": 2}}
            ).bind(),
            "behind_mixin": shapes.BehindMixin.bind(),
            "sync_configured": shapes.sync_configured,
            "unwanted_config": shapes.Embedder.options(user_config={"scale": 3}).bind(),
        }
    )
    yield started
    cluster.delete(started)


def values(notes: list[dict[str, Any]], key: str) -> list[Any]:
    """Return the values noted under `key`, in order."""
    return [note[key] for note in notes if key in note]


# --- plain classes ----------------------------------------------------------------------------


def test_every_input_of_every_kind_of_handler_is_proven(apps):
    """Async methods, batches, generators, streams, multiplexed models, HTTP: all are covered.

    `.options(name=...)` changes the name in the report. The async constructor got the arguments.
    """
    app = apps["handlers"].ready()
    report = app.report()

    assert report["deployment"] == "Renamed"
    assert app.call("embed", torch.ones(4)).tolist() == [4.5] * 4
    assert report["covered"] == {"expected": 7, "proven": 7}
    assert report["degraded"] == []
    # Its batches are declared in one size, and traffic forms the others too.
    assert "batches of requests to batched, always 4 of at most 4" in report["narrow"]


@pytest.mark.parametrize(
    ("noted", "expected"),
    [("request", ["Request"]), ("batch", [4]), ("ended", ["stream", "http"])],
    ids=["HTTP is a Starlette request", "calls form a batch", "streams run to their end"],
)
def test_handlers_are_called_as_by_traffic(apps, noted: str, expected: list[Any]):
    """In each pass: requests, a `@serve.batch` of the declared size, and generators."""
    notes = values(apps["handlers"].ready().call("noted"), noted)

    assert notes[: PASSES * len(expected)] == expected * PASSES


def test_multiplexed_model_ids_reach_handler_and_loader(apps):
    """The handler sees the input's model id, and each model is loaded once and stays loaded."""
    app = apps["handlers"].ready()

    app.call("with_model", torch.ones(4), multiplexed_model_id="large")

    notes = app.call("noted")
    assert values(notes, "asked_for_model") == ["large", "small"] * (PASSES + 1) + ["large"]
    assert values(notes, "loaded") == ["large", "small"]


def test_requests_like_the_inputs_compile_nothing(apps):
    """After ready, the declared calls through Serve's handles and proxy meet compiled code."""
    app = apps["handlers"].ready()
    x = torch.ones(4)

    embedded = app.call("embed", x)
    answer = app.post(json={"values": [1.0] * 4})
    streamed = list(app.handle.options(stream=True).stream.remote(x))
    batched = [pending.result() for pending in [app.handle.batched.remote(x) for _ in range(4)]]

    assert embedded.tolist() == [4.5] * 4
    assert answer.json() == [3.5] * 4
    assert streamed == [3.0, 4.0, 5.0]
    assert [row.tolist() for row in batched] == [[3.0] * 4] * 4
    assert app.report()["after_ready"]["compiles"] == 0
    assert app.report()["warmup"]["compiles"] > 0


# --- sync handlers ----------------------------------------------------------------------------


def sync_calls_have_threads() -> bool:
    """Return whether Serve gives each call of a `def` a thread; else it runs on the user's loop.

    Asked of Ray's own constant, which replicas read from the same environment as this process.
    False until Ray 2.57 unless it is set, and true since.
    """
    return bool(getattr(serve_constants, "RAY_SERVE_RUN_SYNC_IN_THREADPOOL", False))


def test_sync_handlers_are_warm_and_warned_about(apps):
    """A `def` handler gets ready; a warning says what many threads risk and how to end that.

    Code that was compiled from one thread serves the threads of later requests.
    """
    app = apps["sync"].ready()
    answer = requests.get(app.url + "?length=4", timeout=400).json()
    report = app.report()

    assert answer == [3.0] * 4
    assert report["after_ready"]["compiles"] == 0
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert len(report["warnings"]) == sync_calls_have_threads()
    for warning in report["warnings"]:
        assert "sync handler" in warning
        assert "async def" in warning
        assert "await self.on_model_thread(" in warning


def test_sync_generators_run_to_their_end_where_serve_runs_them(apps):
    """A plain generator is run to its end, and on the loop only where Serve does that."""
    app = apps["sync"].ready()
    notes = app.call("noted")

    assert values(notes, "ended") == ["stream"] * (PASSES + 1)
    on_loop = app.call("loop_thread") in values(notes, "thread")
    assert on_loop is not sync_calls_have_threads()


# --- FastAPI ----------------------------------------------------------------------------------


def test_routes_are_replayed_through_the_app(apps):
    """`async def` routes run on the loop. `def` routes do not, which is warned about.

    Requests of the inputs' shapes, sent through Serve's proxy, run compiled code.
    """
    app = apps["routes"].ready()
    answers = [app.post(path, json={"values": [1.0, 2.0]}).json() for path in ("/async", "/sync")]
    notes = app.call("noted")
    loop = app.call("loop_thread")
    threads = {route: set() for route in ("async", "sync")}
    for note in notes:
        if "route" in note:
            threads[note["route"]].add(note["thread"])

    report = app.report()
    assert answers == [[3.0, 6.0]] * 2
    assert report["after_ready"]["compiles"] == 0
    assert report["covered"] == {"expected": 3, "proven": 3}
    assert threads["async"] == {loop}
    assert loop not in threads["sync"]
    [warning] = report["warnings"]
    assert "sync handler" in warning
    assert "async def" in warning


def test_streaming_routes_are_replayed_with_query_and_headers(apps):
    """A route gets the query string and headers of its input, and its stream is read to the end."""
    notes = apps["routes"].ready().call("noted")

    ended = [note for note in notes if "ended" in note]
    assert ended[:PASSES] == [{"ended": 3, "client": "warm-up"}] * PASSES


# --- the model thread, and warm_up() called by hand -------------------------------------------


def test_the_model_thread_makes_all_compiled_calls(apps):
    """Warm-up and traffic call the model from one thread, which is not the loop's."""
    app = apps["one_thread"].ready()

    pending = [app.handle.embed.remote(torch.full((4,), float(i))) for i in range(8)]
    answers = [p.result().tolist() for p in pending]

    threads = set(values(app.call("noted"), "thread"))
    assert answers == [[3.0 * i] * 4 for i in range(8)]
    assert len(threads) == 1
    assert set(app.report()["threads"]) == threads
    assert app.call("loop_thread") not in threads
    assert app.report()["after_ready"]["compiles"] == 0


def test_there_is_one_warm_up_whoever_asks_for_it(apps):
    """Two callers in `__init__` and the hook share one warm-up. Only the hook makes it ready.

    Later, `warm_up()` from a handle or from another event loop is answered with the same start.
    """
    app = apps["one_thread"].ready()

    reports = [*app.call("joined"), app.report()]
    reports += [app.call("warm_up"), app.call("warm_up_on_another_loop")]

    assert len(values(app.call("noted"), "asked_for_inputs")) == 1
    assert len({report["started_unix"] for report in reports}) == 1
    assert [report["stage"] for report in reports] == ["PROVING"] * 2 + ["READY"] * 3
    assert [report["covered"] for report in reports] == [{"expected": 1, "proven": 1}] * 5


# --- the decorator ----------------------------------------------------------------------------


def test_the_decorator_warms_up_a_class_with_bases_of_others(apps):
    """`@warmup` leaves constructor and reconfigure of the bases as they are, and proves inputs."""
    app = apps["decorated"].ready()

    assert app.call("embed", torch.ones(4)).tolist() == [5.0] * 4
    assert values(app.call("noted"), "offset") == [2.0]
    assert app.report()["covered"] == {"expected": 1, "proven": 1}
    assert app.report()["after_ready"]["compiles"] == 0


def test_the_decorator_takes_settings_and_routes(apps):
    """`@warmup(after_ready="forbid")` below `@serve.ingress` replays routes and is obeyed."""
    app = apps["decorated_routes"].ready()

    declared = app.post("/embed", json={"values": [1.0, 1.0]})
    undeclared = app.post("/embed", json={"values": [1.0, 1.0, 1.0]})
    again = app.post("/embed", json={"values": [2.0, 1.0]})

    assert (declared.status_code, declared.json()) == (200, [4.0, 4.0])
    assert undeclared.status_code == 503
    assert "must not compile after it is ready" in undeclared.text
    assert "float32[3]" not in undeclared.text  # nobody's business
    assert (again.status_code, again.json()) == (200, [7.0, 4.0])
    assert app.report()["after_ready"]["compiles"] == 0
    assert [event["kind"] for event in app.report()["events"]] == ["forbidden"]


@pytest.mark.parametrize(
    ("decorated", "fix"),
    [
        (shapes.Embedder, "below @serve.deployment"),
        (shapes.Routes.func_or_class, "below @serve.ingress"),
        (shapes.triple, "make it a class"),
    ],
)
@pytest.mark.parametrize("decorate", [warmup, warmup(max_level=2)], ids=["bare", "called"])
def test_the_decorator_in_the_wrong_place_says_the_right_one(decorated, fix, decorate):
    """Above `@serve.deployment` or `@serve.ingress`, or on a function: a sentence and a fix."""
    with pytest.raises(ConfigError, match=fix) as raised:
        decorate(decorated)

    assert raised.value.message.count("\n") == 0


# --- reconfigure ------------------------------------------------------------------------------


def test_the_mixin_defines_nothing_that_changes_what_serve_does():
    """No `__init__`, `__call__`, `check_health` or `reconfigure` comes with the mixin."""
    defined = set(vars(WarmupMixin))

    assert not defined & {"__init__", "__call__", "check_health", "reconfigure"}


def test_reconfigure_is_called_through_its_whole_family_before_the_inputs(apps):
    """Async, rank-aware, with `super()` in two steps: each gets the config without our key."""
    notes = apps["inherited"].ready().call("noted")

    config = {"scale": 3}
    assert notes[:4] == [
        {"base": config},
        {"ranked": config, "has_rank": True},
        {"own": config},
        {"asked_for_inputs": True},
    ]
    assert len(values(notes, "own")) == 1


def test_rank_aware_reconfigure_of_a_base_behind_the_mixin_is_called(apps):
    """The mixin stands first and hides nothing; Serve passes None where there is no config.

    The same holds for a FastAPI class, and each is called once.
    """
    notes = apps["behind_mixin"].ready().call("noted")
    of_ingress = apps["routes"].ready().call("noted")

    assert notes == [{"base": None}, {"ranked": None, "has_rank": True}]
    asked = [n for n in of_ingress if "reconfigured" in n]
    assert asked == [{"reconfigured": None, "has_rank": True}]


def test_sync_reconfigure_runs_where_serve_runs_it(apps):
    """Serve's own place for a `def reconfigure`; the config comes without our key.

    `self.reconfigure(...)` in `__init__` or a handler runs at once and returns its value.
    """
    app = apps["sync_configured"].ready()
    notes = app.call("noted")

    (called,) = [n for n in notes if n.get("config") == {"scale": 1}]
    loop = app.call("loop_thread")
    assert (called["thread"] == loop) is not sync_calls_have_threads()
    assert notes[0] == {"config": {"from": "__init__"}, "thread": loop}
    assert app.call("what_it_returned") == "returned"


def test_reconfigure_is_not_called_without_user_config(apps):
    """If `reconfigure` has no parameter `rank`, the class behaves as in plain Serve."""
    notes = apps["sync"].ready().call("noted")

    assert values(notes, "reconfigured") == []


def test_user_config_with_other_keys_needs_reconfigure(apps):
    """Without a `reconfigure` method the deployment fails, as without serve_warm."""
    message = apps["unwanted_config"].failed()

    assert "RayServeException" in message
    assert "user_config has ['scale']" in message
    assert "no reconfigure method" in message


# --- local testing mode -----------------------------------------------------------------------


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give back the variables that a warm-up in this process sets."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.usefixtures("local")
def test_local_testing_mode_does_not_gate():
    """`serve.run(..., _local_testing_mode=True)` warms up nothing until it is asked to."""
    handle = serve.run(shapes.Embedder.bind(), name="local", _local_testing_mode=True)

    before = list(handle.noted.remote().result())
    report = handle.warm_up.remote().result()

    assert before == []
    assert report["stage"] == "READY"
    assert report["covered"] == {"expected": 2, "proven": 2}


@pytest.mark.usefixtures("local")
def test_local_testing_mode_calls_the_users_reconfigure():
    """The class gets its config there too, without our key."""
    handle = serve.run(shapes.sync_configured, name="local", _local_testing_mode=True)

    def configs() -> list[Any]:
        return values(handle.noted.remote().result(), "config")

    # Serve does not wait for reconfigure there.
    wait_until("reconfigure is called", lambda: len(configs()) > 1)

    assert configs() == [{"from": "__init__"}, {"scale": 1}]
