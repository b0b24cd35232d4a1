# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Received blobs: pieces in any order, and the digest that decides about the whole."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serve_warm.artifact.blobs import receive, receive_unnamed
from serve_warm.errors import ArtifactRefused, StoreError
from serve_warm.stores import Sink

DATA = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


def received(pieces: list[tuple[int, bytes]], *, size: int = len(DATA), threads: int = 1) -> bytes:
    def fill(sink: Sink) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda piece: sink(*piece), pieces))

    with tempfile.TemporaryFile() as file:
        receive(file, DIGEST, size, fill)
        assert file.tell() == 0
        return file.read()


def split(seed: int) -> list[tuple[int, bytes]]:
    """Return DATA in pieces of random sizes, including empty pieces, in random order."""
    chance = random.Random(seed)
    cuts = [0, *sorted(chance.choices(range(len(DATA)), k=chance.choice([1, 5, 100]))), len(DATA)]
    pieces = [(start, DATA[start:end]) for start, end in itertools.pairwise(cuts)]
    chance.shuffle(pieces)
    return pieces


@pytest.mark.parametrize("threads", [1, 8])
def test_pieces_come_in_any_order_and_split(threads: int):
    for seed in range(60):
        assert received(split(seed), threads=threads) == DATA


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(0, DATA[:-1])],
        [(1, DATA[1:])],
        [(0, DATA[:1000]), (1001, DATA[1001:])],
        [(0, DATA), (0, b"x")],
        [(0, DATA), (len(DATA), b"x")],
        [(0, DATA[:1000]), (0, DATA[:1000]), (1000, DATA[1000:])],
        [(1000, DATA[1000:]), (1000, DATA[1000:]), (0, DATA[:1000])],
        [(0, DATA[:1000]), (999, DATA[999:])],
        [(500, DATA[500:1500]), (1000, DATA[1000:]), (0, DATA[:500])],
        [(0, DATA[:1000]), (2000, DATA[2000:]), (1500, DATA[1500:2500])],
        [(1 << 40, b"x")],
    ],
    ids=[
        *("nothing", "short", "no beginning", "gap", "twice within", "behind the end", "twice"),
        *("twice early", "overlap", "overlap early", "overlap and gap", "far behind the end"),
    ],
)
def test_gaps_and_overlaps_are_noticed(pieces: list[tuple[int, bytes]]):
    """A repeated piece could overwrite hashed bytes, so such a blob is refused."""
    with pytest.raises(StoreError):
        received(pieces)


def test_more_than_announced_does_not_fill_the_disk():
    """The first excess byte ends the download, even of an endless answer."""

    def endless(sink: Sink) -> None:
        for number in itertools.count():
            sink(number * 1000, bytes(1000))

    with tempfile.TemporaryFile() as file:
        with pytest.raises(StoreError, match="received more"):
            receive(file, DIGEST, 10_000, endless)

        assert os.fstat(file.fileno()).st_size == 10_000


def test_other_bytes_are_refused():
    with tempfile.TemporaryFile() as file, pytest.raises(ArtifactRefused) as caught:
        receive(file, "0" * 64, 4, lambda sink: sink(0, b"evil"))
    assert caught.value.reason == "digest_mismatch"
    assert hashlib.sha256(b"evil").hexdigest()[:16] in caught.value.message


def test_what_cannot_be_written_is_no_error_of_the_store(monkeypatch: pytest.MonkeyPatch):
    """A store may wrap the sink's error, in any thread: the error raised is the full disk."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(sink: Sink) -> None:
        with ThreadPoolExecutor(1) as threads:
            try:
                threads.submit(sink, 0, DATA).result()
            except OSError as error:
                raise StoreError("the connection was lost") from error

    monkeypatch.setattr(os, "pwrite", full)
    with tempfile.TemporaryFile() as file, pytest.raises(OSError, match="No space left") as caught:
        receive(file, DIGEST, len(DATA), fill)

    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("good", [True, False])
def test_a_file_without_a_name(good: bool):
    before = len([*Path("/proc/self/fd").iterdir()])
    data = DATA if good else bytes(len(DATA))
    try:
        with receive_unnamed(DIGEST, len(DATA), lambda sink: sink(0, data)) as file:
            found, names = file.read(), list(Path(tempfile.gettempdir()).iterdir())
    except ArtifactRefused:
        found, names = b"", []
    assert found == (DATA if good else b"")
    assert names == []
    assert len([*Path("/proc/self/fd").iterdir()]) == before
