# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The mixin and the decorator on plain instances, without Serve around them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import serve

from compiled import compiled, double
from conftest import wait_until
from ray_exports import Exports
from serve_warm import Input, WarmupMixin, metrics, node, pinned, warmup
from serve_warm.compiler.imports import import_compiler
from serve_warm.config import WarmupConfig
from serve_warm.errors import ConfigError, InputError
from serve_warm.replica.serve.calls import CompileForbidden, ServeCalls
from serve_warm.replica.serve.deployment import ATTRIBUTE, replica_of
from serve_warm.report import CompileEvent
from serve_warm.trust.policy import Trust


class Model:
    """Somebody's class, with a __new__ of its own that calls no other."""

    def __new__(cls, size: int = 2) -> Any:
        return object.__new__(cls)

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.model = compiled(double)

    async def run(self) -> Any:
        return self.model(torch.ones(self.size))

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.run)]


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Give back the variables that a warm-up in this process sets."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))


def test_the_decorator_keeps_what_the_class_says():
    """Trust and settings of the class hold where the decorator says nothing about them."""

    class Pinned:
        warmup_trust = pinned(f"sha256:{64 * 'a'}")
        warmup_config = WarmupConfig(after_ready="forbid", artifact="./old")

    decorated = warmup(artifact="./artifacts")(Pinned)
    other = warmup(trust=Trust())(Pinned)

    assert decorated.warmup_trust == Pinned.warmup_trust
    assert decorated.warmup_config == WarmupConfig(after_ready="forbid", artifact="./artifacts")
    assert other.warmup_trust == Trust()


def test_the_decorator_gates_a_class_with_its_own_new():
    """A __new__ that calls no super() is no way round the gate."""
    instance = warmup(Model)()
    assert ATTRIBUTE in instance.__dict__
    assert "reconfigure" in instance.__dict__


def test_the_mixin_passes_arguments_on_to_a_base_that_takes_them():
    class Mixed(WarmupMixin, Model):
        pass

    instance = Mixed(3)
    assert instance.size == 3
    assert ATTRIBUTE in instance.__dict__


def test_a_failed_warm_up_fails_whoever_asks_again():
    """Joining a start that has failed is no way to become ready."""
    instance = warmup(Model)()
    instance.warmup_inputs = list
    messages = []
    for _ in range(2):
        with pytest.raises(Exception, match="returned no inputs") as caught:
            asyncio.run(instance.warm_up())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"deadline_s": 5, "after_ready": "forbid"},
            "these settings take effect only in new replicas: ",
        ),
        ({"deadlin_s": 5}, "user_config.warmup is ignored"),
    ],
)
def test_a_later_setting_is_said_not_to_matter_yet(
    section: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
):
    """A light update changes nothing of a replica that serves, and a mistake in it stops none."""
    instance = warmup(Model)()
    asyncio.run(instance.warm_up())
    with caplog.at_level(logging.WARNING):
        asyncio.run(instance.reconfigure({"warmup": section}, rank=0))
    assert said in caplog.text
    assert all(name in caplog.text for name in section)


@pytest.mark.parametrize(
    ("wrong", "hint"), [("scor", "did you mean 'score'?"), ("zz", "its methods: __call__, score")]
)
def test_a_missing_target_is_answered_by_the_methods_of_the_author(wrong: str, hint: str):
    """The hint leaves out methods of the mixin, because no input calls them."""

    class Scorer(WarmupMixin):
        def warmup_inputs(self):
            return []

        def score(self): ...

        def __call__(self): ...

    with pytest.raises(InputError, match=f"has the target {wrong!r}") as raised:
        ServeCalls(Scorer()).check([Input(target=wrong)])

    assert raised.value.hint == hint


@pytest.mark.slow
def test_inputs_that_are_late_stop_running():
    """A `warmup_inputs()` that missed the deadline does not continue in a serving replica."""
    import_compiler()  # seconds, which are not to be part of the deadline
    ended = []

    class Late(Model):
        async def warmup_inputs(self) -> list[Input]:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)
            return []

    async def start() -> dict[str, Any]:
        report = await warmup(deadline_s=1, on_deadline="serve")(Late)().warm_up()
        await asyncio.sleep(0)
        return report

    report = asyncio.run(start())

    assert (report["stage"], report["verdict"]) == ("READY", "late")
    assert report["covered"]["expected"] == 0
    assert report["degraded"][0].startswith("late: warmup_inputs()")
    assert ended == [True]


