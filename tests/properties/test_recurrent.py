# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Levels 2 and 3 of recurrent layers, whose weights are in a list, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, rebuilt, refusal, served, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm.precompile.trace.dynamo_hooks import STEPS


class Recurrent(nn.Module):
    def __init__(self, kind: type = nn.LSTM, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = kind(4, 4, **{"batch_first": True, **settings})

    def forward(self, given: torch.Tensor) -> Any:
        return self.layer(given)


class Output(Recurrent):
    """Returns no hidden state, which would share memory with the output."""

    def forward(self, given: torch.Tensor) -> Any:
        return self.layer(given)[0]


def x(steps: int = 3) -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * steps * 4).view(2, steps, 4)


def replace_weight(model: Recurrent) -> None:
    model.layer.weight_ih_l0 = nn.Parameter(torch.ones(16, 4))


def load_weights(model: Recurrent) -> None:
    model.load_state_dict(Recurrent(seed=5).state_dict())


def assign_weights(model: Recurrent) -> None:
    model.load_state_dict(Recurrent(seed=6).state_dict(), assign=True)


def change_list(model: Recurrent) -> None:
    model.layer._flat_weights[0] = nn.Parameter(torch.ones(16, 4))


CHANGES: dict[str, Callable[[Recurrent], Any]] = {
    "weight in place": lambda m: m.layer.weight_hh_l0.mul_(2),  # type: ignore[operator]
    "weight replaced": replace_weight,
    "weights loaded": load_weights,
    "weights assigned": assign_weights,
    "list of weights": change_list,
    "batch_first": lambda m: setattr(m.layer, "batch_first", False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an entry for an LSTM."""
    found = tmp_path_factory.mktemp("entries")
    model = serve_warm.compile(Recurrent().eval(), dynamic=False)
    table = build(found, lambda: model(x()))
    assert not table.refused
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_recurrent_layer_is_seen_by_the_next_call(name: str, folder: Path):
    """Its weights are inputs of the graph, by the list or by their names."""
    model = Recurrent(seed=1).eval()
    compiled = serve_warm.compile(model, dynamic=False)
    with started(folder), eager_below():
        before = served(lambda: compiled(x()))
        expected = model(x())
        CHANGES[name](model)
        after = served(lambda: compiled(x()))

    assert (before.level, before.compiles + after.compiles) == (2, 0)
    torch.testing.assert_close(before.value, expected)
    torch.testing.assert_close(after.value, model(x()))


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param(nn.GRU, marks=pytest.mark.stress), nn.LSTM])
def test_a_recurrent_layer_is_a_library(kind: type, tmp_path: Path):
    """A library takes the weights from the module, not from the build's."""
    fresh, compiled = rebuilt(lambda: Output(kind), tmp_path, lambda m: m(x()), level=3)
    fresh.load_state_dict(Output(kind, seed=1).state_dict())
    with started(tmp_path), eager_below():
        found = served(lambda: compiled(x()))
    assert (found.level, found.compiles, found.reason) == (3, 0, "")
    torch.testing.assert_close(found.value, fresh(x()))


@pytest.mark.slow
def test_a_recurrent_layer_with_many_steps_says_what_to_do(tmp_path: Path):
    """Its graph would repeat the code of a step for each of them."""
    model = serve_warm.compile(Recurrent(nn.GRU).eval(), dynamic=False)
    with eager_below():
        reason = refusal(tmp_path, lambda: model(x(STEPS + 1)))
    assert f"with {STEPS + 1} steps" in reason
    assert "compile the parts before and after it" in reason
