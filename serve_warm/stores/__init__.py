# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where artifacts live: one protocol of eight methods, and the URI that chooses a store.

Stores keep bytes under keys and know nothing of artifacts. They are write-once, because a reader
that has checked an object must be able to rely on it, and they are not trusted: what they give is
checked by the caller (`serve_warm.artifact.statements`, `serve_warm.artifact.blobs`).
"""

from __future__ import annotations

import builtins
import os
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from serve_warm._store_address import check_scheme, split
from serve_warm._suggestions import did_you_mean
from serve_warm.errors import ConfigError, StoreError

PIECE_BYTES = 1 << 20
"""Read and written at once where nothing else decides."""


@dataclass(frozen=True, kw_only=True)
class Object:
    """What a store says about an object, without reading it."""

    key: str
    size_bytes: int
    modified_unix: float
    """When it was written, by the store's clock; seconds since the epoch."""
    version: str
    """Pins the bytes while they are read (an ETag, a commit); empty where the store has none."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a listing says about an object."""

    key: str
    modified_unix: float | None = None
    """When it was written, by the store's clock; None where a listing does not say so."""


Sink = Callable[[int, bytes | memoryview], None]
"""Takes a piece of an object and the offset it stands at. Pieces come in any order and from
several threads at once, and cover the object without gap or overlap."""


