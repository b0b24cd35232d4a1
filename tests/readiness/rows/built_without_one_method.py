# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The artifact has the inputs of one method, and requests call another one, too."""

import torch
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Search(WarmupMixin):
    def __init__(self):
        self.embed_net = serve_warm.compile(nn.Linear(4, 8).eval(), dynamic=False)
        self.rank_net = serve_warm.compile(nn.Linear(8, 1).eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.embed, args=(1.5,))]

    async def embed(self, value: float) -> list[float]:
        with torch.inference_mode():
            return self.embed_net(torch.full((4,), value)).tolist()

    async def rank(self, value: float) -> float:
        with torch.inference_mode():
            return self.rank_net(torch.full((8,), value)).item()


app = Search.bind()

ROW = {
    "artifact": True,
    "kind": "narrow",
    "requests": [("embed", [0.5]), ("rank", [0.5])],
    "says": "rank_net is compiled, and no input calls it",
}
