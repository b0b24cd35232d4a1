# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The first signature of an artifact, by a process that has the key and runs no model code.

A build runs the code of the model, and what that code could read it could take away: a signing key
too. So a build can publish into a folder without a signature (`serve-warm build --unsigned`), which
no replica loads, and another process checks what stands there, signs it and publishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Literal

from serve_warm.artifact.archive import check_directory
from serve_warm.artifact.blobs import Progress, receive_part, unpack_part
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.manifest import DIRECTORY_PARTS, PROVENANCE, Manifest, check_caps
from serve_warm.artifact.push import Done, OnTaken, find_published, publish_envelope
from serve_warm.artifact.statements import (
    believable,
    check_place,
    payload_digest,
    read_envelope,
    statement_keys,
)
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope, wrap_unsigned
from serve_warm.trust.envelope import sign as sign_payload
from serve_warm.trust.verify import verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

OfPublished = OnTaken | Literal["keep"]
"""`keep`: where the store has the variant already, and it is believed here, nothing is done, unless
its entries were made by older rules and no replica of today runs them."""


MAX_UNSIGNED = 64
"""Statements of a deployment that are signed at once: a build leaves one for each rank."""

CLOCK_SKEW = timedelta(minutes=10)
"""So far the clock of a build may be ahead of the one that signs."""


def sign_unsigned(
    source: Store,
    target: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    trust: Trust,
    deployment: str,
    provenance: Mapping[str, str] = MappingProxyType({}),
    on_taken: OfPublished = "refuse",
    progress: Progress = lambda _what, _done, _total: None,
) -> Done:
    """Check what carries no signature in `source`, sign it, and publish it in `target`.

    Anyone who can write to `source` decides what is signed, but not what it is for and where it is
    from: artifacts of another `deployment` are left alone, and `provenance` replaces what the build
    says of its origin. What `trust` denies or requires holds, and where it has keys the new
    statement must be believed by them in `target`: a fleet that would refuse it is noticed here.
    Statements that carry any signature are left alone. Of an app that compiles nothing a build
    leaves nothing, which is no error.

    Raises:
        ArtifactNotFound: there are artifacts, and none without a signature.
        ArtifactRefused: none of it can be signed, it is dated ahead, or there are more than a build
            leaves.
        AlreadyPublished: the target has the variant, and `on_taken` is `refuse`, or it is `keep`
            and what is there is not believed.
        ConfigError: no key was given.
        StoreError: one of the stores could not be read or written.
    """
    statements: list[str] = []
    refused: list[ArtifactRefused] = []
    kept = 0
    seen = _list_few(source, deployment)
    for key in seen:
        try:
            manifest = _read_unsigned(source, key, trust, provenance)
            if manifest is None:
                continue
            signed = sign_payload(manifest.to_statement(), *keys)
            if trust.keys:
                verify(signed, trust, store=target.uri)
            standing = _compare(target, manifest, trust) if on_taken == "keep" else "none"
            if standing == "current":
                kept += 1
                continue
            how: OnTaken = "supersede" if "supersede" in (on_taken, standing) else "refuse"
            statements.append(
                _publish(source, target, manifest, signed, on_taken=how, progress=progress)
            )
        except ArtifactRefused as refusal:
            refused.append(with_trace(refusal, key, ()))
    if refused and not statements:
        raise refused[0]
    if seen and not statements and not kept:
        raise ArtifactNotFound(
            f"{source.uri} has no artifact without a signature",
            hint="build one with: serve-warm build APP --unsigned --store " + source.uri,
        )
    return Done(statements=tuple(statements), unchanged=kept, refused=tuple(refused))


def _list_few(source: Store, deployment: str) -> list[str]:
    seen = statement_keys(source, deployment)
    if len(seen) > MAX_UNSIGNED:
        raise ArtifactRefused(
            f"{source.uri} has {len(seen)} artifacts of {deployment!r}, and a build leaves one for "
            f"each rank: {MAX_UNSIGNED} at most are signed",
            reason="too_large",
            hint="find out who wrote there, and build into an empty folder",
        )
    return seen


def _publish(
    source: Store,
    target: Store,
    manifest: Manifest,
    signed: bytes,
    *,
    on_taken: OnTaken,
    progress: Progress,
) -> str:
    """Check all parts of an artifact, publish it with its signature, and return its key."""
    with ExitStack() as opened:
        stored = {
            part.name: opened.enter_context(receive_part(source, part, progress))
            for part in manifest.parts
        }
        _check_parts(manifest, stored)
        return publish_envelope(target, manifest, signed, stored, on_taken)


def _read_unsigned(
    source: Store, key: str, trust: Trust, provenance: Mapping[str, str]
) -> Manifest | None:
    """Return what a statement without a signature says, with the origin that the signer knows.

    None where it has a signature, of whatever key.
    """
    envelope = read_envelope(source, key)
    found = Envelope.parse(envelope)
    if found.signatures:
        return None
    manifest = _with_origin(Manifest.from_statement(found.payload), provenance)
    created = datetime.fromisoformat(manifest.created.replace("Z", "+00:00"))
    if created > datetime.now(timezone.utc) + CLOCK_SKEW:
        raise ArtifactRefused(
            f"it says that it was built at {manifest.created}, which is ahead of this clock",
            reason="bad_statement",
            hint="it would win over honest builds until then; correct the clock of the build",
        )
    # As if its digest were pinned: who signs vouches for it, and the limits still hold.
    payload = wrap_unsigned(manifest.to_statement())
    pinned = replace(trust, pinned=frozenset({payload_digest(payload)}), unsigned_ok=())
    believable(verify(payload, pinned, store=source.uri), trust)
    check_place(manifest, key)
    logger.info("signing statement=%s digest=%s", key, payload_digest(payload))
    return manifest


def _with_origin(manifest: Manifest, provenance: Mapping[str, str]) -> Manifest:
    """Replace what the build says of its origin, which the code of a model can change."""
    facts = {name: fact for name, fact in manifest.facts.items() if name != PROVENANCE}
    return replace(manifest, facts=facts | ({PROVENANCE: dict(provenance)} if provenance else {}))


def _check_parts(manifest: Manifest, stored: dict[str, BinaryIO]) -> None:
    for part in manifest.parts:
        check_caps(part)
        with unpack_part(part, stored[part.name]) as raw:
            if part.name in DIRECTORY_PARTS:
                check_directory(raw)


def _compare(
    target: Store, manifest: Manifest, trust: Trust
) -> Literal["none", "current", "supersede"]:
    """Return what a store has of this variant that is believed: nothing, a good one, or older ones.

    Older are those whose entries were made by older rules.
    """
    found = []
    for key in find_published(target, manifest.deployment, manifest.fingerprint):
        try:
            believed = verify(read_envelope(target, key), trust, store=target.uri)
            found.append(believable(believed, trust))
        except (ArtifactRefused, ObjectNotFound):
            continue
    if not found:
        return "none"
    outdated = all(each.has_older_entries(manifest.entry_rules) for each in found)
    return "supersede" if outdated else "current"
