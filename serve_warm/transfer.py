# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How an artifact gets out of a store: which one is chosen, what is checked, and in which order.

    blobs/sha256/<hex>                              one part, as it is stored
    statements/<deployment>/<variant>.dsse.json     one signed artifact

`pull` looks at every statement of the deployment, keeps a reason for each, and of those that are
trusted and fit takes the one that was created last, by its signed time. Nothing a store says is
believed before the signature is checked, and nothing is unpacked before its digest is.

A pull has three steps: `find` reads and verifies statements, a choice among them is made by what
this machine and app are, and `take` fetches and unpacks. They stand alone for a pull that begins
before the app is known: it takes what `expected` gives, and `confirmed` makes the choice in full.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal, NoReturn

from serve_warm.artifact import (
    MAX_RAW_BYTES,
    MAX_STORED_BYTES,
    OPTIONAL_PARTS,
    Manifest,
    Part,
    check_caps,
    check_stored_size,
    open_part,
)
from serve_warm.errors import (
    ArtifactNotFound,
    ArtifactRefused,
    ObjectNotFound,
    ObjectTooLarge,
    StoreError,
)
from serve_warm.fingerprint import Fingerprint, Mismatch
from serve_warm.landing import receive_unnamed
from serve_warm.nodecache import NodeCache
from serve_warm.stores import Object, Sink, Store
from serve_warm.trust import (
    MAX_ENVELOPE_BYTES,
    Believed,
    Envelope,
    Trust,
    check_age_and_denied,
    verify,
)

logger = logging.getLogger(__name__)

STATEMENTS = "statements/"
BLOBS = "blobs/sha256/"
STATEMENT_SUFFIX = ".dsse.json"
SHOWN_VARIANTS = 5
"""Variants whose differences an error spells out when none fits; its trace has all."""
READERS = 8
"""Statements that are read at once: each costs a round trip, and there is one a variant."""

Read = bytes | StoreError | ArtifactRefused
"""A statement as it is in a store, or why there is none."""

Progress = Callable[[str, int, int], None]
"""Told what is being moved, how many bytes of it are done, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """One statement that was looked at, and what came of it."""

    statement: str
    """Its key in the store."""
    accepted: bool
    """Trusted and fitting. Of several accepted ones the one that was created last is chosen."""
    reason: str
    """`fits`, `fingerprint` (for another machine or app), `gone` (pruned meanwhile), `unreadable`
    (the store did not give it), or a reason of ArtifactRefused."""
    message: str = ""
    """The reason in words, where it is not in the mismatches."""
    mismatches: tuple[Mismatch, ...] = ()
    created: str = ""
    """Empty where the statement is not believed."""

    def __str__(self) -> str:
        if self.accepted:
            return f"{self.statement}: accepted, created {self.created}"
        words = "; ".join(map(str, self.mismatches)) or self.message
        return f"{self.statement}: rejected ({self.reason}): {words}"


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """An artifact whose bytes are all checked. Close it, or use it in a `with`."""

    manifest: Manifest
    statement_key: str
    believed: Believed
    """Why it was believed."""
    trace: tuple[Considered, ...]
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
    parts: Sequence[str] = ("cache",),
    given_up: threading.Event | None = None,
    max_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Pulled:
    """Return the last created artifact that is trusted and fits, with the named parts unpacked.

    `fingerprint` is that of this machine and app. Parts stream into `cache`, hashed as they come,
    and from there into files without names: memory does not grow with them. `max_bytes` (as
    stored) and `max_raw_bytes` (unpacked) bound each part. When `given_up` is set, from another
    thread, the pull ends at the next answer or piece.

    Raises:
        ArtifactNotFound: nothing is there, or nothing fits; `trace` says why for each variant.
        ArtifactRefused: nothing fits and something was refused; or the chosen variant, or a part
            of it, is not what its statement says. It has `trace` and `statement` as facts.
        StoreError: the store could not be read.
    """
    found = find(store, deployment=deployment, trust=trust, given_up=given_up)
    candidates = _weighed(found, fingerprint, trust)
    _warn_of_refused(found, candidates)
    choice = _chosen(found, candidates)
    if choice is None:
        _raise_none_fits(found, candidates)
    return take(
        store,
        choice,
        cache=cache,
        parts=parts,
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
    statements: tuple[_Statement, ...]
    read_s: float
    """Wall seconds in the store."""
    verify_s: float
    """Wall seconds for the rest."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of the statements that were found."""

    found: Found
    key: str
    manifest: Manifest
    believed: Believed
    trace: tuple[Considered, ...]


