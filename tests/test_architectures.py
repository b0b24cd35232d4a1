# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An architecture of `transformers` on level 2, and more in `make stress`.

`architectures.py` takes all of them; its table is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from architectures import ARCHITECTURES, FEW, MORE, table

RESULTS = Path(__file__).parent / "benchmarks" / "results" / "architectures.json"


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    return table(list(FEW))


@pytest.fixture(scope="module")
def more_rows() -> dict[str, dict[str, Any]]:
    return table(list(MORE))


@pytest.mark.slow
def test_an_architecture_reaches_level_2(rows: dict[str, dict[str, Any]]):
    """Built in one process and loaded in another: no compile, and eager's numbers and class."""
    assert_level_2(rows["llama"])


@pytest.mark.stress
@pytest.mark.parametrize("name", MORE)
def test_more_architectures_reach_level_2(more_rows: dict[str, dict[str, Any]], name: str):
    """An encoder and a model of images, likewise."""
    assert_level_2(more_rows[name])


def assert_level_2(row: dict[str, Any]) -> None:
    assert (row["level"], row["reason"], row["refused"], row["compiles"]) == (2, "", "", 0)
    assert row["same_class"]
    assert row["error"] < 1e-5


@pytest.mark.slow
def test_what_has_no_entry_is_named(rows: dict[str, dict[str, Any]]):
    """A cache that is passed in is of a class that no entry takes."""
    row = rows["llama, DynamicCache given"]

    assert row["level"] == 1
    assert "DynamicCache" in row["reason"]
    assert row["error"] == 0


def test_the_committed_table_is_of_all_architectures():
    """Twelve or more on level 2; each of the others with its reason."""
    committed = json.loads(RESULTS.read_text())["rows"]

    assert committed.keys() == ARCHITECTURES.keys()
    assert sum(row["level"] == 2 for row in committed.values()) >= 12
    assert all(row["reason"] for row in committed.values() if row["level"] == 1)
