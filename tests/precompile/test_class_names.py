# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Code that tells a class of torch by its name has an entry, which keeps to that class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, served, started
from models import (  # noqa: F401 - a fixture
    close,
    one_watch,
    x,
)

if TYPE_CHECKING:
    from pathlib import Path


class Asking(nn.Module):
    """What peft's DoRA asks of a weight (`dequantize_module_weight`, 0.21)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        kind = type(self.weight)
        if kind.__module__.startswith("torch.") and kind.__name__ == "Parameter":
            return given @ self.weight
        return given @ self.weight @ self.weight


class Other(nn.Parameter):
    pass


@pytest.mark.parametrize("other", [False, True])
@torch.inference_mode()
def test_a_class_is_told_by_its_names(tmp_path: Path, other: bool):
    """A weight of another class, and so with other names, is not served by the entry."""
    model = Asking()
    library = build(tmp_path, lambda: serve_warm.compile(model, dynamic=False)(x()))
    if other:
        model.weight = Other(2 * torch.eye(4))
    compiled = serve_warm.compile(model, dynamic=False)

    with started(tmp_path), eager_below():
        result = served(lambda: compiled(x()))

    assert not library.refused
    assert result.level == (1 if other else 2)
    close(result.value, x() * (4 if other else 1))
