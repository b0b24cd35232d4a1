# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One call in several forms: keywords in another order, or arguments by position instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build, eager_below, served, started
from serve_warm.precompile.calls.forms import Parameters, form_of, in_form, parameters_of
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.report import ParityResult

pytestmark = pytest.mark.slow

ONE = torch.linspace(-1, 1, 12).reshape(3, 4)
OTHER = torch.linspace(2, 5, 12).reshape(3, 4)
"""Tensors of one shape, so that only their order tells them apart."""


class Plain(torch.nn.Module):
    def forward(self, a: Any, b: Any, *, scale: float = 1.0, c: Any = None) -> Any:
        return torch.mm(a, b.T) * scale + (0 if c is None else c)


class Sizes(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return torch.mm(a, b.T)


class Collecting(torch.nn.Module):
    def forward(self, **tensors: Any) -> Any:
        first, second = tensors.values()
        return torch.mm(first, second.T)


class Both(torch.nn.Module):
    def forward(self, a: Any, b: Any, **others: Any) -> Any:
        first, second = others.values()
        return torch.mm(a, b.T) + first - second


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs) * (1 + len(args))

    return inner


class Wrapped(Plain):
    forward = _counting(Plain.forward)


class InContexts(Plain):
    forward = torch.no_grad()(torch.autocast("cpu", enabled=False)(Plain.forward))


class Hooked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda _, args: tuple(2 * each for each in args))


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _level(
    model: torch.nn.Module, folder: Path, made: Call, *calls: Call, dynamic: bool = False
) -> list[int]:
    """Return the levels of calls after a build with one; each answer is eager's, also again."""
    compiled = serve_warm.compile(model.eval(), dynamic=dynamic)
    with eager_below():
        table = build(folder, lambda: compiled(*made[0], **made[1]))
    assert not table.refused, table.refused
    levels = []
    with started(folder), torch.inference_mode(), eager_below():
        for args, kwargs in calls:
            expected = model(*args, **kwargs)
            for _ in range(3):
                now = served(lambda a=args, k=kwargs: compiled(*a, **k))
                torch.testing.assert_close(now.value, expected)
            levels.append(now.level)
    return levels


BY_NAME: Call = ((), {"a": ONE, "b": OTHER, "scale": 2.0})
REORDERED: Call = ((), {"scale": 2.0, "b": OTHER, "a": ONE})
IN_PART: Call = ((ONE,), {"scale": 2.0, "b": OTHER})
SWAPPED: Call = ((OTHER, ONE), {"scale": 2.0})
C, D = torch.ones(3), torch.zeros(3)
NAMES: Call = ((), {"a": ONE, "b": OTHER})
COLLECTED: Call = ((ONE, OTHER), {"c": C, "d": D})

OTHER_ORDER: Call = ((), {"b": ONE, "a": OTHER, "scale": 2.0})
OTHER_SCALE: Call = ((), {"b": OTHER, "scale": 3.0, "a": ONE})

FORMS: dict[str, tuple[torch.nn.Module, list[Call], list[int]]] = {
    "by name": (Plain(), [BY_NAME, REORDERED, IN_PART, SWAPPED, OTHER_ORDER], [2] * 4),
    "by position": (
        Plain(),
        [((ONE, OTHER), {"scale": 2.0}), REORDERED, OTHER_SCALE, ((), {"b": OTHER, "a": ONE})],
        [2, 1, 1],
    ),
    # The wrapper is torch's, and cannot show the order of its arguments to the forward.
    "in a context manager": (InContexts(), [BY_NAME, REORDERED, IN_PART, SWAPPED], [2, 2, 2]),
    # Code can see the form of these calls.
    "collected": (Collecting(), [NAMES, NAMES, ((), {"b": ONE, "a": OTHER})], [2, 1]),
    "collected beside others": (
        Both(),
        [COLLECTED] * 2 + [((ONE, OTHER), {"d": C, "c": D})],
        [2, 1],
    ),
    "by place": (Wrapped(), [NAMES, NAMES, ((ONE,), {"b": OTHER})], [2, 1]),
    "behind a wrapper": (Wrapped(), [NAMES, NAMES, ((), {"b": OTHER, "a": ONE})], [2, 1]),
    "a hook": (Hooked(), [((ONE, OTHER), {}), ((ONE, OTHER), {}), ((ONE,), {"b": OTHER})], [2, 1]),
    # Arguments with a parameter do not show their position. Others keep their order.
    "around collected ones": (
        Both(),
        [COLLECTED, ((), {"c": C, "b": OTHER, "d": D, "a": ONE})],
        [2],
    ),
}
"""Models, the call of a build and later calls, and the levels of the later calls."""


