# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state files of this node's replicas, and the probe and server that read these files.

Serve sends no request to a replica that is still starting, so a request cannot reveal that
replica's state. Instead, each replica writes a small JSON file, and holds a lock while its process
is alive. Each replica has two files in a directory that the replica's user owns:

    <replica>.json   its state, replaced as a whole at each write
    <replica>.lock   locked (`flock`) while the process lives; contains its heartbeat and its names

The lock is a separate file because each write of the state creates a new inode. The kernel frees
the lock when the process ends, for any reason. So readers in another process namespace (such as a
sidecar) also notice that the process has ended, although they cannot use process ids. The heartbeat
is overwritten in place, which works even on a full disk.

This file runs without the rest of the package: `python -I -S node.py probe`, or `serve`. A probe
runs every few seconds, so it must import very few modules. Some modules are slow to import (`json`,
`socket`, `argparse`, `typing`, `contextlib`). Such modules are imported only by code that a probe
does not run. Several processes compare times. These times come from CLOCK_BOOTTIME, because nobody
can set this clock, and because this clock keeps running during suspend.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from socketserver import TCPServer
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
            by_place = dict(zip(cls._fields[: len(values)], values, strict=True))
            given = {**cls._defaults, **by_place, **named}
            if given.keys() != set(cls._fields):
                raise TypeError(f"{cls.__name__} needs exactly the fields {', '.join(cls._fields)}")
            return tuple.__new__(cls, [given[name] for name in cls._fields])

        def _replace(self, **named: object) -> NamedTuple:
            return type(self)(**{**dict(zip(self._fields, self, strict=True)), **named})

        def __repr__(self) -> str:
            shown = zip(self._fields, self, strict=True)
            return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in shown)})"


STATE_SCHEMA = 2
MAX_STATE_BYTES = 1 << 20

HEARTBEAT_S = 5.0
"""Seconds between two writes by a replica while nothing changes."""
STALE_S = 30.0
"""A replica without a heartbeat for this many seconds no longer counts as warm. This is six missed
heartbeats."""
SWEEP_S = 600.0
"""Seconds for which a dead replica's files are kept, so that its last metrics can be exported."""

RAYLET = "http://127.0.0.1:52365/api/healthz"
"""Health URL of Ray's agent on each node. The agent checks the raylet. The URL needs no token."""
PROXY = "http://127.0.0.1:8000/-/healthz"
CHECK_LIMIT_S = 0.5
GRACE_S = 0.5
"""Extra seconds that a thread gets for reporting its answer, because all cores of the node might be
busy with compiles."""
CHECK_VALID_S = 1.0
CHECK_PERIOD_S = 0.5
"""Seconds between two checks, short enough that even a slow answer arrives before the previous
answer expires."""
PORT = 8099
DRAIN_S = 5.0
MAX_CONNECTIONS = 256
KEPT_CONNECTIONS = 64
"""Number of connections reserved for probes, which come from this machine and its kubelet.
"""
PEER_CONNECTIONS = 32
"""Limit on connections from one address. A kubelet or Prometheus uses only a few."""
MAX_THREADS = 320
"""Limit on connections that have a thread. A dropped connection keeps its thread until its answer
is finished. At this limit, new connections from untrusted addresses are closed at once."""
SLOW_S = 1.0
"""A client that sends no request for this many seconds counts as slow. A probe sends its request at
once."""
LOOPBACK = frozenset(("127.0.0.1", "::1"))
BACKLOG = 1024
"""Number of connections that can wait to be accepted, if the kernel allows that many."""
IDLE_S = 5.0
"""Seconds after which a client that sends nothing is disconnected."""
REQUEST_S = 10.0
"""Time limit in seconds for one request and its answer, even if the client is slow."""
MAX_HEAD_BYTES = 1 << 14
"""Limit in bytes for a request head. Probes and Prometheus send smaller heads."""
REMEMBERED = 100
"""Maximum number of dead replicas whose last metrics the server still exports."""


