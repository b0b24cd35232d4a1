# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a replica with `record: values` answers to `serve-warm plan`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import serve
from ray.serve import context as serve_context
from ray.serve._private.config import DeploymentConfig

import serve_warm
from compiled import fresh
from levels import forget_callables
from ray_exports import Exports
from serve_warm import Input, WarmupMixin, warmup
from serve_warm.compiler import eager_calls
from serve_warm.compiler.watch import watch_process
from serve_warm.learn.recorded_requests import OF_REQUESTS
from serve_warm.precompile import SESSION
from serve_warm.replica.serve.deployment import replica_of


class Recording(WarmupMixin):
    def __init__(self) -> None:
        self.model = serve_warm.compile(fresh(lambda x: x + 1), backend="eager", dynamic=False)

    def score(self, size: int, weight: Any) -> int:
        return int(self.model(torch.ones(size)).sum())

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(2, 1.5))]


@pytest.fixture(name="replica")
def replica_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    class Context:
        app_name, deployment, replica_tag = "app", "Recording", f"Recording#{tmp_path.name}"
        _deployment_config = DeploymentConfig()

    forget_callables()
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(serve, "get_replica_context", Context)
    monkeypatch.setattr(logging.getLogger("serve_warm"), "parent", logging.getLogger())
    monkeypatch.setenv("SERVE_WARM_STATE_DIR", str(tmp_path / "state"))
    Exports(monkeypatch)
    kind: Any = type("Recording", (Recording,), {})
    instance = warmup(record="values")(kind)()
    yield instance
    replica_of(instance)._shown.heartbeat.stop()  # type: ignore[union-attr]
    seen = watch_process()
    seen.on_event = seen.forbidden = None
    eager_calls.answer_from_now_on(None)
    SESSION.recorder = None


async def ask(instance: Any, *args: Any) -> Any:
    """Call `score` as a request of Serve does."""
    context = serve_context._get_serve_request_context()
    made = dataclasses.replace(context, request_id="a request")

    async def asked() -> Any:
        serve_context._serve_request_context.set(made)
        return instance.score(*args)

    return await asyncio.create_task(asked())


def test_a_plan_is_told_which_requests_were_not_recorded(replica: Any):
    """Otherwise a person only sees that values are missing."""

    async def serving() -> None:
        await replica.reconfigure(None, rank=0)
        await ask(replica, 3, 1.5)
        await ask(replica, 4, float("nan"))
        replica.score(5, 1.5)  # no request of Serve

    asyncio.run(serving())

    found = replica.warmup_recorded()
    assert [each["arguments"]["args"] for each in found["requests"]] == [[3, 1.5]]
    assert found["not_recorded"] == {f"{OF_REQUESTS}a number is not finite": 1}
