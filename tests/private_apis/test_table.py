# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of patches are those that code applies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import serve_warm
from serve_warm.private_apis import table
from serve_warm.private_apis.table import TABLE

PACKAGE = Path(serve_warm.__file__).parent
APPLY = {"Change", "replace", "patches.replace", "find", "patches.find"}


def names_in_use() -> Iterator[tuple[str, str]]:
    """Yield each file with the names of rows that it applies, as regular expressions."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "private_apis":
            continue
        tree = ast.parse(path.read_text())
        constants = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in APPLY:
                continue
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant):
                yield path.name, re.escape(str(name.value))
            elif isinstance(name, ast.JoinedStr):
                parts = [
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+"
                    for part in name.values
                ]
                yield path.name, "".join(parts)
            elif isinstance(name, ast.Name) and hasattr(table, name.id):
                yield path.name, re.escape(getattr(table, name.id))
            elif isinstance(name, ast.Name):  # from a tuple in the same file
                yield from ((path.name, re.escape(each)) for each in constants if "." in each)


def test_each_row_is_applied() -> None:
    """A patch that is gone leaves no row behind."""
    used = {pattern for _, pattern in names_in_use()}

    unused = [row.name for row in TABLE if not any(re.fullmatch(each, row.name) for each in used)]

    assert unused == []


def test_each_row_says_why_in_a_few_words() -> None:
    """`make upstream` prints them beside the functions that changed."""
    assert [row.name for row in TABLE if not 3 <= len(row.why.split()) <= 16] == []
    assert [row.name for row in TABLE if row.why.endswith(".")] == []


def test_patches_of_a_trace_and_of_a_library_are_those_of_levels_2_and_3() -> None:
    """What counts and times compiles serves all levels, so it refuses none."""
    lifetimes = {"process": 1, "trace": 2, "library": 3}

    assert [row.name for row in TABLE if lifetimes[row.lifetime] != row.level] == []
