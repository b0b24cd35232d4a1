# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The application that `bench_seats.py` starts: a text embedder at level 3."""

from __future__ import annotations

import os

import torch
from ray import serve

import serve_warm
from deployments.text_embedder.model import load_model
from serve_warm import Buckets, Field, Input, WarmupMixin, shape_grid


@serve.deployment(ray_actor_options={"num_cpus": 1}, graceful_shutdown_timeout_s=0)
class SeatedEmbedder(WarmupMixin):
    """MiniLM-L6, called through its handle, with six shapes."""

    def __init__(self) -> None:
        self.model = serve_warm.compile(load_model(), level=3, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return shape_grid(
            self.encode,
            Buckets(batch=[1, 8], length=[16, 64, 128]),
            fields={"ids": Field(axes=("batch", "length"))},
        )

    async def encode(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]

    async def answer(self) -> list[float]:
        """Return some numbers of an answer, to compare them with those of other starts."""
        found: list[float] = (await self.encode(torch.arange(1000, 1016)[None]))[0, :, 0].tolist()
        return found

    async def cuda_s(self) -> float:
        return 0.0

    async def pid(self) -> int:
        """Compute an answer, and return the id of the process that computed it."""
        await self.answer()
        return os.getpid()


embedder = SeatedEmbedder.bind()
