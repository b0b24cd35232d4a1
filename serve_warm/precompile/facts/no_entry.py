# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Why there is no entry for a call."""

from __future__ import annotations


class NoEntry(Exception):
    """A call has no entry, or cannot have one. The text gives the reason for a report."""
