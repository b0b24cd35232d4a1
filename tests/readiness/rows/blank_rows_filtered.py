# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The handler drops blank rows, and a request can consist only of blank rows.

The model is compiled with dynamic=True and proven with batches of 8, 3 and 1, as the docs advise.
A request with only blank rows still calls the model, with a batch of 0. torch specialises the
sizes 0 and 1, so no proven graph accepts it, and the first such request compiles.
"""

import torch
from ray import serve

import serve_warm


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 16)
        self.out = torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))).softmax(-1)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Survey(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Classifier().eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            serve_warm.Input(target=self.answers, args=([[1.0] * 6] * n,), name=f"batch {n}")
            for n in (8, 3, 1)
        ]

    async def answers(self, rows: list[list[float]]) -> list[list[float]]:
        if any(len(row) != 6 for row in rows):
            raise ValueError("a row has six numbers")
        filled = [row for row in rows if any(row)]
        return await self.on_model_thread(self._run, filled)

    def _run(self, rows):
        x = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), 6)
        with torch.inference_mode():
            return self.model(x).tolist()


app = Survey.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "requests": [("answers", [[[1.0] * 6] * 5], {}), ("answers", [[[0.0] * 6, [0.0] * 6]], {})],
}
