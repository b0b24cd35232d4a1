# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks with NCCL on two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpus import ON_A_GPU
from rank_groups import Group, compiled_anything, reports

RANKS = 2

pytestmark = ON_A_GPU


@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason=f"needs {RANKS} GPUs")
def test_ranks_start_from_their_own_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With NCCL collectives in the compiled code, all ranks are full hits and build nothing."""
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
