# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder as a store: on a disk, a network share or a mounted volume.

An object appears under its key by a hard link to a complete and synced temporary file. So a crash
at any byte leaves nothing visible, and nothing that is visible is ever replaced.
"""

from __future__ import annotations

import builtins
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from serve_warm.errors import ObjectExists, ObjectNotFound, ObjectTooLarge, StoreError
from serve_warm.stores import PIECE_BYTES, Object, Sink, check_key, pieces_of


@dataclass(frozen=True, kw_only=True)
class LocalStore:
    """A folder whose files are the objects; it need not exist before the first `create`."""

    root: Path
    """Absolute."""

    @property
    def uri(self) -> str:
        """The folder as `file:///...`."""
        return self.root.as_uri()

    def list(self, prefix: str) -> builtins.list[str]:
        """Return the files that begin with `prefix`; leftovers of crashes are not among them."""
        if prefix:
            check_key(prefix.removesuffix("/"))
        folder = prefix.rpartition("/")[0]
        with self._border("list", prefix):
            found = _files(self.root / folder, f"{folder}/" if folder else "")
            return sorted(key for key in found if key.startswith(prefix))

    def head(self, key: str) -> Object:
        """Return size and time of an object."""
        with self._border("read", key):
            status = self._path(key).stat()
            self._check_regular(status, key)
            return _object(key, status)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`."""
        path = self._path(key)
        with self._border("read", key), open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            self._check_regular(status, key)
            # The size is asked for again while reading: the file may be growing.
            data = file.read(min(status.st_size, max_bytes) + 1)
        if len(data) > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        return data

    def download(self, found: Object, sink: Sink) -> None:
        """Give an object to `sink` from beginning to end."""
        offset = 0
        with closing(self._pieces(found)) as pieces:
            for piece in pieces:
                sink(offset, piece)
                offset += len(piece)
        if offset != found.size_bytes:
            raise self._changed(found.key)

    def _pieces(self, found: Object) -> Generator[bytes, None, None]:
        # A generator, so that what the sink raises does not pass the border of this store.
        path, left = self._path(found.key), found.size_bytes
        with self._border("read", found.key), open(path, "rb", opener=_open_at_once) as file:
            if _object(found.key, os.fstat(file.fileno())).version != found.version:
                raise self._changed(found.key)
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                yield piece
                left -= len(piece)

    def _changed(self, key: str) -> StoreError:
        return StoreError(f"{self.uri}: {key!r} was changed while it was read", key=key)

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object; concurrent writers of one key leave one complete object."""
        target = self._path(key)
        with self._border("write", key):
            _make_directories(target.parent)
            created = not os.path.lexists(target) and _publish(target, source)
            # Also when somebody else was first: they may not have come this far.
            _sync_directory(target.parent)
        if not created and not self._holds(key, source):
            raise ObjectExists(key, store=self.uri)

    def delete(self, key: str) -> None:
        """Remove an object; its empty folders stay, since somebody may be about to use them."""
        path = self._path(key)
        with self._border("delete", key):
            path.unlink(missing_ok=True)

    def _holds(self, key: str, source: bytes | BinaryIO) -> bool:
        try:
            with open(self._path(key), "rb", opener=_open_at_once) as file:
                pairs = itertools.zip_longest(pieces_of(source), pieces_of(file))
                return all(ours == theirs for ours, theirs in pairs)
        except OSError:
            return False  # a folder, or pruned meanwhile

    def _path(self, key: str) -> Path:
        check_key(key)
        return self.root / key

    def _check_regular(self, status: os.stat_result, key: str) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise ObjectNotFound(key, store=self.uri)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{self.uri}: {key!r} is not a regular file", key=key)

    @contextmanager
    def _border(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if verb == "read" and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
                raise ObjectNotFound(key, store=self.uri) from error
            raise StoreError(
                f"{self.uri}: cannot {verb} {key!r}: {error.strerror}",
                hint="a store must be on a file system with hard links; where there are none, "
                "write it elsewhere and copy it"
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
                else "",
                key=key,
            ) from error


def _open_at_once(path: str, flags: int) -> int:
    # Not blocking, so that a pipe put in a file's place cannot hang a start.
    return os.open(path, flags | os.O_NONBLOCK)


def _files(directory: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return  # an empty store, or one that is being pruned
    for entry in entries:
        # Links to directories are not followed: they can form a loop.
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file():
            # A temporary file, or somebody else's, has a name that is no key.
            with suppress(StoreError):
                check_key(prefix + entry.name)
                yield prefix + entry.name


def _object(key: str, status: os.stat_result) -> Object:
    return Object(
        key=key,
        size_bytes=status.st_size,
        modified_unix=status.st_mtime,
        version=f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}",
    )


def _publish(target: Path, source: bytes | BinaryIO) -> bool:
    """Write a complete file; False when somebody else was faster."""
    temporary = target.with_name(f".{secrets.token_hex(16)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            for piece in pieces_of(source):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _make_directories(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory, and need not.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
