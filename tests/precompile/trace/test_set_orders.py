# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Forwards that iterate over sets: an entry needs a graph that does not depend on the order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import serve_warm
from levels import eager_below, rebuilt, refusal, served, started
from models import close, in_inference_mode, one_watch, x  # noqa: F401 - fixtures
from serve_warm.precompile.trace.set_orders import arrangements

NAMES = ("one", "two", "three")


class Base(nn.Module):
    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in NAMES})
        self.names = list(names)

    def forward(self, given: torch.Tensor) -> Any:
        raise NotImplementedError


class ByName(Base):
    """As models with several kinds of layers do."""

    def forward(self, given: torch.Tensor) -> Any:
        made = {name: self.parts[name](given).cos() for name in set(self.names)}
        for name in self.names:
            given = given @ made[name].T @ made[name]
        return given


class Held(Base):
    """The set belongs to the model."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        super().__init__()
        self.held = frozenset(names)

    def forward(self, given: torch.Tensor) -> Any:
        made = {name: self.parts[name](given) for name in self.held}
        for name in NAMES:
            given = given @ made[name].T @ made[name] if name in made else given
        return given


class InTurn(Base):
    """Each step depends on the step before."""

    def forward(self, given: torch.Tensor) -> Any:
        for name in set(self.names):
            given = self.parts[name](given).cos()
        return given


class Listed(Base):
    """The result has the order of the set."""

    def forward(self, given: torch.Tensor) -> Any:
        return [self.parts[name](given) for name in set(self.names)]


class Paired(Base):
    """Two sets in the same order hide that the order counts."""

    def forward(self, given: torch.Tensor) -> Any:
        lengths = {len(name) * 10 for name in self.names} | {1}
        made = dict(zip(set(self.names), lengths, strict=False))
        return torch.addmm(given, given, given.T @ given, alpha=made["one"])


class Random(Base):
    """Each item draws random numbers."""

    def forward(self, given: torch.Tensor) -> Any:
        made = {name: torch.rand_like(given) for name in set(self.names)}
        return self.parts["one"](given) * made["one"] - made["two"]


class Written(Base):
    """Each item changes a buffer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3, 4))

    def forward(self, given: torch.Tensor) -> Any:
        for name in set(self.names):
            self.total.mul_(len(name)).add_(1)
        return self.parts["one"](given) + self.total


class Assigned(Base):
    """The last item of the set stays in the model."""

    last = ""

    def forward(self, given: torch.Tensor) -> Any:
        for name in set(self.names):
            self.last = name
        return self.parts["one"](given)


class Constant(ByName):
    """Makes a tensor from numbers, which is a constant in the graph."""

    def forward(self, given: torch.Tensor) -> Any:
        return super().forward(given) * torch.tensor([0.5, 1.0, 1.5, 2.0])


class Counted(ByName):
    """The numbers are in the order of the set."""

    def forward(self, given: torch.Tensor) -> Any:
        found = torch.tensor([float(self.names.index(name)) for name in set(self.names)])
        return super().forward(given) * found.sum() + found[0]


class Attending(Base):
    """Calls `flex_attention`, in which torch itself iterates over a set of device names."""

    def forward(self, given: torch.Tensor) -> Any:
        if self.names[-1] in {"two", "three"} and len(self.names) > 1:
            given = self.parts["one"](given)
        given = given.reshape(1, 1, 3, 4)
        return flex_attention(given, given, given)


class Branching(Base):
    """The graph has graphs inside it, and neither depends on the order."""

    def forward(self, given: torch.Tensor) -> Any:
        def add(part: torch.Tensor) -> torch.Tensor:
            made = {name: part * len(name) for name in set(self.names)}
            return made["one"].cos() + made["two"]

        total = {name: given * len(name) for name in set(self.names)}
        return torch.cond(given.sum() > 0, add, torch.sin, (total["two"],))


class BranchInTurn(Base):
    """Each step inside a branch depends on the step before."""

    def forward(self, given: torch.Tensor) -> Any:
        def step(part: torch.Tensor) -> torch.Tensor:
            for name in set(self.names):
                part = part.cos() * len(name)
            return part

        return torch.cond(given.sum() > 0, step, torch.sin, (given,))


class Weighed(Base):
    """A number of the set is in the graph; each forward finds it in another way."""

    def __init__(self, find: Callable[[set[str]], int]) -> None:
        super().__init__()
        self.find = find

    def forward(self, given: torch.Tensor) -> Any:
        return torch.addmm(given, given, given.T @ given, alpha=self.find(set(self.names)))


WAYS: dict[str, Callable[[set[str]], int]] = {
    "pop": lambda names: len(names.pop()),
    "list": lambda names: len(list(names)[0]),  # noqa: RUF015 - another code of torch
    "difference": lambda names: len(list(names - {"two"})[0]),  # noqa: RUF015
    "next": lambda names: len(next(iter(names))),
    "unpacked": lambda names: len([*names][0]),  # noqa: RUF015
    "join": lambda names: len(",".join(names).split(",")[0]),
    "text": lambda names: len(str(names).split(",", maxsplit=1)[0]),
    "a key": lambda names: len(max(names, key=lambda _: 1)),
}


ATTENDING = pytest.param(
    Attending,
    marks=pytest.mark.skipif(
        Version(torch.__version__).release < (2, 12),
        reason="2.11 does not compile attention of a tensor to itself",
    ),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", [ByName, Held, Constant, ATTENDING, Branching])
def test_a_set_whose_order_does_not_matter_has_an_entry(kind: Callable[..., Any], tmp_path: Path):
    rebuilt(kind, tmp_path, lambda model: model(x()))
    fresh, other = kind(NAMES[::-1] if kind is Held else NAMES).eval(), kind(NAMES[:2]).eval()
    same, differs = (serve_warm.compile(each, dynamic=False) for each in (fresh, other))
    with started(tmp_path), eager_below():
        found, changed = served(lambda: same(x())), served(lambda: differs(x()))
    assert (found.level, found.compiles, changed.level) == (2, 0, 1)
    close(found.value, fresh(x()))
    close(changed.value, other(x()))


REFUSED: dict[str, Callable[[], Any]] = {
    **{way: lambda find=find: Weighed(find) for way, find in WAYS.items()},
    **{
        kind.__name__: kind
        for kind in (InTurn, Listed, Paired, Random, Written, Assigned, Counted, BranchInTurn)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_set_whose_order_is_in_the_graph_has_no_entry(name: str, tmp_path: Path):
    """Torch has different code for each way through a set."""
    model = serve_warm.compile(REFUSED[name]().eval(), dynamic=False)
    refused = refusal(tmp_path, lambda: model(x()))
    assert "it iterates over a set" in refused
    assert "in a list" in refused


@pytest.mark.parametrize(("sets", "largest"), [(1, 2), (2, 2), (3, 5), (5, 3)])
def test_items_and_sets_are_arranged_independently(sets: int, largest: int):
    """Each two items occur in both orders, each item at several places, and no two sets agree."""
    names = [str(number) for number in range(largest)]
    orders = [[names] * sets]
    orders += [[list(f(names, n)) for n in range(sets)] for f in arrangements(sets, largest)]

    for number in range(sets):
        assert all(sorted(order[number]) == names for order in orders)
        for first, second in itertools.combinations(names, 2):
            found = {o[number].index(first) < o[number].index(second) for o in orders}
            assert found == {True, False}
    for first, second in itertools.combinations(range(sets), 2):
        assert any((o[first] == names) != (o[second] == names) for o in orders)
