# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The file of rows that the programs faults_*.py share: one row a line."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypedDict


class FaultRow(TypedDict):
    """What became of one fault."""

    name: str
    kind: str
    """`node`, `store`, `application`, `trust`, `secret` or `live`."""
    tries: int
    outcome: str
    said: str
    """What the user reads."""


def add_rows(file: Path, new: Sequence[FaultRow], *, whole: Collection[str] = ()) -> None:
    """Add rows to the file, in place of those with the same kind and name.

    They replace all rows of the kinds in `whole`.
    """
    kept: list[FaultRow] = json.loads(file.read_text())["rows"] if file.exists() else []
    names = {(row["kind"], row["name"]) for row in new}
    rows = [row for row in kept if row["kind"] not in whole]
    rows = [*(row for row in rows if (row["kind"], row["name"]) not in names), *new]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in sorted(rows, key=lambda row: row["kind"]))
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(f'{{"rows": [\n{lines}\n]}}\n')
    temporary.replace(file)
