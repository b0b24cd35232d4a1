# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a node keeps of the stores: blobs by digest, downloaded once for all replicas on it.

The folder is private to one user, since whoever can write to it could change what is loaded. It is
opened once and everything in it is reached through that descriptor, so that nobody can put another
folder in its place later. Nothing in it is believed all the same: a blob is hashed again by each
process that takes it. Files are complete or not there; a killed download leaves a temporary name.

A reader holds its blob open, so removing one never takes it from anybody.
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
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from serve_warm import _private_folders
from serve_warm.artifact.blobs import receive, receive_unnamed
from serve_warm.errors import ArtifactRefused, StoreError
from serve_warm.stores import PIECE_BYTES, Sink

logger = logging.getLogger(__name__)

MAX_BYTES = 10 << 30
MAX_AGE_S = 30 * 86400.0
WAIT_S = 60.0
"""How long one waits for another process' download of the same blob before making its own."""
POLL_S = 0.02
ABANDONED_S = 3600.0
"""A temporary file of this age belongs to a download that was killed."""

_TEMPORARY = ".tmp"
_LOCK = ".lock"
_OWN = re.compile(r"[0-9a-f]{64}(?:\.lock)?|[0-9a-f]{32}\.tmp")
"""What the cache makes, and all that it ever removes."""
_OF_THE_FILE_SYSTEM = re.compile(r"lost\+found|\.nfs[0-9a-f]+")
_ADVICE = "or name another folder in node_cache_dir or SERVE_WARM_NODE_CACHE_DIR"


def default_root() -> Path:
    """Return the folder `blobs` of this user's own ones (`_private_folders.user_folder`)."""
    return _private_folders.user_folder("blobs")


@dataclass(frozen=True, kw_only=True)
class NodeCache:
    """Blobs in a folder that belongs to this user alone; `open` makes one, a `with` closes it."""

    root: Path
    descriptor: int | None
    """Of the folder, None where it cannot be made. The files that were fetched outlive it."""
    max_bytes: int = MAX_BYTES
    """Of all blobs; the ones that were used longest ago go first."""
    max_age_s: float = MAX_AGE_S
    """Since its last use, after which a blob goes."""

    @classmethod
    def open(
        cls, root: Path, *, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S
    ) -> NodeCache:
        """Return the cache in `root`, made with mode 0700 when it is not there.

        Where it cannot be made, what is fetched is downloaded each time, and a warning says so.

        Raises:
            ArtifactRefused: `unsafe_directory`: somebody else owns it or can write to it, or to a
                folder above it, or the way there leads over a symbolic link; or it holds what is
                no blob, so that it was meant for something else.
        """
        root = root.absolute()
        try:
            _private_folders.make_private(root)
            _private_folders.check_private(root, "the node cache", advice=_ADVICE)
            # Not followed: what was checked as a folder a moment ago may be a link by now.
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            _warn_once(root, error.strerror)
            return cls(root=root, descriptor=None, max_bytes=max_bytes, max_age_s=max_age_s)
        with ExitStack() as opened:
            opened.callback(os.close, descriptor)
            _private_folders.check_private(
                root, "the node cache", opened=descriptor, advice=_ADVICE
            )
            _check_own(root, descriptor)
            opened.pop_all()
        return cls(root=root, descriptor=descriptor, max_bytes=max_bytes, max_age_s=max_age_s)

    def __enter__(self) -> NodeCache:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def fetch(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        """Return the blob of this sha256 (hex), open at its beginning and just now hashed.

        `fill` downloads it where it is not here, and is called by one process of the node at a
        time; the others wait for it. Where the folder cannot be written, each process downloads
        for itself, and a warning says so. Whoever calls closes the file.

        Raises:
            ArtifactRefused: `digest_mismatch`, and nothing is kept; or what `fill` raises.
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
                f"the node cache {self.root} cannot be written, nor can "
                f"{tempfile.gettempdir()}: {error.strerror}",
                hint="give them room; node_cache_dir and TMPDIR name other folders",
            ) from error

    def _share(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        file = self._open_kept(digest, size_bytes)
        if file is None:
            with self._lock_blob(digest):
                file = self._open_kept(digest, size_bytes)
                if file is None:
                    # Not before it is locked: by then another process may have a good one.
                    self._remove_damaged(digest)
                    file = self._download(digest, size_bytes, fill)
        return file

    def _open_kept(self, digest: str, size_bytes: int) -> BinaryIO | None:
        # A blob that cannot be read is as good as none: the disk may be failing.
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
            # The stamp of its last use; a volume that is mounted read-only has none.
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
        logger.warning("the node cache held a damaged blob sha256=%s, now removed", digest[:16])

    def _download(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        temporary = f"{secrets.token_hex(16)}{_TEMPORARY}"
        with ExitStack() as opened:
            file = os.fdopen(self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")
            opened.enter_context(file)
            # Once it is renamed nothing has this name; before, nothing unverified may stay.
            opened.callback(self._remove, temporary)
            receive(file, digest, size_bytes, fill)
            # Not synced: after a power cut the name may stand for other bytes, and whoever takes
            # them hashes them first. A sync of a large part costs a tenth of its whole pull.
            os.rename(temporary, digest, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            opened.pop_all()  # from here on it is the caller's
        return file

    @contextmanager
    def _lock_blob(self, digest: str) -> Iterator[None]:
        """Be the only one of the node, or go on alone when another one takes too long.

        A lock only saves a second download: what makes files whole is their renaming.
        """
        try:
            descriptor = self._open(f"{digest}{_LOCK}", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            logger.debug("the node cache could not make a lock: %s", error)
            yield
            return
        try:
            end = time.monotonic() + WAIT_S
            while not _try_lock(descriptor) and time.monotonic() < end:
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _evict(self, descriptor: int, *, used: str) -> None:
        """Remove what is old, then what is too much. Others may do the same at the same time."""
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
            # Gone already, or a volume that is mounted read-only: nothing depends on it.
            logger.debug("the node cache could not remove %s: %s", name, error)


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks: all that is lost is that others wait.
        logger.debug("the node cache has no locks: %s", error)
    return True


def _check_own(root: Path, descriptor: int) -> None:
    """Refuse a folder that was not made for this: a slip in a setting may not cost files.

    Raises:
        ArtifactRefused: `unsafe_directory`.
    """
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if not _OWN.fullmatch(entry.name) and not _OF_THE_FILE_SYSTEM.fullmatch(entry.name):
                raise ArtifactRefused(
                    f"the node cache {root} holds what is not its own: {entry.name!r}",
                    reason="unsafe_directory",
                    hint="name in node_cache_dir a folder for it alone: what is old there is "
                    "removed",
                )


@functools.cache
def _warn_once(root: Path, why: str) -> None:
    # Once for each cause: every part of every artifact meets it.
    logger.warning(
        "the node cache %s cannot be written: %s; each process downloads for itself. Give it room, "
        "or name another folder in node_cache_dir",
        root,
        why,
    )
