# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of `make soundness` is complete, and its judge finds wrong answers."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from benchmarks.soundness import failures
from soundness import judge, table
from soundness.judge import Answer


@pytest.mark.parametrize("method", table.guard_methods())
def test_each_kind_of_guard_has_a_row(method: str):
    """If a newer torch adds a kind of guard, this test fails until the table has a row for it."""
    assert table.of_guard(method), (
        f"torch {torch.__version__} has guards of kind {method}, and tests/soundness/guards.py has "
        "no row for it"
    )


def test_rows_have_names_of_their_own():
    """Rows are selected by name, and have their name in the result."""
    names = [(row.name, when) for g in table.GROUPS.values() for row in g.rows for when in row.when]

    twice = [name for name, count in collections.Counter(names).items() if count > 1]

    assert twice == []
    assert len(names) >= 120


def tensors(*values: float, **how: Any) -> Answer:
    return Answer(value=torch.tensor(values, **how))


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        (tensors(1.0, 2.0), tensors(1.0, 2.0), ""),
        (tensors(1.0, 2.0), tensors(1.0, 2.00001), ""),
        (tensors(1.0, 2.0), tensors(1.0, 2.1), "off by 5.0e-02"),
        (tensors(1.0), tensors(float("nan")), "off by inf"),
        (tensors(float("inf")), tensors(1.0), "off by inf"),
        (tensors(1.0), tensors(1.0, dtype=torch.float64), "float64"),
        (tensors(1.0), tensors(1.0, 1.0), "(2,)"),
        (Answer(value=(1, [2])), Answer(value=(1, [3])), "1: 0: 3, and eager's 2"),
        (Answer(value={"a": 1}), Answer(value={"b": 1}), "it has ['b']"),
        (Answer(value=[1]), Answer(value=(1,)), "it is a tuple"),
        (Answer(error=KeyError("a")), Answer(error=KeyError("b")), ""),
        (Answer(error=KeyError("a")), tensors(1.0), "it answers, and eager raises KeyError"),
        (tensors(1.0), Answer(error=KeyError("a")), "it raises KeyError"),
    ],
)
def test_answers_are_compared(expected: Answer, got: Answer, says: str):
    """Numbers may differ by the tolerance, types and structures may not. Errors match errors."""
    difference = judge.compare(expected, got)

    assert says in difference
    assert bool(says) == bool(difference)


def row(**fields: str) -> dict[str, Any]:
    return {
        "name": "a row",
        "level2": "right",
        "level3": "right",
        "stock": "right",
        "reason": "",
        **fields,
    }


@pytest.mark.parametrize(
    ("fields", "fails"),
    [
        ({}, False),
        ({"level2": "level1", "level3": "refused"}, False),
        ({"level2": "wrong"}, True),
        ({"level3": "wrong", "stock": "wrong"}, True),
        ({"level3": "raises"}, True),
        ({"level3": "raises", "stock": "raises"}, False),
        ({"dishonest": "eager answers the same"}, True),
    ],
)
def test_wrong_rows_fail_a_run(fields: dict[str, str], fails: bool):
    """This holds even if torch.compile is wrong too. An error counts if torch.compile is right."""
    assert bool(failures([row(**fields)])) == fails


@pytest.mark.parametrize(("refused", "fails"), [(25, False), (26, True)])
def test_a_run_that_hardly_has_entries_fails(refused: int, fails: bool):
    """A row that leaves something behind can make all later builds fail, without a wrong answer."""
    none = row(level2="refused", level3="refused")

    found = failures([none] * refused + [row()] * (100 - refused))

    assert bool(found) == fails
