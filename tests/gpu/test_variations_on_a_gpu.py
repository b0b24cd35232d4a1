# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Varied calls on a real GPU, where an index that is out of range ends the work of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpus import ON_A_GPU
from processes import run_to_end

pytestmark = ON_A_GPU

ROOT = Path(__file__).parents[2]

APPLICATION = """
import asyncio, sys, torch
from serve_warm import Input, WarmupMixin
from serve_warm.replica.start import proof

POSITIONS = 13

class Tokens(WarmupMixin):
    def __init__(self):
        self.table = torch.nn.Embedding(POSITIONS, 8).cuda()
        self.model = torch.compile(self.run, dynamic=True)

    def run(self, ids, positions, last):
        return self.table(positions).sum(-1)[last] + ids

    def warmup_inputs(self):
        return [Input(target="embed", args=([1] * size, LAST)) for size in (8, 12)]

    async def embed(self, ids: list[int], last: list[int]):
        numbers = ids, range(len(ids)), last
        with torch.no_grad():
            return float(self.model(*(torch.tensor(each).cuda() for each in numbers)).sum())

IS_BUILD, LAST = sys.argv[1] == "build", [int(sys.argv[2])]
proof.makes_artifact = lambda *_: IS_BUILD
if sys.argv[1] == "unguarded":  # as if this were a CPU
    proof.is_gpu_in_use = lambda: False
app = Tokens()
report = asyncio.run(app.warm_up())
print(report["unvaried"], report["covered"], asyncio.run(app.embed([1] * 8, LAST)))
"""


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Warm the application up in a process of its own, because a test may end its GPU's work."""
    return run_to_end([sys.executable, "-c", APPLICATION, *arguments], cwd=ROOT, timeout=300)


@pytest.mark.parametrize(
    ("start_of", "line"), [("replica", "only a build varies them"), ("build", "larger numbers")]
)
def test_an_index_that_longer_lists_would_exceed_is_not_tried(start_of: str, line: str):
    """The table has 13 positions. On a CPU, lists of 16 items are tried: 8 and 12 are declared."""
    found = start(start_of, "0")

    assert found.returncode == 0, found.stderr[-2000:]
    assert line in found.stdout
    assert "'proven': 2" in found.stdout


@pytest.mark.parametrize("arguments", [("unguarded", "0"), ("build", "7")])
def test_a_varied_call_that_ends_the_gpu_names_itself(arguments: tuple[str, str]):
    """Shorter lists have no item 7, so a build can meet such a call, too."""
    found = start(*arguments)

    assert found.returncode != 0
    assert "ended all work of this process on the GPU" in found.stderr, found.stderr[-2000:]
    assert "device-side assert" in found.stderr
