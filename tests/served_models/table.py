# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""All rows of the tables of models, by name. A row may be repaired, and is never dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from served_models import diffusion, others, second, seen_and_heard, text

if TYPE_CHECKING:
    from served_models.rows import Row

ROWS: dict[str, Row] = {
    row.name: row for row in (*text.ROWS, *seen_and_heard.ROWS, *diffusion.ROWS, *others.ROWS)
}

SECOND: dict[str, Row] = {row.name: row for row in second.ROWS}
"""Models chosen by their use. The list was written before any of these models was compiled."""
