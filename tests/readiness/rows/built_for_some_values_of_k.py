# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A number of the request is a size in the model, and the artifact has two of its values."""

import torch
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(4, 50)

    def forward(self, query, k: int):
        return self.table(query).topk(k).indices


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Search(WarmupMixin):
    def __init__(self):
        self.model = serve_warm.compile(Nearest().eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.search, args=(1.5, k)) for k in (5, 10)]

    async def search(self, value: float, k: int) -> list[int]:
        with torch.inference_mode():
            return self.model(torch.full((4,), value), k).tolist()


app = Search.bind()

ROW = {
    "artifact": True,
    "kind": "first_request",
    "requests": [("search", [0.5, 10]), ("search", [0.5, 7])],
    "says": "k, only 5 or 10",
}
