# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence that an input reached compiled code: the compiled calls during each replay.

A replay proves an input if compiled code runs and no code is compiled. Without a compiled call,
nothing is proven. For example, a handler that returns early or returns a cached answer compiles
nothing in the replay, but the first real request would compile. And a call to a function that
torch.compile returned is no compiled call if torch runs the function eagerly.

A replay marks its context (`contextvars`). Tasks, `asyncio.to_thread`, AnyIO's threads and the
model thread copy the context, so their calls carry the mark. Thread pools, threads that read a
queue and the task of `@serve.batch` do not copy the context. Calls without the mark are recorded
separately, because they can also come from unrelated threads. Then
`serve_warm.replica.replay.call_evidence` distinguishes calls that belong to the replay from calls
of unrelated threads.
"""

from __future__ import annotations

import contextlib
import threading
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
        self.entered = False
        """Whether a function that torch.compile returned was called, even if it ran eagerly."""
        self.switch = ""
        """What turned torch's compiler off for a call, if anything did."""
        self.is_running = True
        """Whether the replay runs still. A task that it began keeps the mark of its context."""


_marked: ContextVar[Replayed | None] = ContextVar("serve_warm_replayed", default=None)


NO_ENTRY = "the artifact has no entry for a call, and on_missing is 'eager'"
"""Why an input is not proven whose calls run eagerly beside the entries of an artifact."""


class CompiledCalls:
    """Records the compiled calls that any thread makes. Only one replay runs at a time."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        """Native ids of all threads that made a compiled call."""
        self.entered = False
        """Whether a function that torch.compile returned was called, even if it ran eagerly."""
        self._replayed: Replayed | None = None

    def enter(self, switch: str) -> None:
        """Record that a function that torch.compile returned was called, and what turned it off."""
        self.entered = True
        replayed = self._replayed
        if replayed is not None:
            replayed.entered = True
            replayed.switch = replayed.switch or switch

    def add(self, thread: int) -> None:
        """Record that `thread` ran compiled code in the current context."""
        self.entered = True
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
            replayed.is_running = False

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


class _Below(threading.local):
    reason = ""
    """Why the call that runs on this thread has no entry; empty if it needs none."""


_below = _Below()


def why_below() -> str:
    """Return why the running call has no entry and goes to torch.compile, if it does."""
    return _below.reason


@contextlib.contextmanager
def below(reason: str) -> Iterator[None]:
    """Say why the call in the block has no entry, for the case that it compiles."""
    before, _below.reason = _below.reason, reason
    try:
        yield
    finally:
        _below.reason = before


def is_replay() -> bool:
    """Return whether the current context is that of a replay that runs now."""
    replayed = _marked.get()
    return replayed is not None and replayed.is_running
