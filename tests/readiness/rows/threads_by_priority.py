# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Bulk requests set the number of torch threads for the duration of the call.

Dynamo's global guard covers torch.get_num_threads(). Warm-up and proof run with the thread count
of the process, because the declared input has the default priority. The first bulk request has
the same shapes, dtypes and modes, and still compiles.
"""

import torch
from ray import serve

import serve_warm

BULK_THREADS = 3


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Scorer(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        self.model = torch.compile(model.eval(), dynamic=False)

    def warmup_inputs(self):
        rows = [[0.0] * 8 for _ in range(4)]
        return [serve_warm.Input(target=self.score, args=(rows,), name="four rows")]

    async def score(self, rows: list[list[float]], priority: str = "interactive") -> list[float]:
        if len(rows) != 4 or any(len(row) != 8 for row in rows):
            raise ValueError("send four rows of eight numbers")
        return await self.on_model_thread(self._run, rows, priority)

    def _run(self, rows, priority):
        before = torch.get_num_threads()
        if priority == "bulk":
            torch.set_num_threads(BULK_THREADS)
        try:
            with torch.inference_mode():
                return self.model(torch.tensor(rows)).squeeze(1).tolist()
        finally:
            if priority == "bulk":
                torch.set_num_threads(before)


app = Scorer.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [
        ("score", [[[1.0] * 8] * 4], {}),
        ("score", [[[1.0] * 8] * 4], {"priority": "bulk"}),
    ],
    "env": {"OMP_NUM_THREADS": "1"},
}
