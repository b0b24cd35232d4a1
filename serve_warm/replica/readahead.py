# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""File readahead: the kernel reads weights from disk while `__init__` is still importing.

Without readahead, the disk is idle during imports, and nothing is imported while weights are read.
As soon as Serve instantiates the class, a thread asks the kernel to read the files named in the
setting `readahead`. Best effort: if a file is missing or cannot be opened, a warning is logged, and
`__init__` reads the file as usual.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from serve_warm._redaction import excerpt
from serve_warm._seats import free_memory_bytes
from serve_warm.replica.timeline import Timeline

logger = logging.getLogger(__name__)

WINDOW_BYTES = 128 << 10
"""Number of bytes that one call of `Ask` requests. For one request, Linux reads at most the
device's readahead window, by default 128 KiB (`force_page_cache_ra` in mm/readahead.c, seen in
6.8)."""

SHARE = 2
"""Readahead fills at most 1/SHARE of the free memory."""

Ask = Callable[[int, int, int], None]
"""Function that requests bytes of an open file, given a file descriptor, an offset and a length."""


def _ask_kernel(file: int, offset: int, length: int) -> None:
    os.posix_fadvise(file, offset, length, os.POSIX_FADV_WILLNEED)


KERNEL: Ask | None = _ask_kernel if hasattr(os, "posix_fadvise") else None
"""Function that asks the kernel; None on macOS and Windows, which do not have `posix_fadvise`."""


class Readahead:
    """The files that one start reads ahead."""

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        timeline: Timeline,
        ask: Ask | None = KERNEL,
        free_bytes: Callable[[], int | None] = free_memory_bytes,
    ) -> None:
        self._patterns = patterns
        self._timeline = timeline
        self._ask = ask
        self._free_bytes = free_bytes

    def begin(self) -> None:
        """Start a thread that asks the kernel to read the files, and return at once."""
        threading.Thread(target=self.run, name="serve_warm-readahead", daemon=True).start()

    def run(self) -> None:
        """Ask the kernel to read the files now. Never raises."""
        if self._ask is None:
            logger.info("readahead: this system has no posix_fadvise, so no file is read ahead")
            return
        with self._timeline.span("reading ahead", beside=True):
            self._ask_for_all(self._ask)

    def _ask_for_all(self, ask: Ask) -> None:
        began_s = time.perf_counter()
        free = self._free_bytes()
        left = None if free is None else free // SHARE
        absent: list[str] = []
        count = total = 0
        for path in self._find(absent):
            try:
                asked = _ask_for(ask, path, left)
            except OSError as error:
                absent.append(f"{path} ({error.strerror})")
                continue
            count, total = count + 1, total + asked
            if left is not None:
                left -= asked
        if absent:
            logger.warning("readahead: cannot read %s", excerpt(", ".join(absent)))
        if left == 0:
            logger.info("readahead: stopped at 1/%d of the free memory", SHARE)
        took_s = time.perf_counter() - began_s
        logger.info("readahead: files=%d bytes=%d in %.1f s", count, total, took_s)

    def _find(self, absent: list[str]) -> Iterator[Path]:
        """Yield each file once, in order; add patterns that match no file to `absent`."""
        seen: set[Path] = set()
        for pattern in self._patterns:
            try:
                absolute = Path(pattern).expanduser()
                found = sorted(Path("/").glob(str(absolute.relative_to("/"))))
            except (OSError, RuntimeError):  # a folder that vanished, or a user without a home
                found = []
            if not found:
                absent.append(pattern)
            yield from (path for path in found if path not in seen)
            seen.update(found)


def _ask_for(ask: Ask, path: Path, most: int | None) -> int:
    """Ask the kernel to read up to `most` bytes of a file.

    Returns the number of requested bytes. Raises OSError.
    """
    # If the path is a pipe, opening it must not block.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return 0
        end = status.st_size if most is None else min(status.st_size, most)
        for offset in range(0, end, WINDOW_BYTES):
            ask(file, offset, min(WINDOW_BYTES, end - offset))
    finally:
        os.close(file)
    return end
