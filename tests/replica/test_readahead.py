# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Reading files ahead: which bytes the kernel is asked for, and that no file can break a start."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from serve_warm.replica.readahead import KERNEL, WINDOW_BYTES, Readahead
from serve_warm.replica.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 5 * WINDOW_BYTES + 4097


class Kernel:
    """Records the requested bytes by inode."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, file: int, offset: int, length: int) -> None:
        self.asked.append((os.fstat(file).st_ino, offset, length))

    def bytes_of(self, path: Path) -> list[tuple[int, int]]:
        """Return the asked spans of a file, as offset and length."""
        number = path.stat().st_ino
        return [(offset, length) for each, offset, length in self.asked if each == number]


def read_ahead(*patterns: object, free: int | None = None, **options: Any) -> Timeline:
    timeline = Timeline()
    names = [str(pattern) for pattern in patterns]
    Readahead(names, timeline=timeline, free_bytes=lambda: free, **options).run()
    return timeline


def resident_pages(path: Path) -> int:
    """Return how many pages of a file are in memory, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        where = ctypes.c_void_p(ctypes.addressof(first))
        failed = libc.mincore(where, ctypes.c_size_t(size), pages)
        del first  # or the map cannot be closed
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in pages)


def drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.skipif(KERNEL is None, reason="this system has no posix_fadvise")
def test_the_kernel_reads_a_whole_file(tmp_path: Path):
    """Pages that were dropped are in memory again. Linux cuts one request to a window.

    Nine tenths are enough, because a system may reclaim some pages meanwhile.
    """
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom(1 << 20) * 32)
    drop_pages(path)
    before = resident_pages(path)
    pages = path.stat().st_size // mmap.PAGESIZE
    if before > pages // 2:
        pytest.skip("this file system keeps all pages")

    read_ahead(tmp_path / "*.bin")

    end = time.monotonic() + 30
    while resident_pages(path) < 0.9 * pages and time.monotonic() < end:
        time.sleep(0.05)
    assert resident_pages(path) >= 0.9 * pages


def test_each_byte_is_asked_for_once(tmp_path: Path):
    """Requests have sizes that Linux does not cut. A file in two patterns counts once."""
    for name in ("a.bin", "b.bin", "c.txt"):
        (tmp_path / name).write_bytes(bytes(SIZE))
    kernel = Kernel()

    timeline = read_ahead(tmp_path / "*.bin", tmp_path / "a.bin", ask=kernel)

    for name in ("a.bin", "b.bin"):
        spans = kernel.bytes_of(tmp_path / name)
        ends = [0, *(offset + length for offset, length in spans)]
        assert [offset for offset, _ in spans] == ends[:-1]
        assert ends[-1] == SIZE
        assert max(length for _, length in spans) <= WINDOW_BYTES
    assert not kernel.bytes_of(tmp_path / "c.txt")
    assert [(span.name, span.beside) for span in timeline.spans()] == [("reading ahead", True)]


def test_the_home_folder_is_the_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Downloads are cached in the home folder, as links to files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "blob").write_bytes(bytes(10))
    (tmp_path / "link.bin").symlink_to("blob")
    kernel = Kernel()

    read_ahead("~/*.bin", ask=kernel)

    assert kernel.bytes_of(tmp_path / "blob") == [(0, 10)]


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """No file, a link to nowhere, a folder and a pipe: the others are asked for."""
    (tmp_path / "good.bin").write_bytes(bytes(10))
    (tmp_path / "lost.bin").symlink_to("nowhere")
    (tmp_path / "folder.bin").mkdir()
    os.mkfifo(tmp_path / "pipe.bin")
    kernel = Kernel()

    with caplog.at_level(logging.WARNING):
        read_ahead(tmp_path / "*.none", tmp_path / "*.bin", "/no/such/*", ask=kernel)

    assert len(kernel.asked) == 1
    (line,) = caplog.messages
    assert all(name in line for name in ("*.none", "lost.bin", "/no/such/*"))
    assert "pipe.bin" not in line


def test_a_system_without_the_call_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """On macOS and Windows, no file is opened, and the start continues."""
    with caplog.at_level(logging.INFO):
        timeline = read_ahead(tmp_path / "*", ask=None)

    assert caplog.messages == [
        "readahead: this system has no posix_fadvise, so no file is read ahead"
    ]
    assert timeline.spans() == ()


def test_half_of_the_free_memory_is_not_exceeded(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Further pages would push out pages that were read before."""
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(bytes(SIZE))
    kernel = Kernel()

    with caplog.at_level(logging.INFO):
        read_ahead(tmp_path / "*.bin", ask=kernel, free=2 * SIZE + 200)

    assert sum(length for _, length in kernel.bytes_of(tmp_path / "a.bin")) == SIZE
    assert kernel.bytes_of(tmp_path / "b.bin") == [(0, 100)]
    assert "readahead: stopped at 1/2 of the free memory" in caplog.messages


def test_it_runs_in_a_thread_of_its_own(tmp_path: Path):
    """A disk that hangs does not hold up `__init__`."""
    (tmp_path / "a.bin").write_bytes(bytes(10))
    timeline, kernel = Timeline(), Kernel()

    Readahead([str(tmp_path / "a.bin")], timeline=timeline, ask=kernel).begin()

    end = time.monotonic() + 30
    while not timeline.spans() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(kernel.asked) == 1