def find(
    store: Store,
    *,
    deployment: str | None,
    trust: Trust,
    given_up: threading.Event | None = None,
) -> Found:
    """Return the statements of a deployment, or of all, each with what `trust` says about it.

    Raises:
        StoreError: the store could not be listed. A statement that cannot be read stands in what
            is returned.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    keys = statement_keys(source, deployment)
    statements = tuple(
        _verified(key, envelope, trust=trust, store=source.uri)
        for key, envelope in source.envelopes(keys)
    )
    return Found(
        uri=store.uri,
        deployment=deployment,
        statements=statements,
        read_s=source.elapsed_s,
        verify_s=time.perf_counter() - began - source.elapsed_s,
    )


def expected(
    found: Found, *, fingerprint: Fingerprint, trust: Trust, unknown: Collection[str]
) -> Choice | None:
    """Return what a pull would take if the `unknown` factors are as each artifact has them.

    None where nothing fits, which nothing is said about: the pull itself will.
    """
    return _chosen(found, _weighed(found, fingerprint, trust, unknown=unknown))


def confirmed(
    pulled: Pulled, found: Found, *, fingerprint: Fingerprint, trust: Trust
) -> Pulled | None:
    """Return what was taken, if it is what a pull chooses among the statements that were found.

    None for anything else, which nothing is said about: the pull that has to follow will.
    """
    candidates = _weighed(found, fingerprint, trust)
    choice = _chosen(found, candidates)
    if choice is None or choice.key != pulled.statement_key:
        return None
    _warn_of_refused(found, candidates)
    return replace(pulled, believed=choice.believed, trace=choice.trace)


def take(
    store: Store,
    choice: Choice,
    *,
    cache: NodeCache,
    parts: Sequence[str],
    given_up: threading.Event | None = None,
    max_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Pulled:
    """Return the chosen artifact with the named parts fetched, checked and unpacked; as `pull`.

    Raises:
        ArtifactRefused: it, or a part of it, is not what its statement says.
        StoreError: the store could not be read.
    """
    began = time.perf_counter()
    source = _TimedReader(store, given_up)
    manifest, key = choice.manifest, choice.key
    raw: dict[str, BinaryIO] = {}
    with ExitStack() as opened:
        try:
            there = {part.name for part in manifest.parts}
            wanted = [
                manifest.part(name)
                for name in dict.fromkeys(parts)
                if name in there or name not in OPTIONAL_PARTS
            ]
            for part in wanted:
                check_caps(part, max_stored_bytes=max_bytes, max_raw_bytes=max_raw_bytes)
            for part in wanted:
                fill = _filler(source, part)
                with cache.fetch(part.sha256, part.stored_bytes, fill) as stored:
                    raw[part.name] = opened.enter_context(unpack_part(part, stored))
        except ArtifactRefused as refusal:
            if refusal.reason == "missing_part" and not source.holds(key):
                raise StoreError(
                    f"{store.uri}: {key} was pruned while it was pulled", hint="pull again"
                ) from refusal
            # Not tried again with an older variant: a store that holds damaged or forged bytes
            # has a problem which a silent fall-back would hide, and which could be used to force
            # an old artifact.
            raise with_trace(refusal, key, choice.trace) from refusal
        opened.pop_all()  # from here on they are the caller's
    elapsed_s = time.perf_counter() - began
    pulled = Pulled(
        manifest=manifest,
        statement_key=key,
        believed=choice.believed,
        trace=choice.trace,
        raw=raw,
        stored_bytes=sum(part.stored_bytes for part in wanted),
        downloaded_bytes=source.downloaded_bytes,
        download_s=choice.found.read_s + source.elapsed_s,
        verify_s=choice.found.verify_s + elapsed_s - source.elapsed_s,
    )
    logger.info(
        "pulled artifact store=%s statement=%s bytes=%d downloaded=%d in %.2f s",
        store.uri,
        key,
        pulled.stored_bytes,
        pulled.downloaded_bytes,
        pulled.download_s + pulled.verify_s,
    )
    return pulled


def explain(
    store: Store, *, fingerprint: Fingerprint, trust: Trust, deployment: str | None = None
) -> list[Considered]:
    """Return every statement of a store, or of one deployment, as a pull would look at it.

    The one that a pull would take comes first, then other accepted ones, then the nearest misses.

    Raises:
        StoreError: the store could not be read.
    """
    found = find(store, deployment=deployment, trust=trust)
    candidates = _weighed(found, fingerprint, trust, limits="all")
    _warn_of_refused(found, candidates)
    looked_at = [candidate.considered for candidate in candidates]
    looked_at.sort(key=lambda seen: rank(seen.created, seen.statement), reverse=True)
    return sorted(
        looked_at,
        key=lambda c: (not c.accepted, c.reason != "fingerprint", len(c.mismatches)),
    )


def rank(created: str, key: str) -> tuple[str, int, str]:
    """Order the statements of one variant: of those that fit a pull takes the last one."""
    return created, generation(key), key


class _TimedReader:
    """The reading half of a store, with the wall seconds and bytes that were spent in it."""

    def __init__(self, store: Store, given_up: threading.Event | None = None) -> None:
        self._store = store
        self._given_up = given_up or threading.Event()
        self.uri = store.uri
        self.elapsed_s = 0.0
        self.downloaded_bytes = 0

    def list(self, prefix: str) -> Sequence[str]:
        with self._timed():
            return self._store.list(prefix)

    def head(self, key: str) -> Object:
        with self._timed():
            return self._store.head(key)

    def download(self, found: Object, sink: Sink) -> None:
        def wanted(offset: int, piece: bytes | memoryview) -> None:
            self._check_wanted()
            sink(offset, piece)

        with self._timed():
            self._store.download(found, wanted)
        self.downloaded_bytes += found.size_bytes

    def holds(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFound:
            return False
        return True

    def envelopes(self, keys: Sequence[str]) -> Iterator[tuple[str, Read]]:
        """Yield each statement, or why there is none.

        As many as are read at once are held at once: whoever may write to the store decides how
        many there are, and how large.
        """

        def read(key: str) -> Read:
            try:
                return read_envelope(self._store, key)
            except (StoreError, ArtifactRefused) as error:
                return error

        for start in range(0, len(keys), READERS):
            some = keys[start : start + READERS]
            with self._timed():
                envelopes = _at_once(read, some)
            yield from zip(some, envelopes, strict=True)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._check_wanted()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.elapsed_s += time.perf_counter() - began

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise StoreError(f"{self.uri}: nobody waits for this pull any more")


def _at_once(read: Callable[[str], Read], keys: Sequence[str]) -> list[Read]:
    """Read these keys, each in a thread of its own.

    In daemon threads, not in a pool: Python waits for those of a pool when it ends, and a store
    that does not answer would keep a process whose `__init__` has failed.
    """
    answers: dict[str, Read] = {}

    def run(key: str) -> None:
        answers[key] = read(key)

    threads = [
        threading.Thread(target=run, args=(key,), name="serve_warm-pull", daemon=True)
        for key in keys[1:]
    ]
    for thread in threads:
        thread.start()
    for key in keys[:1]:
        run(key)
    for thread in threads:
        thread.join()
    return [answers[key] for key in keys]


@dataclass(frozen=True, kw_only=True)
class _Statement:
    """One that was read: believed, refused, or not to be had."""

    key: str
    manifest: Manifest | None = None
    """None where the statement is not believed."""
    believed: Believed | None = None
    refusal: ArtifactRefused | None = None
    unread: StoreError | None = None
    """Why the store did not give it."""
    payload_digest: str = ""
    """Of what was refused."""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A statement as a machine and app see it."""

    considered: Considered
    statement: _Statement
    refusal: ArtifactRefused | None = None


