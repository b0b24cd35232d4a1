# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled calls by the replay that made them: evidence that an input reached compiled code.

An input is proven by calls that ran and compiled nothing. Without a call there is nothing to prove:
a guard clause or a remembered answer is quiet, too, and the first real request compiles.

A replay marks its context (`contextvars`). Tasks, `asyncio.to_thread`, AnyIO's threads and the
model thread copy it, so that their calls carry the mark. A thread pool, a thread that reads a queue
and the task of `@serve.batch` do not: their calls are noted as made beside the replay. So are calls
of a thread that has nothing to do with it. `serve_warm.replica.replay` tells these two apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class Replayed:
    """The compiled calls during one replay, as native ids of the threads that made them."""

    def __init__(self) -> None:
        self.own: set[int] = set()
        """Made in the context of the replay, so by it."""
        self.beside: set[int] = set()
        """Made meanwhile in other contexts: for the replay, or by a thread of its own."""


_marked: ContextVar[Replayed | None] = ContextVar("serve_warm_replayed", default=None)


class CompiledCalls:
    """Notes compiled calls. They come from any thread; replays follow one another."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        """Native ids of all threads that made a compiled call."""
        self._replayed: Replayed | None = None

    def add(self, thread: int) -> None:
        """Note a compiled call of this thread, in the context that it is made in."""
        self.threads.add(thread)
        replayed = self._replayed
        if replayed is None:
            return
        if _marked.get() is replayed:
            replayed.own.add(thread)
        else:
            replayed.beside.add(thread)

    @contextlib.contextmanager
    def of_replay(self) -> Iterator[Replayed]:
        """Mark the context for one replay, and collect its compiled calls until the block ends."""
        replayed = self._replayed = Replayed()
        mark = _marked.set(replayed)
        try:
            yield replayed
        finally:
            _marked.reset(mark)
            self._replayed = None

    def is_outside(self) -> bool:
        """Return whether the caller runs during a replay, in a context that none ever marked.

        What an earlier replay left running carries that one's mark, and is not outside.
        """
        return self._replayed is not None and _marked.get() is None


current: CompiledCalls | None = None
"""What notes compiled calls at this moment, if anything does. A module's attribute, since each
compiled call reads it."""


@contextlib.contextmanager
def note_calls() -> Iterator[CompiledCalls]:
    """Note the calls of compiled functions in the block, and which replay made them."""
    global current  # noqa: PLW0603 - process-wide, as the hooks that read it are
    calls = current = CompiledCalls()
    try:
        yield calls
    finally:
        current = None