def boot_s() -> float:
    """Return the time of CLOCK_BOOTTIME in seconds. All processes on a machine share this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- writing a state -----------------------------------------------------------------


class StateFile:
    """One replica's state, and a lock that is held until the process ends or calls `close()`.

    `began_s` is the time (CLOCK_BOOTTIME) at which the replica began, by default now. `clock`
    returns the current time in seconds, for heartbeats.

    Raises:
        PermissionError: another user owns the directory, can write to the directory, or can replace
            it by writing to a folder above it. That user's files could look like state files.
        OSError: the directory cannot be made, is full or read-only, or its file system has no
            locks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        application: str,
        deployment: str,
        replica: str,
        began_s: float | None = None,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        self._clock = clock
        self._directory = os.path.abspath(directory)
        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self._stem = _stem(application, deployment, replica)
        self.path = os.path.join(self._directory, f"{self._stem}.json")
        self._pid_start = _start_ticks()
        self._began_s = self._clock() if began_s is None else began_s
        self._ready_s: float | None = None
        self._stage: tuple[Any, float] = (None, self._began_s)
        self._folder = self._lock = -1
        call_in_children(self.close)
        self._open()

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file. A reader sees either the complete old state or the complete new one.

        If the files or the directory have been removed, this method creates them again.

        Raises:
            OSError: the state cannot be written. On a full disk, the heartbeat is still written. On
                a read-only disk, the heartbeat is not written either. But the replica still holds
                its lock, so the replica counts as stale, not dead.
        """
        now = self._clock()
        if facts.get("stage") != self._stage[0]:
            self._stage = (facts.get("stage"), now)
        if self._stage[0] == "READY" and self._ready_s is None:
            self._ready_s = now
        state = {
            "schema": STATE_SCHEMA,
            **self._names,
            "pid": os.getpid(),
            "pid_start": self._pid_start,
            **facts,
            "began_boot_s": self._began_s,
            "ready_boot_s": self._ready_s,
            "stage_boot_s": self._stage[1],
            "heartbeat_boot_s": now,
            "updated_unix": time.time(),
        }
        data = _fitting(state)
        if self._lock == -1:
            self._open()
        temporary = f"{self._stem}.{os.getpid()}.tmp"
        try:
            os.pwrite(self._lock, _heartbeat(now), 0)
            if not os.path.samestat(os.stat(self._directory), os.fstat(self._folder)):
                raise FileNotFoundError(errno.ENOENT, "the directory was replaced", self._directory)
            there = os.stat(f"{self._stem}.lock", dir_fd=self._folder, follow_symlinks=False)
            if not os.path.samestat(there, os.fstat(self._lock)):
                raise FileNotFoundError(errno.ENOENT, "the lock was replaced", self.path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600, dir_fd=self._folder), "wb") as file:
                file.write(data)
            name = f"{self._stem}.json"
            os.rename(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            try:
                os.unlink(temporary, dir_fd=self._folder)
            except OSError:
                pass
            if error.errno not in PASSING:
                self.close()  # the next write opens everything again
            raise

    def close(self) -> None:
        """Release the lock, so that readers count the replica as dead. The last state is kept."""
        folder, lock = self._folder, self._lock
        self._folder = self._lock = -1
        for opened in (folder, lock):
            if opened != -1:
                os.close(opened)

    def _open(self) -> None:
        _make_private(self._directory)
        self._folder = _opened(self._directory)
        try:
            _sweep(self._folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(f"{self._stem}.lock", flags, 0o600, dir_fd=self._folder)
            _take(self._lock)
            # Before the first state is written, a reader needs the names and the start time.
            begun = _encoded({**self._names, "began_boot_s": self._began_s})
            os.pwrite(self._lock, _heartbeat(self._clock()) + begun, 0)
        except OSError:
            self.close()
            raise


PASSING = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
"""Errors after which the lock is kept, because a replica without the lock would look dead."""


def _encoded(state: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(state).encode()


def _fitting(state: Mapping[str, Any]) -> bytes:
    """Return a state as JSON that is small enough for readers.

    Readers skip larger files, so a long text would make a warm node unready. If the state is too
    large, long texts are cut. If the state is still too large, only facts that readiness depends on
    are kept.
    """
    data = _encoded(state)
    if len(data) > MAX_STATE_BYTES:
        names = {name: state[name] for name in WHO}
        data = _encoded({**_cut(dict(state)), **names})
    if len(data) > MAX_STATE_BYTES:
        data = _encoded({name: state[name] for name in NEEDED if name in state})
    return data


NEEDED = (
    *("schema", "application", "deployment", "replica", "pid", "pid_start", "stage", "verdict"),
    *("inputs_expected", "inputs_done", "loop_boot_s", "began_boot_s", "ready_boot_s"),
    *("stage_boot_s", "heartbeat_boot_s", "updated_unix"),
)
"""Facts that readiness depends on. These facts are kept even if the state is too large."""

TEXT_CHARS = 1000
"""If a state is too large, each of its texts is cut to this length."""


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS else f"{value[: TEXT_CHARS - 3]}..."
    if isinstance(value, dict):
        return {_cut(key): _cut(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cut(item) for item in value]
    return value


def _heartbeat(at_s: float) -> bytes:
    # Always the same length, so that it can be overwritten in place.
    return b"%020.6f\n" % at_s


HEARTBEAT_BYTES = len(_heartbeat(0.0))


def _stem(*names: str) -> str:
    from urllib.parse import quote

    stem = "#".join(quote(name.encode(errors="surrogatepass"), safe="") for name in names)
    if len(stem) > 200:  # a file name can have 255 bytes, and suffixes follow
        import hashlib

        stem = f"{stem[:100]}-{hashlib.sha256(stem.encode()).hexdigest()}"
    return stem


def _start_ticks() -> int:
    """Return the time at which this process started, in clock ticks since boot.

    If two processes use the same pid one after the other, this time distinguishes them.
    """
    with open("/proc/self/stat", "rb") as file:
        # The program name in parentheses can contain anything. Field 22 of proc(5).
        return int(file.read().rpartition(b")")[2].split()[19])


def _take(lock: int) -> None:
    import fcntl

    end = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A reader holds the lock for microseconds during its check.
            if time.monotonic() > end:
                raise
            time.sleep(0.001)
        else:
            return


def call_in_children(release: Callable[[], None]) -> None:
    """Call `release` in forked children.

    Without this call, a child would still hold an inherited lock after the lock's owner has ended.

    `release` must be a method. This function does not keep the method's object alive.
    """
    import weakref

    known = weakref.WeakMethod(release)

    def call() -> None:
        held = known()
        if held is not None:
            held()

    os.register_at_fork(after_in_child=call)


def _make_private(directory: str) -> None:
    if not os.path.lexists(directory):
        _make_private(os.path.dirname(directory))
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # another process was faster


def _sweep(folder: int) -> None:
    """Remove files of replicas that died more than `SWEEP_S` ago."""
    for name in os.listdir(folder):
        stem, _, kind = name.rpartition(".")
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < SWEEP_S:
                continue
            if kind == "tmp" or (kind in ("json", "lock") and not _lock(stem, folder).held):
                os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # the next start sweeps again


class Heartbeat:
    """Writes a replica's state when it changes, and also every few seconds.

    A daemon thread writes the state, so that requests and the start never wait for a disk. If
    writing fails, this class logs a warning once, and the replica serves without a state file.
    `began_s` has the same meaning as in StateFile. `period_s` is the time in seconds between two
    writes while nothing changes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        application: str,
        deployment: str,
        replica: str,
        facts: Callable[[], Mapping[str, Any]],
        began_s: float | None = None,
        period_s: float = HEARTBEAT_S,
    ) -> None:
        import logging
        import threading

        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self.directory = directory
        # This is not the time at which the file is created. If the directory was unusable at first,
        # the replica would otherwise look as if it was added later.
        self._began_s = boot_s() if began_s is None else began_s
        self._facts = facts
        self._period_s = period_s
        self._logger = logging.getLogger(__name__)
        self._trouble = ""
        self._changed = threading.Event()
        self._waiting: list[threading.Event] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="serve_warm-state", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Request a write now. Returns at once."""
        self._changed.set()

    def flush(self, timeout_s: float) -> bool:
        """Request a write and wait for it. Return whether the write was attempted in time."""
        import threading

        written = threading.Event()
        self._waiting.append(written)
        self._changed.set()
        return written.wait(timeout_s)

    def stop(self) -> None:
        """Stop writing and release the lock."""
        self._stopped = True
        self._changed.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        file = None
        while True:
            self._changed.clear()  # first, so that later changes are written in the next turn
            if self._stopped:
                break
            waiting, self._waiting = self._waiting, []  # also first
            try:
                facts = self._facts()
                if file is None:
                    file = StateFile(
                        self.directory, **self._names, began_s=self._began_s, clock=boot_s
                    )
                file.write(facts)
                trouble = ""
            except OSError as error:
                trouble = _describe_unwritten(os.fspath(self.directory), error)
            # Other threads change the report, and the sizes of its dicts, while it is being read.
            except (RuntimeError, ValueError, TypeError) as error:
                text = str(error) or type(error).__name__
                trouble = f"could not describe this replica's state, and will try again: {text}"
            self._say(trouble)
            for written in waiting:
                written.set()
            self._changed.wait(self._period_s)
        if file is not None:
            file.close()

    def _say(self, trouble: str) -> None:
        if trouble and not self._trouble:
            self._logger.warning("%s", trouble)
        elif self._trouble and not trouble:
            self._logger.info("this replica can write its state again")
        self._trouble = trouble


def _describe_unwritten(directory: str, error: OSError) -> str:
    """Return a text that says why a state cannot be written, what the effect is, and what to do."""
    text = error.strerror or str(error)
    is_told = directory in text  # `_not_private` names the directory, and says what to do
    where = "" if is_told else f" to {directory}"
    said = (
        f"cannot write this replica's state{where}: {text}. Probes, status and metrics of this "
        "node do not include the replica, but it serves requests as usual."
    )
    if is_told:
        return said
    return f"{said} Set state_dir or SERVE_WARM_STATE_DIR to a writable folder with free space"


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
        return _number(self.state, "ready_boot_s")

    def __str__(self) -> str:
        application, deployment, replica = self.names
        who = f"{application}#{deployment} {replica}" if any(self.names) else self.stem
        return shown(f"{who}: {self.why or 'warm'}")


CONDITIONS = ("warm", "warming", "failed", "stale", "unreadable", "dead")
"""Conditions of a replica. Unless the condition is `dead`, the replica holds its lock."""


class Parsed(NamedTuple):
    """A state that a call to `look` has read, and that the next call can reuse.

    A replica writes a heartbeat to its lock, and then the same heartbeat to its state. While both
    heartbeats are equal, there is no newer state. The metadata of the state file alone cannot prove
    that there is no newer state: after two renames within one clock tick, the first inode can be in
    use again. But the metadata is compared too, to detect changes by other processes.
    """

    heartbeat_s: float
    """The heartbeat that was the same in the lock and in the state."""
    file: tuple[int, ...]
    """Device, inode, time of the last inode change (in nanoseconds), and size."""
    state: dict[str, Any]


def look(
    directory: str | os.PathLike[str],
    *,
    stale_s: float = STALE_S,
    parsed: dict[str, Parsed] | None = None,
    clock: Callable[[], float] = boot_s,
) -> list[Replica]:
    """Return the replicas of this node that have files in the directory, including dead replicas.

    `parsed` keeps states for the next call, by file name. Concurrent calls can share `parsed`. Each
    call checks the locks again. Heartbeats are compared with the result of `clock`, the current
    time in seconds.

    Raises:
        PermissionError: as for StateFile. The caller cannot know whether replicas exist.
    """
    try:
        folder = _opened(os.path.abspath(directory))
    except (FileNotFoundError, NotADirectoryError):
        _check_above(os.path.abspath(directory))
        return []
    parsed = {} if parsed is None else parsed
    try:
        found = [name.rpartition(".") for name in os.listdir(folder)]
        stems = sorted({stem for stem, _, kind in found if kind in ("json", "lock")})
        for stem in list(parsed):
            if stem not in stems:
                parsed.pop(stem, None)
        return [_replica(stem, folder, stale_s, parsed, clock) for stem in stems]
    finally:
        os.close(folder)


def read_states(directory: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the states of live replicas.

    Raises:
        PermissionError: as for StateFile. The caller cannot know whether replicas exist.
    """
    for replica in look(directory):
        if replica.condition != "dead" and replica.state is not None:
            yield replica.state


def _replica(
    stem: str,
    folder: int,
    stale_s: float,
    parsed: dict[str, Parsed],
    clock: Callable[[], float],
) -> Replica:
    lock = _lock(stem, folder)  # first: see Parsed
    state, trouble = _current(stem, folder, lock.heartbeat_s, parsed)
    begun = lock.begun() if state is None else state
    names = _names(begun)
    heartbeat_s = max(lock.heartbeat_s, _number(state, "heartbeat_boot_s") or 0.0)
    now_s = clock()  # after the lock and the state were read
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
        since_s = now_s - (_number(state, "stage_boot_s") or now_s)
        late = ", late: its deadline has passed" if state.get("verdict") == "late" else ""
        condition, why = "warming", f"{stage or 'no stage'} for {since_s:.0f} s, {done}{late}"
    began_s = _number(begun, "began_boot_s") or float("inf")
    return Replica(stem, names, condition, why, state, heartbeat_s, began_s)


def _loop_age_s(state: dict[str, Any]) -> float:
    """Return the seconds from the last run of the event loop to the last write of the state.

    The time after that write does not count, because failed writes say nothing about the loop. The
    result is 0 if unknown.
    """
    loop_s, written_s = _number(state, "loop_boot_s"), _number(state, "heartbeat_boot_s")
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


def _lock(stem: str, folder: int) -> _Lock:
    """Return the state of a lock. A lock counts as held unless it is missing or can be taken."""
    name = f"{stem}.lock"
    try:
        opened = _open_ours(name, folder)
        try:
            held = _is_held(opened)
            data = os.read(opened, 1 << 16)
        finally:
            os.close(opened)
    except FileNotFoundError:
        return _Lock(held=False)
    except _NotOursError as error:
        return _Lock(held=True, trouble=str(error))
    except OSError as error:
        # For example, this process has no free file descriptors. Then the state of the lock is
        # unknown, and "dead" would be wrong.
        return _Lock(held=True, trouble=f"cannot check {name}: {error.strerror}")
    try:
        heartbeat_s = float(data[:HEARTBEAT_BYTES])
    except ValueError:
        return _Lock(held=held)  # before its first write
    return _Lock(held, heartbeat_s, data[HEARTBEAT_BYTES:], "")


