# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Deployments that take a while for each request, with serve_warm and without it."""

# No `from __future__ import annotations`: Serve reads the annotation of `__call__`.

import asyncio

import torch
from ray import serve
from starlette.requests import Request

from serve_warm import Input, WarmupMixin

REQUEST_S = 0.3
"""Seconds that a request takes, so that requests are under way when a replica ends."""


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Plain:
    """POST / with a number → the number plus one."""

    def __init__(self) -> None:
        self.model = torch.nn.Identity()

    async def __call__(self, request: Request) -> dict[str, float]:
        number = float(await request.json())
        await asyncio.sleep(REQUEST_S)
        return {"sum": float(self.model(torch.tensor(number)) + 1)}


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Warmed(WarmupMixin, Plain.func_or_class):  # type: ignore[misc]
    """The same, with the mixin."""

    def __init__(self) -> None:
        self.model = torch.compile(torch.nn.Identity(), backend="eager")

    def warmup_inputs(self) -> Input:
        return Input(target="POST /", json=1)
