# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How artifacts get into a store and out of it again: what is checked, and in which order.

    blobs/sha256/<hex>                                        one part, as it is stored
    statements/<deployment>/<fingerprint>-<digest>.dsse.json  one signed artifact

`push` writes the blobs first and the statement last, so a statement never points at nothing.
`pull` looks at every statement of the deployment, keeps a reason for each, and takes the newest
that is trusted and fits this machine and app. Nothing a store says is believed before the
signature is checked, and nothing is unpacked before its digest is.
"""

from __future__ import annotations

import hashlib
import logging
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from serve_warm.artifact import (
    MAX_RAW_BYTES,
    MAX_STORED_BYTES,
    Manifest,
    Part,
    check_caps,
    check_stored,
    check_stored_size,
    open_part,
)
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound, ObjectTooLarge
from serve_warm.fingerprint import Fingerprint, Mismatch
from serve_warm.stores import Store
from serve_warm.trust import MAX_ENVELOPE_BYTES, Envelope, Trust, sign, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

STATEMENTS = "statements/"
STATEMENT_SUFFIX = ".dsse.json"
SHOWN_VARIANTS = 5
"""Variants whose differences an error spells out when none fits; its trace has all."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """One statement that `pull` looked at, and what came of it."""

    statement: str
    """Its key in the store."""
    accepted: bool
    """Trusted and fitting. Of several accepted ones the newest is chosen."""
    reason: str
    """`fits`, `fingerprint` (for another machine or app), `gone` (pruned meanwhile), or a reason
    of ArtifactRefused."""
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
    """An artifact whose bytes are all checked."""

    manifest: Manifest
    statement_key: str
    trace: tuple[Considered, ...]
    raw: Mapping[str, bytes]
    """Part name to unpacked bytes. Load these and no others: a file that is read again need not
    be the file that was checked."""
    stored_bytes: int
    """Downloaded for the parts; statements are not counted."""
    download_s: float
    """Wall seconds in the store."""
    verify_s: float
    """Wall seconds for signatures, digests and unpacking."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """One statement of a store as `describe` shows it, trusted or not."""

    statement: str
    trusted: bool
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed it; empty also for a pinned one."""
    reason: str = ""
    """Why it is not trusted or cannot be read: a reason of ArtifactRefused, or `gone`."""
    message: str = ""
    manifest: Manifest | None = None
    """What it says, believed or not; None where it cannot be read."""


def push(
    store: Store,
    manifest: Manifest,
    parts: Mapping[str, bytes],
    keys: Sequence[Ed25519PrivateKey],
) -> str:
    """Publish an artifact signed by `keys`; returns the key of its statement.

    `parts` are the stored bytes by part name. Publishing the same artifact twice is publishing it
    once, and a push that was interrupted can be repeated.

    Raises:
        ArtifactRefused: the parts are not those of the manifest, or larger than readers accept.
        ConfigError: no key was given.
        ObjectExists: the store holds other bytes under one of the keys.
        StoreError: the store could not be written. No statement is visible.
    """
    if parts.keys() != {part.name for part in manifest.parts}:
        raise ArtifactRefused(
            f"the manifest has the parts {', '.join(part.name for part in manifest.parts)}; "
            f"given were {', '.join(parts) or 'none'}",
            reason="missing_part",
        )
    for part in manifest.parts:
        check_caps(part)
        check_stored(part, parts[part.name])
    payload = manifest.to_statement()
    envelope = sign(payload, *keys)
    for part in manifest.parts:
        store.create(_blob_key(part), parts[part.name])
    variant = f"{manifest.fingerprint.key}-{hashlib.sha256(payload).hexdigest()[:16]}"
    key = f"{_statements_of(manifest.deployment)}{variant}{STATEMENT_SUFFIX}"
    # Last: whoever sees the statement can read all that it names.
    store.create(key, envelope)
    logger.info("pushed artifact store=%s statement=%s", store.uri, key)
    return key


def _blob_key(part: Part) -> str:
    return f"blobs/sha256/{part.sha256}"


def _statements_of(deployment: str) -> str:
    """Return the prefix of a deployment's statements: readable, and no two names share one."""
    name = urllib.parse.quote(deployment, safe="", errors="surrogatepass")
    # Quoting leaves dots alone, and no name in a key begins with one. Nothing else gives %2E.
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > 200:
        # Quoting never gives %~, so no short name can become this.
        name = f"{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{STATEMENTS}{name}/"


