# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs that share memory in compiled code, but not in eager execution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of, served, started
from models import close, one_watch, x  # noqa: F401 - a fixture


class Twice(nn.Module):
    """Returns two copies of one tensor, which torch's compiler removes."""

    def forward(self, given: torch.Tensor) -> Any:
        found = given.sin()
        return found.clone(), {"again": found.clone()}, found.cos()


class Views(nn.Module):
    """Returns a view of an output, and one of its input."""

    def forward(self, given: torch.Tensor) -> Any:
        found = given.sin()
        return found, {"again": found[1]}, given.t()


def overwrite(outputs: Any) -> list[torch.Tensor]:
    """Write into the first of a call's outputs, and return all outputs."""
    first, others, last = outputs
    first.zero_()
    return [first, others["again"], last]


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("kind", [Twice, Views])
@torch.inference_mode()
def test_a_write_into_an_output_changes_what_it_changes_in_eager(kind, level, tmp_path):
    """An entry copies an output that shares memory only in compiled code, and no other."""
    given = x()
    model = serve_warm.compile(kind().eval(), dynamic=False, level=level)
    table = build(tmp_path, lambda: model(x()), level=level)
    fresh = serve_warm.compile(kind().eval(), dynamic=False, level=level)
    with started(tmp_path), eager_below():
        found = served(lambda: fresh(given))
        again = served(lambda: fresh(given))

    (entry,) = entries_of(table)
    assert (entry.level, found.level, found.compiles) == (level, level, 0)
    assert entry.plan.get("copies", []) == ([1] if kind is Twice else [])
    expected = overwrite(kind()(given))
    for ours in (found, again):
        close(overwrite(ours.value), expected)
