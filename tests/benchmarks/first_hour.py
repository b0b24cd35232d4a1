# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what a newcomer meets in the first hour, and keeps what trials have found.

    python tests/benchmarks/first_hour.py

The program counts lines, words and mistakes. `new_users` and `facts` are the results of trials by
people who knew only the README, and are kept as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "tests" / "benchmarks" / "results" / "first_hour.json"


def counts() -> dict[str, Any]:
    """Return the numbers that the repository itself shows."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/support")]
    from cli.test_mistakes import MISTAKES

    readme = (ROOT / "README.md").read_text()
    pages = (ROOT / "docs").rglob("*.md")
    by_check = [each for each in MISTAKES if each.command.startswith("check")]
    return {
        "readme_lines": len(readme.splitlines()),
        "words_before_code": len(readme.partition("```")[0].split()),
        "docs_words": sum(len(page.read_text().split()) for page in pages),
        "mistakes": {"rows": len(MISTAKES), "found_by_check": len(by_check)},
    }


def main() -> None:
    """Write the result."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {"new_users": [], "facts": {}}
    found = counts()
    order = ("readme_lines", "words_before_code", "docs_words", "new_users", "mistakes", "facts")
    RESULT.write_text(json.dumps({key: {**kept, **found}[key] for key in order}, indent=1) + "\n")


if __name__ == "__main__":
    main()
