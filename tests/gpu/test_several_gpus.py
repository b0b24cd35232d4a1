# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas that start at the same moment on one GPU or more, and ranks with NCCL on two GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gpus import ON_A_GPU
from processes import run_to_end

REPLICAS = 3
RANKS = 2

pytestmark = ON_A_GPU


def said_by(program: Path, options: Sequence[str]) -> list[dict[str, Any]]:
    ended = run_to_end([sys.executable, str(program), *options])
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_replicas_that_start_at_once_capture_and_build_nothing():
    """Each replica captures as many graphs as a single replica, and the node downloads once."""
    options = ["--replicas", str(REPLICAS), "--workload", "tiny_gpu", "--level", "1"]
    lines = said_by(Path(__file__).parent / "eight_replicas.py", options)

    alone, *together = (line for line in lines if line["run"] != "summary")
    assert len(together) == REPLICAS
    assert alone["captures"] >= 2  # one for each input
    for line in (alone, *together):
        assert line["verdict"] == "full_hit"
        assert line["captures"] == alone["captures"]
        assert line["kernels"] == line["tunings"] == line["fx_misses"] == 0
    assert sum(line["downloaded_bytes"] for line in together) == alone["stored_bytes"]


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason=f"needs {RANKS} GPUs")
def test_ranks_start_from_their_own_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With NCCL collectives in the compiled code, all ranks are full hits and build nothing."""
    from rank_groups import Group, compiled_anything, reports

    monkeypatch.setenv("RANKS_ON", "cuda")
    group, start = Group(folder=tmp_path), {"level": 1, "store": str(tmp_path / "store")}
    [cold] = group.run({**start, "publish": True})

    [warm] = group.run({**start, "load": True})

    assert all(compiled_anything(report) for report in reports(cold))
    for rank, report in enumerate(reports(warm)):
        assert report["fingerprint"]["app"]["rank"] == f"{rank} of {RANKS}"
        assert report["verdict"] == "full_hit"
        assert not compiled_anything(report)
        assert report["covered"] == {"expected": 2, "proven": 2}
