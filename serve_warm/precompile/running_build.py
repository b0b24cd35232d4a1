# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A running build: the table that it fills, and the libraries that it has started to compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from serve_warm._records import record
from serve_warm.precompile import aot_compile, aoti_build
from serve_warm.precompile.entries import Entry, EntryTable, Unit

MakeLibrary = Callable[
    [Callable[..., Any], Any, Sequence[Any], Mapping[str, Any]], aot_compile.Made
]
"""Compiles a function into a library, with the interface of `aoti_build.make`."""


@record(frozen=True, kw_only=True)
class PendingEntry:
    """A library that is being compiled, and the entry that it will have."""

    unit: Unit
    entry: Entry
    """The entry so far, without its file."""
    library: aoti_build.LibraryBuild


class RunningBuild:
    """One build of entries in this process. `make_library` is `aoti_build.make` by default."""

    def __init__(self, *, make_library: MakeLibrary | None = None) -> None:
        self.table = EntryTable({}, {})
        """The entries that the build has made."""
        self.make_library = make_library or aoti_build.make
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
