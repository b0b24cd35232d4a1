# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How an artifact gets out of a store: what is checked, and in which order.

`pull` looks at the statements of the deployment, keeps a reason for each, and of those that are
trusted and fit takes the one that was created last, by its signed time. Of a store with very many
it reads those that can matter (`reading_order`). Nothing a store says is believed before the
signature is checked, and nothing is unpacked before its digest is.

A pull has three steps: `find` reads and verifies statements, a choice among them is made by what
this machine and app are, and `take` fetches and unpacks. They stand alone for a pull that begins
before the app is known: it takes what `expected` gives, and `confirmed` makes the choice in full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

from serve_warm.artifact.blobs import download_part, unpack_part
from serve_warm.artifact.choose import (
    Chosen,
    Considered,
    choose,
    fits,
    in_order_of_use,
    raise_none_fits,
    warn_of_refused,
    weigh,
    with_trace,
)
from serve_warm.artifact.manifest import (
    CACHE,
    MAX_RAW_BYTES,
    MAX_STORED_BYTES,
    OPTIONAL_PARTS,
    Manifest,
    Part,
    check_caps,
)
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.artifact.reading_order import ReadingOrder, list_statements
from serve_warm.artifact.statements import (
    READERS,
    Read,
    Statement,
    read_at_once,
    statement_keys,
    verify_statement,
)
from serve_warm.errors import ArtifactRefused, ObjectNotFound, StoreError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Listed, Object, Sink, Store
from serve_warm.trust import Trust

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """An artifact whose bytes are all checked. Close it, or use it in a `with`."""

    chosen: Chosen
    store: str
    """The address of the store that it came from."""
    raw: Mapping[str, BinaryIO]
    """Part name to its unpacked bytes, as files that nobody else can open. Load these and no
    others: a file that is read again by its name need not be the file that was checked."""
    stored_bytes: int
    """Of the parts that were taken; statements are not counted."""
    downloaded_bytes: int
    """How much of that came from the store, and was not on this node before."""
    download_s: float
    """Wall seconds in the store; writing and hashing what comes are in it."""
    verify_s: float
    """Wall seconds for signatures, for hashing what was on this node, and for unpacking."""

    def __enter__(self) -> Pulled:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, which removes them."""
        for file in self.raw.values():
            file.close()


def pull(
    store: Store,
    *,
    deployment: str,
    fingerprint: Fingerprint,
    trust: Trust,
    cache: NodeCache,
    parts: Sequence[str] = (CACHE,),
    fetched: Callable[[], object] = lambda: None,
    given_up: threading.Event | None = None,
    max_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Pulled:
    """Return the last created artifact that is trusted and fits, with the named parts unpacked.

    `fingerprint` is that of this machine and app. Parts stream into `cache`, hashed as they come,
    and from there into files without names: memory does not grow with them. `max_bytes` (as
    stored) and `max_raw_bytes` (unpacked) bound each part. `fetched` is called when all that is
    taken is on this node, and before it is unpacked. When `given_up` is set, from another thread,
    the pull ends at the next answer or piece.

    Raises:
        ArtifactNotFound: nothing is there, or nothing fits; `trace` says why for each variant.
        ArtifactRefused: nothing fits and something was refused; or the chosen variant, or a part
            of it, is not what its statement says. It has `trace` and `statement` as facts.
        StoreError: the store could not be read.
    """
    found = find_fitting(
        store, deployment=deployment, trust=trust, given_up=given_up, fingerprint=fingerprint
    )
    candidates = weigh(found.statements, fingerprint, trust)
    warn_of_refused(candidates, uri=found.uri)
    if not found.is_complete:
        logger.warning(
            "read %d statements of %r in %s, and not %d others or more: remove what is no artifact",
            *(len(found.statements), deployment, found.uri, found.unread),
        )
    chosen = choose(candidates)
    if chosen is None:
        raise_none_fits(candidates, uri=found.uri, deployment=found.deployment, left=found.unread)
    return take(
        store,
        found,
        chosen,
        cache=cache,
        parts=parts,
        fetched=fetched,
        given_up=given_up,
        max_bytes=max_bytes,
        max_raw_bytes=max_raw_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Found:
    """The statements of a store, read and verified; nothing is chosen among them yet."""

    uri: str
    deployment: str | None
    """None for those of all deployments."""
    statements: tuple[Statement, ...]
    """In the order of their keys."""
    unread: int = 0
    """How many others were listed, and not read."""
    is_complete: bool = True
    """Whether none of the others can be what a pull chooses."""
    read_s: float
    """Wall seconds in the store."""
    verify_s: float
    """Wall seconds for the rest."""


def find(store: Store, *, deployment: str | None, trust: Trust) -> Found:
    """Return all statements of a deployment, or of all, each with what `trust` says about it.

    Raises:
        StoreError: the store could not be listed. A statement that cannot be read stands in what
            is returned.
    """
    began = time.perf_counter()
    source = _TimedReader(store)
    keys = source.statement_keys(deployment)
    statements = tuple(
        verify_statement(key, envelope, trust=trust, store=source.uri)
        for start in range(0, len(keys), READERS)
        for key, envelope in source.envelopes(keys[start : start + READERS])
    )
    return Found(
        uri=store.uri,
        deployment=deployment,
        statements=statements,
        read_s=source.elapsed_s,
        verify_s=time.perf_counter() - began - source.elapsed_s,
    )


def find_fitting(
    store: Store,
    *,
    deployment: str,
    trust: Trust,
    fingerprint: Fingerprint | None,
    given_up: threading.Event | None = None,
) -> Found:
    """Return the statements of a deployment among which a start has to choose.

    Those are all, except in a very large store: see `reading_order`. `fingerprint` is None where it
    is not known yet.

    Raises:
        StoreError: as `find`; or `given_up` was set, which is asked at each page and each answer.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    variant = None if fingerprint is None else fingerprint.key
    listing = list_statements(source.pages, deployment, variant=variant)
    order = ReadingOrder(listing, variant=variant)
    statements = []
    while keys := order.take(READERS):
        for key, envelope in source.envelopes(keys):
            statement = verify_statement(key, envelope, trust=trust, store=source.uri)
            statements.append(statement)
            order.note(
                statement, fits=fingerprint is not None and fits(statement, fingerprint, trust)
            )
    return Found(
        uri=store.uri,
        deployment=deployment,
        statements=tuple(sorted(statements, key=lambda each: each.key)),
        unread=order.left,
        is_complete=order.is_complete,
        read_s=source.elapsed_s,
        verify_s=time.perf_counter() - began - source.elapsed_s,
    )


