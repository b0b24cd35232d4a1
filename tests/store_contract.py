# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What every store must do. A store's test file subclasses StoreContract and inherits the tests.

The subclass gives two fixtures: `store`, an empty one, and `raw`, which reads and writes what is
behind it without going through the store, so that a bug in `create` is not hidden by the same bug
in `get`.
"""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Protocol

import pytest

from serve_warm.errors import ObjectExists, ObjectNotFound, ObjectTooLarge, StoreError
from serve_warm.stores import open_store

if TYPE_CHECKING:
    from serve_warm.stores import Store

KEY = "blobs/sha256/00ff"
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
    def read(self, key: str) -> bytes: ...

    def write(self, key: str, data: bytes) -> None: ...


class StoreContract:
    def test_create_stores_the_bytes_as_they_are(self, store: Store, raw: Raw):
        """What is behind the key afterwards is what was given, byte for byte."""
        data = bytes(range(256)) * 20_000

        store.create(KEY, data)

        assert raw.read(KEY) == data

    def test_get_returns_what_is_there(self, store: Store, raw: Raw):
        """An object that another program wrote is read as it is."""
        raw.write(KEY, b"\0 any bytes\r\n")

        data = store.get(KEY, max_bytes=1000)

        assert data == b"\0 any bytes\r\n"

    def test_get_takes_an_object_of_just_the_limit(self, store: Store, raw: Raw):
        """The limit is inclusive."""
        raw.write(KEY, b"12345")

        assert store.get(KEY, max_bytes=5) == b"12345"

    def test_get_refuses_an_object_over_the_limit(self, store: Store, raw: Raw):
        """One byte more than the limit is an error, never a cut-off object."""
        raw.write(KEY, b"123456")

        with pytest.raises(ObjectTooLarge, match="larger than 5 bytes"):
            store.get(KEY, max_bytes=5)

    def test_an_empty_object_is_an_object(self, store: Store):
        """No bytes are stored, found, sized and listed like any others."""
        store.create(KEY, b"")

        assert (store.get(KEY, max_bytes=0), store.head(KEY).size_bytes) == (b"", 0)
        assert store.list("") == [KEY]

    def test_size_counts_bytes(self, store: Store, raw: Raw):
        """The size is that of the object, without reading it."""
        raw.write(KEY, b"x" * 12_345)

        assert store.head(KEY).size_bytes == 12_345

    def test_a_missing_object_is_named(self, store: Store):
        """Reading what is not there says which key, in an empty store and in a used one."""
        with pytest.raises(ObjectNotFound, match=KEY):
            store.get(KEY, max_bytes=10)
        store.create("blobs/sha256/other", b"x")
        with pytest.raises(ObjectNotFound, match=KEY):
            store.head(KEY)

    def test_a_prefix_of_keys_is_not_an_object(self, store: Store):
        """What other stores call a folder has no bytes."""
        store.create(KEY, b"x")

        with pytest.raises(ObjectNotFound):
            store.get("blobs/sha256", max_bytes=10)

    def test_list_of_an_empty_store_is_empty(self, store: Store):
        """A store that nobody has written to is no error."""
        assert store.list("statements/app/") == []

    def test_list_returns_sorted_keys_that_begin_with_the_prefix(self, store: Store):
        """A prefix is text, not a folder, and keys come in order however they were written."""
        for key in ("s/b/2", "s/a-b/1", "s/a/9", "s/a/10", "t/a/1", "s/ab"):
            store.create(key, b"x")

        assert store.list("s/a") == ["s/a-b/1", "s/a/10", "s/a/9", "s/ab"]
        assert store.list("s/a/") == ["s/a/10", "s/a/9"]
        assert store.list("s/a/1") == ["s/a/10"]
        assert store.list("x/") == []
        assert len(store.list("")) == 6

    def test_pages_are_what_list_returns(self, store: Store):
        """Together the pages have each key that begins with the prefix once, in some order."""
        for key in ("s/b/2", "s/a-b/1", "s/a/9", "s/a/10", "t/a/1", "s/ab"):
            store.create(key, b"x")

        for prefix in ("s/a", "s/a/", "s/a/1", "s/ab", "x/", "x/y", "t", ""):
            paged = [each.key for page in store.pages(prefix) for each in page]
            assert sorted(paged) == store.list(prefix)

    def test_pages_tell_when_it_was_written_or_nothing(self, store: Store):
        """A time of a listing is that of the object; a store that lists none says so."""
        store.create(KEY, b"x")

        [[listed]] = [page for page in store.pages("blobs/") if page]

        if listed.modified_unix is not None:
            assert abs(listed.modified_unix - store.head(KEY).modified_unix) < 1

    def test_a_prefix_that_could_lead_elsewhere_has_no_pages(self, store: Store):
        """Nor can a listing by pages look outside."""
        with pytest.raises(StoreError, match="not a key"):
            list(store.pages("../"))

    def test_create_twice_with_the_same_bytes_is_success(self, store: Store, raw: Raw):
        """A push that is repeated after an interruption finds its own objects and goes on."""
        store.create(KEY, b"same")

        store.create(KEY, b"same")

        assert raw.read(KEY) == b"same"

    @pytest.mark.parametrize("other", [b"othe", b"other", b"oth", b""])
    def test_create_never_overwrites(self, store: Store, raw: Raw, other: bytes):
        """Other bytes under a taken key are refused, whatever their length, and the first stay."""
        store.create(KEY, b"mine")

        with pytest.raises(ObjectExists):
            store.create(KEY, other)

        assert raw.read(KEY) == b"mine"

    def test_of_racing_writers_one_wins(self, store: Store, raw: Raw):
        """Of eight writers of different bytes one succeeds, and its object is whole."""
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

    def test_racing_writers_of_the_same_bytes_all_succeed(self, store: Store, raw: Raw):
        """Two builders that publish the same blob do not disturb each other."""
        barrier = Barrier(8)

        def write(data: bytes) -> None:
            barrier.wait()
            store.create(KEY, data)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, [b"same" * 50_000] * 8))

        assert raw.read(KEY) == b"same" * 50_000

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_lead_elsewhere_is_refused(self, store: Store, key: str):
        """Keys are checked before they become a path or an address, by every method."""
        with pytest.raises(StoreError, match="not a key"):
            store.create(key, b"x")
        with pytest.raises(StoreError, match="not a key"):
            store.get(key, max_bytes=10)
        with pytest.raises(StoreError, match="not a key"):
            store.head(key)
        with pytest.raises(StoreError, match="not a key"):
            store.delete(key)
        assert store.list("") == []

    def test_a_prefix_that_could_lead_elsewhere_is_refused(self, store: Store):
        """Listing cannot look outside either."""
        with pytest.raises(StoreError, match="not a key"):
            store.list("../")

    @pytest.mark.parametrize("count", [0, 1, 3_000_001])
    def test_download_gives_each_byte_once(self, store: Store, raw: Raw, count: int):
        """Put together by their offsets the pieces are the object, without gap or overlap."""
        data = bytes(range(251)) * (count // 251) + bytes(range(count % 251))
        raw.write(KEY, data)
        pieces: list[tuple[int, bytes]] = []

        store.download(store.head(KEY), lambda at, piece: pieces.append((at, bytes(piece))))

        ends = [0, *(at + len(piece) for at, piece in sorted(pieces))]
        assert [at for at, _ in sorted(pieces)] == ends[:-1]
        assert b"".join(piece for _, piece in sorted(pieces)) == data

    def test_download_notices_that_the_object_was_replaced(self, store: Store, raw: Raw):
        """What `head` found is pinned: other bytes of the same size are an error, not a mix."""
        raw.write(KEY, b"first" * 1000)
        found = store.head(KEY)
        raw.write(KEY, b"other" * 1000)

        with pytest.raises(StoreError, match="changed"):
            store.download(found, lambda _at, _piece: None)

    def test_download_of_what_is_gone_is_named(self, store: Store):
        """An object that was pruned after it was found is not found."""
        store.create(KEY, b"x")
        found = store.head(KEY)
        store.delete(KEY)

        with pytest.raises(ObjectNotFound, match=KEY):
            store.download(found, lambda _at, _piece: None)

    def test_what_the_sink_raises_ends_the_download(self, store: Store):
        """A full disk is the caller's trouble: its error comes out as it is."""
        store.create(KEY, b"x" * 3_000_000)

        def full(_at: int, _piece: bytes | memoryview) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space") as caught:
            store.download(store.head(KEY), full)

        assert not isinstance(caught.value, StoreError)

    def test_create_reads_a_file_from_its_beginning(self, store: Store, raw: Raw):
        """Wherever a file was left by whoever wrote it, all of it is stored."""
        file = io.BytesIO(bytes(range(256)) * 10_000)
        file.seek(77)

        store.create(KEY, file)
        store.create(KEY, file)

        assert raw.read(KEY) == file.getvalue()

    def test_create_from_a_file_never_overwrites(self, store: Store, raw: Raw):
        """Write-once holds however the bytes are given."""
        store.create(KEY, b"mine")

        with pytest.raises(ObjectExists):
            store.create(KEY, io.BytesIO(b"other"))

        assert raw.read(KEY) == b"mine"

    def test_delete_removes_an_object_and_no_other(self, store: Store):
        """What is deleted is neither found nor listed, and its neighbours stay."""
        for key in ("s/a", "s/ab", "s/a-b/c"):
            store.create(key, b"x")

        store.delete("s/a")

        assert store.list("s/") == ["s/a-b/c", "s/ab"]
        with pytest.raises(ObjectNotFound):
            store.head("s/a")

    def test_delete_of_nothing_is_success(self, store: Store):
        """Two that prune at once do not disturb each other."""
        store.create("s/a", b"x")

        store.delete("s/a")
        store.delete("s/a")

        assert store.list("") == []

    def test_a_deleted_key_can_be_created_again(self, store: Store, raw: Raw):
        """Pruning frees the name."""
        store.create(KEY, b"old")
        store.delete(KEY)

        store.create(KEY, b"new")

        assert raw.read(KEY) == b"new"

    def test_head_tells_when_it_was_written(self, store: Store):
        """The time is in seconds since the epoch, and of about now."""
        store.create(KEY, b"x")

        assert abs(store.head(KEY).modified_unix - time.time()) < 3600

    def test_the_uri_opens_the_same_store(self, store: Store):
        """What logs and reports show can be opened again."""
        store.create(KEY, b"x")

        assert open_store(store.uri).list("") == [KEY]
