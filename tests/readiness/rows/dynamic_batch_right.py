# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: one dynamic graph for all batches of two or more, and a declared batch of one.

The handler refuses empty requests and rows of another width, so 0 is impossible and the feature
axis never differs. Every request that the handler accepts runs one of the two proven graphs, so a
warning about this application would be a false alarm.
"""

import torch
from ray import serve

import serve_warm


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Scorer(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
        self.model = serve_warm.compile(model.eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            serve_warm.Input(target=self.score, args=([[0.0] * 6] * n,), name=f"batch {n}")
            for n in (32, 9, 1)
        ]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        if not rows or any(len(row) != 6 for row in rows):
            raise ValueError("send one or more rows of six numbers")
        x = torch.tensor(rows, dtype=torch.float32)
        return await self.on_model_thread(self._run, x)

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).tolist()


app = Scorer.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [
        ("score", [[[1.0] * 6] * 2], {}),
        ("score", [[[2, 3, 4, 5, 6, 7]]], {}),
        ("score", [[[0.5] * 6] * 17], {}),
        ("score", [[[0.5] * 6] * 70], {}),
    ],
}
