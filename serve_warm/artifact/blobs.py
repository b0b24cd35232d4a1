# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How one part gets out of a store: under which key it stands, and never more of it than expected.

    blobs/sha256/<hex>                              one part, as it is stored

Its size is looked at before a byte is fetched, its digest before anything is unpacked.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from serve_warm.artifact.landing import receive_unnamed
from serve_warm.artifact.manifest import Part, check_stored_size, open_part
from serve_warm.errors import ArtifactRefused, ObjectNotFound, StoreError
from serve_warm.stores import Object, Sink

BLOBS = "blobs/sha256/"

Progress = Callable[[str, int, int], None]
"""Told what is being moved, how many bytes of it are done, and how many there are."""


class Source(Protocol):
    """The half of a store that a part is downloaded through."""

    def head(self, key: str) -> Object:
        """As `Store.head`."""

    def download(self, found: Object, sink: Sink) -> None:
        """As `Store.download`."""


def blob_key(part: Part) -> str:
    """Return where the stored bytes of a part stand."""
    return f"{BLOBS}{part.sha256}"


def download_part(source: Source, part: Part, sink: Sink) -> None:
    """Download a part, having looked at its size first.

    Raises:
        ArtifactRefused: `missing_part`, `truncated` or `size_mismatch`.
        StoreError: the store could not be read.
    """
    try:
        found = source.head(blob_key(part))
        check_stored_size(part, found.size_bytes)
        source.download(found, sink)
    except ObjectNotFound as error:
        raise ArtifactRefused(
            f"the blob of part {part.name} is not in the store: {error.message}",
            reason="missing_part",
            hint="push the artifact again",
        ) from error


def receive_part(source: Source, part: Part, progress: Progress) -> BinaryIO:
    """Return a downloaded part in a file without a name, hashed as it came, at its beginning.

    Whoever calls closes it.

    Raises:
        ArtifactRefused: `missing_part`, `truncated`, `size_mismatch` or `digest_mismatch`.
        StoreError: the store could not be read, or there is no room for the part.
    """
    done = 0
    lock = threading.Lock()

    def fill(sink: Sink) -> None:
        def counted(offset: int, piece: bytes | memoryview) -> None:
            nonlocal done
            sink(offset, piece)
            with lock:
                done += len(piece)
                progress(part.name, done, part.stored_bytes)

        progress(part.name, 0, part.stored_bytes)
        download_part(source, part, counted)

    with _room_for(part):
        return receive_unnamed(part.sha256, part.stored_bytes, fill)


def unpack_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Return what `open_part` does; that there is no room for it is a StoreError here."""
    with _room_for(part):
        return open_part(part, stored)


@contextmanager
def _room_for(part: Part) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"part {part.name} cannot be written to {tempfile.gettempdir()}: {error.strerror}",
            hint="it takes as much room there as the artifact has unpacked; TMPDIR names another "
            "folder",
        ) from error
