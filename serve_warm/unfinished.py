# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an unfinished build has compiled, kept on its node until a build of the same is published.

Torch is never pointed here. It compiles into the private directory of its process, as ever; what
is complete is copied from there, and copied into the private directory of the next build. A
compiler writes under the final name, and it goes on when the process that started it was killed:
of a library that was cut off torch 2.13 loads what there is, and crashes at once or later.

So a copy stands under its digest, and a list says which copies were complete. At a resume each is
hashed: what is not on the list, damaged or lost is compiled again. The folder is private to its
user like all others that are loaded from, and only builds of that user write to it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from serve_warm import __version__, _private_folders
from serve_warm.artifact.archive import is_scratch
from serve_warm.fingerprint import Fingerprint

logger = logging.getLogger(__name__)

MAX_AGE_S = 7 * 86400.0
"""Since a build used it last, after which the next build on this node removes it."""

MAX_FRUITLESS = 2
"""Builds in a row that went on from it and ended before anything was compiled or replayed. Then it
goes: it may be what ends them."""

KERNELS = (".so", ".cubin", ".hsaco")
"""What counts as a kernel when it is said how much there is; torch's probes of the CPU count too.
"""

LIST_NAME = "list.json"
FORMAT = 1
_KEY = re.compile(r"[0-9a-f]{32}")
_TRIES = 10


def default_root() -> Path:
    """Return `<base>/serve_warm-<uid>/builds` of `_private_folders.private_base`, resolved."""
    return _private_folders.user_folder("builds")


def key_of(deployment: str, fingerprint: Fingerprint) -> str:
    """Return the name of a build: 32 hexadecimal digits, the same where entries can be reused.

    That is in the same deployment, on an equal machine, with equal settings, by the same release.
    """
    same = json.dumps([deployment, fingerprint.key, __version__])
    return hashlib.sha256(same.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """What a build goes on from."""

    kernels: int
    kept_unix: float
    """When the unfinished build kept something last."""

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.kept_unix))
        some = "1 kernel" if self.kernels == 1 else f"{self.kernels} kernels"
        return f"resuming: {some} of an interrupted build of {when}"


@dataclass(frozen=True, kw_only=True)
class _Copy:
    sha256: str
    status: tuple[int, int, int] | None
    """Of the file in the cache directory, when it was copied; None when that is not known."""


