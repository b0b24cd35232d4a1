# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One object under two names at the build: entries must notice when the names part.

The graphs are matrix products, for which no C++ is compiled; level 1 runs eagerly.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import eager_below, rebuilt, served, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures


class Small:
    pass


class Large:
    pass


ONE, OTHER = Small(), Small()
FACTORS: dict[Any, int] = {Small: 1, Large: 2}


class Choosing(nn.Module):
    """Its factor depends on `choice`; it stores another object first, which may be the same."""

    def __init__(self, choice: Any) -> None:
        super().__init__()
        self.choice = self.stored = self.given = choice


class OfClass(Choosing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stored = Large
        return torch.addmm(x, x, x, alpha=1 if self.choice is Small else 2)


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
    [(OfObject, OTHER, ONE), *((kind, Large, Small) for kind in (OfClass, OfKey, OfTwoAttributes))],
)
def test_a_name_of_another_object_is_noticed(kind, at_the_build, at_the_start, tmp_path):
    """Dynamo has no guard on the second name if one of them is global; an entry has a fact."""
    x = torch.linspace(-1, 1, 9).view(3, 3)
    same, same_ = rebuilt(lambda: kind(at_the_build), tmp_path, lambda model: model(x))
    other = kind(at_the_build).eval()
    other.choice = at_the_start
    other_ = serve_warm.compile(other, dynamic=False)
    with started(tmp_path), eager_below():
        found = [served(lambda: same_(x)), served(lambda: other_(x))]

    assert [one.level for one in found] == [2, 1]
    assert "choice" in found[1].reason
    assert torch.equal(found[0].value, same(x))
    assert torch.equal(found[1].value, other(x))


BLOCKS = """
from torch import nn

class Block(nn.Module):
    def forward(self, x):
        return x

class Plain: pass
class Child(Plain): pass
def act(x): return x
"""
MODEL = """
import torch
from torch import nn
import {blocks} as blocks

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.child = blocks.Block(), blocks.Child()
        self.kind, self.act = blocks.Plain, blocks.act

    def forward(self, x):
        return torch.addmm(x, x, self.block(x), alpha=1 if {text} else 2)
"""
COMPARISONS = {
    "isinstance": "isinstance(self.block, blocks.Block)",
    "type": "type(self.child) is blocks.Child",
    "a class": "self.kind is blocks.Plain",
    "a function": "self.act is blocks.act",
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_module_that_is_loaded_again_is_noticed(name, tmp_path, monkeypatch):
    """Its new classes and functions have the names and the code of the earlier ones."""
    number = [*COMPARISONS].index(name)  # torch keeps objects of modules by their names
    blocks, app = types.ModuleType(f"blocks_{number}"), types.ModuleType(f"app_{number}")
    for module in (blocks, app):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(BLOCKS, vars(blocks))
    exec(MODEL.format(blocks=blocks.__name__, text=COMPARISONS[name]), vars(app))
    x = torch.linspace(-1, 1, 9).view(3, 3)
    model, compiled = rebuilt(app.Model, tmp_path, lambda model: model(x))

    with started(tmp_path), eager_below():
        before = served(lambda: compiled(x))
        exec(BLOCKS, vars(blocks))
        after = served(lambda: compiled(x))

    assert [before.level, after.level] == [2, 1]
    assert not torch.equal(before.value, after.value)
    assert torch.equal(after.value, model(x))
