# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Registries that other code fills: an entry relies on the keys that it looked up alone."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build, eager_below, served, started
from soundness.rows import Numbered

pytestmark = pytest.mark.slow


class Registry(dict[Any, Any]):
    """Maps a class, by its name, to settings, as `_CAN_RECORD_REGISTRY` of transformers does."""

    def get(self, key: Any) -> Any:
        return super().get(str(key)) or {}


class Kind(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


BY_NAME = Registry()
BY_DTYPE: dict[Any, Any] = {}
BY_FUNCTION: dict[Any, Any] = {}
TABLES: dict[str, tuple[dict[Any, Any], Any]] = {
    "name": (BY_NAME, "other"),
    "dtype": (BY_DTYPE, torch.int8),
    "function": (BY_FUNCTION, tripled),
}
"""Tables, and a key of each that the build does not have."""


@pytest.fixture(autouse=True)
def _as_at_the_build() -> Iterator[None]:
    _fill()
    yield
    for table, _ in TABLES.values():
        table.clear()


def _fill() -> None:
    for table, _ in TABLES.values():
        table.clear()
    BY_NAME.update({"net": {"scale": 2.0}, "last": {"scale": 5.0}})
    BY_DTYPE.update({torch.float64: 2.0, torch.float32: 3.0})
    BY_FUNCTION.update({doubled: 2.0, Kind.FAST: 2.0, Kind.SLOW: 7.0})


def _add(first: bool) -> None:
    """Add a key to each table, before all others or after them."""
    for table, key in TABLES.values():
        before = dict(table)
        if first:
            table.clear()
        table[key] = {"scale": 9.0} if table is BY_NAME else 9.0
        table.update(before)


def _change() -> None:
    BY_NAME["net"] = {"scale": 3.0}
    BY_DTYPE[torch.float64] = 3.0
    BY_FUNCTION.update({doubled: 3.0, Kind.FAST: 3.0})


def _remove() -> None:
    for key in ("net", "last"):
        BY_NAME.pop(key)
    BY_DTYPE.pop(torch.float64)
    for key in (doubled, Kind.FAST):
        BY_FUNCTION.pop(key)


def _absent() -> float:
    return 2.0 if BY_NAME.get("other") == {} else 3.0


def _caught() -> float:
    try:
        BY_NAME["net"]
    except KeyError:
        return 3.0
    return 2.0


LOOKUPS: dict[str, Callable[[], float]] = {
    "a method of a subclass": lambda: BY_NAME.get("net")["scale"],
    "an item of a subclass": lambda: BY_NAME["net"]["scale"],
    "a default": lambda: dict.get(BY_NAME, "net", {"scale": 4.0})["scale"],
    "a key that is not there": _absent,
    "whether a key is there": lambda: 2.0 if "net" in BY_NAME else 3.0,
    "an error for a missing key": _caught,
    "a dtype": lambda: BY_DTYPE[torch.float64],
    "a dtype, with a default": lambda: BY_DTYPE.get(torch.float64, 4.0),
    "a function": lambda: BY_FUNCTION[doubled],
    "whether a function is there": lambda: 2.0 if doubled in BY_FUNCTION else 3.0,
    "a member of an enum": lambda: BY_FUNCTION[Kind.FAST],
    "a member of an enum, with a default": lambda: BY_FUNCTION.get(Kind.FAST, 4.0),
}
"""Reads of single keys, each of which gives 2 at the build."""

READS_OF_ALL: dict[str, Callable[[], float]] = {
    "len": lambda: float(len(BY_NAME)),
    "truth": lambda: 2.0 if BY_NAME else 3.0,
    "iteration": lambda: float(sum(1 for _ in BY_NAME)),
    "keys": lambda: float(len(BY_NAME.keys())),
    "values": lambda: float(len(list(BY_NAME.values()))),
    "items": lambda: float(sum(1 for _ in BY_NAME.items())),
    "list": lambda: float(len(list(BY_NAME))),
    "dict": lambda: float(len(dict(BY_NAME))),
    "unpacking": lambda: float(len([*BY_NAME])),
    "the first key": lambda: float(len(next(iter(BY_NAME)))) - 1.0,
    "the last key": lambda: float(len(next(reversed(BY_NAME)))) - 2.0,
    "equality": lambda: 2.0 if BY_NAME == {"net": {"scale": 2.0}, "last": {}} else 3.0,
    "a union": lambda: float(len(BY_NAME | {})),
    "a search": lambda: 3.0 if any(key == "other" for key in BY_NAME) else 2.0,
    "str": lambda: float(len(str(BY_NAME))),
    "the first dtype's value": lambda: BY_DTYPE[next(iter(BY_DTYPE))],
    "the first function's value": lambda: BY_FUNCTION[next(iter(BY_FUNCTION))],
    "the values of functions": lambda: sum(BY_FUNCTION.values()),
}
"""Reads that depend on more than a key."""


RAISED = (KeyError, TypeError, StopIteration)
"""What eager raises where a key is gone."""


class Model(Numbered):
    """A product of matrices times a number of a table."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self.read = read

    def number(self) -> Any:
        return self.read()


def _changes() -> dict[str, Callable[[], None]]:
    return {
        "nothing": lambda: None,
        "a key before all others": lambda: _add(first=True),
        "a key after all others": lambda: _add(first=False),
        "another value": _change,
        "no value": _remove,
    }


def _answers(read: Callable[[], float], folder: Path) -> dict[str, tuple[int, bool]]:
    """Return the level after each change, and whether the answer was eager's."""
    model = serve_warm.compile(Model(read).eval(), dynamic=False)
    x = torch.eye(4)
    with eager_below():
        table = build(folder, lambda: model(x))
    assert not table.refused, table.refused
    found = {}
    for name, change in _changes().items():
        _fill()
        with started(folder), torch.inference_mode(), eager_below():
            served(lambda: model(x))
            change()  # while it serves
            try:
                now = served(lambda: model(x))
            except RAISED:
                found[name] = (1, _raises(read))
                continue
        found[name] = (now.level, torch.equal(now.value, Model(read)(x)))
    return found


def _raises(read: Callable[[], float]) -> bool:
    try:
        read()
    except RAISED:
        return True
    return False


@pytest.mark.parametrize("name", LOOKUPS)
def test_other_keys_change_nothing_for_a_lookup(tmp_path: Path, name: str):
    """New keys do not affect an entry. It refuses if the value of its key changed or is gone."""
    found = _answers(LOOKUPS[name], tmp_path / "entries")
    assert all(is_right for _, is_right in found.values()), found
    assert found["nothing"][0] == 2
    is_there = name != "a key that is not there"  # which is the key that is added
    for other in ("a key before all others", "a key after all others"):
        assert found[other][0] == (2 if is_there else 1)
    assert found["no value"][0] == (1 if is_there else 2)


@pytest.mark.parametrize("name", READS_OF_ALL)
def test_what_depends_on_all_keys_follows_each_change(tmp_path: Path, name: str):
    """The number and the order of keys, and values without their key, are facts as before."""
    found = _answers(READS_OF_ALL[name], tmp_path / "entries")
    assert all(is_right for _, is_right in found.values()), found
    assert found["a key before all others"][0] == 1


def test_code_that_takes_an_item_by_its_number_is_not_relaxed(tmp_path: Path):
    """A value that the entry hands out is read from the table at each call, by the key's number."""

    class Handing(Numbered):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.mm(x, x), BY_NAME["net"]["scale"], BY_FUNCTION[Kind.FAST]

    model = serve_warm.compile(Handing().eval(), dynamic=False)
    x = torch.eye(4)
    with eager_below():
        build(tmp_path / "entries", lambda: model(x))
    _add(first=True)
    with started(tmp_path / "entries"), torch.inference_mode(), eager_below():
        now = served(lambda: model(x))

    assert now.value[1:] == (2.0, 2.0)
