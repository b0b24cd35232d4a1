# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The artifact was built for batches of four requests, and a request comes alone."""

import torch
from ray import serve

import serve_warm


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Batched(serve_warm.WarmupMixin):
    def __init__(self):
        self.model = serve_warm.compile(torch.nn.Linear(6, 2).eval(), dynamic=False)

    def warmup_inputs(self):
        return [serve_warm.Input(target="score", args=([0.0] * 6,), concurrency=4)]

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.05)
    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


app = Batched.bind()

ROW = {
    "artifact": True,
    "kind": "narrow",
    "requests": [("score", [[1.0] * 6])],
    "says": r"batches of requests to score, always 4 of at most 4",
}
