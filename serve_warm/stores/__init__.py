# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Stores for artifacts: the interface of a store, and the addresses that select a store.

A store keeps bytes under keys and knows nothing about artifacts. Each object is written only once,
so an object that was checked cannot change. Stores are not trusted: callers check every object that
they read (`serve_warm.artifact.statements`, `serve_warm.artifact.blobs`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm._regular_files import open_regular
from serve_warm._store_address import (
    SCHEMES,
    check_scheme,
    folder_of,
    installed_opener,
    is_bucket,
    split,
)
from serve_warm.errors import (
    ConfigError,
    ServeWarmError,
    StoreDenied,
    StoreError,
    did_you_mean,
)

PIECE_BYTES = 1 << 20
"""The default size of one read or write, in bytes."""


@record(frozen=True, kw_only=True)
class Object:
    """Metadata of an object, which is known before the object is read."""

    key: str
    size_bytes: int
    modified_unix: float
    """Time at which the object was written, in seconds since the epoch, by the store's clock."""
    version: str
    """Identifier of the exact bytes (an ETag, a commit); empty if the store has no versions."""


@record(frozen=True, kw_only=True)
class Listed:
    """One object in a listing."""

    key: str
    modified_unix: float | None = None
    """Time at which the object was written, in seconds since the epoch, by the store's clock. None
    if the listing contains no times."""


class Page(list[Listed]):
    """A page of a listing from which the store has left out objects.

    >>> Page([Listed(key="a")], left_out=2).left_out
    2
    """

    def __init__(self, listed: Iterable[Listed], *, left_out: int) -> None:
        super().__init__(listed)
        self.left_out = left_out
        """Number of objects that the server sent and that are not in the page."""


Sink = Callable[[int, bytes | memoryview], None]
"""Function that is called with a piece and its offset. Calls come in any order and from several
threads at once. Together, the pieces cover the object without gaps or overlaps."""


class Store(Protocol):
    """Bytes under keys. Each key is written once.

    A key is one or more names joined by `/`; `check_key` has the rules. Every method raises
    StoreError if the key is invalid, or if the store cannot be reached, read or written to. The
    subclass StoreDenied means that a retry cannot help.
    """

    @property
    def uri(self) -> str:
        """The address of the store, as `open_store` accepts it.

        The address has no credentials and is safe to log.
        """

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield all keys that begin with `prefix`, one page at a time, in any order.

        The listing is current, even if the store reads objects from an older, pinned version.

        The store requests each page only when the caller needs it, so callers can stop early. A
        page can be empty. If possible, the store does not list the keys that sort before `prefix`.
        A `Page` also tells how many objects the store left out, which count towards limits.
        """

    def head(self, key: str) -> Object:
        """Return the metadata of an object.

        Raises:
            ObjectNotFound: the store has no object under this key.
        """

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return the bytes of an object; read at most `max_bytes` + 1 bytes.

        Raises:
            ObjectNotFound: the store has no object under this key.
            ObjectTooLarge: the object is larger than `max_bytes`.
        """

    def download(self, found: Object, sink: Sink) -> None:
        """Pass a whole object to `sink` in pieces, with bounded memory.

        If `sink` raises, the download stops, and the exception propagates.

        Raises:
            ObjectNotFound: the object no longer exists.
            StoreError: the object differs from `found` or ended early. `sink` may already have
                received pieces of the object.
        """

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object atomically; succeed if the key already holds the same bytes.

        If `source` is a file, it is read from offset 0.

        Raises:
            ObjectExists: the key already holds different bytes. They are not replaced.
        """

    def delete(self, key: str) -> None:
        """Remove an object; also succeed if the object does not exist."""


def open_store(uri: str) -> Store:
    """Return the store at `uri`, without contacting it.

        ./artifacts   /srv/artifacts   file:///srv/artifacts     a folder
        s3://bucket/prefix   gs://bucket/prefix   az://container/prefix
        hf://owner/repo@revision/prefix                          a model repository on the Hub
        x://…                    the entry point `x` in the group `serve_warm.stores`

    A relative path is resolved against the current working directory. `~` is not expanded: `$HOME`
    can differ between a shell and a replica.

    Raises:
        ConfigError: `uri` is not a store address, or the package for it is not installed.
        StoreDenied: on this machine, the environment variables for the store are missing or wrong.
    """
    name, rest = split(uri)
    host = rest.removeprefix("//").partition("/")[0]
    # From here on, errors repeat only the scheme: a URI may hold a password or a presigned query.
    if name and ("?" in rest or "#" in rest or "@" in host):
        raise ConfigError(
            f"{name}:// addresses must not contain a query, a fragment or a user",
            hint="remove this part of the address: serve_warm reads credentials only from the "
            "environment or the machine",
        )
    check_scheme(uri)
    if not name:
        return _open_folder(uri)
    if name == "file":
        return _open_folder(str(folder_of(uri)))
    if name == "hf":
        from serve_warm.stores.hub import HubStore

        return HubStore.open(rest.removeprefix("//"))
    if is_bucket(name):
        from serve_warm.stores.object_store import ObjectStore

        return ObjectStore.open(name, rest.removeprefix("//"))
    return _open_installed(name, uri)


def open_existing_store(uri: str) -> Store:
    """Return the store at `uri`, for callers that only read or delete objects.

    If the store is a folder, the folder must exist. Otherwise, a mistyped path would look like an
    empty store. Other kinds of stores report a wrong address on first use.

    Raises:
        ConfigError, StoreDenied: as `open_store`.
        StoreError: the folder does not exist.
    """
    store = open_store(uri)
    missing = find_missing_folder(store)
    if missing is not None:
        raise StoreError(
            f"{missing}, but the store must be an existing folder",
            hint=missing.near or "check the path; `serve-warm build` creates the folder",
        )
    return store


@record(frozen=True, kw_only=True)
class MissingFolder:
    """A folder store whose path is not a folder."""

    folder: Path
    is_file: bool
    near: str
    """A question such as "did you mean 'artifacts'?", which suggests a folder with a similar name
    in the same parent folder; empty if there is no such folder."""

    def __str__(self) -> str:
        return f"{self.folder} {'is a file' if self.is_file else 'does not exist'}"


def find_missing_folder(store: Store, *, holding: str = "") -> MissingFolder | None:
    """Return details if `store` is a folder store whose folder does not exist, else None.

    Only folders with the subfolder `holding` are suggested.
    """
    folder = folder_of(store.uri)
    if folder is None:
        return None
    try:
        if folder.is_dir():
            return None
        beside = list(folder.parent.iterdir()) if folder.parent.is_dir() else []
        near = did_you_mean(folder.name, [e.name for e in beside if (e / holding).is_dir()])
        return MissingFolder(folder=folder, is_file=folder.exists(), near=near)
    except OSError:
        return None  # reading the store will report the error


def kind_of(uri: str) -> str:
    """Return the kind of store at `uri`, or "none" if `uri` is not a store address.

    The kind of a store from an installed package is "other".

    >>> kind_of("./artifacts"), kind_of("az://container/prefix")
    ('file', 'azure')
    """
    name = split(uri)[0] or "file"
    if name in SCHEMES:
        return SCHEMES[name].kind
    return "none" if installed_opener(name) is None else "other"


def _open_folder(path: str) -> Store:
    from serve_warm.stores.local import LocalStore

    if not path or "\0" in path:
        raise ConfigError("the store path is empty or contains a NUL byte", hint="use a folder")
    if path.startswith("~"):
        raise ConfigError(f"~ is not expanded in a store path: {path}", hint="write the full path")
    # Resolve `..` and links, because a trusted key can be limited to stores by address.
    return LocalStore(root=Path(os.path.realpath(path)))


def _open_installed(name: str, uri: str) -> Store:
    found = installed_opener(name)
    if found is None:  # check_scheme has refused this scheme
        raise ConfigError(f"unknown store scheme {name}://")
    what = f"{found.value}, which opens {name}:// stores,"
    opener = None
    try:
        opener = found.load()
        store = opener(uri)
        own_uri = getattr(store, "uri", "")
    except ServeWarmError:
        raise
    except Exception as error:  # noqa: BLE001 - code of another package
        # Drop the error, because its text may contain the address.
        failure, hint = f"failed: {type(error).__name__}", "install or fix that package"
        if opener is None and isinstance(error, (ImportError, AttributeError)):
            failure = f"cannot be imported: {error}"
        # Only a package that cannot be imported fails a start. Another one may be unreachable.
        kind = ConfigError if opener is None else StoreDenied
        raise kind(f"{what} {failure}", hint=hint) from None
    members = (member for member in vars(Store) if not member.startswith("_"))
    missing = [member for member in members if not hasattr(store, member)]
    if missing:
        raise ConfigError(
            f"{found.value}, which opens {name}:// stores, returned a {type(store).__name__} "
            f"without {', '.join(missing)}",
            hint="return a store with all methods; test it with serve_warm.testing.StoreContract",
        )
    from serve_warm.stores.installed import InstalledStore

    return InstalledStore(store=store, package=found.value, uri=own_uri)


MAX_LISTED_KEYS = 1_000_000
"""Maximum number of keys in a complete listing. Each takes about 200 bytes of memory."""

MAX_EMPTY_PAGES = 1_000
"""Maximum number of empty pages in succession, because a store could send them without end."""


def list_keys(store: Store, prefix: str) -> list[str]:
    """Return all keys that begin with `prefix`, sorted.

    Raises:
        StoreError: the store could not be read, or its listing seems to have no end.
    """
    keys: list[str] = []
    empty = 0
    for page in store.pages(prefix):
        keys += [each.key for each in page]
        empty = 0 if page else empty + 1
        if len(keys) > MAX_LISTED_KEYS or empty > MAX_EMPTY_PAGES:
            what = f"{len(keys)} keys" if empty == 0 else f"{empty} empty pages in succession"
            raise StoreError(
                f"{store.uri}: the listing of {prefix!r} does not end: it has {what} so far",
                hint="use another prefix for this store, or delete what is not an artifact",
            )
    return sorted(keys)


def pieces_of(source: bytes | BinaryIO) -> Iterator[bytes]:
    """Yield `source` from its beginning, in pieces of `PIECE_BYTES`."""
    if isinstance(source, bytes):
        for start in range(0, len(source), PIECE_BYTES):
            yield source[start : start + PIECE_BYTES]
        return
    source.seek(0)
    while piece := source.read(PIECE_BYTES):
        yield piece


def check_credential_file(uri: str, *, name: str, path: str) -> None:
    """Refuse a pipe, folder or device in place of a file that a client reads.

    The client would wait for a pipe without a limit, and reports other problems itself. `name` is
    the environment variable with the path.

    Raises:
        StoreDenied: the path names something that is not a regular file.
    """
    try:
        os.close(open_regular(path, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR):
            raise StoreDenied(
                f"{uri}: cannot read {name}={path} ({error.strerror})",
                hint=f"mount the file, or correct {name}",
            ) from error


def explain_change(store: str, key: str) -> StoreError:
    """Return the error for an object that another process changed during a read."""
    return StoreError(f"{store}: {key!r} was changed while it was being read")


def check_key(key: str) -> None:
    """Raise if a key is invalid, for example because it could name a path outside the store.

    Each name in a key has 1 to 255 bytes, and the whole key has at most 1024 bytes. Names contain
    no backslash and no unprintable characters. Names do not begin with a dot, because stores use
    such names for temporary files.

    Raises:
        StoreError: the key is invalid.
    """
    if not is_key(key):
        raise StoreError(f"not a key: {excerpt(key, 80)!r}")


def check_prefix(prefix: str) -> None:
    """Raise if no valid key can begin with `prefix`.

    Raises:
        StoreError: the prefix is invalid.
    """
    if prefix:
        check_key(prefix.removesuffix("/"))


def is_key(key: str) -> bool:
    """Return whether `check_key` accepts a key."""
    return (
        "\\" not in key
        and key.isprintable()
        and len(key.encode()) <= 1024
        and all(
            name and not name.startswith(".") and len(name.encode()) <= 255
            for name in key.split("/")
        )
    )
