# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The README's application before the change: it names no serve_warm and declares no inputs."""

from typing import Any

import torch
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Scorer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Embedding(100, 8), torch.nn.Linear(8, 8, bias=False), torch.nn.GELU()
        )
        self.model = torch.compile(model.eval(), dynamic=False)

    async def __call__(self, request: Request) -> Any:
        rows = await request.json()
        length = 16 if max(map(len, rows)) <= 16 else 64
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        with torch.inference_mode():
            return self.model(ids).sum(dim=(1, 2)).tolist()


app = Scorer.bind()
