# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The node cache: access to the folder, shared downloads, and which blobs are removed."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from serve_warm import node
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.errors import ArtifactRefused, StoreError
from serve_warm.stores import Sink

DATA = bytes(range(256)) * 1000


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


DIGEST = digest_of(DATA)


@pytest.fixture
def root() -> Path:
    """Return the default folder, which does not exist yet."""
    return Path(node.places()[0].folder) / "blobs"


@pytest.fixture
def cache(root: Path) -> Iterator[NodeCache]:
    with NodeCache.open(root) as opened:
        yield opened


class Download:
    """A `fill` that counts its calls."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.calls = 0

    def __call__(self, sink: Sink) -> None:
        self.calls += 1
        sink(0, self.data)


def fetched(cache: NodeCache, download: Callable[[Sink], None], data: bytes = DATA) -> bytes:
    with cache.fetch(digest_of(data), len(data), download) as file:
        assert file.tell() == 0
        return file.read()


def names(root: Path) -> set[str]:
    """Return the files in the folder, without the locks, which are empty."""
    found = set()
    for path in root.iterdir():
        if path.suffix == ".lock":
            assert path.stat().st_size == 0
        else:
            found.add(path.name)
    return found


# --- the folder ----------------------------------------------------------------------------
def test_the_folder_is_made_private(root: Path):
    with NodeCache.open(root) as cache:
        fetched(cache, Download())
    for made in (root, root.parent):
        assert made.stat().st_mode & 0o7777 == 0o700
    assert [path.stat().st_mode & 0o7777 for path in root.iterdir()] == 3 * [0o600]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o750, 0o755, 0o701, 0o702])
def test_a_folder_that_others_can_enter_is_refused(root: Path, mode: int):
    root.mkdir(parents=True)
    root.parent.chmod(0o700)
    root.chmod(mode)
    with pytest.raises(ArtifactRefused) as caught:
        NodeCache.open(root)
    assert caught.value.reason == "unsafe_directory"
    assert f"{root} is open to other users (mode {mode & 0o777:o})" in caught.value.message
    assert "set TMPDIR" in caught.value.hint
    root.chmod(0o700)
    with NodeCache.open(root):
        pass


def test_only_what_is_its_own_is_removed(root: Path):
    """Foreign files, files of file systems, and records of rollback marks are never removed."""
    names_of_others = [
        *("trust.toml", "notes.tmp", "x.lock", f"{'0' * 31}.tmp", "0" * 63, "A" * 64),
        *(f"{'0' * 64}.lock2", f".{'0' * 64}", f"{'0' * 64}\n", ".nfs000000000123", "lost+found"),
    ]
    own = [f"{'0' * 32}.tmp", "1" * 64, f"{'1' * 64}.lock"]
    record = f"{'2' * 64}.lock"
    with NodeCache.open(root, max_bytes=1) as cache:
        for name in (*names_of_others, *own, record):
            (root / name).write_bytes(bytes(1000))
            set_age(root / name, 3600.0)
        fetched(cache, Download())
    left = {path.name for path in root.iterdir()}
    assert left == {*names_of_others, record, "folder.lock", DIGEST, f"{DIGEST}.lock"}


# --- a folder that cannot be written -------------------------------------------------------
def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A file in place of the folder prevents only sharing; one warning names the file."""
    (tmp_path / "file").write_bytes(b"")
    download = Download()
    for _ in range(2):
        with NodeCache.open(tmp_path / "file" / "blobs") as cache:
            assert [fetched(cache, download) for _ in range(2)] == [DATA, DATA]
    assert download.calls == 4
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{tmp_path / 'file' / 'blobs'} cannot be written: Not a directory" in record.message


