# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Bucket edges: the least padding, found as brute force finds it."""

from __future__ import annotations

import itertools
import random

import pytest

from serve_warm.learn.buckets import MOST_SIZES, best_edges, varying_axes
from serve_warm.learn.recorded import RecordedCall


def padded(counts: dict[int, int], edges: tuple[int, ...]) -> int:
    return sum(n * min(edge for edge in edges if edge >= size) for size, n in counts.items())


def by_brute_force(counts: dict[int, int], most: int) -> int:
    *others, largest = sorted(counts)
    return min(
        padded(counts, (*some, largest))
        for many in range(min(most, len(counts)))
        for some in itertools.combinations(others, many)
    )


@pytest.mark.parametrize("seed", range(200))
def test_no_other_edges_add_less(seed: int):
    draw = random.Random(seed)
    counts = {draw.randint(1, 60): draw.randint(1, 40) for _ in range(draw.randint(1, 9))}
    most = draw.randint(1, 5)
    found = best_edges(counts, most)
    assert len(found.edges) <= most
    assert set(found.edges) <= counts.keys()
    assert padded(counts, found.edges) == by_brute_force(counts, most)
    own = sum(size * count for size, count in counts.items())
    assert found.padding == pytest.approx(padded(counts, found.edges) / own - 1)


def test_as_many_edges_as_sizes_add_nothing():
    assert best_edges({3: 1, 9: 4}, 8).edges == (3, 9)
    assert best_edges({3: 1, 9: 4}, 8).padding == 0


def test_very_many_sizes_are_thinned():
    counts = dict.fromkeys(range(1, 4 * MOST_SIZES), 1)
    found = best_edges(counts, 2)
    assert found.edges[-1] == max(counts)
    assert found.edges[0] == pytest.approx(max(counts) / 2, rel=0.01)


@pytest.mark.parametrize(("counts", "most"), [({}, 3), ({3: 0}, 3), ({3: 1}, 0)])
def test_nothing_to_choose_from_is_an_error(counts: dict[int, int], most: int):
    with pytest.raises(ValueError, match="at least one"):
        best_edges(counts, most)


def call(batch: int, length: int, calls: int) -> RecordedCall:
    text = f"Tensor int64[{batch}, {length}] strides [{length}, 1] on cpu"
    return RecordedCall(callable="app.Model", structure="t0", tensors=(text,), calls=calls)


def test_an_axis_with_many_sizes_is_found_and_described():
    calls = [call(8, 10, 5), call(8, 16, 1), call(8, 100, 2), call(1, 10, 4)]
    (axis,) = varying_axes(calls, more_than=2)
    assert (axis.callable, axis.tensor, axis.axis) == ("app.Model", 0, 1)
    assert dict(axis.counts) == {10: 9, 16: 1, 100: 2}
    assert axis.describe(2) == (
        "app.Model: axis 1 of tensor 0 has 3 sizes from 10 to 100; padded to 16, 100, it has 18% "
        "more values"
    )
