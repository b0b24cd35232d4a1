# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Pruning of a store: which artifacts and blobs are removed, and in which order."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from serve_warm._records import record
from serve_warm.artifact.blobs import BLOBS, blob_key
from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import Manifest, Place
from serve_warm.artifact.statements import read_envelope, readable_manifest, statement_keys
from serve_warm.errors import ArtifactRefused, ConfigError, ObjectNotFound
from serve_warm.stores import Store, list_keys
from serve_warm.trust.envelope import Envelope, parse_json

logger = logging.getLogger(__name__)

GRACE_S = 86400.0
"""A blob is kept for this many seconds even if no statement names it, because a push writes blobs
before the statement that names them."""

DELETED_AT_ONCE = 50
"""Number of blobs to delete before the statements are listed again, because a new statement can
name an old blob."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")


@record(frozen=True, kw_only=True)
class Removed:
    """A statement that pruning removed, or would remove."""

    statement: str
    created: str
    torch: str


@record(frozen=True, kw_only=True)
class Pruned:
    """The result of pruning a store: what was removed, or would be removed."""

    removed: tuple[Removed, ...]
    blobs: tuple[str, ...]
    """Keys of the removed blobs, which no statement names any more."""
    freed_bytes: int
    in_use: tuple[str, ...]
    """Statements that are too old, but that stay because they are in use."""
    unreadable: tuple[str, ...]
    """Statements that this release cannot read. These are kept, with all blobs that they name."""


@record(frozen=True, kw_only=True)
class _StoredArtifact:
    key: str
    manifest: Manifest

    @property
    def torch(self) -> str:
        return self.manifest.fingerprint.machine.get("torch", "").partition(" ")[0]

    @property
    def blobs(self) -> set[str]:
        return {blob_key(part) for part in self.manifest.parts}


def prune(
    store: Store,
    *,
    application: str | None = None,
    deployment: str | None = None,
    older_than_s: float | None = None,
    keep_newest: int = 1,
    in_use: Collection[str] = (),
    do: Literal["remove", "show"] = "remove",
) -> Pruned:
    """Remove artifacts that are older than `older_than_s`; with `do="show"`, only report them.

    If `application` or `deployment` is given, only artifacts with this name are removed.
    Of each variant, code and model, the newest `keep_newest` artifacts are kept. With
    `older_than_s=None`, only blobs that no statement names are removed.

    `in_use` has the keys of statements that replicas use; these statements are always kept.
    Statements are removed before blobs, so that a reader never finds a statement without its blobs.
    A blob is removed only if no remaining statement names it. In addition, a removed statement must
    have named the blob, or the blob must be at least a day old. Signatures are not checked: anyone
    with permission to delete from the store can prune it. So artifacts signed with a withdrawn key
    can be removed too.

    Raises:
        ConfigError: the store has blobs but no statement, so it may not be a serve_warm store.
        StoreError: the store could not be read or written. The store is left consistent.
    """
    now_unix = time.time()
    statements = statement_keys(store)
    if not statements and list_keys(store, BLOBS):
        raise ConfigError(
            f"{store.uri} has blobs but no statement, so it might not be a serve_warm store",
            hint="nothing was removed; check the address, and if the address is right, delete the "
            "folder or prefix yourself",
        )
    entries, unreadable, foreign = _entries(store, statements)
    kept = set(in_use)
    chosen = []
    if older_than_s is not None:
        chosen = [
            Removed(statement=entry.key, created=entry.manifest.created, torch=entry.torch)
            for entry in _without_newest(entries, keep_newest)
            if now_unix - entry.manifest.created_unix > older_than_s
            and application in (None, entry.manifest.place.application)
            and deployment in (None, entry.manifest.place.deployment)
        ]
    removed = tuple(item for item in chosen if item.statement not in kept)
    gone = {item.statement for item in removed}
    if do == "remove":
        for item in removed:
            store.delete(item.statement)
            logger.info("pruned statement=%s", item.statement)
    named = {blob for entry in entries if entry.key not in gone for blob in entry.blobs}
    # A statement that cannot be parsed may name any blob.
    blobs = [] if foreign is None else _find_forgotten(store, named | foreign, now_unix, entries)
    if do == "remove" and blobs:
        # A concurrent push may have found one of these blobs in the store and reused the blob.
        left = {entry.key for entry in entries}.union(unreadable) - gone
        blobs = _delete_unnamed(store, blobs, left)
    return Pruned(
        removed=removed,
        blobs=tuple(key for key, _ in blobs),
        freed_bytes=sum(size for _, size in blobs),
        in_use=tuple(item.statement for item in chosen if item.statement in kept),
        unreadable=tuple(unreadable),
    )


def _entries(
    store: Store, keys: Iterable[str]
) -> tuple[list[_StoredArtifact], list[str], set[str] | None]:
    """Return readable statements as entries, and the keys and blobs of unreadable statements.

    Return None instead of the blobs if an unreadable statement's blobs are unknown.
    """
    entries, unreadable = [], []
    foreign: set[str] | None = set()
    for key in keys:
        try:
            payload = Envelope.parse(read_envelope(store, key)).payload
        except ObjectNotFound:
            continue
        except ArtifactRefused:
            unreadable.append(key)
            foreign = None
            continue
        manifest = readable_manifest(payload)
        if manifest is not None:
            entries.append(_StoredArtifact(key=key, manifest=manifest))
            continue
        unreadable.append(key)
        subjects = _subjects(payload)
        foreign = None if foreign is None or subjects is None else foreign | subjects
    return entries, unreadable, foreign


def _subjects(payload: bytes) -> set[str] | None:
    """Return the blobs that a statement of any format names; None if the blobs are unknown."""
    try:
        digests = [subject["digest"]["sha256"] for subject in parse_json(payload)["subject"]]
    except (ValueError, KeyError, TypeError):
        return None
    if not all(isinstance(digest, str) and _HEX_64.fullmatch(digest) for digest in digests):
        return None
    return {f"{BLOBS}{digest}" for digest in digests}


def _without_newest(entries: Iterable[_StoredArtifact], keep: int) -> list[_StoredArtifact]:
    """Return the entries that can be removed, oldest first.

    Two envelopes of one artifact count as one: an added signature is not a newer build.
    """
    variants: dict[tuple[Place, str, CodeAndModel], list[_StoredArtifact]] = {}
    for entry in entries:
        manifest = entry.manifest
        of = (manifest.place, manifest.fingerprint.key, manifest.made_of)
        variants.setdefault(of, []).append(entry)
    may_go = []
    for variant in variants.values():
        newest = sorted({entry.manifest.created for entry in variant}, reverse=True)[:keep]
        may_go += [entry for entry in variant if entry.manifest.created not in newest]
    return sorted(may_go, key=lambda entry: entry.manifest.created)


def _find_forgotten(
    store: Store, named: set[str], now_unix: float, entries: Sequence[_StoredArtifact]
) -> list[tuple[str, int]]:
    """Return the blobs that no statement names, with the size of each blob."""
    known = {blob for entry in entries for blob in entry.blobs}
    found = []
    for key in list_keys(store, BLOBS):
        # Skip foreign files: only keys that look like blobs are deleted.
        if key in named or not _HEX_64.fullmatch(key.removeprefix(BLOBS)):
            continue
        try:
            blob = store.head(key)
        except ObjectNotFound:
            continue
        # A blob that a removed statement named belongs to no running push. If a push does reuse
        # such a blob, that push notices: `push.push` checks its blobs at the end.
        if key in known or now_unix - blob.modified_unix > GRACE_S:
            found.append((key, blob.size_bytes))
    return found


def _delete_unnamed(
    store: Store, blobs: Sequence[tuple[str, int]], seen: Collection[str]
) -> list[tuple[str, int]]:
    """Delete blobs in batches, and return the deleted blobs.

    Deleting is slow, so the statements are listed again before each batch.
    """
    deleted = []
    for start in range(0, len(blobs), DELETED_AT_ONCE):
        some = _without_new(store, blobs[start : start + DELETED_AT_ONCE], seen)
        for key, _ in some:
            store.delete(key)
        deleted += some
    return deleted


def _without_new(
    store: Store, blobs: Sequence[tuple[str, int]], seen: Collection[str]
) -> list[tuple[str, int]]:
    """Return `blobs` without those that a new statement names.

    A statement is new if its key is not in `seen`.
    """
    new = [key for key in statement_keys(store) if key not in seen]
    entries, _, foreign = _entries(store, new)
    if foreign is None:
        return []
    named = foreign.union(*(entry.blobs for entry in entries))
    return [(key, size) for key, size in blobs if key not in named]
