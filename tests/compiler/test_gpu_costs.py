# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What captures, kernels and tunings cost is in the report and the metrics, without a GPU.

What a GPU would bring about happens to stand-ins of torch's and Triton's classes, which are hooked
as those are. The same on a real one is in tests/gpu.
"""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_utils

from graph_trees import trees, two_gpus
from serve_warm.compiler import cuda_graphs, triton_kernels
from serve_warm.compiler.imports import import_compiler
from serve_warm.compiler.watch import watch_process
from serve_warm.inputs import Input
from serve_warm.report import Counts, Report, Stage
from stand_ins import install
from starts import StandIn, process, warm_up  # noqa: F401 - `process` is a fixture


class Device:
    """Makes the calls of a GPU visible to the watch of this process."""

    def __init__(self) -> None:
        watch = watch_process()
        import_compiler()  # a skip is one of Inductor's own
        module = trees("")
        hook: Any = functools.partial(cuda_graphs._hook_trees, watch.note, watch.note_eager_run)
        install(hook, "torch._inductor.cudagraph_trees", module)
        self._manager: Any = module.CUDAGraphTreeManager()
        module = autotuner()
        hook = functools.partial(triton_kernels._hook_triton, watch.note)
        install(hook, "triton.runtime.autotuner", module)
        self._autotuner: Any = module.Autotuner()
        self._built = 0

    def run_eagerly(self) -> None:
        self._manager.run_eager([torch.rand(1), torch.rand(2)], 7)

    def capture(self) -> None:
        self._manager.record_function([torch.rand(1), torch.rand(2)], 7)

    def skip(self) -> None:
        cudagraph_utils.log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to a test")

    def build(self) -> None:
        """Leave behind what Triton leaves of a kernel."""
        folder = Path(os.environ["TRITON_CACHE_DIR"], f"kernel{self._built}")
        folder.mkdir(parents=True)
        (folder / "add.cubin").write_bytes(b"x")
        self._built += 1

    def tune(self) -> None:
        self._autotuner.check_disk_cache((1000,), [1, 2, 3], lambda: None)


def autotuner() -> ModuleType:
    """Return a stand-in for Triton's module: an autotuner that measures whenever it is asked."""

    class Autotuner:
        base_fn = SimpleNamespace(__name__="add")

        def check_disk_cache(self, key: Any, configs: Any, bench: Any) -> bool:
            bench()
            return False

    stand_in: Any = SimpleNamespace(Autotuner=Autotuner)
    return stand_in


class OnDevice(StandIn):
    """Builds and tunes in the first pass, captures in the second, and is quiet from there on."""

    def __init__(self) -> None:
        super().__init__(2)
        self.device = Device()

    async def call(self, item: Input) -> None:
        passes = len(self.calls)
        if passes == 0:
            self.device.build()
            self.device.build()
            self.device.tune()
            self.device.skip()
            self.device.run_eagerly()
        if passes == 1:
            self.device.capture()
        await super().call(item)


def test_what_a_warm_up_does_on_a_gpu_is_counted_as_the_warm_ups():
    report = warm_up(OnDevice()).report()
    found = report.warmup
    assert report.stage is Stage.READY
    assert (found.captures, found.graph_skips, found.kernels, found.tunings) == (1, 1, 2, 1)
    assert found.capture_s > 0
    assert found.tuning_s > 0
    assert report.after_ready == Counts()
    # A pass before the capture, the one that captures, a quiet one, and the proof.
    assert (found.eager_runs, report.passes) == (1, 4)


@pytest.mark.parametrize(
    ("act", "moves"),
    [
        (Device.capture, {"captures", "capture_s"}),
        (Device.skip, {"graph_skips"}),
        (Device.build, {"kernels"}),
        (Device.tune, {"tunings", "tuning_s"}),
    ],
    ids=["capture", "skip", "build", "tune"],
)
def test_the_same_in_traffic_is_counted_as_traffics(act: Any, moves: set[str]):
    """Work that a request waits for counts only in the counters after READY."""
    replica = OnDevice()
    start = warm_up(replica)
    before = start.report()
    act(replica.device)

    after = start.report()
    moved = {name: value for name, value in vars(after.after_ready).items() if value}
    assert before.after_ready == Counts()
    assert moved.keys() == moves
    assert {value for name, value in moved.items() if not name.endswith("_s")} == {1}
    assert after.warmup == before.warmup


def test_memory_is_measured_after_the_proof_and_after_captures(monkeypatch: pytest.MonkeyPatch):
    """A measurement costs some ms, so memory is measured only when a graph may have taken more."""
    segments = [{"device": 0, "segment_pool_id": (0, 1), "total_size": 2_000_000}]
    looks: list[str] = []
    replica = OnDevice()
    two_gpus(monkeypatch, segments)
    snapshot = torch.cuda.memory_snapshot
    stage = ["warming"]
    mine = threading.get_ident()  # starts of other tests have threads that go on

    def noted() -> list[dict[str, Any]]:
        if threading.get_ident() == mine:
            looks.append(stage[0])
        return snapshot()

    monkeypatch.setattr(torch.cuda, "memory_snapshot", noted)
    told: list[Report] = []

    start = warm_up(replica, told.append)
    ready, of_start = start.report(), [*told]
    stage[0] = "traffic"
    replica.device.tune()
    quiet = start.report()
    segments.append({"device": 0, "segment_pool_id": (0, 1), "total_size": 500_000})
    replica.device.capture()
    captured = [start.report(), start.report()]

    assert looks == ["warming", "traffic"]
    assert {len(report.memory) for report in of_start[:-1]} == {0}
    for report in (of_start[-1], ready, quiet):
        assert report.memory[0].pools == {"0.1": 2_000_000}
    for report in captured:
        assert report.memory[0].pools == {"0.1": 2_500_000}
