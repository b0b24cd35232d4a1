# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The probe of a node, which reads the state files of the node's replicas.

Serve sends no request to a starting replica, so a request cannot reveal that replica's state.
Instead, each replica has two files in a directory of its user (`serve_warm._state_file`):

    <replica>.json   its state, replaced as a whole at each write
    <replica>.lock   locked (`flock`) while the process lives; contains its heartbeat and its names

The kernel frees the lock when the process ends, for any reason. So readers in another process
namespace notice the end too. The heartbeat is overwritten in place, even on a full disk.

This file runs without the rest of the package: `python -I -S node.py probe`. A probe runs every few
seconds, so this file imports no module that is slow to import (`json`, `socket`, `argparse`,
`typing`, `contextlib`). Several processes compare times, which come from CLOCK_BOOTTIME: nobody can
set this clock, and it keeps running during suspend.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NamedTuple
else:

    class NamedTuple(tuple):
        """The part of `typing.NamedTuple` that this file uses."""

        __slots__ = ()

        def __init_subclass__(cls) -> None:
            cls._fields = tuple(cls.__annotations__)
            cls._defaults = {n: cls.__dict__[n] for n in cls._fields if n in cls.__dict__}
            for place, name in enumerate(cls._fields):
                setattr(cls, name, property(lambda self, place=place: self[place]))

        def __new__(cls, *values: object, **named: object) -> NamedTuple:  # noqa: D102, PYI034
            if len(values) == len(cls._fields) and not named:
                return tuple.__new__(cls, values)  # fast path: one for each replica at each look
            given = {**cls._defaults, **dict(zip(cls._fields, values, strict=False)), **named}
            return tuple.__new__(cls, [given[name] for name in cls._fields])

        def _replace(self, **named: object) -> NamedTuple:
            return type(self)(**{**dict(zip(self._fields, self, strict=True)), **named})


STATE_SCHEMA = 1
MAX_STATE_BYTES = 1 << 20

HEARTBEAT_S = 5.0
"""Seconds between two writes by a replica while nothing changes."""
STALE_S = 30.0
"""A replica without a heartbeat for this many seconds no longer counts as warm."""
SWEEP_S = 600.0
"""Seconds for which a dead replica's files are kept, so that its last metrics can be exported."""

RAYLET = "http://localhost:52365/api/healthz"
"""Health URL of Ray's agent on each node. The agent checks the raylet. The URL needs no token."""
PROXY = "http://localhost:8000/-/healthz"
LOCALHOST = ("127.0.0.1", "::1")
"""The addresses that `localhost` means, without a look-up. On a node without an IPv4 address, Ray's
agent listens on ::1 and not on 127.0.0.1 (2.60)."""
LATE = "{} did not answer within {} s"
CHECK_LIMIT_S = 0.5
GRACE_S = 0.5
"""Extra seconds for a thread to report its answer, because all cores might be busy."""


def boot_s() -> float:
    """Return the time of CLOCK_BOOTTIME in seconds. All processes on a machine share this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def heartbeat_text(at_s: float) -> bytes:
    """Return a heartbeat as the first line of a lock."""
    # Always the same length, so that it can be overwritten in place.
    return b"%020.6f\n" % at_s


HEARTBEAT_BYTES = len(heartbeat_text(0.0))


# --- reading states ------------------------------------------------------------------------


class Replica(NamedTuple):
    """One replica of this node, alive or dead."""

    stem: str
    names: tuple[str, str, str]
    """Names of application, deployment and replica; empty until known."""
    condition: str
    """One of CONDITIONS."""
    why: str
    """A sentence that says why the replica is not warm; empty if it is warm."""
    state: dict[str, Any] | None
    heartbeat_s: float = 0.0
    """Time of the last heartbeat, by CLOCK_BOOTTIME."""
    began_s: float = float("inf")
    """Time at which the start began; infinity if unknown."""

    @property
    def ready_s(self) -> float | None:
        """Time at which the replica became ready; None before that."""
        return number_of(self.state, "ready_boot_s")

    def __str__(self) -> str:
        application, deployment, replica = self.names
        who = f"{application}#{deployment} {replica}" if any(self.names) else self.stem
        return shown(f"{who}: {self.why or 'warm'}")


WHO = ("application", "deployment", "replica")

CONDITIONS = ("warm", "warming", "failed", "stale", "unreadable", "dead")
"""Conditions of a replica. Unless the condition is `dead`, the replica holds its lock."""


def look(directory: str | os.PathLike[str], *, stale_s: float = STALE_S) -> list[Replica]:
    """Return the replicas with files in the directory, dead ones too. Raises PermissionError.

    Other files in the directory are no replicas: they have other names, or other content and no
    lock that is held.
    """
    directory = os.path.abspath(directory)
    try:
        folder = open_folder(directory)
    except (FileNotFoundError, NotADirectoryError):
        # Replicas may run without state files, if StateFile refuses this directory too.
        wrong = problems(_existing(directory), of="above", mounts=True)
        if wrong:
            raise _not_private(directory, wrong) from None
        return []
    try:
        names: dict[str, list[str]] = {}
        for name in os.listdir(folder):
            stem, _, kind = name.rpartition(".")
            if kind in ("json", "lock") and is_stem(stem):
                names.setdefault(stem, []).append(name)
        found = [_replica(stem, folder, stale_s) for stem in sorted(names)]
        return [
            replica
            for replica in found
            if replica.condition != "dead"
            or replica.state is not None
            or any(has_own_start(name, folder) for name in names[replica.stem])
        ]
    finally:
        os.close(folder)


def read_states(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the states of live replicas. Raises PermissionError, as `look`."""
    return [r.state for r in look(directory) if r.condition != "dead" and r.state is not None]


