# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas that start on one node at the same moment are as warm as a replica that starts alone.

The test runs the program for GPUs with a model for the CPU, and checks only its counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from processes import run_to_end

PROGRAM = Path(__file__).parents[2] / "gpu" / "eight_replicas.py"
REPLICAS = 3

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it for GPUs"),
]


def test_what_starts_at_once_is_as_warm_as_what_starts_alone():
    """Each is a full hit, all inputs are proven, and nothing is compiled or built."""
    options = ["--replicas", str(REPLICAS), "--workload", "tiny", "--level", "2"]
    # Torch's probes of the CPU say nothing here, and take five seconds of a build.
    environ = {**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    ended = run_to_end([sys.executable, PROGRAM, *options], env=environ, timeout=500)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    starts = [line for line in lines if line["run"] != "summary"]
    assert [line["run"] for line in starts] == ["alone", *["together"] * REPLICAS]
    for line in starts:
        assert (line["verdict"], line["proven"]) == ("full_hit", "2/2")
        names = ("compiles", "compiler_processes", "fx_misses", "kernels", "tunings", "captures")
        assert {name: line[name] for name in names} == dict.fromkeys(names, 0)
        assert line["passes"] == starts[0]["passes"]
