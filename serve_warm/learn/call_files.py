# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of calls that replicas have recorded, in files that outlive the replicas.

They are in a folder of the node's state folder that only this user can read. They contain what
`learn.recorded` says, and nothing else of a request.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve_warm import _private_folders
from serve_warm._records import record
from serve_warm._redaction import describe_error
from serve_warm._regular_files import read_regular
from serve_warm.errors import ConfigError
from serve_warm.learn.recorded import RecordedCall
from serve_warm.learn.recorded_requests import RecordedRequest
from serve_warm.node import open_folder

logger = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 3 << 20
"""Maximum size of a file: 1 MiB for calls, of which the rarer ones are left out, and the rest for
requests."""

CALL_BYTES = 1 << 20
"""Maximum size of the calls in a file."""

MOST_FILES = 64
"""Maximum number of files of ended replicas that are read: the latest ones."""

PERIOD_S = 20.0
"""Seconds between two writes, without a new kind of call. A replica that ends loses the counts
since the last."""

GATHER_S = 1.0
"""Seconds after a new kind of call until it is written, because others may follow."""

UNFINISHED_S = 60.0
"""Seconds after which a file that is still being written has been left by a killed process."""

_NAME = re.compile(r"(?P<unfinished>\.?)[0-9a-f]{32}-(?P<hours>\d{1,6})h\.json(?(unfinished)|$).*")
"""The name of a file: a digest of its names, and how long it is kept. A dot begins the name of one
that is still being written."""

Recorded = dict[str, Any]
"""What `Recorder.to_json` returns, and the ids of the models of Serve's multiplexing."""


class CallFiles:
    """The files of one deployment on this node.

    `days` is the number of days after which a file is removed: its name has them, because each
    deployment has its own, and any replica of the node removes it. `code` is the digest of the
    application's code: other code has other callables, so only records of the same code are read.
    """

    def __init__(
        self, state_folder: Path, *, application: str, deployment: str, code: str, days: float
    ) -> None:
        self.folder = state_folder / _private_folders.CALL_FOLDER
        self._names = {"application": application, "deployment": deployment}
        self._code = code
        self._days = days

    def write(self, replica: str, recorded: Recorded) -> None:
        """Replace the file of a replica, and remove files that are too old.

        Raises:
            OSError: the file cannot be written.
        """
        _private_folders.make_private(self.folder)
        os.close(open_folder(str(self.folder)))  # raises an error if it is not this user's alone
        names = {**self._names, "code": self._code, "replica": replica}
        said = {"format": FORMAT, **names, **fitting(recorded)}
        path = self._path(replica)
        temporary = _private_folders.write_beside(path, json.dumps(said).encode(), mode=0o600)
        try:
            temporary.rename(path)
        except OSError:
            temporary.unlink()
            raise
        self.remove_old()

    def read(self, *, but: str = "") -> list[Recorded]:
        """Return what other replicas of the deployment have recorded, latest first.

        `but` is the replica that is left out. Files that are damaged are left out, too.
        """
        found = []
        own = (each for _, each in self._own() if each.get("code") == self._code)
        for each in itertools.islice(own, MOST_FILES):
            with suppress(ConfigError):
                found.append(_checked(each))
        return [each for each in found if each["replica"] != but]

    def forget(self) -> None:
        """Remove the files of the deployment, also those that a killed process has left.

        Raises:
            OSError: a file cannot be removed.
        """
        for file in list(self._files()):
            found = self._read(file.path)
            # Whose file it is cannot be read from one that is cut off.
            is_left = found is None and file.is_unfinished and file.age_s > UNFINISHED_S
            if is_left or (found is not None and self._names.items() <= found.items()):
                file.path.unlink(missing_ok=True)

    def remove_old(self) -> None:
        """Remove the files of all deployments that are too old, or that a killed process has left.

        Raises:
            OSError: a file cannot be removed.
        """
        for file in list(self._files()):
            if file.is_old or (file.is_unfinished and file.age_s > UNFINISHED_S):
                file.path.unlink(missing_ok=True)

    def _own(self) -> Iterator[tuple[Path, Recorded]]:
        """Yield the files of this deployment that are not too old, latest first."""
        files: list[_File] = []
        with suppress(OSError):  # a folder that cannot be read has nothing for a plan
            files = sorted(self._files(), key=lambda each: each.age_s)
        for file in files:
            found = None if file.is_unfinished or file.is_old else self._read(file.path)
            wanted = {"format": FORMAT, **self._names}
            if found is not None and wanted.items() <= found.items():
                yield file.path, found

    def _read(self, path: Path) -> Recorded | None:
        """Return what a file has; None if it is cut off, damaged, or was removed just now."""
        try:
            found = json.loads(read_regular(path, max_bytes=MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _path(self, replica: str) -> Path:
        names = "\0".join((*self._names.values(), replica))
        digest = hashlib.sha256(names.encode()).hexdigest()[:32]
        return self.folder / f"{digest}-{math.ceil(24 * self._days)}h.json"

    def _files(self) -> Iterator[_File]:
        now = time.time()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder) as entries:
            for entry in entries:
                named = _NAME.fullmatch(entry.name)
                if named is None or not entry.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):
                    age_s = now - entry.stat(follow_symlinks=False).st_mtime
                    yield _File(
                        path=Path(entry.path),
                        age_s=age_s,
                        is_old=age_s > 3600 * int(named["hours"]),
                        is_unfinished=bool(named["unfinished"]),
                    )


