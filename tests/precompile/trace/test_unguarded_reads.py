# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a forward reads or returns without a guard of Dynamo; see also test_soundness_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of
from models import flat
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.names import resolve
from serve_warm.precompile.trace import torch_functions

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    SESSION.unload()


LABELS = ("names", "kinds", "version", "count", "pair")


class Labelled(nn.Module):
    """Returns objects that its graph does not read."""

    def __init__(self, **labels: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        for name in LABELS:
            setattr(self, name, labels[name])

    def forward(self, given: torch.Tensor) -> dict[str, Any]:
        return {"logits": self.linear(given), **{name: getattr(self, name) for name in LABELS}}


def test_a_library_returns_existing_objects_as_they_are_now(tmp_path: Path):
    """A value that no graph reads has no guard. The caller gets the model's own object."""
    built = Labelled(names={0: "cat"}, kinds=["cat"], version="v1", count=1, pair=(1, 2))
    given = torch.ones(3, 4)
    compiled = serve_warm.compile(built.eval(), level=3, dynamic=False)
    build(tmp_path, lambda: compiled(given), level=3)
    model = Labelled(names={0: "cow"}, kinds=["cow"], version="v2", count=2, pair=(1, 3)).eval()
    compiled = serve_warm.compile(model, level=3, dynamic=False)
    assert SESSION.load(tmp_path) == ""
    with torch.inference_mode(), eager_below():
        result = compiled(given)

    for name in LABELS:
        assert result[name] is getattr(model, name)


def test_the_file_of_a_function_that_is_only_called_is_a_fact(tmp_path: Path):
    """No guard is about its code; test_entry_table.py has a start with another source."""
    compiled = serve_warm.compile(lambda given: flat([given])[0] @ given.T, dynamic=False)
    (entry,) = entries_of(build(tmp_path, lambda: compiled(torch.ones(3, 3))))
    assert entry.sources.keys() == {__name__, flat.__module__}


class Asking(nn.Module):
    """Asks torch whether it is traced, as transformers does."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        return given * 2 if is_traced else given + given


def test_a_forward_that_asks_whether_it_is_traced_has_an_entry(tmp_path: Path):
    """Within a trace, the answer is always the same, so no fact depends on it."""
    compiled = serve_warm.compile(Asking().eval(), dynamic=False)
    assert build(tmp_path, lambda: compiled(torch.ones(3))).refused == {}


OF_DYNAMO = pytest.importorskip("torch._dynamo.variables.torch")
FOLDED = [
    function
    for function in OF_DYNAMO.constant_fold_functions
    if function not in OF_DYNAMO.constant_fold_functions_need_guards
]
"""Functions that Dynamo runs while it traces, except those that it guards itself."""


@pytest.mark.parametrize(
    "function", FOLDED, ids=[f"{n} {f.__name__}" for n, f in enumerate(FOLDED)]
)
def test_each_function_that_a_trace_runs_is_covered(function: Callable[..., Any]):
    """A fact names the function, or its result is steady, or each call compares its result."""
    is_covered = function.__name__ in torch_functions.STEADY | torch_functions.CHECKED_EACH_CALL
    place = torch_functions._place(function)
    assert is_covered or (place is not None and resolve(*place) is function)


class InAutocast(nn.Module):
    """Has an autocast block of its own, so torch cannot cache its graph."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            dtype = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            return given.float().to(dtype).float() * 2


def test_graphs_without_a_cache_entry_have_their_own_code(tmp_path: Path):
    """A build restores Python's generator, from which torch draws the key of such a graph."""
    compiled = serve_warm.compile(InAutocast().eval(), dynamic=False)
    shapes: list[Any] = []
    calls = [lambda n=n: shapes.append(compiled(torch.ones(n, n)).shape) for n in (3, 4, 5)]
    assert build(tmp_path, *calls).refused == {}
    assert shapes == [(3, 3), (4, 4), (5, 5)]


class Repeating(nn.Module):
    """Returns one new list twice."""

    def forward(self, given: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        made = [given * 2]
        return made, made


def test_a_list_that_is_returned_twice_stays_one_list(tmp_path: Path):
    """A plan would make two lists, so the call has a level-2 entry."""
    compiled = serve_warm.compile(Repeating().eval(), level=3, dynamic=False)
    answers: list[Any] = []
    table = build(tmp_path, *[lambda: answers.append(compiled(torch.ones(3)))] * 2, level=3)
    (entry,), (first, second) = entries_of(table), answers[-1]
    assert (entry.level, entry.reason) == (2, "it returns the same list twice")
    assert first is second
