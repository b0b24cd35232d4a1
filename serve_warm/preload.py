# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The hook of seats, under the name that charts and users give to Ray: see `seats.preload`."""

from __future__ import annotations

from serve_warm.seats.preload import hook_environment, import_now, run

__all__ = ["hook_environment", "import_now", "run"]
