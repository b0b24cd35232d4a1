# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A `reconfigure` of a READY replica: what it changes is proven before it returns.

`tests/integration/test_swapped_model.py` does the same on Ray Serve, with clients.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import serve
from ray.serve import context as serve_context
from ray.serve._private.config import DeploymentConfig
from torch import nn

from ray_exports import Exports
from serve_warm import Input, WarmupMixin, warmup
from serve_warm.compiler import eager_calls
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import NotProven, ReplayFailed
from serve_warm.replica.serve.deployment import replica_of
from serve_warm.report import Stage


class Net(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, width), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Swapping(WarmupMixin):
    """Has a model of another width and scale after each update."""

    def __init__(self) -> None:
        self.asked, self.threshold = 0, 0.0
        self.swap({"width": 3})

    def swap(self, config: dict[str, Any]) -> None:
        net = Net(config["width"], config.get("scale", 2.0)).eval()
        self.model = torch.compile(net, backend="eager", dynamic=False)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self.threshold = user_config.get("threshold", 0.0)
        if "width" in user_config:
            self.swap(user_config)

    @torch.inference_mode()
    def score(self, batch: int) -> list[float]:
        out: torch.Tensor = self.model(torch.ones(batch, 4))
        return out.flatten().tolist()

    def warmup_inputs(self) -> list[Input]:
        self.asked += 1
        return [Input(target=self.score, args=(batch,)) for batch in (2, 5)]


class Replica:
    """A stand-in for Serve around one instance: updates, requests and what others see."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        self.stages: list[Stage] = []
        self._replica = replica_of(instance)

    async def start(self) -> None:
        await self.instance.reconfigure(None, rank=0)
        self._replica._warmup.observe([lambda report: self.stages.append(report.stage)])

    async def update(self, **config: Any) -> None:
        self.stages.clear()
        await self.instance.reconfigure(config, rank=0)

    async def request(self, batch: int, *, on_loop: bool = False) -> Any:
        """Call `score` as a request of Serve does: in its context, on another thread."""
        context = serve_context._get_serve_request_context()
        in_request = dataclasses.replace(context, request_id="a request")
        serve_context._serve_request_context.set(in_request)
        score = self.instance.score
        return await (score(batch) if on_loop else asyncio.to_thread(score, batch))

    async def quiet_request(self, batch: int, **how: bool) -> Any:
        """Return the answer to a request that compiles nothing."""
        before = watch_process().counts()
        answer = await asyncio.create_task(self.request(batch, **how))
        assert (watch_process().counts() - before).quiet
        return answer

    def run(self, **config: Any) -> None:
        """Start, and make one update."""

        async def serving() -> None:
            await self.start()
            await self.update(**config)

        asyncio.run(serving())

    @property
    def report(self) -> dict[str, Any]:
        return self.instance.warmup_report()


@pytest.fixture(name="make")
def make_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes a replica of a class; other settings go to `@warmup`."""

    class Context:
        app_name, deployment, replica_tag = "app", "Swapping", f"Swapping#{tmp_path.name}"
        _deployment_config = DeploymentConfig()

    torch._dynamo.reset()  # a model of another test has code of the same class
    made = []

    def make(kind: type = Swapping, **settings: Any) -> Replica:
        made.append(Replica(warmup(**settings)(kind)()))
        return made[-1]

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(serve, "get_replica_context", Context)
    monkeypatch.setattr(logging.getLogger("serve_warm"), "parent", logging.getLogger())
    monkeypatch.setenv("SERVE_WARM_STATE_DIR", str(tmp_path / "state"))
    Exports(monkeypatch)
    yield make
    for replica in made:
        replica._replica._shown.heartbeat.stop()
    seen = watch_process()
    seen.on_event = seen.forbidden = None
    eager_calls.answer_from_now_on(None)


