# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
import torch
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Scorer:
    def __init__(self):
        torch.manual_seed(0)  # the weights are random, and the same in each replica
        model = torch.nn.Sequential(
            torch.nn.Embedding(1000, 64, padding_idx=0),
            torch.nn.Linear(64, 64, bias=False),
            torch.nn.GELU(),
        )
        self.model = torch.compile(model.eval(), dynamic=False)

    async def __call__(self, request: Request):
        rows = await request.json()
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        return await self.score(ids)

    async def score(self, ids):
        with torch.inference_mode():
            return self.model(ids).sum(dim=(1, 2)).tolist()  # padding adds 0


app = Scorer.bind()