def _is_held(lock: int) -> bool:
    import fcntl

    try:
        # Shared, so that readers do not mistake each other for the replica.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _current(
    stem: str, folder: int, heartbeat_s: float, parsed: dict[str, Parsed]
) -> tuple[dict[str, Any] | None, str]:
    """Return the result of `_state`; read the file again only if the heartbeat has changed.

    `heartbeat_s` is the heartbeat that was just read from the lock.
    """
    file = _file(f"{stem}.json", folder)
    known = parsed.get(stem)
    if known is not None and (known.heartbeat_s, known.file) == (heartbeat_s, file):
        return known.state, ""
    state, trouble = _state(stem, folder)
    written_s = _number(state, "heartbeat_boot_s")
    # The heartbeat is rounded to microseconds in the lock, but not in the state.
    if state is not None and written_s is not None and abs(written_s - heartbeat_s) < 1e-6:
        parsed[stem] = Parsed(heartbeat_s, file, state)
    return state, trouble


def _file(name: str, folder: int) -> tuple[int, ...]:
    """Return metadata that identifies a file; empty if the metadata cannot be read."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def _state(stem: str, folder: int) -> tuple[dict[str, Any] | None, str]:
    """Return the state in a file (or None), and the problem of the file (or "").

    A file that does not exist yet has no state and no problem.
    """
    name = f"{stem}.json"
    try:
        opened = _open_ours(name, folder)
        try:
            data = _read(opened)
        finally:
            os.close(opened)
    except FileNotFoundError:
        return None, ""
    except _NotOursError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{name} cannot be read: {error.strerror}"
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
    """Parse JSON, without importing `json` if this Python has the C scanner of `json.loads`.

    Raises:
        ValueError: the data is not JSON.
        RecursionError: the JSON is nested too deeply.
    """
    text = data.decode()
    try:
        from _json import make_scanner
    except ImportError:  # `json` works without it, too
        import json

        return json.loads(text)
    blanks = " \t\n\r"
    text = text.strip(blanks)
    scanner: Any = make_scanner  # the settings that it reads differ between versions
    try:
        value, end = scanner(_Scanning)(text, 0)
    except StopIteration:
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
    if not any(_names(state)):
        return "does not name a replica"
    if not isinstance(state.get("pid"), int) or isinstance(state["pid"], bool):
        return "has no process id"
    return ""


class _NotOursError(Exception):
    """The directory contains a file that this user did not write."""


def _open_ours(name: str, folder: int) -> int:
    # Do not wait for a pipe, and follow no link.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        opened = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotOursError(
                f"{name} is a symbolic link, which serve_warm does not follow: remove it"
            ) from None
        raise
    try:
        status = os.fstat(opened)
    except OSError:
        os.close(opened)
        raise
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return opened
    os.close(opened)
    if not stat.S_ISREG(status.st_mode):
        raise _NotOursError(f"{name} is not a regular file: remove it")
    raise _NotOursError(
        f"{name} belongs to user id {status.st_uid}, so serve_warm does not trust it"
    )


def _names(state: Any) -> tuple[str, str, str]:
    if isinstance(state, dict):
        a, d, r = (state.get(key) for key in ("application", "deployment", "replica"))
        if isinstance(a, str) and isinstance(d, str) and isinstance(r, str):
            return a, d, r
    return "", "", ""


def _number(state: dict[str, Any] | None, key: str) -> float | None:
    value = None if state is None else state.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None  # JSON has integers of any size


def shown(text: str) -> str:
    """Return text as one printable line of at most 500 characters."""
    line = " ".join(text.split())
    line = line if line.isprintable() else ascii(line)
    return line if len(line) <= 500 else line[:499] + "…"


def _opened(directory: str) -> int:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = list(_problems(directory, opened))
    except OSError:
        os.close(opened)
        raise
    if found:
        os.close(opened)
        raise _not_private(directory, found)
    return opened


def _not_private(directory: str, found: Sequence[tuple[str, str]]) -> PermissionError:
    return PermissionError(
        errno.EACCES,
        f"{directory} is not a private directory of uid {os.geteuid()}: "
        f"{'; '.join(what for what, _ in found)} "
        f"(to fix it: {'; '.join(fix for _, fix in found)}; or set another directory in "
        "state_dir or SERVE_WARM_STATE_DIR)",
    )


def _check_above(directory: str) -> None:
    """Check that this user could create a missing directory as a private directory.

    Raises:
        PermissionError: as for StateFile. Replicas may be running without state files,
            because StateFile refuses this directory too.
    """
    above = _existing(directory)
    try:
        found = list(_faults(above, None, mounts="allowed"))
    except OSError:
        return  # made or removed just now
    if found:
        raise _not_private(directory, found)


def _existing(path: str) -> str:
    """Return the nearest existing folder above a path."""
    while not os.path.lexists(path := os.path.dirname(path)):
        pass
    return path


def _problems(directory: str, opened: int) -> Iterator[tuple[str, str]]:
    """Yield each weakness that lets others change a directory's content, and the fix for it.

    If other users can write to a folder above the directory, that folder must be sticky, so that
    they cannot rename the directory. The root of a mounted volume is also accepted, because
    Kubernetes creates an emptyDir with mode 0777, and only root can change the mode. In such a
    volume, other users could remove the directory, and then no replica would be warm. They
    cannot put their own directory in its place, because the owner is checked.
    """
    return _faults(directory, os.fstat(opened), mounts="allowed")


def _faults(
    directory: str, own: os.stat_result | None, *, mounts: str = "checked"
) -> Iterator[tuple[str, str]]:
    """Yield each weakness that lets others change a directory's content, and the fix for it.

    `own` is the status of the directory, which this user must own. If `own` is None, `directory` is
    checked as a parent folder. Root may own a parent folder, and all users may write to a sticky
    parent folder.

    Raises:
        OSError: the directory is missing, or this user may not enter a parent folder.
    """
    user, device, path = os.geteuid(), -1, ""
    if os.pardir in directory.split("/"):
        yield f"the path {directory} contains '..'", f"use {os.path.realpath(directory)} instead"
        return
    for part in directory.rstrip("/").split("/"):
        path = f"{path.rstrip('/')}/{part}"
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            yield f"{path} is a symbolic link", f"use {os.path.realpath(path)} instead"
            return
        leaf = own is not None and path == directory.rstrip("/")
        status = own if own is not None and leaf else status
        mode = stat.S_IMODE(status.st_mode)
        mounted, device = status.st_dev != device and mounts == "allowed", status.st_dev
        if not stat.S_ISDIR(status.st_mode):
            yield f"{path} is not a directory", f"remove {path}"
            return
        if status.st_uid not in ((user,) if leaf else (0, user)):
            fix = f"chown {user if leaf else 'root'} {path}"
            if os.path.basename(path) == _own_name():
                fix = f"ask its owner or root to remove {path}"
            elif mounted:
                fix = f"use a directory inside {path}"
            yield f"{path} belongs to user id {with_name(status.st_uid)}", fix
        elif mode & 0o022 and (leaf or not (mode & stat.S_ISVTX or mounted)):
            what = f"{path} can be written by group or others (mode {mode & 0o777:o})"
            yield what, f"chmod {'go-w' if leaf or not mode & 0o002 else '+t'} {path}"


_names_of_users: dict[int, str] = {}
"""A cache of the results of `with_name`, by user id. A server needs these texts every second, and a
lookup in a directory service can be slow."""


def with_name(user: int) -> str:
    """Return a user id as text, followed by the user's name in parentheses if there is one."""
    import pwd

    if user not in _names_of_users:
        try:
            _names_of_users[user] = f"{user} ({pwd.getpwuid(user).pw_name})"
        except KeyError:
            _names_of_users[user] = f"{user}"
    return _names_of_users[user]


# --- places ---------------------------------------------------------------------------

LAST_BASE = "/var/tmp"  # noqa: S108 - its safety is checked


class Place(NamedTuple):
    """A possible location for a user's private folders."""

    folder: str
    """`<base>/serve_warm-<uid>`."""
    state: str
    """The folder for state files. In a home folder, the name of the state folder includes the
    host name, because several machines can share a home folder."""


class Choice(NamedTuple):
    """The location that was chosen for this user's folders."""

    place: Place
    passed: tuple[str, ...]
    """Reasons why the places before the chosen place cannot be used. If no place can be used, the
    reasons for all places."""
    usable: bool


def places() -> tuple[Place, ...]:
    """Return the possible places for this user's folders, in the order in which they are tried.

    The places are in the folder for temporary files, in `~/.cache/serve_warm` and in `/var/tmp`.
    Replicas, probes and servers are started in different ways but must choose the same place.
    Therefore, the choice ignores `$HOME`, `$XDG_RUNTIME_DIR` and free disk space. The home folder
    comes from the password database.
    """
    import pwd

    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    given = [os.path.abspath(each) for each in (*named, "/tmp") if each]  # noqa: S108 - looked at
    temporary = next(filter(_is_writable, given), given[-1])
    own = _own_name()
    found: dict[str, Place] = {}
    folder = os.path.join(os.path.realpath(temporary), own)
    found[folder] = Place(folder, os.path.join(folder, "state"))
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""  # a user without a home
    if os.path.isdir(home):  # a missing home is not made
        base = os.path.realpath(os.path.join(home, ".cache", "serve_warm"))
        folder = os.path.join(base, own)
        host = os.uname().nodename.replace("/", "_")
        found.setdefault(folder, Place(folder, os.path.join(folder, f"state-{host}")))
    folder = os.path.join(os.path.realpath(LAST_BASE), own)
    if os.path.isdir(LAST_BASE):
        found.setdefault(folder, Place(folder, os.path.join(folder, "state")))
    return tuple(found.values())


