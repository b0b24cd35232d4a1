# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One object under two names at the build: entries must notice when the names part.

The graphs are matrix products, for which no C++ is compiled; level 1 runs eagerly.
"""

from __future__ import annotations

import enum
import math
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, served, started
from models import one_watch  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Small:
    pass


class Large:
    pass


def halve(value: float) -> float:
    return value / 2


def double(value: float) -> float:
    return value * 2


ONE, OTHER = Small(), Small()
FACTORS: dict[Any, int] = {Small: 1, Large: 2}


class Choosing(nn.Module):
    """Its factor depends on `choice`; it stores another object first, which may be the same."""

    def __init__(self, choice: Any) -> None:
        super().__init__()
        self.choice = self.stored = self.given = choice


class OfEnum(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = Colour.BLUE
        return torch.addmm(x, x, x, alpha=1 if self.choice is Colour.RED else 2)


class OfClass(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = Large
        return torch.addmm(x, x, x, alpha=1 if self.choice is Small else 2)


class OfFunction(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = double
        return torch.addmm(x, x, x, alpha=1 if self.choice is halve else 2)


class OfModule(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = types
        return torch.addmm(x, x, x, alpha=1 if self.choice is math else 2)


class OfObject(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = OTHER
        return torch.addmm(x, x, x, alpha=1 if self.choice is ONE else 2)


class OfKey(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, x, x, alpha=FACTORS[self.choice])


class OfTwoAttributes(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = self.given
        return torch.addmm(x, x, x, alpha=1 if self.choice is Small else 2)


@pytest.mark.parametrize(
    ("kind", "at_the_build", "at_the_start"),
    [
        (OfEnum, Colour.BLUE, Colour.RED),
        (OfClass, Large, Small),
        (OfFunction, double, halve),
        (OfModule, types, math),
        (OfObject, OTHER, ONE),
        (OfKey, Large, Small),
        (OfTwoAttributes, Large, Small),
    ],
)
@torch.inference_mode()
def test_a_name_of_another_object_is_noticed(
    kind: Any, at_the_build: Any, at_the_start: Any, tmp_path: Path
):
    """Dynamo has no guard on the second name if one of them is global; an entry has a fact."""
    x = torch.linspace(-1, 1, 9).view(3, 3)
    model = serve_warm.compile(kind(at_the_build), dynamic=False)
    table = build(tmp_path, lambda: model(x))
    same, other = kind(at_the_build), kind(at_the_build)
    other.choice = at_the_start
    same_, other_ = (serve_warm.compile(each, dynamic=False) for each in (same, other))

    with started(tmp_path), eager_below():
        found = [served(lambda: same_(x)), served(lambda: other_(x))]

    assert table.refused == {}
    assert [one.level for one in found] == [2, 1]
    assert "choice" in found[1].reason
    assert torch.equal(found[0].value, same(x))
    assert torch.equal(found[1].value, other(x))
