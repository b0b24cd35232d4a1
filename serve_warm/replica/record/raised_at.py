# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The line of the user's code that raised an exception, for log messages."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from serve_warm._redaction import redact

_NOT_THE_USERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[2]),
    "<frozen",
)


def is_users(file: str) -> bool:
    """Return whether a file of code is neither an installed package's nor serve_warm's."""
    return not file.startswith(_NOT_THE_USERS)


def find_line(error: BaseException) -> str:
    """Return the innermost line outside installed packages, for example `app.py:32, in score`.

    If all lines are in installed packages, return the innermost line. Return an empty string if
    there is no traceback.
    """
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_users(frame.filename)]
    if not frames:
        return ""
    frame = (users or frames)[-1]
    return redact(f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}")
