# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse

import serve_warm


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Scorer(serve_warm.WarmupMixin):
    buckets = serve_warm.Buckets(batch=[1, 8], length=[16, 64])

    def __init__(self):
        torch.manual_seed(0)  # the weights are random, and the same in each replica
        model = torch.nn.Sequential(
            torch.nn.Embedding(1000, 64, padding_idx=0),
            torch.nn.Linear(64, 64, bias=False),
            torch.nn.GELU(),
        )
        self.model = serve_warm.compile(model.eval(), dynamic=False)

    def warmup_inputs(self):
        return serve_warm.shape_grid(self.score, self.buckets)

    async def __call__(self, request: Request):
        rows = await request.json()
        try:
            sizes = self.buckets.fit(batch=len(rows), length=max(map(len, rows), default=0))
        except serve_warm.errors.InputError as error:  # too many rows, or too long ones
            return PlainTextResponse(error.message, status_code=400)
        ids = torch.zeros(sizes["batch"], sizes["length"], dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        return (await self.score(ids))[: len(rows)]

    async def score(self, ids):
        with torch.inference_mode():
            return self.model(ids).sum(dim=(1, 2)).tolist()  # padding adds 0


app = Scorer.bind()
