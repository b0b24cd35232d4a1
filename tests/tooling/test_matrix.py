# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of `make matrix` have the tests that depend on versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import matrix


@pytest.mark.parametrize("row", matrix.ROWS, ids=lambda row: row.name)
def test_the_tests_of_a_row_are_there(row: matrix.Row):
    """With one missing file, pytest runs no test."""
    assert [path for path in row.tests if not (matrix.ROOT / path).is_file()] == []


def test_what_asks_torch_for_names_is_in_its_rows():
    """If a version of torch lacks a name, the row of this version fails."""
    ask = {
        str(path.relative_to(matrix.ROOT))
        for path in (matrix.ROOT / "tests").rglob("test_*.py")
        if "def test_torch_has_" in path.read_text() and path != Path(__file__)
    }

    assert ask
    for row in matrix.ROWS:
        assert "torch" not in row.name or ask <= set(row.tests)