def expect(
    found: Found, *, fingerprint: Fingerprint, trust: Trust, unknown: Collection[str]
) -> Chosen | None:
    """Return what a pull would take if the `unknown` factors are as each artifact has them.

    None where nothing fits, which nothing is said about: the pull itself will.
    """
    return choose(weigh(found.statements, fingerprint, trust, unknown=unknown))


def only_libraries(found: Found) -> bool:
    """Return whether all that is believed was built from calls of level 3 alone, and there is some.

    By what the manifests say of the build: good for deciding what to do early, and for no more.
    """
    said = [s.manifest.facts.get("entries") for s in found.statements if s.manifest and s.believed]
    entries = [e for kinds in said for e in (kinds if isinstance(kinds, list) else [None])]
    return bool(entries) and all(isinstance(e, dict) and e.get("level") == 3 for e in entries)


def confirm(
    pulled: Pulled, found: Found, *, fingerprint: Fingerprint, trust: Trust
) -> Pulled | None:
    """Return what was taken, if it is what a pull chooses among the statements that were found.

    None for anything else, which nothing is said about: the pull that has to follow will. So it is
    where others might be newer: that pull knows the fingerprint, and so which to read first.
    """
    if not found.is_complete:
        return None
    candidates = weigh(found.statements, fingerprint, trust)
    chosen = choose(candidates)
    if chosen is None or chosen.key != pulled.chosen.key:
        return None
    warn_of_refused(candidates, uri=found.uri)
    return replace(pulled, chosen=chosen)


