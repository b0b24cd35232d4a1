# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Private folders: their locations, and the checks that no other user can change them.

A folder is only as private as the folders above it: a user who can rename a parent folder can
replace the folder. So the check covers the whole path from the root down. Each folder on the path
must belong to root or to this user, and others must not be able to write to the folder. Others may
write to a sticky folder such as /tmp, because a user cannot rename another user's files in a sticky
folder. Access control lists (ACLs) need no check: if a file has an ACL, the group bits of the
file's mode show the largest access that the ACL grants.

A path that is safe from the root down stays safe, because nobody else can change it.

This module also writes small files, with a mode that does not depend on the umask. A file gets its
name only when it is complete on the disk, so a reader never sees a partial file. The only
exception to this rule is `create_file` on a file system without hard links.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from serve_warm import node
from serve_warm._records import record
from serve_warm._regular_files import open_regular
from serve_warm.errors import ArtifactRefused
from serve_warm.node import FolderProblem

logger = logging.getLogger(__name__)

Leaf = Literal["private", "unwritable", "above"]
"""What the check requires of the folder itself. `private`: only this user can enter the folder.
`unwritable`: this user owns the folder, and others cannot write to it. `above`: the folder meets
the rules for a parent folder, which is enough to protect a new folder inside it."""

ABANDONED_S = 60.0
"""A sweep skips a process folder that is younger than this many seconds, because the folder's owner
may not have locked it yet."""
LOCK_NAME = "owner.lock"
LAST_BASE = Path(node.LAST_BASE)
ELSEWHERE = (
    "For replicas and for probes, set TMPDIR, or for their state SERVE_WARM_STATE_DIR, to a folder "
    "that only this user can write to"
)
MAX_LINKS = 40
"""Largest number of links on one path, as in Linux."""


def problems(
    folder: Path, *, leaf: Leaf = "private", opened: int | None = None
) -> tuple[FolderProblem, ...]:
    """Return all problems with a folder and its parents; empty if the folder is safe.

    A symbolic link anywhere on the path is a problem. `opened` is a descriptor of the folder. If
    `opened` is given, the owner and mode of the open folder are checked, even if the path now leads
    to a different folder.

    Raises:
        OSError: the folder is missing, or this user cannot reach it.
    """
    return tuple(node.problems(str(folder.absolute()), of=leaf, opened=opened))


def file_problems(file: Path, *, opened: int) -> tuple[FolderProblem, ...]:
    """Return all problems that let other users change this file; `opened` is its descriptor.

    Links are followed, and the path of each link is checked. A read-only mount counts as safe with
    any mode. This rule is needed, because Kubernetes mounts a ConfigMap with mode 0777.

    Raises:
        OSError: the file no longer exists.
    """
    fixed = bool(os.fstatvfs(opened).f_flag & os.ST_RDONLY)
    own = _find_weakness(file, os.fstat(opened), "file", fixed=fixed)
    found = [] if own is None else [own]
    return tuple(dict.fromkeys([*found, *_on_the_way(file)]))


def folder_problems(folder: Path) -> tuple[FolderProblem, ...]:
    """Return all problems that let other users change files in a folder (see `file_problems`).

    Raises:
        OSError: the folder is missing.
    """
    return tuple(dict.fromkeys(_on_the_way(folder)))


def _on_the_way(path: Path) -> Iterator[FolderProblem]:
    for step in _way(path.absolute()):
        looks: list[tuple[Path, os.stat_result, _Of]]
        if stat.S_ISDIR(step.status.st_mode):
            looks = [(step.path, step.status, "holder" if step.last else "above")]
        else:
            # In a sticky folder others can make a hard link to this user's file or symbolic link.
            holder = step.path.parent
            looks = [(holder, holder.lstat(), "holder")]
            if stat.S_ISLNK(step.status.st_mode):
                looks.append((step.path, step.status, "link"))
        for look in looks:
            if (problem := _find_weakness(*look)) is not None:
                yield problem


_Of = Literal["file", "link", "holder", "above"]


def _find_weakness(
    path: Path, status: os.stat_result, of: _Of, *, fixed: bool | None = None
) -> FolderProblem | None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        return node.foreign(str(path), status, owner="-h root" if of == "link" else "root")
    if of == "link" or not mode & 0o022 or (of == "above" and mode & stat.S_ISVTX):
        return None
    if fixed is None:
        fixed = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return None if fixed else node.writable(str(path), mode, fix="go-w")


@record(frozen=True, kw_only=True)
class _PathComponent:
    """One component of a path."""

    path: Path
    """The component's own path. Links in its parent folders are resolved."""
    status: os.stat_result
    last: bool
    """Whether this is the last component. If the component is a link, the steps of the link's
    target follow."""


