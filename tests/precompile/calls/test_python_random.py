# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Forwards that draw random numbers from Python's `random` module."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of, rebuilt, refusal, served, started
from models import close, in_inference_mode, one_watch, x  # noqa: F401 - fixtures
from serve_warm.precompile.calls.python_random import drawing


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.numbers = random.Random(3)
        self.eval()


class Skipping(Base):
    """Draws a number for each layer, and uses the number only in training, as MusicGen does."""

    def forward(self, given: torch.Tensor) -> Any:
        for _ in range(2):
            number = random.uniform(0, 1)
            if self.training and number < 0.5:
                continue
            given = self.linear(given)
        return given


class Using(Base):
    """Computes with the numbers, and returns a number."""

    def forward(self, given: torch.Tensor) -> Any:
        scale, offset = random.uniform(0, 1), random.randint(0, 9)
        return self.linear(given) * scale + offset, random.uniform(a=2, b=3)


class Written(Base):
    """Draws a number, and writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", x(4, 4))

    def forward(self, given: torch.Tensor) -> Any:
        self.total.mul_(random.uniform(0, 1))
        return self.linear(given)


class Held(Base):
    """Draws from a generator of its own."""

    def forward(self, given: torch.Tensor) -> Any:
        return self.linear(given) * self.numbers.random()


def seeded(call: Callable[[], Any], seed: int) -> tuple[Any, Any]:
    """Return the result of a call, and the state of Python's generator after the call."""
    random.seed(seed)
    return call(), random.getstate()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "level"), [(Skipping, 2), (Skipping, 3), (Using, 2)])
def test_an_entry_draws_the_same_numbers_as_eager(kind, level, tmp_path):
    eager, (_, compiled) = kind(), rebuilt(kind, tmp_path, lambda m: m(x()), level=level)
    with started(tmp_path), eager_below():
        pairs = [
            (seeded(lambda: served(lambda: compiled(x())), seed), seeded(lambda: eager(x()), seed))
            for seed in range(3)
        ]

    for (ours, our_state), (expected, expected_state) in pairs:
        assert our_state == expected_state
        assert (ours.level, ours.compiles) == (level if ours.call else 2, 0)
        close(ours.value, expected)


@pytest.mark.slow
def test_a_build_leaves_pythons_generator_alone(tmp_path: Path):
    """The trace and the comparison with eager draw, but the build's own call comes first."""
    model = serve_warm.compile(Skipping(), dynamic=False)
    random.seed(0)
    build(tmp_path, lambda: model(x()))
    after = random.getstate()
    assert after == seeded(lambda: Skipping()(x()), 0)[1]


@pytest.mark.slow
def test_an_entry_that_refuses_a_call_draws_nothing(tmp_path: Path):
    """The entry writes into a buffer, so it refuses an argument that overlaps the buffer."""
    eager, (fresh, compiled) = Written(), rebuilt(Written, tmp_path, lambda model: model(x()))
    with started(tmp_path), eager_below():
        found, ours = seeded(lambda: served(lambda: compiled(fresh.total[:3])), 0)
    expected, state = seeded(lambda: eager(eager.total[:3]), 0)
    assert found.level == 1
    assert ours == state
    close(found.value, expected)


@pytest.mark.slow
def test_a_replaced_function_of_random_has_no_entry(tmp_path: Path, monkeypatch: Any):
    _, compiled = rebuilt(Using, tmp_path, lambda model: model(x()))
    with started(tmp_path), eager_below():
        before = served(lambda: compiled(x()))
        monkeypatch.setattr(random, "uniform", lambda a, b: 0.25)
        after = served(lambda: compiled(x()))
    assert (before.level, after.level) == (2, 1)
    assert after.value[1] == 0.25


@pytest.mark.slow
def test_numbers_in_the_result_have_no_library(tmp_path: Path):
    model = serve_warm.compile(Using(), dynamic=False, level=3)
    library = build(tmp_path, lambda: model(x()), level=3)
    (entry,) = entries_of(library)
    assert (entry.level, library.refused) == (2, {})
    assert "numbers from Python's random module" in entry.reason
    assert "pass the numbers as an argument" in entry.reason


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_a_generator_object_has_no_entry(level: int, tmp_path: Path):
    """Dynamo makes the state of such an object a constant, so all calls draw equal numbers."""
    model = serve_warm.compile(Held(), dynamic=False, level=level)
    assert "random.Random object" in refusal(tmp_path, lambda: model(x()), level=level)


def test_a_file_cannot_name_other_functions():
    """Only functions that draw numbers can be loaded."""
    with pytest.raises(ValueError, match="_urandom"):
        drawing([["_urandom", [8], {}]])
