# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The pull of an artifact from a store: what is checked, and in which order.

`pull` reads the statements of the deployment and records an outcome for each. It chooses a
statement that is trusted and fits this machine and app. If there are several such statements, it
chooses the statement whose code and model match most closely, and among these the newest. In a
store with very many statements, `pull` reads only statements that could be chosen
(`reading_order`). Nothing from a store is trusted before its signature is checked, and nothing is
unpacked before its digest is checked.

A pull has three steps. `find_fitting` reads and verifies statements, `choose` picks one for this
machine and app, and `take` fetches and unpacks the artifact. The steps are separate functions
because a pull can begin before the app is known. Such a pull fetches the artifact that `expect`
predicts, and `confirm` makes the full choice later.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shlex
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO

from serve_warm._records import record
from serve_warm.artifact.blobs import download_part, unpack_part
from serve_warm.artifact.choose import (
    SHOWN_VARIANTS,
    Chosen,
    Considered,
    choose,
    fits,
    in_order_of_use,
    raise_none_fits,
    say_why_none,
    warn_of_refused,
    weigh,
    with_trace,
)
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel
from serve_warm.artifact.manifest import CACHE, Place, check_caps
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.artifact.reading_order import ReadingOrder, list_statements
from serve_warm.artifact.statements import (
    GLANCE_BYTES,
    READERS,
    STATEMENTS,
    Read,
    Statement,
    is_of_old_layout,
    is_statement,
    name_in_key,
    read_at_once,
    read_place,
    statement_keys,
    verify_statement,
)
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound, StoreError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Listed, Object, Sink, Store, find_missing_folder
from serve_warm.trust import Trust
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES

logger = logging.getLogger(__name__)

MAX_KEPT_BYTES = 8 << 20
"""Maximum size in bytes of the envelopes in memory that wait for the check of all signatures."""

MAX_PAGES_ELSEWHERE = 20
"""Maximum number of pages that are listed to say where a store has a deployment's artifacts."""


@record(frozen=True, kw_only=True)
class Pulled(AbstractContextManager["Pulled"]):
    """A pulled artifact with all bytes checked. Call `close`, or use it in a `with` block."""

    chosen: Chosen
    store: str
    """The address of the store that the artifact was pulled from."""
    raw: Mapping[str, BinaryIO]
    """Unpacked bytes by part name, in files that no other process can open. Load only from these
    files, because a file that is opened by its name may not be the file that was checked."""
    stored_bytes: int
    """Size in bytes of the pulled parts as stored, without the statements."""
    downloaded_bytes: int
    """Number of stored bytes that were downloaded because they were not in the node cache."""
    download_s: float
    """Wall-clock seconds for reading the store, and for writing and hashing downloaded bytes."""
    verify_s: float
    """Wall-clock seconds for checking signatures, hashing cached blobs and unpacking."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, which removes them."""
        for file in self.raw.values():
            file.close()


def pull(
    store: Store,
    *,
    place: Place,
    fingerprint: Fingerprint,
    trust: Trust,
    cache: NodeCache,
    here: CodeAndModel = NOTHING_KNOWN,
    parts: Sequence[str] = (CACHE,),
    fetched: Callable[[], object] = lambda: None,
    given_up: threading.Event | None = None,
) -> Pulled:
    """Return the trusted artifact that fits best, with the named parts unpacked.

    `fingerprint` describes this machine and app, and `here` its code and model. Parts stream into
    `cache`, are hashed on arrival, and are unpacked into unnamed files, so memory use does not grow
    with the size of the parts.
    `fetched` is called once all parts are on this node, before any part is unpacked. To cancel the
    pull, set `given_up` from another thread. The pull then ends at the store's next answer or piece
    of data.

    Raises:
        ArtifactNotFound: no artifact exists, or none fits; `trace` gives the reason for each
            variant.
        ArtifactRefused: no artifact fits and at least one was refused; or the chosen artifact does
            not match its statement. The error has the fields `trace` and `statement`.
        StoreError: the store could not be read.
    """
    found = find_fitting(
        store, place=place, trust=trust, given_up=given_up, fingerprint=fingerprint, here=here
    )
    candidates = weigh(found.statements, fingerprint, trust)
    warn_of_refused(candidates, uri=store.uri)
    if not found.is_complete:
        logger.warning(
            "read %d statements for %s in %s, and skipped at least %d more: remove files that are "
            "not artifacts",
            *(len(found.statements), place, store.uri, found.unread),
        )
    chosen = choose(candidates, here)
    if chosen is None:
        _refuse_missing_folder(store, place)
        if not candidates:
            _refuse_other_places(_TimedReader(store, given_up).pages(STATEMENTS), store.uri, place)
        raise_none_fits(candidates, uri=store.uri, place=place, left=found.unread)
    return take(store, found, chosen, cache=cache, parts=parts, fetched=fetched, given_up=given_up)


