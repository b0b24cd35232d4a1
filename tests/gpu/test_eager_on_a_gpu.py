# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`after_ready: eager` beside CUDA graphs: their memory and outputs stay, and memory that runs out.

`eager_gpu.py` measures the same with larger models.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from test_memory_on_a_gpu import (  # noqa: F401 - a fixture
    Replica,
    pools_of_torch,
    process,
)

import serve_warm
from gpus import ON_A_GPU, two_layers
from serve_warm.config import WarmupConfig
from serve_warm.replica.start.stages import Warmup

pytestmark = ON_A_GPU

WIDTH = 1024
WARM = 64
CALLS = 400


def started(model: Any, *args: Any) -> Warmup:
    start = Warmup(Replica(model, *args), WarmupConfig(after_ready="eager"))
    asyncio.run(start.run())
    return start


def given(rows: int) -> torch.Tensor:
    torch.manual_seed(rows)
    return torch.rand(rows, 16, device="cuda")


@pytest.mark.parametrize("compile_", [torch.compile, serve_warm.compile], ids=["torch", "ours"])
@torch.inference_mode()
def test_eager_calls_between_replays_leave_graphs_alone(compile_: Any):
    """The pools do not grow, no graph is captured, and an output keeps its values meanwhile."""
    plain = two_layers(WIDTH)
    model = compile_(plain, mode="reduce-overhead", fullgraph=True, dynamic=False)
    start = started(model, given(WARM))
    before, pools = start.report(), pools_of_torch()
    assert before.warmup.captures >= 1

    wrong = 0
    for number in range(CALLS):
        size = WARM if number % 2 else 1 + number % 37
        answer = model(given(size))
        if size == WARM:
            model(given(7))  # eager, while the graph's output is in use
        wrong += not torch.allclose(answer, plain(given(size)), atol=1e-2)
    report = start.report()

    assert wrong == 0
    assert (report.after_ready.captures, report.after_ready.compiles) == (0, 0)
    assert pools_of_torch() == pools
    assert sum(each.calls for each in report.eager_calls) == CALLS


class Greedy(torch.nn.Module):
    """Needs more memory than any GPU has, for all sizes but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != WARM:
            return x + torch.empty(1 << 42, device="cuda", dtype=torch.uint8)[:1]
        return x * 2


@torch.inference_mode()
def test_an_eager_call_that_runs_out_of_memory_is_refused_for_a_while():
    """Calls with compiled code go on, and the memory that torch had cached is free again."""
    model = serve_warm.compile(Greedy(), dynamic=False)
    start = started(model, given(WARM))
    cached = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    del cached

    for _ in range(3):
        with pytest.raises(MemoryError, match=": 60 s"):
            model(given(5))
        assert torch.equal(model(given(WARM)), given(WARM) * 2)

    (seen,) = start.report().eager_calls
    assert (seen.calls, seen.refused) == (3, 3)
    assert torch.cuda.memory_reserved() < 1 << 28
    assert start.report().after_ready.compiles == 0
