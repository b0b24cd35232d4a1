# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The applications that prove that no line about serve_warm is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "zero_lines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_an_application_does_not_know_serve_warm(name: str):
    """Nothing besides the license names serve_warm."""
    _, _, *lines = (FOLDER / f"{name}.py").read_text().splitlines()

    assert [line for line in lines if "serve_warm" in line or "serve-warm" in line] == []


def test_the_table_lists_every_application():
    table = (FOLDER / "README.md").read_text()

    assert [name for name in NAMES if f"`{name}.py`" not in table] == []
    assert len(NAMES) == 15
