# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Small files that are there whole or not at all, and of a mode that no umask changes.

A file is on the disk before it gets its name, so that a full disk or a crash leaves nothing that
somebody would read.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def create(path: Path, data: bytes, *, mode: int) -> None:
    """Write a new file, with this mode whatever the umask.

    Raises:
        FileExistsError: something has this name.
        OSError: it cannot be written.
    """
    temporary = write_beside(path, data, mode=mode)
    try:
        # A link never overwrites and never shows half a file.
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links. Nothing is overwritten; a reader may come too early.
        _write_new(path, data, mode=mode)
    finally:
        temporary.unlink()


def write_beside(path: Path, data: bytes, *, mode: int) -> Path:
    """Write a new file of a chance name in the folder of `path`, and return it; for a rename.

    Raises:
        OSError: it cannot be written; nothing is left of it.
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
