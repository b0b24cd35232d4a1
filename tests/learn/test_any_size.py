# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which calls of a plan a build opens, and in which order it makes code for them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from serve_warm.errors import ConfigError
from serve_warm.learn.any_size import MOST_OF_THEIR_OWN, only_open, open_axes
from serve_warm.learn.recorded import RecordedCall


def call(*shapes: tuple[int, ...], calls: int = 1, **fields: object) -> RecordedCall:
    tensors = tuple(
        f"Tensor float32[{', '.join(map(str, shape))}] strides "
        f"{list(torch.empty(shape).stride())} on cpu"
        for shape in shapes
    )
    structure = ", ".join(f"t{number}" for number in range(len(shapes)))
    given = {"callable": "app.Model", "structure": structure, **fields}
    return RecordedCall(tensors=tensors, calls=calls, **given)  # type: ignore[arg-type]


def sizes(calls: list[RecordedCall]) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    found = []
    for each in calls:
        shapes = [text[text.index("[") : text.index("]") + 1] for text in each.tensors]
        found.append((", ".join(shapes), each.any_size))
    return found


def test_of_two_sizes_one_is_open():
    """As torch.compile does it: the frequent one gets code of its own, and the other opens."""
    made = open_axes([call((8, 4), calls=9), call((2, 4))])
    assert sizes(made) == [("[8, 4]", ()), ("[2, 4]", ((0, 0),))]


def test_most_sizes_need_no_code_of_their_own():
    made = open_axes([call((size, 4), calls=size) for size in range(30, 1, -1)])
    assert sizes(made[:MOST_OF_THEIR_OWN]) == [(f"[{size}, 4]", ()) for size in (30, 29, 28, 27)]
    assert [each.any_size for each in made[MOST_OF_THEIR_OWN:]] == [((0, 0),)] * 25
    assert sizes(made)[4][0] == "[26, 4]", "the largest first"


def test_a_size_of_one_stays_one():
    """Torch makes code of its own for it, which takes any size of the other axes."""
    made = open_axes([call((8, 4), calls=1), call((1, 4), calls=9)])
    assert [each.any_size for each in made] == [(), ()]
    shapes = [(1, size) for size in range(2, 9)] + [(size, 9) for size in (2, 3)]
    made = open_axes([call(shape, calls=2 * (shape[0] == 1) + 1) for shape in shapes])
    assert {text for text, axes in sizes(made) if axes == ((0, 1),)} == {
        f"[1, {size}]" for size in (6, 7, 8)
    }
    assert [text for text, axes in sizes(made) if axes == ((0, 0),)] == ["[3, 9]"]


def test_sizes_that_differ_in_a_call_come_first():
    """Torch takes sizes that are equal in its first call to be equal in all."""
    shapes = [(9, 9), (8, 8), (7, 5), (6, 6), (5, 5), (4, 4), (3, 3)]
    calls = [call(shape, calls=number) for number, shape in enumerate(shapes)]
    made = open_axes(calls)
    assert sizes(made)[MOST_OF_THEIR_OWN:] == [
        (f"[{a}, {b}]", ((0, 0), (0, 1))) for a, b in ((7, 5), (9, 9), (8, 8))
    ]


@pytest.mark.parametrize(
    "other",
    [
        call((2, 4), callable="app.Other"),
        call((2, 4), number=1),
        call((2, 4), (3,)),
        call((2, 4, 1)),
        call((2, 4), modes={"grad_mode": True}),
        call((2, 4), on_model_thread=True),
        RecordedCall(
            callable="app.Model",
            structure="t0",
            tensors=("Tensor int64[2, 4] strides [4, 1] on cpu",),
        ),
        RecordedCall(
            callable="app.Model",
            structure="t0",
            tensors=("Tensor float32[2, 4] strides [1, 2] on cpu",),
        ),
        RecordedCall(
            callable="app.Model",
            structure="t0, 5",
            tensors=("Tensor float32[2, 4] strides [4, 1] on cpu",),
        ),
    ],
    ids=["callable", "number", "tensors", "axes", "mode", "thread", "dtype", "strides", "argument"],
)
def test_calls_that_differ_in_more_than_sizes_open_nothing(other: RecordedCall):
    made = open_axes([call((8, 4)), other])
    assert [each.any_size for each in made] == [(), ()]
    assert made == [call((8, 4)), other], "in their order"