def is_stem(text: str) -> bool:
    """Return whether the name of a replica's files can begin so (see `_state_file._stem`)."""
    if not _STEM.issuperset(text):
        return False
    digest = text[101:]
    is_short = text[100:101] == "-" and len(digest) == 64 and not digest.strip("0123456789abcdef")
    return text.count("#") == 2 or is_short


_STEM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~%-#")


def has_own_start(name: str, folder: int) -> bool:
    """Return whether a file begins as a replica's files do, or has lost its content."""
    try:
        opened = os.open(name, _READ, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return False
            start = os.read(opened, 100)
        finally:
            os.close(opened)
    except FileNotFoundError:
        return True  # a sweep was faster
    except OSError:
        return False
    if start[:13].isdigit() and start[13:14] == b"." and start[14:20].isdigit():
        return start[20:21] == b"\n"  # a heartbeat
    head, _, rest = start.partition(b", ")
    opening, _, schema = head.partition(b": ")
    is_state = opening == b'{"schema"' and schema.isdigit() and len(schema) < 10
    # After a power failure, a file may be empty or consist of zeros.
    return (is_state and rest.startswith(b'"application": "')) or not start.strip(b"\0")


def _replica(stem: str, folder: int, stale_s: float) -> Replica:
    lock = lock_of(stem, folder)
    try:
        return _described(stem, lock, folder, stale_s)
    except Exception as error:  # noqa: BLE001 - damage of one replica must not hide the others
        why = f"its files are damaged ({type(error).__name__})"
        return Replica(stem, ("", "", ""), "unreadable" if lock.held else "dead", why, None)


def _described(stem: str, lock: _Lock, folder: int, stale_s: float) -> Replica:
    state, trouble = _state(stem, folder)
    begun = lock.begun() if state is None else state
    heartbeat_s = max(lock.heartbeat_s, number_of(state, "heartbeat_boot_s") or 0.0)
    now_s = boot_s()  # after the lock and the state were read
    age_s = now_s - heartbeat_s
    stage = "" if state is None else str(state.get("stage", ""))
    condition, why = "warm", ""
    if not lock.held:
        condition, why = "dead", "its process has ended"
    elif lock.trouble or trouble:
        condition, why = "unreadable", lock.trouble or trouble
    elif state is None:
        condition, why = "warming", "it has started, but has not written its state yet"
    elif age_s > stale_s:
        condition = "stale"
        why = f"no heartbeat for {age_s:.0f} s, but its process exists: it is hung or stopped"
    elif age_s < -1.0:
        condition = "stale"
        why = "its heartbeat is from before the last boot of this machine, or from another machine"
    elif stage == "READY" and _loop_age_s(state) > stale_s:
        condition = "stale"
        why = f"its event loop has not run for {_loop_age_s(state):.0f} s: a handler is blocking it"
    elif stage == "FAILED":
        condition, why = "failed", f"FAILED: {state.get('error', '')}"
    elif stage != "READY":
        done = f"{state.get('inputs_done')}/{state.get('inputs_expected')} inputs"
        since_s = now_s - (number_of(state, "stage_boot_s") or now_s)
        late = ", late: its deadline has passed" if state.get("verdict") == "late" else ""
        condition, why = "warming", f"{stage or 'no stage'} for {since_s:.0f} s, {done}{late}"
    began_s = number_of(begun, "began_boot_s") or float("inf")
    return Replica(stem, _names(begun), condition, why, state, heartbeat_s, began_s)


def _loop_age_s(state: dict[str, Any]) -> float:
    """Return the seconds from the last run of the event loop to the last write; 0 if unknown."""
    loop_s, written_s = number_of(state, "loop_boot_s"), number_of(state, "heartbeat_boot_s")
    return 0.0 if loop_s is None or written_s is None else written_s - loop_s


class _Lock(NamedTuple):
    held: bool
    heartbeat_s: float = 0.0
    rest: bytes = b""
    trouble: str = ""

    def begun(self) -> dict[str, Any]:
        """Return the names and the start time; empty before the first write."""
        try:
            found = _decoded(self.rest)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def lock_of(stem: str, folder: int) -> _Lock:
    """Return the state of a lock. A lock counts as held unless it is missing or can be taken."""
    data, held, trouble = _content(f"{stem}.lock", folder)
    line, rest = (data or b"")[:HEARTBEAT_BYTES], (data or b"")[HEARTBEAT_BYTES:]
    # Empty before its first write. `nan`, which is a number too, would never be stale.
    is_number = line.strip().replace(b".", b"", 1).isdigit()
    return _Lock(held, float(line) if is_number else 0.0, rest, trouble)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Does not wait for a pipe, and follows no link."""


def _content(name: str, folder: int) -> tuple[bytes | None, bool, str]:
    """Return a file's content (None if it is missing), whether it is locked, and its problem."""
    try:
        opened = os.open(name, _READ, dir_fd=folder)
        try:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return b"", True, f"{name} is not a regular file of this user: remove it"
            held = _is_held(opened)
            return _read(opened), held, ""
        finally:
            os.close(opened)
    except FileNotFoundError:
        return None, False, ""
    except OSError as error:
        # For example, no file descriptor is free. A lock is then unknown: "dead" would be wrong.
        return b"", True, f"{name} cannot be read: {error.strerror}"


def _is_held(lock: int) -> bool:
    import fcntl

    try:
        # Shared, so that readers do not mistake each other for the replica.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _state(stem: str, folder: int) -> tuple[dict[str, Any] | None, str]:
    """Return the state in a file (or None), and the problem of the file (or "")."""
    name = f"{stem}.json"
    data, _, trouble = _content(name, folder)
    if data is None or trouble:
        return None, trouble
    try:
        state = _decoded(data) if len(data) <= MAX_STATE_BYTES else None
    except (ValueError, RecursionError):
        return None, f"{name} is not JSON, or is incomplete"
    wrong = _wrong(state)
    return (None, f"{name} {wrong}") if wrong else (state, "")


def _read(opened: int) -> bytes:
    """Return the content of a file, up to the maximum size of a state."""
    data = b""
    # In pieces, because allocating the maximum size takes longer than reading a typical state.
    while len(data) <= MAX_STATE_BYTES and (piece := os.read(opened, 1 << 16)):
        data += piece
    return data


def _decoded(data: bytes) -> Any:
    """Parse JSON as `json.loads`, without importing it. Raises ValueError or RecursionError."""
    from _json import make_scanner

    text = data.decode().strip(" \t\n\r")
    scanner: Any = make_scanner  # the settings that it reads differ between versions
    try:
        value, end = scanner(_Scanning)(text, 0)
    except (StopIteration, SystemError):  # CPython 3.10 and 3.11, if `json` was not imported
        end = -1
    if end != len(text):
        raise ValueError("not JSON, or JSON followed by other data")
    return value


class _Scanning:
    """The settings that the scanner reads, with the values that `json.JSONDecoder()` has."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int = int
    parse_float = parse_constant = float


def _wrong(state: Any) -> str:
    """Return why parsed JSON is not a replica's state, or "" if it is a replica's state."""
    if not isinstance(state, dict) or not isinstance(state.get("schema"), int):
        return "is not the state of a replica"
    if state["schema"] != STATE_SCHEMA:
        return f"has schema {state['schema']}, not {STATE_SCHEMA}: another release wrote it"
    return "" if any(_names(state)) else "does not name a replica"


def _names(state: Any) -> tuple[str, str, str]:
    if isinstance(state, dict):
        a, d, r = (state.get(key) for key in ("application", "deployment", "replica"))
        if isinstance(a, str) and isinstance(d, str) and isinstance(r, str):
            return a, d, r
    return "", "", ""


def number_of(state: dict[str, Any] | None, key: str) -> float | None:
    """Return a finite number in a state; None if there is none."""
    value = None if state is None else state.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def shown(text: str) -> str:
    """Return text as one printable line of at most 500 characters."""
    line = " ".join(text.split())
    line = line if line.isprintable() else ascii(line)
    return line if len(line) <= 500 else line[:499] + "…"


def open_folder(directory: str) -> int:
    """Return a descriptor of a private directory. Raises PermissionError, as StateFile."""
    # The root of a mounted volume may be writable for all: Kubernetes creates an emptyDir with mode
    # 0777. Other users could then remove the directory, but not replace it: the owner is checked.
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = problems(directory, of="unwritable", opened=opened, mounts=True)
    except OSError:
        os.close(opened)
        raise
    if found:
        os.close(opened)
        raise _not_private(directory, found)
    return opened


def _not_private(directory: str, found: Sequence[FolderProblem]) -> PermissionError:
    return PermissionError(
        errno.EACCES,
        f"{directory} is not a private directory of uid {os.geteuid()}: "
        f"{'; '.join(problem.what for problem in found)} "
        f"(to fix it: {'; '.join(problem.fix for problem in found)}; or set another directory in "
        "state_dir or SERVE_WARM_STATE_DIR)",
    )


def _existing(path: str) -> str:
    """Return a path if it exists, or else the nearest existing folder above it."""
    return path if os.path.lexists(path) else _existing(os.path.dirname(path))


# --- path safety ---------------------------------------------------------------------------


class FolderProblem(NamedTuple):
    """One reason why another user could change a file or folder."""

    what: str
    fix: str
    """The command that fixes the problem, or advice if no command can."""


def problems(
    directory: str, *, of: str, opened: int | None = None, mounts: bool = False
) -> list[FolderProblem]:
    """Return all problems with an absolute path of a folder, from the root down.

    `of` has the same meaning as in `problem_of`, for the folder itself. If `opened` is a descriptor
    of the folder, its owner and mode are checked, even if the path now leads elsewhere. With
    `mounts`, all users may write to the root of a mounted volume. Raises OSError.
    """
    if os.pardir in directory.split("/"):
        fix = f"use {os.path.realpath(directory)} instead"
        return [FolderProblem(f"the path {directory} contains '..'", fix)]
    found, device, path, whole = [], -1, "", directory.rstrip("/")
    for part in whole.split("/"):
        path = f"{path.rstrip('/')}/{part}"
        status = os.lstat(path)
        is_last = path == (whole or "/")
        if is_last and opened is not None and not stat.S_ISLNK(status.st_mode):
            status = os.fstat(opened)
        mounted, device = mounts and status.st_dev != device, status.st_dev
        problem = problem_of(path, status, of=of if is_last else "above", mounted=mounted)
        if problem is not None:
            found.append(problem)
        if not stat.S_ISDIR(status.st_mode):
            break
    return found


def problem_of(
    path: str, status: os.stat_result, *, of: str, mounted: bool = False
) -> FolderProblem | None:
    """Return the problem with one folder on a path, given its `lstat`; None if there is none.

    `of` is `private` (only this user can enter the folder), `unwritable` (this user owns the folder
    and others cannot write to it) or `above` (root may own the folder too, and all users may write
    to it if it is sticky, because they cannot rename a folder in it).
    """
    mode, above = stat.S_IMODE(status.st_mode), of == "above"
    if stat.S_ISLNK(status.st_mode):
        return FolderProblem(f"{path} is a symbolic link", f"use {os.path.realpath(path)} instead")
    if not stat.S_ISDIR(status.st_mode):
        return FolderProblem(f"{path} is not a directory", f"remove {path}")
    if status.st_uid not in ((0, os.geteuid()) if above else (os.geteuid(),)):
        problem = foreign(path, status, owner="root" if above else f"{os.geteuid()}")
        return FolderProblem(problem.what, f"use a directory inside {path}") if mounted else problem
    if of == "private" and mode & 0o077:
        what = f"{path} is open to other users (mode {mode & 0o777:o})"
        return FolderProblem(what, f"chmod 700 {path}")
    if mode & 0o022 and not (above and (mode & stat.S_ISVTX or mounted)):
        # A folder that everybody may write to is shared on purpose: the fix keeps it shared.
        return writable(path, mode, fix="+t" if above and mode & 0o002 else "go-w")
    return None


def foreign(path: str, status: os.stat_result, *, owner: str) -> FolderProblem:
    """Return the problem that another user owns a path."""
    is_ours = os.path.basename(path) == _own_name()
    fix = f"ask its owner or root to remove {path}" if is_ours else f"chown {owner} {path}"
    return FolderProblem(f"{path} belongs to user id {status.st_uid}", fix)


def writable(path: str, mode: int, *, fix: str) -> FolderProblem:
    """Return the problem that other users can write to a path."""
    what = f"{path} can be written by group or others (mode {mode & 0o777:o})"
    return FolderProblem(what, f"chmod {fix} {path}")


# --- places ---------------------------------------------------------------------------

LAST_BASE = "/var/tmp"  # noqa: S108 - its safety is checked


class FolderCandidate(NamedTuple):
    """A possible location for a user's private folders."""

    folder: str
    """`<base>/serve_warm-<uid>`."""
    state: str
    """The folder for state files. Machines that share a home have a state folder each."""


class ChosenFolder(NamedTuple):
    """The location that was chosen for this user's folders."""

    place: FolderCandidate
    passed: tuple[str, ...]
    """Reasons why the places before the chosen place (or all places) cannot be used."""
    usable: bool


def places() -> tuple[FolderCandidate, ...]:
    """Return the possible places for this user's folders, in the order in which they are tried.

    Replicas, probes and servers are started in different ways but must choose the same place. So
    the home folder comes from the password database, not from `$HOME`.
    """
    import pwd

    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    given = [os.path.abspath(each) for each in (*named, "/tmp") if each]  # noqa: S108 - looked at
    temporary = next(filter(_is_writable, given), given[-1])
    own = _own_name()
    found: dict[str, FolderCandidate] = {}
    folder = os.path.join(os.path.realpath(temporary), own)
    found[folder] = FolderCandidate(folder, os.path.join(folder, "state"))
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""  # a user without a home
    if os.path.isdir(home):  # a missing home is not made
        base = os.path.realpath(os.path.join(home, ".cache", "serve_warm"))
        folder = os.path.join(base, own)
        host = os.uname().nodename.replace("/", "_")
        found.setdefault(folder, FolderCandidate(folder, os.path.join(folder, f"state-{host}")))
    folder = os.path.join(os.path.realpath(LAST_BASE), own)
    if os.path.isdir(LAST_BASE):
        found.setdefault(folder, FolderCandidate(folder, os.path.join(folder, "state")))
    return tuple(found.values())


def choose_place(among: Sequence[FolderCandidate]) -> ChosenFolder:
    """Return the place that replicas use, or that the first replica will use.

    The first place with a live replica wins, even if an earlier place has become usable, and then
    the first usable place.
    """
    passed: list[str] = []
    usable = None
    for place in among:
        if has_living(place.state):
            return ChosenFolder(place, tuple(passed), usable=True)
        wrong = troubles(place.folder)
        if not wrong and usable is None:
            usable = ChosenFolder(place, tuple(passed), usable=True)
        passed += wrong
    return usable or ChosenFolder(among[0], tuple(passed), usable=False)


def has_living(directory: str) -> bool:
    """Return whether a live replica of this user has its state in this place."""
    if troubles(directory):
        return False
    try:
        folder = open_folder(directory)
    except OSError:
        return False
    try:
        stems = [name[: -len(".lock")] for name in os.listdir(folder) if name.endswith(".lock")]
        return any(lock_of(stem, folder).held for stem in filter(is_stem, stems))
    finally:
        os.close(folder)


def _own_name() -> str:
    return f"serve_warm-{os.geteuid()}"


def _is_writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def troubles(folder: str) -> list[str]:
    """Return the reasons why this user cannot use or create a private folder, or an empty list."""
    there = _existing(folder)
    try:
        found = problems(there, of="unwritable" if there == folder else "above")
    except OSError as error:
        return [f"{there}: {error.strerror}"]
    if found or _is_writable(there):
        return [f"{problem.what} ({problem.fix})" for problem in found]
    return [f"{there} cannot be written"]


def default_directory() -> str:
    """Return the default folder for state files of this user's replicas. Does not create it."""
    return os.environ.get("SERVE_WARM_STATE_DIR") or choose_place(places()).place.state


# --- readiness -----------------------------------------------------------------


class Policy(NamedTuple):
    """The condition under which this node counts as warm."""

    expect: str = "all"
    """`all` (at least one replica exists, and all are warm), `min` or `allow-idle`."""
    at_least: int = 1
    deployments: tuple[str, ...] = ()
    """Only these deployments count, and each must pass."""
    latch: str = "on"
    """With `on`, a replica added to a warm node does not count until it is ready itself."""
    require: str = ""
    """With `compiled`, a replica that runs uncompiled code is not warm."""

    @classmethod
    def of(
        cls, expect: str, *, deployments: Iterable[str] = (), latch: str = "on", require: str = ""
    ) -> Policy:
        """Parse `all`, `min=N` or `allow-idle`. Raises ValueError."""
        if require not in ("", "compiled"):
            raise ValueError(f"{require!r} cannot be required: use 'compiled'")
        word, equals, number = expect.partition("=")
        if expect in ("all", "allow-idle"):
            return cls(expect, deployments=tuple(deployments), latch=latch, require=require)
        if word == "min" and equals and number.isascii() and number.isdigit() and int(number):
            return cls("min", int(number), tuple(deployments), latch, require)
        raise ValueError(
            f"{expect!r} is not valid: use 'all', 'allow-idle' or 'min=N', where N is at least 1"
        )


class Readiness(NamedTuple):
    """The result of all checks: whether this node is ready, and if not, why."""

    reasons: tuple[tuple[str, str], ...]
    """Name and reason of each check that failed."""
    checks: tuple[str, ...]
    replicas: tuple[Replica, ...] = ()
    excused: tuple[Replica, ...] = ()
    """Unready replicas that do not count, because the node was warm before they began."""
    unread: str = ""
    """Why the state directory could not be read. `replicas` is then empty."""

    @property
    def ready(self) -> bool:
        """Whether all checks pass."""
        return not self.reasons

    def said(self, *, verbose: bool) -> list[str]:
        """Return a line for each reason, or, with `verbose`, a line for each check and replica."""
        reasons = [shown(f"{check}: {why}") for check, why in self.reasons]
        return self.lines() if verbose else reasons

    def lines(self) -> list[str]:
        """Return a line for each check and each replica."""
        failed = dict(self.reasons)
        lines = [f"[{'-' if check in failed else '+'}] {check}" for check in self.checks]
        lines += [f"    {shown(f'{check}: {why}')}" for check, why in self.reasons]
        for replica in self.replicas:
            if replica.condition != "dead":
                note = " (added to a warm node; not counted yet)" if replica in self.excused else ""
                lines.append(f"    {replica}{note}")
        return lines


def warmth(replicas: Sequence[Replica], policy: Policy) -> tuple[list[str], tuple[Replica, ...]]:
    """Return the reasons why a node with these replicas is not warm, and the excused replicas.

    The latch excuses replicas that were added to a warm node: at some moment, every replica on it
    was ready. Dead replicas do not count. The latch stores nothing.
    """
    alive = [r for r in replicas if r.condition != "dead"]
    if policy.require:
        alive = [_required_to_compile(replica) for replica in alive]
    groups = {name: [r for r in alive if _is_of(name, r)] for name in policy.deployments}
    if not groups:
        groups = {"": alive}
    reasons = [why for name, group in groups.items() for why in _lacking(name, group, policy)]
    if not reasons or policy.expect == "min" or policy.latch != "on":
        return reasons, ()
    everyone = [r for group in groups.values() for r in group]
    excused = tuple(r for r in everyone if r.ready_s is None and r.condition in EXCUSABLE)
    counted = {name: [r for r in group if r not in excused] for name, group in groups.items()}
    if any(_lacking(name, group, policy) for name, group in counted.items()):
        return reasons, ()
    if any(_was_warm(groups, r.ready_s, policy) for r in everyone if r.ready_s is not None):
        return [], excused
    return reasons, ()


def _required_to_compile(replica: Replica) -> Replica:
    if replica.condition != "warm" or not (replica.state or {}).get("uncompiled"):
        return replica
    why = "runs uncompiled code, because it has no artifact, and compiled code is required"
    return replica._replace(condition="warming", why=why)


EXCUSABLE = ("warming", "failed", "stale")


def _is_of(name: str, replica: Replica) -> bool:
    application, deployment, _ = replica.names
    return name in (deployment, f"{application}#{deployment}")


def _lacking(name: str, group: Sequence[Replica], policy: Policy) -> list[str]:
    of = f" of {name}" if name else ""
    cold = [str(r) for r in group if r.condition != "warm"]
    if policy.expect == "min":
        warm = len(group) - len(cold)
        if warm >= policy.at_least:
            return []
        return [f"{warm} replicas{of} are warm, but at least {policy.at_least} must be", *cold]
    if not group and policy.expect == "all":
        return [f"no replica{of} is on this node"]
    return cold


def _was_warm(groups: Mapping[str, Sequence[Replica]], at_s: float, policy: Policy) -> bool:
    """Return whether each group had a replica at this time, and all of these were ready."""
    for group in groups.values():
        begun = [r for r in group if r.began_s <= at_s]
        if not begun and policy.expect != "allow-idle":
            return False
        if any(r.ready_s is None or r.ready_s > at_s for r in begun):
            return False
    return True


class Settings(NamedTuple):
    """The settings for the checks that a probe or a server makes."""

    state_dir: str
    """If empty, the directory is the one that this user's first replica chose."""
    policy: Policy = Policy()
    stale_s: float = STALE_S
    urls: tuple[tuple[str, str], ...] = (("raylet", RAYLET), ("proxy", PROXY))
    places: tuple[FolderCandidate, ...] = ()
    """Candidates for the state directory if `state_dir` is empty."""

    def choice(self) -> tuple[str, tuple[str, ...]]:
        """Return the current state directory, and why earlier candidates were rejected."""
        choice = None if self.state_dir else choose_place(self.places)
        return (self.state_dir, ()) if choice is None else (choice.place.state, choice.passed)


def judge(settings: Settings, *, health: Mapping[str, str] | None = None) -> Readiness:
    """Return whether this node is ready now. Without `health` (see `asked`), request all URLs."""
    replicas: list[Replica] = []
    excused: tuple[Replica, ...] = ()
    unread = ""
    try:
        directory, passed = settings.choice()
        replicas = look(directory, stale_s=settings.stale_s)
        why, excused = warmth(replicas, settings.policy)
        if why and not replicas:
            said = "; ".join((f"{directory} has no state file", *passed))
            why = [f"{each} ({said})" for each in why]
    except OSError as error:
        why = [unread := error.strerror or str(error)]
    reasons = [("warm", each) for each in why]
    health = asked(settings) if health is None else health
    wrong = [(name, health.get(name, f"{url} was not checked")) for name, url in settings.urls]
    reasons += [(name, why) for name, why in wrong if why]
    names = ("warm", *(name for name, _ in settings.urls))
    return Readiness(tuple(reasons), names, tuple(replicas), excused, unread)


def asked(settings: Settings, *, limit_s: float = CHECK_LIMIT_S) -> dict[str, str]:
    """Request all health URLs in parallel. Return their problems; "" for a healthy URL."""
    import _thread

    found = {name: LATE.format(url, limit_s) for name, url in settings.urls}

    def ask(name: str, url: str, ended: Any) -> None:
        try:
            found[name] = get(url, limit_s=limit_s)
        finally:
            ended.release()

    asking = []
    for name, url in settings.urls:
        ended = _thread.allocate_lock()
        ended.acquire()
        _thread.start_new_thread(ask, (name, url, ended))
        asking.append(ended)
    # DNS has no timeout, so `get` can be late. Then its answer is ignored.
    end_s = time.monotonic() + limit_s + GRACE_S
    for ended in asking:
        ended.acquire(timeout=max(0.0, end_s - time.monotonic()))
    return dict(found)


def get(url: str, *, limit_s: float = CHECK_LIMIT_S) -> str:
    """Return what is wrong with a health URL, or "" if it answers 200 in time."""
    host, port, path = split_url(url)
    end = time.monotonic() + limit_s
    head = b""
    try:
        connection = _connected(host, port, end)
        try:
            name = f"[{host.partition('%')[0]}]" if ":" in host else host
            request = f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            while b"\n" not in head and len(head) < 4096:
                connection.settimeout(max(0.001, end - time.monotonic()))
                received = connection.recv(4096)
                if not received:
                    break
                head += received
        finally:
            connection.close()
    except TimeoutError:
        return LATE.format(url, limit_s)
    except OSError as error:
        return f"{url}: {error.strerror or error}"
    fields = head.split(b"\n", 1)[0].split()
    if len(fields) >= 2 and fields[0].startswith(b"HTTP/") and fields[1] == b"200":
        return ""
    answer = fields[1] if len(fields) >= 2 else b"without an HTTP status"
    return f"{url} answered {answer.decode(errors='replace')}, not 200"


def _connected(host: str, port: int, end_s: float) -> Any:
    """Connect to the first of a host's addresses that accepts a connection."""
    import _socket  # `socket` without its enums, which are slow to make

    trouble = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for name in LOCALHOST if host.lower() == "localhost" else (host,):
        # As bytes: for a string, `getaddrinfo` would import the IDNA codec.
        found = _socket.getaddrinfo(name.encode(), port, 0, _socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            try:
                connection = _socket.socket(family, kind, protocol)
            except OSError as error:  # no IPv6 in this kernel
                trouble = error
                continue
            try:
                connection.settimeout(max(0.001, end_s - time.monotonic()))
                connection.connect(address)
            except OSError as error:
                connection.close()
                # "Refused" says more than the error of an address that this machine does not have.
                if not isinstance(trouble, ConnectionRefusedError):
                    trouble = error
            else:
                return connection
    raise trouble


def split_url(url: str) -> tuple[str, int, str]:
    """Split an http URL into host, port and path. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    name, _, port = host.rpartition(":")
    digits = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1].replace("%25", "%")
    elif ":" in name:
        name = ""
    if scheme != "http" or not name or not digits or not url.isprintable() or " " in url:
        raise ValueError(
            f"{url!r} is neither a URL such as {PROXY} or http://[::1]:8000/-/healthz, nor 'none'"
        )
    return name, int(port), slash + path or "/"


# --- command line -----------------------------------------------------------------------------


def settings_of(
    *,
    state_dir: str,
    expect: str,
    deployment: Iterable[str],
    no_latch: bool,
    require: str,
    stale_s: str,
    raylet: str,
    proxy: str,
) -> Settings:
    """Return the settings for the options of a probe or a server. Raises ValueError."""
    urls = tuple((n, u) for n, u in (("raylet", raylet), ("proxy", proxy)) if u != "none")
    for _, url in urls:
        split_url(url)
    if not 0 < float(stale_s) < float("inf"):
        raise ValueError(f"{float(stale_s)} is not a positive number of seconds")
    latch = "off" if no_latch else "on"
    policy = Policy.of(expect, deployments=deployment, latch=latch, require=require)
    state_dir = state_dir or os.environ.get("SERVE_WARM_STATE_DIR", "")
    return Settings(state_dir, policy, float(stale_s), urls, () if state_dir else places())


OPTIONS: dict[str, tuple[str, Any, str]] = {
    "--state-dir": (
        "DIR",
        "",
        "The replicas' state directory. Default: SERVE_WARM_STATE_DIR, or the replicas' default.",
    ),
    "--expect": (
        "POLICY",
        "all",
        "all: one exists, and all are warm. min=N: at least N. allow-idle: all, or none exists.",
    ),
    "--raylet": ("URL", RAYLET, "Health URL of the local raylet; pass 'none' to skip the check."),
    "--proxy": ("URL", PROXY, "Health URL of the Serve proxy; pass 'none' to skip the check."),
    "--stale-s": (
        "SECONDS",
        f"{STALE_S:g}",
        "A replica without a heartbeat for this many seconds counts as hung.",
    ),
    "--deployment": (
        "NAME",
        (),
        "Check only this deployment, named [APP#]NAME. All given ones must be warm. Repeatable.",
    ),
    "--no-latch": (
        "",
        False,
        "Count a warm node as unready when a replica is added, until that replica is warm.",
    ),
    "--require": (
        "WHAT",
        "",
        "compiled: a replica that runs uncompiled code, without an artifact, is not warm.",
    ),
    "--verbose": ("", False, "Show each check and replica."),
}
"""Metavar, default and help of each option. An option with the default () can be repeated, and an
option with the default False takes no value."""


def usage(command: str, options: Mapping[str, tuple[str, Any, str]] = OPTIONS) -> str:
    """Return the help text of a command line."""
    rows = [(f"{name} {meta}".rstrip(), text) for name, (meta, _, text) in options.items()]
    lines = "".join(f"  {option}\n      {text}\n" for option, text in rows)
    return f"usage: {command} [OPTION]...\n\n{lines}"


def parse(
    arguments: Iterable[str], options: Mapping[str, tuple[str, Any, str]] = OPTIONS
) -> dict[str, Any]:
    """Return the options by name. Raises ValueError. Importing argparse would take too long."""
    found = {n[2:].replace("-", "_"): default for n, (_, default, _) in options.items()}
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        default = options.get(option, ("", None, ""))[1]
        if default is None or (default is False and equals):
            raise ValueError(f"unknown option {word!r}")
        name = option[2:].replace("-", "_")
        if default is False:
            found[name] = True
            continue
        value = value if equals else next(words, "-")
        if not equals and value.startswith("-"):
            raise ValueError(f"{option} needs a value")
        found[name] = (*found[name], value) if default == () else value
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `probe`, and return the exit code: 0 if the node is ready, 1 if not."""
    arguments = sys.argv[1:] if arguments is None else arguments
    text = usage("node.py probe")
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(text)
        return 0
    try:
        if arguments[:1] != ["probe"]:
            raise ValueError("the command must be 'probe'")  # noqa: TRY301 - one handler
        given = parse(arguments[1:])
        verbose = given.pop("verbose")
        readiness = judge(settings_of(**given))
    except ValueError as error:
        sys.stderr.write(f"{text}\nerror: {error}\n")
        return 2
    sys.stdout.write("".join(f"{line}\n" for line in readiness.said(verbose=verbose)))
    return 0 if readiness.ready else 1


if __name__ == "__main__":
    sys.exit(main())
