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
from collections import Counter
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
from serve_warm.learn.recorded_requests import OF_REQUESTS, RecordedRequest
from serve_warm.node import open_folder

logger = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 3 << 20
"""Maximum size of a file: 1 MiB for calls, and the rest for requests, reasons and models. The rarer
ones are left out."""

CALL_BYTES = 1 << 20
"""Maximum size of the calls in a file."""

REASON_BYTES = MODEL_BYTES = 64 << 10
"""Maximum size of the reasons in a file, and of the ids of models."""

REQUEST_BYTES = MOST_BYTES - CALL_BYTES - REASON_BYTES - MODEL_BYTES
"""Maximum size of the requests in a file."""

MOST_FILES = 64
"""Maximum number of files of a deployment: the latest ones."""

PERIOD_S = 20.0
"""Seconds between two writes, without a new kind of call. A replica that ends loses the counts
since the last."""

GATHER_S = 1.0
"""Seconds after a new kind of call until it is written, because others may follow."""

UNFINISHED_S = 60.0
"""Seconds after which a file that is still being written has been left by a killed process."""

_NAME = re.compile(
    r"(?P<unfinished>\.?)(?:(?P<deployment>[0-9a-f]{32})-)?[0-9a-f]{32}-(?P<hours>\d{1,9})h\.json"
    r"(?(unfinished)|$).*"
)
"""The name of a file: digests of its deployment and of its replica, and how long it is kept. A dot
begins the name of one that is still being written. Older names do not have the deployment."""

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
        self._digest = _digest(application, deployment)
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
            temporary.unlink(missing_ok=True)
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
            if file.deployment is None:
                found = self._read(file.path)
                # Whose file it is cannot be read from one that is damaged, which is of no use.
                is_writing = file.is_unfinished and file.age_s <= UNFINISHED_S
                is_own = not is_writing if found is None else self._names.items() <= found.items()
            else:
                is_own = file.deployment == self._digest
            if is_own:
                file.path.unlink(missing_ok=True)

    def remove_old(self) -> None:
        """Remove the files of all deployments that are too old, or that a killed process has left.

        Of each deployment, the latest `MOST_FILES` files stay.

        Raises:
            OSError: a file cannot be removed.
        """
        of_deployment = Counter[str]()
        for file in sorted(self._files(), key=lambda each: each.age_s):
            if file.deployment is not None and not file.is_unfinished:
                of_deployment[file.deployment] += 1
            is_beyond = of_deployment[file.deployment or ""] > MOST_FILES
            is_left = file.is_unfinished and file.age_s > UNFINISHED_S
            if file.is_old or is_left or is_beyond:
                file.path.unlink(missing_ok=True)

    def _own(self) -> Iterator[tuple[Path, Recorded]]:
        """Yield the files of this deployment that are not too old, latest first."""
        files: list[_File] = []
        with suppress(OSError):  # a folder that cannot be read has nothing for a plan
            files = sorted(self._files(), key=lambda each: each.age_s)
        for file in files:
            if file.is_unfinished or file.is_old or file.deployment not in (None, self._digest):
                continue
            found = self._read(file.path)
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
        hours = math.ceil(24 * self._days)
        return self.folder / f"{self._digest}-{_digest(replica)}-{hours}h.json"

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
                        deployment=named["deployment"],
                        age_s=age_s,
                        is_old=age_s > 3600 * int(named["hours"]),
                        is_unfinished=bool(named["unfinished"]),
                    )


@record(frozen=True, kw_only=True)
class _File:
    path: Path
    deployment: str | None
    """A digest of the application and the deployment; None if only the file says it."""
    age_s: float
    is_old: bool
    is_unfinished: bool


def _digest(*names: str) -> str:
    joined = "\0".join(names)
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


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
    """Return what is recorded without the rarest of it, so that it takes at most `MOST_BYTES`."""
    calls, rare = _first(recorded["calls"], CALL_BYTES - 4096)  # most frequent first
    by_calls = sorted(recorded["requests"], key=lambda each: -each["calls"])
    _, rare_requests = _first(by_calls, REQUEST_BYTES)
    requests = [each for each in recorded["requests"] if each not in rare_requests]
    models, _ = _first(recorded.get("models", []), MODEL_BYTES)
    reasons = Counter[str](recorded["not_recorded"])
    reasons[TOO_MUCH] += sum(each["calls"] for each in rare)
    reasons[OF_REQUESTS + TOO_MUCH] += sum(each["calls"] for each in rare_requests)
    named, others = _first(reasons.most_common(), REASON_BYTES - 4096)
    not_recorded = Counter(dict(named))
    for why, count in others:
        not_recorded[(OF_REQUESTS if why.startswith(OF_REQUESTS) else "") + OTHER] += count
    return {
        **recorded,
        "calls": calls,
        "requests": requests,
        "models": models,
        "not_recorded": {why: count for why, count in not_recorded.items() if count},
    }


TOO_MUCH = "too much was recorded"
OTHER = "other reasons"


def _first(given: Sequence[Any], most: int) -> tuple[list[Any], list[Any]]:
    """Return the first items, which take at most this many bytes as JSON, and the others."""
    for number, each in enumerate(given):
        most -= len(json.dumps(each)) + 2
        if most < 0:
            return list(given[:number]), list(given[number:])
    return list(given), []


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
