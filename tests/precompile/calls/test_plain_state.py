# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""State in plain tensors: a build runs a call several times, but the state advances once."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, served, started
from serve_warm.precompile.calls.plain_state import PlainState
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity.distance_check import compare_in_build
from serve_warm.precompile.parity.eager import why_not_twice

ROWS = 4
"""Rows of a cache. A build that counts each of its runs writes past the end."""


class Cache:
    def __init__(self) -> None:
        self.position, self.rows = torch.zeros(1, dtype=torch.int64), torch.zeros(ROWS, 4)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, self.position, x[:1])
        self.position.add_(1)
        return self.rows * 1


@dataclass(slots=True)
class Slots:
    cache: Cache


class Pair(NamedTuple):
    position: torch.Tensor
    rows: torch.Tensor


class Stateful(nn.Module):
    """Adds a row to its cache in each call. Its subclasses hold the cache in different places."""

    def __init__(self) -> None:
        super().__init__()
        self.hold(Cache())

    def hold(self, cache: Cache) -> None:
        self.position, self.rows = cache.position, cache.rows

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.position, self.rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position, rows = self.state()
        rows.index_copy_(0, position, x[:1])
        position.add_(1)
        return rows * 1


class InList(Stateful):
    def hold(self, cache: Cache) -> None:
        self.kept = [cache.position, cache.rows]

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kept[0], self.kept[1]


class InTuple(InList):
    def hold(self, cache: Cache) -> None:
        self.kept = Pair(cache.position, cache.rows)


class InDict(Stateful):
    def hold(self, cache: Cache) -> None:
        self.kept = {"layers": [{"position": cache.position, "rows": cache.rows}]}

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self.kept["layers"][0]
        return kept["position"], kept["rows"]


class InObject(Stateful):
    def hold(self, cache: Cache) -> None:
        self.cache = cache

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.position, self.cache.rows


class InSlots(Stateful):
    def hold(self, cache: Cache) -> None:
        self.slots = Slots(cache)

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.slots.cache.position, self.slots.cache.rows


class Unregistered(Stateful):
    """The cache consists of buffers of a module that only a list holds."""

    def hold(self, cache: Cache) -> None:
        part = nn.Module()
        part.register_buffer("position", cache.position)
        part.register_buffer("rows", cache.rows)
        self.parts = [part]

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.parts[0].position, self.parts[0].rows


class Assigned(Stateful):
    """Assigns new tensors to its attributes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = self.rows.index_copy(0, self.position, x[:1])
        self.position = self.position + 1
        return self.rows * 1


MODULES = [Stateful, InList, InTuple, InDict, InObject, InSlots, Unregistered, Assigned]


def x() -> torch.Tensor:
    return torch.ones(2, 4)


def eager(callee: Any, *tensors: torch.Tensor) -> Any:
    return callee(*tensors)


def difference(callee: Any, code: Callable[..., Any], *tensors: torch.Tensor) -> float:
    """Return the difference of some code from itself."""
    return compare_in_build(callee, code, code, list(tensors or (x(),))).difference


def check_unchanged(callee: Any, state: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Compare a call with itself, and check that the state is as before."""
    before = state()
    assert difference(callee, eager) == 0.0
    assert why_not_twice(callee, [eager], [x()]) == "it writes into buffers"
    assert all(now is old for now, old in zip(state(), before, strict=True))
    assert state()[0].tolist() == [0]
    assert not state()[1].any()


@pytest.mark.parametrize("kind", MODULES)
@torch.no_grad()
def test_state_in_plain_tensors_is_as_before(kind: type[Stateful]):
    module = kind()
    check_unchanged(module, module.state)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("inference", [True, False])
def test_large_tensors_are_restored(kind: type[Stateful], inference: bool):
    """They are copied when the first run is about to write into them."""
    with torch.inference_mode(inference):
        module = kind()
    state, before = PlainState(module, large_bytes=0), module.state()
    with torch.inference_mode():
        for _ in range(2):
            with state.watched():
                module(x())
            state.restore()

    assert len(state.before) == 2
    assert all(now is old for now, old in zip(module.state(), before, strict=True))
    assert not any(map(torch.any, before))


def test_inference_tensors_are_restored():
    """No writes into inference tensors are counted. If only read, they can be of any kind."""
    with torch.inference_mode():
        module = Stateful()
        module.read_only = torch.ones(1).expand(4)
        check_unchanged(module, module.state)


