# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 3 of forwards that assign attributes, and of results that are ordered dicts."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of, refusal, served, started
from levels import ramp as x
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures


class Part(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen = given
        return given


class Assigning(nn.Module):
    """Assigns a tensor, a number and a new list at each call, here and in a part of it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.part = nn.Linear(4, 4, bias=False), Part()
        self.old: list[Any] = []

    def forward(self, given: torch.Tensor) -> Any:
        made = self.part(self.linear(given))
        self.last, self.rows, self.cache = made, given.shape[0], [None, made]
        return OrderedDict(second=made @ made.t(), first=made)


@pytest.mark.long
def test_a_library_assigns_what_its_forward_assigns(tmp_path: Path):
    """Each call makes new values, and returns the tensors that it assigns."""
    model = serve_warm.compile(Assigning().eval(), dynamic=False, level=3)
    table = build(tmp_path, lambda: model(x()), lambda: model(x()), level=3)
    fresh, eager = Assigning(1).eval(), Assigning(1).eval()
    compiled = serve_warm.compile(fresh, dynamic=False, level=3)

    with started(tmp_path), eager_below():
        first = served(lambda: compiled(x()))
        before = fresh.cache
        second = compiled(x() * 2)
        expected = eager(x() * 2)

    assert not table.refused
    assert (first.level, first.compiles, first.reason) == (3, 0, "")
    assert type(second) is OrderedDict
    assert list(second) == ["second", "first"]
    torch.testing.assert_close(dict(second), dict(expected))
    torch.testing.assert_close(fresh.last, eager.last)
    assert fresh.last is second["first"] is fresh.cache[1] is fresh.part.seen
    assert (fresh.rows, fresh.cache[0], fresh.cache is before) == (3, None, False)


class OldList(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        self.cache = self.old
        return self.linear(given)


class Appending(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        made = self.linear(given)
        self.old[0] = made
        return made


class InParts(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        made = self.linear(given)
        for each in (self.part, self.part.inner, self):
            each.old[0] = made
        return made


class Returning(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        self.cache = [self.linear(given)]
        return self.cache


class OwnDict(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        made = self.linear(given)
        self.cache = {"made": made}  # type: ignore[assignment]
        return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OldList, "it assigns a dict or a set, or it assigns a list that is also used elsewhere"),
        (Appending, "it changes old, which a library cannot do: assign a new object"),
        (InParts, "it changes part.old, part.inner.old and 1 other, which a library cannot do"),
        (Returning, "it assigns attributes and returns a list that is also used elsewhere"),
        (OwnDict, "it assigns a dict or a set, or it assigns a list that is also used elsewhere"),
    ],
)
def test_what_a_library_cannot_assign_is_at_level_2(kind, reason, tmp_path):
    """A library would make a new list where eager execution keeps one."""
    model = kind().eval()
    model.part.inner = Part()
    model.old, model.part.old, model.part.inner.old = [None], [None], [None]
    compiled = serve_warm.compile(model, dynamic=False, level=3)
    table = build(tmp_path, lambda: compiled(x()), lambda: compiled(x()), level=3)
    (entry,) = entries_of(table)
    assert entry.level == 2
    assert reason in entry.reason


class Counting(Assigning):
    def forward(self, given: torch.Tensor) -> Any:
        self.rows = getattr(self, "rows", 0) + 1
        return self.linear(given) * self.rows


@pytest.mark.stress
@pytest.mark.long
def test_a_number_that_a_forward_reads_and_assigns_has_no_entry(tmp_path: Path):
    """No later call would have the number of the build."""
    compiled = serve_warm.compile(Counting().eval(), dynamic=False, level=3)
    why = refusal(tmp_path, lambda: compiled(x()), level=3)
    assert "the call changes something that its graph depends on" in why
