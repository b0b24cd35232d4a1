# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether anybody else on this machine can change a folder, and where there is one that is safe.

A folder is as private as the folders above it: whoever may rename one of them can put another one
in its place. So all of the way from the root down is looked at, and each step must belong to root
or to this user and may not be written by others. A sticky folder, such as /tmp, may: it lets
nobody rename what is somebody else's. Access lists need no look of their own, since the group bits
of a file that has one show the most that it grants.

Nobody else can change a way that was found safe from the root down, so it stays safe.

Windows has neither owners nor modes that Python shows, so nothing there counts as safe.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serve_warm import node
from serve_warm.errors import ArtifactRefused

logger = logging.getLogger(__name__)

Leaf = Literal["private", "unwritable", "above"]
"""What is asked of a folder itself: that only this user can enter it; that it is this user's and
others cannot write to it; or no more than of those above it, so that what is made in it stays."""

ABANDONED_S = 60.0
"""A process' folder whose lock is free is swept when it is older: its owner may only be beginning.
"""
LOCK_NAME = "owner.lock"
LAST_BASE = Path(node.LAST_BASE)
ELSEWHERE = (
    "Point TMPDIR at a folder that only this user can write to, for replicas and probes alike; or "
    "name folders in SERVE_WARM_STATE_DIR and SERVE_WARM_NODE_CACHE_DIR"
)
MAX_LINKS = 40
"""Links on one way, as in Linux."""
CAN_CHECK = hasattr(os, "geteuid")
"""Whether this system says who owns a file and who may change it."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something on the way to a file or folder that lets somebody else change it."""

    what: str
    """A sentence without its full stop."""
    fix: str
    """The command that puts it right, where there is one."""


def problems(
    folder: Path, *, leaf: Leaf = "private", opened: int | None = None
) -> tuple[Problem, ...]:
    """Return all that is wrong with a folder and those above it; nothing when it is safe.

    A symbolic link is a problem anywhere on the way. `opened` is a descriptor of the folder, which
    then is what is looked at in its place.

    Raises:
        OSError: the folder is not there, or a way to it is closed to this user.
    """
    if not CAN_CHECK:
        return (_unknown(folder),)
    user, found = os.geteuid(), []
    if ".." in folder.parts:
        fix = f"name {os.path.realpath(folder)} instead"
        return (Problem(what=f"{folder} has .. in it", fix=fix),)
    for step in _way(folder.absolute()):
        link = stat.S_ISLNK(step.status.st_mode)
        status = step.status
        if opened is not None and step.last and not link:
            status = os.fstat(opened)
        problem = judged(step.path, status, of=leaf if step.last else "above", user=user)
        if problem is not None:
            found.append(problem)
        if link:
            break
    return tuple(found)


