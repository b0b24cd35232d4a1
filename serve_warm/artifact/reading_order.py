# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order in which a pull reads the statements of a store, and where it stops.

Whoever may write to a store decides how many statements it has, what they are called and, by
writing them now, when they were written. So a listing is bounded, and so is what is read of it. A
store of ordinary size is read whole. In a larger one the statements that are named after this
machine and app come first, and from both ends of time: junk that was added later stands before none
of the oldest, and junk that was there before stands before none of the newest.

Reading ends early where nothing that is left can be chosen: a statement cannot be in a store before
it was signed, so those written before the best one was signed are older than it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from serve_warm.artifact.statements import (
    STATEMENT_SUFFIX,
    Statement,
    generation,
    is_statement,
    statements_of,
    variant_of,
)
from serve_warm.stores import Listed

MAX_KEYS = 20_000
"""Objects of one listing. What is listed beyond is only looked for by its name."""

MAX_PAGES = 1_000
"""Pages of one listing: a page may be empty, and there may be no end of them."""

READ_WHOLE = 256
"""A store with so many statements of a deployment is read whole: a second, at a round trip of 30 ms
and eight at once."""

MAX_READ = 512
"""Statements that are read of a larger one, half of them from each end of time."""

CLOCK_SKEW_S = 3600.0
"""How far the clock of a builder may be ahead of that of the store."""

Pages = Callable[[str], Iterator[Sequence[Listed]]]
"""What gives the pages of a listing by a prefix."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The statements of a deployment, as far as they were listed."""

    statements: tuple[Listed, ...]
    is_whole: bool


def list_statements(pages: Pages, deployment: str, *, variant: str | None) -> Listing:
    """List the statements of a deployment, and in any case those that are named after `variant`.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = statements_of(deployment)
    found, is_whole = _list(pages(prefix))
    if not is_whole and variant is not None:
        by_name = f"{prefix}{variant}"
        named, _ = _list(pages(by_name))
        # Without a listing as well: others may have made names without end that come before it.
        first = Listed(key=f"{by_name}{STATEMENT_SUFFIX}", modified_unix=None)
        found = {first.key: first, **found, **named}
    return Listing(statements=tuple(found.values()), is_whole=is_whole)


def _list(pages: Iterable[Sequence[Listed]]) -> tuple[dict[str, Listed], bool]:
    found: dict[str, Listed] = {}
    listed = 0
    for count, page in enumerate(pages, start=1):
        listed += len(page)
        found.update((each.key, each) for each in page if is_statement(each.key))
        if listed >= MAX_KEYS or count >= MAX_PAGES:
            return found, False
    return found, True


class ReadingOrder:
    """The statements of a listing: `take` some, read and `note` them, until none come."""

    def __init__(self, listing: Listing, *, variant: str | None) -> None:
        self._queues: tuple[deque[Listed], deque[Listed]] = deque(), deque()
        for each in sorted(listing.statements, key=_age_key):
            is_named = variant is not None and variant_of(each.key) == variant
            self._queues[0 if is_named else 1].append(each)
        self._is_small = listing.is_whole and len(listing.statements) <= READ_WHOLE
        self._is_listed = listing.is_whole
        self._read: dict[str, float] = {}
        """Seconds since the epoch at which each was written, by its key."""
        self._best_unix = -math.inf
        """When the best one of those that fit was signed."""
        self._clock_is_right = True
        """Whether every statement was written after it was signed."""

    @property
    def left(self) -> int:
        """How many of those that were listed are not read."""
        return sum(map(len, self._queues))

    @property
    def is_complete(self) -> bool:
        """Whether nothing that is not read can be newer than the best one."""
        return self._is_settled() or (self._is_listed and not self.left)

    def take(self, most: int) -> list[str]:
        """Return the keys to read next; none where enough was read."""
        if not self._is_small:
            most = 0 if self._is_settled() else min(most, MAX_READ - len(self._read))
        keys: list[str] = []
        while len(keys) < most and (queue := next(filter(None, self._queues), None)):
            # By turns from both ends.
            each = queue.pop() if len(self._read) % 2 == 0 else queue.popleft()
            self._read[each.key] = math.nan if each.modified_unix is None else each.modified_unix
            keys.append(each.key)
        return keys

    def note(self, statement: Statement, *, fits: bool) -> None:
        """Note when a statement that was read was signed, if that is believed."""
        if statement.manifest is None:
            return
        signed_unix = _read_created_unix(statement.manifest.created)
        if self._read[statement.key] < signed_unix - CLOCK_SKEW_S:
            # A copy that keeps no times, for example: they say nothing about the others either.
            self._clock_is_right = False
        if fits:
            self._best_unix = max(self._best_unix, signed_unix)

    def _is_settled(self) -> bool:
        newest = max((_age_key(queue[-1])[0] for queue in self._queues if queue), default=-math.inf)
        return self._is_listed and self._clock_is_right and newest < self._best_unix - CLOCK_SKEW_S


def _age_key(each: Listed) -> tuple[float, int, str]:
    # One whose time is not known may be newer than any.
    when = math.inf if each.modified_unix is None else each.modified_unix
    return when, generation(each.key), each.key


def _read_created_unix(created: str) -> float:
    return datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