class Unfinished:
    """The folder of one build while a process builds: `open`, `resume` once, then keep.

    Its lock is held until `close`, or until the process ends. Keeping is a gift: where it fails
    a warning says so once, and the build goes on without.
    """

    def __init__(self, folder: Path, lock: int, *, written_in_place: Callable[[str], bool]) -> None:
        self.folder = folder
        self._lock_file: int | None = lock
        self._written_in_place = written_in_place
        self._lock = threading.Lock()
        self._cache: Path | None = None
        self._copies: dict[str, _Copy] = {}
        self._complete: set[str] = set()
        self._fruitless = 0

    @classmethod
    def open(
        cls,
        key: str,
        *,
        begin: Literal["resume", "fresh"],
        written_in_place: Callable[[str], bool],
        root: Path | None = None,
    ) -> Unfinished:
        """Lock the folder of a build, made when it is not there; `fresh` empties it.

        Folders of other builds that are too old are removed. `written_in_place` tells by its
        name whether a file in a cache directory may be incomplete under its final name.

        Raises:
            ArtifactRefused: `unsafe_directory`: others can change what is in `root`.
            BlockingIOError: another process builds the same at this moment.
            OSError: the folder cannot be made.
        """
        root = default_root() if root is None else root
        _private_folders.make_private(root)
        _private_folders.check_private(root, "the folder of unfinished builds")
        _sweep(root, but=key)
        folder = root / key
        lock = _locked(folder, missing="make")
        found = cls(folder, lock, written_in_place=written_in_place)
        if begin == "fresh":
            found.forget()
        return found

    def resume(self, cache: Path) -> Resumed | None:
        """Copy what is kept into a cache directory, which is the one that is kept from then on.

        What is there already stays. Returns None where nothing could be copied.

        Raises:
            OSError: the directory cannot be written.
        """
        self._cache = cache
        kept = self._read()
        if kept is None:
            self.forget()
            return None
        digests, kept_unix, fruitless = kept
        if fruitless >= MAX_FRUITLESS:
            logger.warning(
                "what an unfinished build kept is removed: %d builds in a row went on from it and "
                "ended before they had compiled anything",
                fruitless,
            )
            self.forget()
            return None
        for name, digest in digests.items():
            if self._put_back(name, digest, cache):
                self._copies[name] = _Copy(sha256=digest, status=_status(cache / name))
                self._complete.add(name)
        # Before anything is loaded: loading may be the end of this process.
        self._fruitless = fruitless + 1
        self._write(kept_unix)
        self._remove_unlisted()
        if not self._copies:
            return None
        kernels = sum(name.endswith(KERNELS) for name in self._copies)
        return Resumed(kernels=kernels, kept_unix=kept_unix)

    def keep_object(self, path: Path) -> None:
        """Keep what a compiler has just completed, if it is in the directory; from any thread."""
        cache = self._cache
        if cache is None or cache not in path.parents:
            return
        name = path.relative_to(cache).as_posix()
        with self._lock:
            self._complete.add(name)
            self._keep([name], of="some")

    def keep_all(self) -> None:
        """Keep all that is complete in the cache directory: after an input has been replayed.

        Nothing is being compiled then, so that only what a compiler left behind can be incomplete.
        """
        cache = self._cache
        if cache is None:
            return
        with self._lock:
            names = (
                name
                for name in _files(cache)
                if name in self._complete or not self._written_in_place(name)
            )
            self._keep(names, of="all")

    def forget(self) -> None:
        """Remove what is kept; the lock stays."""
        self._copies.clear()
        self._fruitless = 0
        with suppress(FileNotFoundError):
            (self.folder / LIST_NAME).unlink()
        self._remove_unlisted()

    def close(self) -> None:
        """Keep nothing any more, and let others go on from what there is."""
        with self._lock:
            self._cache = None
            if self._lock_file is not None:
                os.close(self._lock_file)
                self._lock_file = None

    # What is in the folder ------------------------------------------------------------------

    def _keep(self, names: Iterable[str], *, of: Literal["some", "all"]) -> None:
        cache = self._cache
        if cache is None:
            return
        try:
            changed = [name for name in names if self._copied(name, cache)]
            # With all: an input went through with what was resumed, which so is good.
            if changed or (of == "all" and self._fruitless):
                self._fruitless = 0
                self._write(time.time())
        except OSError as error:
            self._cache = None
            logger.warning(
                "%s cannot be written: %s; from here on this build keeps nothing, should it be "
                "interrupted",
                self.folder,
                error.strerror,
            )

    def _copied(self, name: str, cache: Path) -> bool:
        """Copy one file unless its copy is there; return whether it was."""
        path = cache / name
        status, known = _status(path), self._copies.get(name)
        if status is None or (known is not None and known.status == status):
            return False
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        digest = hashlib.sha256(data).hexdigest()
        if known is None or known.sha256 != digest:
            _write_whole(self.folder / digest, data, on="disk")
        self._copies[name] = _Copy(sha256=digest, status=status)
        return True

    def _put_back(self, name: str, digest: str, cache: Path) -> bool:
        try:
            data = (self.folder / digest).read_bytes()
        except FileNotFoundError:
            return False
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            return False
        path = cache / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            return False
        _write_whole(path, data, on="memory")
        return True

    def _read(self) -> tuple[dict[str, str], float, int] | None:
        """Return digests by name, when something was kept last, and resumes without any use."""
        try:
            found = json.loads((self.folder / LIST_NAME).read_bytes())
            if found["format"] != FORMAT:
                return None
            digests = {str(name): str(digest) for name, digest in found["files"].items()}
            return digests, float(found["kept_unix"]), int(found["fruitless"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            # A node that died may have left anything: then there is nothing to go on from.
            return None

    def _write(self, kept_unix: float) -> None:
        listed = {
            "format": FORMAT,
            "kept_unix": kept_unix,
            "fruitless": self._fruitless,
            "files": {name: copy.sha256 for name, copy in sorted(self._copies.items())},
        }
        _write_whole(self.folder / LIST_NAME, json.dumps(listed).encode(), on="disk")

    def _remove_unlisted(self) -> None:
        listed = {copy.sha256 for copy in self._copies.values()}
        for entry in list(self.folder.iterdir()):
            if entry.name not in listed | {LIST_NAME, _private_folders.LOCK_NAME}:
                entry.unlink(missing_ok=True)


def discard(key: str, *, root: Path | None = None) -> None:
    """Remove the folder of a build that is over; nothing where another one uses it by now."""
    _discard((default_root() if root is None else root) / key)


def _discard(folder: Path) -> None:
    try:
        lock = _locked(folder, missing="raise")
    except OSError:  # in use, or not there
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _sweep(root: Path, *, but: str) -> None:
    for folder in list(root.iterdir()):
        if folder.name == but or not _KEY.fullmatch(folder.name):
            continue
        with suppress(OSError):
            # Each build that uses it makes files in it.
            if time.time() - folder.stat().st_mtime > MAX_AGE_S:
                _discard(folder)


def _locked(folder: Path, *, missing: Literal["make", "raise"]) -> int:
    """Return the descriptor of the lock on a folder; who removes a folder holds it, too.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the folder is not there, or cannot be made.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if missing == "make" else 0)
    for _ in range(_TRIES):
        if missing == "make":
            _private_folders.make_private(folder)
        path = folder / _private_folders.LOCK_NAME
        try:
            lock = os.open(path, flags, 0o600)
        except FileNotFoundError:
            if missing == "raise":
                raise
            continue  # removed a moment ago
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            why = "another build of the same is under way"
            raise BlockingIOError(errno.EWOULDBLOCK, why, str(folder)) from None
        except OSError as error:
            # Some network file systems have no locks: two builds at a time may lose entries.
            logger.debug("the folder of unfinished builds has no locks: %s", error)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), os.fstat(lock)):
                return lock
        os.close(lock)  # of a folder that was removed
    raise BlockingIOError(errno.EWOULDBLOCK, "it comes and goes", str(folder))


def _files(cache: Path, prefix: str = "") -> Iterator[str]:
    """Yield the names of the files in a cache directory that could be of use in another one."""
    try:
        entries = list(os.scandir(cache / prefix))
    except FileNotFoundError:
        return  # a folder for one compile
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if is_scratch(name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(cache, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield name


def _status(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write_whole(path: Path, data: bytes, *, on: Literal["disk", "memory"]) -> None:
    """Write a file that is complete under its name, or not there; `disk` outlives a power cut."""
    temporary = path.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            if on == "disk":
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
