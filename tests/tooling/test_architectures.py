# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The models of `make architectures`, and its committed table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from served_models.rows import DYNAMIC, TWO
from served_models.table import ROWS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "architectures.json"


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
