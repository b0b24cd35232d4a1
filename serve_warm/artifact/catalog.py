# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The catalog of a store, which lists and verifies artifacts for the store's maintainers.

This module never loads an artifact. So it runs on any machine, without torch or a fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from serve_warm._records import record
from serve_warm.artifact.archive import check_directory
from serve_warm.artifact.blobs import receive_part, unpack_part
from serve_warm.artifact.manifest import DIRECTORY_PARTS, Manifest, check_caps
from serve_warm.artifact.statements import (
    believe,
    check_place,
    read_envelope,
    read_place,
    readable_manifest,
    statement_keys,
)
from serve_warm.errors import ArtifactRefused, ObjectNotFound
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope
from serve_warm.trust.verify import verify


@record(frozen=True, kw_only=True)
class Described:
    """The description of one statement in a store, trusted or not."""

    statement: str
    trusted: bool
    """Whether the statement is accepted: its origin is trusted, and the statement is not denied and
    not too old. In the results of `check`, True also means that the artifact's parts match."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed the statement. Empty if the statement is refused, or is
    trusted for another reason."""
    how: str = ""
    """Reason why the statement is trusted: `signature`, `pin` or `unsigned_ok`. Empty if the
    statement is not trusted."""
    digest: str = ""
    """Hex sha256 of the signed payload, as used in `pinned` and `denied`."""
    reason: str = ""
    """The reason why the statement is untrusted or unreadable: the `reason` of ArtifactRefused, or
    `gone`."""
    message: str = ""
    hint: str = ""
    manifest: Manifest | None = None
    """The statement's manifest, trusted or not. None if the manifest cannot be read."""


def describe(
    store: Store, trust: Trust, *, application: str | None = None, deployment: str | None = None
) -> list[Described]:
    """Return a description of every statement in a store, without downloading parts.

    Raises:
        StoreError: the store could not be read.
    """
    keys = statement_keys(store, application=application, deployment=deployment)
    return [_describe(store, key, trust) for key in keys]


def _describe(store: Store, key: str, trust: Trust) -> Described:
    try:
        opened = Envelope.parse(read_envelope(store, key))
    except ObjectNotFound as error:
        return Described(statement=key, trusted=False, reason="gone", message=error.message)
    except ArtifactRefused as refusal:
        return _describe_refused(key, refusal)
    try:
        verified = verify(opened, trust, store=store.uri)
        manifest = believe(verified, trust).manifest
        check_place(manifest, key)
    except ArtifactRefused as refusal:
        return _describe_refused(key, refusal, opened.payload)
    return Described(
        statement=key,
        trusted=True,
        signers=verified.signers,
        how=verified.how,
        digest=verified.digest,
        manifest=manifest,
    )


def _describe_refused(
    key: str, refusal: ArtifactRefused, payload: bytes | None = None
) -> Described:
    return Described(
        statement=key,
        trusted=False,
        digest="" if payload is None else hashlib.sha256(payload).hexdigest(),
        reason=refusal.reason,
        message=refusal.message,
        hint=refusal.hint,
        manifest=None if payload is None else readable_manifest(payload),
    )


def check(
    store: Store, trust: Trust, *, application: str | None = None, deployment: str | None = None
) -> list[Described]:
    """Check every statement in full, and return the results.

    The checks cover signature, age, sizes, digests and contents.

    The checks are the same as in a pull, except that artifacts for any machine are checked. Every
    part is downloaded and unpacked into an unnamed file. No part is loaded or kept.

    Raises:
        StoreError: the store could not be read.
    """
    return [
        _check(store, each, each.manifest) if each.trusted and each.manifest is not None else each
        for each in describe(store, trust, application=application, deployment=deployment)
    ]


def _check(store: Store, described: Described, manifest: Manifest) -> Described:
    try:
        for part in manifest.parts:
            check_caps(part)
            with receive_part(store, part) as stored, unpack_part(part, stored) as raw:
                if part.name in DIRECTORY_PARTS:
                    check_directory(raw)
    except ArtifactRefused as refusal:
        return replace(
            described,
            trusted=False,
            reason=refusal.reason,
            message=refusal.message,
            hint=refusal.hint,
        )
    return described


def merge_signatures(described: Sequence[Described]) -> list[Described]:
    """Return each trusted artifact once, with the names of all its signers.

    Signing an artifact again adds a second statement with the same digest. This function keeps only
    the statement with the most signers. Statements that are not trusted are returned unchanged.
    """
    by_digest: dict[str, list[Described]] = {}
    for item in described:
        if item.trusted:
            by_digest.setdefault(item.digest, []).append(item)
    stays = {
        digest: max(items, key=lambda item: len(item.signers))
        for digest, items in by_digest.items()
    }
    return [
        replace(
            item,
            signers=tuple(
                dict.fromkeys(name for each in by_digest[item.digest] for name in each.signers)
            ),
        )
        if item.trusted
        else item
        for item in described
        if not item.trusted or stays[item.digest] is item
    ]


def places(store: Store) -> list[tuple[str, str]]:
    """Return the names of all applications and deployments that a store has statements for.

    Raises:
        StoreError: the store could not be read.
    """
    return sorted({read_place(key) for key in statement_keys(store)})
