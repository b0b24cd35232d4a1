# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The node cache: blobs named by their digest, downloaded once for all replicas of a node.

The folder is private to one user, because anyone with write access could change what is loaded. The
cache opens the folder once, and keeps using the same file descriptor, so nobody can replace the
folder later. But the content is not trusted: each process hashes a blob again before using the
blob. A blob's file is always complete, because a killed download leaves only a temporary file.

Readers keep their blobs open, so removing a blob never breaks a reader. A download locks its
temporary file, so others remove this file only after the process has ended.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm._regular_files import open_regular
from serve_warm.artifact.blobs import receive, receive_unnamed
from serve_warm.errors import NodeDiskError
from serve_warm.stores import PIECE_BYTES, Sink

logger = logging.getLogger(__name__)

MAX_BYTES = 10 << 30
WAIT_S = 60.0
"""Seconds to wait while another process downloads a blob. After this time, this process downloads
the blob too."""
POLL_S = 0.02

_TEMPORARY = ".tmp"
_LOCK = ".lock"
_FOLDER_LOCK = f"folder{_LOCK}"
_OWN = re.compile(r"[0-9a-f]{64}(?:\.lock)?|[0-9a-f]{32}\.tmp|folder\.lock")
"""Names of the files that the cache creates. Files with other names are never removed."""
_ADVICE = "or set TMPDIR to a folder that only this user can write to"
PREPARED = Path("/var/cache/serve_warm")


def default_root() -> Path:
    """Return the folder of this user's downloads.

    The folder is in `PREPARED` if that folder is private to this user, as in a container whose
    image or volume prepared it. Otherwise, it is the `_private_folders.user_folder`.
    """
    with suppress(OSError):
        if not _private_folders.problems(PREPARED):
            return PREPARED / "blobs"
    return _private_folders.user_folder("blobs")


