# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An artifact for two batch sizes, to which the handler pads each request."""

import torch
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Scorer(WarmupMixin):
    def __init__(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.model = serve_warm.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(rows,)) for rows in ([[1.5] * 4], [[2.5] * 4] * 4)]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        if not 0 < len(rows) <= 8 or {len(row) for row in rows} != {4}:
            raise ValueError("between 1 and 8 rows of 4 numbers")
        batch = torch.zeros(2 if len(rows) <= 2 else 8, 4)
        batch[: len(rows)] = torch.tensor(rows)
        with torch.inference_mode():
            return self.model(batch)[: len(rows)].tolist()


app = Scorer.bind()

ROW = {
    "artifact": True,
    "kind": "first_request",
    "quiet": True,
    "requests": [("score", [[[0.5, 1, 2, 3]] * count]) for count in (1, 2, 3, 8)],
}
