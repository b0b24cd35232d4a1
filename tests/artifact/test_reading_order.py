# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a pull reads of a store that somebody floods, and that nobody can hide a newer artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from artifacts import APPLICATION, DEPLOYMENT, PLACE, MemoryStore, fingerprint, trusting
from serve_warm.artifact.pull import explain, find_fitting
from serve_warm.artifact.reading_order import MAX_KEYS, MAX_PAGES, MAX_READ, READ_WHOLE
from serve_warm.errors import ArtifactNotFound, ArtifactRefused
from serve_warm.stores import Listed
from transfers import KEY, NEWER, NEWEST, OLDER, publish, pull_here, supersede, warnings

JUNK = 3 * MAX_KEYS
VARIANT = fingerprint().key
FOLDER = f"statements/{APPLICATION}/{DEPLOYMENT}/"


def unix(created: str) -> float:
    return datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()


@dataclass
class Flooded(MemoryStore):
    """A store with published artifacts and junk that counts its pages and returns times."""

    pages_given: int = 0
    tells_times: bool = True
    junk: dict[str, float] = field(default_factory=dict)
    """Its keys in the order in which they are listed, and their times."""
    junk_first: bool = True

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        own = {key: self.modified[key] for key in self.objects}
        both = {**self.junk, **own} if self.junk_first else {**own, **self.junk}
        keys = [key for key in both if key.startswith(prefix)]
        for start in range(0, len(keys), 1000):
            self.pages_given += 1
            yield [
                Listed(key=key, modified_unix=both[key] if self.tells_times else None)
                for key in keys[start : start + 1000]
            ]

    def get(self, key: str, *, max_bytes: int) -> bytes:
        if key in self.junk:
            self.read.append(key)
            return b"junk"
        return super().get(key, max_bytes=max_bytes)

    @property
    def statements_read(self) -> int:
        return sum(key.startswith("statements/") for key in self.read)


def flood(store: Flooded, name: str, *, count: int = JUNK, at: str = NEWEST) -> None:
    """Add junk; the name has `{}` for a number, and the time is that of its writing."""
    store.junk |= {FOLDER + name.format(number): unix(at) + number for number in range(count)}


def published(store: Flooded, created: str, **fields: Any) -> str:
    """Publish, as of a second after the artifact was signed."""
    key, _ = supersede(store, created=created, **fields)
    store.modified[key] = unix(created) + 1
    return key


@pytest.fixture
def store() -> Flooded:
    return Flooded()


NAMES = {
    "any names": "{:08}.dsse.json",
    "names of variants": "{:016x}.dsse.json",
    "names of this variant": VARIANT + "-s{:08x}.dsse.json",
    "generations of this variant": VARIANT + "-g1{:05}.dsse.json",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(
    ("at", "tells_times"),
    [(OLDER, True), (NEWEST, True), (NEWEST, False)],
    ids=["before", "after", "no times"],
)
def test_junk_does_not_turn_a_hit_into_a_miss(
    store: Flooded, name: str, at: str, *, tells_times: bool
):
    """A flood beyond every limit costs a start a bounded number of reads, and not the artifact."""
    key = published(store, NEWER)
    store.tells_times = tells_times
    flood(store, name, at=at)
    store.read.clear()
    assert pull_here(store).chosen.key == key
    assert store.statements_read <= MAX_READ
    assert store.pages_given <= 2 * MAX_KEYS / 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_junk_hides_no_newer_generation(store: Flooded, name: str):
    published(store, OLDER)
    newest = published(store, NEWEST, raw={"cache": b"newer"})
    flood(store, name, count=10_000, at="2027-01-01T00:00:00.000000Z")
    assert pull_here(store).chosen.key == newest


@pytest.mark.parametrize("tells_times", [True, False])
def test_an_old_statement_that_is_written_again_is_no_rollback(
    store: Flooded, *, tells_times: bool
):
    """The signed time decides, however new a copy looks to the store."""
    old = published(store, "2026-11-01T10:00:00.000000Z")
    new = published(store, "2026-11-20T10:00:00.000000Z", raw={"cache": b"newer"})
    store.tells_times = tells_times
    envelope = store.objects[old]
    for number in range(READ_WHOLE):
        copy = f"{FOLDER}{VARIANT}-s{number:08x}.dsse.json"
        store.objects[copy], store.modified[copy] = envelope, unix("2027-01-01T00:00:00.000000Z")
    assert pull_here(store).chosen.key == new


def test_reading_ends_where_nothing_newer_can_come(store: Flooded):
    """A statement cannot be in a store before it was signed: the older ones are not read."""
    key = published(store, "2026-11-20T10:00:00.000000Z")
    flood(store, "{:08}.dsse.json", count=5000, at="2026-11-01T10:00:00.000000Z")
    store.read.clear()
    asked = {"trust": trusting(KEY), "fingerprint": fingerprint()}
    found = find_fitting(store, place=PLACE, **asked)
    assert found.is_complete
    assert store.statements_read <= 8
    assert [each.key for each in found.statements if each.readable] == [key]


@pytest.mark.slow
def test_what_was_not_read_is_said(store: Flooded, caplog: pytest.LogCaptureFixture):
    """The log has one line if an artifact fits. If none fits, the error says it."""
    flood(store, "{:08}.dsse.json", count=5000)
    with pytest.raises(ArtifactRefused):
        pull_here(store)
    published(store, OLDER)
    caplog.clear()
    pull_here(store)
    assert [line for line in warnings(caplog) if "skipped at least 4489" in line]


@pytest.mark.slow
def test_nothing_fits_says_how_many_were_not_read(store: Flooded):
    """The reader learns that the reason may be in an unread statement. An explanation has all."""
    for number in range(MAX_READ + 5):
        published(store, OLDER, built_for=fingerprint(threads=f"1{number}"))
    with pytest.raises(ArtifactNotFound, match="and 5 more that were not read"):
        pull_here(store)
    seen = explain(store, fingerprint=fingerprint(), trust=trusting(KEY), deployment=DEPLOYMENT)
    assert len(seen) == MAX_READ + 5


# --- endless listings ------------------------------------------------------------------------
@dataclass
class Endless(MemoryStore):
    """A store whose listing has no end; `each` is called before every page."""

    each: Callable[[], object] = lambda: None
    page: Callable[[int], list[Listed]] = lambda _number: []
    asked: int = 0

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        while True:
            self.asked += 1
            self.each()
            yield [found for found in self.page(self.asked) if found.key.startswith(prefix)]


@pytest.mark.slow
@pytest.mark.parametrize("full", [True, False])
def test_a_listing_without_end_is_bounded(*, full: bool):
    """Pages of junk or pages of nothing: a hit is found by its name."""

    def page(number: int) -> list[Listed]:
        return [Listed(key=f"{FOLDER}{number}-{n}.dsse.json") for n in range(1000 if full else 0)]

    plain = MemoryStore()
    key, _ = publish(plain)
    store = Endless(objects=plain.objects, page=page)

    assert pull_here(store).chosen.key == key
    assert store.asked <= MAX_KEYS / 1000 + MAX_PAGES if full else store.asked == 2 * MAX_PAGES
