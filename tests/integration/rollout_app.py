# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment that answers with the verdict of its replica, in three versions."""

from __future__ import annotations

import os
from typing import Any

import torch
from ray import serve

from serve_warm import Input, WarmupMixin


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@serve.deployment(name="Rolled", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=32)
class Rolled(WarmupMixin):
    def __init__(self) -> None:
        # Dynamo runs, and no C++ compiler.
        self.model = torch.compile(double, backend="eager", dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(size,)) for size in (2, 5)]

    async def score(self, size: int) -> tuple[int, str, str, list[float]]:
        """Return the process, the version, the verdict and the answer."""
        report: dict[str, Any] = self.warmup_report()
        answer = self.model(torch.ones(size)).tolist()
        return os.getpid(), os.environ.get("VERSION", ""), report["verdict"] or "", answer


app = Rolled.bind()