class Store(Protocol):
    """Bytes under keys, written once.

    A key is one or more names joined by `/`, as `check_key` says. Every method raises StoreError
    when the store cannot be reached, read or written, or when the key is none; of these
    StoreDenied says that trying again is of no use.
    """

    @property
    def uri(self) -> str:
        """What `open_store` opens again, without credentials; fit for logs."""

    def list(self, prefix: str) -> builtins.list[str]:
        """Return, sorted, every key that begins with `prefix`; none when the store is empty.

        It sees what others have done until now, also where reads are pinned to a moment.
        """

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield what `list` returns a page at a time, in any order.

        The store is asked for a page when that is wanted, so that whoever wants no more ends the
        listing. A page may be empty. Where the store can, it leaves out what comes before `prefix`
        without listing it.
        """

    def head(self, key: str) -> Object:
        """Return what is known of an object.

        Raises:
            ObjectNotFound: nothing is there.
        """

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object, reading at most one byte more than `max_bytes`.

        Raises:
            ObjectNotFound: nothing is there.
            ObjectTooLarge: it is larger than `max_bytes`.
        """

    def download(self, found: Object, sink: Sink) -> None:
        """Give all of an object to `sink`, in bounded memory; what `sink` raises ends it.

        Raises:
            ObjectNotFound: it is not there any more.
            StoreError: it is not what `head` found, or ended early; `sink` has had a part of it.
        """

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object whole or not at all; the same bytes being there already is success.

        A file is read from its beginning.

        Raises:
            ObjectExists: other bytes are there. They stay.
        """

    def delete(self, key: str) -> None:
        """Remove an object; that nothing is there is success."""


def open_store(uri: str) -> Store:
    """Return the store at `uri`; nothing is asked of it yet.

        ./artifacts   /srv/artifacts   file:///srv/artifacts     a folder
        s3://bucket/prefix   gs://bucket/prefix   az://container/prefix
        hf://owner/repo@revision/prefix                          a model repository of the Hub

    A relative path is taken from the working directory of this moment. `~` is not expanded: it
    would mean the home that the environment names, which differs between a shell and a replica.

    Raises:
        ConfigError: not such an address, or its package is not installed.
        StoreDenied: the environment of this machine does not configure such a store.
    """
    name, rest = split(uri)
    host = rest.removeprefix("//").partition("/")[0]
    # From here on no more than the scheme is repeated in errors: a URI may hold a password or a
    # presigned query.
    if name and ("?" in rest or "#" in rest or "@" in host):
        raise ConfigError(
            f"the address of a {name}: store has a query, a fragment or a user in it",
            hint="credentials come from the environment or the machine, never from the address",
        )
    check_scheme(uri)
    if not name:
        return _open_folder(uri)
    if name == "file":
        return _open_folder(_path_of(rest.removeprefix("//")))
    if name == "hf":
        from serve_warm.stores.hub import HubStore

        return HubStore.open(rest.removeprefix("//"))
    from serve_warm.stores.object_store import ObjectStore

    return ObjectStore.open(_BUCKETS[name], rest.removeprefix("//"))


def open_existing_store(uri: str) -> Store:
    """Return the store at `uri`, for those that only read it or remove from it.

    A folder has to be there: a mistyped one is no store that is empty. What else a store can be
    says so by itself when it is asked.

    Raises:
        ConfigError, StoreDenied: as `open_store`.
        StoreError: the folder is not there.
    """
    from serve_warm.stores.local import LocalStore

    store = open_store(uri)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        beside = store.root.parent
        names = [each.name for each in beside.iterdir()] if beside.is_dir() else []
        what = "is a file" if store.root.exists() else "is not there"
        raise StoreError(
            f"{store.root} {what}, and a store is a folder",
            hint=did_you_mean(store.root.name, names) or "check the path; build makes the folder",
        )
    return store


KINDS = {"file": "file", "s3": "s3", "gs": "gs", "az": "azure", "hf": "hf"}
"""What a store can be, in a word of whoever runs a fleet, by the scheme of its address."""


def kind_of(uri: str) -> str:
    """Return what kind of store is at an address; `none` where it is no address of a store.

    >>> kind_of("./artifacts"), kind_of("az://container/prefix")
    ('file', 'azure')
    """
    return KINDS.get(split(uri)[0] or "file", "none")


_BUCKETS: dict[str, Literal["s3", "gs", "az"]] = {"s3": "s3", "gs": "gs", "az": "az"}


def _path_of(path: str) -> str:
    platform: str = sys.platform
    if platform != "win32":
        return urllib.parse.unquote(path)
    from urllib.request import url2pathname

    return url2pathname(path)  # /C:/artifacts is C:\artifacts


def _open_folder(path: str) -> Store:
    from serve_warm.stores.local import LocalStore

    if not path or "\0" in path:
        raise ConfigError("the path of a store is empty or has a NUL in it", hint="name a folder")
    if path.startswith("~"):
        raise ConfigError(f"~ is not expanded in the path of a store: {path}", hint="write it out")
    # Without `..` and links: trusted keys may be limited to stores, by their addresses.
    return LocalStore(root=Path(os.path.realpath(path)))


def sort_keys(pages: Iterable[Sequence[Listed]]) -> list[str]:
    """Return the keys of a listing in order."""
    return sorted(each.key for page in pages for each in page)


def pieces_of(source: bytes | BinaryIO) -> Iterator[bytes]:
    """Yield what is to be stored, from its beginning, in pieces of `PIECE_BYTES`."""
    if isinstance(source, bytes):
        for start in range(0, len(source), PIECE_BYTES):
            yield source[start : start + PIECE_BYTES]
        return
    source.seek(0)
    while piece := source.read(PIECE_BYTES):
        yield piece


def check_key(key: str) -> None:
    """Refuse a key that some store could read as a way out of it.

    The names of a key have 1 to 255 bytes, the whole at most 1024. They hold no backslash and
    nothing unprintable, and do not begin with a dot: stores call their temporary files so.

    Raises:
        StoreError: not a key.
    """
    if not is_key(key):
        raise StoreError(f"not a key: {key[:80]!r}", key=key)


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no key can begin with.

    Raises:
        StoreError: not the beginning of a key.
    """
    if prefix:
        check_key(prefix.removesuffix("/"))


def is_key(key: str) -> bool:
    """Return whether `check_key` takes a key."""
    return (
        "\\" not in key
        and key.isprintable()
        and len(key.encode()) <= 1024
        and all(
            name and not name.startswith(".") and len(name.encode()) <= 255
            for name in key.split("/")
        )
    )
