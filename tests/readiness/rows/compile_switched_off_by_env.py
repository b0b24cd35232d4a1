# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A variable of the app, left over from a staging environment, switches torch.compile off.

The source calls serve_warm.compile and declares inputs, but disable=True makes the call return
the eager model. None of torch's own switches (TORCH_COMPILE_DISABLE, stances) is set. So nothing
is compiled, all inputs run without a compile, and READY proves nothing.
"""

import os

import torch
from ray import serve

import serve_warm


class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(8, 16)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))).squeeze(-1)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Scoring(serve_warm.WarmupMixin):
    buckets = serve_warm.Buckets(batch=[1, 4])

    def __init__(self):
        torch.manual_seed(0)
        off = os.environ.get("SCORER_COMPILE", "1") == "0"
        self.model = serve_warm.compile(Scorer().eval(), dynamic=False, disable=off)

    def warmup_inputs(self):
        return [
            serve_warm.Input(target=self.score, args=([[0.0] * 8] * n,), name=f"batch {n}")
            for n in (4, 1)
        ]

    async def score(self, rows: list[list[float]]) -> list[float]:
        x = torch.zeros(self.buckets.fit(batch=len(rows))["batch"], 8)
        x[: len(rows)] = torch.tensor(rows)
        return await self.on_model_thread(self._run, x, len(rows))

    def _run(self, x, count):
        with torch.inference_mode():
            return self.model(x)[:count].tolist()


app = Scoring.bind()

ROW = {
    "blind": True,
    "kind": "no_compiled_code",
    "requests": [("score", [[[1.0] * 8, [2.0] * 8]], {})],
    "env": {"SCORER_COMPILE": "0"},
}
