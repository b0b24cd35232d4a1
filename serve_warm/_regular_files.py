# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Regular files, opened by name: a pipe, socket or device in place of a file never blocks a reader.

Opening a named pipe waits until another process opens its other end, and reading a device may never
end. serve_warm opens through this module its own files, and the keys, trust files, configs and
reports that a user names. It does not cover files of the kernel, output files, and files that other
libraries open. `node.py` has its own copy, because it imports nothing of serve_warm.
"""

from __future__ import annotations

import errno
import os
import stat


def open_regular(
    path: str | os.PathLike[str], flags: int, mode: int = 0o600, *, dir_fd: int | None = None
) -> int:
    """Return a descriptor of a regular file, without waiting. Also works as `opener` of `open`.

    Raises:
        OSError: as `os.open`, or if the file is not a regular file (EISDIR for a folder).
    """
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise _other_kind(path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _other_kind(path)


def read_regular(path: str | os.PathLike[str], *, max_bytes: int = -1) -> bytes:
    """Return the content of a regular file, or its first `max_bytes` bytes, without waiting.

    Raises:
        OSError: as `open_regular`.
    """
    with open(path, "rb", opener=open_regular) as file:
        return file.read(max_bytes)


def explain_pipe(error: Exception) -> str:
    """Return the hint for an error of `open_regular`; empty for other errors.

    >>> explain_pipe(FileNotFoundError())
    ''
    """
    if not (isinstance(error, OSError) and error.errno == errno.EINVAL):
        return ""
    return "save the content in a file: serve_warm reads no pipes, such as <(...) or /dev/stdin"


def _other_kind(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))