@record(frozen=True, kw_only=True)
class NodeCache(AbstractContextManager["NodeCache"]):
    """Blobs in a folder that only this user can access.

    Create a cache with `open`, and use it in a `with` block, which closes it.
    """

    root: Path
    descriptor: int | None
    """Descriptor of the folder; None if the folder cannot be created. Fetched files stay open when
    this descriptor closes."""
    max_bytes: int = MAX_BYTES
    """Limit in bytes for all files together. A download removes the oldest files first. Running
    downloads count, but stay, and a blob that is larger than the limit is kept too."""

    @classmethod
    def open(cls, root: Path, *, max_bytes: int = MAX_BYTES) -> NodeCache:
        """Return the cache in the folder `root`, creating the folder with mode 0700 if needed.

        If the folder cannot be created, a warning is logged, and every fetch downloads its blob.

        Raises:
            ArtifactRefused: `unsafe_directory`: another user owns the folder, or can write to it or
                to a parent folder; or the path contains a symbolic link.
        """
        root = root.absolute()
        cache = cls(root=root, descriptor=None, max_bytes=max_bytes)
        try:
            _private_folders.make_private(root)
            _private_folders.check_private(root, "the node cache", advice=_ADVICE)
            # O_NOFOLLOW: the folder checked above may have been replaced by a link.
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            _warn_once(root, error.strerror)
            return cache
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            _private_folders.check_private(
                root, "the node cache", opened=descriptor, advice=_ADVICE
            )
            opened.pop_all()
        return replace(cache, descriptor=descriptor)

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def fetch(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        """Return the blob with this sha256 (hex), freshly hashed and open at offset 0.

        If the blob is not cached, `fill` downloads it. Only one process of the node downloads a
        blob at a time; the others wait. If the folder cannot be written to, each process downloads
        its own copy, and a warning is logged. The caller closes the file.

        Raises:
            ArtifactRefused: `digest_mismatch`: the downloaded bytes do not have this sha256, so
                they are not cached. An ArtifactRefused from `fill` is raised unchanged.
            NodeDiskError: neither the folder nor a temporary file can be written.
        """
        if self.descriptor is not None:
            try:
                return self._share(digest, size_bytes, fill)
            except OSError as error:
                _warn_once(self.root, error.strerror)
        try:
            return receive_unnamed(digest, size_bytes, fill)
        except OSError as error:
            raise NodeDiskError(
                f"cannot write to the node cache {self.root} or to {tempfile.gettempdir()}: "
                f"{error.strerror}",
                hint="free disk space, or set TMPDIR to a folder on another disk",
            ) from error

    def _share(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        file = self._open_kept(digest, size_bytes)
        if file is None:
            with self._lock(f"{digest}{_LOCK}"):
                file = self._open_kept(digest, size_bytes)
                if file is None:
                    # Remove the blob only under the lock: another process may have replaced it with
                    # a good blob.
                    self._remove_damaged(digest)
                    file = self._download(digest, size_bytes, fill)
        return file

    def _open_kept(self, digest: str, size_bytes: int) -> BinaryIO | None:
        # A blob that cannot be read counts as a cache miss: the disk may be failing.
        with suppress(OSError), ExitStack() as opened:
            descriptor = self._open(digest, os.O_RDONLY)
            file = opened.enter_context(os.fdopen(descriptor, "rb"))
            if os.fstat(file.fileno()).st_size != size_bytes:
                return None
            found = hashlib.sha256()
            while piece := file.read(PIECE_BYTES):
                found.update(piece)
            if found.hexdigest() != digest:
                return None
            file.seek(0)
            opened.pop_all()  # from here on it is the caller's
            return file
        return None

    def _remove_damaged(self, digest: str) -> None:
        try:
            os.unlink(digest, dir_fd=self.descriptor)
        except FileNotFoundError:
            return
        logger.warning("removed a damaged blob from the node cache sha256=%s", digest[:16])

    def _download(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        temporary = f"{secrets.token_hex(16)}{_TEMPORARY}"
        with ExitStack() as opened:
            with self._lock(_FOLDER_LOCK):
                self._make_room(size_bytes)
                file = os.fdopen(self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")
                opened.enter_context(file)
                # This removes an unverified file. After the rename below, this name is gone.
                opened.callback(self._remove, temporary)
                _try_lock(file.fileno())  # until the file is closed; see _make_room
                # From the start, other processes count the full size.
                os.ftruncate(file.fileno(), size_bytes)
            receive(file, digest, size_bytes, fill)
            # No fsync: after a power failure the file may have wrong bytes, but each reader hashes
            # the file first. Syncing a large part would take a tenth of the time of its pull.
            # Without locks, another process may have removed the name. The open file is complete.
            with suppress(FileNotFoundError):
                os.rename(temporary, digest, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            opened.pop_all()  # from here on it is the caller's
        return file

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Take a lock of this node, or continue without the lock after `WAIT_S`.

        The locks only avoid second downloads and needless removals. Files are complete even without
        locks, because each file gets its name by a rename.
        """
        try:
            descriptor = self._open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            logger.debug("the node cache could not create a lock: %s", error)
            yield
            return
        try:
            end = time.monotonic() + WAIT_S
            while not _try_lock(descriptor) and time.monotonic() < end:
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, size_bytes: int) -> None:
        """Remove the oldest files until `size_bytes` more bytes fit the size limit.

        Running downloads stay, so the folder can be larger than the limit.
        """
        files = []
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                # Other locks stay, because some of them are the records of rollback marks.
                if _OWN.fullmatch(entry.name) and not entry.name.endswith(_LOCK):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        files.append((status.st_mtime, status.st_size, entry.name))
        excess = sum(size for _, size, _ in files) + size_bytes - self.max_bytes
        for _, size, name in sorted(files):
            if excess > 0 and not (name.endswith(_TEMPORARY) and self._is_locked(name)):
                self._remove(name)
                self._remove(f"{name}{_LOCK}")
                excess -= size

    def _is_locked(self, name: str) -> bool:
        try:
            descriptor = self._open(name, os.O_RDWR)
        except OSError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, name: str, flags: int) -> int:
        return open_regular(name, flags | os.O_NOFOLLOW, dir_fd=self.descriptor)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except OSError as error:
            # Best effort: the file may be gone already, or the volume may be read-only.
            logger.debug("the node cache could not remove %s: %s", name, error)


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks. On these, two processes may download the same
        # blob.
        logger.debug("the node cache cannot use locks: %s", error)
    return True


@functools.cache
def _warn_once(root: Path, why: str) -> None:
    # Log each cause only once. Otherwise every part of every artifact would log it.
    logger.warning(
        "the node cache %s cannot be written: %s. Each process therefore downloads its own "
        "copy. Free disk space, or set TMPDIR to a folder on another disk",
        root,
        why,
    )
