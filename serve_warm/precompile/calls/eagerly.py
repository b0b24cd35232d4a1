# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of this thread that run in eager mode."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _EagerThread(threading.local):
    is_eager = False
    """Whether this thread is in a block of `eagerly`."""


_of_thread = _EagerThread()


def is_eager() -> bool:
    """Return whether compiled callables run new kinds of calls eagerly in this thread."""
    return _of_thread.is_eager


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run new kinds of calls eagerly in the block and in this thread, for all callables."""
    before, _of_thread.is_eager = _of_thread.is_eager, True
    try:
        yield
    finally:
        _of_thread.is_eager = before
