# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Blobs: the stored bytes of parts, and how blobs are downloaded, checked and unpacked.

    blobs/sha256/<hex>                              one part, as it is stored

A blob's size is checked before the blob is downloaded. A blob's digest is checked before the blob
is unpacked. Pieces of a blob arrive in any order and are hashed on arrival. Hashing a blob later
would mean reading it again, which would take as long as a download over a fast network.
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

from serve_warm.artifact.manifest import Part
from serve_warm.errors import (
    CHANGED_LATER,
    ArtifactRefused,
    NodeDiskError,
    ObjectNotFound,
    StoreError,
)
from serve_warm.stores import PIECE_BYTES, Object, Sink

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOBS = "blobs/sha256/"
COMPRESSION_LEVEL = 9
MAX_WINDOW_LOG = 27
"""Memory limit of the zstd decoder, as a power of two. Compression level 9 needs less."""
_CHUNK_BYTES = 1 << 20


class BlobStore(Protocol):
    """The store methods needed to download a part."""

    def head(self, key: str) -> Object:
        """Return the metadata of an object, like `Store.head`."""

    def download(self, found: Object, sink: Sink) -> None:
        """Pass an object to `sink` in pieces, like `Store.download`."""


def blob_key(part: Part) -> str:
    """Return the key of a part's stored bytes in a store."""
    return f"{BLOBS}{part.sha256}"


def download_part(source: BlobStore, part: Part, sink: Sink) -> None:
    """Download a part after checking its size.

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


def receive_part(source: BlobStore, part: Part) -> BinaryIO:
    """Download the stored bytes of a part into an unnamed file, and hash them as they arrive.

    Returns the file at offset 0. The caller closes the file.

    Raises:
        ArtifactRefused: `missing_part`, `truncated`, `size_mismatch` or `digest_mismatch`.
        StoreError: the store could not be read.
        NodeDiskError: the disk has no room for the part.
    """
    with _room_for(part):
        return receive_unnamed(
            part.sha256, part.stored_bytes, lambda sink: download_part(source, part, sink)
        )


def unpack_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Call `open_part`, but raise NodeDiskError instead of OSError if the disk is full."""
    with _room_for(part):
        return open_part(part, stored)


@contextmanager
def _room_for(part: Part) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NodeDiskError(
            f"part {part.name} cannot be written to {tempfile.gettempdir()}: {error.strerror}",
            hint="free enough disk space for the unpacked artifact, or set TMPDIR to another "
            "folder",
        ) from error


# Packed and unpacked ---------------------------------------------------------------------------


def pack_part(name: str, raw: bytes) -> tuple[Part, bytes]:
    """Compress `raw`; return the part and the bytes to store."""
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
    """Refuse stored bytes that do not match the manifest.

    Raises:
        ArtifactRefused: `truncated`, `size_mismatch` or `digest_mismatch`.
    """
    check_stored_size(part, len(stored))
    digest = hashlib.sha256(stored).hexdigest()
    if digest != part.sha256:
        raise ArtifactRefused(
            f"part {part.name} does not match the signature: its sha256 is {digest[:16]}, but the "
            f"manifest says {part.sha256[:16]}",
            reason="digest_mismatch",
            hint=CHANGED_LATER,
        )


def check_stored_size(part: Part, size: int) -> None:
    """Refuse a blob of the wrong size before reading it.

    Raises:
        ArtifactRefused: `truncated` or `size_mismatch`.
    """
    if size != part.stored_bytes:
        raise ArtifactRefused(
            f"part {part.name} has {size} bytes, but the manifest says {part.stored_bytes}",
            reason="truncated" if size < part.stored_bytes else "size_mismatch",
            hint=CHANGED_LATER,
        )


