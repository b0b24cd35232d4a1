# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Deployments that keep seats, and modules that a seat cannot import."""

from __future__ import annotations

import os
from typing import Any

import torch
from ray import serve

from serve_warm import Input, WarmupMixin, preload


class Adder(WarmupMixin):
    """Answers with a sum, and tells what its process is."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1).eval()

    def warmup_inputs(self) -> Input:
        return Input(target=self.answer)

    async def answer(self) -> float:
        with torch.inference_mode():
            return float(self.model(torch.ones(1, 8)))

    async def process(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "threads": torch.get_num_threads()}


def bound(
    case: str,
    *,
    hook: bool = True,
    more: dict[str, str] | None = None,
    cpus: float = 0,
    tries: int = 1,
    **seats: Any,
) -> Any:
    """Return an application whose workers serve no other case."""
    variables = {"CASE": case, **(preload.hook_environment() if hook else {}), **(more or {})}
    deployment = serve.deployment(
        Adder,
        ray_actor_options={"num_cpus": cpus, "runtime_env": {"env_vars": variables}},
        graceful_shutdown_timeout_s=0,
        max_constructor_retry_count=tries,
        user_config={"warmup": {"seats": {"count": 1, **seats}}},
    )
    return deployment.bind()


scaled = bound("scaled")
