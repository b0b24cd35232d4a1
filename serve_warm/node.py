# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether this node's replicas are warm: their state files, the probe and the small server of it.

A replica that is still starting cannot be asked, by Serve's own design. It writes a small JSON file
instead, and holds a lock for as long as it lives. Two files each, in a directory of their user:

    <replica>.json   its state, replaced as a whole at each write
    <replica>.lock   locked (`flock`) while the process lives; its heartbeat and its names

The lock is beside the state because a rename replaces the inode: a lock on the state itself would
be on a file that nobody can open any more. The kernel frees it when the process ends, however it
ends, and readers in another process namespace (a sidecar), where process ids mean nothing, see it
too. The heartbeat is written in place: that works on a full disk, where a new file does not.

This file runs by itself, without the rest of the package: `python -I -S node.py probe`, or `serve`.
A probe runs every few seconds, for years: it imports next to nothing. What takes longer to import
than to do (`json`, `socket`, `argparse`, `typing`, `contextlib`) is done here with less, or is
imported where a probe does not come by.
Times that cross processes are of CLOCK_BOOTTIME, which nobody sets and which goes on in suspend.
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
        """As much of `typing.NamedTuple` as is used here."""

        __slots__ = ()

        def __init_subclass__(cls) -> None:
            cls._fields = tuple(cls.__annotations__)
            cls._defaults = {n: cls.__dict__[n] for n in cls._fields if n in cls.__dict__}
            for place, name in enumerate(cls._fields):
                setattr(cls, name, property(lambda self, place=place: self[place]))

        def __new__(cls, *values: object, **named: object) -> NamedTuple:  # noqa: D102, PYI034
            if len(values) == len(cls._fields) and not named:
                return tuple.__new__(cls, values)  # what a look makes for each replica
            by_place = dict(zip(cls._fields[: len(values)], values, strict=True))
            given = {**cls._defaults, **by_place, **named}
            if given.keys() != set(cls._fields):
                raise TypeError(f"{cls.__name__} is made of {', '.join(cls._fields)}")
            return tuple.__new__(cls, [given[name] for name in cls._fields])

        def _replace(self, **named: object) -> NamedTuple:
            return type(self)(**{**dict(zip(self._fields, self, strict=True)), **named})

        def __repr__(self) -> str:
            shown = zip(self._fields, self, strict=True)
            return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in shown)})"


STATE_SCHEMA = 2
MAX_STATE_BYTES = 1 << 20

HEARTBEAT_S = 5.0
"""A replica that nothing happens to writes this often."""
STALE_S = 30.0
"""Without a heartbeat for so long a replica is not believed to be warm: six were missed."""
SWEEP_S = 600.0
"""So long the files of a dead replica stay, for those who export its last figures."""

RAYLET = "http://127.0.0.1:52365/api/healthz"
"""Ray's agent on each node, which asks the raylet. It needs no token."""
PROXY = "http://127.0.0.1:8000/-/healthz"
CHECK_LIMIT_S = 0.5
GRACE_S = 0.5
"""For a thread that has its answer to say so, on a node where all cores compile."""
CHECK_VALID_S = 1.0
CHECK_PERIOD_S = 0.5
"""From one question to the next: the answer to a slow one is there before the last is too old."""
PORT = 8099
DRAIN_S = 5.0
MAX_CONNECTIONS = 256
KEPT_CONNECTIONS = 64
"""So many of them only peers may have that probes come from: this machine and its kubelet."""
PEER_CONNECTIONS = 32
"""So many one address may have. Neither a kubelet nor Prometheus has more than a few."""
MAX_THREADS = 320
"""At most this many connections have a thread, including dropped ones whose answer is still being
made. Above it, connections from addresses that are not trusted are closed at once."""
SLOW_S = 1.0
"""A client that has not asked for so long is slow: a probe asks at once."""
LOOPBACK = frozenset(("127.0.0.1", "::1"))
BACKLOG = 1024
"""Connections that wait to be taken, where the kernel allows it: a crowd comes at once."""
IDLE_S = 5.0
"""A client that sends nothing for so long is hung up on."""
REQUEST_S = 10.0
"""So is one that has not asked and read the answer in so long, if it sends a byte now and then."""
MAX_HEAD_BYTES = 1 << 14
"""A request with more before its empty line is none of a probe or of Prometheus."""
REMEMBERED = 100
"""Dead replicas whose last figures the server goes on to export, at most."""

# --- what a replica writes -----------------------------------------------------------------


class StateFile:
    """One replica's state and its lock, from here on until the process ends or `close()`.

    `began_s` is when the replica began, of CLOCK_BOOTTIME, where that was before this was made.

    Raises:
        PermissionError: the directory belongs to another user, or others can write to it: what
            they put there would be shown as ours. Or they can replace it, because they can write
            to one above it.
        OSError: it cannot be made, is full or read-only, or its file system knows no locks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        application: str,
        deployment: str,
        replica: str,
        began_s: float | None = None,
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self._stem = _stem(application, deployment, replica)
        self.path = os.path.join(self._directory, f"{self._stem}.json")
        self._pid_start = _start_ticks()
        self._began_s = boot_s() if began_s is None else began_s
        self._ready_s: float | None = None
        self._stage: tuple[Any, float] = (None, self._began_s)
        self._folder = self._lock = -1
        _close_in_children(self)
        self._open()

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file: a reader sees the old state or the new one, never half of one.

        What was removed meanwhile is made again, the directory too.

        Raises:
            OSError: as the class. On a full disk the heartbeat is written all the same; on a
                read-only one it is not, and the lock is held: it is stale then, not dead.
        """
        now = boot_s()
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
                self.close()  # the next write begins anew
            raise

    def close(self) -> None:
        """Free the lock; a reader takes the replica for dead. Its last state stays."""
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
            # What a reader needs before there is a state: whose it is, and since when.
            begun = _encoded({**self._names, "began_boot_s": self._began_s})
            os.pwrite(self._lock, _heartbeat(boot_s()) + begun, 0)
        except OSError:
            self.close()
            raise


PASSING = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
"""What says nothing of the lock: who lets go of it for a moment is taken for dead."""


