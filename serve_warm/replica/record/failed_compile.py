# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The reason for a failed compile that an operator can act on.

torch wraps the error of a compiler or of a full disk several times, and its first line says little.
The reason is often in a later line, or in an exception further down the chain.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.config import environment
from serve_warm.private_apis import module_names

CACHES = "TORCHINDUCTOR_CACHE_DIR"

COMPILERS = (module_names.DYNAMO, module_names.INDUCTOR, "triton")
"""Where the exceptions are defined that wrap each error of a compile."""

MEGABYTE = 1 << 20

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, of a quota, and of a limit on the size of a file."""

WRITTEN = re.compile(rf"(/\S+?)'?: '?(?:{'|'.join(map(os.strerror, NO_SPACE))})")
"""What a compiler writes if the disk with this file is full. The file may be outside the caches,
because compilers write temporary files to TMPDIR."""

ENDED_BY_SIGNAL = re.compile(r"(\w+) signal terminated program (\S+)")
"""What gcc writes if one of its own processes ended so."""

FAKE = re.compile(r"Dynamo failed to run FX node with fake tensors: \w+ (.*?)\(.*got (\w+)\((.*)\)")
"""What Dynamo writes if an operator rejects the shapes or dtypes of its arguments."""


@record(frozen=True, kw_only=True)
class Reason:
    """Why a compile failed, and what to do."""

    text: str
    hint: str


def find_reason(error: BaseException) -> Reason | None:
    """Return the reason that an operator can act on, or None if the exception shows none.

    Errors of the application that are not about a compile have no such reason: a handler may find
    its own disk full.
    """
    chain = list(_chain(error))
    if not any(type(each).__module__.startswith(COMPILERS) for each in chain):
        return None
    return next(filter(None, map(_reason_of, chain)), None)


def _reason_of(error: BaseException) -> Reason | None:
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    reason = None
    if number in NO_SPACE or any(os.strerror(each) in text for each in NO_SPACE):
        reason = _no_space(error)
    elif number in (errno.EROFS, errno.EACCES):
        reason = _not_writable(error)
    elif "failed to map segment from shared object" in text:
        reason = _not_executable(text)
    elif found := ENDED_BY_SIGNAL.search(text):
        reason = _ended(f"by a signal ({found[2]}: {found[1]})")
    elif isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
        reason = _ended(f"by {signal.Signals(-error.returncode).name}")
    elif found := FAKE.search(text):
        inner = found[3].strip("'\"")
        reason = Reason(
            text=f"{type(error).__name__}: {found[1]} raised {found[2]}: {excerpt(inner, 300)}",
            hint="correct the shapes or dtypes of this input in warmup_inputs(), or the model",
        )
    return reason


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = getattr(each, "inner_exception", None)  # of torch's InductorError
        waiting += [inner if isinstance(inner, BaseException) else None]
        waiting += [each.__cause__, each.__context__]


def _folder_of(error: BaseException) -> Path:
    name = getattr(error, "filename", None)
    return _existing(os.fsdecode(name) if isinstance(name, (str, bytes)) else _caches())


def _existing(path: str) -> Path:
    """Return the path, or its first parent that is a folder."""
    folder = Path(path)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _caches() -> str:
    return environment().get(CACHES) or tempfile.gettempdir()


def _no_space(error: BaseException) -> Reason:
    written = WRITTEN.search(str(error))
    is_elsewhere = written is not None and not Path(written[1]).is_relative_to(_caches())
    folder = _existing(written[1]) if written else _folder_of(error)
    what = "the compiler's files" if is_elsewhere else "torch's caches"
    free = shutil.disk_usage(folder).free / MEGABYTE
    return Reason(
        text=f"there is no space left for {what} in {folder} ({free:.0f} MB free)",
        hint="free some space, make the volume or quota larger (of an emptyDir: its sizeLimit), or "
        "let TMPDIR name a folder with more space",
    )


def _not_writable(error: BaseException) -> Reason:
    folder = _folder_of(error)
    return Reason(
        text=f"this process may not write to {folder}, which a compile needs",
        hint="mount a writable volume there, or let TMPDIR name a writable folder",
    )


def _not_executable(text: str) -> Reason:
    found = re.search(r"(/\S+)/[^/\s]+: failed to map segment", text)
    folder = found[1] if found else _caches()
    return Reason(
        text=f"code in {folder} may not run, because its volume is mounted with noexec",
        hint="mount the volume without noexec, or let TMPDIR name a folder from which code may run",
    )


def _ended(how: str) -> Reason:
    return Reason(
        text=f"the C++ compiler was ended {how}",
        hint="a compiler is mostly ended because the container ran out of memory: raise its memory "
        "limit, or set TORCHINDUCTOR_COMPILE_THREADS=1 so that fewer compilers run at once",
    )
