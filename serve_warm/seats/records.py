# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The records of seats, and the folder where a node's replicas and workers exchange the records.

A replica that asks Ray for a worker leaves a ticket in the folder. The worker takes the ticket, and
writes its progress to a file. The folder is private to the user, because a ticket names modules to
import.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from serve_warm import _private_folders
from serve_warm._forks import call_in_children
from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm._regular_files import open_regular, read_regular
from serve_warm.node import boot_s

SCHEMA = 1

INSTALLED = (f"{Path(os.__file__).parent}/", "/site-packages/", "/dist-packages/")
"""A module whose path contains one of these belongs to Python or to an installed package."""

CUDA_DRIVER = "libcuda.so.1"
CUDA_NOT_INITIALIZED = 3
"""The driver's result before `cuInit`: CUDA_ERROR_NOT_INITIALIZED in cuda.h."""

NICE = 10
"""The niceness of the importing thread is increased by this number."""

Miss = Literal["none", "no_hook", "failed", "hung", "cuda", "environment", "threads", "unavailable"]
"""Why a start did not use a seat. `unavailable`: this replica no longer asks for seats."""

MISSES: tuple[Miss, ...] = get_args(Miss)

KEPT_S = 86400.0
"""A folder that has not changed for this many seconds is removed, unless one of its seats is
alive."""

_FOLDER_NAME = re.compile("[0-9a-f]{24}")
"""Names of the folders that `SeatFolder.of_worker` chooses."""

TICKET_S = 60.0
"""Seconds after which a ticket expires. If the ticket's worker has written no file by then, the
worker counts as lost."""

LIMIT_S = 60.0
"""Default limit in seconds for the imports of a seat."""


@record(frozen=True, kw_only=True)
class SeatUse:
    """The seat of one start, and the seats that its replica asks for."""

    count: int = 0
    """Seats to keep on this node, from the settings."""
    hit: bool = False
    """Whether this start used modules that were imported before its process became a replica."""
    miss: Miss | Literal[""] = ""
    """Why `hit` is false; empty if `hit` is true."""
    note: str = ""
    """The reason in a sentence. If `hit` is true: a setting that could not be reset."""
    import_s: float = 0.0
    """Wall-clock seconds that the imports took, before the replica existed."""
    waited_s: float = 0.0
    """Seconds from the end of the imports until Ray made the process a replica."""
    memory_bytes: int = 0
    """Resident memory of the seat while it waited, shared pages included."""
    waiting: int | None = None
    """Number of this deployment's free seats on this node; None if another replica counts them."""
    problem: str = ""
    """Why this replica no longer asks for seats; empty if it still asks."""

    def text(self) -> str:
        """Return the record as one line for a report.

        >>> SeatUse(count=1, hit=True, import_s=3.25, waited_s=9.0, memory_bytes=250_000_000).text()
        'seat: yes, imported for 3.2 s and waited 9.0 s, 250 MB'
        >>> SeatUse(count=1, miss="none", note="no seat was free", waiting=1).text()
        'seat: no (none): no seat was free; 1 waiting for the next start'
        """
        parts = [f"seat: no ({self.miss})"]
        if self.hit:
            took = f"imported for {self.import_s:.1f} s and waited {self.waited_s:.1f} s"
            parts = [f"seat: yes, {took}, {self.memory_bytes / 1e6:.0f} MB"]
        line = ": ".join([*parts, *([self.note] if self.note else [])])
        later = [] if self.waiting is None else [f"{self.waiting} waiting for the next start"]
        return "; ".join([line, *later, *([self.problem] if self.problem else [])])


@record(frozen=True, kw_only=True)
class SeatRequest:
    """The request to one worker."""

    deployment: str
    """`application#deployment`."""
    imports: tuple[str, ...]
    """Modules in order. Modules of the app come first, as in a start without a seat."""
    omp_threads: str | None = None
    """The replica's OMP_NUM_THREADS. A start without a seat sets this variable before it imports
    torch."""
    limit_s: float = LIMIT_S
    paths: tuple[str, ...] = ()
    """`sys.path` of the replica. In a worker without a job, `sys.path` lacks the driver's
    folders."""
    offered_boot_s: float = 0.0
    """Time at which the ticket was written. `SeatFolder.offer` sets it."""


State = Literal["importing", "waiting", "failed", "hung", "cuda"]


