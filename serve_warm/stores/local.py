# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder as a store: on a disk, a network share or a mounted volume.

The store writes an object to a temporary file, syncs it, and then hard-links the file to the
object's key. So a crash never leaves a partial object, and a visible object is never replaced.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from serve_warm._records import record
from serve_warm._regular_files import open_regular
from serve_warm.errors import ObjectExists, ObjectNotFound, ObjectTooLarge, StoreDenied, StoreError
from serve_warm.stores import (
    PIECE_BYTES,
    Listed,
    Object,
    Sink,
    check_key,
    check_prefix,
    explain_change,
    is_key,
    pieces_of,
)

PAGE_FILES = 1_000
"""Number of file names that are examined for one page. Even on a network share, where each name may
cost a round trip, a page takes less than a second."""


@record(frozen=True, kw_only=True)
class LocalStore:
    """A folder whose files are the objects. If the folder is missing, `create` creates it.

    Links below the root are followed only for reading, and links to folders are not listed. Nothing
    is created or deleted through a link. Otherwise, anyone with write access to the store could use
    a link to change any file of this user. Reading through links is harmless, because callers check
    the content. Reading through links is also necessary, because mounted Kubernetes volumes consist
    of links.
    """

    root: Path
    """The absolute path of the folder, which may contain links."""

    @property
    def uri(self) -> str:
        """The folder as `file:///...`."""
        return self.root.as_uri()

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield the keys that begin with `prefix`. Each page covers at most `PAGE_FILES` names.

        Files that a crash left behind are skipped, and so are links whose targets are missing.

        Raises:
            StoreDenied: there is no file below the prefix, but such a link.
        """
        check_prefix(prefix)
        folder, dangling, is_empty = prefix.rpartition("/")[0], "", True
        with closing(_files(self.root, folder.split("/") if folder else [])) as files:
            while True:
                with self._border("list", prefix):
                    some = list(itertools.islice(files, PAGE_FILES))
                if not some:
                    break
                inside = [each for each in some if each is not None and _begins(each, prefix)]
                objects = [each for each in inside if isinstance(each, Listed)]
                is_empty = is_empty and not objects
                dangling = dangling or next((each for each in inside if isinstance(each, str)), "")
                yield objects
        if is_empty and dangling:
            # Otherwise, the store would seem to be empty.
            raise self._explain_link(dangling)

    def head(self, key: str) -> Object:
        """Return the size and time of an object."""
        with self._border("read", key):
            status = self._path(key).stat()
            self._check_regular(status, key)
            return _object(key, status)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`."""
        path = self._path(key)
        with self._border("read", key), open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            # Read one byte more than expected, because the file may be growing.
            data = file.read(min(size, max_bytes) + 1)
        if len(data) > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        return data

    def download(self, found: Object, sink: Sink) -> None:
        """Pass an object to `sink` from beginning to end."""
        offset = 0
        with closing(self._pieces(found)) as pieces:
            for piece in pieces:
                sink(offset, piece)
                offset += len(piece)
        if offset != found.size_bytes:
            raise explain_change(self.uri, found.key)

    def _pieces(self, found: Object) -> Generator[bytes, None, None]:
        # Use a generator, so that `_border` does not translate exceptions of the sink.
        path, left = self._path(found.key), found.size_bytes
        with self._border("read", found.key), open(path, "rb", opener=open_regular) as file:
            if _object(found.key, os.fstat(file.fileno())).version != found.version:
                raise explain_change(self.uri, found.key)
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                yield piece
                left -= len(piece)

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object.

        If several writers compete for a key, exactly one complete object remains.
        """
        check_key(key)
        *folders, name = key.split("/")
        with self._border("write", key):
            _make_directories(self.root)
            with _open_folder(self.root, folders, missing="make") as folder:
                created = not _exists(name, folder) and _publish(name, source, folder)
                # Sync even if another writer was first, because that writer may not have synced
                # yet.
                _sync(folder)
        if not created and not self._holds(key, source):
            raise ObjectExists(key, store=self.uri)

    def delete(self, key: str) -> None:
        """Remove an object. Empty folders remain, because another writer might need them.

        If the object is a link to a file, the link is removed.
        """
        check_key(key)
        *folders, name = key.split("/")
        with (
            self._border("delete", key),
            suppress(FileNotFoundError),
            _open_folder(self.root, folders) as folder,
        ):
            os.unlink(name, dir_fd=folder)

    def _holds(self, key: str, source: bytes | BinaryIO) -> bool:
        try:
            with open(self._path(key), "rb", opener=open_regular) as file:
                pairs = itertools.zip_longest(pieces_of(source), pieces_of(file))
                return all(ours == theirs for ours, theirs in pairs)
        except OSError:
            return False  # it is a folder, or was pruned while reading

    def _path(self, key: str) -> Path:
        check_key(key)
        return self.root / key

    def _explain_link(self, key: str) -> StoreDenied:
        try:
            target = str((self.root / key).readlink())
        except OSError:
            target = "?"
        return StoreDenied(
            f"{self.uri}: {key!r} is a link to {target!r}, which does not exist here",
            hint="mount the folder with the link's target too. In the cache of the Hub, a snapshot "
            "contains only links into `blobs`: mount the folder `models--…`, or copy the snapshot "
            "with `cp -rL`",
        )

    def _check_regular(self, status: os.stat_result, key: str) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise ObjectNotFound(key, store=self.uri)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{self.uri}: {key!r} is not a regular file")

    @contextmanager
    def _border(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if verb == "read" and error.errno == errno.ENOENT and (self.root / key).is_symlink():
                raise self._explain_link(key) from error
            if verb == "read" and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
                raise ObjectNotFound(key, store=self.uri) from error
            kind = StoreDenied if error.errno in _DENIED else StoreError
            raise kind(
                f"{self.uri}: cannot {verb} {key!r}: {error.strerror}", hint=_hint(verb, error)
            ) from error


_DENIED = (errno.EACCES, errno.EPERM)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class _LinkError(OSError):
    """There is a link where the store needs a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(errno.ELOOP, f"{folder!r} is a link, and links are not followed")


