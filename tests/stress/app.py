# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A small model with real kernels, which tests kill at every stage of its start."""

from typing import Any

import torch
from ray import serve
from starlette.requests import Request

from serve_warm import Input, WarmupMixin


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Victim(WarmupMixin):
    """POST / with a number of rows → the sum of the model's output for them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)]
        self.model = torch.compile(torch.nn.Sequential(*layers), dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="POST /", json=rows, name=f"rows={rows}") for rows in (4, 2)]

    async def __call__(self, request: Request) -> dict[str, Any]:
        with torch.inference_mode():
            return {"sum": float(self.model(torch.ones(await request.json(), 64)).sum())}


app = Victim.bind()
