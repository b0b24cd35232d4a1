# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The first signature of an artifact, by a process that has the key and runs no model code.

A build runs the code of the model, and what that code could read it could take away: a signing key
too. So a build can publish into a folder without a signature (`serve-warm build --unsigned`), which
no replica loads, and another process checks what stands there, signs it and publishes it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Literal

from serve_warm.artifact.archive import check_directory
from serve_warm.artifact.blobs import Progress, receive_part, unpack_part
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.manifest import DIRECTORY_PARTS, Manifest, check_caps
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
from serve_warm.trust.envelope import Envelope
from serve_warm.trust.envelope import sign as sign_payload
from serve_warm.trust.verify import verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

OfPublished = OnTaken | Literal["keep"]
"""`keep`: where the store has the variant already, and it is believed here, nothing is done, unless
its entries were made by older rules and no replica of today runs them."""


@dataclass(frozen=True, kw_only=True)
class _Unsigned:
    key: str
    payload: bytes
    manifest: Manifest


def sign_unsigned(
    source: Store,
    target: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    trust: Trust,
    deployment: str | None = None,
    on_taken: OfPublished = "refuse",
    progress: Progress = lambda _what, _done, _total: None,
) -> Done:
    """Check what carries no signature in `source`, sign it, and publish it in `target`.

    Whoever may write to `source` decides what is signed. What `trust` denies or requires holds,
    and where it has keys the new statement must be believed by them in `target`: a fleet that would
    refuse it is noticed here. Statements that carry any signature are left alone. Of an app that
    compiles nothing a build leaves nothing, which is no error.

    Raises:
        ArtifactNotFound: there are artifacts, and none without a signature.
        ArtifactRefused: none of it can be signed.
        AlreadyPublished: the target has the variant, and `on_taken` is `refuse`, or it is `keep`
            and what is there is not believed.
        ConfigError: no key was given.
        StoreError: one of the stores could not be read or written.
    """
    statements: list[str] = []
    refused: list[ArtifactRefused] = []
    kept = 0
    seen = statement_keys(source, deployment)
    for key in seen:
        try:
            found = _read_unsigned(source, key, trust)
            if found is None:
                continue
            signed = sign_payload(found.payload, *keys)
            if trust.keys:
                verify(signed, trust, store=target.uri)
            standing = _compare(target, found.manifest, trust) if on_taken == "keep" else "none"
            if standing == "current":
                kept += 1
                continue
            with ExitStack() as opened:
                stored = {
                    part.name: opened.enter_context(receive_part(source, part, progress))
                    for part in found.manifest.parts
                }
                _check_parts(found.manifest, stored)
                supersedes = "supersede" in (on_taken, standing)
                how: OnTaken = "supersede" if supersedes else "refuse"
                statements.append(publish_envelope(target, found.manifest, signed, stored, how))
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


def _read_unsigned(source: Store, key: str, trust: Trust) -> _Unsigned | None:
    """Return a statement that nobody has signed; None where somebody has, whoever that is."""
    envelope = read_envelope(source, key)
    if Envelope.parse(envelope).signatures:
        return None
    # As if its digest were pinned: who signs vouches for it, and the limits hold all the same.
    pinned = replace(trust, pinned=frozenset({payload_digest(envelope)}), unsigned_ok=())
    believed = verify(envelope, pinned, store=source.uri)
    manifest = believable(believed, trust)
    check_place(manifest, key)
    logger.info("signing digest=%s", hashlib.sha256(believed.payload).hexdigest())
    return _Unsigned(key=key, payload=believed.payload, manifest=manifest)


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
