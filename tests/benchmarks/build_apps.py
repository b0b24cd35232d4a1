# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications that `bench_build.py` builds: one model, with entries of level 2 or level 3."""

from __future__ import annotations

from typing import Any

import torch
from ray import serve

import serve_warm
from serve_warm import Buckets, Field, Input, WarmupMixin, shape_grid


def load_model() -> Any:
    """Return the first two layers of MiniLM-L6 in evaluation mode."""
    from deployments.text_embedder.model import load_model

    model = load_model()
    model.encoder.layer = model.encoder.layer[:2]
    return model


class Encoder(WarmupMixin):
    """A sentence encoder with two layers. It is called through its handle, with three lengths."""

    level = 2

    def __init__(self) -> None:
        self.model = serve_warm.compile(load_model(), level=self.level, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return shape_grid(
            self.encode,
            Buckets(batch=[1], length=[16, 64, 128]),
            fields={"ids": Field(axes=("batch", "length"))},
        )

    async def encode(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Entries(Encoder):
    """The encoder at level 2. A start loads its entries without running Dynamo."""


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Libraries(Encoder):
    """The encoder at level 3. A start opens its libraries without torch's compiler."""

    level = 3


entries = Entries.bind()
libraries = Libraries.bind()
