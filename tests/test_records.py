# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A record does what a dataclass does, with fewer methods to compile."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import InitVar, field
from typing import Any

import pytest

from serve_warm._records import record

FROZEN: Any = {"frozen": True, "kw_only": True}


def define(decorator: Any, **how: Any) -> Any:
    @decorator(**how)
    class Point:
        x: int
        names: tuple[str, ...] = ()
        secret: str = field(default="s", repr=False, compare=False)
        seed: InitVar[int] = 0

        def __post_init__(self, seed: int) -> None:
            assert seed >= 0

    return Point


@record(frozen=True, kw_only=True)
class Kept:
    x: int
    items: list[int] = field(default_factory=list)


@pytest.mark.parametrize("how", [FROZEN, {"kw_only": True}])
def test_text_equality_and_hash_are_those_of_a_dataclass(how: Any):
    """The same for both decorators, with fields that are left out of text or comparison."""
    for decorator in (record, dataclasses.dataclass):
        kind = define(decorator, **how)
        one, same, other = kind(x=1, names=("a",)), kind(x=1, names=("a",), secret="t"), kind(x=2)
        assert repr(one).endswith("Point(x=1, names=('a',))")
        assert one == same
        assert one != other
        assert one != (1, ("a",))
        if how is FROZEN:
            assert len({one, same, other}) == 2
        else:
            with pytest.raises(TypeError, match="unhashable"):
                hash(one)


def test_a_frozen_record_refuses_every_change():
    """Of a field, of an attribute that no field has, and by deletion."""
    kept = Kept(x=1)
    changes = [lambda name=name: setattr(kept, name, 2) for name in "xy"]
    for change in (*changes, lambda: delattr(kept, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"field '[xy]'"):
            change()
    assert kept == Kept(x=1)


def test_records_are_copied_and_replaced_like_dataclasses():
    """By pickle, copy, `replace`, `asdict` and `fields`."""
    kept = Kept(x=1, items=[2])
    copies = pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept), dataclasses.replace(kept)
    assert all(each == kept for each in copies)
    assert copies[1].items is not kept.items
    assert dataclasses.asdict(dataclasses.replace(kept, x=5)) == {"x": 5, "items": [2]}
    assert [f.name for f in dataclasses.fields(Kept)] == ["x", "items"]


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'x'"):
        Kept()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'z'"):
        Kept(x=1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"positional argument"):
        Kept(1)  # type: ignore[misc]


@pytest.mark.parametrize("decorator", [record, dataclasses.dataclass])
def test_a_frozen_record_can_be_inherited_from(decorator: Any):
    """By another record and by a user's frozen dataclass, but not by a class that can change."""

    @decorator(**FROZEN)
    class More(Kept):
        y: int = 0

    more = More(x=1, y=2)
    assert more == More(x=1, y=2) != More(x=1)
    assert hash(dataclasses.replace(more, items=())) == hash(More(x=1, y=2, items=()))
    assert repr(more).endswith("More(x=1, items=[], y=2)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        more.y = 3
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @decorator(kw_only=True)
        class Loose(Kept):
            y: int = 0
