# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The tests that every store must pass.

The tests need `pytest`, and a subclass with two fixtures:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> MyStore: ...  # an empty store

        @pytest.fixture
        def raw(self) -> Raw: ...  # the same objects, read and written without the store

Without `raw`, matching bugs in `create` and `get` could hide each other.
"""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Protocol

import pytest

from serve_warm.errors import ObjectExists, ObjectNotFound, ObjectTooLarge, StoreError
from serve_warm.stores import Store, list_keys, open_store

KEY = "blobs/sha256/00ff"
"""The key of the object that most tests use."""

BAD_KEYS = (
    "",
    "/etc/passwd",
    "..",
    "../outside",
    "blobs/../../outside",
    "blobs/./x",
    "blobs//x",
    "blobs/",
    "blobs\\x",
    "blobs/.hidden",
    "blobs/new\nline",
    "blobs/nul\0",
    "blobs/" + 256 * "x",
    "/".join(600 * "xx"),
)


class Raw(Protocol):
    """Direct access to a store's objects, without the store's code."""

    def read(self, key: str) -> bytes:
        """Return the bytes under a key."""

    def write(self, key: str, data: bytes) -> None:
        """Put bytes under a key, overwriting existing bytes."""


class StoreContract:
    """A store keeps bytes under keys, writes each key only once, and reports what went wrong."""

    def test_create_stores_the_bytes_as_they_are(self, store: Store, raw: Raw) -> None:
        """The object has exactly the bytes that were passed in."""
        data = bytes(range(256)) * 20_000

        store.create(KEY, data)

        assert raw.read(KEY) == data

    def test_get_returns_what_is_there(self, store: Store, raw: Raw) -> None:
        """If another program wrote an object, `get` returns the object's bytes unchanged."""
        raw.write(KEY, b"\0 any bytes\r\n")

        data = store.get(KEY, max_bytes=1000)

        assert data == b"\0 any bytes\r\n"

    def test_get_takes_an_object_of_just_the_limit(self, store: Store, raw: Raw) -> None:
        """An object of exactly `max_bytes` can be read."""
        raw.write(KEY, b"12345")

        assert store.get(KEY, max_bytes=5) == b"12345"

    def test_get_refuses_an_object_over_the_limit(self, store: Store, raw: Raw) -> None:
        """One byte over the limit is an error, never a truncated object."""
        raw.write(KEY, b"123456")

        with pytest.raises(ObjectTooLarge, match="larger than 5 bytes"):
            store.get(KEY, max_bytes=5)

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        """An object of 0 bytes is stored, found, measured and listed like any other object."""
        store.create(KEY, b"")

        assert (store.get(KEY, max_bytes=0), store.head(KEY).size_bytes) == (b"", 0)
        assert list_keys(store, "") == [KEY]

    def test_size_counts_bytes(self, store: Store, raw: Raw) -> None:
        """`head` returns the size of the object in bytes."""
        raw.write(KEY, b"x" * 12_345)

        assert store.head(KEY).size_bytes == 12_345

    def test_a_missing_object_is_named(self, store: Store) -> None:
        """The error for a missing object names the key, whether the store is empty or not."""
        with pytest.raises(ObjectNotFound, match=KEY):
            store.get(KEY, max_bytes=10)
        store.create("blobs/sha256/other", b"x")
        with pytest.raises(ObjectNotFound, match=KEY):
            store.head(KEY)

    def test_a_prefix_of_keys_is_not_an_object(self, store: Store) -> None:
        """A prefix of keys, called a folder in some stores, is not an object with bytes."""
        store.create(KEY, b"x")

        with pytest.raises(ObjectNotFound):
            store.get("blobs/sha256", max_bytes=10)

    def test_list_of_an_empty_store_is_empty(self, store: Store) -> None:
        """Listing a store that nobody has written to is not an error."""
        assert list_keys(store, "statements/app/") == []

    def test_list_returns_sorted_keys_that_begin_with_the_prefix(self, store: Store) -> None:
        """A prefix is text, not a folder. Keys are sorted, whatever order they were written in."""
        for key in ("s/b/2", "s/a-b/1", "s/a/9", "s/a/10", "t/a/1", "s/ab"):
            store.create(key, b"x")

        assert list_keys(store, "s/a") == ["s/a-b/1", "s/a/10", "s/a/9", "s/ab"]
        assert list_keys(store, "s/a/") == ["s/a/10", "s/a/9"]
        assert list_keys(store, "s/a/1") == ["s/a/10"]
        assert list_keys(store, "t") == ["t/a/1"]
        assert list_keys(store, "x/") == list_keys(store, "x/y") == []
        assert len(list_keys(store, "")) == 6

    def test_pages_tell_when_it_was_written_or_nothing(self, store: Store) -> None:
        """A listed time is the time of writing, or None if the store lists no times."""
        store.create(KEY, b"x")

        [[listed]] = [page for page in store.pages("blobs/") if page]

        if listed.modified_unix is not None:
            assert abs(listed.modified_unix - store.head(KEY).modified_unix) < 1

    def test_create_twice_with_the_same_bytes_is_success(self, store: Store, raw: Raw) -> None:
        """An interrupted push can be repeated even though some of its objects already exist."""
        store.create(KEY, b"same")

        store.create(KEY, b"same")

        assert raw.read(KEY) == b"same"

    @pytest.mark.parametrize("other", [b"othe", b"other", b"oth", b""])
    def test_create_never_overwrites(self, store: Store, raw: Raw, other: bytes) -> None:
        """Different bytes for an existing key are refused, whatever their length.

        The first bytes stay.
        """
        store.create(KEY, b"mine")

        with pytest.raises(ObjectExists):
            store.create(KEY, other)

        assert raw.read(KEY) == b"mine"

    def test_of_racing_writers_one_wins(self, store: Store, raw: Raw) -> None:
        """If eight writers race with different bytes, one wins, and the object is complete."""
        barrier = Barrier(8)
        contents = [bytes([number]) * 200_000 for number in range(8)]

        def write(data: bytes) -> bytes | None:
            barrier.wait()
            try:
                store.create(KEY, data)
            except ObjectExists:
                return None
            return data

        with ThreadPoolExecutor(8) as pool:
            winners = [data for data in pool.map(write, contents) if data is not None]

        assert winners == [raw.read(KEY)]

    def test_racing_writers_of_the_same_bytes_all_succeed(self, store: Store, raw: Raw) -> None:
        """Builders that publish the same blob at the same time do not interfere with each other."""
        barrier = Barrier(8)

        def write(data: bytes) -> None:
            barrier.wait()
            store.create(KEY, data)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, [b"same" * 50_000] * 8))

        assert raw.read(KEY) == b"same" * 50_000

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_lead_elsewhere_is_refused(self, store: Store, key: str) -> None:
        """Every method checks a key before the key becomes a path or an address."""
        with pytest.raises(StoreError, match="not a key"):
            store.create(key, b"x")
        with pytest.raises(StoreError, match="not a key"):
            store.get(key, max_bytes=10)
        with pytest.raises(StoreError, match="not a key"):
            store.head(key)
        with pytest.raises(StoreError, match="not a key"):
            store.delete(key)
        assert list_keys(store, "") == []

    def test_a_prefix_that_could_lead_elsewhere_is_refused(self, store: Store) -> None:
        """Listing cannot look outside the store."""
        with pytest.raises(StoreError, match="not a key"):
            list_keys(store, "../")

    @pytest.mark.parametrize("count", [0, 1, 3_000_001])
    def test_download_gives_each_byte_once(self, store: Store, raw: Raw, count: int) -> None:
        """The pieces, joined by their offsets, make up the object without gaps or overlaps."""
        data = bytes(range(251)) * (count // 251) + bytes(range(count % 251))
        raw.write(KEY, data)
        pieces: list[tuple[int, bytes]] = []

        store.download(store.head(KEY), lambda at, piece: pieces.append((at, bytes(piece))))

        ends = [0, *(at + len(piece) for at, piece in sorted(pieces))]
        assert [at for at, _ in sorted(pieces)] == ends[:-1]
        assert b"".join(piece for _, piece in sorted(pieces)) == data

    def test_download_notices_that_the_object_was_replaced(self, store: Store, raw: Raw) -> None:
        """A download returns the object that `head` found.

        If the object was replaced, the download raises an error, and never mixes the two objects.
        """
        raw.write(KEY, b"first" * 1000)
        found = store.head(KEY)
        raw.write(KEY, b"other" * 1000)

        with pytest.raises(StoreError, match="changed"):
            store.download(found, lambda _at, _piece: None)

    def test_download_of_what_is_gone_is_named(self, store: Store) -> None:
        """If an object is pruned after `head`, `download` raises ObjectNotFound."""
        store.create(KEY, b"x")
        found = store.head(KEY)
        store.delete(KEY)

        with pytest.raises(ObjectNotFound, match=KEY):
            store.download(found, lambda _at, _piece: None)

    def test_what_the_sink_raises_ends_the_download(self, store: Store) -> None:
        """An error from the caller's sink, such as a full disk, is raised unchanged."""
        store.create(KEY, b"x" * 3_000_000)

        def full(_at: int, _piece: bytes | memoryview) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space") as caught:
            store.download(store.head(KEY), full)

        assert not isinstance(caught.value, StoreError)

    def test_create_reads_a_file_from_its_beginning(self, store: Store, raw: Raw) -> None:
        """The whole file is stored, whatever the file's current position."""
        file = io.BytesIO(bytes(range(256)) * 10_000)
        file.seek(77)

        store.create(KEY, file)
        store.create(KEY, file)

        assert raw.read(KEY) == file.getvalue()

    def test_create_from_a_file_never_overwrites(self, store: Store, raw: Raw) -> None:
        """A key is written only once, even if the bytes come from a file."""
        store.create(KEY, b"mine")

        with pytest.raises(ObjectExists):
            store.create(KEY, io.BytesIO(b"other"))

        assert raw.read(KEY) == b"mine"

    def test_delete_removes_an_object_and_no_other(self, store: Store) -> None:
        """A deleted object is neither found nor listed, and objects with similar keys stay."""
        for key in ("s/a", "s/ab", "s/a-b/c"):
            store.create(key, b"x")

        store.delete("s/a")

        assert list_keys(store, "s/") == ["s/a-b/c", "s/ab"]
        with pytest.raises(ObjectNotFound):
            store.head("s/a")

    def test_delete_of_nothing_is_success(self, store: Store) -> None:
        """Two processes can prune a store at the same time without interfering with each other."""
        store.create("s/a", b"x")

        store.delete("s/a")
        store.delete("s/a")

        assert list_keys(store, "") == []

    def test_a_deleted_key_can_be_created_again(self, store: Store, raw: Raw) -> None:
        """After an object is deleted, its key can be written again."""
        store.create(KEY, b"old")
        store.delete(KEY)

        store.create(KEY, b"new")

        assert raw.read(KEY) == b"new"

    def test_head_tells_when_it_was_written(self, store: Store) -> None:
        """An object's time, in seconds since the epoch, is within an hour of the current time."""
        store.create(KEY, b"x")

        assert abs(store.head(KEY).modified_unix - time.time()) < 3600

    def test_the_uri_opens_the_same_store(self, store: Store) -> None:
        """`open_store` can open the address that logs and reports show."""
        store.create(KEY, b"x")

        assert list_keys(open_store(store.uri), "") == [KEY]
