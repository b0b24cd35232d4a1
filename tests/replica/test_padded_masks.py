# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Eager code around compiled blocks that leaves out a mask of ones, as transformers does."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from compiled import compiled
from serve_warm import Buckets, Input, WarmupMixin, shape_grid
from starts import process  # noqa: F401 - a fixture


def block(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return x * 2 if mask is None else x * mask


class Encoder(WarmupMixin):
    buckets = Buckets(batch=[2], length=[8])

    def __init__(self) -> None:
        self.block = compiled(block)

    def warmup_inputs(self) -> list[Input]:
        return shape_grid(self.encode, self.buckets)

    async def encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = None if bool(attention_mask.all()) else attention_mask
        return self.block(input_ids, mask)


def test_the_first_padded_batch_compiles_nothing():
    encoder = Encoder()
    report: dict[str, Any] = asyncio.run(encoder.warm_up())
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 3:] = 0
    asyncio.run(encoder.encode(torch.ones(2, 8, dtype=torch.int64), mask))
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert encoder.warmup_report()["after_ready"]["compiles"] == 0
