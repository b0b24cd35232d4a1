# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions from numbers in batches, after Ray Serve's guide to dynamic request batching.

Differs: the vectorized model is a small network with random weights, and batches are padded to
sizes of three kinds. Compiles nothing.
"""

import torch
from ray import serve
from starlette.requests import Request

SIZES = (1, 4, 8)


@serve.deployment(max_ongoing_requests=32)
class Model:
    def __init__(self, width: int):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, width),
            torch.nn.LayerNorm(width),
            torch.nn.GELU(),
            torch.nn.Linear(width, 2),
        ).eval()

    @serve.batch(max_batch_size=max(SIZES), batch_wait_timeout_s=0.005)
    async def predict(self, rows: list[list[float]]) -> list[list[float]]:
        size = next(each for each in SIZES if each >= len(rows))
        values = torch.zeros((size, 8))
        values[: len(rows)] = torch.tensor(rows)
        with torch.inference_mode():
            return self.model(values)[: len(rows)].tolist()

    async def __call__(self, request: Request) -> list[float]:
        return await self.predict(await request.json())


app = Model.bind(width=64)
