# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that a forward creates, whose functions read what torch does not guard."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, refusal
from serve_warm.precompile.dispatch.session import SESSION

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    SESSION.unload()


def classes(state: dict[str, float]) -> Any:  # noqa: C901 - many small functions
    """Return classes whose functions read one dict, as classes made in a factory do."""
    calls = 0

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(self: Any) -> float:
            return function(self) * state["x"]

        return inner

    class Base:
        number = state["x"]

        def get(self) -> float:
            return state["x"]

    class Reading(Base):
        @property
        def held(self) -> float:
            return state["x"]

        @staticmethod
        def fixed() -> float:
            return state["x"]

        def __call__(self) -> float:
            return state["x"]

        def __add__(self, other: float) -> float:
            return state["x"] + other

        def __getitem__(self, key: int) -> float:
            return state["x"] + key

        def __len__(self) -> int:
            return int(state["x"])

        def __iter__(self) -> Iterator[float]:
            return iter([state["x"]])

        def __contains__(self, value: float) -> bool:
            return state["x"] == value

        def __getattr__(self, name: str) -> float:
            if name == "missing":
                return state["x"]
            raise AttributeError(name)

        @decorated
        def scaled(self) -> float:
            return 1.0

        def by_default(self, given: dict[str, float] = state) -> float:
            return given["x"]

        def by_keyword(self, *, given: dict[str, float] = state) -> float:
            return given["x"]

        def by_function(self, given: Callable[[], float] = lambda: state["x"]) -> float:
            return given()

        def of_base(self) -> float:
            return super().number

        def of_class(self) -> float:
            return Base.number

        def count(self) -> int:
            nonlocal calls
            calls += 1
            return calls

        def given(self, given: dict[str, float] | None = None) -> float:
            return 1.0 if given is None else given["x"]

    class Starting:
        def __init__(self) -> None:
            self.value = state["x"]

    class Listed(list[float]):
        def get(self) -> float:
            return state["x"]

    @dataclasses.dataclass
    class Data:
        table: dict[str, float] = dataclasses.field(default_factory=lambda: state)
        value: float = 2.0

    @dataclasses.dataclass
    class Plain:
        value: float = 2.0

        def get(self) -> float:
            return self.value

    return SimpleNamespace(
        Reading=Reading, Starting=Starting, Listed=Listed, Data=Data, Plain=Plain, state=state
    )


UNGUARDED: dict[str, Callable[[Any], Any]] = {
    "a method": lambda of: of.Reading().get(),
    "a property": lambda of: of.Reading().held,
    "a static method": lambda of: of.Reading().fixed(),
    "a call": lambda of: of.Reading()(),
    "an operator": lambda of: of.Reading() + 1,
    "an item": lambda of: of.Reading()[0],
    "a length": lambda of: len(of.Reading()),
    "a loop": lambda of: next(iter([each for each in of.Reading()])),  # noqa: C416
    "a membership": lambda of: 2.0 if 2.0 in of.Reading() else 5.0,
    "__getattr__": lambda of: of.Reading().missing,
    "a decorator": lambda of: of.Reading().scaled(),
    "a default": lambda of: of.Reading().by_default(),
    "a keyword's default": lambda of: of.Reading().by_keyword(),
    "a function as default": lambda of: of.Reading().by_function(),
    "super": lambda of: of.Reading().of_base(),
    "a class": lambda of: of.Reading().of_class(),
    "a counter": lambda of: of.Reading().count(),
    "__init__": lambda of: of.Starting().value,
    "a subclass of list": lambda of: of.Listed().get(),
    "a factory of a dataclass": lambda of: of.Data().table["x"],
}

GUARDED: dict[str, Callable[[Any], Any]] = {
    "an argument": lambda of: of.Reading().given(of.state),
    "a function of a class": lambda of: of.Reading.fixed(),
    "a dataclass": lambda of: of.Plain().get(),
}


class Model(nn.Module):
    def __init__(self, of: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = of
        self.read = read

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.read(self.of)


@pytest.mark.parametrize("name", UNGUARDED)
def test_a_value_that_torch_does_not_guard_is_refused(tmp_path: Path, name: str):
    """An entry would keep the value of the build, at a start and after READY."""
    compiled = serve_warm.compile(
        Model(classes({"x": 2.0}), UNGUARDED[name]).eval(), level=2, dynamic=False
    )
    why = refusal(tmp_path, lambda: compiled(torch.ones(1)))
    assert "an object" in why
    assert "create the object outside of forward" in why


@pytest.mark.parametrize("name", GUARDED)
def test_a_value_that_torch_guards_has_an_entry_that_follows_it(tmp_path: Path, name: str):
    read = GUARDED[name]
    given = torch.ones(1)
    compiled = serve_warm.compile(Model(classes({"x": 2.0}), read).eval(), level=2, dynamic=False)
    assert build(tmp_path, lambda: compiled(given)).refused == {}
    of = classes({"x": 2.0})
    model = Model(of, read).eval()
    compiled = serve_warm.compile(model, level=2, dynamic=False)
    torch._dynamo.reset()
    assert SESSION.load(tmp_path) == ""
    with torch.inference_mode(), eager_below():
        assert compiled(given).item() == model(given).item() == read(of)
        of.state["x"] = 5.0
        assert compiled(given).item() == model(given).item() == read(of)


class Level(enum.Enum):
    """Has a member whose value holds something that can change."""

    LISTED = (5, [1.0, 2.0, 3.0])


class OfLevel(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * sum(Level["LISTED"].value[-1])


class Held:
    number = 2.0


class Kinds(enum.Enum):
    HELD = Held
    OF_TORCH = nn.ReLU


class OfKind(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * Kinds["HELD"].value.number


class OfFixed(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * sum(Fixed["ONE"].value[-1])


class Fixed(enum.Enum):
    ONE = (5, (1.0, 2.0, 3.0))


def test_what_the_value_of_a_member_holds_counts_too(tmp_path: Path):
    """Dynamo takes the values of members as constants, and a list in a tuple can change."""
    compiled = serve_warm.compile(OfLevel().eval(), level=2, dynamic=False)
    why = refusal(tmp_path / "refused", lambda: compiled(torch.ones(1)))
    assert "Level.LISTED has a tuple as value that can change, or that holds one" in why
    compiled = serve_warm.compile(OfKind().eval(), level=2, dynamic=False)
    why = refusal(tmp_path / "of a class", lambda: compiled(torch.ones(1)))
    assert "Kinds.HELD has a type as value that can change" in why
    compiled = serve_warm.compile(OfFixed().eval(), level=2, dynamic=False)
    assert build(tmp_path / "made", lambda: compiled(torch.ones(1))).refused == {}
