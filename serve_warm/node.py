# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Per-node state files: where each replica of this machine is in its start.

A replica that is still starting cannot be asked, by Serve's own design. It writes a small JSON
file instead, which the command line reads to show progress. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

STATE_SCHEMA = 1


def default_directory() -> Path:
    """Return `<tmp>/serve_warm-<uid>/state`."""
    return Path(tempfile.gettempdir()) / f"serve_warm-{os.getuid()}" / "state"


class StateFile:
    """One replica's state, replaced as a whole at each write.

    Raises:
        PermissionError: the directory exists and belongs to another user, or others may write
            to it: what they put there would be shown as ours. Or they may replace it, because
            they may write to its parent; a sticky one, such as /tmp, does not let them.
    """

    def __init__(self, directory: Path, *, application: str, deployment: str, replica: str) -> None:
        for folder, owners, shared in (
            (directory.parent, {0, os.getuid()}, stat.S_ISVTX),
            (directory, {os.getuid()}, 0),
        ):
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            writable = stat.S_IMODE(status.st_mode) & 0o022 and not status.st_mode & shared
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners or writable:
                message = f"{folder} is not a private directory of uid {os.getuid()}"
                raise PermissionError(message)
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
    """Yield the states of the replicas that are alive; files of dead ones are skipped."""
    for path in sorted(directory.glob("*.json")):
        try:
            state = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            continue  # removed meanwhile, or not a file of ours
        ours = isinstance(state, dict) and state.get("schema") == STATE_SCHEMA
        if ours and Path(f"/proc/{state['pid']}").exists():
            yield state
