# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a start that fails: short where Serve repeats it, whole in the replica's log file.

Serve starts a replica several times, and prints the traceback of each try. It also puts the
traceback into the application's status, where the reason is the last line.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm._redaction import excerpt, join_lines, loggable
from serve_warm.errors import ServeWarmError, reword

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)

OWN = str(Path(__file__).parents[2])
"""The folder of this package."""

REASON_CHARS = 800
"""Length to which a reason is cut. Longer ones have a compiler's output, which the log has too."""


def shorten_failure(error: Exception) -> Exception:
    """Return an exception to raise to Serve instead of `error`.

    An exception of serve_warm has no traceback and no cause, and ends with the reason on a line of
    its own. One of the application keeps its own frames and causes.
    """
    if not isinstance(error, ServeWarmError):
        return error.with_traceback(_without_own(error.__traceback__))
    file = _log_to_file(error)
    lines = ["the replica did not become ready"]
    lines += [f"traceback: {file}"] if file else []
    lines += [f"hint: {error.hint}"] if error.hint else []
    lines.append(excerpt(join_lines(error.message), REASON_CHARS))
    short = reword(error, "\n".join(lines), hint="").with_traceback(None)
    short.__cause__ = None
    return short


def _without_own(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without serve_warm's frames at its beginning."""
    rest = traceback
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(OWN):
        rest = rest.tb_next
    return rest or traceback


def _log_to_file(error: Exception) -> str:
    """Write the traceback to the log files of this process; return the path of one, if any."""
    record = logger.makeRecord(
        logger.name,
        logging.ERROR,
        __file__,
        0,
        "the start failed with this exception",
        (),
        (type(error), loggable(error), error.__traceback__),
    )
    file = ""
    log: logging.Logger | None = logger
    while log is not None:
        for handler in log.handlers:
            # Serve writes through a handler that collects lines first.
            target = getattr(handler, "target", None) or handler
            if isinstance(target, logging.FileHandler):
                handler.handle(record)
                handler.flush()
                file = file or target.baseFilename
        log = log.parent if log.propagate else None
    return file
