# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Blobs: the stored bytes of one part, from where they are in a store to its raw bytes.

    blobs/sha256/<hex>                              one part, as it is stored

Its size is looked at before a byte is fetched, its digest before anything is unpacked. Pieces come
in any order and are hashed while they come: reading a blob again to hash it would take as long as
a fast network needs to bring it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Protocol

from serve_warm.artifact.manifest import TORCH_BYTES, Part
from serve_warm.artifact.torch_bytes import check_torch_bytes
from serve_warm.errors import CHANGED_LATER, ArtifactRefused, ObjectNotFound, StoreError
from serve_warm.stores import PIECE_BYTES, Object, Sink

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOBS = "blobs/sha256/"
COMPRESSION_LEVEL = 9
MAX_WINDOW_LOG = 27
"""The decoder's memory, as a power of two; what level 9 writes stays below it."""
_CHUNK_BYTES = 1 << 20

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


# Packed and unpacked ---------------------------------------------------------------------------


def pack_part(name: str, raw: bytes) -> tuple[Part, bytes]:
    """Compress `raw` into a part; returns it with the bytes to store."""
    stored = zstd.compress(raw, COMPRESSION_LEVEL)
    part = Part(
        name=name,
        sha256=hashlib.sha256(stored).hexdigest(),
        stored_bytes=len(stored),
        raw_sha256=hashlib.sha256(raw).hexdigest(),
        raw_bytes=len(raw),
    )
    return part, stored


def check_stored(part: Part, stored: bytes) -> None:
    """Refuse stored bytes that are not those of the manifest.

    Raises:
        ArtifactRefused: `truncated`, `size_mismatch` or `digest_mismatch`.
    """
    check_stored_size(part, len(stored))
    digest = hashlib.sha256(stored).hexdigest()
    if digest != part.sha256:
        raise ArtifactRefused(
            f"part {part.name} is not the one that was signed: its sha256 is {digest[:16]}, the "
            f"manifest says {part.sha256[:16]}",
            reason="digest_mismatch",
            hint=CHANGED_LATER,
        )


def check_stored_size(part: Part, size: int) -> None:
    """Refuse a blob by its size, before it is read.

    Raises:
        ArtifactRefused: `truncated` or `size_mismatch`.
    """
    if size != part.stored_bytes:
        raise ArtifactRefused(
            f"part {part.name} has {size} bytes, the manifest says {part.stored_bytes}",
            reason="truncated" if size < part.stored_bytes else "size_mismatch",
            hint=CHANGED_LATER,
        )


def open_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Return the raw bytes of a part as a file without a name, open at its beginning.

    `stored` holds the stored bytes, whose digest has been checked: no decompressor sees a byte
    that is not what was signed. The size that the manifest promises bounds what is written,
    whatever the compressed bytes would unpack to; apply `check_caps` first. The file is on disk
    and nobody else can open it. Whoever calls closes it.

    Raises:
        ArtifactRefused: `size_mismatch`, `truncated`, `digest_mismatch` or `bad_archive` for what
            was inside.
        OSError: there is no room for it.
    """
    with ExitStack() as opened:
        raw: BinaryIO = opened.enter_context(tempfile.TemporaryFile(prefix="serve_warm-"))
        _unpack(part, stored, raw)
        raw.seek(0)
        opened.pop_all()  # from here on it is the caller's
    return raw


def _unpack(part: Part, stored: BinaryIO, raw: BinaryIO) -> None:
    digest = hashlib.sha256()
    # Hashing, unpacking and writing let other threads run: together they take half the time.
    with ThreadPoolExecutor(1, "serve_warm-hash") as hasher:
        hashed = hasher.submit(digest.update, b"")
        for piece in _decompress(part, stored):
            hashed.result()
            hashed = hasher.submit(digest.update, piece)
            raw.write(piece)
    if digest.hexdigest() != part.raw_sha256:
        raise ArtifactRefused(
            f"part {part.name} unpacks to other bytes than the manifest says",
            reason="digest_mismatch",
        )
    if part.name == TORCH_BYTES:
        raw.seek(0)
        check_torch_bytes(raw.read())


def _decompress(part: Part, stored: BinaryIO) -> Iterator[bytes]:
    what = f"part {part.name}"
    wrong_size = ArtifactRefused(
        f"{what} does not unpack to the {part.raw_bytes} bytes of the manifest",
        reason="size_mismatch",
    )
    stored.seek(0)
    left = part.raw_bytes
    try:
        decoder = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        )
        while not decoder.eof:
            chunk = stored.read(_CHUNK_BYTES) if decoder.needs_input else b""
            if decoder.needs_input and not chunk:
                raise ArtifactRefused(f"{what}: the compressed bytes end early", reason="truncated")
            piece = decoder.decompress(chunk, max_length=min(left + 1, _CHUNK_BYTES))
            left -= len(piece)
            if left < 0:
                raise wrong_size
            yield piece
    except zstd.ZstdError as error:
        raise ArtifactRefused(f"{what} is not zstd: {error}", reason="bad_archive") from error
    if left:
        raise wrong_size
    if decoder.unused_data or stored.read(1):
        raise ArtifactRefused(
            f"{what}: something follows the compressed bytes", reason="bad_archive"
        )


# Received in pieces ---------------------------------------------------------------------------


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
            f"a part is not the one that was signed: its sha256 is {landing.hexdigest()[:16]}, the "
            f"statement says {digest[:16]}",
            reason="digest_mismatch",
            hint=CHANGED_LATER,
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