def _refuse_missing_folder(store: Store, place: Place) -> None:
    """Raise ArtifactNotFound if the store is a folder that does not exist.

    If the same parent folder contains a store with a similar name, the hint does not recommend a
    build, because a build would create a second store.
    """
    missing = find_missing_folder(store, holding=STATEMENTS)
    if missing is None:
        return
    if missing.is_file:
        raise ArtifactNotFound(f"{missing}, but a store must be a folder", hint="use a folder")
    if missing.near:
        raise ArtifactNotFound(f"{missing}; {missing.near}")
    raise ArtifactNotFound(
        f"{store.uri} has no artifact for {place}: {missing}",
        hint="check the path and its mount, or build the first artifact: serve-warm build APP "
        f"--store {shlex.quote(store.uri)}",
    )


def _refuse_other_places(pages: Iterator[Sequence[Listed]], uri: str, place: Place) -> None:
    """Raise ArtifactNotFound if a store has the deployment elsewhere, and say where.

    The artifacts are of another application, or of a version that kept no applications. If the
    whole store cannot be listed, for example because the rights cover only this application, raise
    nothing.
    """
    wanted, others, old = name_in_key(place.deployment), set[str](), False
    with suppress(StoreError):
        for each in itertools.chain.from_iterable(itertools.islice(pages, MAX_PAGES_ELSEWHERE)):
            folder = each.key.split("/")
            old = old or (is_of_old_layout(each.key) and folder[1] == wanted)
            if is_statement(each.key) and folder[2] == wanted:
                others.add(read_place(each.key)[0])
    if others:
        names = ", ".join(map(repr, sorted(others)[:SHOWN_VARIANTS]))
        raise ArtifactNotFound(
            f"{uri} has no artifact for {place}, but has artifacts for {place.deployment!r} of "
            f"other applications: {names}",
            hint="if one of these is this application, set `application` to its name in "
            "user_config.warmup; otherwise, build an artifact: serve-warm build APP --store "
            f"{shlex.quote(uri)}",
        )
    if old:
        raise ArtifactNotFound(
            f"{uri} has no artifact for {place}, except artifacts in the layout of an older "
            f"version of serve_warm ({STATEMENTS}{wanted}/), which are not read",
            hint=f"build an artifact again: serve-warm build APP --store {shlex.quote(uri)}",
        )


@record(frozen=True, kw_only=True)
class VerifiedStatements:
    """The statements of a store, read and verified, before a statement is chosen."""

    statements: tuple[Statement, ...]
    """The statements, sorted by key."""
    unread: int
    """Number of statements that were listed but not read."""
    is_complete: bool
    """Whether every statement that a pull could choose has been read."""
    read_s: float
    """Wall-clock seconds for reading the store."""
    verify_s: float
    """Wall-clock seconds for everything except reading the store."""


