# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The files that the README shows as diffs, before and after adding serve_warm."""

from __future__ import annotations

import re


def diffs(readme: str) -> dict[str, str]:
    """Return the text of each diff, by the file name in its first line."""
    return dict(re.findall(r"```diff\n # (\S+)\n(.*?)```", readme, re.DOTALL))


def before(diff: str) -> str:
    """Return the file without the change."""
    return _side(diff, " -")


def after(diff: str) -> str:
    """Return the file with the change."""
    return _side(diff, " +")


def _side(diff: str, marks: str) -> str:
    # Editors can remove the space of an empty line.
    lines = [line or " " for line in diff.splitlines()]
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in marks)
