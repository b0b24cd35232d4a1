# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How an artifact gets into a store: once for each variant, the statement last.

    statements/<deployment>/<variant>.dsse.json     what was published first
    ...                    /<variant>-g2.dsse.json  what superseded it, if that was asked for
    ...                    /<variant>-s<8 hex>.dsse.json  the same one with other signatures

Blobs are written before the statement that names them, so that a statement never points at nothing,
and of several publishers of one variant the first wins. What is there is never written over:
`serve_warm.artifact.choose` chooses among all of it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

from serve_warm.artifact.blobs import Progress, blob_key, check_stored, receive_part, unpack_part
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.manifest import Manifest, Part, check_caps
from serve_warm.artifact.statements import (
    STATEMENT_SUFFIX,
    VARIANT,
    believable,
    check_place,
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
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope, add_signatures, wrap_unsigned
from serve_warm.trust.envelope import sign as sign_payload
from serve_warm.trust.verify import Believed, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

OnTaken = Literal["refuse", "supersede"]
"""What to do when the variant is published already with other content: say so, or publish this one
beside it, which makes it the one that replicas take because it was created later."""


def push(
    store: Store,
    manifest: Manifest,
    parts: Mapping[str, bytes],
    keys: Sequence[Ed25519PrivateKey] | None,
    *,
    on_taken: OnTaken = "refuse",
) -> str:
    """Publish an artifact signed by `keys`; returns the key of its statement.

    `keys` is None for one without a signature, which no replica loads and
    `serve_warm.artifact.unsigned` signs. `parts` are the stored bytes by part name. Publishing the
    same artifact twice is publishing it once, and a push that was interrupted can be repeated.

    Raises:
        ArtifactRefused: the parts are not those of the manifest, or larger than readers accept.
        ConfigError: no key was given.
        AlreadyPublished: the variant is there with other content. Nothing was changed.
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
    envelope = wrap_unsigned(payload) if keys is None else sign_payload(payload, *keys)
    return publish_envelope(store, manifest, envelope, parts, on_taken)


def publish_envelope(
    store: Store,
    manifest: Manifest,
    envelope: bytes,
    parts: Mapping[str, bytes | BinaryIO],
    on_taken: OnTaken,
) -> str:
    """Publish an artifact whose parts were checked, under the signatures of its envelope.

    Raises:
        AlreadyPublished: the variant is there with other content. Nothing was changed.
        StoreError: the store could not be written. No statement is visible.
    """
    # Asked first, so that nothing is uploaded in vain; decided when the statement is created.
    key, is_new = _place(store, manifest, envelope, on_taken)
    for part in manifest.parts:
        if is_new or not _is_there(store, part):
            store.create(blob_key(part), parts[part.name])
    try:
        # Last: whoever sees the statement can read all that it names.
        store.create(key, envelope)
    except ObjectExists:
        # Somebody was faster. With the same artifact that is well, and these signatures have a
        # place beside it; another one is not superseded unseen, whatever was asked for.
        key, _ = _place(store, manifest, envelope, "refuse")
        store.create(key, envelope)
    for part in manifest.parts:
        # A prune that ran meanwhile may have taken an old blob that nobody needed until now.
        if not _is_there(store, part):
            store.create(blob_key(part), parts[part.name])
    logger.info("pushed artifact store=%s statement=%s", store.uri, key)
    return key


def _is_there(store: Store, part: Part) -> bool:
    try:
        return store.head(blob_key(part)).size_bytes == part.stored_bytes
    except ObjectNotFound:
        return False


def find_published(store: Store, deployment: str, fingerprint: Fingerprint) -> list[str]:
    """Return the statements that a store has for this variant, whoever signed them.

    What superseded another one comes after it.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = f"{statements_of(deployment)}{fingerprint.key}"
    return sorted(filter(VARIANT.search, store.list(prefix)), key=generation)


def already_published(
    store: Store,
    *,
    deployment: str,
    fingerprint: Fingerprint,
    key: str,
    parts: Sequence[Part] | None = None,
) -> AlreadyPublished:
    """Return the error that says what is there; `parts` are those that would stand in its place."""
    what = "it cannot be read"
    try:
        there = Manifest.from_statement(Envelope.parse(read_envelope(store, key)).payload)
    except (ArtifactRefused, ObjectNotFound):
        pass
    else:
        what = f"created {there.created}"
        if parts is not None:
            others = {part.name: part for part in there.parts}
            differing = [
                part.name for part in parts if others.pop(part.name, None) != part
            ] + sorted(others)
            what += f", other bytes in {', '.join(differing)}" if differing else ", the same parts"
    return AlreadyPublished(
        f"{store.uri} has variant {fingerprint.key} of {deployment!r} already, as {key} ({what})",
        hint="what is published is never replaced: publish under another prefix, or let this one "
        "supersede it with --if-published supersede; a build can also keep it (keep)",
        statement=key,
    )


def _place(
    store: Store, manifest: Manifest, envelope: bytes, on_taken: OnTaken
) -> tuple[str, bool]:
    """Return the key that this statement has or may have, and whether its payload is new here."""
    payload = Envelope.parse(envelope).payload
    taken: list[str] = []
    same: list[str] = []
    last_created = ""
    for key in find_published(store, manifest.deployment, manifest.fingerprint):
        try:
            there = read_envelope(store, key)
            found = Envelope.parse(there).payload
            last_created = max(last_created, Manifest.from_statement(found).created)
        except ObjectNotFound:
            continue
        except ArtifactRefused:
            there = found = b""
        if there == envelope:
            return key, False
        (same if found == payload else taken).append(key)
    if same:
        return _find_resigned(same[0], envelope), False
    stem = f"{statements_of(manifest.deployment)}{manifest.fingerprint.key}"
    if not taken:
        return f"{stem}{STATEMENT_SUFFIX}", True
    if on_taken == "refuse":
        raise already_published(
            store,
            deployment=manifest.deployment,
            fingerprint=manifest.fingerprint,
            key=taken[-1],
            parts=manifest.parts,
        )
    if manifest.created <= last_created:
        raise AlreadyPublished(
            f"{store.uri} has variant {manifest.fingerprint.key} of {manifest.deployment!r} as "
            f"created {last_created}, and this one was created {manifest.created}: replicas would "
            "go on taking the other one",
            hint="build again, on a machine whose clock is right, or publish under another prefix",
            statement=taken[-1],
        )
    return f"{stem}-g{generation(taken[-1]) + 1}{STATEMENT_SUFFIX}", True


def _find_resigned(key: str, envelope: bytes) -> str:
    """Return where an envelope stands that has the payload of `key` and other signatures."""
    stem = re.sub(r"(-s[0-9a-f]{8})?" + re.escape(STATEMENT_SUFFIX) + r"\Z", "", key)
    return f"{stem}-s{hashlib.sha256(envelope).hexdigest()[:8]}{STATEMENT_SUFFIX}"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of the statements of a store."""

    statements: tuple[str, ...]
    """Keys of what was written; of a copy also what was there already."""
    unchanged: int = 0
    """Artifacts that had all these signatures before."""
    refused: tuple[ArtifactRefused, ...]
    """Why others were left out; each names its statement."""


def sign(
    store: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    trust: Trust,
    deployment: str | None = None,
) -> Done:
    """Sign what a store holds once more, without touching a part; returns the new statements.

    For rotation: with the new key beside the old one each reader finds one that it trusts. What
    is not trusted here before is left out, since a signature vouches for all of an artifact: junk
    in a store cannot hold up a rotation. What these keys have signed already stays as it is.

    Raises:
        ArtifactNotFound: there is nothing to sign.
        ArtifactRefused: nothing there is trusted here.
        ConfigError: no key was given.
        StoreError: the store could not be read or written.
    """
    found, others, refused = _all_vouched(store, deployment, trust)
    vouched = {each.believed.digest for each in found if each.believed.how != "unsigned_ok"}
    refused += [_refuse_unsigned(each) for each in found if each.believed.digest not in vouched]
    found = [each for each in found if each.believed.digest in vouched]
    if not found:
        raise refused[0]
    # Of several envelopes of one artifact the one with the most trusted signers goes on, but none
    # under a key that `published` would not find.
    found.sort(
        key=lambda each: (
            VARIANT.search(each.key) is not None,
            len(each.believed.signers),
            each.key,
        )
    )
    known = {each.envelope for each in found} | others
    created = []
    artifacts = {each.believed.digest: each for each in found}
    for each in artifacts.values():
        try:
            signed = add_signatures(each.envelope, *keys)
        except ConfigError:
            # It has as many signatures as readers look at; whoever may write here can add those.
            signed = sign_payload(each.believed.payload, *keys)
        if signed not in known:
            created.append(_find_resigned(each.key, signed))
            store.create(created[-1], signed)
            logger.info("signed artifact store=%s statement=%s", store.uri, created[-1])
    return Done(
        statements=tuple(created),
        unchanged=len(artifacts) - len(created),
        refused=tuple(refused),
    )


def _refuse_unsigned(each: _Vouched) -> ArtifactRefused:
    unsigned = ArtifactRefused(
        "it is believed only because unsigned_ok names its store, and a signature would vouch "
        "for it everywhere",
        reason="untrusted",
        hint=f'to sign it all the same, pin it: pinned = ["sha256:{each.believed.digest}"]',
    )
    return with_trace(unsigned, each.key, ())


def copy(
    source: Store,
    target: Store,
    *,
    trust: Trust,
    deployment: str | None = None,
    on_taken: OnTaken = "refuse",
    progress: Progress = lambda _what, _done, _total: None,
) -> Done:
    """Copy signed artifacts as they are, all or those of one deployment; returns their statements.

    Of each variant the one that was created last is copied, under all its signatures: what it
    superseded stays behind. Each is checked first, as far as that goes without a fingerprint:
    signature, statement, sizes, digests, unpacking. What is not trusted here, or not what its
    statement says, is left out and not spread from here.

    Raises:
        ArtifactNotFound: there is nothing to copy.
        ArtifactRefused: nothing of it is trusted here and whole.
        AlreadyPublished: the target has a variant of them with other content; those before it are
            copied.
        StoreError: one of the stores could not be read or written.
    """
    found, _, refused = _all_vouched(source, deployment, trust)
    found.sort(key=lambda each: rank(each.manifest.created, each.key))
    newest = {(each.manifest.deployment, each.manifest.fingerprint.key): each for each in found}
    copied: list[str] = []
    for chosen in newest.values():
        with ExitStack() as opened:
            stored: dict[str, bytes | BinaryIO] = {}
            try:
                for part in chosen.manifest.parts:
                    check_caps(part)
                    file = opened.enter_context(receive_part(source, part, progress))
                    unpack_part(part, file).close()
                    stored[part.name] = file
            except ArtifactRefused as refusal:
                refused.append(with_trace(refusal, chosen.key, ()))
                continue
            copied += [
                publish_envelope(target, chosen.manifest, each.envelope, stored, on_taken)
                for each in found
                if each.believed.digest == chosen.believed.digest
            ]
    if not copied:
        raise refused[0]
    return Done(statements=tuple(copied), refused=tuple(refused))


@dataclass(frozen=True, kw_only=True)
class _Vouched:
    """A statement that is believed, and its envelope."""

    key: str
    envelope: bytes
    believed: Believed
    manifest: Manifest


def _all_vouched(
    store: Store, deployment: str | None, trust: Trust
) -> tuple[list[_Vouched], set[bytes], list[ArtifactRefused]]:
    """Return what is believed of a store, all other envelopes, and why those are not believed.

    An envelope that nobody vouches for is passed over where another one of the same artifact is
    believed: after a rotation that is the old one, and anybody can write such.

    Raises:
        ArtifactNotFound: there are no statements.
        ArtifactRefused: none is believed.
    """
    found, refused = [], []
    for key in _some_statements(store, deployment):
        envelope = b""
        try:
            envelope = read_envelope(store, key)
            believed = verify(envelope, trust, store=store.uri)
            manifest = believable(believed, trust)
            check_place(manifest, key)
        except ObjectNotFound:
            continue  # pruned meanwhile
        except ArtifactRefused as error:
            refused.append((key, envelope, error))
        else:
            found.append(_Vouched(key=key, envelope=envelope, believed=believed, manifest=manifest))
    digests = {each.believed.digest for each in found}
    reasons = [
        with_trace(refusal, key, ())
        for key, envelope, refusal in refused
        if payload_digest(envelope) not in digests
    ]
    if not found:
        raise reasons[0] if reasons else _nothing(store, deployment)
    return found, {envelope for _, envelope, _ in refused}, reasons


def _some_statements(store: Store, deployment: str | None) -> list[str]:
    keys = statement_keys(store, deployment)
    if not keys:
        raise _nothing(store, deployment)
    return keys


def _nothing(store: Store, deployment: str | None) -> ArtifactNotFound:
    return ArtifactNotFound(
        f"{store.uri} has no artifact" + (f" for {deployment!r}" if deployment else ""),
        hint="list what is there with: serve-warm inspect",
    )
