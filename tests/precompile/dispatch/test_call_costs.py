# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The work of a call at level 2 in a process that changes, as counts: looks, look-ups, compiles.

tests/benchmarks/bench_changes.py has the times of the same scenarios.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from benchmarks.bench_changes import ADAPTERS, Model, function, rows
from calls_counted import calls_of
from levels import build, eager_below, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.calls.apart import refuse_overlap
from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.changes.unchanged import ChangeChecks
from serve_warm.precompile.dispatch.dispatcher import Dispatcher

LAYERS = 3


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of slow functions by name, and compiles."""
    before = watch_process().counts()
    slow = (Dispatcher._choose, FactWatch.refresh, FactWatch._judge, ChangeChecks._group)
    with calls_of(*slow, refuse_overlap) as found:
        yield found
    found["compiles"] = (watch_process().counts() - before).compiles


def call(model: Any, times: int, change: Callable[[int], Any], given: Any = None) -> None:
    for number in range(times):
        change(number)
        model(rows(3) if given is None else given)


@pytest.fixture(scope="module")
def clock() -> SimpleNamespace:
    """The clock of looks once a second; it stands still unless a test sets it."""
    return SimpleNamespace(now=0.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, clock: SimpleNamespace) -> Iterator[Any]:
    """A model with an entry for each of two adapters, in a process that loaded them."""
    model = serve_warm.compile(Model(LAYERS).eval(), dynamic=False)

    def with_adapter(name: str) -> None:
        model.set_adapter(name)
        model(rows(3))

    folder = tmp_path_factory.mktemp("entries")
    build(folder, *[lambda name=name: with_adapter(name) for name in ADAPTERS * 2])
    with started(folder, clock=lambda: clock.now), torch.inference_mode():
        yield model


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model: model.eval(), id="eval"),
        pytest.param(lambda model: model.to("cpu"), id="to"),
        pytest.param(lambda model: model.requires_grad_(False), id="requires_grad"),
        pytest.param(
            lambda _: nn.Linear(4, 4).register_forward_hook(print), id="a hook of another module"
        ),
    ],
)
def test_a_call_that_changes_no_fact_looks_at_none(served: Any, change: Any):
    call(served, 3, lambda _: change(served))
    with counted() as found:
        call(served, 50, lambda _: change(served))
    assert found == {"compiles": 0}


def test_two_adapters_in_turn_compile_and_look_up_nothing(served: Any):
    """After 200 switches, only facts of switched parts are judged, and calls are known by key."""
    call(served, 4, lambda number: served.set_adapter(ADAPTERS[number % 2]))
    with counted() as found:
        call(served, 200, lambda number: served.set_adapter(ADAPTERS[number % 2]))

    assert torch.equal(served(rows(3)), served._orig_mod(rows(3)))
    unwanted = ("compiles", "Dispatcher._choose", "ChangeChecks._group")
    assert [found[name] for name in unwanted] == [0, 0, 0]
    assert found["FactWatch.refresh"] == 200
    assert found["FactWatch._judge"] <= 200 * LAYERS * len(ADAPTERS)
    assert {use.level for use in served._serve_warm.uses()} == {2}


def test_a_flag_is_noticed_although_something_changes_before_each_call(served, clock):
    """Flags are read once a second, whether the calls of that second found a change or not."""
    levels = []
    with eager_below():
        served._serve_warm.binder.bind_anew()
        call(served, 4, lambda number: served.set_adapter(ADAPTERS[number % 2]))
        before = sum(use.calls for use in served._serve_warm.uses() if use.level == 1)
        torch.backends.mkldnn.set_flags(False)
        try:
            for number in range(4):
                clock.now += 0.6
                call(served, 1, lambda _, n=number: served.set_adapter(ADAPTERS[n % 2]))
                uses = served._serve_warm.uses()
                levels.append(sum(use.calls for use in uses if use.level == 1) - before)
        finally:
            torch.backends.mkldnn.set_flags(True)
            served._serve_warm.binder.bind_anew()

    assert levels[-1] > 0


def test_sizes_in_a_range_are_looked_up_once(tmp_path: Path):
    model = serve_warm.compile(Model(LAYERS).eval(), dynamic=True)
    build(tmp_path, lambda: model(rows(3)))
    with started(tmp_path), counted() as found:
        for number in range(300):
            model(rows(2 + number))
    assert found["Dispatcher._choose"] == 1
    assert (found["FactWatch._judge"], found["compiles"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "lookups"),
    [
        pytest.param(lambda number: (rows(4 + number % 300),), 300, id="shapes"),
        pytest.param(lambda number: (rows(3), f"request {number}"), 1, id="texts"),
        pytest.param(lambda number: (rows(3), "", number + 0.25), 1, id="floats"),
    ],
)
def test_a_call_without_an_entry_is_looked_up_once(tmp_path: Path, arguments: Any, lookups: int):
    """Each shape once; texts and numbers that no entry is for are one kind of call."""
    model = serve_warm.compile(Model(LAYERS).eval(), dynamic=False)
    build(tmp_path, lambda: model(rows(3)))
    with started(tmp_path), eager_below():
        for _ in range(2):  # torch.compile runs once, which is a change
            model(rows(999))
        with counted() as found:
            for number in range(600):
                model(*arguments(number))
    assert found["Dispatcher._choose"] == lookups
    assert (found["FactWatch.refresh"], found["compiles"]) == (0, 0)


def test_a_function_does_not_mind_modules_that_are_built(tmp_path: Path):
    """A function has no module and no fact about hooks, so building modules changes nothing."""
    compiled = serve_warm.compile(function, dynamic=False)
    build(tmp_path, lambda: compiled(rows(3)))
    with started(tmp_path):
        compiled(rows(3))
        with counted() as found:
            call(compiled, 20, lambda _: nn.Linear(4, 4).register_forward_hook(print))
    assert found == {"compiles": 0}


class Total(nn.Module):
    """Writes into a buffer, like a cache of keys and values."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(1)
        return x + self.total


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.long)])
def test_tensors_at_known_addresses_are_not_compared_in_memory_again(level: int, tmp_path: Path):
    """A step with hundreds of weights compares only weights that moved."""
    model = serve_warm.compile(Total().eval(), dynamic=False, level=level)
    whole = torch.zeros(8)
    x = torch.ones(4)
    build(tmp_path, lambda: model(x), level=level)

    with started(tmp_path), eager_below():
        model(x)
        with counted() as same:
            call(model, 20, lambda _: None, x)
        model._orig_mod.total.data = whole[4:]
        with counted() as moved:
            call(model, 20, lambda _: None, x)
        with counted() as overlapping:
            model._orig_mod.total.data = whole[2:6]
            model(whole[:4])
        uses = {use.level: use.reason for use in model._serve_warm.uses()}

    assert same["refuse_overlap"] == 0
    assert moved["refuse_overlap"] == 1
    assert overlapping["refuse_overlap"] >= 1
    assert set(uses) == {level, 1}
    assert "overlaps another" in uses[1]
