# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How a blob lands in a file: its pieces in any order, hashed while they come.

Reading it again to hash it would take as long as a fast network needs to bring it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO

from serve_warm.errors import ArtifactRefused, StoreError
from serve_warm.stores import PIECE_BYTES, Sink


def receive_unnamed(digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
    """Return what `receive` wrote, in a temporary file without a name. Whoever calls closes it.

    Raises:
        What `receive` does.
    """
    with ExitStack() as opened:
        file: BinaryIO = opened.enter_context(tempfile.TemporaryFile(prefix="serve_warm-"))
        receive(file, digest, size_bytes, fill)
        opened.pop_all()  # from here on it is the caller's
    return file


def receive(file: BinaryIO, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> None:
    """Have `fill` write a blob into an empty file, hashed as it comes; ends at its beginning.

    Raises:
        ArtifactRefused: `digest_mismatch`.
        StoreError: `fill` gave fewer or more bytes; or what it raises.
        OSError: the file cannot be written, whatever `fill` made of that.
    """
    landing = _Landing(file.fileno(), size_bytes)
    try:
        fill(landing)
    except (OSError, StoreError) as error:
        if landing.failure is None:
            raise
        # The store may have taken it for an error of its own.
        raise landing.failure from error
    if landing.hashed_bytes != size_bytes:
        raise StoreError(
            f"{landing.received_bytes} bytes came of a blob of {size_bytes}, the first "
            f"{landing.hashed_bytes} without a gap",
            hint="the store gave it incomplete",
        )
    if landing.hexdigest() != digest:
        raise ArtifactRefused(
            f"the sha256 of a blob is {landing.hexdigest()[:16]}, its statement says {digest[:16]}",
            reason="digest_mismatch",
            hint="it was changed after it was published; build and push again",
        )
    file.seek(0)


class _Landing:
    """A sink that writes each piece to its place and hashes from the beginning on.

    Pieces that come early are hashed when the gap before them is closed, from the file, where they
    still are in memory: holding them here would hold the whole object.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._early: dict[int, int] = {}
        self.hashed_bytes = 0
        self.received_bytes = 0
        """What comes twice may overwrite what was hashed; with it these are more than there are."""
        self.failure: OSError | None = None
        """Why the file could not be written or read back."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def __call__(self, offset: int, piece: bytes | memoryview) -> None:
        try:
            self._take(offset, memoryview(piece))
        except OSError as error:
            self.failure = self.failure or error
            raise

    def _take(self, offset: int, view: memoryview) -> None:
        with self._lock:
            self.received_bytes += len(view)
            if max(self.received_bytes, offset + len(view)) > self._size_bytes:
                raise StoreError(
                    f"more came of a blob than its {self._size_bytes} bytes",
                    hint="the store gave a part of it twice, or something else",
                )
        written = 0
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], offset + written)
        with self._lock:
            if offset != self.hashed_bytes:
                if view:
                    self._early[offset] = len(view)
                return
            self._hash.update(view)
            self.hashed_bytes += len(view)
            while length := self._early.pop(self.hashed_bytes, 0):
                self._hash_again(length)

    def _hash_again(self, length: int) -> None:
        end = self.hashed_bytes + length
        while self.hashed_bytes < end:
            size = min(end - self.hashed_bytes, PIECE_BYTES)
            piece = os.pread(self._descriptor, size, self.hashed_bytes)
            if not piece:
                return  # the file was cut short; the count of hashed bytes says so
            self._hash.update(piece)
            self.hashed_bytes += len(piece)
