# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A running build: the table that it fills, and the libraries that it has started to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from serve_warm._records import record
from serve_warm.precompile import aoti_build
from serve_warm.precompile.entries import Entry, EntryTable, Unit


@record(frozen=True, kw_only=True)
class PendingEntry:
    """A library that is being compiled, and the entry that it will have."""

    unit: Unit
    entry: Entry
    """The entry so far, without its file."""
    library: aoti_build.Library


class RunningBuild:
    """One build of entries in this process."""

    def __init__(self) -> None:
        self.table = EntryTable({}, {})
        """The entries that the build has made."""
        self.libraries: Literal["made", "begun"] = "made"
        """With "begun", a call only starts to compile its library. With "made", a call compiles its
        library completely, or finishes a library that was started earlier."""
        self.pending: list[PendingEntry] = []
        """Entries whose library is still unfinished."""
        self.tell: Callable[[Literal["trace", "entry", "library"]], None] = lambda _: None
        """Callback that receives the next step of the build."""

    def refuse_pending(self) -> None:
        """Refuse each call whose library no later call finished."""
        for pending in self.pending:
            call = pending.unit.name, str(pending.entry.signature)
            taken = (entry.signature for entry in pending.unit.entries)
            if pending.entry.signature not in taken:
                why = "it was called only once while entries were made"
                self.table.refused.setdefault(call, why)
        self.pending = []
