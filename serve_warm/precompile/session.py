# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Process-wide state of levels 2 and 3: callables handed over, entries loaded, a build under way.

It imports the standard library alone, so that a replica can ask whether anything was handed over
without importing torch.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm.report import EntryUse

if TYPE_CHECKING:
    from serve_warm.precompile.dispatcher import Dispatcher
    from serve_warm.precompile.entries import Entry, EntryTable
    from serve_warm.precompile.entry_checks import Checks

LIBRARY_LEVEL = 3
"""The level at which code is in libraries, and a start does without Dynamo."""


class Session:
    """What the callables of one process share: see `SESSION`."""

    def __init__(self) -> None:
        self.dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
        """One for each callable that was handed over and is still in use."""
        self.loaded: EntryTable | None = None
        """Entries of the artifact."""
        self.being_built: EntryTable | None = None
        """Entries of the build under way."""
        self.active: EntryTable | None = None
        """Those of the build, or else those that were loaded. Every call reads it."""
        self.checks: Checks | None = None
        """Checks of entries against eager in this start; None where there are no entries."""
        self.build_lock = threading.RLock()
        """One call at a time makes an entry: it changes buffers and random states, and gives them
        back."""

    def has_callables(self) -> bool:
        """Return whether anything in this process was compiled with `serve_warm.compile`."""
        return len(self.dispatchers) > 0

    def has_libraries_only(self) -> bool:
        """Return whether libraries are asked for in all that was handed over."""
        return self.has_callables() and all(
            each.level == LIBRARY_LEVEL for each in list(self.dispatchers)
        )

    def load(self, *folders: Path) -> str:
        """Load the entries of an artifact, a folder each part, for every callable of this process.

        Executes what is in the folders, which must have been verified. Those of libraries have to
        stay for as long as the process. Returns why something was not loaded, in words; an entry
        that does not fit is no such reason, its calls are named in the report.
        """
        from serve_warm.precompile.entries import read_parts

        self.loaded, problems = read_parts(folders)
        self.active = self.being_built or self.loaded
        for dispatcher in list(self.dispatchers):
            dispatcher.bind()
        return "; ".join(problems)

    def unload(self) -> None:
        """Forget all entries: every call goes to torch.compile."""
        self.loaded = None
        self.active = self.being_built
        self.checks = None

    def begin_checks(
        self,
        *,
        one_in: int,
        can_compile: Callable[[], bool],
        on_failure: Callable[[str], None],
    ) -> Checks | None:
        """Return checks of all entries that are loaded; None where there are none.

        After READY one call in `one_in` of an entry is checked, or none where that is 0.
        """
        if self.loaded is None or not self.loaded.has_any:
            self.checks = None
            return None
        from serve_warm.precompile.entry_checks import Checks

        self.checks = Checks(
            one_in=one_in,
            withdraw=lambda entry, why: self.withdraw(entry, why, eagerly=not can_compile()),
            on_failure=on_failure,
        )
        return self.checks

    def withdraw(self, entry: Entry, why: str, *, eagerly: bool) -> None:
        """Run an entry in no callable from now on: its calls go to torch.compile, with `why`.

        With `eagerly` they run as written: without a compiler torch.compile could only raise.
        """
        if self.loaded is not None:
            self.loaded.disable(entry, why)
        for dispatcher in list(self.dispatchers):
            if eagerly and dispatcher.runs(entry):
                dispatcher.run_eagerly()
        for dispatcher in list(self.dispatchers):
            dispatcher.bind_anew()

    @contextlib.contextmanager
    def building(self) -> Iterator[EntryTable]:
        """Make an entry for every call in the block that can have one, and yield where they are.

        The calls are answered by the entries that are made for them. Compiles, with Inductor's
        caches as they are: what level 1 has compiled before is not compiled again.
        """
        from serve_warm.precompile.entries import EntryTable

        table = self.being_built = self.active = EntryTable({}, {})
        try:
            yield table
            for dispatcher in list(self.dispatchers):
                dispatcher.withdraw_changed(table)
        finally:
            self.being_built = None
            self.active = self.loaded

    def uses(self) -> tuple[EntryUse, ...]:
        """Return what became of the calls of all callables, those of one structure as one."""
        counts: dict[tuple[str, str, int, str], int] = {}
        for dispatcher in list(self.dispatchers):
            for use in dispatcher.uses():
                key = (use.callable, use.call, use.level, use.reason)
                counts[key] = counts.get(key, 0) + use.calls
        return tuple(
            EntryUse(callable=name, call=call, level=level, reason=reason, calls=calls)
            for (name, call, level, reason), calls in sorted(counts.items())
        )


SESSION = Session()
"""The session of this process."""
