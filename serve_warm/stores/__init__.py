# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where artifacts live: one protocol of four methods, and the URI that chooses a store.

Stores keep bytes under keys and know nothing of artifacts. They are write-once, because a reader
that has checked an object must be able to rely on it, and they are not trusted: what they give is
checked by the caller (`serve_warm.transfer`).
"""

from __future__ import annotations

import builtins
import re
import urllib.parse
from pathlib import Path
from typing import Protocol

from serve_warm.errors import ConfigError, StoreError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Store(Protocol):
    """Bytes under keys, written once.

    A key is one or more names joined by `/`, as `check_key` says. Every method raises StoreError
    when the store cannot be reached, read or written, or when the key is none.
    """

    @property
    def uri(self) -> str:
        """What `open_store` opens again, without credentials; fit for logs."""

    def list(self, prefix: str) -> builtins.list[str]:
        """Return, sorted, every key that begins with `prefix`; none when the store is empty."""

    def size(self, key: str) -> int:
        """Return the bytes of an object.

        Raises:
            ObjectNotFound: nothing is there.
        """

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object, reading at most one byte more than `max_bytes`.

        Raises:
            ObjectNotFound: nothing is there.
            ObjectTooLarge: it is larger than `max_bytes`.
        """

    def create(self, key: str, data: bytes) -> None:
        """Store an object whole or not at all; the same bytes being there already is success.

        Raises:
            ObjectExists: other bytes are there. They stay.
        """


def open_store(uri: str) -> Store:
    """Return the store at `uri`: a folder, as a path or as `file:///absolute/path`.

    A relative path is taken from the working directory of this moment. `~` is not expanded: it
    would mean the home that the environment names, which differs between a shell and a replica.

    Raises:
        ConfigError: not a folder.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return _open_folder(uri)
    name, rest = scheme.group(1).lower(), uri[scheme.end() :]
    if name == "file" and rest.startswith("///"):
        return _open_folder(urllib.parse.unquote(rest.removeprefix("//")))
    # From here on only the scheme is repeated: a URI may hold a password or a presigned query.
    if name in ("http", "https"):
        raise ConfigError(
            f"{name}:// is not a store: whoever sets the address could make replicas call any host",
            hint="name a folder: ./artifacts or file:///srv/artifacts",
        )
    if name in ("s3", "gs", "az", "hf"):
        raise ConfigError(
            f"{name}:// cannot be opened: this release reads folders only",
            hint="copy or mount it as a folder, and name that: file:///srv/artifacts",
        )
    raise ConfigError(
        f"{name}: does not begin the address of a store",
        hint="name a folder: ./artifacts or file:///srv/artifacts",
    )


def _open_folder(path: str) -> Store:
    from serve_warm.stores.local import LocalStore

    if not path or "\0" in path:
        raise ConfigError("the path of a store is empty or has a NUL in it", hint="name a folder")
    if path.startswith("~"):
        raise ConfigError(f"~ is not expanded in the path of a store: {path}", hint="write it out")
    return LocalStore(root=Path(path).absolute())


def check_key(key: str) -> None:
    """Refuse a key that some store could read as a way out of it.

    The names of a key have 1 to 255 bytes, the whole at most 1024. They hold no backslash and
    nothing unprintable, and do not begin with a dot: stores call their temporary files so.

    Raises:
        StoreError: not a key.
    """
    names = key.split("/")
    if (
        "\\" in key
        or not key.isprintable()
        or len(key.encode()) > 1024
        or any(not name or name.startswith(".") or len(name.encode()) > 255 for name in names)
    ):
        raise StoreError(f"not a key: {key[:80]!r}", key=key)