def pull(
    store: Store,
    *,
    deployment: str,
    fingerprint: Fingerprint,
    trust: Trust,
    parts: Sequence[str] = ("cache",),
    max_bytes: int = MAX_STORED_BYTES,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Pulled:
    """Return the newest artifact that is trusted and fits, with the named parts unpacked.

    `fingerprint` is that of this machine and app. `max_bytes` (as stored) and `max_raw_bytes`
    (unpacked) bound each part.

    Raises:
        ArtifactNotFound: nothing is there, or nothing fits; `trace` says why for each variant.
        ArtifactRefused: nothing fits and something was refused; or the chosen variant, or a part
            of it, is not what its statement says. It has `trace` and `statement` as facts.
        StoreError: the store could not be read.
    """
    began = time.perf_counter()
    source = _TimedReader(store)
    prefix = _statements_of(deployment)
    candidates = [
        _consider(source, key, deployment, fingerprint, trust)
        for key in source.list(prefix)
        # A deeper key is not of this deployment, whoever put it there.
        if key.endswith(STATEMENT_SUFFIX) and "/" not in key.removeprefix(prefix)
    ]
    trace = tuple(candidate.considered for candidate in candidates)
    fitting = [
        (candidate.manifest, candidate.considered.statement)
        for candidate in candidates
        if candidate.manifest is not None and candidate.considered.accepted
    ]
    if not fitting:
        _raise_none_fits(store, deployment, candidates, trace)
    manifest, key = max(fitting, key=lambda choice: (choice[0].created, choice[1]))
    try:
        wanted = [manifest.part(name) for name in dict.fromkeys(parts)]
        for part in wanted:
            check_caps(part, max_stored_bytes=max_bytes, max_raw_bytes=max_raw_bytes)
        raw = {part.name: open_part(part, _fetch(source, part)) for part in wanted}
    except ArtifactRefused as refusal:
        # Not tried again with an older variant: a store that holds damaged or forged bytes has a
        # problem which a silent fall-back would hide, and could be used to force an old artifact.
        raise _with_trace(refusal, key, trace) from refusal
    elapsed_s = time.perf_counter() - began
    stored_bytes = sum(part.stored_bytes for part in wanted)
    logger.info(
        "pulled artifact store=%s statement=%s bytes=%d in %.2f s",
        store.uri,
        key,
        stored_bytes,
        elapsed_s,
    )
    return Pulled(
        manifest=manifest,
        statement_key=key,
        trace=trace,
        raw=raw,
        stored_bytes=stored_bytes,
        download_s=source.elapsed_s,
        verify_s=elapsed_s - source.elapsed_s,
    )


class _TimedReader:
    """The reading half of a store, with the wall seconds spent in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.elapsed_s = 0.0

    def list(self, prefix: str) -> Sequence[str]:
        with self._timed():
            return self._store.list(prefix)

    def size(self, key: str) -> int:
        with self._timed():
            return self._store.size(key)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        with self._timed():
            return self._store.get(key, max_bytes=max_bytes)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.elapsed_s += time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    considered: Considered
    manifest: Manifest | None = None
    """None where the statement is not believed."""
    refusal: ArtifactRefused | None = None


def _consider(
    source: _TimedReader, key: str, deployment: str, fingerprint: Fingerprint, trust: Trust
) -> _Candidate:
    """Check one statement: size, signature, format, deployment, fingerprint, in this order."""
    try:
        manifest = Manifest.from_statement(verify(_read_envelope(source, key), trust))
        _check_deployment(manifest, deployment)
    except ObjectNotFound as error:
        gone = Considered(statement=key, accepted=False, reason="gone", message=error.message)
        return _Candidate(considered=gone)
    except ArtifactRefused as refusal:
        logger.warning("refused statement=%s reason=%s: %s", key, refusal.reason, refusal.message)
        considered = Considered(
            statement=key, accepted=False, reason=refusal.reason, message=refusal.message
        )
        return _Candidate(considered=considered, refusal=refusal)
    mismatches = manifest.fingerprint.compare(fingerprint)
    considered = Considered(
        statement=key,
        accepted=not mismatches,
        reason="fingerprint" if mismatches else "fits",
        mismatches=mismatches,
        created=manifest.created,
    )
    return _Candidate(considered=considered, manifest=manifest)


def _check_deployment(manifest: Manifest, deployment: str) -> None:
    if manifest.deployment != deployment:
        raise ArtifactRefused(
            f"the statement is for {manifest.deployment!r} and stands under {deployment!r}",
            reason="bad_statement",
            hint="an artifact is not copied from one deployment to another: build one for it",
        )


def _read_envelope(source: Store | _TimedReader, key: str) -> bytes:
    try:
        return source.get(key, max_bytes=MAX_ENVELOPE_BYTES)
    except ObjectTooLarge as error:
        raise ArtifactRefused(error.message, reason="too_large") from error


def _fetch(source: _TimedReader, part: Part) -> bytes:
    """Download a part, having looked at its size first."""
    key = _blob_key(part)
    try:
        check_stored_size(part, source.size(key))
        return source.get(key, max_bytes=part.stored_bytes)
    except ObjectNotFound as error:
        raise ArtifactRefused(
            f"the blob of part {part.name} is not in the store: {error.message}",
            reason="missing_part",
            hint="push the artifact again",
        ) from error
    except ObjectTooLarge as error:
        # It had the right size a moment ago.
        raise ArtifactRefused(error.message, reason="size_mismatch") from error


def _raise_none_fits(
    store: Store,
    deployment: str,
    candidates: Sequence[_Candidate],
    trace: tuple[Considered, ...],
) -> NoReturn:
    for candidate in candidates:
        # Said first: whoever reads "nothing fits" builds again, and would be refused again.
        if candidate.refusal is not None:
            key = candidate.considered.statement
            raise _with_trace(candidate.refusal, key, trace) from candidate.refusal
    if not candidates:
        raise ArtifactNotFound(
            f"{store.uri} has no artifact for {deployment!r}",
            hint="build one with: serve-warm build APP --store " + store.uri,
        )
    # The nearest ones first: they tell most about what to change.
    nearest = sorted(trace, key=lambda considered: len(considered.mismatches))
    lines = [f"  {considered}" for considered in nearest[:SHOWN_VARIANTS]]
    if len(nearest) > SHOWN_VARIANTS:
        lines.append(f"  and {len(nearest) - SHOWN_VARIANTS} more")
    raise ArtifactNotFound(
        f"none of the {len(trace)} artifacts for {deployment!r} in {store.uri} fits here:\n"
        + "\n".join(lines),
        trace=trace,
        hint="build one on a machine and with settings like these: "
        f"serve-warm build APP --store {store.uri}",
    )


def _with_trace(
    refusal: ArtifactRefused, statement: str, trace: tuple[Considered, ...]
) -> ArtifactRefused:
    return ArtifactRefused(
        f"{statement}: {refusal.message}",
        reason=refusal.reason,
        hint=refusal.hint,
        statement=statement,
        trace=trace,
    )


def copy(source: Store, target: Store, *, trust: Trust, deployment: str | None = None) -> list[str]:
    """Copy signed artifacts as they are, all or those of one deployment; returns their statements.

    Each is checked first, as far as that goes without a fingerprint: signature, statement, sizes,
    digests, unpacking. An artifact that is not trusted here is not spread from here.

    Raises:
        ArtifactNotFound: there is nothing to copy.
        ArtifactRefused: one of them is not what it should be; those before it are copied.
        ObjectExists: the target holds other bytes under one of the keys.
        StoreError: one of the stores could not be read or written.
    """
    prefix = STATEMENTS if deployment is None else _statements_of(deployment)
    keys = [key for key in source.list(prefix) if key.endswith(STATEMENT_SUFFIX)]
    if not keys:
        raise ArtifactNotFound(
            f"{source.uri} has no artifact" + (f" for {deployment!r}" if deployment else ""),
            hint="list what is there with: serve-warm inspect",
        )
    reader = _TimedReader(source)
    for key in keys:
        try:
            envelope = _read_envelope(source, key)
            manifest = Manifest.from_statement(verify(envelope, trust))
            stored = {}
            for part in manifest.parts:
                check_caps(part)
                stored[part] = _fetch(reader, part)
                open_part(part, stored[part])
        except ArtifactRefused as refusal:
            raise _with_trace(refusal, key, ()) from refusal
        # All of it was good; the statement last, as when it is pushed.
        for part, data in stored.items():
            target.create(_blob_key(part), data)
        target.create(key, envelope)
    return keys


def describe(store: Store, trust: Trust) -> list[Described]:
    """Return every statement of a store, for people: nothing of it is to be loaded for that.

    Needs neither torch nor a fingerprint, and downloads no part.

    Raises:
        StoreError: the store could not be read.
    """
    keys = [key for key in store.list(STATEMENTS) if key.endswith(STATEMENT_SUFFIX)]
    return [_describe(store, key, trust) for key in keys]


def _describe(store: Store, key: str, trust: Trust) -> Described:
    try:
        envelope = _read_envelope(store, key)
        opened = Envelope.parse(envelope)
    except ObjectNotFound as error:
        return Described(statement=key, trusted=False, reason="gone", message=error.message)
    except ArtifactRefused as refusal:
        return Described(
            statement=key, trusted=False, reason=refusal.reason, message=refusal.message
        )
    problems: list[ArtifactRefused] = []
    try:
        verify(envelope, trust)
    except ArtifactRefused as refusal:
        problems.append(refusal)
    trusted, manifest = not problems, None
    try:
        manifest = Manifest.from_statement(opened.payload)
    except ArtifactRefused as refusal:
        problems.append(refusal)
    return Described(
        statement=key,
        trusted=trusted,
        signers=tuple(signer.name for signer in opened.signers(trust)),
        reason=problems[0].reason if problems else "",
        message=problems[0].message if problems else "",
        manifest=manifest,
    )
