# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Daemon threads that return their results as futures.

At exit, a process waits for pool threads, but not for daemon threads. With a pool, a store that
hangs would keep the process alive long after the replica failed to start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], *, name: str) -> Future[T]:
    """Call `work` in a daemon thread called `name`, and return the future of its result."""
    future: Future[T] = Future()
    # From now on, a waiting caller cannot cancel the future.
    future.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(future, work), name=name, daemon=True).start()
    return future


def _run(future: Future[T], work: Callable[[], T]) -> None:
    with _HandedOver(future):
        future.set_result(work())


class _HandedOver(AbstractContextManager["_HandedOver"]):
    """Passes every exception to the future and nowhere else.

    Otherwise the waiter would hang, and `threading.excepthook` would print the exception with the
    addresses and headers that a client puts into it. This is not an `except` block, because the
    waiter handles the exception.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
