# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Every 64th request also flushes a buffer through a second compiled model, as one batch.

The replays of the declared input fill the buffer only a little, so the drift detector is never
called before READY. In traffic, the request that fills the buffer runs the detector inside its
own handler, and waits for the detector's first compile.
"""

import torch
from ray import serve

import serve_warm

FULL = 64


class Drift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 4)

    def forward(self, rows):
        found = self.project(rows)
        return (found.mean(0).abs() / (found.std(0) + 1e-6)).max()


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Monitored(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(torch.nn.Linear(8, 2).eval(), dynamic=False)
        self.drift = torch.compile(Drift().eval(), dynamic=False)
        self.rows = []
        self.last_drift = None

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.classify, args=([0.0] * 8,), name="row")]

    async def classify(self, values: list[float]) -> dict:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        return await self.on_model_thread(self._run, values)

    def _run(self, values):
        with torch.inference_mode():
            label = self.model(torch.tensor([values])).argmax(-1).item()
            self.rows.append(values)
            if len(self.rows) >= FULL:
                self.last_drift = self.drift(torch.tensor(self.rows)).item()
                self.rows.clear()
        return {"label": label, "drift": self.last_drift}


app = Monitored.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("classify", [[0.1 * (n % 7)] * 8], {}) for n in range(FULL)],
}
