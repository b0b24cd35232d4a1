# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment of one model with two adapters, of which each request names one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from ray import serve
from torch import nn

import serve_warm
from artifacts import trusting
from integration.changing_app import KEY, x
from serve_warm import Input, WarmupMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

ADAPTERS: Mapping[str, tuple[int, float]] = {"formal": (2, 2.0), "terse": (3, -3.0)}
"""Rank and scale of each."""

BATCH = 4


class Adapted(nn.Module):
    """A layer with the adapter that is active. Another one is another structure.

    The scales of its outputs are made at the first call, as some models make tables of positions.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(8, 8)
        self.kept = {
            name: nn.Sequential(nn.Linear(8, rank), nn.Linear(rank, 8)).eval()
            for name, (rank, _) in ADAPTERS.items()
        }
        self.set_adapter("formal")
        self.scales: torch.Tensor | None = None

    def set_adapter(self, name: str) -> None:
        self.active, self.scale = self.kept[name], ADAPTERS[name][1]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.scales is None:
            self.scales = torch.linspace(0.5, 1.5, 8)
        return torch.add(self.base(given), self.active(given), alpha=self.scale) * self.scales


@serve.deployment(
    name="Adapting",
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_timeout_s=0,
    max_ongoing_requests=32,
)
class Adapting(WarmupMixin):
    """Declares an input for each adapter, and switches as a request says."""

    warmup_trust = trusting(KEY)

    def __init__(self) -> None:
        self.inner = Adapted().eval()
        self.model = serve_warm.compile(self.inner, dynamic=False)
        self.one_request = threading.Lock()

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.ask, args=(name,), name=name) for name in ADAPTERS]

    def ask(self, name: str) -> list[float]:
        """Return the output of the model with an adapter."""
        with self.one_request, torch.inference_mode():
            self.inner.set_adapter(name)
            out: list[float] = self.model(x(BATCH)).flatten().tolist()
        return out


app = Adapting.bind()
