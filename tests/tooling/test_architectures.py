# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model of `transformers` on level 2, and more in `make stress`.

`make architectures` runs all rows, and its table is committed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from architectures import FEW, MORE, table
from served_models.rows import DYNAMIC, TWO
from served_models.table import ROWS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "architectures.json"


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    return table(list(FEW))


@pytest.fixture(scope="module")
def more_rows() -> dict[str, dict[str, Any]]:
    return table(list(MORE))


@pytest.mark.stress
def test_an_architecture_reaches_level_2(rows: dict[str, dict[str, Any]]):
    """A second process loads the entries, compiles nothing, and returns the results of eager."""
    assert_level_2(rows["llama"])


@pytest.mark.stress
@pytest.mark.parametrize("name", MORE)
def test_more_architectures_reach_level_2(more_rows: dict[str, dict[str, Any]], name: str):
    """An encoder and an image model reach level 2 too."""
    assert_level_2(more_rows[name])


def assert_level_2(row: dict[str, Any]) -> None:
    assert row["served"], row["reason"]
    assert row["reason"] == ""
    assert row["error"] < 1e-5


@pytest.mark.stress
def test_what_has_no_entry_is_named(rows: dict[str, dict[str, Any]]):
    """The caller passes a cache, and no entry supports the class of this cache."""
    row = rows["llama, DynamicCache given"]

    assert not row["served"]
    assert "DynamicCache" in row["reason"]
    assert row["error"] == 0


def test_the_table_is_of_a_hundred_models_of_eight_libraries():
    """Twenty have two shapes, and twenty have dynamic ones."""
    shapes = Counter(row.shapes for row in ROWS.values())

    assert len(ROWS) == 100
    assert len({row.library for row in ROWS.values()}) == 8
    assert shapes[TWO] == shapes[DYNAMIC] == 20


def test_the_committed_table_is_of_all_models():
    """No row is missing or wrong, and each refused row has a reason."""
    committed = json.loads(RESULTS.read_text())["rows"]
    found = [row[level] for row in committed for level in ("level_2", "level_3") if row[level]]

    assert [row["name"] for row in committed] == list(ROWS)
    assert all(each["is_right"] for each in found)
    assert all(each["served"] or each["reason"] for each in found)