def choose_place(among: Sequence[Place]) -> Choice:
    """Return the place that replicas use, or that the first replica will use.

    The first place with a live replica wins, so that new replicas use the same place as running
    replicas, even if an earlier place has become usable. Without a live replica, the first usable
    place wins. If no place is usable, the result is the first place, marked as unusable.
    """
    passed: list[str] = []
    usable = None
    for place in among:
        if _has_living(place.state):
            return Choice(place, tuple(passed), usable=True)
        wrong = _troubles(place.folder) if os.path.lexists(place.folder) else _barred(place.folder)
        if not wrong and usable is None:
            usable = Choice(place, tuple(passed), usable=True)
        passed += wrong
    return usable or Choice(among[0], tuple(passed), usable=False)


def claim_place(among: Sequence[Place]) -> Choice:
    """Choose a place and create its folder, so that nobody else can take the place.

    If the folder cannot be created (the disk is full, or another user was faster), this function
    tries a later place.
    """
    left = tuple(among)
    passed: tuple[str, ...] = ()
    while left and (choice := choose_place(left)).usable:
        wrong: list[str] = []
        try:
            _make_private(choice.place.folder)
        except OSError as error:
            wrong = [f"{choice.place.folder}: {error.strerror}"]
        wrong = wrong or _troubles(choice.place.folder)
        passed = (*passed, *choice.passed, *wrong)
        if not wrong:
            return Choice(choice.place, passed, usable=True)
        left = left[left.index(choice.place) + 1 :]
    return choose_place(among)


def _has_living(directory: str) -> bool:
    """Return whether a live replica of this user has its state in this place."""
    if _troubles(directory):
        return False
    try:
        folder = _opened(directory)
    except OSError:
        return False
    try:
        stems = [name[: -len(".lock")] for name in os.listdir(folder) if name.endswith(".lock")]
        return any(_lock(stem, folder).held for stem in stems)
    finally:
        os.close(folder)


def _own_name() -> str:
    return f"serve_warm-{os.geteuid()}"


def _is_writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def _troubles(folder: str) -> list[str]:
    """Return the reasons why a folder is not private or not writable, or an empty list."""
    try:
        found = [f"{what} ({fix})" for what, fix in _faults(folder, os.lstat(folder))]
    except OSError as error:
        return [f"{folder}: {error.strerror}"]
    return found if found or _is_writable(folder) else [f"{folder} cannot be written"]


def _barred(folder: str) -> list[str]:
    """Return the reasons why this user cannot create a safe private folder, or an empty list."""
    above = _existing(folder)
    try:
        found = [f"{what} ({fix})" for what, fix in _faults(above, None)]
    except OSError as error:
        return [f"{above}: {error.strerror}"]
    return found if found or _is_writable(above) else [f"{above} cannot be written"]


def default_directory() -> str:
    """Return the default folder for state files of this user's replicas. Does not create it."""
    return os.environ.get("SERVE_WARM_STATE_DIR") or choose_place(places()).place.state


# --- readiness -----------------------------------------------------------------


class Policy(NamedTuple):
    """The condition under which this node counts as warm."""

    expect: str = "all"
    """`all`: at least one replica exists, and all replicas are warm. `min`: at least `at_least`
    replicas are warm. `allow-idle`: all replicas are warm, or no replica exists."""
    at_least: int = 1
    deployments: tuple[str, ...] = ()
    """Names in the form `Deployment` or `application#Deployment`. Only these deployments count, and
    each must pass."""
    latch: str = "on"
    """With `on`, a replica added to a warm node does not affect the node's readiness until the
    replica itself is ready."""

    @classmethod
    def of(cls, expect: str, *, deployments: Iterable[str] = (), latch: str = "on") -> Policy:
        """Parse `all`, `min=N` or `allow-idle`.

        Raises:
            ValueError: `expect` has another form.

        >>> Policy.of("min=2").at_least
        2
        """
        word, equals, number = expect.partition("=")
        if expect in ("all", "allow-idle"):
            return cls(expect, deployments=tuple(deployments), latch=latch)
        if word == "min" and equals and number.isascii() and number.isdigit() and int(number):
            return cls("min", int(number), tuple(deployments), latch)
        raise ValueError(
            f"{expect!r} is not valid: use 'all', 'allow-idle' or 'min=N', where N is at least 1"
        )


class Readiness(NamedTuple):
    """The result of all checks: whether this node is ready, and if not, why."""

    reasons: tuple[tuple[str, str], ...]
    """Name and reason of each check that failed."""
    checks: tuple[str, ...]
    """All checks, `warm` first."""
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

    The latch excuses replicas that were added to a warm node. A node has been warm if at some
    moment every replica on it was ready; dead replicas do not count. The latch stores nothing, so
    it also works after a restart of the server, and in probes, each of which is a new process.
    """
    alive = [r for r in replicas if r.condition != "dead"]
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
    """Return whether each group had a replica at this time, and all of these replicas were ready.

    With `allow-idle`, a group is allowed to be empty.
    """
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
    """The directory with state files. If empty, this is the directory that this user's first
    replica chose."""
    policy: Policy = Policy()
    stale_s: float = STALE_S
    urls: tuple[tuple[str, str], ...] = (("raylet", RAYLET), ("proxy", PROXY))
    """Names of checks and their health URLs."""
    places: tuple[Place, ...] = ()
    """Candidates for the state directory if `state_dir` is empty."""

    @classmethod
    def of(
        cls,
        state_dir: str,
        *,
        policy: Policy,
        stale_s: float = STALE_S,
        urls: tuple[tuple[str, str], ...] = (),
    ) -> Settings:
        """Return settings for a directory, or for the default directory if `state_dir` is empty."""
        state_dir = state_dir or os.environ.get("SERVE_WARM_STATE_DIR", "")
        return cls(state_dir, policy, stale_s, urls, () if state_dir else places())

    def choice(self) -> tuple[str, tuple[str, ...]]:
        """Return the current state directory, and why earlier candidates were rejected."""
        if self.state_dir:
            return self.state_dir, ()
        choice = choose_place(self.places)
        return choice.place.state, choice.passed


def judge(
    settings: Settings,
    *,
    health: Mapping[str, str] | None = None,
    parsed: dict[str, Parsed] | None = None,
    clock: Callable[[], float] = boot_s,
) -> Readiness:
    """Return whether this node is ready now.

    `health` contains the latest result of each check: a problem, or an empty text. None: request
    all URLs now. `parsed` and `clock` have the same meaning as in `look`.
    """
    replicas: list[Replica] = []
    excused: tuple[Replica, ...] = ()
    unread = ""
    try:
        directory, passed = settings.choice()
        replicas = look(directory, stale_s=settings.stale_s, parsed=parsed, clock=clock)
        why, excused = warmth(replicas, settings.policy)
        if why and not replicas:
            said = "; ".join((f"{directory} has no state file", *passed))
            why = [f"{each} ({said})" for each in why]
    except OSError as error:
        unread = error.strerror or str(error)
        why = [unread]
    reasons = [("warm", each) for each in why]
    health = asked(settings) if health is None else health
    wrong = [(name, health.get(name, f"{url} was not checked")) for name, url in settings.urls]
    reasons += [(name, why) for name, why in wrong if why]
    names = ("warm", *(name for name, _ in settings.urls))
    return Readiness(tuple(reasons), names, tuple(replicas), excused, unread)


def asked(settings: Settings, *, limit_s: float = CHECK_LIMIT_S) -> dict[str, str]:
    """Request all health URLs in parallel. Return their problems; "" for a healthy URL."""
    import _thread

    found = {name: _late(url, limit_s) for name, url in settings.urls}

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
    # DNS has no timeout, so `get` can be late. Then its thread continues, and its answer is
    # ignored.
    end_s = time.monotonic() + limit_s + GRACE_S
    for ended in asking:
        ended.acquire(timeout=max(0.0, end_s - time.monotonic()))
    return dict(found)


def get(url: str, *, limit_s: float = CHECK_LIMIT_S) -> str:
    """Return what is wrong with a health URL, or "" if it answers 200 in time.

    This function uses a socket, because importing `urllib.request` would be too slow for a probe.
    """
    host, port, path = split_url(url)
    end = time.monotonic() + limit_s
    head = b""
    try:
        connection = _connected(host, port, end)
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
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
        return _late(url, limit_s)
    except (OSError, UnicodeError) as error:
        return f"{url}: {getattr(error, 'strerror', None) or error}"
    fields = head.split(b"\n", 1)[0].split()
    if len(fields) >= 2 and fields[0].startswith(b"HTTP/") and fields[1] == b"200":
        return ""
    answer = fields[1] if len(fields) >= 2 else b"without an HTTP status"
    return f"{url} answered {answer.decode(errors='replace')}, not 200"


def _late(url: str, limit_s: float) -> str:
    return f"{url} did not answer within {limit_s} s"


def _connected(host: str, port: int, end_s: float) -> Any:
    """Connect to the first of a host's addresses that accepts a connection."""
    import _socket  # `socket` without its enums, which are slow to make

    # As bytes: for a string, `getaddrinfo` would import the IDNA codec.
    name = host.encode("ascii" if host.isascii() else "idna")
    trouble = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for family, kind, protocol, _, address in _socket.getaddrinfo(
        name, port, 0, _socket.SOCK_STREAM
    ):
        connection = _socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.001, end_s - time.monotonic()))
            connection.connect(address)
        except OSError as error:
            connection.close()
            trouble = error
        else:
            return connection
    raise trouble


