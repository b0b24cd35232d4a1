# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Daemon threads that return their results as futures.

At exit, a process waits for the threads of a thread pool, but not for daemon threads. So a pool
thread that reads from a hanging store would keep the process alive, even after the replica has
failed to start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], *, name: str) -> Future[T]:
    """Run `work` in a daemon thread named `name`, and return a future for the result."""
    future: Future[T] = Future()
    # From now on, a waiting caller cannot cancel the future.
    future.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(future, work), name=name, daemon=True).start()
    return future


def _run(future: Future[T], work: Callable[[], T]) -> None:
    with _ErrorsToFuture(future):
        future.set_result(work())


class _ErrorsToFuture(AbstractContextManager["_ErrorsToFuture"]):
    """Passes every exception to the future and nowhere else.

    If an exception did not reach the future, the caller that waits for the future would hang. Also,
    `threading.excepthook` would print the exception, with the addresses and headers that a client
    puts into the message. This is a context manager, not an `except` block, because only the
    caller handles the exception.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