def _verified(key: str, envelope: Read, *, trust: Trust, store: str) -> _Statement:
    """Check what can be checked of one statement anywhere: size, signature, format, deployment."""
    try:
        if isinstance(envelope, Exception):
            raise envelope
        believed = verify(envelope, trust, store=store)
        manifest = Manifest.from_statement(believed.payload)
        check_place(manifest, key)
    except StoreError as error:
        return _Statement(key=key, unread=error)
    except ArtifactRefused as refusal:
        about = payload_digest(envelope) if isinstance(envelope, bytes) else ""
        return _Statement(key=key, refusal=_bare(refusal), payload_digest=about)
    return _Statement(key=key, manifest=manifest, believed=believed, payload_digest=believed.digest)


def _bare(refusal: ArtifactRefused) -> ArtifactRefused:
    # A new one, without the frames that it came through: they hold the statement.
    return ArtifactRefused(refusal.message, reason=refusal.reason, hint=refusal.hint)


def _weighed(
    found: Found,
    fingerprint: Fingerprint,
    trust: Trust,
    *,
    unknown: Collection[str] = (),
    limits: Literal["fitting", "all"] = "fitting",
) -> list[_Candidate]:
    """Hold each statement against this machine and app: fingerprint, deny-list, age.

    `unknown` are factors whose difference does not count. `limits` says of which the deny-list and
    the age are looked at. For a start only those matter that fit: what is for other machines must
    not be an alarm on this one.
    """
    candidates = [
        _considered(statement, fingerprint=fingerprint, trust=trust, unknown=unknown, limits=limits)
        for statement in found.statements
    ]
    # After a rotation the old envelope of an artifact stands beside the new one: not an alarm.
    vouched = {c.statement.payload_digest for c in candidates if not c.refusal} - {""}
    return [
        replace(candidate, refusal=None)
        if candidate.statement.payload_digest in vouched
        else candidate
        for candidate in candidates
    ]


