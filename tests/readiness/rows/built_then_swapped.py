# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A new `user_config` replaces a model whose code came from an artifact."""

import torch
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Scorer(WarmupMixin):
    def __init__(self):
        self.model = serve_warm.compile(nn.Linear(4, 2).eval(), dynamic=False)

    def reconfigure(self, user_config):
        if user_config.get("hidden"):
            net = nn.Sequential(nn.Linear(4, user_config["hidden"]), nn.ReLU())
            self.model = serve_warm.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(batch,), fixed=("batch",)) for batch in (2, 5)]

    async def score(self, batch: int) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.ones(batch, 4)).tolist()


app = Scorer.bind()

ROW = {
    "artifact": True,
    "kind": "first_request",
    "requests": [("score", [2]), ("score", [5])],
    "update": {"hidden": 3},
}