def split_url(url: str) -> tuple[str, int, str]:
    """Split an http URL into host, port and path.

    Raises:
        ValueError: the URL has no host or no port, or its scheme is not http.

    >>> split_url("http://127.0.0.1:8000/-/healthz")
    ('127.0.0.1', 8000, '/-/healthz')
    """
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    name, _, port = host.rpartition(":")
    digits = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if scheme != "http" or not name or not digits or not url.isprintable() or " " in url:
        raise ValueError(
            f"{url!r} is neither a URL such as http://127.0.0.1:8000/-/healthz nor 'none'"
        )
    return name.strip("[]"), int(port), slash + path or "/"


# --- metrics ---------------------------------------------------------------------------

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The formats of `/metrics`."""

OUTCOMES = ("off", "full_hit", "partial", "miss", "refused", "late", "failed", "died")
"""Outcomes of a start: the verdict of a replica that became ready, `failed`, or `died`. `died`
means that the process ended before READY or FAILED: it was killed, it crashed, or Serve stopped
it."""

WHO = ("application", "deployment", "replica")

NODE_METRICS = {
    "serve_warm_node_ready": ("gauge", (), "1 while /readyz answers 200."),
    "serve_warm_node_check": (
        "gauge",
        ("check",),
        "1 if this /readyz check (warm, raylet, proxy or draining) passes.",
    ),
    "serve_warm_node_replicas": (
        "gauge",
        ("condition",),
        "Replicas on this node, by condition. Includes the last 100 dead replicas.",
    ),
    "serve_warm_node_states_readable": (
        "gauge",
        (),
        "1 while the state directory is readable. 0 means that the replicas' metrics are stale.",
    ),
    "serve_warm_node_excused": (
        "gauge",
        (),
        "Unready replicas that /readyz ignores, because they were added to a warm node.",
    ),
    "serve_warm_replica_alive": (
        "gauge",
        WHO,
        "1 while the replica's process is alive, 0 after the process has ended.",
    ),
    "serve_warm_heartbeat_age_seconds": (
        "gauge",
        WHO,
        "Seconds since a live replica last wrote its state.",
    ),
    "serve_warm_stage_age_seconds": (
        "gauge",
        WHO,
        "Seconds since a live replica entered its current stage.",
    ),
    "serve_warm_starts": (
        "counter",
        ("application", "deployment", "outcome"),
        (
            "Number of replicas whose start ended while this server was running, by outcome: the "
            "verdict, 'failed' or 'died'."
        ),
    ),
    "serve_warm_start_duration_seconds": (
        "histogram",
        ("application", "deployment", "outcome"),
        (
            "Seconds from a replica's creation to READY, FAILED or, if it died, the last state "
            "that it wrote. The histogram covers starts that ended while this server was running."
        ),
    ),
    "serve_warm_stage_duration_seconds": (
        "histogram",
        ("application", "deployment", "stage", "outcome"),
        (
            "Seconds that a start spent in each stage, for starts that ended while this server was "
            "running. The metric has no series before the end of the first start."
        ),
    ),
}
"""Kind, labels and help of the server's own metrics. Replicas write all other metrics under
`metrics` (`serve_warm.metrics.as_data`)."""

OWN = tuple(f"{name}_" for name in NODE_METRICS)
"""Each series of the server's own metrics has a name that begins with one of these prefixes."""

BUCKETS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
"""Upper bounds of the histograms in seconds, from a level-3 start to a cold compile of a large
model."""


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    """The name without the suffix `_total`, which a counter's samples have."""
    kind: str
    text: str
    samples: tuple[tuple[str, dict[str, str], float], ...]
    """Name, labels and value."""


class _Histogram:
    """Counts by bucket, and the exact sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        import bisect

        self._counts[bisect.bisect_left(BUCKETS, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the suffix, label and value of each series."""
        count = 0
        for bound, more in zip((*map(repr, BUCKETS), "+Inf"), self._counts, strict=True):
            count += more
            yield "_bucket", {"le": bound}, float(count)
        yield "_sum", {}, self._sum
        yield "_count", {}, float(count)


class Ledger:
    """A server's record of the replicas on its node. `clock` has the same meaning as in `look`."""

    def __init__(
        self, deployments: Iterable[str] = (), *, clock: Callable[[], float] = boot_s
    ) -> None:
        self._clock = clock
        self._seen: dict[str, Replica] = {}
        self._counted: set[str] = set()
        self._starts: dict[tuple[str, str, str], int] = {}
        self._took: dict[tuple[str, str, str], _Histogram] = {}
        self._stages: dict[tuple[str, str, str, str], _Histogram] = {}
        self._first = True
        for name in deployments:
            application, _, deployment = name.rpartition("#")
            if application:
                self._expose(application, deployment)

    def note(self, readiness: Readiness) -> None:
        """Record the replicas found by one scan of the state directory."""
        if readiness.unread:
            return  # a replica that could not be read is not gone
        found = {r.stem: r for r in readiness.replicas}
        for stem, old in self._seen.items():
            new = found.get(stem)
            if new is None:
                found[stem] = old._replace(condition="dead", why="its files are gone")
            elif new.state is None:
                found[stem] = new._replace(state=old.state, names=old.names)
        dead = [stem for stem, r in found.items() if r.condition == "dead"]
        dead.sort(key=lambda stem: found[stem].heartbeat_s)
        for stem in dead[: max(0, len(dead) - REMEMBERED)]:
            del found[stem]
        self._seen = found
        for stem, replica in found.items():
            if any(replica.names):
                self._count(stem, replica)
        self._counted &= found.keys()
        self._first = False

    def _expose(self, application: str, deployment: str) -> None:
        for outcome in OUTCOMES:
            self._starts.setdefault((application, deployment, outcome), 0)
            self._took.setdefault((application, deployment, outcome), _Histogram())

    def _count(self, stem: str, replica: Replica) -> None:
        application, deployment, _ = replica.names
        self._expose(application, deployment)
        state = replica.state or {}
        stage = state.get("stage")
        ended = stage in ("READY", "FAILED")
        if stem in self._counted or not (ended or replica.condition == "dead"):
            return
        if not (ended or self._first) and self._clock() - replica.heartbeat_s <= STALE_S:
            # Wait until the heartbeat is stale: if only the lock was removed, the replica makes a
            # new one by then. If the node itself ends, this server ends too.
            return
        self._counted.add(stem)
        if self._first:
            return  # ended before this server began
        outcome = str(state.get("verdict")) if stage == "READY" else "failed" if ended else "died"
        if outcome not in OUTCOMES:
            return
        self._starts[application, deployment, outcome] += 1
        # Replicas of earlier releases write neither `elapsed_s` nor `stage_seconds`.
        elapsed_s = _seconds(state.get("elapsed_s"))
        if elapsed_s is not None:
            self._took[application, deployment, outcome].observe(elapsed_s)
        stages = state.get("stage_seconds")
        for stage, took in stages.items() if isinstance(stages, dict) else ():
            seconds = _seconds(took)
            if seconds is not None and stage in STAGES:
                key = (application, deployment, stage, outcome)
                self._stages.setdefault(key, _Histogram()).observe(seconds)

    def families(self, readiness: Readiness) -> Iterator[Family]:
        """Yield all metrics: first the server's own, then the metrics that replicas wrote."""
        found = _Found()
        failed = dict(readiness.reasons)
        found.add("serve_warm_node_ready", {}, float(readiness.ready))
        found.add("serve_warm_node_states_readable", {}, float(not readiness.unread))
        for check in readiness.checks:
            found.add("serve_warm_node_check", {"check": check}, float(check not in failed))
        conditions = [r.condition for r in self._seen.values()]
        for condition in CONDITIONS:
            count = float(conditions.count(condition))
            found.add("serve_warm_node_replicas", {"condition": condition}, count)
        found.add("serve_warm_node_excused", {}, float(len(readiness.excused)))
        for start, number in sorted(self._starts.items()):
            found.add_own("serve_warm_starts", start, float(number))
        for start, took in sorted(self._took.items(), key=lambda item: item[0]):
            found.add_histogram("serve_warm_start_duration_seconds", start, took)
        for stage, took in sorted(self._stages.items(), key=lambda item: item[0]):
            found.add_histogram("serve_warm_stage_duration_seconds", stage, took)
        now = self._clock()
        for replica in self._seen.values():
            if any(replica.names):
                self._add_replica(found, replica, now)
        return found.families()

    def _add_replica(self, found: _Found, replica: Replica, now: float) -> None:
        alive = replica.condition != "dead"
        found.add_own("serve_warm_replica_alive", replica.names, float(alive))
        if alive:
            # The heartbeat in the state file, because on a full disk only the heartbeat in the lock
            # file continues.
            written_s = _number(replica.state, "heartbeat_boot_s") or replica.heartbeat_s
            age_s = max(0.0, now - written_s)
            found.add_own("serve_warm_heartbeat_age_seconds", replica.names, age_s)
            since_s = _number(replica.state, "stage_boot_s")
            if since_s is not None:
                age_s = max(0.0, now - since_s)
                found.add_own("serve_warm_stage_age_seconds", replica.names, age_s)
        who = _labels(WHO, replica.names)
        for name, kind, text, labels, value in _own_rows(replica, now, alive=alive):
            found.add_written(name, kind, text, {**who, **labels}, value)

    def exposition(self, readiness: Readiness, *, kind: str = TEXT) -> str:
        """Return all metrics in the given format, `TEXT` or `OPENMETRICS`."""
        if kind == TEXT:
            return "".join(map(_written, self.families(readiness)))
        return "".join([*map(_written_openmetrics, self.families(readiness)), "# EOF\n"])


