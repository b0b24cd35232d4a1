# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Each change has a file, and a release joins the files into the changelog."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PROGRAM = Path(__file__).with_name("changes.py")
spec = importlib.util.spec_from_file_location("changes", PROGRAM)
assert spec is not None
assert spec.loader is not None
changes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(changes)


def test_each_file_is_one_entry() -> None:
    """The entry has a kind and one line. The folder has its own explanation."""
    paths = changes.fragments(changes.ROOT / "changes")

    assert (changes.ROOT / "changes" / "README.md").is_file()
    assert [problem for p in paths for problem in changes.problems(p.name, p.read_text())] == []
