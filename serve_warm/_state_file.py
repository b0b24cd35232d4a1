# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state file of a replica, which probes and node servers read (see `serve_warm.node`)."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serve_warm import _private_folders
from serve_warm._forks import call_in_children
from serve_warm._redaction import describe_error
from serve_warm._regular_files import open_regular
from serve_warm.node import (
    HEARTBEAT_S,
    MAX_STATE_BYTES,
    STATE_SCHEMA,
    SWEEP_S,
    boot_s,
    has_own_start,
    heartbeat_text,
    is_stem,
    lock_of,
    open_folder,
    shown,
)

logger = logging.getLogger(__name__)


class StateFile:
    """One replica's state, and a lock that is held until the process ends or calls `close()`.

    `began_s` is the time (CLOCK_BOOTTIME) at which the replica began, by default now.

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
    ) -> None:
        self._directory = Path(os.path.abspath(directory))  # noqa: PTH100 - `..` is resolved
        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self._stem = _stem(application, deployment, replica)
        self.path = self._directory / f"{self._stem}.json"
        self._began_s = boot_s() if began_s is None else began_s
        self._ready_s: float | None = None
        self._stage: tuple[Any, float] = (None, self._began_s)
        self._folder = self._lock = -1
        call_in_children(self.close)
        self._open()

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file. A reader sees either the complete old state or the complete new one.

        A killed process leaves the old state or the new one, too. A power failure may leave an
        empty or partial file, because a write every few seconds is not worth a sync: the power
        failure also ended the replica, so readers count it as dead, whatever its file contains.

        If the files or the directory have been removed, this method creates them again.

        Raises:
            OSError: the state cannot be written. On a full disk, the heartbeat is still written. On
                a read-only disk, the heartbeat is not written either. But the replica still holds
                its lock, so the replica counts as stale, not dead.
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
            os.pwrite(self._lock, heartbeat_text(now), 0)
            if not os.path.samestat(self._directory.stat(), os.fstat(self._folder)):
                raise FileNotFoundError(
                    errno.ENOENT, "the directory was replaced", str(self._directory)
                )
            there = os.stat(f"{self._stem}.lock", dir_fd=self._folder, follow_symlinks=False)
            if not os.path.samestat(there, os.fstat(self._lock)):
                raise FileNotFoundError(errno.ENOENT, "the lock was replaced", str(self.path))
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(open_regular(temporary, flags, dir_fd=self._folder), "wb") as file:
                file.write(data)
            name = f"{self._stem}.json"
            os.rename(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._folder)
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
        _private_folders.make_private(self._directory)
        self._folder = open_folder(str(self._directory))
        try:
            _sweep(self._directory, self._folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._lock = open_regular(f"{self._stem}.lock", flags, dir_fd=self._folder)
            _take(self._lock)
            # Before the first state is written, a reader needs the names and the start time.
            begun = _encoded({**self._names, "began_boot_s": self._began_s})
            os.pwrite(self._lock, heartbeat_text(boot_s()) + begun, 0)
        except OSError:
            self.close()
            raise


PASSING = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
"""Errors after which the lock is kept, because a replica without the lock would look dead."""


def _encoded(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state).encode()


def _fitting(state: Mapping[str, Any]) -> bytes:
    """Return a state as JSON that is small enough for readers.

    Readers skip larger files, so a long text would make a warm node unready. If the state is too
    large, only facts that readiness depends on are kept.
    """
    data = _encoded(state)
    if len(data) > MAX_STATE_BYTES:
        data = _encoded({name: state[name] for name in NEEDED if name in state})
    return data


NEEDED = (
    *("schema", "application", "deployment", "replica", "pid", "stage", "verdict"),
    *("inputs_expected", "inputs_done", "loop_boot_s", "began_boot_s", "ready_boot_s"),
    *("stage_boot_s", "heartbeat_boot_s", "updated_unix"),
)
"""Facts that readiness depends on. These facts are kept even if the state is too large."""


def _stem(*names: str) -> str:
    stem = "#".join(quote(name.encode(errors="surrogatepass"), safe="") for name in names)
    if len(stem) > 200:  # a file name can have 255 bytes, and suffixes follow
        stem = f"{stem[:100]}-{hashlib.sha256(stem.encode()).hexdigest()}"
    return stem


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


_NAME = re.compile(r"(?P<stem>.*)\.(?:json|lock|[0-9]+\.tmp)", re.DOTALL)
"""Names of the files that StateFile writes; `is_stem` knows the first part."""


def _sweep(directory: Path, folder: int) -> None:
    """Remove files of replicas that died more than `SWEEP_S` ago, and warn of other files.

    A user may set a folder of their own. So only files with the names and the content of state
    files are removed. One file of a replica is enough to know the others, which may be damaged.
    """
    replicas: dict[str, list[str]] = {}
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is not None and is_stem(named["stem"]):
                replicas.setdefault(named["stem"], []).append(entry.name)
            elif not entry.is_dir(follow_symlinks=False):
                others.append(entry.name)
    for stem, names in replicas.items():
        if not any(has_own_start(name, folder) for name in names):
            others += names
        elif not lock_of(stem, folder).held:
            _remove_old(names, folder)
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        _warn_once(directory, ", ".join(map(shown, sorted(others)[:3])) + more)


def _remove_old(names: Iterable[str], folder: int) -> None:
    for name in names:
        with suppress(OSError):  # the next start sweeps again
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and _private_folders.age_s(status) >= SWEEP_S:
                os.unlink(name, dir_fd=folder)


@functools.cache
def _warn_once(directory: Path, names: str) -> None:
    logger.warning(
        "the state directory %s has files that serve_warm did not write (%s). They stay as they "
        "are. Set state_dir or SERVE_WARM_STATE_DIR to a folder that is only for state files",
        directory,
        names,
    )


class Heartbeat:
    """Writes a replica's state when it changes, and also every few seconds.

    A daemon thread writes the state, so that requests and the start never wait for a disk. If
    writing fails, this class logs a warning once, and the replica serves without a state file.
    `began_s` has the same meaning as in StateFile.
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
        self._names = {"application": application, "deployment": deployment, "replica": replica}
        self.directory = directory
        # This is not the time at which the file is created. If the directory was unusable at first,
        # the replica would otherwise look as if it was added later.
        self._began_s = boot_s() if began_s is None else began_s
        self._facts = facts
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
                    file = StateFile(self.directory, **self._names, began_s=self._began_s)
                file.write(facts)
                trouble = ""
            except OSError as error:
                trouble = _describe_unwritten(os.fspath(self.directory), error)
            # Other threads change the report, and the sizes of its dicts, while it is being read.
            # Without this thread, the replica would look hung, so the thread outlives each error.
            except Exception as error:  # noqa: BLE001
                text = describe_error(error)
                trouble = f"could not describe this replica's state, and will try again: {text}"
            self._say(trouble)
            for written in waiting:
                written.set()
            self._changed.wait(HEARTBEAT_S)
        if file is not None:
            file.close()

    def _say(self, trouble: str) -> None:
        if trouble and not self._trouble:
            logger.warning("%s", trouble)
        elif self._trouble and not trouble:
            logger.info("this replica can write its state again")
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
