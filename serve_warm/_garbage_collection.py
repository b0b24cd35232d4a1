# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A pause of automatic garbage collection, while a start creates many objects and little garbage.

Each full collection visits all objects of earlier imports.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager


class _Pause(AbstractContextManager[None]):
    """In the block, no thread collects garbage automatically. Several threads may be in the block.

    This sets the threshold to 0. It does not call `gc.disable()`, because then a `gc.disable()`
    call by the app would go unnoticed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._thresholds = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(0)
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and gc.get_threshold()[0] == 0:  # an app may have set its own
                gc.set_threshold(*self._thresholds)


NO_COLLECTIONS = _Pause()
"""The pause of this process."""
