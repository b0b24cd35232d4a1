# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The artifact was built from inputs of one length, and requests have others."""

import torch
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Encoder(WarmupMixin):
    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4))
        self.model = serve_warm.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.encode, args=([7] * 16,))]

    async def encode(self, tokens: list[int]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(tokens)).tolist()


app = Encoder.bind()

ROW = {
    "artifact": True,
    "kind": "narrow",
    "requests": [("encode", [[1, 2, 3]])],
    "says": r"tokens\[0\], always 16",
}