@record(frozen=True, kw_only=True)
class _File:
    path: Path
    age_s: float
    is_old: bool
    is_unfinished: bool


def _checked(found: Mapping[str, Any]) -> Recorded:
    """Return what a file has, if all of it can be used.

    Raises:
        ConfigError: it cannot.
    """
    replica, calls = found.get("replica"), found.get("calls")
    requests = found.get("requests", [])
    reasons, models = found.get("not_recorded"), found.get("models")
    is_right = (
        isinstance(replica, str)
        and isinstance(calls, list)
        and isinstance(reasons, dict)
        and all(type(each) is int for each in reasons.values())
        and isinstance(models, list)
        and all(type(each) is str for each in models)
        and isinstance(requests, list)
    )
    if not is_right or calls is None or requests is None:
        raise ConfigError("a file of recorded calls is not complete")
    return {
        "replica": replica,
        "calls": _readable(RecordedCall, calls),
        "requests": _readable(RecordedRequest, requests),
        "not_recorded": reasons,
        "models": models,
    }


def _readable(
    kind: type[RecordedCall | RecordedRequest], given: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the calls or requests that can be read."""
    found = []
    for each in given:
        with suppress(ConfigError):
            found.append(kind.from_json(each).to_json())
    return found


def fitting(recorded: Recorded) -> Recorded:
    """Return recorded calls without the rarest ones, so that they take at most `CALL_BYTES`."""
    left = CALL_BYTES - 4096
    for number, call in enumerate(recorded["calls"]):  # most frequent first
        left -= len(json.dumps(call)) + 2
        if left < 0:
            rare = sum(each["calls"] for each in recorded["calls"][number:])
            reasons = {**recorded["not_recorded"], "too much was recorded": rare}
            return {**recorded, "calls": recorded["calls"][:number], "not_recorded": reasons}
    return recorded


class CallWriter:
    """Writes what a replica records, on a thread of its own.

    `new` is set at each new kind of call.
    """

    def __init__(
        self,
        files: CallFiles,
        replica: str,
        recorded: Callable[[], Recorded],
        *,
        new: threading.Event,
    ) -> None:
        self._files = files
        self._replica = replica
        self._recorded = recorded
        self._new = new
        self._written: Recorded = {}
        self._lock = threading.Lock()
        """Held from looking at what is recorded until the file has it."""
        self._has_warned = False
        threading.Thread(target=self._run, name="serve_warm-calls", daemon=True).start()

    def write(self) -> None:
        """Write what is new. On a full disk, the last state stays.

        Never raises an error, because the next writes may succeed.
        """
        with self._lock:
            self._write()

    def forget(self, forget: Callable[[], None]) -> None:
        """Remove the files of the deployment, and let `forget` forget what is recorded.

        Raises:
            OSError: a file cannot be removed.
        """
        with self._lock:  # or a write that has looked already would bring the file back
            self._files.forget()
            forget()
            self._written = {}

    def _write(self) -> None:
        recorded = self._recorded()
        if recorded == self._written or not (recorded["calls"] or recorded["requests"]):
            return
        try:
            self._files.write(self._replica, recorded)
            self._written = recorded
        except OSError as error:
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            logger.log(
                level,
                "cannot write the recorded calls to %s: %s. serve-warm plan still asks this "
                "replica while it runs",
                self._files.folder,
                describe_error(error),
            )

    def _run(self) -> None:
        while True:
            self._new.wait(PERIOD_S)
            time.sleep(GATHER_S)
            self._new.clear()
            try:
                self.write()
            except Exception as error:  # noqa: BLE001 - this thread outlives each error
                logger.warning("cannot write the recorded calls: %s", describe_error(error))
