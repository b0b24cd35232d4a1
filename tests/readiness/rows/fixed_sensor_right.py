# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: a machine with twelve sensors sends twelve numbers, always.

The handler itself does not check the width, because the gateway does, so another width would
compile. The input says fixed=("args0",): the size never differs in traffic. serve_warm should
believe that, and stay quiet about an axis that has only one size.
"""

import torch
from ray import serve

import serve_warm


class Anomaly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return (self.gain * centred / (centred.std(-1, keepdim=True) + 1e-6)).abs().max(-1).values


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Sensors(serve_warm.WarmupMixin):
    def __init__(self):
        self.model = serve_warm.compile(Anomaly().eval(), dynamic=False)

    def warmup_inputs(self):
        values = [0.5 * n for n in range(12)]
        return [
            serve_warm.Input(
                target=self.anomaly, args=(values,), fixed=("args0",), name="twelve sensors"
            )
        ]

    async def anomaly(self, values: list[float]) -> float:
        x = torch.tensor([values], dtype=torch.float32)
        return await self.on_model_thread(self._run, x)

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).item()


app = Sensors.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [("anomaly", [[0.0] * 11 + [9.0]], {}), ("anomaly", [list(range(12))], {})],
}
