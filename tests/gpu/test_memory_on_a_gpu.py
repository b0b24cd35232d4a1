# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The report has the memory that torch holds on a real GPU, and counts captures in traffic."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpus import ON_A_GPU, two_layers
from outside_serve import OutsideServe
from serve_warm.compiler import eager_calls
from serve_warm.compiler.watch import unwatched_compiles, watch_process
from serve_warm.config import WarmupConfig
from serve_warm.inputs import Input
from serve_warm.metrics import METRICS
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Report, Stage

pytestmark = ON_A_GPU

WIDTH = 4096
WARM, IN_TRAFFIC = 64, 4096
"""Rows of the declared input, and of an undeclared one."""


class Replica(OutsideServe):
    """The parts of a deployment that a start needs: one handler, on the warm-up thread."""

    deployment, replica = "OnGpu", "OnGpu#1"

    def __init__(self, handler: Callable[..., Any], *args: Any) -> None:
        self.unwatched_compiles_before = unwatched_compiles()
        self.owner = self
        self.handler = handler
        self._inputs = [Input(target="handler", name="declared", args=args)]

    async def warmup_inputs(self) -> Any:
        return self._inputs

    async def call(self, item: Input) -> None:
        self.serve(*item.args)

    def serve(self, *args: Any) -> None:
        with torch.inference_mode():
            self.handler(*args)
        torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Restore the process-wide state of a start, and begin without graphs."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    torch._dynamo.reset()
    # Otherwise, pools of deleted graphs would be freed in the middle of a test.
    gc.collect()
    torch.cuda.empty_cache()
    yield
    watch_process().on_event = None
    eager_calls.answer_from_now_on(None)


def warm_up(replica: Replica) -> Warmup:
    start = Warmup(replica, WarmupConfig())
    asyncio.run(start.run())
    return start


def pools_of_torch() -> dict[str, dict[str, int]]:
    """Return the bytes of each pool on each device, from torch's current snapshot."""
    found: dict[str, dict[str, int]] = {}
    for segment in torch.cuda.memory_snapshot():
        first, second = segment["segment_pool_id"]
        if first or second:
            pools = found.setdefault(f"cuda:{segment['device']}", {})
            name = f"{first}.{second}"
            pools[name] = pools.get(name, 0) + segment["total_size"]
    return found


def figure(report: Report, name: str) -> dict[tuple[str, ...], float]:
    (metric,) = (metric for metric in METRICS if metric.name == f"serve_warm_{name}")
    return dict(metric.read(report))


def test_the_pools_of_a_report_are_those_that_torch_holds():
    """The bytes of each pool and device, and all reserved bytes, equal torch's; so do metrics."""
    compiled = torch.compile(two_layers(WIDTH), mode="reduce-overhead", fullgraph=True)

    report = warm_up(Replica(compiled, torch.rand(WARM, 16, device="cuda"))).report()

    assert report.stage is Stage.READY
    assert report.warmup.captures >= 1
    assert {each.device: each.pools for each in report.memory if each.pools} == pools_of_torch()
    memory = report.memory[torch.cuda.current_device()]
    assert memory.pool_bytes >= WARM * WIDTH * 4
    assert memory.reserved_bytes == torch.cuda.memory_reserved()
    assert memory.reserved_peak_bytes == torch.cuda.max_memory_reserved()
    assert memory.pool_bytes < memory.reserved_bytes <= memory.reserved_peak_bytes
    assert figure(report, "graph_pool_bytes")[memory.device,] == memory.pool_bytes
    assert figure(report, "gpu_reserved_bytes")[memory.device,] == memory.reserved_bytes
    assert f"{memory}" in report.text()


def test_a_capture_in_traffic_is_counted_and_its_memory_measured():
    """An undeclared size is compiled and captured once, and its memory stays in use."""
    compiled = torch.compile(
        two_layers(WIDTH), mode="reduce-overhead", fullgraph=True, dynamic=False
    )
    replica = Replica(compiled, torch.rand(WARM, 16, device="cuda"))
    start = warm_up(replica)
    before = start.report()

    for _ in range(4):
        replica.serve(torch.rand(IN_TRAFFIC, 16, device="cuda"))

    after = start.report()
    assert figure(before, "captures_after_ready") == {(): 0.0}
    assert figure(after, "captures_after_ready") == {(): 1.0}
    assert figure(after, "compiles_after_ready") == {(): 1.0}
    assert after.warmup == before.warmup
    assert after.after_ready.capture_s > 0
    held = [sum(each.pool_bytes for each in report.memory) for report in (before, after)]
    assert held[1] - held[0] >= (IN_TRAFFIC - WARM) * WIDTH * 4
    assert {each.device: each.pools for each in after.memory if each.pools} == pools_of_torch()


def test_a_tuning_in_traffic_is_counted():
    """A hand-written kernel is tuned for a size with another key. Nothing is compiled."""
    from handwritten import add

    def handler(x: torch.Tensor) -> None:
        add[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, x, torch.empty_like(x), x.numel())

    replica = Replica(handler, torch.rand(1000, device="cuda"))
    start = warm_up(replica)
    before = start.report()

    replica.serve(torch.rand(1000, device="cuda"))
    same = start.report()
    replica.serve(torch.rand(3000, device="cuda"))
    another = start.report()

    assert (before.warmup.tunings, before.warmup.kernels) == (1, 3)
    assert figure(same, "tunings_after_ready") == {(): 0.0}
    assert figure(another, "tunings_after_ready") == {(): 1.0}
    assert another.after_ready.tuning_s > 0
    assert figure(another, "compiles_after_ready") == {(): 0.0}
