# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Somebody put @torch.compiler.disable on the block of the model while debugging, and left it.

The model around the block only calls the block, so Dynamo sees the outer frame, breaks the graph
at the disabled call, and compiles no operation at all. Calls go through a compiled module and
never cause a compile again, but there is no compiled code behind the proof.
"""

import torch
from ray import serve

import serve_warm


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    @torch.compiler.disable  # TODO remove: was for printing activations
    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Encoder(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Tower().eval(), dynamic=False)

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.encode, args=([0.0] * 8,), name="one row")]

    async def encode(self, values: list[float]) -> list[float]:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        return await self.on_model_thread(self._run, values)

    def _run(self, values):
        with torch.inference_mode():
            return self.model(torch.tensor([values]))[0].tolist()


app = Encoder.bind()

ROW = {
    "blind": True,
    "kind": "no_compiled_code",
    "requests": [("encode", [[0.5] * 8], {}), ("encode", [[1.5] * 8], {})],
}
