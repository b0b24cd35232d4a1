# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The publication of artifacts in a store. A published artifact is never replaced.

    statements/<application>/<deployment>/<variant>.dsse.json     the first published artifact
    ...                    /<variant>-g2.dsse.json  an artifact that superseded the first
    ...                    /<variant>-s<8 hex>.dsse.json  the same artifact, different signatures

Blobs are written before the statement that names them, so a statement never points at missing
blobs. If several publishers publish the same variant at the same time, the first publisher wins.
Nothing is overwritten: `serve_warm.artifact.choose` chooses among all statements.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, Literal

from serve_warm._records import record
from serve_warm.artifact.blobs import blob_key, check_stored, receive_part, unpack_part
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.manifest import Manifest, Part, Place, check_caps
from serve_warm.artifact.statements import (
    STATEMENT_SUFFIX,
    VARIANT,
    believe,
    check_place,
    describe_filter,
    generation,
    payload_digest,
    rank,
    read_envelope,
    statement_keys,
    statements_of,
)
from serve_warm.errors import (
    AlreadyPublished,
    ArtifactNotFound,
    ArtifactRefused,
    ConfigError,
    ObjectExists,
    ObjectNotFound,
)
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Store, list_keys
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope, add_signatures, wrap_unsigned
from serve_warm.trust.envelope import sign as sign_payload
from serve_warm.trust.verify import Verified, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

OnTaken = Literal["refuse", "supersede"]
"""What to do if the variant is already published with different content. `refuse` raises an error.
`supersede` also publishes the new artifact, and replicas use it because it is newer."""


def push(
    store: Store,
    manifest: Manifest,
    parts: Mapping[str, bytes],
    keys: Sequence[Ed25519PrivateKey] | None,
    *,
    on_taken: OnTaken = "refuse",
) -> str:
    """Publish an artifact signed by `keys`; return the key of its statement.

    With `keys=None` the artifact gets no signature. No replica loads an unsigned artifact, but
    `serve_warm.artifact.unsigned` can sign it later. `parts` maps part names to stored bytes.
    Publishing the same artifact again changes nothing, so an interrupted push can be repeated.

    Raises:
        ArtifactRefused: the parts do not match the manifest, or are larger than readers accept.
        ConfigError: no key was given.
        AlreadyPublished: the variant is published with different content. Nothing was changed.
        StoreError: the store could not be written. No statement is visible.
    """
    if parts.keys() != {part.name for part in manifest.parts}:
        raise ArtifactRefused(
            f"the manifest lists the parts {', '.join(part.name for part in manifest.parts)}, but "
            f"the caller passed {', '.join(parts) or 'no parts'}",
            reason="missing_part",
        )
    for part in manifest.parts:
        check_caps(part)
        check_stored(part, parts[part.name])
    payload = manifest.to_statement()
    envelope = wrap_unsigned(payload) if keys is None else sign_payload(payload, *keys)
    return publish_envelope(store, manifest, envelope, parts, on_taken)


def publish_envelope(
    store: Store,
    manifest: Manifest,
    envelope: bytes,
    parts: Mapping[str, bytes | BinaryIO],
    on_taken: OnTaken,
    *,
    beside: Collection[str] = (),
) -> str:
    """Publish an artifact whose parts are already checked, with the given envelope.

    `refuse` accepts published artifacts in `beside`, which has digests of signed payloads.

    Raises:
        AlreadyPublished: the variant is published with different content. Nothing was changed.
        StoreError: the store could not be written. No statement is visible.
    """
    # This check only avoids useless uploads. Creating the statement below is what decides.
    key, is_new = _place(store, manifest, envelope, on_taken, beside)
    for part in manifest.parts:
        if is_new or not _is_there(store, part):
            store.create(blob_key(part), parts[part.name])
    try:
        # The statement comes last, so that every visible statement has all its blobs.
        store.create(key, envelope)
    except ObjectExists:
        # Another publisher was faster. If both published the same artifact, add these signatures in
        # another statement. Otherwise refuse, because the caller has not seen the artifact that
        # would be superseded.
        key, _ = _place(store, manifest, envelope, "refuse", beside)
        store.create(key, envelope)
    for part in manifest.parts:
        # A concurrent prune may have removed an old blob that now only this artifact names.
        if not _is_there(store, part):
            store.create(blob_key(part), parts[part.name])
    logger.info("pushed artifact store=%s statement=%s", store.uri, key)
    return key


def _is_there(store: Store, part: Part) -> bool:
    try:
        return store.head(blob_key(part)).size_bytes == part.stored_bytes
    except ObjectNotFound:
        return False


