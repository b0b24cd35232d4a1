# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence that an input reached compiled code: the compiled calls during each replay.

A replay proves an input if the replay calls compiled code and no code is compiled. Without a
compiled call, nothing is proven. For example, a handler that returns early or returns a cached
answer compiles nothing in the replay, but the first real request would compile.

A replay marks its context (`contextvars`). Tasks, `asyncio.to_thread`, AnyIO's threads and the
model thread copy the context, so their calls carry the mark. Thread pools, threads that read a
queue and the task of `@serve.batch` do not copy the context. Calls without the mark are recorded
separately, because they can also come from unrelated threads. `serve_warm.replica.call_evidence`
then distinguishes calls that belong to the replay from calls of unrelated threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class Replayed:
    """The compiled calls during one replay, stored as the native ids of their threads."""

    def __init__(self) -> None:
        self.own: set[int] = set()
        """Calls in the replay's context; the replay itself made these calls."""
        self.beside: set[int] = set()
        """Calls in other contexts during the replay, made by the replay or by an unrelated
        thread."""


_marked: ContextVar[Replayed | None] = ContextVar("serve_warm_replayed", default=None)


class CompiledCalls:
    """Records the compiled calls that any thread makes. Only one replay runs at a time."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        """Native ids of all threads that made a compiled call."""
        self._replayed: Replayed | None = None

    def add(self, thread: int) -> None:
        """Record that `thread` made a compiled call in the current context."""
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
        """Return whether a replay is running and the caller is not part of any replay.

        If code from an earlier replay is still running, the code counts as part of a replay,
        because it still has that replay's mark.
        """
        return self._replayed is not None and _marked.get() is None


current: CompiledCalls | None = None
"""The current recorder of compiled calls, if any. Each compiled call reads this attribute. A module
attribute is fast to read."""


@contextlib.contextmanager
def note_calls() -> Iterator[CompiledCalls]:
    """Record each call to a compiled function in the block, and the replay that made the call."""
    global current  # noqa: PLW0603 - process-wide, like the hooks that read it
    calls = current = CompiledCalls()
    try:
        yield calls
    finally:
        current = None