def judged(path: Path, status: os.stat_result, *, of: Leaf, user: int) -> Problem | None:
    """Return what is wrong with one step of a way, by what `lstat` says about it."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        fix = f"name {os.path.realpath(path)} instead"
        return Problem(what=f"{path} is a symbolic link", fix=fix)
    if not stat.S_ISDIR(status.st_mode):
        return Problem(what=f"{path} is not a directory", fix=f"remove {path}")
    if status.st_uid not in ((0, user) if of == "above" else (user,)):
        return _foreign(path, status, owner="root" if of == "above" else str(user))
    if of == "private" and mode & 0o077:
        what = f"{path} is open to other users (mode {mode & 0o777:o})"
        return Problem(what=what, fix=f"chmod 700 {path}")
    if mode & 0o022 and (of != "above" or not mode & stat.S_ISVTX):
        # What everybody may write to is meant for everybody, and stays so.
        return _writable(path, mode, fix="+t" if of == "above" and mode & 0o002 else "go-w")
    return None


def file_problems(file: Path, *, opened: int) -> tuple[Problem, ...]:
    """Return all that lets others change what is read by this name; `opened` is its descriptor.

    Links are followed, and the way of each is looked at. A read-only mount cannot be written,
    whatever its modes: Kubernetes mounts a ConfigMap with mode 0777.

    Raises:
        OSError: the file is not there any more.
    """
    if not CAN_CHECK:
        return (_unknown(file),)
    fixed = bool(os.fstatvfs(opened).f_flag & os.ST_RDONLY)
    own = _find_weakness(file, os.fstat(opened), "file", fixed=fixed)
    found = [] if own is None else [own]
    return tuple(dict.fromkeys([*found, *_on_the_way(file)]))


def folder_problems(folder: Path) -> tuple[Problem, ...]:
    """Return all that lets others change what is in a folder, as `file_problems` does.

    Raises:
        OSError: the folder is not there.
    """
    if not CAN_CHECK:
        return (_unknown(folder),)
    return tuple(dict.fromkeys(_on_the_way(folder)))


def _unknown(path: Path) -> Problem:
    what = f"who may change {path} cannot be checked on {system_name()}"
    return Problem(what=what, fix="use Linux, macOS or WSL")


def system_name() -> str:
    """Return what people call this operating system."""
    return {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)


def _on_the_way(path: Path) -> Iterator[Problem]:
    for step in _way(path.absolute()):
        looks: list[tuple[Path, os.stat_result, _Of]]
        if stat.S_ISDIR(step.status.st_mode):
            looks = [(step.path, step.status, "holder" if step.last else "above")]
        else:
            # Into a sticky folder others can put a hard link to a file or symbolic link of ours.
            holder = step.path.parent
            looks = [(holder, holder.lstat(), "holder")]
            if stat.S_ISLNK(step.status.st_mode):
                looks.append((step.path, step.status, "link"))
        for look in looks:
            if (problem := _find_weakness(*look)) is not None:
                yield problem


_Of = Literal["file", "link", "holder", "above"]


def _find_weakness(
    path: Path,
    status: os.stat_result,
    of: _Of,
    *,
    fixed: bool | None = None,
) -> Problem | None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        return _foreign(path, status, owner="-h root" if of == "link" else "root")
    if of == "link" or not mode & 0o022 or (of == "above" and mode & stat.S_ISVTX):
        return None
    if fixed is None:
        fixed = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return None if fixed else _writable(path, mode, fix="go-w")


def _foreign(path: Path, status: os.stat_result, *, owner: str) -> Problem:
    what = f"{path} belongs to user id {node.with_name(status.st_uid)}"
    if path.name == f"serve_warm-{os.geteuid()}":
        return Problem(what=what, fix=f"have its owner or root remove {path}")
    return Problem(what=what, fix=f"chown {owner} {path}")


def _writable(path: Path, mode: int, *, fix: str) -> Problem:
    what = f"{path} can be written by group or others (mode {mode & 0o777:o})"
    return Problem(what=what, fix=f"chmod {fix} {path}")


@dataclass(frozen=True, kw_only=True)
class _Step:
    path: Path
    """Its own name in the real path of what holds it."""
    status: os.stat_result
    last: bool
    """Nothing is left to go, unless it is a link."""


def _way(path: Path) -> Iterator[_Step]:
    """Yield all that an absolute path leads over, from the root down, in the kernel's order."""
    at, left, links = Path("/"), list(reversed(path.parts[1:])), 0
    yield _Step(path=at, status=at.lstat(), last=not left)
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        status = (at / name).lstat()
        yield _Step(path=at / name, status=status, last=not left)
        if not stat.S_ISLNK(status.st_mode):
            at /= name
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = (at / name).readlink()
        left.extend(reversed(target.parts[target.is_absolute() :]))
        at = Path("/") if target.is_absolute() else at


def check_private(folder: Path, what: str, *, opened: int | None = None, advice: str = "") -> None:
    """Refuse a folder that others can enter, or can replace.

    Raises:
        ArtifactRefused: `unsafe_directory`, with all that is wrong and how to put it right.
        OSError: the folder is not there.
    """
    found = problems(folder, opened=opened)
    if found:
        raise ArtifactRefused(
            f"{what} is not private: {sentence(found)}",
            reason="unsafe_directory",
            hint="; ".join(filter(None, (fixes(found), advice))),
        )


def sentence(found: Sequence[Problem]) -> str:
    """Return what is wrong, in one line."""
    return "; ".join(problem.what for problem in found)


def fixes(found: Sequence[Problem]) -> str:
    """Return how to put it right, in one line."""
    return "; ".join(problem.fix for problem in found)


# --- where folders are made ----------------------------------------------------------------


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700.

    What is there already is not looked at: `problems` does that.

    Raises:
        OSError: it cannot be made.
    """
    if not os.path.lexists(folder):
        make_private(folder.parent)
        with suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=0o700)


def private_base() -> Path:
    """Return where this user's folders can be made so that nobody else can exchange them.

    The first one that is safe and can be written of the folder for temporary files,
    `~/.cache/serve_warm` with the home of the password database, and `/var/tmp`. So a volume that
    is mounted at `/tmp` with mode 0777 and without the sticky bit, as Kubernetes mounts an
    emptyDir, is not in the way. Where none is safe it is the first one all the same, with a
    warning: callers who need it safe ask `problems`.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    found = _unusable(temporary)
    if not found:
        return temporary
    for base in _other_bases():
        if not _unusable(base):
            _log_once(
                logging.INFO,
                f"{temporary} is not safe for this user's own folders, {base} is used in its "
                f"place: {sentence(found)}",
            )
            return base
    _log_once(
        logging.WARNING,
        "no folder of this machine is safe from other users, so no artifact can be loaded: "
        f"{sentence(found)}. To mend it: {fixes(found)}; or point TMPDIR at a folder that only "
        f"user id {os.geteuid()} can write to",
    )
    return temporary


