# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The reference of messages names what the code raises."""

from __future__ import annotations

import re

from benchmarks import figures
from serve_warm.errors import REFUSAL_REASONS


def test_every_reason_of_a_refusal_is_documented():
    """The table of reasons contains each reason once, and no other reason."""
    page = figures.MESSAGES.read_text().partition("## Reasons for a refusal\n")[2]
    rows = [line.split("|")[1] for line in page.partition("\n## ")[0].splitlines() if "| `" in line]
    reasons = [reason for row in rows for reason in re.findall(r"`(\w+)`", row)]
    assert sorted(reasons) == sorted(REFUSAL_REASONS)
