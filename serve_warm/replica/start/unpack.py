# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Unpacks the parts of an artifact into private folders."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm.artifact.archive import unpack_directory
from serve_warm.artifact.manifest import EXPORTED, PRECOMPILED
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.caches import private_directory
from serve_warm.errors import NodeDiskError

if TYPE_CHECKING:
    from serve_warm.precompile import EntryTable


ENTRY_PARTS = (PRECOMPILED, EXPORTED)


@record(frozen=True, kw_only=True)
class EntryFiles:
    """The artifact parts that contain entries, unpacked."""

    folders: dict[str, Path]
    """The private folder of each part, by the part's name."""
    tables: dict[Path, EntryTable]
    """The entries in each folder, if already read."""

    def read(self) -> None:
        """Read the entries of each folder, if possible. This executes no code of the artifact."""
        from serve_warm.precompile import EntryTable, NoEntry

        for folder in self.folders.values():
            with contextlib.suppress(NoEntry):  # loading the folder will report the reason
                self.tables[folder] = EntryTable.read(folder)

    def remove(self) -> None:
        """Remove the folders, and forget the entries."""
        self.tables.clear()
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def unpack(
    raw: BinaryIO, directory: Path, *, check_wanted: Callable[[], None] = lambda: None
) -> None:
    """Unpack the `cache` part into the empty private folder `directory`.

    `check_wanted` is called often, and raises to stop the work.

    Raises:
        ArtifactRefused: `bad_archive`, or `unsafe_directory`: other users could replace the files.
        NodeDiskError: the files cannot be written.
    """
    _private_folders.check_private(directory, "the directory that torch loads from")
    try:
        unpack_directory(raw, directory, check_wanted=check_wanted)
        triton_kernels.relocate(directory)
    except OSError as error:
        raise NodeDiskError(
            f"the artifact could not be written to {directory}: {error}",
            hint="the folder for temporary files must have space for the unpacked artifact",
        ) from error


def unpack_entries(raw: Mapping[str, BinaryIO], *, check_wanted: Callable[[], None]) -> EntryFiles:
    """Unpack the parts that have entries into private folders. Raises what `unpack` raises."""
    files = EntryFiles(folders={}, tables={})
    with contextlib.ExitStack() as on_error:
        on_error.callback(files.remove)
        for name in ENTRY_PARTS:
            if name in raw:
                folder = files.folders[name] = private_directory()
                unpack(raw[name], folder, check_wanted=check_wanted)
        on_error.pop_all()
    return files
