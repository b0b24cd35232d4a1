# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Random numbers that a forward draws from Python's `random` module.

Dynamo does not draw these numbers in the graph. The code around the graph calls a helper that draws
all numbers of a call, in the order of the forward. The helper is a closure of Dynamo, so a file
cannot name it. This module stores the draws as data, and makes the helper from the data at a start.

Seen in torch 2.11 to 2.15 (`_get_gen_rand_values_fn`):
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/output_graph.py
"""

from __future__ import annotations

import contextlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.private_apis.cpython import random_generator
from serve_warm.private_apis.dynamo import RANDOM_NUMBERS

Draw = list[object]
"""The name of a function in `random`, its positional arguments, and its keyword arguments."""

FUNCTIONS = ("random", "randint", "randrange", "uniform")
"""Functions that Dynamo can trace (2.13). Each of them draws from the generator of the module."""

USES_NUMBERS = (
    "its result depends on numbers from Python's random module, which a library cannot draw: pass "
    "the numbers as an argument, or use level 2"
)
"""Reason and advice for a call that has no library because it uses random numbers."""


def read_draws(value: object) -> list[Draw] | None:
    """Return the draws of one of Dynamo's helpers; None if `value` is not a helper.

    Raises:
        NoEntry: the helper draws from an object other than the generator of `random`.
    """
    helper = inspect.unwrap(value) if inspect.isfunction(value) else None
    if helper is None or helper.__name__ != RANDOM_NUMBERS:
        return None
    calls = inspect.getclosurevars(helper).nonlocals["random_calls"]
    return [_draw(*call) for call in calls]


def _draw(function: object, args: Sequence[object], kwargs: dict[str, object]) -> Draw:
    name = getattr(function, "__name__", "")
    if name not in FUNCTIONS or function != _method(name):
        raise NoEntry(
            "it draws from a random.Random object, whose state would be a constant of the graph: "
            "use random.uniform, or pass the numbers as an argument"
        )
    if not all(map(_is_plain, (*args, *kwargs.values()))):
        raise NoEntry(f"it calls random.{name} with an argument that is not a finite number")
    return [name, list(args), dict(kwargs)]


def _is_plain(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int)


def _method(name: str) -> Callable[..., object]:
    # Not `getattr(random, name)`: an application may replace the function in the module, and a
    # forward may have imported the original function by name.
    found: Callable[..., object] = getattr(random_generator(), name)
    return found


def drawing(draws: Sequence[Sequence[Any]]) -> Callable[[], list[object]]:
    """Return a function that draws the numbers of one call, in order.

    Raises:
        ValueError: a draw does not name one of `FUNCTIONS`.
    """
    unknown = {name for name, _, _ in draws} - {*FUNCTIONS}
    if unknown:
        raise ValueError(f"the entry calls random.{min(unknown)}, which serve_warm does not know")
    calls = [(_method(name), args, kwargs) for name, args, kwargs in draws]
    return lambda: [function(*args, **kwargs) for function, args, kwargs in calls]


def is_number(source: str) -> bool:
    """Return whether Dynamo's name of a graph input refers to a drawn number."""
    return source.startswith("random_value_")


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Let a block draw numbers of its own from Python's generator, and restore the state after it.

    torch draws the cache key of a graph that it cannot cache from this generator (2.11 to 2.13).
    With the same state in each block, two graphs would get the same key, and so the same code.
    """
    before = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(before)


class Unused:
    """Stands for the numbers of a call, where no code may use the numbers."""

    def __getitem__(self, number: int) -> NoReturn:
        """Raise `NoEntry`, because the code around a graph reads a number."""
        raise NoEntry(USES_NUMBERS)