@pytest.mark.parametrize("after_ready", ["count", "forbid"])
def test_a_swapped_model_compiles_before_reconfigure_returns(make, after_ready: str):
    """The first requests compile nothing, and get no 503; meanwhile, the replica is not READY."""
    replica = make(after_ready=after_ready)

    async def serving() -> list[float]:
        await replica.start()
        await replica.update(width=7)
        return await replica.quiet_request(2)

    assert len(asyncio.run(serving())) == 14
    assert [*dict.fromkeys(replica.stages)] == [Stage.REPLAYING, Stage.READY]
    report = replica.report
    assert (report["stage"], report["covered"]) == ("READY", {"expected": 2, "proven": 2})
    assert (report["after_ready"]["compiles"], report["events"]) == (0, [])
    assert replica.instance.asked == 2


class Widening(Swapping):
    """Has another input after an update."""

    def warmup_inputs(self) -> list[Input]:
        found = super().warmup_inputs()
        return found if self.asked == 1 else [*found, Input(target=self.score, args=(7,))]


@pytest.mark.parametrize(("kind", "lines"), [(Swapping, 0), (Widening, 1)])
def test_an_update_that_changes_what_was_varied_has_a_line(make, kind: type[Swapping], lines: int):
    replica = make(kind)
    replica.run(width=4)
    unvaried = replica.report["unvaried"]
    assert sum(line.startswith("the inputs again: code") for line in unvaried) == lines


def test_an_update_that_compiles_nothing_stays_ready(make):
    """A changed threshold costs one pass over the inputs, and no probe fails."""
    replica = make()
    replica.run(threshold=0.5)
    assert replica.instance.threshold == 0.5
    assert set(replica.stages) <= {Stage.READY}
    assert replica.report["covered"] == {"expected": 2, "proven": 2}


class Slow(Swapping):
    """Has the new model for a while before its `reconfigure` returns."""

    def __init__(self) -> None:
        self.swapped, self.may_return = threading.Event(), threading.Event()
        super().__init__()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        super().reconfigure(user_config)
        self.swapped.set()
        await asyncio.to_thread(self.may_return.wait)


class Whole(Slow):
    """torch raises for a model of one graph if it has compiled no frame."""

    def swap(self, config: dict[str, Any]) -> None:
        net = Net(config["width"], config.get("scale", 2.0)).eval()
        self.model = torch.compile(net, backend="eager", fullgraph=True, dynamic=False)


@pytest.mark.parametrize("kind", [Slow, Whole])
def test_requests_meanwhile_run_eagerly(kind: type, make, caplog: pytest.LogCaptureFixture):
    """They get right answers of the new model at once; none compiles."""
    replica = make(kind)

    async def serving() -> tuple[list[float], int]:
        await replica.start()
        update = asyncio.create_task(replica.update(width=7, scale=3.0))
        await asyncio.to_thread(replica.instance.swapped.wait)
        before = watch_process().counts()
        answer = await asyncio.create_task(replica.request(9))
        compiled = (watch_process().counts() - before).compiles
        replica.instance.may_return.set()
        await update
        return answer, compiled

    with caplog.at_level(logging.INFO, "serve_warm"):
        answer, compiled = asyncio.run(serving())

    with torch.inference_mode():
        wanted = replica.instance.model._orig_mod(torch.ones(9, 4)).flatten().tolist()
    assert (answer, compiled) == (pytest.approx(wanted), 0)
    assert "meanwhile, requests called" in caplog.text
    assert "forward (test_update.py:" in caplog.text


class Batched(Swapping):
    """Calls the model in the task of `@serve.batch`, whose context is that of the first call."""

    @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.001)
    async def score(self, batches: list[int]) -> list[list[float]]:
        with torch.inference_mode():
            return [self.model(torch.ones(batch, 4)).flatten().tolist() for batch in batches]

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="score", args=(2,))]


def test_a_batched_model_is_proven_again(make):
    """The task of `@serve.batch` compiles for a replayed input, also if requests began it."""
    replica = make(Batched)

    async def serving() -> list[float]:
        await replica.start()
        await asyncio.create_task(replica.request(2, on_loop=True))
        await replica.update(width=7)
        return await replica.quiet_request(2, on_loop=True)

    assert len(asyncio.run(serving())) == 14
    assert replica.report["covered"] == {"expected": 1, "proven": 1}