def find_fitting(
    store: Store,
    *,
    place: Place,
    trust: Trust,
    fingerprint: Fingerprint | None,
    here: CodeAndModel = NOTHING_KNOWN,
    given_up: threading.Event | None = None,
) -> VerifiedStatements:
    """Return the statements from which a starting replica of this deployment chooses.

    In a very large store, some statements of the deployment are left out: see `reading_order`. Pass
    `fingerprint=None` if the fingerprint is not known yet. `here` is the code and model of this
    replica.

    Raises:
        StoreError: the store could not be listed. If a listed statement cannot be read, no error is
            raised, and the statement is returned with its error. If `given_up` is set, StoreError
            is also raised at the store's next page or answer.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    variant = None if fingerprint is None else fingerprint.key
    listing = list_statements(source.pages, place, variant=variant)
    order = ReadingOrder(listing, variant=variant)
    statements: list[Statement] = []

    def note(statement: Statement) -> None:
        statements.append(statement)
        # An older statement may match more closely, unless this one already does.
        is_closest = statement.readable is not None and (
            statement.readable.manifest.made_of.closeness(here) == here.closeness(here)
        )
        order.note(
            statement,
            fits=is_closest and fingerprint is not None and fits(statement, fingerprint, trust),
        )

    # Set aside: envelopes that need not be read again.
    kept: dict[str, Read] = {}
    room_bytes = MAX_KEPT_BYTES
    while keys := order.take(READERS):
        for key, envelope in source.envelopes(keys, max_bytes=GLANCE_BYTES):
            seen = verify_statement(key, envelope, trust=trust, store=source.uri, check="named")
            if seen.is_final:
                note(seen)
                continue
            order.set_aside(key)
            if isinstance(envelope, bytes) and len(envelope) <= room_bytes:
                kept[key] = envelope
                room_bytes -= len(envelope)
    while keys := order.take_aside(READERS):
        known = [(key, kept.pop(key)) for key in keys if key in kept]
        unknown = [key for key in keys if key not in dict(known)]
        for key, envelope in (*known, *source.envelopes(unknown, max_bytes=MAX_ENVELOPE_BYTES)):
            statement = verify_statement(key, envelope, trust=trust, store=source.uri)
            order.spend(statement.work_bytes)
            note(statement)
    return VerifiedStatements(
        statements=tuple(sorted(statements, key=lambda each: each.key)),
        unread=order.left,
        is_complete=order.is_complete,
        read_s=source.elapsed_s,
        verify_s=time.perf_counter() - began - source.elapsed_s,
    )


def expect(
    found: VerifiedStatements,
    *,
    fingerprint: Fingerprint,
    trust: Trust,
    unknown: Collection[str],
    here: CodeAndModel = NOTHING_KNOWN,
) -> Chosen | str:
    """Return the artifact that a pull would choose if the `unknown` factors matched.

    `here` is what is known so far of the replica's code and model. If a pull would choose no
    artifact, return a short reason. The pull itself reports the details.
    """
    candidates = weigh(found.statements, fingerprint, trust, unknown=unknown)
    return choose(candidates, here) or say_why_none(candidates)


def confirm(
    pulled: Pulled,
    found: VerifiedStatements,
    *,
    fingerprint: Fingerprint,
    trust: Trust,
    here: CodeAndModel = NOTHING_KNOWN,
) -> Pulled | None:
    """Return `pulled` if everything that is known now selects the same artifact again.

    Return None otherwise, without logging, because the next pull reports the reason. Also return
    None if unread statements might be newer. The next pull knows the fingerprint, and therefore
    knows which statements to read first.
    """
    if not found.is_complete:
        return None
    candidates = weigh(found.statements, fingerprint, trust)
    chosen = choose(candidates, here)
    if chosen is None or chosen.key != pulled.chosen.key:
        return None
    warn_of_refused(candidates, uri=pulled.store)
    return replace(pulled, chosen=chosen)


def take(
    store: Store,
    found: VerifiedStatements,
    chosen: Chosen,
    *,
    cache: NodeCache,
    parts: Sequence[str],
    fetched: Callable[[], object] = lambda: None,
    given_up: threading.Event | None = None,
) -> Pulled:
    """Return the chosen artifact with the named parts fetched, checked and unpacked.

    The other arguments are the same as for `pull`.

    Raises:
        ArtifactRefused: a part is missing, too large, or does not match the statement.
        StoreError: the store could not be read.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    raw: dict[str, BinaryIO] = {}
    with ExitStack() as opened, ExitStack() as fetching:
        try:
            # At least one of them.
            named = [part for part in chosen.manifest.parts if part.name in parts]
            wanted = named or [chosen.manifest.part(parts[0])]
            for part in wanted:
                check_caps(part)
            stored: list[BinaryIO] = []
            for part in wanted:
                file = cache.fetch(
                    part.sha256, part.stored_bytes, functools.partial(download_part, source, part)
                )
                stored.append(fetching.enter_context(file))
            fetched()
            for part, file in zip(wanted, stored, strict=True):
                raw[part.name] = opened.enter_context(unpack_part(part, file))
        except ArtifactRefused as refusal:
            if refusal.reason == "missing_part" and not source.holds(chosen.key):
                pruned = f"{store.uri}: {chosen.key} was pruned while it was being pulled"
                raise StoreError(pruned, hint="pull again") from refusal
            # Do not fall back to an older artifact. This would hide damaged or forged bytes in the
            # store, and an attacker could force replicas to use an old artifact.
            raise with_trace(refusal, chosen.key, chosen.trace) from refusal
        opened.pop_all()  # from here on the caller closes them
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


def explain(
    store: Store,
    *,
    fingerprint: Fingerprint,
    trust: Trust,
    application: str | None = None,
    deployment: str | None = None,
) -> list[Considered]:
    """Return the outcome that a pull would record for each statement of a store or deployment.

    Accepted statements come first, the newest before others, then near misses.

    Raises:
        StoreError: the store could not be read.
    """
    keys = statement_keys(store, application=application, deployment=deployment)
    source = _TimedReader(store)
    statements = [
        verify_statement(key, envelope, trust=trust, store=store.uri)
        for start in range(0, len(keys), READERS)
        for key, envelope in source.envelopes(
            keys[start : start + READERS], max_bytes=MAX_ENVELOPE_BYTES
        )
    ]
    candidates = weigh(statements, fingerprint, trust, limits="all")
    warn_of_refused(candidates, uri=store.uri)
    return in_order_of_use(candidates)


class _TimedReader:
    """Wraps the read methods of a store; measures wall-clock seconds and downloaded bytes."""

    def __init__(self, store: Store, given_up: threading.Event | None = None) -> None:
        self._store = store
        self._given_up = given_up or threading.Event()
        self.uri = store.uri
        self.elapsed_s = 0.0
        self.downloaded_bytes = 0

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        pages = iter(self._store.pages(prefix))
        try:
            while True:
                with self._count_time():
                    page = next(pages, None)
                if page is None:
                    return
                yield page
        finally:
            # At once, because a store may still be asking for the next page.
            if isinstance(pages, Generator):
                pages.close()

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

    def envelopes(self, keys: Sequence[str], *, max_bytes: int) -> Iterator[tuple[str, Read]]:
        """Yield each key with the statement's bytes or read error. Takes at most `READERS` keys.

        The limit is needed because all these statements are in memory at once, and anyone with
        write access to the store can add large statements.
        """
        with self._count_time():
            envelopes = read_at_once(self._store, keys, max_bytes=max_bytes)
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
            raise StoreError(f"{self.uri}: this pull was cancelled")
