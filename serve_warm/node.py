# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Per-node state files: where each replica of this machine is in its start.

A replica that is still starting cannot be asked, by Serve's own design. It writes a small JSON
file instead, which the command line reads to show progress. Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serve_warm import folders

STATE_SCHEMA = 1
MAX_STATE_BYTES = 1 << 20


def default_directory() -> Path:
    """Return `<base>/serve_warm-<uid>/state` (`folders.private_base`)."""
    return folders.user_folder("state")


class StateFile:
    """One replica's state, replaced as a whole at each write.

    Raises:
        PermissionError: the directory belongs to another user, or others can write to it: what
            they put there would be shown as ours. Or they can replace it, because they can write
            to one above it.
    """

    def __init__(self, directory: Path, *, application: str, deployment: str, replica: str) -> None:
        folders.make_private(directory.absolute())
        _check_ours(directory)
        name = quote(f"{application}#{deployment}#{replica}", safe="#")
        self.path = directory / f"{name}.json"
        self._identity = {
            "schema": STATE_SCHEMA,
            "application": application,
            "deployment": deployment,
            "replica": replica,
            "pid": os.getpid(),
        }

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file: a reader sees the old state or the new one, never half of one."""
        state = {**self._identity, **facts, "updated_unix": time.time()}
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(self.path)


def read_states(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the states of the replicas that are alive; files of dead ones are skipped.

    Raises:
        PermissionError: as StateFile. No states are then not the same as none.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _check_ours(directory, opened=opened)
        with os.scandir(opened) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
        states = [_state(name, opened) for name in names]
    finally:
        os.close(opened)
    for state in states:
        if state is not None and Path(f"/proc/{state['pid']}").exists():
            yield state


def _state(name: str, directory: int) -> dict[str, Any] | None:
    """Return what a file says, None when it is none of ours or was removed meanwhile."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_STATE_BYTES + 1)
        state = json.loads(data) if len(data) <= MAX_STATE_BYTES else None
    except (OSError, ValueError):
        return None
    if not isinstance(state, dict) or state.get("schema") != STATE_SCHEMA:
        return None
    ours = all(isinstance(state.get(key), str) for key in ("application", "deployment", "replica"))
    return state if ours and isinstance(state.get("pid"), int) else None


def _check_ours(directory: Path, *, opened: int | None = None) -> None:
    found = folders.problems(directory.absolute(), leaf="unwritable", opened=opened)
    if found:
        raise PermissionError(
            errno.EACCES,
            f"{directory} is not a private directory of uid {os.geteuid()}: "
            f"{folders.sentence(found)} (to mend it: {folders.fixes(found)})",
        )