def open_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Return the raw bytes of a part as an unnamed file, open at offset 0.

    `stored` holds the stored bytes. Check the digest of the stored bytes first: only signed bytes
    may reach the decompressor. Also call `check_caps` first, because this function writes as many
    bytes as the manifest states. The returned file is on disk, and no other process can open it.
    The caller closes the file.

    Raises:
        ArtifactRefused: `size_mismatch`, `truncated`, `digest_mismatch` or `bad_archive`: the bytes
            cannot be unpacked, or the unpacked bytes are wrong.
        OSError: the disk has no room for the unpacked bytes.
    """
    with ExitStack() as opened:
        raw: BinaryIO = opened.enter_context(tempfile.TemporaryFile(prefix="serve_warm-"))
        _unpack(part, stored, raw)
        raw.seek(0)
        opened.pop_all()  # from here on it is the caller's
    return raw


def _unpack(part: Part, stored: BinaryIO, raw: BinaryIO) -> None:
    digest = hashlib.sha256()
    # Hashing, unpacking and writing release the GIL, so two threads halve the time.
    with ThreadPoolExecutor(1, "serve_warm-hash") as hasher:
        hashed = hasher.submit(digest.update, b"")
        for piece in _decompress(part, stored):
            hashed.result()
            hashed = hasher.submit(digest.update, piece)
            raw.write(piece)
    if digest.hexdigest() != part.raw_sha256:
        raise ArtifactRefused(
            f"part {part.name} unpacks to bytes that do not match the manifest's digest",
            reason="digest_mismatch",
        )


def _decompress(part: Part, stored: BinaryIO) -> Iterator[bytes]:
    what = f"part {part.name}"
    wrong_size = ArtifactRefused(
        f"{what} does not unpack to the {part.raw_bytes} bytes that the manifest states",
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
            f"{what}: there is data after the compressed bytes", reason="bad_archive"
        )


# Received in pieces ---------------------------------------------------------------------------


def receive_unnamed(digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
    """Run `receive` on an unnamed temporary file, and return the file, which the caller closes.

    Raises:
        As `receive`.
    """
    with ExitStack() as opened:
        file: BinaryIO = opened.enter_context(tempfile.TemporaryFile(prefix="serve_warm-"))
        receive(file, digest, size_bytes, fill)
        opened.pop_all()  # from here on it is the caller's
    return file


def receive(file: BinaryIO, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> None:
    """Call `fill` to write a blob into an empty file, hash the blob on arrival, rewind the file.

    Raises:
        ArtifactRefused: `digest_mismatch`.
        StoreError: `fill` wrote too few or too many bytes, or raised StoreError itself.
        OSError: the file cannot be written, even if `fill` reports this failure as a StoreError.
    """
    landing = _Landing(file.fileno(), size_bytes)
    try:
        fill(landing)
    except (OSError, StoreError) as error:
        if landing.failure is None:
            raise
        # The store may have reported a failed write to this file as a store error.
        raise landing.failure from error
    if landing.hashed_bytes != size_bytes:
        raise StoreError(
            f"received {landing.received_bytes} of {size_bytes} bytes of a blob; the "
            f"first gap is after {landing.hashed_bytes} bytes",
            hint="the store returned an incomplete blob",
        )
    if landing.hexdigest() != digest:
        raise ArtifactRefused(
            f"a part does not match the signature: its sha256 is {landing.hexdigest()[:16]}, but "
            f"the statement says {digest[:16]}",
            reason="digest_mismatch",
            hint=CHANGED_LATER,
        )
    file.seek(0)


class _Landing:
    """A sink that writes each piece at its offset and hashes the file in order.

    A piece that arrives early is hashed only after all pieces before it have arrived. The piece is
    then read back from the file, usually from the page cache. Early pieces are not kept in memory,
    because together they could be as large as the blob.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._early: dict[int, int] = {}
        self.hashed_bytes = 0
        self.received_bytes = 0
        """Number of received bytes. The bytes of a repeated piece count twice, so the count
        exceeds the blob's size, and the blob is refused. A repeated piece could have overwritten
        bytes that were already hashed."""
        self.failure: OSError | None = None
        """The error from writing the file or reading it back; None if there was no error."""

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
                    f"received more data than the blob's {self._size_bytes} bytes",
                    hint="the store sent a piece twice, or sent a different object",
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
                return  # The file was truncated. The final count of hashed bytes reveals this.
            self._hash.update(piece)
            self.hashed_bytes += len(piece)
