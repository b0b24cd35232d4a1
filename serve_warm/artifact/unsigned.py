# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Signing of unsigned artifacts, in a process that has the key and runs no model code.

A build runs the model's code, which could steal any readable file, including a signing key. So a
build can write an unsigned artifact to a folder (`serve-warm build --unsigned`). No replica loads
an unsigned artifact. Another process checks, signs and publishes the artifacts in this folder.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Literal

from serve_warm._redaction import excerpt
from serve_warm.artifact.archive import check_directory
from serve_warm.artifact.blobs import receive_part, unpack_part
from serve_warm.artifact.choose import with_trace
from serve_warm.artifact.manifest import DIRECTORY_PARTS, PROVENANCE, Manifest, Place, check_caps
from serve_warm.artifact.push import OnTaken, SigningResult, find_published, publish_envelope
from serve_warm.artifact.statements import (
    believe,
    check_place,
    payload_digest,
    read_envelope,
    statement_keys,
)
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope, wrap_unsigned
from serve_warm.trust.envelope import sign as sign_payload
from serve_warm.trust.verify import verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

logger = logging.getLogger(__name__)

OfPublished = OnTaken | Literal["keep"]
"""What to do if the store already has the variant. `keep` does nothing if this machine trusts the
published variant."""


MAX_UNSIGNED = 64
"""One call accepts at most this many statements of a place. A build makes one statement for
each rank."""

CLOCK_SKEW_S = 600.0
"""Maximum number of seconds by which a build's clock may be ahead of the signer's clock."""


def sign_unsigned(
    source: Store,
    target: Store,
    keys: Sequence[Ed25519PrivateKey],
    *,
    trust: Trust,
    place: Place,
    provenance: Mapping[str, str] = MappingProxyType({}),
    on_taken: OfPublished = "refuse",
) -> SigningResult:
    """Check the unsigned artifacts in `source`, sign them, and publish them to `target`.

    Anyone who can write to `source` controls the signed content, but not its place or origin.
    Artifacts of another `place` are skipped, and `provenance` replaces the origin that the
    build recorded. The limits of `trust` apply. If `trust` has keys, it must accept the new
    statement in `target`. So this function raises an error instead of publishing an artifact that
    replicas with these keys would refuse.
    Statements that already have a signature are skipped. If `source` has no artifact, no error is
    raised, because the build of an app that compiles nothing makes no artifact.

    Raises:
        ArtifactNotFound: the source has artifacts, but all of them are already signed.
        ArtifactRefused: an artifact cannot be signed or is dated in the future; or several
            artifacts do not form one gang, with exactly one artifact for each rank.
        AlreadyPublished: the target has the variant, and `on_taken` is `refuse`; or `on_taken` is
            `keep`, but the published artifact is not trusted.
        ConfigError: no key was given.
        StoreError: one of the stores could not be read or written.
    """
    seen = _list_few(source, place)
    left: list[tuple[Manifest, bytes, OnTaken]] = []
    kept = 0
    for manifest in _read_gang(source, seen, trust, provenance):
        signed = sign_payload(manifest.to_statement(), *keys)
        if trust.keys:
            verify(signed, trust, store=target.uri)
        if on_taken == "keep" and _is_published(target, manifest, trust):
            kept += 1
            continue
        how: OnTaken = "supersede" if on_taken == "supersede" else "refuse"
        left.append((manifest, signed, how))
    if len(left) > 1:  # a gang needs all its ranks, so check all of them first
        for manifest, _, _ in left:
            with _checked(source, manifest):
                pass
    statements = []
    for manifest, signed, how in left:
        with _checked(source, manifest) as stored:
            statements.append(publish_envelope(target, manifest, signed, stored, how))
    if seen and not statements and not kept:
        raise ArtifactNotFound(
            f"{source.uri} has no unsigned artifact",
            hint="build an artifact with: serve-warm build APP --unsigned --store " + source.uri,
        )
    return SigningResult(statements=tuple(statements), unchanged=kept, refused=())


def _list_few(source: Store, place: Place) -> list[str]:
    seen = statement_keys(source, application=place.application, deployment=place.deployment)
    if len(seen) > MAX_UNSIGNED:
        raise ArtifactRefused(
            f"{source.uri} has {len(seen)} artifacts for {place}, and `serve-warm sign` "
            f"accepts at most {MAX_UNSIGNED}; a build makes only one for each rank",
            reason="too_large",
            hint="find out who wrote to this folder, then build into an empty folder",
        )
    return seen