def _hint(verb: str, error: OSError) -> str:
    if isinstance(error, _LinkError):
        return (
            "only the path of the store's root may contain links: use the address of the folder "
            "that the link points to"
        )
    if verb == "write" and error.errno in _NO_HARD_LINKS:
        return (
            "a store must be on a file system with hard links; write the store on another file "
            "system, then copy it to this one"
        )
    if error.errno in _DENIED:
        return f"give the user of this process (uid {os.geteuid()}) access to the store"
    return ""


def _begins(each: Listed | str, prefix: str) -> bool:
    return (each.key if isinstance(each, Listed) else each).startswith(prefix)


def _files(root: Path, start: Sequence[str]) -> Generator[Listed | str | None, None, None]:
    """Yield each file in the folder `start` and below.

    For a link whose target is missing, yield its key instead; for every other name, yield None.
    Unreadable folders below `start` are skipped.
    """
    folders = [tuple(start)]
    while folders:
        names = folders.pop()
        # Skip a missing folder: the store is empty or is being pruned. Skip a link to a folder:
        # following links could loop, or list files outside the store.
        with (
            suppress(FileNotFoundError, NotADirectoryError, _LinkError),
            suppress(*(() if len(names) == len(start) else (PermissionError,))),
            _open_folder(root, names) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                key = "/".join((*names, entry.name))
                # Other names are temporary or foreign files.
                if is_key(key) and entry.is_dir(follow_symlinks=False):
                    folders.append((*names, entry.name))
                elif is_key(key) and _is_file(entry):
                    yield Listed(key=key, modified_unix=_read_mtime(entry))
                    continue
                yield key if is_key(key) and _is_dangling(entry) else None


def _read_mtime(entry: os.DirEntry[str]) -> float | None:
    try:
        return entry.stat().st_mtime
    except OSError:
        return None  # the entry was deleted while listing


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        # A looping link, or a link into a folder that this user cannot enter, is not an object.
        # Such a link must not hide other objects.
        if entry.is_symlink():
            return False
        raise


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    if not entry.is_symlink():
        return False
    try:
        entry.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # as in `_is_file`
    return False


def _object(key: str, status: os.stat_result) -> Object:
    return Object(
        key=key,
        size_bytes=status.st_size,
        modified_unix=status.st_mtime,
        version=f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}",
    )


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _publish(name: str, source: bytes | BinaryIO, folder: int) -> bool:
    """Write a complete file. Return False if another writer has created the file first."""
    temporary = f".{secrets.token_hex(16)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
            for piece in pieces_of(source):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    return True


@contextmanager
def _open_folder(
    root: Path, names: Sequence[str], *, missing: Literal["raise", "make"] = "raise"
) -> Iterator[int]:
    """Yield a file descriptor for the folder at path `names` below `root`.

    Each folder is opened relative to the descriptor of its parent folder. So nobody can replace a
    folder with a link while the path is being opened.

    Raises:
        _LinkError: one of the names is a link.
        OSError: one of the names is missing or is not a folder.
    """
    descriptor = os.open(root, _FOLDER)
    try:
        for count, name in enumerate(names, 1):
            try:
                inner = _open_inside(name, descriptor, missing)
            except OSError as error:
                if _is_link(name, descriptor):
                    raise _LinkError("/".join(names[:count])) from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _open_inside(name: str, folder: int, missing: Literal["raise", "make"]) -> int:
    flags = _FOLDER | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if missing == "raise":
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
        _sync(folder)
    return os.open(name, flags, dir_fd=folder)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _make_directories(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    with _open_folder(directory.parent, ()) as parent:
        _sync(parent)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems cannot sync a folder, and do not need to.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