def test_a_refusal_crosses_processes():
    """Serve pickles the exception of a request. The answer is the same, and quotes no argument."""
    what = {"kind": "forbidden", "function": "f (a.py:1)", "signature": "x=float32[3]"}
    event = CompileEvent(**what, reason="", seconds=0.0, thread=1, at_unix=0.0)
    there = pickle.loads(pickle.dumps(CompileForbidden(event)))
    assert there.message == CompileForbidden(event).message
    assert "f (a.py:1)" in there.message
    assert "x=float32[3]" not in there.message


TAGS = itertools.count(1)


class Context:
    """A stand-in for Serve's replica context. Each one is another replica."""

    app_name = "app"
    deployment = "Model"

    def __init__(self) -> None:
        self.replica_tag = f"Model#{next(TAGS)}"


class InReplica:
    """A stand-in for a replica process, with its context, state folder and exports."""

    def __init__(self, state: Path) -> None:
        self.context = Context()
        self.state = state
        self.made: list[Any] = []


@pytest.fixture(name="in_replica")
def in_replica_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InReplica]:
    """Be the process of a replica."""
    here = InReplica(tmp_path / "state")
    monkeypatch.setattr(serve, "get_replica_context", lambda: here.context)
    monkeypatch.setattr(logging.getLogger("serve_warm"), "parent", logging.getLogger())
    monkeypatch.setenv("SERVE_WARM_STATE_DIR", str(here.state))
    yield here
    for instance in here.made:
        replica_of(instance)._shown.heartbeat.stop()


@pytest.fixture(name="exports")
def exports_fixture(in_replica: InReplica, monkeypatch: pytest.MonkeyPatch) -> Exports:
    """Make instances as replicas of Serve, and return the metrics that Ray gets."""
    return Exports(monkeypatch)


@pytest.mark.usefixtures("exports")
@pytest.mark.parametrize("enabled", [True, False])
def test_an_artifact_is_pulled_while_init_runs(tmp_path: Path, enabled: bool):
    """The pull begins when Serve instantiates the class, unless it is switched off."""
    instance = warmup(Model, artifact=str(tmp_path), enabled=enabled)()
    prefetch = instance.__dict__[ATTRIBUTE]._prefetch
    assert (prefetch is not None) is enabled
    if enabled:
        prefetch.drop()


def test_nothing_is_prefetched_outside_of_serve(tmp_path: Path):
    """Locally, where nothing starts up, an instance with an artifact has no thread of ours."""
    decorated = warmup(artifact=str(tmp_path / "store"))(Model)
    before = threading.active_count()
    instance = decorated()
    assert instance.__dict__[ATTRIBUTE]._prefetch is None
    assert threading.active_count() == before


class Inner(WarmupMixin):
    """Another object to warm up."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"artefact": "./artifacts"}, "@warmup artefact is not a setting; did you mean"),
        ({"artifact": "s4://bucket"}, "@warmup artifact: unknown store scheme s4://"),
    ],
)
def test_a_wrong_keyword_of_the_decorator_is_refused_where_it_stands(settings, message):
    """The error is raised when the module is imported, not when the replica starts."""
    with pytest.raises(ConfigError) as refused:
        warmup(**settings)(Model)
    assert message in refused.value.message


@pytest.mark.parametrize("inner", [Inner, warmup(Model)], ids=["mixin", "decorator"])
def test_a_second_object_of_a_replica_is_refused(inner: type, in_replica: InReplica):
    """Serve would not wait for it, and the probe would know only one: ready, and half cold."""

    class Outer(WarmupMixin):
        def __init__(self) -> None:
            in_replica.made.append(self)
            self.inner = inner()

    with pytest.raises(ConfigError, match="already has a Outer to warm up") as caught:
        Outer()

    def states() -> list[dict[str, Any]]:
        return list(node.read_states(in_replica.state))

    wait_until("the first one writes", states)
    assert f"creates a {inner.__name__}, but already has a Outer to" in caught.value.message
    assert "declare all inputs in the warmup_inputs()" in caught.value.hint
    found = [(each["replica"], each["stage"]) for each in states()]
    assert found == [(in_replica.context.replica_tag, "PENDING")]


@pytest.mark.usefixtures("exports")
def test_a_loop_that_is_blocked_is_seen():
    """What the state says of the loop goes on while it runs, and stands while a handler blocks."""
    replica = warmup(Model, enabled=False)().__dict__[ATTRIBUTE]

    async def serving() -> list[float | None]:
        await replica.reconfigure(None, rank=None)
        first = replica._shown._facts()["loop_boot_s"]
        await asyncio.sleep(0.01)  # the loop runs
        second = replica._shown._facts()["loop_boot_s"]
        time.sleep(0.01)  # noqa: ASYNC251 - as a handler that blocks does
        return [first, second, replica._shown._facts()["loop_boot_s"]]

    before = replica._shown._facts()["loop_boot_s"]
    first, second, blocked = asyncio.run(serving())

    assert before is None
    assert second > first
    assert blocked == second


class Left:
    """Checks of which one call of this thread is left."""

    def __init__(self) -> None:
        self.kept = self
        self.checked_on: list[asyncio.AbstractEventLoop] = []
        self.done = asyncio.Event()

    def thread_of_next(self) -> int | None:
        return None if self.checked_on else threading.get_native_id()

    def idle_s(self) -> float:
        return math.inf

    def check_one(self) -> None:
        self.checked_on.append(asyncio.get_running_loop())
        self.done.set()


@pytest.mark.slow
def test_what_is_left_to_check_is_checked_on_the_loop_that_serves():
    """The checks run on Serve's loop after the replica is ready. Without checks, nothing waits."""
    replica = replica_of(warmup(Model)())

    async def ready() -> tuple[bool, list[bool]]:
        loop, checks = asyncio.get_running_loop(), Left()
        replica._check_when_idle(None, loop)
        replica._check_when_idle(checks, loop)
        at_once = checks.done.is_set()
        await asyncio.wait_for(checks.done.wait(), 60)
        return at_once, [each is loop for each in checks.checked_on]

    assert asyncio.run(ready()) == (False, [True])


