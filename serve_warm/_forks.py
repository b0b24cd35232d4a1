# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a forked child must release: locks that its parent holds."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_children(release: Callable[[], None]) -> None:
    """Call `release` in forked children.

    Without this call, a child would still hold an inherited lock after the lock's owner has ended.

    `release` must be a method. This function does not keep the method's object alive.
    """
    known = weakref.WeakMethod(release)

    def call() -> None:
        held = known()
        if held is not None:
            held()

    os.register_at_fork(after_in_child=call)