def _considered(
    statement: _Statement,
    *,
    fingerprint: Fingerprint,
    trust: Trust,
    unknown: Collection[str],
    limits: Literal["fitting", "all"],
) -> _Candidate:
    key, manifest, believed = statement.key, statement.manifest, statement.believed
    refusal = statement.refusal
    if statement.unread is not None:
        considered = Considered(
            statement=key,
            accepted=False,
            reason="gone" if isinstance(statement.unread, ObjectNotFound) else "unreadable",
            message=statement.unread.message,
        )
        return _Candidate(considered=considered, statement=statement)
    if manifest is not None and believed is not None:
        mismatches = tuple(
            mismatch
            for mismatch in manifest.fingerprint.compare(fingerprint)
            if mismatch.factor not in unknown
        )
        try:
            if limits == "all" or not mismatches:
                _check_limits(manifest, believed, trust)
        except ArtifactRefused as error:
            refusal = _bare(error)
        else:
            considered = Considered(
                statement=key,
                accepted=not mismatches,
                reason="fingerprint" if mismatches else "fits",
                mismatches=mismatches,
                created=manifest.created,
            )
            return _Candidate(considered=considered, statement=statement)
    if refusal is None:  # pragma: no cover  (a statement is believed, refused or unread)
        raise AssertionError
    considered = Considered(
        statement=key, accepted=False, reason=refusal.reason, message=refusal.message
    )
    return _Candidate(considered=considered, statement=statement, refusal=refusal)


def _chosen(found: Found, candidates: Sequence[_Candidate]) -> Choice | None:
    fitting = [
        Choice(
            found=found,
            key=candidate.statement.key,
            manifest=candidate.statement.manifest,
            believed=candidate.statement.believed,
            trace=tuple(candidate.considered for candidate in candidates),
        )
        for candidate in candidates
        if candidate.considered.accepted
        and candidate.statement.manifest is not None
        and candidate.statement.believed is not None
    ]
    return max(fitting, key=lambda choice: rank(choice.manifest.created, choice.key), default=None)


