# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The committed result of yardstick.py: right code passes, and damage that matters is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import yardstick

RESULT = Path(yardstick.__file__).parent / "results" / "yardstick.json"
DOCUMENT: dict[str, Any] = json.loads(RESULT.read_text())
ROWS: list[dict[str, Any]] = DOCUMENT["rows"]
ON_CPU = [row for row in ROWS if row["device"] == "cpu"]


@pytest.mark.parametrize("dtype", yardstick.DTYPES)
def test_twenty_right_models_pass_in_each_dtype(dtype: str):
    """None is refused, and the ratios decide about each."""
    right = [row for row in ON_CPU if row["dtype"] == dtype and row["damage"] is None]

    assert len({row["model"] for row in right}) >= 20
    assert all(row["passes"] and not row["fixed"] for row in right)


def test_damage_that_matters_is_refused():
    """Except in rows that say why they may pass."""
    damaged = [row for row in ROWS if row["damage"] is not None]

    assert [row for row in damaged if row["passes"] and not row["note"]] == []
    assert all(
        not row["passes"]
        for row in damaged
        if row["rmse_ratio"] is not None
        and row["whole_ratio"] >= yardstick.MATTERS
        and (row["dtype"] != "float32" or row["old"] > yardstick.NEVER_REFUSED[torch.float32])
    )


def test_local_damage_that_the_fixed_limit_refuses_is_refused():
    """One element, a row or the end of a result is wrong, and the rest is right."""
    local = [row for row in ROWS if row["damage"] in yardstick.LOCAL and not row["old_passes"]]

    assert len(local) > 100
    assert not any(row["passes"] for row in local)


def test_two_hundred_right_compiles_of_few_numbers_pass():
    """Results of 1, 2 and 10 numbers, in each dtype."""
    small = DOCUMENT["small"]

    assert {row["numbers"] for row in small} == set(yardstick.COUNTS)
    assert sum(row["right"] for row in small) >= yardstick.COMPILES
    assert sum(row["refused"] for row in small) == 0
