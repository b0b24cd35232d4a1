# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A class that names no mixin and declares inputs, as `serve-warm init --inputs` proposes it."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from serve_warm.config import WarmupConfig
from serve_warm.replica.serve.wrapped import compile_taken, wrap_class


class Declaring:
    def __init__(self) -> None:
        self.model = torch.compile(torch.nn.Linear(3, 2), backend="eager", dynamic=False)
        self.seen: list[int] = []

    def warmup_inputs(self) -> Any:
        from serve_warm import Input

        return [Input(target="score", args=(size,)) for size in (2, 5)]

    async def score(self, size: int) -> list[int]:
        self.seen.append(size)
        with torch.inference_mode():
            return list(self.model(torch.ones(size, 3)).shape)


def test_declared_inputs_of_a_wrapped_class_are_replayed_and_proven():
    """Wrap gives it the mixin and the settings, and takes what it compiles."""
    with compile_taken():
        replica = wrap_class(Declaring, WarmupConfig(record="off"))()
    asyncio.run(replica.warm_up())
    report = replica.warmup_report()
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert {*replica.seen} >= {2, 5}  # and a size by which the start varies them
    assert [each["name"] for each in report["compiled_by_app"]] != []
