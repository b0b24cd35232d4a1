# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One row of each kind of `make readiness`: no replica is READY in silence and then compiles."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from processes import run_to_end

ROOT = Path(__file__).parents[2]

ROWS = {
    "compile_off_in_the_environment": "no_compiled_code",
    "swap_while_compiling_is_forbidden": "first_request",
    "one_length_only": "narrow",
    "attribute_set_by_a_request": "advice",
}


@pytest.mark.ray
@pytest.mark.stress  # two minutes; `make readiness` has all rows
@pytest.mark.timeout(600)
def test_a_row_of_each_kind_is_right(tmp_path: Path):
    """The program has a cluster of its own."""
    file = tmp_path / "readiness.json"

    command = [sys.executable, "tests/benchmarks/readiness.py", "--json", file, *ROWS]
    ended = run_to_end(command, cwd=ROOT, timeout=570)

    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert {name: row["kind"] for name, row in rows.items()} == ROWS
    assert ended.returncode == 0, ended.stdout + json.dumps(rows, indent=1)
    assert rows["one_length_only"]["narrow"] == ["tokens[0], always 4"]
    assert rows["swap_while_compiling_is_forbidden"]["compiles_after_ready"] == 0
