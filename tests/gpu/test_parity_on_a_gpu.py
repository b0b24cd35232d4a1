# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of entries against eager on a GPU capture nothing, and keep CUDA's random state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpus import ON_A_GPU
from levels import build, started
from serve_warm import compile as serve_warm_compile
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.libraries import run

pytestmark = ON_A_GPU


class Layers(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x)))
        if self.dropout:
            return torch.nn.functional.dropout(x, self.dropout, training=True)
        return x


def random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def on_failure(failure: str) -> None:
    raise AssertionError(failure)


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    ("dropout", "arguments", "samples"),
    [
        pytest.param(0.0, {}, 2, id="plain"),
        pytest.param(0.0, {"mode": "reduce-overhead"}, 2, id="captured"),
        pytest.param(0.5, {"options": {"fallback_random": True}}, 0, id="random"),
    ],
)
def test_a_check_leaves_a_gpu_as_it_was(
    level: int, dropout: float, arguments: dict[str, Any], samples: int, tmp_path: Path
):
    """A check captures and compiles nothing. Entries that draw random numbers are not sampled."""
    model = serve_warm_compile(
        Layers(dropout).eval().cuda(), level=level, dynamic=False, **arguments
    )
    x = torch.linspace(-1, 1, 8 * 64, device="cuda").view(8, 64)
    library = build(tmp_path, lambda: model(x), level=level)
    assert library.refused == {}

    with started(tmp_path), torch.inference_mode():
        checks = SESSION.begin_checks(one_in=2, can_compile=lambda: True, on_failure=on_failure)
        assert checks is not None
        for _ in range(4):
            model(x)
        counts, before = watch_process().counts(), random_states()
        with checks.checking():
            (handed_over,) = checks._list_seen()
            (check,) = checks._checks_of(handed_over)
            fn = SESSION.loaded.function(check.entry, run.load)
            checks.compare(handed_over, check, fn, [x])
            after = random_states()
        checks.serve()
        for _ in range(4):
            model(x)
        change, results = watch_process().counts() - counts, checks.report().results

    assert all(map(torch.equal, before, after))
    assert (results["same"], results["not_sampled"]) == (1 + samples, 2 - samples)
    assert (change.captures, change.compiles) == (0, 0)