@torch.no_grad()
def test_inference_tensors_that_are_only_read_need_no_inference_mode():
    """A call with `no_grad` may read a buffer or a plain tensor that was made in inference mode."""
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("table", torch.ones(4))
        module.plain = torch.ones(4)

    def read(callee: Any, given: torch.Tensor) -> torch.Tensor:
        return given * callee.table * callee.plain

    assert difference(module, read) == 0.0


SHARED = Cache()


def use_global(given: torch.Tensor) -> torch.Tensor:
    return SHARED.add(given)


def _callables() -> dict[str, tuple[Callable[..., Any], Cache]]:
    cache, of_partial = Cache(), Cache()

    def use_closure(given: torch.Tensor) -> torch.Tensor:
        return cache.add(given)

    def use_argument(held: Cache, given: torch.Tensor) -> torch.Tensor:
        return held.add(given)

    module = InObject()
    return {
        "closure": (use_closure, cache),
        "global": (use_global, SHARED),
        "method": (cache.add, cache),
        "method of a module": (module.forward, module.cache),
        "partial": (functools.partial(use_argument, of_partial), of_partial),
        "function of a module": (lambda given: module(given), module.cache),  # noqa: PLW0108
    }


@pytest.mark.parametrize("name", _callables())
@torch.no_grad()
def test_state_that_a_function_or_method_reaches_is_as_before(name: str):
    """The callable is no module, but it has a module or an object to read."""
    callee, cache = _callables()[name]
    check_unchanged(callee, lambda: (cache.position, cache.rows))


@torch.no_grad()
def test_code_that_forgets_plain_state_is_refused():
    """The result is right once, but the cache stays empty."""
    module = InObject()

    def forgetful(callee: InObject, given: torch.Tensor) -> torch.Tensor:
        return torch.cat([given[:1], callee.cache.rows[1:]])

    with pytest.raises(NoEntry, match="differ"):
        compare_in_build(module, eager, forgetful, [x()])


@torch.no_grad()
def test_a_first_input_that_writes_equal_values_hides_no_write():
    """Zeros leave an empty cache as it is, but the comparison adds inputs with other values."""
    module = nn.Module()
    module.rows = torch.zeros(2, 4)

    def add(callee: Any, given: torch.Tensor) -> torch.Tensor:
        callee.rows.add_(given)
        return callee.rows.bfloat16()

    difference(module, add, torch.zeros(2, 4))

    assert not module.rows.any()


@torch.no_grad()
def test_large_tensors_that_are_only_read_are_not_copied():
    """They may be all the weights of a model."""
    module = InObject()
    module.weights = {"one": torch.eye(4)}
    state = PlainState(module, large_bytes=0)
    assert state.before == []
    with state.watched():
        module(x() @ module.weights["one"])
    assert sorted(tuple(each.shape) for each in state.before) == [(1,), (ROWS, 4)]


@torch.no_grad()
def test_state_in_python_objects_is_named_as_a_cause():
    """A counter in an object is not restored, so that two eager runs differ."""
    module = nn.Module()
    module.calls = deque([0])

    def count(callee: Any, given: torch.Tensor) -> torch.Tensor:
        callee.calls.append(callee.calls.pop() + 1)
        return given * callee.calls[0]

    with pytest.raises(NoEntry, match=r"two eager runs .* keep the state in a buffer"):
        difference(module, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *((kind, 2) for kind in (Stateful, InList, InDict, InObject, Assigned)),
        *((kind, 3) for kind in (Stateful, InObject, Assigned)),
    ],
)
def test_a_call_in_a_build_advances_plain_state_once(kind: Any, level: int, tmp_path: Path):
    model, other = kind().eval(), kind().eval()
    compiled = serve_warm.compile(model, dynamic=False, level=level)
    table = build(tmp_path, lambda: compiled(x()), level=level)
    fresh = kind().eval()
    again = serve_warm.compile(fresh, dynamic=False, level=level)
    with torch.inference_mode(), started(tmp_path):
        result = served(lambda: again(x()))
        expected = other(x())

    assert not table.refused
    assert (result.level, result.compiles) == (level, 0)
    torch.testing.assert_close(result.value, expected)
    for each in (model, fresh):
        torch.testing.assert_close(each.state(), other.state())