def raising_error(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("act", ["open", "pwrite", "rename"])
def test_a_folder_that_cannot_be_written_is_done_without(
    cache: NodeCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    act: str,
    number: int,
):
    """If any step of sharing fails, the blob is still returned, with one warning, no leftovers."""
    real = getattr(os, act)

    def fail(first: Any, *args: Any, **options: Any) -> Any:
        if act == "pwrite":
            inside = Path(f"/proc/self/fd/{first}").readlink().parent == cache.root
        else:
            inside = "dir_fd" in options or "src_dir_fd" in options
        if inside:
            raise OSError(number, os.strerror(number))
        return real(first, *args, **options)

    monkeypatch.setattr(os, act, fail)

    assert [fetched(cache, Download()) for _ in range(2)] == [DATA, DATA]
    assert names(cache.root) == set()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert f"cannot be written: {os.strerror(number)}" in warnings[0]


def test_without_a_folder_other_bytes_are_refused_too(tmp_path: Path):
    """Blobs that are not kept are also hashed."""
    (tmp_path / "file").write_bytes(b"")
    blobs = tmp_path / "file" / "blobs"
    with NodeCache.open(blobs) as cache, pytest.raises(ArtifactRefused) as caught:
        cache.fetch(DIGEST, len(DATA), Download(bytes(len(DATA))))
    assert caught.value.reason == "digest_mismatch"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_shares_all_the_same(
    root: Path, cache: NodeCache, monkeypatch: pytest.MonkeyPatch, number: int
):
    """NFS and Lustre may have no locks; without locks, a blob may be downloaded twice."""
    monkeypatch.setattr(fcntl, "flock", raising_error(number))
    download = Download()
    found = [fetched(cache, download) for _ in range(2)]
    assert (found, download.calls) == ([DATA, DATA], 1)
    assert names(root) == {DIGEST}


def test_a_folder_that_is_exchanged_later_is_not_used(root: Path, cache: NodeCache):
    root.rename(root.parent / "moved")
    root.mkdir(mode=0o777)
    assert fetched(cache, Download()) == DATA
    assert list(root.iterdir()) == []
    assert names(root.parent / "moved") == {DIGEST}


# --- fetching ------------------------------------------------------------------------------
def test_a_blob_is_downloaded_once(root: Path, cache: NodeCache):
    download = Download()
    both = [fetched(cache, download) for _ in range(2)]
    assert both == [DATA, DATA]
    assert download.calls == 1
    assert names(root) == {DIGEST}


def test_a_file_outlives_its_blob(root: Path, cache: NodeCache):
    with NodeCache.open(root) as other:
        file = other.fetch(DIGEST, len(DATA), Download())
    (root / DIGEST).unlink()
    with file:
        assert file.read() == DATA


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "cut", "grown", "flipped", "zeros"],
)
def test_a_damaged_blob_is_downloaded_again(
    root: Path, cache: NodeCache, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
):
    """A blob is hashed on each fetch, so damage on disk costs only time."""
    download = Download()
    fetched(cache, download)
    (root / DIGEST).write_bytes(damage(DATA))
    assert fetched(cache, download) == DATA
    assert download.calls == 2
    assert (root / DIGEST).read_bytes() == DATA
    (record,) = caplog.records
    assert record.message == f"removed a damaged blob from the node cache sha256={DIGEST[:16]}"


def test_a_link_in_the_place_of_a_blob_is_not_followed(
    root: Path, cache: NodeCache, tmp_path: Path
):
    """A link is refused even if it leads to the right bytes, which could change after hashing."""
    (tmp_path / "elsewhere").write_bytes(DATA)
    (root / DIGEST).symlink_to(tmp_path / "elsewhere")
    download = Download()
    assert fetched(cache, download) == DATA
    assert download.calls == 1
    assert not (root / DIGEST).is_symlink()


# --- downloads that fail -------------------------------------------------------------------
def raising(error: Exception) -> Callable[[Sink], None]:
    def fill(sink: Sink) -> None:
        sink(0, DATA[:1000])
        raise error

    return fill


BROKEN: dict[str, tuple[Callable[[Sink], None], type[Exception]]] = {
    "the store fails": (raising(StoreError("connection reset")), StoreError),
    "something else fails": (raising(KeyError("x")), KeyError),
    "short": (lambda sink: sink(0, DATA[:-1]), StoreError),
    "nothing": (lambda sink: None, StoreError),
    "long": (lambda sink: sink(0, DATA + b"\0"), StoreError),
    "other bytes": (lambda sink: sink(0, bytes(len(DATA))), ArtifactRefused),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_download_that_fails_leaves_nothing(root: Path, cache: NodeCache, name: str):
    fill, kind = BROKEN[name]
    gc.collect()  # other tests of this process may have left files to close
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(kind):
        cache.fetch(DIGEST, len(DATA), fill)
    assert names(root) == set()
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
    assert fetched(cache, Download()) == DATA


# --- several processes ---------------------------------------------------------------------

# Says in a file that it downloads, in one write so that none is lost; waits if it is asked to.
FETCHER = """
import hashlib, os, sys, time
from pathlib import Path
from serve_warm.artifact.node_cache import NodeCache

root, calls, behaviour = sys.argv[1:]
data = bytes(range(256)) * 1000


def fill(sink):
    with open(calls, "ab", buffering=0) as file:
        file.write(f"{os.getpid()}\\n".encode())
    half = len(data) // 2
    sink(0, data[:half])
    time.sleep({"at once": 0.3, "hang": 600}[behaviour])
    sink(half, data[half:])


print("here", flush=True)
sys.stdin.readline()
with NodeCache.open(Path(root)) as cache:
    with cache.fetch(hashlib.sha256(data).hexdigest(), len(data), fill) as file:
        print(file.read() == data)
"""


def fetcher(root: Path, calls: Path, behaviour: str = "at once") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCHER, str(root), str(calls), behaviour]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True)
    assert process.stdout.readline() == "here\n"
    return process