def _warn_of_refused(found: Found, candidates: Sequence[_Candidate]) -> None:
    refused = [(c.statement.key, c.refusal) for c in candidates if c.refusal is not None]
    for key, refusal in refused[:SHOWN_VARIANTS]:
        logger.warning("refused statement=%s reason=%s: %s", key, refusal.reason, refusal.message)
    if len(refused) > SHOWN_VARIANTS:
        rest = len(refused) - SHOWN_VARIANTS
        logger.warning("refused %d more statements of %s", rest, found.uri)


def payload_digest(envelope: bytes) -> str:
    """Return what an envelope is about, believed or not; empty where that cannot be read."""
    try:
        return hashlib.sha256(Envelope.parse(envelope).payload).hexdigest()
    except ArtifactRefused:
        return ""


def believable(believed: Believed, trust: Trust) -> Manifest:
    """Read what was believed, and refuse what is denied or too old all the same.

    Raises:
        ArtifactRefused: `newer_format`, `bad_statement`, `denied` or `expired`.
    """
    manifest = Manifest.from_statement(believed.payload)
    _check_limits(manifest, believed, trust)
    return manifest


def _check_limits(manifest: Manifest, believed: Believed, trust: Trust) -> None:
    check_age_and_denied(
        trust,
        payload_digest=believed.digest,
        part_digests=[part.sha256 for part in manifest.parts],
        created=manifest.created,
    )


def check_place(manifest: Manifest, key: str) -> None:
    """Refuse a statement that stands under another deployment than its own.

    Raises:
        ArtifactRefused: `bad_statement`.
    """
    prefix = key[: key.rfind("/") + 1]
    if statements_of(manifest.deployment) != prefix:
        raise ArtifactRefused(
            f"the statement is for {manifest.deployment!r} and stands under {prefix}",
            reason="bad_statement",
            hint="an artifact is not copied from one deployment to another: build one for it",
        )


def read_envelope(source: Store, key: str) -> bytes:
    """Return a statement as it is, within the cap of envelopes.

    Raises:
        ArtifactRefused: `too_large`.
        ObjectNotFound: it is not there any more.
        StoreError: the store could not be read.
    """
    try:
        return source.get(key, max_bytes=MAX_ENVELOPE_BYTES)
    except ObjectTooLarge as error:
        raise ArtifactRefused(error.message, reason="too_large") from error


def _filler(source: _TimedReader, part: Part) -> Callable[[Sink], None]:
    return lambda sink: _download(source, part, sink)


def _download(source: Store | _TimedReader, part: Part, sink: Sink) -> None:
    """Download a part, having looked at its size first."""
    try:
        found = source.head(blob_key(part))
        check_stored_size(part, found.size_bytes)
        source.download(found, sink)
    except ObjectNotFound as error:
        raise ArtifactRefused(
            f"the blob of part {part.name} is not in the store: {error.message}",
            reason="missing_part",
            hint="push the artifact again",
        ) from error


def _raise_none_fits(found: Found, candidates: Sequence[_Candidate]) -> NoReturn:
    trace = tuple(candidate.considered for candidate in candidates)
    for candidate in candidates:
        # It might be the one that fits: the start is to try again.
        unread = candidate.statement.unread
        if unread is not None and candidate.considered.reason == "unreadable":
            raise unread
    for candidate in candidates:
        # Said first: whoever reads "nothing fits" builds again, and would be refused again.
        if candidate.refusal is not None:
            key = candidate.considered.statement
            raise with_trace(candidate.refusal, key, trace)
    if not candidates:
        raise ArtifactNotFound(
            f"{found.uri} has no artifact for {found.deployment!r}",
            hint="build one with: serve-warm build APP --store " + found.uri,
        )
    # The nearest ones first: they tell most about what to change.
    nearest = sorted(trace, key=lambda considered: len(considered.mismatches))
    lines = [f"  {considered}" for considered in nearest[:SHOWN_VARIANTS]]
    if len(nearest) > SHOWN_VARIANTS:
        lines.append(f"  and {len(nearest) - SHOWN_VARIANTS} more")
    hint = (
        "build one on a machine and with settings like these: "
        f"serve-warm build APP --store {found.uri}"
    )
    if any(_wants_portable(considered) for considered in trace):
        hint = "set `cpu: portable` in user_config.warmup to use what was built for every CPU"
    raise ArtifactNotFound(
        f"none of the {len(trace)} artifacts for {found.deployment!r} in {found.uri} fits here:\n"
        + "\n".join(lines),
        trace=trace,
        hint=hint,
    )