def take(
    store: Store,
    found: Found,
    chosen: Chosen,
    *,
    cache: NodeCache,
    parts: Sequence[str],
    fetched: Callable[[], object] = lambda: None,
    given_up: threading.Event | None = None,
    max_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Pulled:
    """Return what was chosen of `found`, with the named parts fetched, checked and unpacked.

    The arguments are those of `pull`.

    Raises:
        ArtifactRefused: it, or a part of it, is not what its statement says.
        StoreError: the store could not be read.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    raw: dict[str, BinaryIO] = {}
    with ExitStack() as opened, ExitStack() as fetching:
        try:
            wanted = _select_parts(chosen.manifest, parts)
            for part in wanted:
                check_caps(part, max_stored_bytes=max_bytes, max_raw_bytes=max_raw_bytes)
            stored: list[BinaryIO] = []
            for part in wanted:
                file = cache.fetch(part.sha256, part.stored_bytes, _filler(source, part))
                stored.append(fetching.enter_context(file))
            fetched()
            for part, file in zip(wanted, stored, strict=True):
                raw[part.name] = opened.enter_context(unpack_part(part, file))
        except ArtifactRefused as refusal:
            if refusal.reason == "missing_part" and not source.holds(chosen.key):
                pruned = f"{store.uri}: {chosen.key} was pruned while it was pulled"
                raise StoreError(pruned, hint="pull again") from refusal
            # Not tried again with an older variant: a store that holds damaged or forged bytes
            # has a problem which a silent fall-back would hide, and which could be used to force
            # an old artifact.
            raise with_trace(refusal, chosen.key, chosen.trace) from refusal
        opened.pop_all()  # from here on they are the caller's
    elapsed_s = time.perf_counter() - began
    pulled = Pulled(
        chosen=chosen,
        store=store.uri,
        raw=raw,
        stored_bytes=sum(part.stored_bytes for part in wanted),
        downloaded_bytes=source.downloaded_bytes,
        download_s=found.read_s + source.elapsed_s,
        verify_s=found.verify_s + elapsed_s - source.elapsed_s,
    )
    _log(store, pulled)
    return pulled


def _log(store: Store, pulled: Pulled) -> None:
    logger.info(
        "pulled artifact store=%s statement=%s bytes=%d downloaded=%d in %.2f s",
        store.uri,
        pulled.chosen.key,
        pulled.stored_bytes,
        pulled.downloaded_bytes,
        pulled.download_s + pulled.verify_s,
    )


def _select_parts(manifest: Manifest, names: Sequence[str]) -> list[Part]:
    """Return the named parts, without optional ones that are not there."""
    there = {part.name for part in manifest.parts}
    return [
        manifest.part(name)
        for name in dict.fromkeys(names)
        if name in there or name not in OPTIONAL_PARTS
    ]


def explain(
    store: Store, *, fingerprint: Fingerprint, trust: Trust, deployment: str | None = None
) -> list[Considered]:
    """Return every statement of a store, or of one deployment, as a pull would look at it.

    The one that a pull would take comes first, then other accepted ones, then the nearest misses.

    Raises:
        StoreError: the store could not be read.
    """
    found = find(store, deployment=deployment, trust=trust)
    candidates = weigh(found.statements, fingerprint, trust, limits="all")
    warn_of_refused(candidates, uri=found.uri)
    return in_order_of_use(candidates)


class _TimedReader:
    """The reading half of a store, with the wall seconds and bytes that were spent in it."""

    def __init__(self, store: Store, given_up: threading.Event | None = None) -> None:
        self._store = store
        self._given_up = given_up or threading.Event()
        self.uri = store.uri
        self.elapsed_s = 0.0
        self.downloaded_bytes = 0

    def statement_keys(self, deployment: str | None) -> Sequence[str]:
        with self._count_time():
            return statement_keys(self._store, deployment)

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        pages = iter(self._store.pages(prefix))
        while True:
            with self._count_time():
                page = next(pages, None)
            if page is None:
                return
            yield page

    def head(self, key: str) -> Object:
        with self._count_time():
            return self._store.head(key)

    def download(self, found: Object, sink: Sink) -> None:
        def wanted(offset: int, piece: bytes | memoryview) -> None:
            self._check_wanted()
            sink(offset, piece)

        with self._count_time():
            self._store.download(found, wanted)
        self.downloaded_bytes += found.size_bytes

    def holds(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFound:
            return False
        return True

    def envelopes(self, keys: Sequence[str]) -> Iterator[tuple[str, Read]]:
        """Yield each statement, or why there is none; `READERS` of them at most.

        As many as are read at once are held at once: whoever may write to the store decides how
        many there are, and how large.
        """
        with self._count_time():
            envelopes = read_at_once(self._store, keys)
        yield from zip(keys, envelopes, strict=True)

    @contextmanager
    def _count_time(self) -> Iterator[None]:
        self._check_wanted()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.elapsed_s += time.perf_counter() - began

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise StoreError(f"{self.uri}: nobody waits for this pull any more")


def _filler(source: _TimedReader, part: Part) -> Callable[[Sink], None]:
    return lambda sink: download_part(source, part, sink)
