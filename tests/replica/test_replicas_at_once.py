# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas that start on one node at the same moment are as warm as a replica that starts alone.

The test runs the program for GPUs with a model for the CPU, and checks only its counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).parents[1] / "gpu" / "eight_replicas.py"
REPLICAS = 3

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it for GPUs"),
]


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    options = ["--replicas", str(REPLICAS), "--workload", "tiny", "--level", "2"]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *options],
        # Torch's probes of the CPU say nothing here, and take five seconds of a build.
        env={**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_what_starts_at_once_is_as_warm_as_what_starts_alone(lines: list[dict[str, Any]]):
    """Each is a full hit, all inputs are proven, and nothing is compiled or built."""
    starts = [line for line in lines if line["run"] != "summary"]
    assert [line["run"] for line in starts] == ["alone", *["together"] * REPLICAS]
    for line in starts:
        assert (line["verdict"], line["proven"]) == ("full_hit", "2/2")
        names = ("compiles", "compiler_processes", "fx_misses", "kernels", "tunings", "captures")
        assert {name: line[name] for name in names} == dict.fromkeys(names, 0)
        assert line["passes"] == starts[0]["passes"]


def test_a_node_downloads_once(lines: list[dict[str, Any]]):
    """The store sends one artifact to all replicas together."""
    alone, *together = (line for line in lines if line["run"] != "summary")
    assert alone["stored_bytes"] > 0
    assert {line["stored_bytes"] for line in together} == {alone["stored_bytes"]}
    assert sum(line["downloaded_bytes"] for line in together) == alone["downloaded_bytes"]
    assert alone["downloaded_bytes"] == alone["stored_bytes"]
    assert lines[-1]["downloaded_bytes"] == alone["stored_bytes"]
