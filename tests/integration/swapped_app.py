# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment whose `reconfigure` swaps the model, and which notes who compiles."""

from __future__ import annotations

import os
from typing import Any

import torch
from ray import serve
from ray.serve import context as serve_context
from torch import nn

from serve_warm import Input, WarmupMixin

BATCHES = (2, 5)


class Net(nn.Module):
    """Two layers, whose width and scale differ between models."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.scale = nn.Linear(4, width), nn.Linear(width, 3), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.relu(self.first(x)))) * self.scale


def wanted(config: dict[str, Any], batch: int) -> list[float]:
    """Return the answer of the uncompiled model of a configuration."""
    with torch.inference_mode():
        answer: torch.Tensor = Net(config["width"], config["scale"])(torch.ones(batch, 4))
    return answer.flatten().tolist()


@serve.deployment(
    name="Swapped",
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_timeout_s=0,
    max_ongoing_requests=32,
)
class Swapped(WarmupMixin):
    """Answers with the process that answered."""

    def __init__(self) -> None:
        self.compiled_by: list[str] = []
        # Serve pickles this class, and the handler has a lock.
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self.note_compile)

    def note_compile(self, _: Any) -> None:
        """Note the id of the request that compiles; empty for a replay."""
        self.compiled_by.append(serve_context._get_serve_request_context().request_id)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        net = Net(user_config["width"], user_config["scale"]).eval()
        self.model = torch.compile(net, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(batch,), size=batch) for batch in BATCHES]

    async def score(self, batch: int) -> tuple[int, list[float]]:
        return os.getpid(), await self.on_model_thread(self.answer, batch)

    def answer(self, batch: int) -> list[float]:
        with torch.inference_mode():
            answer: torch.Tensor = self.model(torch.ones(batch, 4))
        return answer.flatten().tolist()

    def told(self) -> tuple[int, list[str], dict[str, Any]]:
        """Return the process, who compiled there, and the report."""
        return os.getpid(), self.compiled_by, self.warmup_report()


app = Swapped.bind()