@record(frozen=True, kw_only=True)
class Seat:
    """The file of a worker that took a ticket."""

    pid: int
    start_ticks: int
    """Time at which the process began, in clock ticks since boot. Because pids are reused, this
    time is needed to identify the process."""
    state: State
    deployment: str
    """The deployment that asked for the seat, as `application#deployment`."""
    ticket: str
    note: str = ""
    is_named_idle: bool = False
    """Whether the process had the name that Ray gives to idle workers, at the time of the file. Ray
    changes the name when it assigns work to the worker."""
    offered_boot_s: float = 0.0
    """Time at which the ticket was written."""
    began_boot_s: float = 0.0
    import_s: float = 0.0
    memory_bytes: int = 0


class SeatFolder:
    """Tickets and seats for the workers of one node and one runtime_env, in a private folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_worker(cls, arguments: Sequence[str]) -> SeatFolder | None:
        """Return the folder of a worker, from the command line that Ray started it with.

        Returns None if the process is not a worker. Ray reuses a worker only for the same
        runtime_env, whose hash is on the command line (2.53 to 2.60). A seat belongs to no job, so
        two workers share a folder if and only if each can replace the other.
        """
        options = _options_of_pool(arguments)
        if options is None:
            return None
        values = "\0".join(option.partition("=")[2] for option in options)
        digest = hashlib.sha256(values.encode()).hexdigest()[:24]
        return cls(_private_folders.user_folder("seats") / digest)

    def make(self) -> None:
        """Make the folder. Remove folders of clusters that no longer exist, and unfinished files.

        Raises:
            OSError: the folder cannot be made.
            ArtifactRefused: other users could change files in the folder.
        """
        _private_folders.make_private(self.path)
        _private_folders.check_private(self.path, "the seat folder")
        for path in [*self.path.glob("claimed-*"), *self.path.glob(".*-*")]:
            with suppress(OSError):  # its process may have removed it
                if _private_folders.age_s(path.stat()) > TICKET_S:
                    path.unlink()
        for other in self.path.parent.iterdir():
            if not _FOLDER_NAME.fullmatch(other.name):
                continue  # serve_warm did not make it
            with suppress(OSError):  # another process may be removing it, too
                if other != self.path and _private_folders.age_s(other.stat()) > KEPT_S:
                    folder = SeatFolder(other)
                    if not any(map(lives, folder.seats())):
                        shutil.rmtree(other, ignore_errors=True)

    def offer(self, wanted: SeatRequest) -> str:
        """Leave a ticket for one worker, and return the ticket's name. Raises OSError."""
        wanted = replace(wanted, offered_boot_s=boot_s())
        data = json.dumps({"schema": SCHEMA, **asdict(wanted)}).encode()
        path = self.path / f"ticket-{secrets.token_hex(8)}"
        _private_folders.write_beside(path, data, mode=0o600).rename(path)
        return path.name

    def claim(self) -> tuple[str, SeatRequest] | None:
        """Take a ticket that no other worker has taken. Return its name and the request.

        Also removes tickets with a different schema, and tickets older than `TICKET_S`. The
        replicas that wrote such tickets have ended.

        Raises:
            OSError: the folder or the ticket cannot be read.
            ValueError: the ticket is broken. The ticket is removed.
            ArtifactRefused: other users could change files in the folder.
        """
        if not self.path.is_dir():
            return None
        _private_folders.check_private(self.path, "the seat folder")
        for path in sorted(self.path.glob("ticket-*")):
            mine = path.with_name(f"claimed-{os.getpid()}")
            try:
                path.rename(mine)
            except FileNotFoundError:
                continue  # another worker was faster
            try:
                data = read_regular(mine)
            finally:
                # After a change of the clock, `make` may have removed it as old.
                mine.unlink(missing_ok=True)
            wanted = _read_ticket(path.name, data)
            if wanted is not None and boot_s() - wanted.offered_boot_s <= TICKET_S:
                return path.name, wanted
        return None

    def withdraw(self, ticket: str) -> bool:
        """Remove a ticket; return False if a worker took the ticket first."""
        try:
            (self.path / ticket).unlink()
        except FileNotFoundError:
            return False
        return True

    def write(self, seat: Seat) -> None:
        """Write a seat's file. Raises OSError."""
        path = self._file(seat)
        data = json.dumps(asdict(seat)).encode()
        _private_folders.write_beside(path, data, mode=0o600).replace(path)

    def remove(self, seat: Seat) -> None:
        """Remove the file of a seat that has become a replica, or whose process has ended."""
        with suppress(FileNotFoundError):
            self._file(seat).unlink()

    def seats(self) -> list[Seat]:
        """Return all seats, including those whose process ended. Skips damaged files."""
        found = []
        for path in sorted(self.path.glob("seat-*")):
            with suppress(OSError, ValueError):
                data = read_regular(path)
                found.append(Seat(**_values(Seat, path.name, _parse(path.name, data))))
        return found

    def _file(self, seat: Seat) -> Path:
        return self.path / f"seat-{seat.pid}"


