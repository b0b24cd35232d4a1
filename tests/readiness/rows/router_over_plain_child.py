# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A router has the mixin and the input, and the deployment with the model has neither.

The replay of the router goes to one of the two replicas of Ranker and makes that one compile.
The other replica is RUNNING and cold. The router has no compiled code of its own, so its proof
says nothing about Ranker, and the first user who is routed to the cold replica waits.
"""

import torch
from ray import serve

import serve_warm


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})
class Ranker:
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        self.model = torch.compile(model.eval(), dynamic=False)

    async def rank(self, rows: list[list[float]]) -> list[int]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).squeeze(1).argsort().tolist()


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Router(serve_warm.WarmupMixin):
    def __init__(self, ranker):
        self.ranker = ranker

    def warmup_inputs(self):
        rows = [[0.0] * 8 for _ in range(3)]
        return [serve_warm.Input(target=self.rank, args=(rows,), name="three rows")]

    async def rank(self, rows: list[list[float]]) -> list[int]:
        if len(rows) != 3 or any(len(row) != 8 for row in rows):
            raise ValueError("send three rows of eight numbers")
        return await self.ranker.rank.remote(rows)


app = Router.bind(Ranker.bind())

ROW = {
    "blind": True,
    "kind": "no_compiled_code",
    "requests": [("rank", [[[float(row)] * 8 for row in range(3)]], {})] * 8,
}