def _wants_portable(considered: Considered) -> bool:
    """Whether a variant is missed for nothing but that it is for every CPU."""
    differing = {mismatch.factor: mismatch.artifact for mismatch in considered.mismatches}
    return differing.get("cpu") == "portable" and differing.keys() <= {
        "cpu",
        "cpu_isa",
        "cpu_capability",
    }


def with_trace(
    refusal: ArtifactRefused, statement: str, trace: tuple[Considered, ...]
) -> ArtifactRefused:
    """Return a refusal that names its statement and has what else was looked at."""
    return ArtifactRefused(
        f"{statement}: {refusal.message}",
        reason=refusal.reason,
        hint=refusal.hint,
        statement=statement,
        trace=trace,
    )


# --- parts and keys -----------------------------------------------------------------------


def receive_part(source: Store, part: Part, progress: Progress) -> BinaryIO:
    """Return a downloaded part in a file without a name, hashed as it came, at its beginning.

    Whoever calls closes it.

    Raises:
        ArtifactRefused: `missing_part`, `truncated`, `size_mismatch` or `digest_mismatch`.
        StoreError: the store could not be read, or there is no room for the part.
    """
    done = 0
    lock = threading.Lock()

    def fill(sink: Sink) -> None:
        def counted(offset: int, piece: bytes | memoryview) -> None:
            nonlocal done
            sink(offset, piece)
            with lock:
                done += len(piece)
                progress(part.name, done, part.stored_bytes)

        progress(part.name, 0, part.stored_bytes)
        _download(source, part, counted)

    with _room_for(part):
        return receive_unnamed(part.sha256, part.stored_bytes, fill)


def unpack_part(part: Part, stored: BinaryIO) -> BinaryIO:
    """Return what `open_part` does; that there is no room for it is a StoreError here."""
    with _room_for(part):
        return open_part(part, stored)


@contextmanager
def _room_for(part: Part) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"part {part.name} cannot be written to {tempfile.gettempdir()}: {error.strerror}",
            hint="it takes as much room there as the artifact has unpacked; TMPDIR names another "
            "folder",
        ) from error


def statement_keys(store: Store | _TimedReader, deployment: str | None) -> list[str]:
    """Return the statements of a store, all or those of one deployment, trusted or not.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = STATEMENTS if deployment is None else statements_of(deployment)
    return [
        key
        for key in store.list(prefix)
        # A deeper key is of no deployment, whoever put it there.
        if key.endswith(STATEMENT_SUFFIX) and key.count("/") == 2
    ]


def blob_key(part: Part) -> str:
    """Return where the stored bytes of a part stand."""
    return f"{BLOBS}{part.sha256}"


def statements_of(deployment: str) -> str:
    """Return the prefix of a deployment's statements: readable, and no two names share one."""
    name = urllib.parse.quote(deployment, safe="", errors="surrogatepass")
    # Quoting leaves dots alone, and no name in a key begins with one. Nothing else gives %2E.
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > 200:
        # Quoting never gives %~, so no short name can become this.
        name = f"{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{STATEMENTS}{name}/"


VARIANT = re.compile(
    r"/(?P<variant>[0-9a-f]{16})(?:-g(?P<generation>[1-9][0-9]{0,5}))?(?:-[0-9a-f]{16})?"
    r"(?:-s[0-9a-f]{8})?" + re.escape(STATEMENT_SUFFIX) + r"\Z"
)
"""The end of a statement's key. The 16 digits are what the first release named rebuilds by."""


def generation(key: str) -> int:
    """Return how often a statement of its variant was superseded before, counted from 1."""
    found = VARIANT.search(key)
    return int(found["generation"] or 1) if found else 1
