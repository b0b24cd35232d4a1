# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Several models in one replica, after Ray Serve's guide to model multiplexing.

Differs: a model is made from its id in place of a download, takes smaller images, and is compiled.
"""

import torch
from ray import serve
from starlette.requests import Request


def load(model_id: str) -> torch.nn.Module:
    torch.manual_seed(int(model_id))
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2),
        torch.nn.GELU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    ).eval()


@serve.deployment(max_ongoing_requests=16)
class ModelInferencer:
    @serve.multiplexed(max_num_models_per_replica=3)
    async def get_model(self, model_id: str) -> torch.nn.Module:
        model = load(model_id)
        model(torch.zeros(1, 3, 32, 32))
        return torch.compile(model)

    async def __call__(self, request: Request) -> list[float]:
        model = await self.get_model(serve.get_multiplexed_model_id())
        seeds = await request.json()
        images = [torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(s)) for s in seeds]
        with torch.no_grad():
            return model(torch.stack(images)).mean(0).tolist()


app = ModelInferencer.bind()
