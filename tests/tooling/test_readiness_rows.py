# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The committed rows of `make readiness`, and what the documents say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/benchmarks/results/readiness.json").read_text()
)["rows"]


def test_no_committed_row_is_silent():
    """Each application has its row, of each of the four kinds."""
    texts = {
        file.stem: file.read_text() for file in (ROOT / "tests/readiness/rows").glob("[a-z]*.py")
    }
    names = [
        name
        for stem, text in texts.items()
        for name in re.findall(r'^@row\(\s*"(\w+)"', text, re.MULTILINE) or [stem]
    ]

    assert sorted(row["name"] for row in ROWS) == sorted(names)
    assert {row["kind"] for row in ROWS} == {
        *("no_compiled_code", "first_request", "narrow", "advice")
    }
    marks = ("silent", "false_alarm", "failed")
    assert [row["name"] for row in ROWS if any(row[mark] for mark in marks)] == []


def test_the_documents_count_the_rows():
    """A row is counted apart if its only line is about an argument that cannot be varied."""
    page = (ROOT / "docs/concepts/readiness.md").read_text().replace("\n", " ")
    alone = sum(row["from_docs_alone"] for row in ROWS)
    unvaried = [
        row
        for row in ROWS
        if row["compiles_after_ready"]
        and row["unvaried"]
        and not row["changes_later"]
        and not (row["narrow"] or row["degraded"])
    ]

    assert f"deploys {len(ROWS)} small applications" in page
    assert f"{alone} of them were written" in page
    assert f"In {len(unvaried)} of them, a request compiles, and the only line" in page
    assert f"In {sum(row['changes_later'] for row in ROWS)} others" in page
