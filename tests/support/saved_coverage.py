# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A plugin of `coverage` that saves what a process has covered while the process runs.

Ray Serve kills replicas, and a killed process cannot save at its end.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import coverage

PERIOD_S = 2.0
"""The time between two saves. A replica loses what it covers in its last seconds."""


def coverage_init(_registry: Any, _options: Any) -> None:
    """Start saving. `coverage` calls this in each process that it measures."""
    threading.Thread(target=_save_for_ever, name="saved coverage", daemon=True).start()


def _save_for_ever() -> None:
    while True:
        time.sleep(PERIOD_S)
        measured = coverage.Coverage.current()
        if measured is not None:
            measured.save()
