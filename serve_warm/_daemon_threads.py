# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Work in a daemon thread: the process ends without waiting for it, and a future has its result.

Python waits for the threads of a pool when it ends. A store that does not answer would keep a
process whose start has long gone on, or failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], *, name: str) -> Future[T]:
    """Call `work` in a daemon thread of this name, and return the future of its result."""
    future: Future[T] = Future()
    # Nobody who waits for it can cancel it from here on.
    future.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(future, work), name=name, daemon=True).start()
    return future


def _run(future: Future[T], work: Callable[[], T]) -> None:
    with _HandedOver(future):
        future.set_result(work())


class _HandedOver(AbstractContextManager["_HandedOver"]):
    """Gives what is raised to whoever waits for the future, and nobody else.

    All of it: what would leave this thread is printed by `threading.excepthook`, with the addresses
    and headers that a client puts into its errors, while somebody waits in vain. It is no `except`
    because nothing is handled here: what it was is looked at by whoever waits.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
