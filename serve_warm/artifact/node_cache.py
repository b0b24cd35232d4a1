# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The node cache: blobs named by their digest, downloaded once for all replicas of a node.

The folder is private to one user, because anyone with write access could change what is loaded. The
cache opens the folder once, and keeps using the same file descriptor, so nobody can replace the
folder later. But the content is not trusted: each process hashes a blob again before using the
blob. A blob's file is always complete, because a killed download leaves only a temporary file.

Readers keep their blobs open, so removing a blob never breaks a reader.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm.artifact.blobs import receive, receive_unnamed
from serve_warm.errors import ArtifactRefused, StoreError
from serve_warm.stores import PIECE_BYTES, Sink

logger = logging.getLogger(__name__)

MAX_BYTES = 10 << 30
MAX_AGE_S = 30 * 86400.0
WAIT_S = 60.0
"""Seconds to wait while another process downloads a blob. After this time, this process downloads
the blob too."""
POLL_S = 0.02
ABANDONED_S = 3600.0
"""A temporary file that is older than this many seconds is the leftover of a killed download."""

_TEMPORARY = ".tmp"
_LOCK = ".lock"
_OWN = re.compile(r"[0-9a-f]{64}(?:\.lock)?|[0-9a-f]{32}\.tmp")
"""Names of the files that the cache creates. Files with other names are never removed."""
_OF_THE_FILE_SYSTEM = re.compile(r"lost\+found|\.nfs[0-9a-f]+")
_ADVICE = "or set another folder in node_cache_dir or SERVE_WARM_NODE_CACHE_DIR"


def default_root() -> Path:
    """Return this user's `blobs` folder (see `_private_folders.user_folder`)."""
    return _private_folders.user_folder("blobs")


@record(frozen=True, kw_only=True)
class NodeCache:
    """Blobs in a folder that only this user can access.

    Create a cache with `open`, and use it in a `with` block, which closes it.
    """

    root: Path
    descriptor: int | None
    """Descriptor of the folder; None if the folder cannot be created. Fetched files stay open when
    this descriptor closes."""
    max_bytes: int = MAX_BYTES
    """Limit in bytes for all blobs together. The least recently used blobs are removed first."""
    max_age_s: float = MAX_AGE_S
    """Seconds that a blob is kept after its last use."""
    wait_s: float = WAIT_S
    """Seconds to wait while another process downloads a blob (see `WAIT_S`)."""

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_age_s: float = MAX_AGE_S,
        wait_s: float = WAIT_S,
    ) -> NodeCache:
        """Return the cache in the folder `root`, creating the folder with mode 0700 if needed.

        If the folder cannot be created, a warning is logged, and every fetch downloads its blob.

        Raises:
            ArtifactRefused: `unsafe_directory`: another user owns the folder, or can write to it or
                to a parent folder; the path contains a symbolic link; or the folder has files that
                are not blobs, so it has another purpose.
        """
        root = root.absolute()
        cache = cls(
            root=root, descriptor=None, max_bytes=max_bytes, max_age_s=max_age_s, wait_s=wait_s
        )
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
            _check_own(root, descriptor)
            opened.pop_all()
        return replace(cache, descriptor=descriptor)

    def __enter__(self) -> NodeCache:  # noqa: PYI034 - Self is not in Python 3.10
        return self

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
            StoreError: neither the folder nor a temporary file can be written.
        """
        if self.descriptor is not None:
            try:
                file = self._share(digest, size_bytes, fill)
            except OSError as error:
                _warn_once(self.root, error.strerror)
            else:
                self._evict(self.descriptor, used=digest)
                return file
        try:
            return receive_unnamed(digest, size_bytes, fill)
        except OSError as error:
            raise StoreError(
                f"cannot write to the node cache {self.root} or to {tempfile.gettempdir()}: "
                f"{error.strerror}",
                hint="free disk space, or set node_cache_dir and TMPDIR to other folders",
            ) from error

    def _share(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        file = self._open_kept(digest, size_bytes)
        if file is None:
            with self._lock_blob(digest):
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
            descriptor = self._open(digest, os.O_RDONLY | os.O_NONBLOCK)
            file = opened.enter_context(os.fdopen(descriptor, "rb"))
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
                return None
            found = hashlib.sha256()
            while piece := file.read(PIECE_BYTES):
                found.update(piece)
            if found.hexdigest() != digest:
                return None
            file.seek(0)
            # This records the last use. It fails on a volume that is mounted read-only.
            with suppress(OSError):
                os.utime(file.fileno())
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
            file = os.fdopen(self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")
            opened.enter_context(file)
            # This removes an unverified file. After the rename below, this name no longer exists.
            opened.callback(self._remove, temporary)
            receive(file, digest, size_bytes, fill)
            # No fsync: after a power failure the file may have wrong bytes, but each reader hashes
            # the file first. Syncing a large part would take a tenth of the time of its pull.
            os.rename(temporary, digest, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            opened.pop_all()  # from here on it is the caller's
        return file

    @contextmanager
    def _lock_blob(self, digest: str) -> Iterator[None]:
        """Lock a blob for this node, or continue without the lock after `self.wait_s`.

        The only purpose of the lock is to avoid a second download. Files are complete even without
        the lock, because each file gets its name by a rename.
        """
        try:
            descriptor = self._open(f"{digest}{_LOCK}", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            logger.debug("the node cache could not create a lock: %s", error)
            yield
            return
        try:
            end = time.monotonic() + self.wait_s
            while not _try_lock(descriptor) and time.monotonic() < end:
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _evict(self, descriptor: int, *, used: str) -> None:
        """Remove old files, then the least recently used blobs until the rest fit the size limit.

        Other processes may evict at the same time.
        """
        now, blobs = time.time(), []
        try:
            with os.scandir(descriptor) as scanned:
                entries = [entry for entry in scanned if _OWN.fullmatch(entry.name)]
        except OSError as error:
            logger.debug("the node cache could not be listed: %s", error)
            return
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            limit_s = ABANDONED_S if entry.name.endswith(_TEMPORARY) else self.max_age_s
            if entry.name != used and now - status.st_mtime > limit_s:
                self._remove(entry.name)
            elif not entry.name.endswith((_TEMPORARY, _LOCK)):
                blobs.append((status.st_mtime, status.st_size, entry.name))
        held = sum(size for _, size, _ in blobs)
        for _, size, name in sorted(blobs):
            if held <= self.max_bytes:
                break
            if name != used:
                self._remove(name)
                held -= size

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)

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


def _check_own(root: Path, descriptor: int) -> None:
    """Refuse a folder that has other programs' files, so a wrong setting never deletes them.

    Raises:
        ArtifactRefused: `unsafe_directory`.
    """
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if not _OWN.fullmatch(entry.name) and not _OF_THE_FILE_SYSTEM.fullmatch(entry.name):
                raise ArtifactRefused(
                    f"the node cache {root} contains a file of another program: {entry.name!r}",
                    reason="unsafe_directory",
                    hint="set node_cache_dir to a folder that nothing else uses, because "
                    "serve_warm removes old files from it",
                )


@functools.cache
def _warn_once(root: Path, why: str) -> None:
    # Log each cause only once. Otherwise every part of every artifact would log it.
    logger.warning(
        "the node cache %s cannot be written: %s. Each process therefore downloads its own "
        "copy. Free disk space, or set node_cache_dir to another folder",
        root,
        why,
    )