@pytest.mark.parametrize("name", FORMS)
def test_another_form_of_a_call_is_the_same_call_unless_code_can_see_it(tmp_path: Path, name: str):
    """Tensors of equal shape reach the parameters that they were passed for."""
    model, calls, levels = FORMS[name]
    assert _level(model, tmp_path / "entries", *calls) == levels


def test_open_sizes_hold_in_another_form(tmp_path: Path):
    """Conditions on sizes are about the entry's tensors, in its order."""
    wide, tall = torch.ones(3, 4), torch.ones(7, 4)
    levels = _level(
        Sizes(),
        tmp_path / "entries",
        ((), {"a": wide, "b": tall}),
        ((), {"b": torch.ones(9, 5), "a": torch.ones(6, 5)}),
        ((), {"b": torch.ones(6, 5), "a": torch.ones(9, 5)}),
        dynamic=True,
    )

    assert levels == [2, 2]


def test_a_function_is_called_in_any_form(tmp_path: Path):
    """Functions and methods have parameters as modules do."""

    def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b.T) - b.sum()

    compiled = serve_warm.compile(subtract, dynamic=False)
    with eager_below():
        table = build(tmp_path / "entries", lambda: compiled(ONE, OTHER))
    with started(tmp_path / "entries"), torch.inference_mode(), eager_below():
        now = served(lambda: compiled(b=ONE, a=OTHER))

        assert (table.refused, now.level) == ({}, 2)
        torch.testing.assert_close(now.value, subtract(OTHER, ONE))


def test_a_build_makes_one_entry_for_all_forms(tmp_path: Path):
    """Declared inputs may differ in their form only."""
    model = serve_warm.compile(Plain().eval(), dynamic=False)
    with eager_below():
        table = build(
            tmp_path / "entries", lambda: model(ONE, OTHER), lambda: model(b=OTHER, a=ONE)
        )
    assert sum(len(unit.entries) for unit in table.units.values()) == 1


def test_a_check_compares_another_form_with_eager(tmp_path: Path):
    """The entry and eager get the tensors in the entry's order, so they agree."""
    model = Plain().eval()
    compiled = serve_warm.compile(model, dynamic=False)
    with eager_below():
        build(tmp_path / "entries", lambda: compiled(a=ONE, b=OTHER))
    with started(tmp_path / "entries"), torch.inference_mode(), eager_below():
        checks = SESSION.begin_checks(one_in=0, can_compile=lambda: True, on_failure=lambda _: None)
        assert checks is not None
        with checks.checking():
            value = compiled(b=ONE, a=OTHER)
        report = checks.report()

        torch.testing.assert_close(value, model(OTHER, ONE))
        assert report.results[ParityResult.SAME.value] == 1
        assert report.failed == 0


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        *(((1, 2, 3), {}), ((1,), {"a": 2}), ((), {"a": 1})),
        *(((), {"a": 1, "b": 2, "e": 3}), ((), {"hidden": 1, "b": 2})),
    ],
)
def test_a_call_with_other_arguments_has_no_form(args: tuple[Any, ...], kwargs: dict[str, Any]):
    """Too many or too few arguments, a repeated, a collected, or an unnamed argument."""
    parameters = Parameters(positional=("a", "b"), keyword_only=("c",))
    hidden = Parameters(positional=("hidden", "b"), unnamed=1)
    form = form_of("t0, b=t1")
    assert form == (1, ("b",))
    assert in_form(form, parameters, args, kwargs) is None
    assert in_form(form, hidden, (), kwargs) is None


def test_only_python_code_has_parameters():
    """Another `__call__`, a partial, a class and a built-in function keep their calls' form."""

    class Calling(torch.nn.Module):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

        def forward(self, a: Any) -> Any:
            return a

    for callee in (Calling(), functools.partial(lambda a: a), Plain, torch.mm):
        assert parameters_of(callee) == Parameters()
    assert parameters_of(Plain()).positional == ("a", "b")
    assert parameters_of(Plain()._call_impl) == parameters_of(Plain())
