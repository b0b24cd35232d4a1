# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order in which a pull reads the statements of a store, and where the pull stops.

Anyone with write access to a store can add any number of statements under any names. So the
number of listed and read statements is limited. A store of ordinary size is read in full. In a
larger store, statements whose name contains the fingerprint of this machine and app are read first.
Reading alternates between the newest and the oldest statements. So junk that is added later cannot
delay the oldest statements, and junk that was added earlier cannot delay the newest.

Statements that need much work are set aside until all others have been read. These are large
statements, and statements with signatures that name no trusted key. The work for those of them that
are refused is limited, so junk takes a bounded time.

Reading ends early if no unread statement can be chosen. Statements are signed before they are
stored. So every statement that was stored before the best statement's signing time is older than
the best statement.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from serve_warm._records import record
from serve_warm.artifact.manifest import Place
from serve_warm.artifact.statements import (
    STATEMENT_SUFFIX,
    Statement,
    generation,
    is_statement,
    statements_of,
    variant_of,
)
from serve_warm.stores import Listed, Page

MAX_KEYS = 20_000
"""Maximum number of objects in one listing, with those that the store leaves out. Statements beyond
this limit are looked up only by name."""

MAX_PAGES = 1_000
"""Maximum number of pages in one listing, because a store could send empty pages forever."""

READ_WHOLE = 256
"""If a deployment has at most this many statements, all of them are read. That takes up to a second
at 30 ms per round trip, with eight reads at once."""

MAX_READ = 512
"""Maximum number of statements read from a larger store. Half of these are the newest statements,
and half are the oldest."""

MAX_WORK_BYTES = 64 << 20
"""Maximum work for refused statements that were set aside (`Statement.work_bytes`)."""

CLOCK_SKEW_S = 3600.0
"""Maximum number of seconds by which a builder's clock may be ahead of the store's clock."""

Pages = Callable[[str], Iterator[Sequence[Listed]]]
"""Function that lists the keys with a prefix, page by page."""


@record(frozen=True, kw_only=True)
class ListedStatements:
    """The listed statements of a deployment. `is_whole` is False if the listing is incomplete."""

    statements: tuple[Listed, ...]
    is_whole: bool


def list_statements(pages: Pages, place: Place, *, variant: str | None) -> ListedStatements:
    """List the statements of a deployment; always include those with `variant` in their name.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = statements_of(place)
    listing = _list(pages(prefix))
    if listing.is_whole or variant is None:
        return listing
    by_name = f"{prefix}{variant}"
    # Add the variant even if it is not listed, because very many other names may come before it.
    first = Listed(key=f"{by_name}{STATEMENT_SUFFIX}", modified_unix=None)
    named = (first, *listing.statements, *_list(pages(by_name)).statements)
    by_key = {each.key: each for each in named}
    return ListedStatements(statements=tuple(by_key.values()), is_whole=False)


def _list(pages: Iterable[Sequence[Listed]]) -> ListedStatements:
    found: dict[str, Listed] = {}
    listed = 0
    for count, page in enumerate(pages, start=1):
        listed += len(page) + (page.left_out if isinstance(page, Page) else 0)
        found.update((each.key, each) for each in page if is_statement(each.key))
        if listed >= MAX_KEYS or count >= MAX_PAGES:
            return ListedStatements(statements=tuple(found.values()), is_whole=False)
    return ListedStatements(statements=tuple(found.values()), is_whole=True)


class ReadingOrder:
    """The reading order of a listing.

    Repeat until `take` returns no key: call `take`, read the statements with these keys, and call
    `note` or `set_aside` for each. Then do the same with `take_aside` and `note`.
    """

    def __init__(self, listing: ListedStatements, *, variant: str | None) -> None:
        self._queues: tuple[deque[Listed], deque[Listed]] = deque(), deque()
        for each in sorted(listing.statements, key=_age_key):
            is_named = variant is not None and variant_of(each.key) == variant
            self._queues[0 if is_named else 1].append(each)
        self._aside: deque[Listed] = deque()
        self._work_bytes = 0
        self._is_small = listing.is_whole and len(listing.statements) <= READ_WHOLE
        self._is_listed = listing.is_whole
        self._read: dict[str, Listed] = {}
        """The statements read so far, by key."""
        self._best_unix = -math.inf
        """Signing time of the best-fitting statement so far, in seconds since the epoch."""
        self._clock_is_right = True
        """False if any of the statements read so far was stored before it was signed."""

    @property
    def left(self) -> int:
        """The number of listed statements that are not yet read, or not completely."""
        return sum(map(len, (*self._queues, self._aside)))

    @property
    def is_complete(self) -> bool:
        """Whether the best statement is final, because no unread statement can be newer."""
        unread = (*self._newest_unread(), *self._aside)
        return self._is_settled(unread) or (self._is_listed and not self.left)

    def take(self, most: int) -> list[str]:
        """Return up to `most` keys to read next; empty if enough statements have been read."""
        if not self._is_small:
            is_settled = self._is_settled(self._newest_unread())
            most = 0 if is_settled else min(most, MAX_READ - len(self._read))
        keys: list[str] = []
        while len(keys) < most and (queue := next(filter(None, self._queues), None)):
            # Alternate between newest and oldest.
            each = queue.pop() if len(self._read) % 2 == 0 else queue.popleft()
            self._read[each.key] = each
            keys.append(each.key)
        return keys

    def set_aside(self, key: str) -> None:
        """Leave a statement for later, because it needs more work than others."""
        self._aside.append(self._read[key])

    def take_aside(self, most: int) -> list[str]:
        """Return up to `most` keys of statements that were set aside, in the same order."""
        if self._work_bytes >= MAX_WORK_BYTES or self._is_settled(self._aside):
            return []
        return [self._aside.popleft().key for _ in range(min(most, len(self._aside)))]

    def spend(self, work_bytes: int) -> None:
        """Record the work for a refused statement that had been set aside."""
        self._work_bytes += work_bytes

    def note(self, statement: Statement, *, fits: bool) -> None:
        """Record the signed creation time of a statement that was read and is trusted.

        `fits` says whether only a newer statement could be chosen instead.
        """
        if statement.readable is None:
            return
        signed_unix = statement.readable.manifest.created_unix
        stored_unix = self._read[statement.key].modified_unix
        if stored_unix is not None and stored_unix < signed_unix - CLOCK_SKEW_S:
            # This happens if the store was copied without its times. Then no time in the store is
            # reliable.
            self._clock_is_right = False
        if fits:
            self._best_unix = max(self._best_unix, signed_unix)

    def _newest_unread(self) -> list[Listed]:
        return [queue[-1] for queue in self._queues if queue]

    def _is_settled(self, unread: Iterable[Listed]) -> bool:
        newest = max((_age_key(each)[0] for each in unread), default=-math.inf)
        return self._is_listed and self._clock_is_right and newest < self._best_unix - CLOCK_SKEW_S


def _age_key(each: Listed) -> tuple[float, int, str]:
    # A statement whose time is unknown may be newer than all others.
    when = math.inf if each.modified_unix is None else each.modified_unix
    return when, generation(each.key), each.key