def _read_gang(
    source: Store, keys: Sequence[str], trust: Trust, provenance: Mapping[str, str]
) -> list[Manifest]:
    """Return the unsigned manifests: one for a single process, or one for each rank of a gang.

    Raises:
        ArtifactRefused: an artifact cannot be signed, or the artifacts do not form one gang.
    """
    found = []
    for key in keys:
        try:
            manifest = _read_unsigned(source, key, trust, provenance)
        except ArtifactRefused as refusal:
            raise with_trace(refusal, key, ()) from None
        if manifest is not None:
            found.append(manifest)
    if why := _explain_gang([manifest.fingerprint for manifest in found]):
        raise ArtifactRefused(
            f"the artifacts in {source.uri} do not form one complete gang: {why}",
            reason="bad_statement",
            hint="find out who wrote to this folder, then build once into an empty folder",
        )
    return found


def _explain_gang(fingerprints: Sequence[Fingerprint]) -> str:
    """Return why these fingerprints do not form one complete gang; empty if they do."""
    claims = [each.app.get("rank", "") for each in fingerprints]
    if len(claims) <= 1 and not any(claims):
        return ""
    if why := _explain_ranks(claims):
        return why
    # A factor that neither rank could read counts as equal.
    pairs = [each for one in fingerprints for each in fingerprints[0].compare(one)]
    differ = {each.factor for each in pairs if each.artifact != each.here} - {"rank"}
    return f"they differ in {', '.join(sorted(differ))}" if differ else ""


def _explain_ranks(claims: Sequence[str]) -> str:
    """Return what is wrong with the ranks; empty if each rank of one gang appears exactly once."""
    said = re.fullmatch(r"\d{1,4} of ([1-9]\d{0,3})", claims[0], re.ASCII)
    size = int(said[1]) if said else 0
    if sorted(claims) == sorted(f"{rank} of {size}" for rank in range(size)):
        return ""
    shown = excerpt(", ".join(map(repr, claims)), 300)
    return f"their ranks are {shown}, which is not each rank of one gang once"


@contextmanager
def _checked(source: Store, manifest: Manifest) -> Iterator[dict[str, BinaryIO]]:
    """Check all parts of an artifact, then yield their stored bytes by part name."""
    with ExitStack() as opened:
        stored = {
            part.name: opened.enter_context(receive_part(source, part)) for part in manifest.parts
        }
        _check_parts(manifest, stored)
        yield stored


def _read_unsigned(
    source: Store, key: str, trust: Trust, provenance: Mapping[str, str]
) -> Manifest | None:
    """Return the manifest of an unsigned statement, with its origin replaced by `provenance`.

    Return None if the statement has any signature.
    """
    envelope = read_envelope(source, key)
    found = Envelope.parse(envelope)
    if found.signatures:
        return None
    manifest = _with_origin(Manifest.from_statement(found.payload), provenance)
    if manifest.created_unix > time.time() + CLOCK_SKEW_S:
        raise ArtifactRefused(
            f"the build time {manifest.created} is in the future according to this machine's clock",
            reason="bad_statement",
            hint="until that time, replicas would prefer this artifact to newer builds; correct "
            "the clock of the build machine, and build again",
        )
    # Verify the statement as if its digest were pinned: limits still apply, but no signature is
    # needed.
    payload = wrap_unsigned(manifest.to_statement())
    pinned = replace(trust, pinned=frozenset({payload_digest(payload)}), unsigned_ok=())
    believe(verify(payload, pinned, store=source.uri), trust)
    check_place(manifest, key)
    logger.info("signing statement=%s digest=%s", key, payload_digest(payload))
    return manifest


def _with_origin(manifest: Manifest, provenance: Mapping[str, str]) -> Manifest:
    """Return the manifest with its origin replaced: model code could have forged the origin."""
    facts = {name: fact for name, fact in manifest.facts.items() if name != PROVENANCE}
    return replace(manifest, facts=facts | ({PROVENANCE: dict(provenance)} if provenance else {}))


def _check_parts(manifest: Manifest, stored: dict[str, BinaryIO]) -> None:
    for part in manifest.parts:
        check_caps(part)
        with unpack_part(part, stored[part.name]) as raw:
            if part.name in DIRECTORY_PARTS:
                check_directory(raw)


def _is_published(target: Store, manifest: Manifest, trust: Trust) -> bool:
    """Return whether the store has a trusted artifact of this variant."""
    for key in find_published(target, manifest.place, manifest.fingerprint):
        try:
            verified = verify(read_envelope(target, key), trust, store=target.uri)
            believe(verified, trust)
        except (ArtifactRefused, ObjectNotFound):
            continue
        return True
    return False
