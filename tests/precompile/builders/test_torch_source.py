# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Builds with a torch whose private functions were never tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import ramp
from serve_warm.precompile import building
from serve_warm.private_apis import digests
from serve_warm.private_apis.digests import Judged
from serve_warm.private_apis.table import TABLE

BEFORE_2 = "torch 2.99.0 was not tested with serve_warm, and "


def unknown(monkeypatch: pytest.MonkeyPatch, *levels: int) -> str:
    """Make one function of each level unknown, and return the place of the first."""
    rows = [next(each for each in TABLE if each.level == level) for level in levels]
    judged = [Judged(patch=row, verdict="changed", digest="123") for row in rows]
    monkeypatch.setattr(digests, "judge", lambda *_, **__: judged)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    return rows[0].at[0]


def built(level: int, **options: Any) -> tuple[list[tuple[int, str]], list[str], Any]:
    """Build one entry, and return levels with reasons, refusals, and the build's torch."""
    model = serve_warm.compile(nn.Linear(4, 4).eval(), dynamic=False, level=level)
    with torch.inference_mode(), building(**options) as build:
        model(ramp())
    entries = [entry for unit in build.table.units.values() for entry in unit.entries]
    reasons = [(entry.level, entry.reason) for entry in entries]
    return reasons, [*build.table.refused.values()], build.torch_source


@pytest.mark.parametrize("level", [2, 3])
def test_a_call_has_level_1_if_a_function_of_the_trace_is_unknown(
    monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    """Nothing is traced, because the guards of such a trace could be incomplete."""
    place = unknown(monkeypatch, 2, 3)

    entries, refused, source = built(level)

    assert entries == []
    assert [text[: len(BEFORE_2)] for text in refused] == [BEFORE_2]
    assert place in refused[0]
    assert source.accepted() == {}


def test_a_call_has_level_2_if_only_a_function_of_libraries_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = unknown(monkeypatch, 3)

    entries, refused, _ = built(3)

    assert refused == []
    assert [level for level, _ in entries] == [2]
    assert entries[0][1].startswith(BEFORE_2)
    assert place in entries[0][1]


def test_a_person_can_accept_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact then names them, each with its digest."""
    place = unknown(monkeypatch, 2)

    entries, refused, source = built(2, accept_torch_source=True)

    assert ([level for level, _ in entries], refused) == ([2], [])
    assert source.accepted() == {place: "123"}


def test_an_accepted_torch_without_unknown_functions_leaves_no_trace() -> None:
    assert built(2, accept_torch_source=True)[2].accepted() == {}
