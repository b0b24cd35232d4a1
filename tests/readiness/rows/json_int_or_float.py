# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A client that sends [3, 0, 7] instead of [3.0, 0.0, 7.0] changes the dtype of the tensor.

torch.tensor makes float32 of the declared floats, and int64 of whole numbers in JSON. The model
converts with .float() itself, so the handler accepts both. All sizes are the same, so nothing
looks narrow, but the first client whose JSON encoder writes whole numbers waits for a compile.
"""

import torch
from ray import serve

import serve_warm


class Forecast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
        )

    def forward(self, counts):
        return self.net(torch.log1p(counts.float()))


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Demand(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = serve_warm.compile(Forecast().eval(), dynamic=False)

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.forecast, args=([1.5] * 12,), name="twelve months")]

    async def forecast(self, months: list) -> list[float]:
        if len(months) != 12:
            raise ValueError("send twelve months")
        return await self.on_model_thread(self._run, months)

    def _run(self, months):
        with torch.inference_mode():
            return self.model(torch.tensor(months).unsqueeze(0))[0].tolist()


app = Demand.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("forecast", [[3.0, 0.5, 7.0] * 4], {}), ("forecast", [[3, 0, 7] * 4], {})],
}