def _other_bases() -> Iterator[Path]:
    home = user_home()
    if home is not None and (cache := _cache_below(home)) is not None:
        yield cache
    yield LAST_BASE


def _cache_below(home: Path) -> Path | None:
    try:
        # One that is not there is not made.
        cache = home.resolve(strict=True) / ".cache" / "serve_warm"
        make_private(cache)
    except OSError:
        return None
    return cache


def _unusable(base: Path) -> tuple[Problem, ...]:
    try:
        found = problems(base, leaf="above")
    except OSError as error:
        return (Problem(what=f"{base}: {error.strerror}", fix=f"make {base}"),)
    if not os.access(base, os.W_OK | os.X_OK, effective_ids=True):
        found = (*found, Problem(what=f"{base} cannot be written", fix=f"make {base} writable"))
    return found


def user_home() -> Path | None:
    """Return the home in the password database, and never what `$HOME` says.

    None for a user without one, and on Windows, which has no such database.
    """
    try:
        import pwd
    except ImportError:
        return None
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None  # containers may run under a user id that has no name and no home


def user_folder(name: str, *, among: Sequence[node.Place] | None = None) -> Path:
    """Return `<base>/serve_warm-<uid>/<name>`, the same for all processes of a user; not made.

    `<base>` is that of `node.choose_place` among `among`, by default `node.places()`. The folder
    itself is made: from then on nobody else can be in the way.
    """
    return Path(_claim(among).folder) / name


def state_folder(*, among: Sequence[node.Place] | None = None) -> Path:
    """Return where this user's replicas write and probes look; not made."""
    return Path(_claim(among).state)


def _claim(among: Sequence[node.Place] | None) -> node.Place:
    among = node.places() if among is None else among
    choice = node.claim_place(among)
    wrong = "; ".join(choice.passed)
    if not choice.usable:
        _log_once(
            logging.WARNING,
            "no place of this machine can hold the folders of user id "
            f"{os.geteuid()}, so that nothing downloaded is kept and probes do not see this "
            f"replica: {wrong}. {ELSEWHERE}",
        )
    elif choice.place != among[0]:
        _log_once(
            logging.INFO,
            f"{choice.place.folder} holds this user's own folders in place of {among[0].folder}: "
            + (wrong or "replicas that live have their state there"),
        )
    return choice.place


@functools.cache
def _log_once(level: int, text: str) -> None:
    # Each process asks several times in a start.
    logger.log(level, "%s", text)


# --- folders that end with their process ---------------------------------------------------


def process_folder(base: Path | None = None) -> Path:
    """Return a new folder of mode 0700 that belongs to this process until it ends, however.

    A process is ended by a signal more often than not, so nothing is cleaned up then: each new
    folder sweeps those of processes that are gone from `base`, by default `private_base()`.

    Raises:
        OSError: it cannot be made.
    """
    folder, lock = _make_owned(base)
    _held.append(lock)
    return folder


@contextmanager
def temporary_folder(base: Path | None = None) -> Iterator[Path]:
    """Give a folder like `process_folder`, which is removed at the end of the block.

    What somebody still writes to at that moment is left to a later sweep.

    Raises:
        OSError: it cannot be made.
    """
    folder, lock = _make_owned(base)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


_held: list[int] = []
"""Locks on this process' folders: the kernel frees them when it ends."""


def _make_owned(base: Path | None) -> tuple[Path, int]:
    import fcntl

    base = private_base() if base is None else base
    for abandoned in base.glob(f"serve_warm-*/{LOCK_NAME}"):
        _sweep(abandoned)
    folder = Path(tempfile.mkdtemp(prefix="serve_warm-", dir=base))  # 0700 by contract
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(folder / LOCK_NAME, flags, 0o600)
    # Where the file system has no locks nobody can take it either, and so nobody sweeps.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def _sweep(lock_file: Path) -> None:
    import fcntl

    folder = lock_file.parent
    with suppress(OSError):
        # Others may write to /tmp: the folder must be one of ours, so that what is in it is.
        if judged(folder, folder.lstat(), of="private", user=os.geteuid()) is not None:
            return
        if problems(folder.parent.resolve(), leaf="above"):
            return  # what is looked at now may be another folder when it is removed
        lock = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if time.time() - os.fstat(lock).st_mtime < ABANDONED_S:
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        finally:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: what is left of a removal that ends early can be swept."""
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.name == LOCK_NAME:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if os.listdir(folder) == [LOCK_NAME]:  # noqa: PTH208 - compared as it is
            (folder / LOCK_NAME).unlink()
        folder.rmdir()