STAGES = (
    *("pending", "pulling", "verifying", "loading", "replaying", "proving", "parity", "ready"),
    "failed",
)
"""The values of `serve_warm.report.Stage` in lower case, as in labels."""


class _Found:
    """Samples grouped by metric, so that each family is written once, without duplicate series."""

    def __init__(self) -> None:
        self._about = {name: (kind, text) for name, (kind, _, text) in NODE_METRICS.items()}
        self._samples: dict[str, dict[Any, tuple[str, dict[str, str], float]]] = {
            name: {} for name in NODE_METRICS
        }

    def add(self, name: str, labels: dict[str, str], value: float, *, suffix: str = "") -> None:
        kind = self._about[name][0]
        full = name + (suffix or ("_total" if kind == "counter" else ""))
        key = (suffix, *labels.items())
        self._samples.setdefault(name, {})[key] = (full, labels, value)

    def add_own(self, name: str, values: Iterable[str], value: float) -> None:
        self.add(name, _labels(NODE_METRICS[name][1], values), value)

    def add_histogram(self, name: str, values: Iterable[str], took: _Histogram) -> None:
        labels = _labels(NODE_METRICS[name][1], values)
        for suffix, more, value in took.samples():
            self.add(name, {**labels, **more}, value, suffix=suffix)

    def add_written(
        self, name: str, kind: str, text: str, labels: dict[str, str], value: float
    ) -> None:
        """Add a sample that a replica wrote, unless a metric of the server has the same name."""
        if name not in self._about and not name.startswith(OWN):
            self._about[name] = (kind, _utf8(text))
        if name not in NODE_METRICS and self._about.get(name, ("", ""))[0] == kind:
            self.add(name, labels, value)

    def families(self) -> Iterator[Family]:
        for name, samples in self._samples.items():
            yield Family(name, *self._about[name], tuple(samples.values()))


def _own_rows(
    replica: Replica, now: float, *, alive: bool
) -> Iterator[tuple[str, str, str, dict[str, str], float]]:
    """Yield the name, kind, help, labels and value of each sample that a replica wrote."""
    import re

    table = (replica.state or {}).get("metrics")
    for row in table if isinstance(table, list) else ():
        if not isinstance(row, dict):
            continue
        name, kind = row.get("name"), row.get("kind")
        if not isinstance(name, str) or not re.fullmatch(r"serve_warm_[a-z_]{1,100}", name):
            continue
        if name.endswith(("_total", "_created")):  # suffixes of the counter's own samples
            continue
        if kind not in ("gauge", "counter"):
            continue
        # Some metrics are zero or absent once the replica is dead.
        ended = not alive and row.get("while_alive") is True
        if ended and row.get("absent_after") is True:
            continue
        claims = row.get("says_ready") if replica.condition != "warm" else None
        since_s = _number(row, "since_boot_s") if alive else None
        for labels, written in _own_samples(row):
            if kind == "counter" and not 0 <= written < float("inf"):
                continue  # not a counter in OpenMetrics, and the whole page would be invalid
            if kind == "gauge" and not alive and labels and not written:
                continue  # zeros of ended starts would only add series
            value = written if since_s is None else max(0.0, now - since_s)
            # The replica says ready, but the probe disagrees, for example if the replica hangs.
            claimed = isinstance(claims, list) and list(labels.values()) in claims
            yield name, kind, str(row.get("help", "")), labels, 0.0 if ended or claimed else value