def _encoded(state: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(state).encode()


def _fitting(state: Mapping[str, Any]) -> bytes:
    """Return a state as JSON that a reader accepts, whatever texts are in it.

    A larger file is not read, so that a long text would make a warm node unready. Texts are cut
    first; what readiness does not need goes where that is not enough.
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
"""Facts that decide about readiness, and stay in a state that is too large."""

TEXT_CHARS = 1000
"""Characters of a text in a state that is too large with longer ones."""


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS else f"{value[: TEXT_CHARS - 3]}..."
    if isinstance(value, dict):
        return {_cut(key): _cut(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cut(item) for item in value]
    return value


def boot_s() -> float:
    """Return seconds of CLOCK_BOOTTIME, the same in all processes of a machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _heartbeat(at_s: float) -> bytes:
    # Of one length, so that it is overwritten in place.
    return b"%020.6f\n" % at_s


HEARTBEAT_BYTES = len(_heartbeat(0.0))


def _stem(*names: str) -> str:
    from urllib.parse import quote

    stem = "#".join(quote(name.encode(errors="surrogatepass"), safe="") for name in names)
    if len(stem) > 200:  # a name may have 255 bytes, and we append to it
        import hashlib

        stem = f"{stem[:100]}-{hashlib.sha256(stem.encode()).hexdigest()}"
    return stem


def _start_ticks() -> int:
    """Return when this process began, in clock ticks since boot: a pid alone is used again."""
    with open("/proc/self/stat", "rb") as file:
        # The name of the program, in parentheses, may hold anything. Field 22 of proc(5).
        return int(file.read().rpartition(b")")[2].split()[19])


def _take(lock: int) -> None:
    import fcntl

    end = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A reader, who holds it for microseconds to learn whether we do.
            if time.monotonic() > end:
                raise
            time.sleep(0.001)
        else:
            return


def _close_in_children(file: StateFile) -> None:
    """Keep the lock from children that are forked, with which it would outlive the replica."""
    import weakref

    known = weakref.ref(file)

    def close() -> None:
        held = known()
        if held is not None:
            held.close()

    os.register_at_fork(after_in_child=close)


def _make_private(directory: str) -> None:
    if not os.path.lexists(directory):
        _make_private(os.path.dirname(directory))
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # another process was faster


def _sweep(folder: int) -> None:
    """Remove what replicas left that have been dead for long."""
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
    """Writes a replica's state when it changes, and every few seconds when it does not.

    From a daemon thread, so that neither a request nor the start waits for a disk. What cannot be
    written is said once: a replica serves as well without its state. `began_s` is as for StateFile.
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
    ) -> None:
        import logging
        import threading

        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self.directory = directory
        # Not when its file is made, which is later where the directory cannot be used at first: it
        # would look like a replica that was added.
        self._began_s = boot_s() if began_s is None else began_s
        self._facts = facts
        self._logger = logging.getLogger(__name__)
        self._trouble = ""
        self._changed = threading.Event()
        self._waiting: list[threading.Event] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="serve_warm-state", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Have the state written now. Returns at once."""
        self._changed.set()

    def flush(self, timeout_s: float) -> bool:
        """Have the state written as it is now; return whether that was tried within the time."""
        import threading

        written = threading.Event()
        self._waiting.append(written)
        self._changed.set()
        return written.wait(timeout_s)

    def stop(self) -> None:
        """Write no more and free the lock."""
        self._stopped = True
        self._changed.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        file = None
        while True:
            self._changed.clear()  # first: what changes from here on is written in the next turn
            if self._stopped:
                break
            waiting, self._waiting = self._waiting, []  # also first
            try:
                facts = self._facts()
                if file is None:
                    file = StateFile(self.directory, **self._names, began_s=self._began_s)
                file.write(facts)
                trouble = ""
            # A report is read while other threads write it: sizes of dicts change.
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                trouble = str(error) or type(error).__name__
            self._say(trouble)
            for written in waiting:
                written.set()
            self._changed.wait(HEARTBEAT_S)
        if file is not None:
            file.close()

    def _say(self, trouble: str) -> None:
        if trouble and not self._trouble:
            self._logger.warning(
                "this replica's state cannot be written, so probes of this node do not see it as "
                "it is; it serves all the same: %s",
                trouble,
            )
        elif self._trouble and not trouble:
            self._logger.info("this replica's state can be written again")
        self._trouble = trouble


# --- what is read of it --------------------------------------------------------------------


class Replica(NamedTuple):
    """One replica of this node, alive or dead."""

    stem: str
    names: tuple[str, str, str]
    """Application, deployment, replica; empty where they are not known yet."""
    condition: str
    """One of CONDITIONS."""
    why: str
    """What is the matter, in a sentence; empty when it is warm."""
    state: dict[str, Any] | None
    heartbeat_s: float = 0.0
    """Of CLOCK_BOOTTIME."""
    began_s: float = float("inf")
    """When its start began; one of which nothing is known yet begins now."""

    @property
    def ready_s(self) -> float | None:
        """When it became ready, None before."""
        return _number(self.state, "ready_boot_s")

    def __str__(self) -> str:
        application, deployment, replica = self.names
        who = f"{application}#{deployment} {replica}" if any(self.names) else self.stem
        return shown(f"{who}: {self.why or 'warm'}")


CONDITIONS = ("warm", "warming", "failed", "stale", "unreadable", "dead")
"""What a replica can be. All but the last hold their lock."""


class Parsed(NamedTuple):
    """A state that was read, which the next look may take instead of reading it again.

    A replica puts the same heartbeat first into its lock and then into a state. While the lock has
    that of a state, no other was begun since. What a file system says of a file could not promise
    that: a rename brings another inode, but the one after it may bring the first again, within a
    tick of the clock that its times are of. It is asked all the same, for what others do to a file.
    """

    heartbeat_s: float
    """What the lock said when it was read, and the state itself."""
    file: tuple[int, ...]
    """Device, inode, time of the last change to it in nanoseconds, size."""
    state: dict[str, Any]


def look(
    directory: str | os.PathLike[str],
    *,
    stale_s: float = STALE_S,
    parsed: dict[str, Parsed] | None = None,
) -> list[Replica]:
    """Return the replicas of this node that have files in the directory, dead ones too.

    `parsed` is what whoever looks again and again keeps from one look to the next, by stem; looks
    at the same time may share it. Locks are asked each time.

    Raises:
        PermissionError: as StateFile. No states are then not the same as none.
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
        return [_replica(stem, folder, stale_s, parsed) for stem in stems]
    finally:
        os.close(folder)


def read_states(directory: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the states of the replicas that are alive; files of dead ones are skipped.

    Raises:
        PermissionError: as StateFile. No states are then not the same as none.
    """
    for replica in look(directory):
        if replica.condition != "dead" and replica.state is not None:
            yield replica.state


def _replica(stem: str, folder: int, stale_s: float, parsed: dict[str, Parsed]) -> Replica:
    lock = _lock(stem, folder)  # first: see Parsed
    state, trouble = _current(stem, folder, lock.heartbeat_s, parsed)
    begun = lock.begun() if state is None else state
    names = _names(begun)
    heartbeat_s = max(lock.heartbeat_s, _number(state, "heartbeat_boot_s") or 0.0)
    age_s = boot_s() - heartbeat_s
    stage = "" if state is None else str(state.get("stage", ""))
    condition, why = "warm", ""
    if not lock.held:
        condition, why = "dead", "its process has ended"
    elif lock.trouble or trouble:
        condition, why = "unreadable", lock.trouble or trouble
    elif state is None:
        condition, why = "warming", "it has begun and has not written its state yet"
    elif age_s > stale_s:
        condition = "stale"
        why = f"no heartbeat for {age_s:.0f} s, and its process is there: it hangs or is stopped"
    elif age_s < -1.0:
        condition = "stale"
        why = "its heartbeat is of another boot of this machine, or of another machine"
    elif stage == "READY" and _loop_age_s(state) > stale_s:
        condition = "stale"
        why = f"its event loop has not run for {_loop_age_s(state):.0f} s: a handler blocks it"
    elif stage == "FAILED":
        condition, why = "failed", f"FAILED: {state.get('error', '')}"
    elif stage != "READY":
        done = f"{state.get('inputs_done')}/{state.get('inputs_expected')} inputs"
        since_s = boot_s() - (_number(state, "stage_boot_s") or boot_s())
        late = ", late: its deadline has passed" if state.get("verdict") == "late" else ""
        condition, why = "warming", f"{stage or 'no stage'} for {since_s:.0f} s, {done}{late}"
    began_s = _number(begun, "began_boot_s") or float("inf")
    return Replica(stem, names, condition, why, state, heartbeat_s, began_s)


def _loop_age_s(state: dict[str, Any]) -> float:
    """Return how long the loop that serves requests had not run when this was written.

    Not by now: a state that cannot be written any more says nothing of the loop. 0 where it is not
    known.
    """
    loop_s, written_s = _number(state, "loop_boot_s"), _number(state, "heartbeat_boot_s")
    return 0.0 if loop_s is None or written_s is None else written_s - loop_s


class _Lock(NamedTuple):
    held: bool
    heartbeat_s: float = 0.0
    rest: bytes = b""
    trouble: str = ""

    def begun(self) -> dict[str, Any]:
        """Return whose it is and since when; nothing between its making and its first write."""
        try:
            found = _decoded(self.rest)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _lock(stem: str, folder: int) -> _Lock:
    """Return who holds a lock. Only one that is not there, or can be taken, is held by nobody."""
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
        # Out of descriptors or of locks, say: nothing is known, and dead ones do not count.
        return _Lock(held=True, trouble=f"{name} cannot be looked at: {error.strerror}")
    try:
        heartbeat_s = float(data[:HEARTBEAT_BYTES])
    except ValueError:
        return _Lock(held=held)  # between its making and its first write
    return _Lock(held, heartbeat_s, data[HEARTBEAT_BYTES:], "")


def _is_held(lock: int) -> bool:
    import fcntl

    try:
        # Shared, so that readers do not take each other for the replica.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _current(
    stem: str, folder: int, heartbeat_s: float, parsed: dict[str, Parsed]
) -> tuple[dict[str, Any] | None, str]:
    """Return what `_state` does, without reading again what its lock's heartbeat says is the same.

    `heartbeat_s` is what the lock said just before.
    """
    file = _file(f"{stem}.json", folder)
    known = parsed.get(stem)
    if known is not None and (known.heartbeat_s, known.file) == (heartbeat_s, file):
        return known.state, ""
    state, trouble = _state(stem, folder)
    written_s = _number(state, "heartbeat_boot_s")
    # The lock has millionths of a second, the state all digits.
    if state is not None and written_s is not None and abs(written_s - heartbeat_s) < 1e-6:
        parsed[stem] = Parsed(heartbeat_s, file, state)
    return state, trouble