def test_no_call_is_lost():
    chosen = random.Random(0)
    for _ in range(100):
        given = [
            call(
                (chosen.randrange(5), chosen.choice((2, 4))),
                (chosen.randrange(4),),
                calls=chosen.randrange(9),
            )
            for _ in range(chosen.randrange(12))
        ]
        given = list({each.key: each for each in given}.values())
        made = open_axes(given)
        assert {each.key for each in made} == {each.key for each in given}
        assert len(made) == len(given)
        are_open = [bool(each.any_size) for each in made]
        assert are_open == sorted(are_open), "after all calls with code of their own"


def test_a_plan_in_an_artifact_says_which_axes_are_open():
    (_, opened) = open_axes([call((8, 4), calls=9), call((2, 4))])
    assert RecordedCall.from_json(opened.to_json()) == opened
    assert opened.key == call((2, 4)).key


@pytest.mark.parametrize(
    "wrong", [[[1, 0]], [[0, 64]], [[0]], [[0, -1]], [["0", 0]], [0], "axes", [[True, 0]], {}]
)
def test_wrong_axes_are_one_error(wrong: object):
    with pytest.raises(ConfigError, match="is not complete"):
        RecordedCall.from_json({**call((2, 4)).to_json(), "any_size": wrong})


def test_the_axes_of_another_build_are_forgotten():
    """Or a call with code of its own would open axes, which a person may also have mistyped."""
    given = [dataclasses.replace(call((8, 4), calls=9), any_size=((0, 63),)), call((2, 4))]
    assert sizes(open_axes(given)) == [("[8, 4]", ()), ("[2, 4]", ((0, 0),))]


class Sizes:
    """An entry that takes sizes for which a condition holds."""

    def __init__(self, axes: Sequence[int], condition: Callable[[list[int]], bool]) -> None:
        self._axes, self._condition = axes, condition

    def free(self, index: int) -> tuple[Sequence[int], Sequence[int]]:
        return self._axes, ()

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self._condition(list(tensors[0].shape))


@pytest.mark.parametrize(
    ("entries", "axes"),
    [
        ([], ()),
        ([Sizes([0], lambda sizes: sizes[0] > 1)], ((0, 0),)),
        ([Sizes([0, 1], lambda sizes: sizes[1] // 2 == 3)], ((0, 0),)),  # as of pooling
        ([Sizes([0, 1], lambda sizes: sizes[1] == 6)], ((0, 0),)),
        ([Sizes([0, 1], lambda sizes: sizes[0] == sizes[1])], ((0, 0), (0, 1))),
        ([Sizes([0, 1], lambda sizes: sizes[0] % 6 == 0 == sizes[1] % 6)], ((0, 0), (0, 1))),
        ([Sizes([0], lambda _: False), Sizes([1], lambda _: True)], ((0, 1),)),
    ],
)
def test_an_axis_is_open_if_code_takes_the_double_or_the_half(
    entries: list[Sizes], axes: tuple[tuple[int, int], ...]
):
    opened = dataclasses.replace(call((6, 6)), any_size=((0, 0), (0, 1)))
    assert only_open(opened, entries).any_size == axes


def test_a_neighbour_of_an_odd_size_opens_no_axis():
    """Pooling of 7 rows may take 6 as well."""
    opened = dataclasses.replace(call((7, 7)), any_size=((0, 0), (0, 1)))
    pooled = Sizes([0, 1], lambda sizes: sizes[1] // 2 == 3)
    assert only_open(opened, [pooled]).any_size == ((0, 0),)


def test_an_axis_is_tried_with_strides_like_those_of_the_call():
    """A part of a padded buffer has its strides, whatever its size."""
    seen: list[tuple[int, ...]] = []

    class Padded(Sizes):
        def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
            seen.append(tensors[0].stride())
            return tensors[0].stride() == (64, 1)

    padded = RecordedCall(
        callable="double",
        structure="t0",
        tensors=("Tensor float32[6, 6] strides [64, 1] on cpu",),
        any_size=((0, 1),),
    )
    assert only_open(padded, [Padded([1], bool)]).any_size == ((0, 1),)
    assert seen == [(64, 1)]