def let_go(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


@pytest.mark.slow
def test_processes_of_a_node_share_a_download(root: Path, tmp_path: Path):
    calls = tmp_path / "calls"
    processes = [fetcher(root, calls) for _ in range(8)]
    for process in processes:
        let_go(process)
    said = [process.communicate(timeout=400)[0] for process in processes]
    assert said == 8 * ["True\n"]
    assert len(calls.read_text().split()) == 1
    assert names(root) == {DIGEST}


def test_a_killed_download_is_made_again_by_another(root: Path, tmp_path: Path, cache: NodeCache):
    """A lock ends with the process that held it, and its partial download is never used."""
    calls = tmp_path / "calls"
    process = let_go(fetcher(root, calls, "hang"))
    wait_until("the download has begun", lambda: calls.exists() and len(names(root)) == 1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=400)
    (left,) = names(root)
    download = Download()
    found = fetched(cache, download)
    assert left.endswith(".tmp")
    assert (found, download.calls) == (DATA, 1)
    assert names(root) == {left, DIGEST}


def test_a_download_that_hangs_is_not_waited_for_without_end(
    root: Path, cache: NodeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a while, another process starts its own download besides a hanging one."""
    calls = tmp_path / "calls"
    process = let_go(fetcher(root, calls, "hang"))
    wait_until("the download has begun", calls.exists)
    download = Download()
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 600 * monotonic())
    try:
        found = fetched(cache, download)
    finally:
        monkeypatch.undo()
        process.kill()
        process.communicate(timeout=400)
    assert (found, download.calls) == (DATA, 1)


def test_a_waiter_does_not_believe_what_it_waited_for(root: Path, cache: NodeCache):
    """A blob from another process is hashed by each process that uses it."""
    lock = os.open(root / f"{DIGEST}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    download = Download()
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(fetched, cache, download)
        # Of Python 3.10 this is not yet the built-in one.
        with pytest.raises(futures.TimeoutError):
            waiter.result(0.3)
        assert download.calls == 0
        (root / DIGEST).write_bytes(bytes(len(DATA)))
        os.close(lock)
        found = waiter.result(60)
    assert (found, download.calls) == (DATA, 1)


# --- what goes -----------------------------------------------------------------------------
def filled(root: Path, count: int, size: int = 1000) -> list[str]:
    """Create blobs of equal size that were downloaded one hour apart, oldest first."""
    digests = []
    with NodeCache.open(root) as cache:
        for number in range(count):
            data = bytes([number]) * size
            fetched(cache, Download(data), data)
            digests.append(digest_of(data))
    for age, digest in enumerate(reversed(digests)):
        set_age(root / digest, 3600.0 * age)
    return digests


def set_age(path: Path, age_s: float) -> None:
    stamp = time.time() - age_s
    os.utime(path, (stamp, stamp))


def test_the_oldest_files_go_first(root: Path):
    """The limit is for all files together, those of killed downloads and the next blob included."""
    digests = filled(root, 5)
    left = f"{'0' * 32}.tmp"
    (root / left).write_bytes(bytes(500))
    set_age(root / left, 1.5 * 3600)
    with NodeCache.open(root, max_bytes=3500) as cache:
        fetched(cache, Download(b"5" * 1000), b"5" * 1000)
    assert names(root) == {left, *digests[3:], digest_of(b"5" * 1000)}
    assert len([*root.glob("*.lock")]) == 4


def test_a_blob_that_is_there_removes_nothing(root: Path):
    """Only a download makes room."""
    digests = filled(root, 3)
    with NodeCache.open(root, max_bytes=10) as cache:
        fetched(cache, download := Download(), bytes(1000))
    assert names(root) == {*digests}
    assert download.calls == 0


def test_a_blob_that_is_too_large_is_kept(root: Path):
    """A small limit must not stop starts: all other blobs are removed."""
    filled(root, 3)
    with NodeCache.open(root, max_bytes=10) as cache:
        fetched(cache, Download())
        fetched(cache, download := Download())
    assert names(root) == {DIGEST}
    assert download.calls == 0


@pytest.mark.parametrize(("limit", "locks"), [(2, True), (1, True), (1, False)])
def test_a_download_counts_in_full_from_its_start(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    locks: bool,
):
    """Two downloads at once do not exceed the limit together, and neither removes the other."""
    (old,) = filled(root, 1, len(DATA))
    data = b"2" * len(DATA)
    calls = []
    if not locks:
        monkeypatch.setattr(fcntl, "flock", raising_error(errno.ENOLCK))
    with NodeCache.open(root, max_bytes=limit * len(DATA)) as cache:

        def fill(sink: Sink) -> None:
            calls.append(old in names(root))
            fetched(cache, Download(data), data)
            assert old not in names(root)
            sink(0, DATA)

        assert fetched(cache, fill) == DATA

    assert (calls, caplog.records) == ([limit == 2], [])
    assert names(root) == ({DIGEST, digest_of(data)} if locks else {digest_of(data)})


def test_a_cache_that_cannot_be_written_still_gives_what_it_has(
    root: Path, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
):
    """A volume that is mounted read-only still serves blobs."""
    fetched(cache, Download())
    for name in ("unlink", "rename"):
        monkeypatch.setattr(os, name, raising_error(errno.EROFS))
    with NodeCache.open(root, max_bytes=1) as limited:
        assert fetched(limited, Download(b"")) == DATA