def _file(name: str, folder: int) -> tuple[int, ...]:
    """Return what a file is known by; nothing for one that cannot be looked at."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def _state(stem: str, folder: int) -> tuple[dict[str, Any] | None, str]:
    """Return what a file says, and what is wrong with it; neither when there is none yet."""
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
        return None, f"{name} is no JSON, or half of it"
    wrong = _wrong(state)
    return (None, f"{name} {wrong}") if wrong else (state, "")


def _read(opened: int) -> bytes:
    """Return what is in a file, and of one that is larger than a state may be at least so much."""
    data = b""
    # In pieces: room for the largest state takes longer to make than a usual one to read.
    while len(data) <= MAX_STATE_BYTES and (piece := os.read(opened, 1 << 16)):
        data += piece
    return data


def _decoded(data: bytes) -> Any:
    """Return what a JSON text says, by the scanner under `json.loads` where there is one.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    text = data.decode()
    try:
        from _json import make_scanner
    except ImportError:  # its absence is no error to `json` either
        import json

        return json.loads(text)
    blanks = " \t\n\r"
    text = text.strip(blanks)
    scanner: Any = make_scanner  # what it asks of its context differs between versions
    try:
        value, end = scanner(_Scanning)(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        raise ValueError("no JSON, or more than that")
    return value


class _Scanning:
    """What the scanner asks for: the answers of `json.JSONDecoder()`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int = int
    parse_float = parse_constant = float


def _wrong(state: Any) -> str:
    """Return what keeps something that was read from being the state of a replica."""
    if not isinstance(state, dict) or not isinstance(state.get("schema"), int):
        return "is no state of a replica"
    if state["schema"] != STATE_SCHEMA:
        return f"has schema {state['schema']}, not {STATE_SCHEMA}: another release wrote it"
    if not any(_names(state)):
        return "names no replica"
    if not isinstance(state.get("pid"), int) or isinstance(state["pid"], bool):
        return "has no process id"
    return ""


class _NotOursError(Exception):
    """A file in our directory that is none of ours."""


def _open_ours(name: str, folder: int) -> int:
    # A pipe is not waited for, and a link not followed.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        opened = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotOursError(f"{name} is a symbolic link: it is not followed") from None
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
        raise _NotOursError(f"{name} is no file: remove it")
    raise _NotOursError(f"{name} belongs to user id {status.st_uid}: it is not believed")


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
    """Return one line of bounded length that may be shown in a terminal."""
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
        f"(to fix it: {'; '.join(fix for _, fix in found)}; or name another directory in "
        "state_dir or SERVE_WARM_STATE_DIR)",
    )


def _check_above(directory: str) -> None:
    """Refuse a directory that is not there and that this user could not keep to himself.

    Raises:
        PermissionError: as StateFile. A replica cannot write there, so that none is not seen.
    """
    above = _existing(directory)
    try:
        found = list(_faults(above, None, mounts="allowed"))
    except OSError:
        return  # it was made or removed just now
    if found:
        raise _not_private(directory, found)


def _existing(path: str) -> str:
    """Return the lowest folder above a path that is there."""
    while not os.path.lexists(path := os.path.dirname(path)):
        pass
    return path


def _problems(directory: str, opened: int) -> Iterator[tuple[str, str]]:
    """Yield what lets others change what is in a directory, each with what to do.

    What others may write to above it must be sticky, so that they cannot rename what is ours, or
    the root of a volume that somebody mounted: Kubernetes makes an emptyDir with mode 0777, which
    nobody but root can change. Whoever can write there can take the directory away (nothing is
    then warm) but cannot put one of theirs in its place, since its owner is looked at.
    """
    return _faults(directory, os.fstat(opened), mounts="allowed")


def _faults(
    directory: str, own: os.stat_result | None, *, mounts: str = "checked"
) -> Iterator[tuple[str, str]]:
    """Yield what lets others change what is in a directory, each with what to do.

    `own` is the status of the directory, which then must be this user's. Without it the directory
    is only a step on the way to one: root's will do, and everybody's if it is sticky.

    Raises:
        OSError: it is not there, or a way to it is closed to this user.
    """
    user, device, path = os.geteuid(), -1, ""
    if os.pardir in directory.split("/"):
        yield f"{directory} has .. in it", f"name {os.path.realpath(directory)} instead"
        return
    for part in directory.rstrip("/").split("/"):
        path = f"{path.rstrip('/')}/{part}"
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            yield f"{path} is a symbolic link", f"name {os.path.realpath(path)} instead"
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
                fix = f"have its owner or root remove {path}"
            elif mounted:
                fix = f"name a directory inside it {path}"
            yield f"{path} belongs to user id {with_name(status.st_uid)}", fix
        elif mode & 0o022 and (leaf or not (mode & stat.S_ISVTX or mounted)):
            what = f"{path} can be written by group or others (mode {mode & 0o777:o})"
            yield what, f"chmod {'go-w' if leaf or not mode & 0o002 else '+t'} {path}"


_names_of_users: dict[int, str] = {}
"""As they were first found: a server looks every second, and a directory service may be slow."""


def with_name(user: int) -> str:
    """Return a user id with the user's name in parentheses, where it has one."""
    import pwd

    if user not in _names_of_users:
        try:
            _names_of_users[user] = f"{user} ({pwd.getpwuid(user).pw_name})"
        except KeyError:
            _names_of_users[user] = f"{user}"
    return _names_of_users[user]


# --- where it is ---------------------------------------------------------------------------

LAST_BASE = "/var/tmp"  # noqa: S108 - its safety is looked at


class Place(NamedTuple):
    """One of the places where a user's own folders can be."""

    folder: str
    """`<base>/serve_warm-<uid>`."""
    state: str
    """Where the replicas of this machine write; in a home, which machines may share, by name."""


class Choice(NamedTuple):
    """The place of this user's own folders."""

    place: Place
    passed: tuple[str, ...]
    """What keeps the places before it from being used, or all, where none can be."""
    usable: bool


def places() -> tuple[Place, ...]:
    """Return where this user's own folders can be, in the order in which they are tried.

    Below the folder for temporary files, in `~/.cache/serve_warm` and below `/var/tmp`. Replicas,
    probes and servers are started by different parents and must agree: so nothing counts here that
    comes with a login (`$HOME`, `$XDG_RUNTIME_DIR`) or changes with the room on a disk. The home is
    that of the password database.
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
    if os.path.isdir(home):  # one that is not there is not made
        base = os.path.realpath(os.path.join(home, ".cache", "serve_warm"))
        folder = os.path.join(base, own)
        host = os.uname().nodename.replace("/", "_")
        found.setdefault(folder, Place(folder, os.path.join(folder, f"state-{host}")))
    folder = os.path.join(os.path.realpath(LAST_BASE), own)
    if os.path.isdir(LAST_BASE):
        found.setdefault(folder, Place(folder, os.path.join(folder, "state")))
    return tuple(found.values())


def choose_place(among: Sequence[Place]) -> Choice:
    """Return the place that replicas use, or the one that the first of them will use.

    The first place with a living replica: when somebody who was in the way of another place goes,
    replicas stay where they are, and new ones join them. Where none lives it is the first place
    that can be used; where none can be, the first one, and whoever uses it is told what is wrong.
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
    """Return the place of `choose_place` with its folder made, which nobody can take away then.

    Where it cannot be made (the disk is full, somebody else was faster) a later place is taken.
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
    """Return whether a replica of this user lives that has its state there."""
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
    """Return what keeps a folder from being this user's alone and in use."""
    try:
        found = [f"{what} ({fix})" for what, fix in _faults(folder, os.lstat(folder))]
    except OSError as error:
        return [f"{folder}: {error.strerror}"]
    return found if found or _is_writable(folder) else [f"{folder} cannot be written"]


def _barred(folder: str) -> list[str]:
    """Return what keeps this user from making a folder that nobody else can replace."""
    above = _existing(folder)
    try:
        found = [f"{what} ({fix})" for what, fix in _faults(above, None)]
    except OSError as error:
        return [f"{above}: {error.strerror}"]
    return found if found or _is_writable(above) else [f"{above} cannot be written"]


def default_directory() -> str:
    """Return where the replicas of this user write when nobody says where; it is not made."""
    return os.environ.get("SERVE_WARM_STATE_DIR") or choose_place(places()).place.state


# --- what is decided of it -----------------------------------------------------------------


class Policy(NamedTuple):
    """When this node counts as warm."""

    expect: str = "all"
    """`all`: each replica that is here, and there is one. `min`: at least `at_least` are.
    `allow-idle`: each that is here, or none is here."""
    at_least: int = 1
    deployments: tuple[str, ...] = ()
    """`Deployment` or `application#Deployment`: only these count, and each has to do so."""
    latch: str = "on"
    """`on`: once this node was warm, a replica that is added does not count until it is ready."""

    @classmethod
    def of(cls, expect: str, *, deployments: Iterable[str] = (), latch: str = "on") -> Policy:
        """Return what is written as `all`, `min=N` or `allow-idle`.

        Raises:
            ValueError: it is none of these.

        >>> Policy.of("min=2").at_least
        2
        """
        word, equals, number = expect.partition("=")
        if expect in ("all", "allow-idle"):
            return cls(expect, deployments=tuple(deployments), latch=latch)
        if word == "min" and equals and number.isascii() and number.isdigit() and int(number):
            return cls("min", int(number), tuple(deployments), latch)
        raise ValueError(f"{expect!r} is none of all, allow-idle and min=N with N from 1")


class Readiness(NamedTuple):
    """Whether this node is ready, and why not."""

    reasons: tuple[tuple[str, str], ...]
    """Name of a check and a sentence, for each that does not pass."""
    checks: tuple[str, ...]
    """All that were made: `warm` first."""
    replicas: tuple[Replica, ...] = ()
    excused: tuple[Replica, ...] = ()
    """Those that are not ready yet and do not count, because the node was warm before them."""
    unread: str = ""
    """Why the state directory could not be looked at; `replicas` says nothing then."""

    @property
    def ready(self) -> bool:
        """Whether all checks pass."""
        return not self.reasons

    def said(self, *, verbose: bool) -> list[str]:
        """Return why it is not ready, a reason a line; with `verbose`, each check and replica."""
        reasons = [shown(f"{check}: {why}") for check, why in self.reasons]
        return self.lines() if verbose else reasons

    def lines(self) -> list[str]:
        """Return each check and each replica in a line."""
        failed = dict(self.reasons)
        lines = [f"[{'-' if check in failed else '+'}] {check}" for check in self.checks]
        lines += [f"    {shown(f'{check}: {why}')}" for check, why in self.reasons]
        for replica in self.replicas:
            if replica.condition != "dead":
                note = " (added; does not count yet)" if replica in self.excused else ""
                lines.append(f"    {replica}{note}")
        return lines


def warmth(replicas: Sequence[Replica], policy: Policy) -> tuple[list[str], tuple[Replica, ...]]:
    """Return why a node with these replicas is not warm, and whom the latch excuses.

    The latch needs no memory, so that a probe that is a new process each time has it too, and a
    server that was restarted: the node was warm before, if there was a moment when all that is
    alive and had begun was ready.
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
        return [f"{warm} of at least {policy.at_least} replicas{of} are warm", *cold]
    if not group and policy.expect == "all":
        return [f"no replica{of} is on this node"]
    return cold


def _was_warm(groups: Mapping[str, Sequence[Replica]], at_s: float, policy: Policy) -> bool:
    """Return whether all replicas that had begun by then were ready, and each group had one.

    A group that may be idle may have had none.
    """
    for group in groups.values():
        begun = [r for r in group if r.began_s <= at_s]
        if not begun and policy.expect != "allow-idle":
            return False
        if any(r.ready_s is None or r.ready_s > at_s for r in begun):
            return False
    return True


class Settings(NamedTuple):
    """What is looked at, and where."""

    state_dir: str
    """Empty: where the replicas of this user write, which the first of them decides."""
    policy: Policy = Policy()
    stale_s: float = STALE_S
    urls: tuple[tuple[str, str], ...] = (("raylet", RAYLET), ("proxy", PROXY))
    """Health addresses by the name of their check."""
    places: tuple[Place, ...] = ()
    """Where the state directory can be when `state_dir` is empty."""

    @classmethod
    def of(
        cls,
        state_dir: str,
        *,
        policy: Policy,
        stale_s: float = STALE_S,
        urls: tuple[tuple[str, str], ...] = (),
    ) -> Settings:
        """Return settings for a directory, or for where the replicas of this user write."""
        state_dir = state_dir or os.environ.get("SERVE_WARM_STATE_DIR", "")
        return cls(state_dir, policy, stale_s, urls, () if state_dir else places())

    def choice(self) -> tuple[str, tuple[str, ...]]:
        """Return the state directory as of now, and what is wrong with those that came before."""
        if self.state_dir:
            return self.state_dir, ()
        choice = choose_place(self.places)
        return choice.place.state, choice.passed


def judge(
    settings: Settings,
    *,
    health: Mapping[str, str] | None = None,
    parsed: dict[str, Parsed] | None = None,
) -> Readiness:
    """Return whether this node is ready now.

    `health` is what is wrong by check, where it was asked for a moment ago; it is asked for now
    where it is not given. `parsed` is as for `look`.
    """
    replicas: list[Replica] = []
    excused: tuple[Replica, ...] = ()
    unread = ""
    try:
        directory, passed = settings.choice()
        replicas = look(directory, stale_s=settings.stale_s, parsed=parsed)
        why, excused = warmth(replicas, settings.policy)
        if why and not replicas:
            said = "; ".join((f"{directory} has no state", *passed))
            why = [f"{each} ({said})" for each in why]
    except OSError as error:
        unread = error.strerror or str(error)
        why = [unread]
    reasons = [("warm", each) for each in why]
    health = asked(settings) if health is None else health
    wrong = [(name, health.get(name, f"{url} was not asked")) for name, url in settings.urls]
    reasons += [(name, why) for name, why in wrong if why]
    names = ("warm", *(name for name, _ in settings.urls))
    return Readiness(tuple(reasons), names, tuple(replicas), excused, unread)


def asked(settings: Settings, *, limit_s: float = CHECK_LIMIT_S) -> dict[str, str]:
    """Return what is wrong by check, having asked all addresses at the same time."""
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
    # `get` ends in time but for DNS, which knows no limit: so it is left alone, and what it may
    # still say is nothing of now.
    end_s = time.monotonic() + limit_s + GRACE_S
    for ended in asking:
        ended.acquire(timeout=max(0.0, end_s - time.monotonic()))
    return dict(found)


def get(url: str, *, limit_s: float = CHECK_LIMIT_S) -> str:
    """Return what is wrong with an address, nothing when it answers 200 in time.

    A plain socket: `urllib.request` takes longer to import than a probe may take.
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
    answer = fields[1] if len(fields) >= 2 else b"nothing that is HTTP"
    return f"{url} answered {answer.decode(errors='replace')}, not 200"


def _late(url: str, limit_s: float) -> str:
    return f"{url} did not answer within {limit_s} s"


def _connected(host: str, port: int, end_s: float) -> Any:
    """Return a connection to the first address of a host that takes one."""
    import _socket  # what `socket` is made of, without the enums it makes of each constant

    # As bytes: of a string it would import a codec for names that are not ASCII.
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
    """Return host, port and path of a plain address.

    Raises:
        ValueError: it is none.

    >>> split_url("http://127.0.0.1:8000/-/healthz")
    ('127.0.0.1', 8000, '/-/healthz')
    """
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    name, _, port = host.rpartition(":")
    digits = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if scheme != "http" or not name or not digits or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not like http://127.0.0.1:8000/-/healthz, nor none")
    return name.strip("[]"), int(port), slash + path or "/"


# --- the figures ---------------------------------------------------------------------------

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The formats of `/metrics`."""

OUTCOMES = ("off", "full_hit", "partial", "miss", "refused", "late", "failed", "died")
"""How a start can end: the verdict of a replica that became ready, `failed`, or `died`: its process
ended before either, because it was killed, it crashed, or nobody wanted it any more."""

WHO = ("application", "deployment", "replica")

NODE_METRICS = {
    "serve_warm_node_ready": ("gauge", (), "1 while /readyz answers 200."),
    "serve_warm_node_check": (
        "gauge",
        ("check",),
        "1 for a check of /readyz that passes: warm, raylet, proxy.",
    ),
    "serve_warm_node_replicas": (
        "gauge",
        ("condition",),
        "Replicas of this node by condition; dead ones are remembered.",
    ),
    "serve_warm_node_states_readable": (
        "gauge",
        (),
        "1 while the state directory can be read; while it is 0, replicas are as last seen.",
    ),
    "serve_warm_node_excused": (
        "gauge",
        (),
        "Replicas that were added to a warm node, are not ready yet and do not count.",
    ),
    "serve_warm_replica_alive": ("gauge", WHO, "1 while the replica's process lives, 0 after."),
    "serve_warm_heartbeat_age_seconds": (
        "gauge",
        WHO,
        "Seconds since a living replica wrote what is shown here.",
    ),
    "serve_warm_stage_age_seconds": (
        "gauge",
        WHO,
        "Seconds since the stage of a living replica began.",
    ),
    "serve_warm_starts": (
        "counter",
        ("application", "deployment", "outcome"),
        "Starts that ended while this server ran: by verdict, failed, or died before either.",
    ),
    "serve_warm_start_duration_seconds": (
        "histogram",
        ("application", "deployment", "outcome"),
        "Seconds from a replica's creation to READY or FAILED, or until it last wrote, of them.",
    ),
    "serve_warm_stage_duration_seconds": (
        "histogram",
        ("application", "deployment", "stage", "outcome"),
        "Seconds of each stage of the same starts; no series before the first of its kind.",
    ),
}
"""What the server itself exports: kind, labels and meaning by name. All else is what replicas
write under `metrics` (`serve_warm.metrics.as_data`)."""

OWN = tuple(f"{name}_" for name in NODE_METRICS)
"""How what the server exports may go on, with a suffix."""

BUCKETS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
"""Upper bounds of the histograms, seconds: from a start at level 3 to one that compiles a large
model, and the usual deadlines among them."""


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    """Without the `_total` of a counter, which each of its samples has."""
    kind: str
    text: str
    samples: tuple[tuple[str, dict[str, str], float], ...]
    """Name, labels and value."""


class _Histogram:
    """Counts and the exact sum of what was observed."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        import bisect

        self._counts[bisect.bisect_left(BUCKETS, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield suffix, label and value of each series."""
        count = 0
        for bound, more in zip((*map(repr, BUCKETS), "+Inf"), self._counts, strict=True):
            count += more
            yield "_bucket", {"le": bound}, float(count)
        yield "_sum", {}, self._sum
        yield "_count", {}, float(count)


class Ledger:
    """What a server remembers of the replicas of its node."""

    def __init__(self, deployments: Iterable[str] = ()) -> None:
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
        """Take in what was seen just now."""
        if readiness.unread:
            return  # not to see replicas is not to see that they are gone
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
        if not (ended or self._first) and boot_s() - replica.heartbeat_s <= STALE_S:
            # Who had to let go of its lock, because it was removed, has another one by then. And
            # where the node itself ends, this server has ended too.
            return
        self._counted.add(stem)
        if self._first:
            return  # it ended before this server began
        outcome = str(state.get("verdict")) if stage == "READY" else "failed" if ended else "died"
        if outcome not in OUTCOMES:
            return
        self._starts[application, deployment, outcome] += 1
        # A replica of an earlier release says neither of the two.
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
        """Yield all figures: first what the server knows by itself, then what replicas wrote."""
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
        now = boot_s()
        for replica in self._seen.values():
            if any(replica.names):
                self._add_replica(found, replica, now)
        return found.families()

    def _add_replica(self, found: _Found, replica: Replica, now: float) -> None:
        alive = replica.condition != "dead"
        found.add_own("serve_warm_replica_alive", replica.names, float(alive))
        if alive:
            # Of what is shown here: on a full disk the lock's heartbeat goes on, and this does not.
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
        """Return all figures in a format: `TEXT` or `OPENMETRICS`."""
        if kind == TEXT:
            return "".join(map(_written, self.families(readiness)))
        return "".join([*map(_written_openmetrics, self.families(readiness)), "# EOF\n"])


STAGES = (
    *("pending", "pulling", "verifying", "loading", "replaying", "proving", "parity", "ready"),
    "failed",
)
"""What `serve_warm.report.Stage` has, as labels have it."""


class _Found:
    """Samples by the metric that they are of: each family in one piece, each series once."""

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
        """Add what a replica wrote, but for what stands for something else here already."""
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
    """Yield name, kind, meaning, own labels and value of each figure that a replica wrote."""
    import re

    table = (replica.state or {}).get("metrics")
    for row in table if isinstance(table, list) else ():
        if not isinstance(row, dict):
            continue
        name, kind = row.get("name"), row.get("kind")
        if not isinstance(name, str) or not re.fullmatch(r"serve_warm_[a-z_]{1,100}", name):
            continue
        if name.endswith(("_total", "_created")):  # which belong to the counter without them
            continue
        if kind not in ("gauge", "counter"):
            continue
        # What is true of a living replica only is not true of a dead one.
        ended = not alive and row.get("while_alive") is True
        if ended and row.get("absent_after") is True:
            continue
        claims = row.get("says_ready") if replica.condition != "warm" else None
        since_s = _number(row, "since_boot_s") if alive else None
        for labels, written in _own_samples(row):
            if kind == "counter" and not 0 <= written < float("inf"):
                continue  # OpenMetrics has no such counter, and the page would be none
            if kind == "gauge" and not alive and labels and not written:
                continue  # what did not happen in a start that is over, for each that ever ended
            value = written if since_s is None else max(0.0, now - since_s)
            # Its own last word, where the probe does not believe it any more: it hangs, say.
            claimed = isinstance(claims, list) and list(labels.values()) in claims
            yield name, kind, str(row.get("help", "")), labels, 0.0 if ended or claimed else value


def _own_samples(row: dict[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each series of a row; of one that is none, nothing."""
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
    """Return a number that may be observed, as one that is not a number would spoil all sums."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if ok else None


def _written(family: Family) -> str:
    full = family.name + ("_total" if family.kind == "counter" else "")
    text = family.text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {full} {text}\n# TYPE {full} {family.kind}\n{_written_samples(family)}"


def _written_openmetrics(family: Family) -> str:
    """Return a family as OpenMetrics 1.0 has it, without the optional `_created`.

    Prometheus would store that as one more series for each counter and histogram.
    """
    name = family.name
    lines = [f"# HELP {name} {_escaped(family.text)}\n# TYPE {name} {family.kind}\n"]
    lines += [f"# UNIT {name} {unit}\n" for unit in UNITS if name.endswith(f"_{unit}")]
    return "".join([*lines, _written_samples(family)])


UNITS = ("seconds", "bytes")
"""What a name ends with where its values have a unit."""


def _written_samples(family: Family) -> str:
    lines = []
    for name, labels, value in family.samples:
        inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n")
    return "".join(lines)


def _labels(names: Iterable[str], values: Iterable[str]) -> dict[str, str]:
    return dict(zip(names, map(_utf8, values), strict=True))


def _utf8(value: str) -> str:
    # What UTF-8 cannot say (half of a surrogate pair) no scraper can read.
    return value if value.isascii() else value.encode(errors="replace").decode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- the server ----------------------------------------------------------------------------


class Server:
    """Answers `/livez`, `/readyz` and `/metrics` until it is told to drain and has done so.

    Places are kept for connections of `trusted` addresses.

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
    ) -> None:
        import queue
        import threading

        self._settings = settings
        self._drain_s = drain_s
        self.draining = False
        """Whether it was told to end."""
        # No Event: a signal that comes while one is set or waited for would wait for its lock.
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ledger = Ledger(settings.policy.deployments)
        self._ledger_lock = threading.Lock()
        self._pages: dict[str, tuple[float, str]] = {}
        """The last page of metrics, and when it was begun, by format."""
        self._health_lock = threading.Lock()
        self._health: tuple[float, dict[str, str]] = (-CHECK_VALID_S, {})
        self._parsed: dict[str, Parsed] = {}
        self._said = ""
        # Starts that have ended by now are none that this server has seen.
        self._noted({})
        self._http = _http_server(self, host, port, trusted)
        self.port: int = self._http.server_address[1]

    def run(self) -> None:
        """Serve until `drain` was called, and then for `drain_s` more."""
        import threading

        self._watch()
        for repeated, period_s in ((self._watch, 1.0), (self._ask, CHECK_PERIOD_S)):
            args = (repeated, period_s)
            threading.Thread(target=self._repeat, args=args, daemon=True).start()
        serving = threading.Thread(target=self._http.serve_forever, daemon=True)
        serving.start()
        self._wait(float("inf"))
        # Endpoints take a moment to forget this node: it is told "not ready" until they have, and
        # a second signal ends that.
        self._wait(self._drain_s)
        self._http.shutdown()
        self._http.server_close()

    def _wait(self, limit_s: float) -> None:
        """Return when `drain` is called, or after so long."""
        import queue

        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                return self._told.get(timeout=min(left_s, CHECK_PERIOD_S))
            except queue.Empty:
                pass  # a signal that came right before the wait did not end it, and is seen now
        return None

    def drain(self) -> None:
        """Be not ready from now on, and end soon; the second time at once.

        A handler of signals may call this, also one that interrupts another.
        """
        self.draining = True
        self._told.put(None)

    def readiness(self) -> Readiness:
        """Return whether this node is ready now."""
        return self._judged(self._health_now())

    def _judged(self, health: Mapping[str, str]) -> Readiness:
        readiness = judge(self._settings, health=health, parsed=self._parsed)
        if self.draining:
            reasons = (("draining", "this server was told to end"), *readiness.reasons)
            return readiness._replace(reasons=reasons, checks=(*readiness.checks, "draining"))
        return readiness

    def metrics(self, *, kind: str = TEXT) -> str:
        """Return all figures as of now, in a format: `TEXT` or `OPENMETRICS`.

        Those who ask while a page is made share the next one, so that a crowd has no page each.
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
        # With the ledger's lock held: what is noted later was seen later.
        readiness = self._judged(health)
        self._ledger.note(readiness)
        return readiness

    def _health_now(self) -> dict[str, str]:
        """Return what was heard in the last second; where that is longer ago, ask now."""
        if time.monotonic() - self._health[0] > CHECK_VALID_S:
            with self._health_lock:  # one asks, the others wait for what it hears
                if time.monotonic() - self._health[0] > CHECK_VALID_S:
                    self._ask()
        return self._health[1]

    def _ask(self) -> None:
        asked_s = time.monotonic()
        self._health = (asked_s, asked(self._settings))

    def _watch(self) -> None:
        """Look at the replicas, so that what became of them is known at the next scrape."""
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
                pass  # out of threads or descriptors for a moment: the next turn may have them


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} serve_warm node: {shown(text)}\n")
    sys.stderr.flush()


PLAIN = "text/plain; charset=utf-8"


def _answer(node: Server, target: str, accept: str = "") -> tuple[int, str, str]:
    """Return status, content type and body; `accept` is what the header of that name says."""
    path, _, query = target.partition("?")
    if path == "/livez":
        return 200, PLAIN, "ok\n"
    if path == "/metrics":
        kind = _format(accept)
        return 200, kind, node.metrics(kind=kind)
    if path != "/readyz":
        return 404, PLAIN, "there are /livez, /readyz, /readyz?verbose and /metrics\n"
    readiness = node.readiness()
    if "verbose" in query.replace("=", "&").split("&"):
        lines = [*readiness.lines(), "ready" if readiness.ready else "not ready"]
    else:
        lines = [shown(f"{check}: {why}") for check, why in readiness.reasons] or ["ok"]
    return (200 if readiness.ready else 503), PLAIN, "".join(f"{line}\n" for line in lines)


def _format(accept: str) -> str:
    """Return the format of metrics for a header `Accept` in lower case.

    OPENMETRICS for a client that names it, and wants TEXT no more than that.
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
    # What is said of a type counts, and what is said of many only where nothing is said of it.
    text = next((wanted[n] for n in ("text/plain", "text/*", "*/*") if n in wanted), 0.0)
    asked = wanted.get(OPENMETRICS.partition(";")[0], 0.0)
    return OPENMETRICS if asked > 0 and asked >= text else TEXT


def _weight(text: str) -> float:
    """Return what a q-value says; 0 for what is none."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


class _Client:
    """An open connection."""

    __slots__ = ("answered", "end_s", "peer", "since_s")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.answered = False
        """Whether it waits for another request."""
        self.renew()

    def renew(self) -> None:
        """Begin the time of a request."""
        self.since_s = time.monotonic()
        self.end_s = self.since_s + REQUEST_S


class _Clients:
    """The open connections of a server: there are so many at most, and none is open for long.

    Who comes always gets a place, so that a crowd cannot shut a probe out. One address has so many
    at most, and some places are kept for `trusted` ones. Where there is none, the oldest slow
    client goes, else whoever came or was answered the longest ago: of the same address where that
    has too many, and of a trusted one last.
    """

    def __init__(self, trusted: Iterable[str] = LOOPBACK) -> None:
        import threading

        self._trusted = frozenset(trusted)
        self._open: dict[socket.socket, _Client] = {}
        self._with_thread: set[socket.socket] = set()
        """Those that have one, or will: the open ones, and those that were dropped since."""
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, peer: str) -> bool:
        """Give a connection from an address a place, if need be that of another one.

        Returns False where too many threads are under way.
        """
        peer = peer.removeprefix("::ffff:").partition("%")[0]
        with self._lock:
            if peer not in self._trusted and len(self._with_thread) >= MAX_THREADS:
                return False
            same = [c for c, client in self._open.items() if client.peer == peer]
            others = [c for c, client in self._open.items() if client.peer not in self._trusted]
            if len(same) >= PEER_CONNECTIONS:
                self._drop_one(same)
            elif peer not in self._trusted and len(others) >= MAX_CONNECTIONS - KEPT_CONNECTIONS:
                self._drop_one(others)
            elif len(self._open) >= MAX_CONNECTIONS:
                self._drop_one(others or list(self._open))
            self._open[connection] = _Client(peer)
            self._with_thread.add(connection)
            return True

    def has(self, connection: socket.socket) -> bool:
        """Whether a connection has its place still."""
        with self._lock:
            return connection in self._open

    def _drop_one(self, among: Sequence[socket.socket]) -> None:
        slow_s = time.monotonic() - SLOW_S

        def order(connection: socket.socket) -> tuple[bool, float]:
            client = self._open[connection]
            return client.answered or client.since_s > slow_s, client.since_s

        dropped = min(among, key=order)
        del self._open[dropped]
        _shut(dropped)

    def renew(self, connection: socket.socket) -> None:
        """Give it the time of another request, having answered one."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None:
                client.renew()
                client.answered = True

    def hear(self, connection: socket.socket) -> None:
        """Take in that its next request has begun, for which it has the rest of its time."""
        with self._lock:
            client = self._open.get(connection)
            if client is not None and client.answered:
                client.answered = False
                client.since_s = time.monotonic()

    def forget(self, connection: socket.socket) -> None:
        """Free its place and its thread, if it has them. To be called before it is closed."""
        with self._lock:
            self._open.pop(connection, None)
            self._with_thread.discard(connection)

    def hang_up(self) -> None:
        """End those that are late. Their threads find nobody there, and close them."""
        now = time.monotonic()
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
    """What is read of a request: `http.server` parses each header as it would one of an e-mail."""

    method: str
    target: str
    last: bool
    """Whether the connection ends with its answer: the client says so, or sends a body. That is not
    read, and what follows it would be taken for a request."""
    accept: str = ""
    """What the headers of that name say, in lower case and with commas between."""


def _request(head: bytes) -> _Request | None:
    """Return what lines before an empty one ask for, None where that is no HTTP/1."""
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
    """Return the answer to a request, and whether the connection ends with it."""
    request = _request(head)
    known = request is not None and request.method in ("GET", "HEAD")
    last = request is None or request.last or not known or node.draining
    if request is None:
        status, kind, text = 400, PLAIN, "this is no request of HTTP/1\n"
    elif not known:
        status, kind, text = 501, PLAIN, "there are GET and HEAD\n"
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
    """Answer one request after the other, until the client or an answer ends the connection."""
    data, last = b"", False
    while not last:
        while b"\n\n" not in data and len(data) <= MAX_HEAD_BYTES:
            received = connection.recv(MAX_HEAD_BYTES)
            if not received:
                return
            clients.hear(connection)
            # Who writes by hand may leave out the carriage returns.
            data = (data + received).replace(b"\r\n", b"\n").lstrip(b"\n")
        head, _, data = data.partition(b"\n\n")
        data = data.lstrip(b"\n")
        if not clients.has(connection):
            return  # it was dropped: nobody reads the answer
        answer, last = _reply(node, head)
        # In one piece: the second of two would wait for the client to acknowledge the first.
        connection.sendall(answer)
        clients.renew(connection)


def _http_server(node: Server, host: str, port: int, trusted: Iterable[str]) -> TCPServer:
    import _thread
    import socket
    from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn

    clients = _Clients(trusted)

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
            # Not by `threading`, which waits until the thread runs. Nobody waits for its end.
            _thread.start_new_thread(self.process_request_thread, (request, client_address))

        def shutdown_request(self, request: Any) -> None:
            # Here, where also those end that no thread could be started for.
            clients.forget(request)
            super().shutdown_request(request)

        def service_actions(self) -> None:
            clients.hang_up()  # about twice a second

        def handle_error(self, request: Any, client_address: Any) -> None:
            error = sys.exc_info()[1]
            if not isinstance(error, OSError):  # a client that hung up is no news
                super().handle_error(request, client_address)

    return Http((host, port), Handler)


# --- by itself -----------------------------------------------------------------------------


def probe(settings: Settings, *, verbose: bool) -> tuple[int, list[str]]:
    """Return an exit code, 0 for ready and 1 for not, and lines to show."""
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
    """Return what the options of `probe` and `serve` say.

    Raises:
        ValueError: one of them cannot be used; the text says which and why.
    """
    urls = tuple((n, u) for n, u in (("raylet", raylet), ("proxy", proxy)) if u != "none")
    for _, url in urls:
        split_url(url)
    if not 0 < stale_s < float("inf"):
        raise ValueError(f"{stale_s} is no number of seconds above 0")
    policy = Policy.of(expect, deployments=deployments, latch=latch)
    return Settings.of(state_dir, policy=policy, stale_s=stale_s, urls=urls)


OPTIONS: dict[str, tuple[str, str, str]] = {
    "--state-dir": ("DIR", "", "Where replicas write; default: SERVE_WARM_STATE_DIR, or as they."),
    "--expect": (
        "POLICY",
        "all",
        "all: each replica here is warm, and there is one. min=N: N are. allow-idle: all, or none.",
    ),
    "--raylet": ("URL", RAYLET, "Health of the local raylet; none leaves it out."),
    "--proxy": ("URL", PROXY, "Health of the local Serve proxy; none leaves it out."),
    "--stale-s": ("SECONDS", f"{STALE_S:g}", "A replica without a heartbeat so long hangs."),
}
"""Meta variable, default and help by option; the command line of the package has the same."""

DEPLOYMENT_HELP = "[APP#]NAME: only these count, and each has to be warm; may be repeated."
HOST_IP_HELP = (
    "Where the kubelet asks from (status.hostIP): places are kept for it, as for this machine. "
    "May be repeated, or be several with commas."
)
LATCH_HELP = "A replica that is added to a warm node makes it unready until it is warm."


COMMANDS = {
    "probe": "0: this node is ready. 1: it is not, and why.",
    "serve": "Answer /livez, /readyz and /metrics.",
}


class _Given(NamedTuple):
    """A command line."""

    command: str
    options: dict[str, Any]
    """By the names that argparse gives them."""


def _plain(arguments: Sequence[str]) -> _Given | None:
    """Return what a plain command line of `probe` says; None for what argparse has to look at."""
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
    """Return argparse's reader of a command line with this command."""
    import argparse

    def helped(prog: str) -> argparse.HelpFormatter:
        # Of one width: to find that of the terminal, argparse imports what takes longer than it.
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
        add("--drain-s", type=float, default=DRAIN_S, help="Seconds from SIGTERM to the end.")
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
    """Return IP addresses that are written with commas between them, as the kernel writes them.

    Raises:
        ValueError: one of them is none.

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
            raise ValueError(f"{each!r} is no IP address, such as status.hostIP has") from None
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
    _log(f"answers on port {server.port}, reads {settings.choice()[0]}")
    server.run()
    _log("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