class Broken(Swapping):
    """Has a model after an update that no input fits."""

    def swap(self, config: dict[str, Any]) -> None:
        super().swap(config)
        if config["width"] == 7:
            self.model = torch.compile(nn.Linear(9, 9), backend="eager")


class Unsteady(Net):
    """Has code of its own, because torch runs it eagerly from the recompile limit on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.scale


class Raising(Swapping):
    """Calls its new model, and then raises."""

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self.swap({"width": 7})
        self.score(3)
        raise OSError("no such adapter")


def test_a_reconfigure_that_raises_fails_the_replica(make):
    """Serve replaces the replica; until then, its state names the error."""
    replica = make(Raising)
    with pytest.raises(OSError, match="no such adapter"):
        replica.run(width=7)
    seen = watch_process()
    assert replica.report["stage"] == "FAILED"
    assert "no such adapter" in replica.report["error"]
    assert seen.on_event is not None
    assert (seen.on_begin, eager_calls.answers) == (None, None)


def test_an_update_during_another_one_waits(make):
    """Serve may give a replica another rank at any time. Nothing is READY without a proof."""
    replica = make(Slow)

    async def serving() -> None:
        await replica.start()
        first = asyncio.create_task(replica.update(width=7))
        await asyncio.to_thread(replica.instance.swapped.wait)
        second = asyncio.create_task(replica.update(width=9))
        await asyncio.sleep(0)
        replica.instance.may_return.set()
        await asyncio.gather(first, second)
        assert len(await replica.quiet_request(2)) == 18

    asyncio.run(serving())

    assert replica.report["covered"] == {"expected": 2, "proven": 2}
    assert replica.instance.asked == 3


def test_a_failed_update_is_repaired_by_the_next_one(make):
    """The replica is READY only after a proof, and has no error of earlier updates."""
    replica = make(Broken)

    async def serving() -> list[str]:
        await replica.start()
        with pytest.raises(ReplayFailed, match="input 'score' failed"):
            await replica.update(width=7)
        assert "must have same reduction dim" in replica.report["error"]
        with pytest.raises(ReplayFailed):
            await replica.update(threshold=0.5)  # the model is still broken
        stages = [replica.report["stage"]]
        await replica.update(width=9)
        return [*stages, replica.report["stage"]]

    assert asyncio.run(serving()) == ["FAILED", "READY"]
    report = replica.report
    assert (report["error"], report["covered"]) == ("", {"expected": 2, "proven": 2})


class Changing(Swapping):
    """Compiles at every call after an update."""

    unsteady = False

    def swap(self, config: dict[str, Any]) -> None:
        super().swap(config)
        self.unsteady = config["width"] == 7

    def score(self, batch: int) -> list[float]:
        if self.unsteady:
            net = Unsteady(7, torch.rand(()).item())
            self.model = torch.compile(net, backend="eager", dynamic=False)
        return super().score(batch)


@pytest.mark.parametrize("on_unproven", ["serve", "fail"])
def test_an_update_that_cannot_be_proven_follows_the_policy(make, on_unproven: str):
    """As at a start: it serves with the reason, or fails."""
    replica = make(Changing, on_unproven=on_unproven)
    if on_unproven == "serve":
        replica.run(width=7)
        assert replica.report["stage"] == "READY"
        assert replica.report["degraded"][0].startswith("uncovered: 2 of 2 inputs are not proven")
    else:
        with pytest.raises(NotProven):
            replica.run(width=7)
        assert replica.report["stage"] == "FAILED"


def test_a_model_replaced_without_reconfigure_is_an_event_with_its_reason(
    make, caplog: pytest.LogCaptureFixture
):
    """The line does not say that the input is not declared, because it is."""
    replica = make()

    async def serving() -> None:
        await replica.start()
        replica.instance.swap({"width": 7})
        await asyncio.create_task(replica.request(2))

    with caplog.at_level(logging.WARNING, "serve_warm"):
        asyncio.run(serving())

    report = replica.report
    assert report["after_ready"]["compiles"] == 1
    assert "the application replaced or added it" in report["events"][0]["reason"]
    [line] = [line for line in caplog.messages if line.startswith("after ready")]
    assert "reconfigure()" in line
    assert "declare this input" not in line
