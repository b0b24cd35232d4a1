# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The smallest cover, against the enumeration of all subsets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from serve_warm.learn.cover import smallest_cover


def enumerated(reached: list[set[int]]) -> int:
    """Return the size of the smallest cover, found among all subsets of up to 20 calls."""
    unions = np.zeros(1, dtype=np.int64)
    sizes = np.zeros(1, dtype=np.int8)
    for codes in reached:
        mask = sum(1 << code for code in codes)
        unions, sizes = np.concatenate([unions, unions | mask]), np.concatenate([sizes, sizes + 1])
    return int(sizes[unions == unions[-1]].min())


def test_no_cover_is_larger_than_the_smallest_of_all_subsets():
    """200 instances of up to 20 calls, from those that share nothing to those that share all."""
    random_ = random.Random(8)
    for _ in range(200):
        codes = range(random_.randint(1, 24))
        most = random_.randint(1, len(codes))
        reached = [
            set(random_.sample(codes, random_.randint(1, most)))
            for _ in range(random_.randint(1, 20))
        ]
        found = smallest_cover(reached)
        assert set().union(*(reached[place] for place in found)) == set().union(*reached)
        assert len(found) == enumerated(reached)


def test_code_that_is_reached_anyway_needs_no_call():
    assert smallest_cover([{"a"}, {"a", "b"}], given={"a", "b"}) == []
    assert smallest_cover([{"a", "b"}, {"b", "c"}], given={"a", "b"}) == [1]


def test_of_equal_calls_the_first_one_is_taken():
    assert smallest_cover([{"b"}, {"a"}, {"a"}, {"b"}]) == [0, 1]


@pytest.mark.parametrize("reached", [[], [set()], [set(), set()]])
def test_without_code_there_is_nothing_to_cover(reached: list[set[int]]):
    assert smallest_cover(reached) == []


def test_a_search_that_is_too_long_ends_with_a_cover():
    """A thousand calls: the cover is complete, if not the smallest."""
    random_ = random.Random(8)
    reached = [set(random_.sample(range(400), 6)) for _ in range(1000)]
    found = smallest_cover(reached)
    assert set().union(*(reached[place] for place in found)) == set().union(*reached)
    assert len(found) < 120