class KeeperLock:
    """The right to keep seats for one deployment on this node. One replica at a time has it."""

    def __init__(self, folder: SeatFolder, deployment: str) -> None:
        self._folder = folder
        digest = hashlib.sha256(deployment.encode()).hexdigest()[:16]
        self._path = folder.path / f"keeper-{digest}.lock"
        self._file: int | None = None
        call_in_children(self.release)

    def take(self) -> bool:
        """Take the lock until `release`, or until the process ends; return whether it was free.

        Makes the folder. Raises OSError, or ArtifactRefused if other users could change files in
        the folder.
        """
        import fcntl

        self._folder.make()
        file = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def is_held(self) -> bool:
        """Return whether this process has a lock on the file that other replicas would lock.

        If the folder was swept, another replica can have a lock on a new file.
        """
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock, if this process has it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _read_ticket(name: str, data: bytes) -> SeatRequest | None:
    """Return the request; None if the ticket has a different schema. Raises ValueError."""
    said = _parse(name, data)
    if said.pop("schema", None) != SCHEMA:
        return None
    unknown = sorted(said.keys() - {each.name for each in fields(SeatRequest)})
    if unknown:
        raise ValueError(f"{name} has unknown fields: {excerpt(', '.join(unknown), 300)}")
    return SeatRequest(**_values(SeatRequest, name, said))


def _parse(name: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ValueError."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"{name} is damaged: it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} is damaged: it is not a JSON object")  # noqa: TRY004 - as above
    return found


_TYPES: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "str | None": lambda value: value is None or isinstance(value, str),
    "tuple[str, ...]": lambda value: (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and 0 <= value < 1 << 63,
    # Seconds. A thread cannot wait for much longer, and NaN would never be too old.
    "float": lambda value: type(value) in (int, float) and 0 <= value < 1e9,
    "State": lambda value: value in get_args(State),
}
"""For each type of a field, whether a value in a file has this type."""


