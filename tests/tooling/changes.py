# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Joins the files of changes/ into CHANGELOG.md, under the version of a release.

python tests/tooling/changes.py 1.2.0
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("Added", "Changed", "Fixed", "Removed", "Security")


def fragments(folder: Path) -> list[Path]:
    """Return the files of unreleased changes, sorted by name."""
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def problems(name: str, text: str) -> list[str]:
    """Return the reasons why a file is not a valid entry of the changelog."""
    found = []
    if text.partition(":")[0] not in KINDS:
        found.append(f"{name} does not begin with one of {', '.join(KINDS)} and a colon")
    if "\n" in text.strip():
        found.append(f"{name} has several lines: write one entry in one line")
    return found


def join(changelog: str, version: str, day: str, texts: Iterable[str]) -> str:
    """Return the changelog with a section `version - day`, which has the entries.

    If there is a section `version (Unreleased)`, it gets the date, and the entries follow its own.
    """
    order = sorted((text.strip() for text in texts), key=lambda t: KINDS.index(t.partition(":")[0]))
    entries = "".join(f"- {text}\n" for text in order)
    heading = f"## {version} - {day}\n"
    begun = f"## {version} (Unreleased)\n"
    before, mark, rest = changelog.partition(begun)
    if mark:
        section, later, older = rest.partition("\n## ")
        return f"{before}{heading}{section.rstrip()}\n{entries}{later}{older}"
    found = re.search(r"^## ", changelog, re.MULTILINE)
    at = found.start() if found else len(changelog)
    return f"{changelog[:at]}{heading}\n{entries}\n{changelog[at:]}"


def main(version: str, *, root: Path = ROOT) -> None:
    """Write the changelog, and remove the files whose entries it now has.

    Raises:
        SystemExit: a file is not a valid entry; nothing was changed.
    """
    paths = fragments(root / "changes")
    texts = {path: path.read_text() for path in paths}
    found = [problem for path, text in texts.items() for problem in problems(path.name, text)]
    if found:
        raise SystemExit("\n".join(found))
    file = root / "CHANGELOG.md"
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    file.write_text(join(file.read_text(), version, today, texts.values()))
    for path in paths:
        path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