def _way(path: Path) -> Iterator[_PathComponent]:
    """Yield each step of an absolute path, in the order in which the kernel resolves the path."""
    at, left, links = Path("/"), list(reversed(path.parts[1:])), 0
    yield _PathComponent(path=at, status=at.lstat(), last=not left)
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        status = (at / name).lstat()
        yield _PathComponent(path=at / name, status=status, last=not left)
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
    """Refuse a folder that other users can enter or replace. `advice` is added to the hint.

    Raises:
        ArtifactRefused: `unsafe_directory`; the error names all problems and their fixes.
        OSError: the folder is missing.
    """
    found = problems(folder, opened=opened)
    if found:
        raise ArtifactRefused(
            f"{what} is not private: {sentence(found)}",
            reason="unsafe_directory",
            hint="; ".join(filter(None, (fixes(found), advice))),
        )


def sentence(found: Sequence[FolderProblem]) -> str:
    """Return all problems in one line."""
    return "; ".join(problem.what for problem in found)


def fixes(found: Sequence[FolderProblem]) -> str:
    """Return all fixes in one line."""
    return "; ".join(problem.fix for problem in found)


# --- making folders ------------------------------------------------------------------------


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, with mode 0700.

    Existing folders are not checked: `problems` does that.

    Raises:
        OSError: the folder cannot be made.
    """
    if not os.path.lexists(folder):
        make_private(folder.parent)
        with suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=0o700)


def private_base() -> Path:
    """Return a folder in which this user can make folders that nobody else can replace.

    Candidates are the folder for temporary files, `~/.cache/serve_warm` (where `~` is the home
    folder in the password database) and `LAST_BASE`. This function returns the first candidate that
    is safe and writable. So an unsafe `/tmp` does no harm. For example, a Kubernetes emptyDir has
    mode 0777 and no sticky bit.

    If no candidate is safe, this function logs a warning and returns the first candidate. Callers
    that need a safe folder call `problems`.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    found = _unusable(temporary)
    if not found:
        return temporary
    for base in _other_bases():
        if not _unusable(base):
            _log_once(
                logging.INFO,
                f"{temporary} is not safe for this user's folders, so {base} is used instead: "
                f"{sentence(found)}",
            )
            return base
    _log_once(
        logging.WARNING,
        "no folder on this machine is safe from other users, so no artifact can be loaded: "
        f"{sentence(found)}. To fix it: {fixes(found)}; or point TMPDIR at a folder that only "
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
        # strict, so that a missing home folder is not created
        cache = home.resolve(strict=True) / ".cache" / "serve_warm"
        make_private(cache)
    except OSError:
        return None
    return cache


def _unusable(base: Path) -> tuple[FolderProblem, ...]:
    try:
        found = problems(base, leaf="above")
    except OSError as error:
        return (FolderProblem(what=f"{base}: {error.strerror}", fix=f"make {base}"),)
    if not os.access(base, os.W_OK | os.X_OK, effective_ids=True):
        found = (
            *found,
            FolderProblem(what=f"{base} cannot be written", fix=f"make {base} writable"),
        )
    return found


def user_home() -> Path | None:
    """Return this user's home in the password database, never the value of `$HOME`.

    Returns None for a user without a home.
    """
    import pwd

    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None  # a container may run under a user id without a name and a home


def user_folder(name: str) -> Path:
    """Return `<base>/serve_warm-<uid>/<name>`, the same for all processes of a user.

    `node.choose_place` picks `<base>` from `node.places()`. The folder `serve_warm-<uid>` is
    created, so that no other user can take the name. `<name>` is not made.
    """
    return Path(_claim().folder) / name


CALL_FOLDER = "calls"
"""Name of the folder of recorded calls, in the folder of states."""


def state_folder() -> Path:
    """Return the folder that this user's replicas write to, and that probes read.

    Does not create the folder.
    """
    return Path(_claim().state)


def _claim() -> node.FolderCandidate:
    among = node.places()
    choice = claim_place(among)
    wrong = "; ".join(choice.passed)
    if not choice.usable:
        _log_once(
            logging.WARNING,
            f"no folder on this machine can hold the files of user id {os.geteuid()}, so downloads "
            f"are not kept and probes do not see this replica: {wrong}. {ELSEWHERE}",
        )
    elif choice.place != among[0]:
        _log_once(
            logging.INFO,
            f"{choice.place.folder} is used instead of {among[0].folder} for this user's folders: "
            + (wrong or f"running replicas have their state in {choice.place.folder}"),
        )
    return choice.place


def claim_place(among: Sequence[node.FolderCandidate]) -> node.ChosenFolder:
    """Choose a place and create its folder, so that nobody else can take the place.

    If the folder cannot be created (another user was faster), or the disk is full, this function
    tries a later place.
    """
    left = tuple(among)
    passed: tuple[str, ...] = ()
    while left and (choice := node.choose_place(left)).usable:
        wrong: list[str] = []
        try:
            make_private(Path(choice.place.folder))
        except OSError as error:
            wrong = [f"{choice.place.folder}: {error.strerror}"]
        wrong = wrong or node.troubles(choice.place.folder) or _find_no_room(choice.place)
        passed = (*passed, *choice.passed, *wrong)
        if not wrong:
            return node.ChosenFolder(choice.place, passed, usable=True)
        left = left[left.index(choice.place) + 1 :]
    return node.choose_place(among)


def _find_no_room(place: node.FolderCandidate) -> list[str]:
    """Return why the state of a replica may not fit into a place, or an empty list.

    A place with a live replica is never too full, because probes read the state files there.
    """
    with suppress(OSError):  # without an answer, the place is tried
        free = free_bytes(Path(place.folder))
        if free < node.MAX_STATE_BYTES and not node.has_living(place.state):
            return [f"{place.folder} has room for {free / 1e6:.1f} MB only"]
    return []


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the volume of a folder. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@functools.cache
def _log_once(level: int, text: str) -> None:
    # A start calls this several times in each process.
    logger.log(level, "%s", text)


# --- folders that end with their process ---------------------------------------------------


def process_folder() -> Path:
    """Return a new folder of mode 0700 that belongs to this process until the process ends.

    Most processes are ended by a signal, so they run no cleanup. Instead, each call removes the
    folders of ended processes from `private_base()`.

    Raises:
        OSError: the folder cannot be made.
    """
    folder, lock = _make_owned()
    _held.append(lock)
    return folder


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a private folder for this process, and remove it at the end of the block.

    If another thread is still writing a file when the block ends, a later sweep removes that file.

    Raises:
        OSError: the folder cannot be made.
    """
    folder, lock = _make_owned()
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


_held: list[int] = []
"""Locks on this process's folders. The kernel frees the locks when the process ends."""


def _make_owned() -> tuple[Path, int]:
    import fcntl

    base = private_base()
    for abandoned in base.glob(f"serve_warm-*/{LOCK_NAME}"):
        _sweep(abandoned)
    folder = Path(tempfile.mkdtemp(prefix="serve_warm-", dir=base))  # 0700 by contract
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(folder / LOCK_NAME, flags, 0o600)
    # On a file system without locks no sweep can take the lock either, so the folder stays.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def _sweep(lock_file: Path) -> None:
    import fcntl

    folder = lock_file.parent
    with suppress(OSError):
        # Others may write to /tmp, so only a private folder of this user may be removed.
        if node.problem_of(str(folder), folder.lstat(), of="private") is not None:
            return
        if problems(folder.parent.resolve(), leaf="above"):
            return  # another user could replace the folder between this check and the removal
        lock = open_regular(lock_file, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if age_s(os.fstat(lock)) < ABANDONED_S:
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        finally:
            os.close(lock)


def age_s(status: os.stat_result) -> float:
    """Return the seconds since a file changed, by the wall clock, and never less than 0.

    A time in the future is from a clock that was set back since, and counts as old by as much.
    Without this rule, such a file would stay until the clock has reached its time again. A caller
    must have another proof that the file is not in use.
    """
    return abs(time.time() - status.st_mtime)


def _remove(folder: Path) -> None:
    """Remove a folder and its content.

    The lock file is removed last, so that a later sweep can finish an interrupted removal.
    """
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


def create_file(path: Path, data: bytes, *, mode: int) -> None:
    """Write a new file with exactly this mode, independent of the umask. Never overwrites a file.

    The file gets its name when it is complete. On a file system without hard links, the file gets
    its name before its content. So a reader can see a partial file, and a crash can leave a partial
    file behind.

    Raises:
        FileExistsError: the name is taken.
        OSError: the file cannot be written.
    """
    temporary = write_beside(path, data, mode=mode)
    try:
        # A link never overwrites and never shows half a file.
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links. Nothing is overwritten, but readers may see half a file.
        _write_new(path, data, mode=mode)
    finally:
        temporary.unlink()


def write_beside(path: Path, data: bytes, *, mode: int) -> Path:
    """Write a new file with a random name next to `path`, and return the new file's path.

    The caller can then rename the new file to `path`.

    Raises:
        OSError: the file cannot be written. No partial file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    _write_new(temporary, data, mode=mode)
    return temporary


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file, ExitStack() as failed:
        failed.callback(path.unlink)
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        failed.pop_all()