def test_outside_of_serve_there_may_be_several():
    """A script or a test has as many as it likes."""
    first, second = Inner(), Inner()
    assert first.__dict__[ATTRIBUTE] is not second.__dict__[ATTRIBUTE]


def test_a_replica_began_when_it_was_created(in_replica: InReplica):
    """Its state says so, and its report; not when the first state was written."""
    instance = warmup(Model)()
    in_replica.made.append(instance)
    (state,) = wait_until("it writes", lambda: list(node.read_states(in_replica.state)))
    assert state["began_boot_s"] == instance.__dict__[ATTRIBUTE].report().created_boot_s


@pytest.mark.parametrize(
    ("settings", "stages"),
    [({}, ["PROVING", "PROVING", "READY"]), ({"enabled": False}, ["PENDING", "PENDING", "READY"])],
    ids=["warm", "switched off"],
)
def test_nobody_is_told_ready_before_serves_own_hook(
    settings: dict[str, Any], stages: list[str], exports: Exports, tmp_path: Path
):
    """An `__init__` that awaits `warm_up()` has its proof, and continues with the rest."""

    class Awaiting(Model):
        async def __init__(self) -> None:
            super().__init__()
            self.report = await self.warm_up()

    def told() -> str:
        """Return the stage in the state file; the first write may have been under way before."""
        (file,) = wait_until("there is one", lambda: list((tmp_path / "state").glob("*.json")))
        for _ in range(2):
            before = file.read_text()
            instance.__dict__[ATTRIBUTE]._shown.heartbeat.changed()
            wait_until("it is written", lambda before=before: file.read_text() != before)
        return json.loads(file.read_text())["stage"]

    decorated = warmup(**settings)(Awaiting)
    instance = decorated.__new__(decorated)

    async def start() -> list[str]:
        await instance.__init__()
        before = told()
        assert 1.0 not in exports.values.get("serve_warm_ready", [])
        await instance.reconfigure(None, rank=0)
        return [instance.report["stage"], before, told()]

    assert asyncio.run(start()) == stages
    proven = 1 if instance.report["stage"] == "PROVING" else 0
    assert instance.report["covered"] == {"expected": proven, "proven": proven}


def test_metrics_are_exported_by_stages_and_not_by_inputs(exports: Exports):
    """A hundred replays and more of a start cost as many exports as it has stages, at most."""

    class Many(Model):
        def warmup_inputs(self) -> list[Input]:
            return [Input(target=self.run, name=f"input {number}") for number in range(40)]

    began_s = time.monotonic()
    instance = warmup(Many)()
    asyncio.run(instance.reconfigure(None, rank=0))
    wait_until("the last one is told", lambda: 1.0 in exports.values.get("serve_warm_ready", []))
    found = len(exports.values["serve_warm_ready"])
    by_themselves = (time.monotonic() - began_s) // metrics.PERIOD_S
    report = instance.warmup_report()
    assert report["passes"] * report["covered"]["proven"] >= 120
    # PENDING, REPLAYING, PROVING, READY: each is a set of the gauge, unless two fell together.
    assert found <= 4 + by_themselves
