# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Stores of other packages: whatever they raise or return is a failure of the store.

Such a failure costs a replica its artifact, and never its start.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

from serve_warm._records import record
from serve_warm._redaction import describe_error, tainted
from serve_warm.errors import ServeWarmError, StoreError
from serve_warm.stores import Listed, Object, Page, Sink, Store

T = TypeVar("T")

HINT = "this is a bug in the store's package: report it there, or use another store"


@record(frozen=True, kw_only=True)
class InstalledStore:
    """A store of another package, with the promises of `Store` about errors and types.

    Bugs are reported as StoreError, because some of them depend on the answer of a server.
    """

    store: Store
    package: str
    """The entry point that made the store."""
    uri: str

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        """Yield the pages of the store."""
        pages = self._ask("list", prefix, lambda: iter(self.store.pages(prefix)))

        def read() -> Page | None:
            for page in pages:
                left_out = page.left_out if isinstance(page, Page) else 0
                return Page((_check(each, Listed) for each in page), left_out=left_out)
            return None

        while (page := self._ask("list", prefix, read)) is not None:
            yield page

    def head(self, key: str) -> Object:
        """Return the metadata of an object."""
        return self._ask("read", key, lambda: _check(self.store.head(key), Object))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object of at most `max_bytes`."""
        ask = functools.partial(self.store.get, key, max_bytes=max_bytes)
        return self._ask("read", key, lambda: _check(ask(), bytes))

    def download(self, found: Object, sink: Sink) -> None:
        """Pass an object to `sink`, whose exceptions are passed on."""
        raised: list[Exception] = []

        def forward(offset: int, piece: bytes | memoryview) -> None:
            caught = _Caught()
            with caught:
                sink(offset, piece)
                return
            raised.append(caught.error)
            raise caught.error

        self._ask("read", found.key, lambda: self.store.download(found, forward), passed=raised)

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        """Store an object."""
        self._ask("write", key, lambda: self.store.create(key, source))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._ask("delete", key, lambda: self.store.delete(key))

    def _ask(
        self, verb: str, key: str, ask: Callable[[], T], passed: Sequence[Exception] = ()
    ) -> T:
        caught = _Caught()
        with caught:
            return ask()
        error = caught.error
        if any(error is each for each in passed):
            raise error
        # Outside of any `except` block, so that the foreign exception, whose text may contain a
        # credential, does not become the context of the new one.
        raise StoreError(
            f"{self.uri}: cannot {verb} {key!r}: {self.package} failed: {describe_error(error)}",
            hint=HINT,
        ) from tainted(error)


def _check(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"returned a {type(value).__name__} instead of {kind.__name__}")
    return value


class _Caught(AbstractContextManager["_Caught"]):
    """Catches each exception of another package, and no exception of serve_warm."""

    error: Exception

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, ServeWarmError):
            self.error = error
            return True
        return False