def _own_samples(row: dict[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
    """For one row, yield each sample's labels and value; yield nothing if the row is malformed."""
    import re

    labels: Any = row.get("labels")
    samples: Any = row.get("samples")
    label, values = row.get("label"), row.get("values")
    if isinstance(values, dict):  # one label, or none
        labels = [] if label is None else [label]
        samples = [[[key] if labels else [], value] for key, value in values.items()]
    if not isinstance(labels, list) or not isinstance(samples, list):
        return
    for each in labels:
        if not isinstance(each, str) or not re.fullmatch("[a-z][a-z_]{0,99}", each):
            return
    if len({*labels, *WHO, "le"}) != len(labels) + len(WHO) + 1:
        return
    for sample in samples:
        if not isinstance(sample, list) or len(sample) != 2:
            continue
        key, value = sample
        if isinstance(key, list) and len(key) == len(labels) and isinstance(value, (int, float)):
            try:
                number = float(value)
            except OverflowError:
                continue  # as in _number
            yield _labels(labels, map(str, key)), number


def _seconds(value: Any) -> float | None:
    """Return `value` if it is a number that is at least 0 and below 1e9; otherwise None.

    A NaN would make every sum NaN.
    """
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if ok else None


def _written(family: Family) -> str:
    full = family.name + ("_total" if family.kind == "counter" else "")
    text = family.text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {full} {text}\n# TYPE {full} {family.kind}\n{_written_samples(family)}"


def _written_openmetrics(family: Family) -> str:
    """Return a family in OpenMetrics 1.0 format, without the optional `_created` samples.

    Prometheus would store `_created` as an additional series for each counter and histogram.
    """
    name = family.name
    lines = [f"# HELP {name} {_escaped(family.text)}\n# TYPE {name} {family.kind}\n"]
    lines += [f"# UNIT {name} {unit}\n" for unit in UNITS if name.endswith(f"_{unit}")]
    return "".join([*lines, _written_samples(family)])


UNITS = ("seconds", "bytes")
"""Suffixes of metric names, which state the metric's unit."""


def _written_samples(family: Family) -> str:
    lines = []
    for name, labels, value in family.samples:
        inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n")
    return "".join(lines)


def _labels(names: Iterable[str], values: Iterable[str]) -> dict[str, str]:
    return dict(zip(names, map(_utf8, values), strict=True))


def _utf8(value: str) -> str:
    # Half of a surrogate pair cannot be encoded in UTF-8, and scrapers read only UTF-8.
    return value if value.isascii() else value.encode(errors="replace").decode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- the server ----------------------------------------------------------------------------


class Server:
    """Answers `/livez`, `/readyz` and `/metrics` until `drain` is called.

    Some connections are reserved for `trusted` addresses. `max_connections` limits the number of
    open connections, and `request_s` limits the duration of each request. `clock` has the same
    meaning as in `look`.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host: str = "",
        port: int = PORT,
        drain_s: float = DRAIN_S,
        trusted: Iterable[str] = LOOPBACK,
        max_connections: int = MAX_CONNECTIONS,
        request_s: float = REQUEST_S,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        import queue
        import threading

        self._settings = settings
        self._drain_s = drain_s
        self._clock = clock
        self.draining = False
        """Whether the server is draining."""
        # Not an Event: a signal handler that interrupts `set` or `wait` would deadlock on the
        # Event's lock.
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ledger = Ledger(settings.policy.deployments, clock=clock)
        self._ledger_lock = threading.Lock()
        self._pages: dict[str, tuple[float, str]] = {}
        """The last page in each format, and the time at which the server began to build it."""
        self._health_lock = threading.Lock()
        self._health: tuple[float, dict[str, str]] = (-CHECK_VALID_S, {})
        self._parsed: dict[str, Parsed] = {}
        self._said = ""
        # Starts that ended before this server began do not count.
        self._noted({})
        clients = _Clients(trusted, max_connections=max_connections, request_s=request_s)
        self._http = _http_server(self, host, port, clients)
        self.port: int = self._http.server_address[1]

    def run(self) -> None:
        """Serve until `drain` is called, and for `drain_s` after that."""
        import threading

        self._watch()
        for repeated, period_s in ((self._watch, 1.0), (self._ask, CHECK_PERIOD_S)):
            args = (repeated, period_s)
            threading.Thread(target=self._repeat, args=args, daemon=True).start()
        serving = threading.Thread(target=self._http.serve_forever, daemon=True)
        serving.start()
        self._wait(float("inf"))
        # Endpoints take a moment to drop this node. Until then, the server answers "not ready"; a
        # second signal skips the wait.
        self._wait(self._drain_s)
        self._http.shutdown()
        self._http.server_close()

    def _wait(self, limit_s: float) -> None:
        """Wait until `drain` is called or the time limit has passed."""
        import queue

        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                return self._told.get(timeout=min(left_s, CHECK_PERIOD_S))
            except queue.Empty:
                pass  # a signal directly before the wait did not end the wait, so look again
        return None

    def drain(self) -> None:
        """Answer "not ready" from now on, and end the server after `drain_s`.

        A second call ends the server at once.

        A signal handler can call this method, even if it interrupts another signal handler.
        """
        self.draining = True
        self._told.put(None)

    def readiness(self) -> Readiness:
        """Return whether this node is ready now."""
        return self._judged(self._health_now())

    def _judged(self, health: Mapping[str, str]) -> Readiness:
        readiness = judge(self._settings, health=health, parsed=self._parsed, clock=self._clock)
        if self.draining:
            reasons = (("draining", "this server is shutting down"), *readiness.reasons)
            return readiness._replace(reasons=reasons, checks=(*readiness.checks, "draining"))
        return readiness

    def metrics(self, *, kind: str = TEXT) -> str:
        """Return all current metrics in the given format, `TEXT` or `OPENMETRICS`.

        Requests that arrive while a page is being built all get the page that is built next.
        """
        asked_s = time.monotonic()
        health = self._health_now()
        with self._ledger_lock:
            began_s, page = self._pages.get(kind, (-1.0, ""))
            if began_s < asked_s:
                began_s = time.monotonic()
                page = self._ledger.exposition(self._noted(health), kind=kind)
                self._pages[kind] = began_s, page
            return page

    def _noted(self, health: Mapping[str, str]) -> Readiness:
        # Called with the ledger's lock held, so that scans are recorded in order.
        readiness = self._judged(health)
        self._ledger.note(readiness)
        return readiness

    def _health_now(self) -> dict[str, str]:
        """Return results of health checks, at most a second old; check again if necessary."""
        if time.monotonic() - self._health[0] > CHECK_VALID_S:
            with self._health_lock:  # one thread asks, the others wait for its answer
                if time.monotonic() - self._health[0] > CHECK_VALID_S:
                    self._ask()
        return self._health[1]

    def _ask(self) -> None:
        asked_s = time.monotonic()
        self._health = (asked_s, asked(self._settings))

    def _watch(self) -> None:
        """Read the replicas' states, so that the next scrape includes replicas that have ended."""
        health = self._health_now()
        with self._ledger_lock:
            readiness = self._noted(health)
        text = "; ".join(f"{check}: {why}" for check, why in readiness.reasons)
        said = (
            f"not ready: {'; '.join(check for check, _ in readiness.reasons)}" if text else "ready"
        )
        if said != self._said:
            self._said = said
            _log(f"not ready: {text}" if text else "ready")

    def _repeat(self, what: Callable[[], object], period_s: float) -> None:
        began_s = time.monotonic()
        while True:
            time.sleep(max(0.0, began_s + period_s - time.monotonic()))
            began_s = time.monotonic()
            try:
                what()
            except (OSError, RuntimeError):
                pass  # out of threads or descriptors: the next turn might have them


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} serve_warm node: {shown(text)}\n")
    sys.stderr.flush()


PLAIN = "text/plain; charset=utf-8"


def _answer(node: Server, target: str, accept: str = "") -> tuple[int, str, str]:
    """Return the status, content type and body for a path and an Accept header."""
    path, _, query = target.partition("?")
    if path == "/livez":
        return 200, PLAIN, "ok\n"
    if path == "/metrics":
        kind = _format(accept)
        return 200, kind, node.metrics(kind=kind)
    if path != "/readyz":
        return 404, PLAIN, "not found: try /livez, /readyz, /readyz?verbose or /metrics\n"
    readiness = node.readiness()
    if "verbose" in query.replace("=", "&").split("&"):
        lines = [*readiness.lines(), "ready" if readiness.ready else "not ready"]
    else:
        lines = [shown(f"{check}: {why}") for check, why in readiness.reasons] or ["ok"]
    return (200 if readiness.ready else 503), PLAIN, "".join(f"{line}\n" for line in lines)


def _format(accept: str) -> str:
    """Return the metrics format for an Accept header in lower case.

    The format is OPENMETRICS if the client accepts OPENMETRICS and does not prefer TEXT.
    """
    wanted: dict[str, float] = {}
    for each in accept.split(","):
        name, *parameters = (word.strip() for word in each.split(";"))
        given = {}
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            given[key.strip()] = value.strip().strip('"')
        if name == OPENMETRICS.partition(";")[0] and given.get("version", "1.0.0") != "1.0.0":
            continue
        wanted[name] = max(wanted.get(name, 0.0), _weight(given.get("q", "1")))
    # The most specific media range counts: a type before its wildcard.
    text = next((wanted[n] for n in ("text/plain", "text/*", "*/*") if n in wanted), 0.0)
    asked = wanted.get(OPENMETRICS.partition(";")[0], 0.0)
    return OPENMETRICS if asked > 0 and asked >= text else TEXT


def _weight(text: str) -> float:
    """Parse a q-value; return 0 if the text is malformed."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


class _Client:
    """An open connection."""

    __slots__ = ("answered", "end_s", "peer", "since_s")

    def __init__(self, peer: str, since_s: float, end_s: float) -> None:
        self.peer = peer
        self.answered = False
        """Whether the last request has been answered and no new request has begun."""
        self.since_s = since_s
        self.end_s = end_s


class _Clients:
    """The open connections of a server, with limits on their number and time.

    If there are too many connections, a new connection replaces an old connection, so that many
    clients cannot block a probe. The server drops the oldest slow client, or, if no client is slow,
    the client that has been idle longest. Each address has a limit: if the new client's address has
    too many connections, the server drops one of them. Some connections are reserved for
    `trusted` addresses, and trusted clients are dropped last.

    `request_s` is the time limit for a request, in seconds. `clock` measures this time.
    """

    def __init__(
        self,
        trusted: Iterable[str] = LOOPBACK,
        *,
        max_connections: int = MAX_CONNECTIONS,
        request_s: float = REQUEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import threading

        self._trusted = frozenset(trusted)
        self._max_connections = max_connections
        self._request_s = request_s
        self._clock = clock
        self._open: dict[socket.socket, _Client] = {}
        self._with_thread: set[socket.socket] = set()
        """Connections that have a thread: all open connections, and those dropped connections whose
        answer is not finished.
        """
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, peer: str) -> bool:
        """Accept a connection. If too many connections are open, drop one of them first.

        Returns False if too many threads are running.
        """
        peer = peer.removeprefix("::ffff:").partition("%")[0]
        free = self._max_connections - KEPT_CONNECTIONS
        with self._lock:
            if peer not in self._trusted and len(self._with_thread) >= MAX_THREADS:
                return False
            same = [c for c, client in self._open.items() if client.peer == peer]
            others = [c for c, client in self._open.items() if client.peer not in self._trusted]
            if len(same) >= PEER_CONNECTIONS:
                self._drop_one(same)
            elif peer not in self._trusted and len(others) >= free:
                self._drop_one(others)
            elif len(self._open) >= self._max_connections:
                self._drop_one(others or list(self._open))
            now = self._clock()
            self._open[connection] = _Client(peer, now, now + self._request_s)
            self._with_thread.add(connection)
            return True

    def has(self, connection: socket.socket) -> bool:
        """Return whether a connection is still open."""
        with self._lock:
            return connection in self._open

    def _drop_one(self, among: Sequence[socket.socket]) -> None:
        slow_s = self._clock() - SLOW_S

        def order(connection: socket.socket) -> tuple[bool, float]:
            client = self._open[connection]
            return client.answered or client.since_s > slow_s, client.since_s

        dropped = min(among, key=order)
        del self._open[dropped]
        _shut(dropped)

    def renew(self, connection: socket.socket) -> None:
        """Restart the time limit of a connection whose request has been answered."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None:
                client.since_s = self._clock()
                client.end_s = client.since_s + self._request_s
                client.answered = True

    def hear(self, connection: socket.socket) -> None:
        """Record that the next request on a connection has begun."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None and client.answered:
                client.answered = False
                client.since_s = self._clock()

    def forget(self, connection: socket.socket) -> None:
        """Stop counting a connection and its thread. Call this before closing the connection."""
        with self._lock:
            self._open.pop(connection, None)
            self._with_thread.discard(connection)

    def hang_up(self) -> None:
        """Shut down connections that exceed their time limit. Their threads then close them."""
        now = self._clock()
        with self._lock:
            for connection, client in self._open.items():
                if client.end_s < now:
                    _shut(connection)


def _shut(connection: socket.socket) -> None:
    import socket

    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the client was faster


class _Request(NamedTuple):
    """The parts of a request that the server uses.

    `http.server` is not used, because it parses headers by the rules for email.
    """

    method: str
    target: str
    last: bool
    """Whether the connection closes after the answer. It closes if the Connection header or the
    HTTP version asks for that, or if the request has a body. The server does not read bodies, so a
    body would look like the next request."""
    accept: str = ""
    """The values of the request's Accept headers, in lower case, joined by commas."""


def _request(head: bytes) -> _Request | None:
    """Parse a request head; return None if it is not HTTP/1."""
    line, *lines = head.decode("latin-1").split("\n")
    words = line.split()
    if len(head) > MAX_HEAD_BYTES or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    fields: dict[str, str] = {}
    for each in lines:
        name, _, value = each.lower().partition(":")
        name = name.strip()
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    connection = fields.get("connection", "")
    last = "keep-alive" not in connection if words[2] == "HTTP/1.0" else "close" in connection
    has_body = "content-length" in fields or "transfer-encoding" in fields
    return _Request(words[0], words[1], last or has_body, fields.get("accept", ""))


REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    501: "Not Implemented",
    503: "Service Unavailable",
}


def _reply(node: Server, head: bytes) -> tuple[bytes, bool]:
    """Return the answer to a request, and True if the connection ends after the answer."""
    request = _request(head)
    known = request is not None and request.method in ("GET", "HEAD")
    last = request is None or request.last or not known or node.draining
    if request is None:
        status, kind, text = 400, PLAIN, "not an HTTP/1 request\n"
    elif not known:
        status, kind, text = 501, PLAIN, "only GET and HEAD are supported\n"
    else:
        status, kind, text = _answer(node, request.target, request.accept)
    body = text.encode(errors="replace")
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        "Server: serve_warm",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        f"Connection: {'close' if last else 'keep-alive'}",
        *("", ""),
    ]
    without_body = request is not None and request.method == "HEAD"
    return "\r\n".join(lines).encode() + (b"" if without_body else body), last


