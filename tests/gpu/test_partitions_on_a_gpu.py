# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of a part of a model, and of some of its sizes, on a real GPU."""

from __future__ import annotations

import pytest
import torch

from gpus import ON_A_GPU
from levels import spans

pytestmark = ON_A_GPU


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_what_lies_around_work_on_the_cpu_is_captured():
    """Two graphs are captured, before and after the CPU work, and none is skipped."""
    weight = torch.rand(64, 64, device="cuda")

    def forward(x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(x @ weight)
        on_the_cpu = first.cpu().sin()
        return (on_the_cpu.cuda() + 1) @ weight

    compiled = torch.compile(forward, mode="reduce-overhead", fullgraph=True)
    x, other = torch.rand(2, 8, 64, device="cuda")

    with torch._inductor.config.patch(graph_partition=True):
        found = spans(lambda: compiled(x), 4)
    with torch.inference_mode():
        out, wanted = compiled(other).clone(), forward(other)

    assert sum(each.captures for each in found) == 2
    assert sum(each.eager_runs for each in found) == 2
    assert sum(each.graph_skips for each in found) == 0
    assert [each.quiet for each in found[-2:]] == [True, True]
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)


def test_only_the_sizes_that_are_named_are_captured():
    """Other sizes launch kernels one by one. They are quiet at once, as they capture nothing."""
    layer = torch.nn.Linear(16, 16).cuda().eval()
    compiled = torch.compile(layer, mode="reduce-overhead", dynamic=True)
    inputs = {rows: torch.rand(rows, 16, device="cuda") for rows in (32, 16, 8)}

    with torch._inductor.config.patch({"triton.cudagraph_capture_sizes": (8, 16)}):
        found = {rows: spans(lambda x=x: compiled(x), 4) for rows, x in inputs.items()}

    captures = {rows: sum(each.captures for each in calls) for rows, calls in found.items()}
    assert captures == {32: 0, 16: 1, 8: 1}
    assert sum(each.compiles for calls in found.values() for each in calls) == 1
    assert all(calls[-1].quiet for calls in found.values())
    assert found[32][1].quiet
