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

import fcntl
import hashlib
import logging
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from serve_warm.errors import ArtifactRefused, StoreDenied, StoreError
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


def default_root() -> Path:
    """Return `<tmp>/serve_warm-<uid>/blobs`, by its real path."""
    return Path(tempfile.gettempdir()).resolve() / f"serve_warm-{os.geteuid()}" / "blobs"


@dataclass(frozen=True, kw_only=True)
class NodeCache:
    """Blobs in a folder that belongs to this user alone; `open` makes one, a `with` closes it."""

    root: Path
    descriptor: int
    """Of the folder. The files that were fetched outlive it."""
    max_bytes: int = MAX_BYTES
    """Of all blobs; the ones that were used longest ago go first."""
    max_age_s: float = MAX_AGE_S
    """Since its last use, after which a blob goes."""

    @classmethod
    def open(
        cls, root: Path, *, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S
    ) -> NodeCache:
        """Return the cache in `root`, made with mode 0700 when it is not there.

        Raises:
            ArtifactRefused: `unsafe_directory`: somebody else owns it or can write to it, or to a
                folder above it, or the way there leads over a symbolic link.
            StoreDenied: it cannot be made.
        """
        root = root.absolute()
        try:
            _make_private(root)
            _check_private(root)
            # Not followed: what was checked as a folder a moment ago may be a link by now.
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise StoreDenied(
                f"the node cache {root} cannot be used: {error.strerror}",
                hint="name another folder in node_cache_dir",
            ) from error
        return cls(root=root, descriptor=descriptor, max_bytes=max_bytes, max_age_s=max_age_s)

    def __enter__(self) -> NodeCache:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def fetch(self, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> BinaryIO:
        """Return the blob of this sha256 (hex), open at its beginning and just now hashed.

        `fill` downloads it where it is not here, and is called by one process of the node at a
        time; the others wait for it. Whoever calls closes the file.

        Raises:
            ArtifactRefused: `digest_mismatch`, and nothing is kept; or what `fill` raises.
            StoreError: the folder cannot be written.
        """
        try:
            file = self._kept(digest, size_bytes)
            if file is None:
                with self._locked(digest):
                    file = self._kept(digest, size_bytes)
                    if file is None:
                        # Not before it is locked: by then another process may have a good one.
                        self._remove_damaged(digest)
                        file = self._download(digest, size_bytes, fill)
        except OSError as error:
            raise StoreError(
                f"the node cache {self.root} cannot be written: {error.strerror}",
                hint="give it room, or name another folder in node_cache_dir",
            ) from error
        self._evict(used=digest)
        return file

    def _kept(self, digest: str, size_bytes: int) -> BinaryIO | None:
        try:
            file = os.fdopen(self._open(digest, os.O_RDONLY | os.O_NONBLOCK), "rb")
        except OSError:
            return None
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size == size_bytes:
            found = hashlib.sha256()
            while piece := file.read(PIECE_BYTES):
                found.update(piece)
            if found.hexdigest() == digest:
                file.seek(0)
                # The stamp of its last use; a volume that is mounted read-only has none.
                with suppress(OSError):
                    os.utime(file.fileno())
                return file
        file.close()
        return None

    def _remove_damaged(self, digest: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(digest, dir_fd=self.descriptor)
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
    def _locked(self, digest: str) -> Iterator[None]:
        """Be the only one of the node, or go on alone when another one takes too long.

        A lock only saves a second download: what makes files whole is their renaming.
        """
        descriptor = self._open(f"{digest}{_LOCK}", os.O_RDWR | os.O_CREAT)
        try:
            end = time.monotonic() + WAIT_S
            while not _try_lock(descriptor) and time.monotonic() < end:
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _evict(self, *, used: str) -> None:
        """Remove what is old, then what is too much. Others may do the same at the same time."""
        now, blobs = time.time(), []
        try:
            with os.scandir(self.descriptor) as scanned:
                entries = list(scanned)
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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def receive(file: BinaryIO, digest: str, size_bytes: int, fill: Callable[[Sink], None]) -> None:
    """Have `fill` write a blob into an empty file, hashed as it comes; ends at its beginning.

    Raises:
        ArtifactRefused: `digest_mismatch`.
        StoreError: `fill` gave fewer or more bytes; or what it raises.
        OSError: the file cannot be written.
    """
    landing = _Landing(file.fileno(), size_bytes)
    fill(landing)
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

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def __call__(self, offset: int, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
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


def _make_private(root: Path) -> None:
    if not os.path.lexists(root):
        _make_private(root.parent)
        try:
            root.mkdir(mode=0o700)
        except FileExistsError:
            return  # another process was faster


def _check_private(root: Path) -> None:
    problems = []
    for folder in (root, *root.parents):
        status = folder.lstat()
        shared = status.st_mode & (0o077 if folder == root else 0o022)
        if stat.S_ISLNK(status.st_mode):
            problems.append(f"{folder} is a symbolic link")
        elif status.st_uid not in ((os.geteuid(),) if folder == root else (0, os.geteuid())):
            problems.append(f"{folder} belongs to user id {status.st_uid}")
        elif shared and (folder == root or not status.st_mode & stat.S_ISVTX):
            # Who can rename what is in a folder above can put another one in its place. A sticky
            # one, such as /tmp, does not let them.
            problems.append(f"{folder} is open to other users (mode {status.st_mode & 0o777:o})")
    if problems:
        raise ArtifactRefused(
            "the node cache is not private: " + "; ".join(problems),
            reason="unsafe_directory",
            hint=f"remove {root}, or name in node_cache_dir a folder of mode 0700 that this user "
            "owns, by its real path",
        )
