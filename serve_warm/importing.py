# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports in the background: while one thread imports there, no other enters unfinished modules.

Python locks each module on its own. Two threads that enter modules which import one another by
different doors come to wait in a circle; Python notices, and one of them gets an error or a
half-made module. torch's compiler is such a group: of 24 calls of `torch.compile` that were made
while another thread imported it 7 failed (torch 2.13, Python 3.11). So whoever needs a module that
is not there yet waits until the background is through, before it holds any lock; and the
background waits until nobody is in the middle of an import.

The one private name of Python is `importlib._bootstrap._find_and_load`, by which the import of
each module that is not loaded goes, whoever asks (3.10 to 3.14); what is loaded never comes by.
https://github.com/python/cpython/blob/v3.11.7/Lib/importlib/_bootstrap.py
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

QUIET_S = 0.1
"""Seconds without an import before the background begins. Imports come in bursts, and between two
of a burst the background would only stand in the way: imports take turns at the GIL anyway."""
POLL_S = 0.02
WAIT_S = 300.0
"""How long an import waits for the background. It ends long before; this is for what holds some
other lock that the background needs, which no known module does."""


class Turns:
    """Who imports in this process: as many threads as want to, or one of the background alone.

    Make it outside of any import, in the thread that will import the most: what began before is
    not known. It watches until `end()`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._importing = 0
        self._last = time.monotonic()
        self._alone: int | None = None
        self._own = threading.local()
        self._find_and_load: Callable[[str, Any], Any] = getattr(_bootstrap, _FIND)
        self._watched = self._load  # one object, so that it is known again
        setattr(_bootstrap, _FIND, self._watched)
        # A process that is forked in the middle would have half-made modules for good, locked by
        # a thread that it does not have.
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._forked,
        )

    def end(self) -> None:
        """Watch no longer."""
        # Where somebody wrapped it after us it stays, and goes on to what was there before.
        if getattr(_bootstrap, _FIND) is self._watched:
            setattr(_bootstrap, _FIND, self._find_and_load)

    @contextmanager
    def alone(
        self, ready: Callable[[], bool], *, given_up: threading.Event, quiet_s: float = QUIET_S
    ) -> Iterator[bool]:
        """Wait until this is `ready` and nobody imports; nobody else does inside the block then.

        `quiet_s` is for how long nobody may have imported before. Gives whether that came about
        while `given_up` was not set; if not, import nothing.
        """
        with self._changed:
            while (
                self._alone is not None
                or self._importing
                or time.monotonic() - self._last < quiet_s
                or not ready()
            ) and not given_up.is_set():
                self._changed.wait(POLL_S)
            # Looked at under the lock: whoever sets it and imports then finds nobody alone.
            has_it = not given_up.is_set()
            if has_it:
                self._alone = threading.get_ident()
        try:
            yield has_it
        finally:
            if has_it:
                with self._changed:
                    self._alone = None
                    self._changed.notify_all()

    def _wait(self) -> None:
        own = threading.get_ident()
        self._changed.wait_for(lambda: self._alone in (None, own), WAIT_S)

    def _before_fork(self) -> None:
        self._changed.acquire()  # until after it: nothing begins in between
        self._wait()

    def _after_fork(self) -> None:
        self._changed.release()

    def _forked(self) -> None:
        self._changed = threading.Condition()
        self._alone, self._importing = None, 0
        self.end()

    def _load(self, name: str, import_: Any) -> Any:
        depth: int = getattr(self._own, "depth", 0)
        if depth == 0:
            # Only here: further in, this thread holds locks of modules, and must not wait.
            with self._changed:
                self._wait()
                self._importing += 1
        self._own.depth = depth + 1
        try:
            return self._find_and_load(name, import_)
        finally:
            self._own.depth = depth
            if depth == 0:
                with self._changed:
                    self._importing -= 1
                    self._last = time.monotonic()
                    self._changed.notify_all()


_bootstrap: Any = importlib._bootstrap  # noqa: SLF001 - see above
_FIND = "_find_and_load"