def find_published(store: Store, place: Place, fingerprint: Fingerprint) -> list[str]:
    """Return the keys of all statements for this variant, by any signer.

    Each statement comes after the statements that it superseded.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = f"{statements_of(place)}{fingerprint.key}"
    return sorted(filter(VARIANT.search, list_keys(store, prefix)), key=generation)


def already_published(
    store: Store, place: Place, fingerprint: Fingerprint, key: str
) -> AlreadyPublished:
    """Return an AlreadyPublished error for the variant whose statement has this key."""
    what = "it cannot be read"
    with suppress(ArtifactRefused, ObjectNotFound):
        there = Manifest.from_statement(Envelope.parse(read_envelope(store, key)).payload)
        what = f"created {there.created}"
    return AlreadyPublished(
        f"{store.uri} already has variant {fingerprint.key} of {place}, as {key} ({what})",
        hint="if it is an older artifact of your application, pass --if-published supersede: the "
        "new artifact is added, and replicas take the one that fits their code and model best. If "
        "it belongs to another application, give yours another name: set `application` in "
        "user_config.warmup. `serve-warm build` also accepts --if-published keep",
        statement=key,
    )


def _place(
    store: Store,
    manifest: Manifest,
    envelope: bytes,
    on_taken: OnTaken,
    beside: Collection[str],
) -> tuple[str, bool]:
    """Return the key for this statement, and True if its payload is new in the store."""
    payload = Envelope.parse(envelope).payload
    taken: list[str] = []
    same: list[str] = []
    foreign = last_created = ""
    for key in find_published(store, manifest.place, manifest.fingerprint):
        try:
            there = read_envelope(store, key)
            found = Envelope.parse(there).payload
            published = Manifest.from_statement(found)
            if published.made_of == manifest.made_of:
                last_created = max(last_created, published.created)
        except ObjectNotFound:
            continue
        except ArtifactRefused:
            there = found = b""
        if there == envelope:
            return key, False
        (same if found == payload else taken).append(key)
        foreign = foreign if payload_digest(there) in beside else key
    if same:
        return _find_resigned(same[0], envelope), False
    stem = f"{statements_of(manifest.place)}{manifest.fingerprint.key}"
    if not taken:
        return f"{stem}{STATEMENT_SUFFIX}", True
    if on_taken == "refuse" and foreign:
        raise already_published(store, manifest.place, manifest.fingerprint, foreign)
    if manifest.created <= last_created:
        raise AlreadyPublished(
            f"this artifact (created {manifest.created}) is not newer than variant "
            f"{manifest.fingerprint.key} of {manifest.place} in {store.uri}, of the same code and "
            f"model (created {last_created}): replicas would keep loading the artifact in the "
            "store",
            hint="build again on a machine with a correct clock, or publish under another prefix",
            statement=taken[-1],
        )
    return f"{stem}-g{generation(taken[-1]) + 1}{STATEMENT_SUFFIX}", True


def _find_resigned(key: str, envelope: bytes) -> str:
    """Return a key for an envelope that signs the payload at `key` differently."""
    stem = re.sub(r"(-s[0-9a-f]{8})?" + re.escape(STATEMENT_SUFFIX) + r"\Z", "", key)
    return f"{stem}-s{hashlib.sha256(envelope).hexdigest()[:8]}{STATEMENT_SUFFIX}"


@record(frozen=True, kw_only=True)
class SigningResult:
    """The result of signing or copying the statements of a store."""

    statements: tuple[str, ...]
    """Keys of the written statements. After a copy, this field also has the keys of statements that
    the target already had."""
    unchanged: int = 0
    """Number of artifacts that already had all requested signatures."""
    refused: tuple[ArtifactRefused, ...]
    """Errors that explain why statements were skipped; each error names its statement."""


def sign(
    store: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    trust: Trust,
    application: str | None = None,
    deployment: str | None = None,
) -> SigningResult:
    """Add signatures by `keys` to a store's artifacts. The result has the new statements' keys.

    Use this function to rotate keys: if an artifact has signatures by the old and by the new key,
    each reader finds a key that it trusts. Parts do not change. A signature vouches for a whole
    artifact, so artifacts that `trust` does not accept are skipped. As a result, junk in a store
    cannot block a rotation. Artifacts that already have signatures by these keys do not change.

    Raises:
        ArtifactNotFound: the store has no artifacts to sign.
        ArtifactRefused: `trust` accepts no artifact in the store.
        ConfigError: no key was given.
        StoreError: the store could not be read or written.
    """
    found, others, refused = _all_vouched(store, application, deployment, trust)
    vouched = {each.verified.digest for each in found if each.verified.how != "unsigned_ok"}
    refused += [_refuse_unsigned(each) for each in found if each.verified.digest not in vouched]
    found = [each for each in found if each.verified.digest in vouched]
    if not found:
        raise refused[0]
    # If an artifact has several envelopes, extend the envelope with the most trusted signers. But
    # prefer envelopes that `find_published` can find by their names.
    found.sort(
        key=lambda each: (
            VARIANT.search(each.key) is not None,
            len(each.verified.signers),
            each.key,
        )
    )
    known = {each.envelope for each in found} | others
    created = []
    artifacts = {each.verified.digest: each for each in found}
    for each in artifacts.values():
        try:
            signed = add_signatures(each.envelope, *keys)
        except ConfigError:
            # The envelope has as many signatures as allowed. Anyone with write access can add
            # signatures, so start a new envelope.
            signed = sign_payload(each.verified.payload, *keys)
        if signed not in known:
            created.append(_find_resigned(each.key, signed))
            store.create(created[-1], signed)
            logger.info("signed artifact store=%s statement=%s", store.uri, created[-1])
    return SigningResult(
        statements=tuple(created), unchanged=len(artifacts) - len(created), refused=tuple(refused)
    )


def _refuse_unsigned(each: _Vouched) -> ArtifactRefused:
    unsigned = ArtifactRefused(
        "this artifact is trusted only because unsigned_ok names its store, but a signature "
        "would make it trusted everywhere",
        reason="untrusted",
        hint=f'to sign the artifact anyway, pin it: pinned = ["sha256:{each.verified.digest}"]',
    )
    return with_trace(unsigned, each.key, ())


def copy(
    source: Store,
    target: Store,
    *,
    trust: Trust,
    application: str | None = None,
    deployment: str | None = None,
    on_taken: OnTaken = "refuse",
) -> SigningResult:
    """Copy signed artifacts unchanged. The result has the keys of the copied statements.

    If `application` or `deployment` is given, only artifacts with this name are copied. Only the
    newest artifact of each variant, code and model is copied, with all its signatures. Every
    artifact is checked first: signature, statement, sizes, digests, unpacking. An artifact is
    skipped if `trust` refuses it, or if its parts do not match its statement.

    Raises:
        ArtifactNotFound: the source has no artifacts to copy.
        ArtifactRefused: no artifact is trusted and intact.
        AlreadyPublished: the target has one of the variants with content that is not copied.
            Artifacts that were copied before this error stay in the target.
        StoreError: one of the stores could not be read or written.
    """
    found, _, refused = _all_vouched(source, application, deployment, trust)

    def age(each: _Vouched) -> tuple[str, int, str]:
        return rank(each.manifest.created, each.key)

    newest = {
        (each.manifest.place, each.manifest.fingerprint.key, each.manifest.made_of): each
        for each in sorted(found, key=age)
    }
    digests = {each.verified.digest for each in newest.values()}
    copied: list[str] = []
    for chosen in sorted(newest.values(), key=age):
        with ExitStack() as opened:
            stored: dict[str, bytes | BinaryIO] = {}
            try:
                for part in chosen.manifest.parts:
                    check_caps(part)
                    file = opened.enter_context(receive_part(source, part))
                    unpack_part(part, file).close()
                    stored[part.name] = file
            except ArtifactRefused as refusal:
                refused.append(with_trace(refusal, chosen.key, ()))
                continue
            copied += [
                publish_envelope(
                    target, chosen.manifest, each.envelope, stored, on_taken, beside=digests
                )
                for each in found
                if each.verified.digest == chosen.verified.digest
            ]
    if not copied:
        raise refused[0]
    return SigningResult(statements=tuple(copied), refused=tuple(refused))


@record(frozen=True, kw_only=True)
class _Vouched:
    """A statement that was accepted as trusted, with its envelope."""

    key: str
    envelope: bytes
    verified: Verified
    manifest: Manifest


def _all_vouched(
    store: Store, application: str | None, deployment: str | None, trust: Trust
) -> tuple[list[_Vouched], set[bytes], list[ArtifactRefused]]:
    """Return the trusted statements, the refused envelopes, and the reasons for the refusals.

    A refused envelope has no reason in the result if another envelope of the same artifact is
    trusted. Such an envelope dates from before a key rotation, or was added by someone with write
    access.

    Raises:
        ArtifactNotFound: there are no statements.
        ArtifactRefused: no statement is trusted.
    """
    found, refused = [], []
    for key in statement_keys(store, application=application, deployment=deployment):
        envelope = b""
        try:
            envelope = read_envelope(store, key)
            verified = verify(envelope, trust, store=store.uri)
            manifest = believe(verified, trust).manifest
            check_place(manifest, key)
        except ObjectNotFound:
            continue  # pruned while reading
        except ArtifactRefused as error:
            refused.append((key, envelope, error))
        else:
            found.append(_Vouched(key=key, envelope=envelope, verified=verified, manifest=manifest))
    digests = {each.verified.digest for each in found}
    reasons = [
        with_trace(refusal, key, ())
        for key, envelope, refusal in refused
        if payload_digest(envelope) not in digests
    ]
    if not found:
        raise reasons[0] if reasons else _nothing(store, application, deployment)
    return found, {envelope for _, envelope, _ in refused}, reasons


def _nothing(store: Store, application: str | None, deployment: str | None) -> ArtifactNotFound:
    return ArtifactNotFound(
        f"{store.uri} has no artifact{describe_filter(application, deployment)}",
        hint="list the artifacts of a store with: serve-warm inspect",
    )
