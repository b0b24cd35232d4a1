# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""check_health scores the last identified request once more, next to a canary row.

Before traffic there is no such request, so the one call of check_health before READY returns at
once and compiles nothing. After the first request with an id, the next health check calls the
model with a batch of two. It compiles on the event loop, and the requests behind it wait.
"""

import asyncio

import torch
from ray import serve

import serve_warm

CANARY = [0.5] * 6


@serve.deployment(ray_actor_options={"num_cpus": 0}, health_check_period_s=1)
class Guarded(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 1)
        )
        self.model = torch.compile(model.eval(), dynamic=False)
        self.last = None

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.score, args=([0.0] * 6,), name="row")]

    async def check_health(self):
        if self.last is None:
            return
        with torch.inference_mode():
            found = self.model(torch.tensor([self.last, CANARY]))
        if not torch.isfinite(found).all():
            raise RuntimeError("the model returns no finite numbers")

    async def score(self, values: list[float], request_id: str | None = None) -> float:
        if len(values) != 6:
            raise ValueError("send six numbers")
        if request_id is not None:
            self.last = values
        with torch.inference_mode():
            return self.model(torch.tensor([values])).item()

    async def pause(self, seconds: float) -> str:
        await asyncio.sleep(min(seconds, 5.0))
        return "ok"


app = Guarded.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [
        ("score", [[0.1] * 6], {"request_id": "r-1"}),
        ("pause", [4.0], {}),
        ("score", [[0.2] * 6], {"request_id": "r-2"}),
    ],
}
