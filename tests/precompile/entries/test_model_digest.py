# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The digest that says whether an artifact was built for the same model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from serve_warm.precompile import digest_models

HANG_S = 200.0

PRINTS = """
import sys

sys.path[:0] = sys.argv[1:]
import torch
import serve_warm
from serve_warm.precompile import digest_models
from test_model_digest import Net

ways = {
    "torch.compile": torch.compile,
    "level 2": serve_warm.compile,
    "level 3": lambda model: serve_warm.compile(model, level=3),
    "eager": lambda model: model,
}
print({way: digest_models([compile(Net())]) for way, compile in ways.items()})
"""


class Net(nn.Module):
    def __init__(self, width: int = 3, scale: float = 2.0) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, width), scale
        self.names = {"b", "a"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Edited(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.scale


Edited.__name__ = "Net"


@pytest.mark.slow
def test_a_digest_is_the_same_in_each_process():
    """A compiled module notes an id of its process, and a set has another order in each."""
    command = [sys.executable, "-c", PRINTS, str(Path(__file__).parent)]
    shown = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_S,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1
    assert "''" not in shown.pop()


@pytest.mark.parametrize(
    "changed",
    [
        lambda: Net(width=5),
        lambda: Net(scale=3.0),
        lambda: Net().half(),
        Edited,
        lambda: nn.Sequential(Net()),
        lambda: nn.LazyLinear(3),
    ],
    ids=["width", "attribute", "dtype", "code", "around it", "another"],
)
def test_another_model_has_another_digest(changed: Callable[[], nn.Module]):
    assert digest_models([changed()]) != digest_models([Net()])


class Nested(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        parts = [torch.ones(2, 3), torch.ones(4, 3)]
        self.register_buffer("parts", torch.nested.nested_tensor(parts, layout=layout))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_equal_models_with_nested_tensors_have_one_digest(layout: torch.layout):
    """Such a tensor has no sizes, or has one that torch numbers anew for each tensor."""
    assert digest_models([Nested(layout)]) == digest_models([Nested(layout)]) != ""


def test_weights_do_not_count():
    assert digest_models([Net()]) == digest_models([Net()])


def test_the_order_of_models_and_other_objects_does_not_count():
    models: list[Any] = [Net(), nn.Linear(2, 2), "a name", None]
    assert digest_models(models) == digest_models(models[::-1])
    assert digest_models(["a name"]) == digest_models([]) == ""


def test_a_call_changes_nothing():
    model = serve_warm.compile(Net(), backend="eager")
    before = digest_models([model])
    with torch.inference_mode():
        model(torch.ones(2, 4))
    assert digest_models([model]) == before