def _converse(node: Server, clients: _Clients, connection: socket.socket) -> None:
    """Answer requests until the client ends the connection, or `_reply` says to end it."""
    data, last = b"", False
    while not last:
        while b"\n\n" not in data and len(data) <= MAX_HEAD_BYTES:
            received = connection.recv(MAX_HEAD_BYTES)
            if not received:
                return
            clients.hear(connection)
            # A request typed by hand might lack carriage returns.
            data = (data + received).replace(b"\r\n", b"\n").lstrip(b"\n")
        head, _, data = data.partition(b"\n\n")
        data = data.lstrip(b"\n")
        if not clients.has(connection):
            return  # dropped: nobody reads the answer
        answer, last = _reply(node, head)
        # Sent in one piece, because a second piece would wait until the client acknowledges the
        # first.
        connection.sendall(answer)
        clients.renew(connection)


def _http_server(node: Server, host: str, port: int, clients: _Clients) -> TCPServer:
    import _thread
    import socket
    from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(IDLE_S)
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _converse(node, clients, self.request)

    class Http(ThreadingMixIn, TCPServer):
        allow_reuse_address = True
        request_queue_size = BACKLOG
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def process_request(self, request: Any, client_address: Any) -> None:
            if not clients.admit(request, client_address[0]):
                self.shutdown_request(request)
                return
            # `threading` would wait until the thread runs. The thread is never joined.
            _thread.start_new_thread(self.process_request_thread, (request, client_address))

        def shutdown_request(self, request: Any) -> None:
            # This method also ends connections that never got a thread.
            clients.forget(request)
            super().shutdown_request(request)

        def service_actions(self) -> None:
            clients.hang_up()  # about twice a second

        def handle_error(self, request: Any, client_address: Any) -> None:
            error = sys.exc_info()[1]
            if not isinstance(error, OSError):  # a client that hung up is normal
                super().handle_error(request, client_address)

    return Http((host, port), Handler)


# --- command line -----------------------------------------------------------------------------


def probe(settings: Settings, *, verbose: bool) -> tuple[int, list[str]]:
    """Return the exit code (0 if ready, 1 if not) and the lines to print."""
    readiness = judge(settings)
    return (0 if readiness.ready else 1), readiness.said(verbose=verbose)


def settings_of(
    *,
    state_dir: str,
    expect: str,
    deployments: Iterable[str],
    latch: str,
    stale_s: float,
    raylet: str,
    proxy: str,
) -> Settings:
    """Return the settings for the options of `probe` and `serve`.

    Raises:
        ValueError: an option cannot be used. The text names the option and the reason.
    """
    urls = tuple((n, u) for n, u in (("raylet", raylet), ("proxy", proxy)) if u != "none")
    for _, url in urls:
        split_url(url)
    if not 0 < stale_s < float("inf"):
        raise ValueError(f"{stale_s} is not a positive number of seconds")
    policy = Policy.of(expect, deployments=deployments, latch=latch)
    return Settings.of(state_dir, policy=policy, stale_s=stale_s, urls=urls)


OPTIONS: dict[str, tuple[str, str, str]] = {
    "--state-dir": (
        "DIR",
        "",
        (
            "The replicas' state directory. Default: SERVE_WARM_STATE_DIR if set, otherwise the "
            "directory that replicas use by default."
        ),
    ),
    "--expect": (
        "POLICY",
        "all",
        (
            "all: at least one replica exists, and all are warm. min=N: at least N replicas are "
            "warm. allow-idle: all replicas are warm, or no replica exists."
        ),
    ),
    "--raylet": ("URL", RAYLET, "Health URL of the local raylet; pass 'none' to skip the check."),
    "--proxy": (
        "URL",
        PROXY,
        "Health URL of the local Serve proxy; pass 'none' to skip the check.",
    ),
    "--stale-s": (
        "SECONDS",
        f"{STALE_S:g}",
        "A replica without a heartbeat for this many seconds counts as hung.",
    ),
}
"""Metavar, default and help of each option. `serve-warm probe` also has the option `--json`."""

DEPLOYMENT_HELP = (
    "Check only this deployment, named [APP#]NAME. Each given deployment must be warm. Repeatable."
)
HOST_IP_HELP = (
    "Address of the kubelet (status.hostIP). The server reserves some of its connections for this "
    "address and for this machine. Repeatable. Commas can separate several addresses."
)
LATCH_HELP = "Count a warm node as unready when a replica is added, until that replica is warm."


COMMANDS = {
    "probe": "Exit with 0 if this node is ready. Otherwise print why and exit with 1.",
    "serve": "Answer /livez, /readyz and /metrics.",
}


class _Given(NamedTuple):
    """A command line."""

    command: str
    options: dict[str, Any]
    """Option values by argparse name."""


def _plain(arguments: Sequence[str]) -> _Given | None:
    """Parse a simple `probe` command line; return None if the command line needs argparse."""
    if arguments[:1] != ["probe"]:
        return None
    options: dict[str, Any] = {_name(name): default for name, (_, default, _) in OPTIONS.items()}
    options |= {"deployment": [], "latch": "on", "verbose": False}
    words = iter(arguments[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--no-latch":
            options["latch"] = "off"
        elif word == "--verbose":
            options["verbose"] = True
        elif name in OPTIONS or name == "--deployment":
            value = value if equals else next(words, "-")
            if not equals and value.startswith("-"):
                return None
            if name in OPTIONS:
                options[_name(name)] = value
            else:
                options["deployment"].append(value)
        else:
            return None
    return _Given("probe", options)


def _name(option: str) -> str:
    return option[2:].replace("-", "_")


def _parser(command: str) -> Any:
    """Return the argument parser for a command."""
    import argparse

    def helped(prog: str) -> argparse.HelpFormatter:
        # A fixed width: argparse imports slow modules to find the width of the terminal.
        return argparse.HelpFormatter(prog, width=100)

    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="node.py", description=summary, formatter_class=helped)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        added = commands.add_parser(name, help=text, formatter_class=helped)
        if name == command:
            _add_options(added.add_argument, command)
    return parser


def _add_options(add: Callable[..., Any], command: str) -> None:
    for name, (meta, default, text) in OPTIONS.items():
        add(name, metavar=meta, default=default, help=text)
    add("--deployment", action="append", default=[], metavar="NAME", help=DEPLOYMENT_HELP)
    add(
        "--no-latch",
        dest="latch",
        action="store_const",
        const="off",
        default="on",
        help=LATCH_HELP,
    )
    if command == "probe":
        add("--verbose", action="store_true", help="Show each check and replica.")
    else:
        add("--port", type=int, default=PORT, help=f"Default: {PORT}.")
        add("--host", default="", help="Default: all IPv4 addresses of this machine.")
        add(
            "--drain-s",
            type=float,
            default=DRAIN_S,
            help="Seconds between SIGTERM and the end of the server.",
        )
        add("--host-ip", action="append", default=[], metavar="ADDRESS", help=HOST_IP_HELP)


def _parsed(arguments: Sequence[str]) -> _Given:
    options = vars(_parser(arguments[0] if arguments else "").parse_args(arguments))
    return _Given(options.pop("command"), options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `probe` or `serve`, and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, given = _plain(arguments) or _parsed(arguments)
    try:
        chosen = settings_of(
            state_dir=given["state_dir"],
            expect=given["expect"],
            deployments=given["deployment"],
            latch=given["latch"],
            stale_s=float(given["stale_s"]),
            raylet=given["raylet"],
            proxy=given["proxy"],
        )
        trusted = LOOPBACK.union(*map(addresses, given.get("host_ip", ())))
    except ValueError as error:
        _parser(command).error(str(error))
    if command == "probe":
        code, lines = probe(chosen, verbose=given["verbose"])
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return code
    server = {name: given[name] for name in ("host", "port", "drain_s")}
    return serve(chosen, **server, trusted=trusted)


def addresses(text: str) -> tuple[str, ...]:
    """Split comma-separated IP addresses, and normalize each address.

    Raises:
        ValueError: one of the texts is not an IP address.

    >>> addresses("192.0.2.7,2001:DB8:0::1")
    ('192.0.2.7', '2001:db8::1')
    """
    import _socket

    found = []
    for each in filter(None, text.split(",")):
        family = _socket.AF_INET6 if ":" in each else _socket.AF_INET
        try:
            found.append(_socket.inet_ntop(family, _socket.inet_pton(family, each)))
        except (OSError, UnicodeError):
            raise ValueError(
                f"{each!r} is not an IP address; use, for example, the value of status.hostIP"
            ) from None
    return tuple(found)


def serve(
    settings: Settings, *, host: str, port: int, drain_s: float, trusted: Iterable[str] = LOOPBACK
) -> int:
    """Run a server until SIGTERM or SIGINT, and return the exit code."""
    import signal

    try:
        server = Server(settings, host=host, port=port, drain_s=drain_s, trusted=trusted)
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"error: port {port} of {host or 'this machine'}: {error}\n")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    _log(f"the server answers on port {server.port} and reads {settings.choice()[0]}")
    server.run()
    _log("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
