# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On a GPU, too, the code of a plan takes sizes that no traffic had, also with CUDA graphs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import serve_warm
from gpus import ON_A_GPU
from levels import forget_callables, served, started
from serve_warm.artifact.archive import unpack_directory
from serve_warm.learn.plan import InputPlan
from serve_warm.learn.recorded import RecordedCall
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.replica.start.pack import LEVEL_PARTS
from starts import WrappedStandIn, process, warm_up  # noqa: F401 - a fixture

pytestmark = ON_A_GPU

FEATURES = 64


@pytest.fixture(autouse=True)
def callables() -> Iterator[None]:
    forget_callables()
    yield
    SESSION.recorder = None


def call(rows: int) -> RecordedCall:
    return RecordedCall(
        callable="torch.nn.modules.container.Sequential",
        structure="t0",
        tensors=(f"Tensor float32[{rows}, {FEATURES}] strides [{FEATURES}, 1] on cuda:0",),
        modes={"inference_mode": True, "inference_tensors": True},
        calls=3,
    )


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("level", [2, 3])
def test_sizes_that_no_traffic_had_are_warm(tmp_path: Path, level: int, mode: str):
    if level == 3 and torch.__version__.startswith("2.11"):
        pytest.skip("libraries with open sizes need torch 2.12: pip install 'torch>=2.12'")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 8)).eval().cuda()
    replica = WrappedStandIn(serve_warm.compile(plain, level=level, mode=mode))
    plan = InputPlan(calls=tuple(map(call, (48, 32, 24, 16, 12, 8, 7, 6, 5, 3))))
    start = warm_up(replica, plan=json.dumps(plan.to_json()))
    parts, facts = asyncio.run(start.pack())
    made = InputPlan.from_json(facts["plan"], source="artifact")
    assert made.open_axes() == ["axis 0 of tensor 0 of torch.nn.modules.container.Sequential"]
    assert len(facts["entries"]) == 5
    folder = tmp_path / "entries"
    folder.mkdir(mode=0o700)
    unpack_directory(io.BytesIO(parts[LEVEL_PARTS[level]]), folder)
    with torch.inference_mode(), started(folder):
        for rows in (48, 32, 2, 9, 47, 50, 500):
            given = torch.randn(rows, FEATURES, device="cuda")
            result = served(lambda given=given: replica.owner.model(given))
            assert result.level == level, result
            torch.testing.assert_close(result.value, plain(given), rtol=1e-3, atol=1e-4)