def _values(kind: type[Seat | SeatRequest], name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record from a file. Raises ValueError if the file is damaged.

    Without these checks, a damaged value would break the keeper or the worker later, when it
    compares the value.
    """
    found = {}
    for each in fields(kind):
        if each.name in data:
            value = data[each.name]
            if not _TYPES[str(each.type)](value):
                raise ValueError(f"{name} is damaged: its {each.name} has an impossible value")
            found[each.name] = tuple(value) if isinstance(value, list) else value
        elif each.default is MISSING:
            raise ValueError(f"{name} is damaged: it has no {each.name}")
    return found


@record(kw_only=True)
class TicketSearch:
    """A worker's search for a ticket. Another thread can end a search that takes too long."""

    is_over: threading.Event = field(default_factory=threading.Event)
    _result: Literal["", "none", "ticket", "late"] = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decide(self, result: Literal["none", "ticket", "late"]) -> bool:
        """Set the result unless it is already set; return whether this call set it."""
        with self._lock:
            is_first = not self._result
            self._result = self._result or result
        self.is_over.set()
        return is_first


POOL = ("session-name", "node-id", "runtime-env-hash")
"""Options of a worker's command line (Ray 2.53 to 2.60). If two workers have no job and these
options are equal, Ray can use either worker."""


def _options_of_pool(arguments: Sequence[str]) -> list[str] | None:
    found = {word.partition("=")[0]: word for word in arguments if "=" in word}
    options = [found.get(f"--{name}", "") for name in POOL]
    return options if all(options) else None


def is_one_starting(arguments: Sequence[str]) -> bool:
    """Return whether Ray is starting another worker that it could use instead of this worker.

    `arguments` is the command line of this worker. A worker keeps its command line until Ray names
    the process, which happens before the setup hook.
    """
    options = _options_of_pool(arguments)
    if options is None:
        return False
    own, wanted = str(os.getpid()), {option.encode() for option in options}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if path.parent.name != own and wanted <= {*path.read_bytes().split(b"\0")}:
                return True
    return False


def lives(seat: Seat) -> bool:
    """Return whether the process of a seat is alive."""
    try:
        return start_ticks(seat.pid) == seat.start_ticks
    except OSError:
        return False


def is_stopped(seat: Seat) -> bool:
    """Return whether the process of a seat is stopped by a signal."""
    try:
        return _state_and_ticks(seat.pid) == (b"T", seat.start_ticks)
    except OSError:
        return False


def kill(seat: Seat) -> None:
    """End the process of a seat, if it is alive."""
    with suppress(OSError):  # it has ended
        process = os.pidfd_open(seat.pid)
        try:
            if lives(seat):  # after opening, so that no other process can have this pid
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def is_taken(seat: Seat) -> bool:
    """Return whether Ray gave a seat to a deployment that does not remove the seat's file."""
    return seat.is_named_idle and not is_named_idle(seat.pid)


def file_digest(path: str) -> str:
    """Return the SHA-256 digest of a file, or "" if it cannot be read."""
    with suppress(OSError):
        return hashlib.sha256(read_regular(path)).hexdigest()
    return ""


def app_files(packages: frozenset[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the imported source files of these packages, each with its digest.

    Files of installed packages are left out. Files in `known` keep their digest, which is from
    right after their import.
    """
    found = dict(known)
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] not in packages or not isinstance(module, ModuleType):
            continue
        # Not `vars`, which would import a lazy module.
        path = object.__getattribute__(module, "__dict__").get("__file__")
        is_source = isinstance(path, str) and path.startswith("/") and path.endswith(".py")
        if is_source and path not in found and not any(part in path for part in INSTALLED):
            found[path] = file_digest(path)
    return found


def is_named_idle(pid: int | Literal["self"]) -> bool:
    """Return whether a process has the name that Ray gives to idle workers; False if it has ended.

    `WORKER_PROCESS_TYPE_IDLE_WORKER` in ray/_private/ray_constants.py (2.53 to 2.60). Ray writes
    the name over the command line before it calls the setup hook.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::IDLE")
    except OSError:
        return False


def start_ticks(pid: int | Literal["self"]) -> int:
    """Return the time at which a process began, in clock ticks since boot.

    Raises OSError if the process has ended.
    """
    state, ticks = _state_and_ticks(pid)
    if state in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return ticks


def _state_and_ticks(pid: int | Literal["self"]) -> tuple[bytes, int]:
    """Return fields 3 and 22 of /proc/<pid>/stat (proc(5)). Raises OSError."""
    # The program name, in parentheses, may contain any characters.
    fields_ = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return fields_[0], int(fields_[19])


def resident_bytes(pid: int | Literal["self"] = "self") -> int:
    """Return the resident memory of a process, including shared pages. Raises OSError."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def lower_priority() -> dict[int, int]:
    """Lower the priority of this thread. Return the niceness of each thread before the change.

    On Linux, each thread has its own niceness. Only root can raise a priority again, so the main
    thread keeps its priority.
    """
    before = _niceness()
    with suppress(OSError):
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, before.get(me, 0) + NICE)
    return before


def restore_priority(before: Mapping[int, int]) -> int:
    """Reset the priorities of this process's threads.

    Returns the number of other threads that still have a low priority. If the system allows a
    reset, this thread's priority is reset too. On a busy machine, a thread with a low priority can
    take a long time to end.
    """
    me, normal = threading.get_native_id(), before.get(os.getpid(), 0)
    refused: set[int] = set()
    while slow := {
        thread: wanted
        for thread, nice in _niceness().items()
        if thread not in refused and nice > (wanted := before.get(thread, normal))
    }:  # again, because a slow thread may have started another one meanwhile
        for thread, wanted in slow.items():
            try:
                os.setpriority(os.PRIO_PROCESS, thread, wanted)
            except ProcessLookupError:
                continue
            except OSError:
                refused.add(thread)
    return len(refused - {me})


def _niceness() -> dict[int, int]:
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found[int(thread.name)] = os.getpriority(os.PRIO_PROCESS, int(thread.name))
    return found


def has_cuda() -> bool:
    """Return whether CUDA was initialized in this process. This function does not load the driver.

    Counting devices with NVML does not initialize CUDA, although NVML opens the same device files
    as CUDA (on an H100, CUDA 13 driver). CUDA_VISIBLE_DEVICES is read only when CUDA is
    initialized.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    with suppress(AttributeError, NameError):  # its import may not have ended
        if cuda is not None and cuda.is_initialized():
            return True
    # torch's own builds link to the driver, so the driver may be loaded but uninitialized.
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL(CUDA_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        count = ctypes.c_int()
        return int(driver.cuDeviceGetCount(ctypes.byref(count))) != CUDA_NOT_INITIALIZED
    return False


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the free memory of the node or its container, whichever is less; None if unknown."""
    found = []
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        group = root / "sys/fs/cgroup"  # cgroup version 2, as seen in a container
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            used = int((group / "memory.current").read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            stat: dict[str, Any] = dict(line.split() for line in lines)
            # The kernel can drop cached files.
            found.append(int(most) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        pass
    return min(found) if found else None
