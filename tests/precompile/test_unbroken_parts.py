# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The advice about a model that torch cannot trace: its parts that have a graph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, refusal, served, started
from models import one_watch  # noqa: F401 - a fixture


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, given: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        return self.two(self.one(given)) if not twice else self.two(self.two(given))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.inner(given, twice=True)


class Breaking(nn.Module):
    """Has a part that contains no break."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.inner(given)


class Model(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.calls = nn.ModuleList(parts), 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            given = part(given)
        return given * 2 if given.sum() > 1e9 else given


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


def reason_of(model: nn.Module, folder: Path) -> str:
    compiled: Any = serve_warm.compile(model.eval(), dynamic=False)
    with torch.inference_mode(), eager_below():
        return refusal(folder, lambda: compiled(x()))


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([Block(), Block()], ["Block"]),
        ([Block(), Breaking()], ["Block"]),
        ([Breaking(), Breaking()], ["Inner"]),
        ([Inner(), Breaking()], ["Inner"]),
    ],
    ids=["two blocks", "one breaks", "below a break", "beside a break"],
)
def test_the_reason_names_the_parts_that_have_a_graph(parts, names, tmp_path):
    """The reason names the outermost parts, because inner classes are compiled with them."""
    reason = reason_of(Model(*parts), tmp_path)
    assert "test_unbroken_parts.py:" in reason
    assert re.search(r"compile_regions\(model, (.*)\)", reason)[1] == repr(names)  # type: ignore[index]


@torch.inference_mode()
def test_the_advice_can_be_followed(tmp_path: Path):
    model, fresh = (
        serve_warm.compile_regions(Model(Block(), Block()).eval(), ["Block"], dynamic=False)
        for _ in range(2)
    )
    build(tmp_path, lambda: model(x()))
    with started(tmp_path), eager_below():
        found = served(lambda: fresh(x()))
    assert (found.level, found.compiles) == (2, 0)


@pytest.mark.parametrize("model", [Breaking(), Model(nn.Linear(4, 4))], ids=["inside", "small"])
def test_hooks_of_the_look_are_gone(model: nn.Module, tmp_path: Path):
    """A hook that stays would be a fact, and a cost of each call."""
    reason = reason_of(model, tmp_path)
    assert reason
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_a_model_without_such_parts_gets_no_advice(tmp_path: Path):
    """A single layer is not worth a compiled call."""
    assert "compile_regions" not in reason_of(Model(nn.Linear(4, 4)), tmp_path)
