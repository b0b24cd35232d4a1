# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a store holds, for the people who keep it: show it, verify all of it, remove what is dead.

Nothing here loads anything, and nothing needs torch, a fingerprint or a machine like the ones that
the artifacts were built for.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import urllib.parse
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from packaging.version import InvalidVersion, Version

from serve_warm.artifact.archive import check_directory
from serve_warm.artifact.blobs import BLOBS, Progress, blob_key, receive_part, unpack_part
from serve_warm.artifact.manifest import DIRECTORY_PARTS, Manifest, check_caps
from serve_warm.artifact.statements import believable, read_envelope, statement_keys
from serve_warm.errors import ArtifactRefused, ConfigError, ObjectNotFound
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import Envelope, parse_json
from serve_warm.trust.verify import verify

logger = logging.getLogger(__name__)

GRACE_S = 86400.0
"""A blob that no statement ever named is left alone for this long: a push writes blobs first."""

DELETED_AT_ONCE = 50
"""Blobs that go before the statements are looked at again: somebody may name an old one anew."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Described:
    """One statement of a store, trusted or not."""

    statement: str
    trusted: bool
    """Believed and in force; from `check`, that all its parts are what it says as well."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed it; empty also for a pinned one."""
    how: str = ""
    """Why it is believed: `signature`, `pin` or `unsigned_ok`; empty where it is not."""
    digest: str = ""
    """Hex sha256 of what was signed, as `pinned` and `denied` take it."""
    reason: str = ""
    """Why it is not trusted or cannot be read: a reason of ArtifactRefused, or `gone`."""
    message: str = ""
    hint: str = ""
    manifest: Manifest | None = None
    """What it says, believed or not; None where it cannot be read."""


def describe(store: Store, trust: Trust, *, deployment: str | None = None) -> list[Described]:
    """Return every statement of a store; downloads no part.

    Raises:
        StoreError: the store could not be read.
    """
    return [_describe(store, key, trust) for key in statement_keys(store, deployment)]


def _describe(store: Store, key: str, trust: Trust) -> Described:
    try:
        envelope = read_envelope(store, key)
        opened = Envelope.parse(envelope)
    except ObjectNotFound as error:
        return Described(statement=key, trusted=False, reason="gone", message=error.message)
    except ArtifactRefused as refusal:
        return _describe_refused(key, refusal)
    try:
        believed = verify(envelope, trust, store=store.uri)
        manifest = believable(believed, trust)
    except ArtifactRefused as refusal:
        return _describe_refused(key, refusal, opened.payload)
    return Described(
        statement=key,
        trusted=True,
        signers=believed.signers,
        how=believed.how,
        digest=believed.digest,
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
        manifest=None if payload is None else _readable(payload),
    )


def _readable(payload: bytes) -> Manifest | None:
    try:
        return Manifest.from_statement(payload)
    except ArtifactRefused:
        return None


def check(
    store: Store,
    trust: Trust,
    *,
    deployment: str | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[Described]:
    """Return every statement with all of it verified: signature, age, sizes, digests, contents.

    It is what a pull checks, for any machine: every part is downloaded and unpacked into files
    without names, and nothing of it is loaded or kept.

    Raises:
        StoreError: the store could not be read.
    """
    return [
        _check(store, described, progress) if described.trusted else described
        for described in describe(store, trust, deployment=deployment)
    ]


def _check(store: Store, described: Described, progress: Progress) -> Described:
    if described.manifest is None:  # pragma: no cover  (it is trusted, so it was read)
        raise AssertionError
    try:
        for part in described.manifest.parts:
            check_caps(part)
            with (
                receive_part(store, part, progress) as stored,
                unpack_part(part, stored) as raw,
            ):
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
    """Return each trusted artifact once, with everybody who signed it.

    Signed once more, an artifact has a second statement with the same digest. Of these the one
    with the most signers stays.
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


def deployments(store: Store) -> list[str]:
    """Return the names of all deployments that a store has statements for.

    Raises:
        StoreError: the store could not be read.
    """
    names = {key.split("/")[1] for key in statement_keys(store, None)}
    return sorted(urllib.parse.unquote(name) for name in names)


# --- pruning -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What may be removed from a store. Nothing given removes nothing but forgotten blobs."""

    older_than_s: float | None = None
    """Seconds since it was created."""
    max_bytes: int | None = None
    """Of all parts together; the oldest artifacts go first."""
    torch_before: str | None = None
    """A version of torch; what was built for an earlier one is dead, the newest of it too."""
    keep_newest: int = 1
    """Artifacts of each variant that age and size leave alone."""

    def __post_init__(self) -> None:
        for name in ("older_than_s", "max_bytes", "keep_newest"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} is below 0: {getattr(self, name)}")
        if self.torch_before is not None and _version(self.torch_before) is None:
            raise ConfigError(f"{self.torch_before!r} is not a version", hint="for example 2.12")


Why = Literal["age", "size", "torch"]


@dataclass(frozen=True, kw_only=True)
class Removed:
    """One statement that was removed, or would be."""

    statement: str
    why: Why
    created: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What pruning a store removed, or would remove."""

    removed: tuple[Removed, ...]
    blobs: tuple[str, ...]
    """Keys of the blobs that no statement names any more."""
    freed_bytes: int
    in_use: tuple[str, ...]
    """Statements that the rules would have removed, and that are in use."""
    unreadable: tuple[str, ...]
    """Statements that this release cannot read. They stay, and so does all that they name."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
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
    rules: Rules,
    *,
    in_use: Collection[str] = (),
    do: Literal["remove", "show"] = "remove",
    now_unix: float | None = None,
) -> Pruned:
    """Remove what the rules name; `do="show"` only says what that would be.

    `in_use` are keys of statements that replicas run on: they stay whatever the rules say.
    Statements go first and blobs last, so that a reader never finds a statement without its blobs;
    a blob goes when no statement that is left names it, and one that none of the removed ones named
    either only when it is a day old. Signatures are not looked at: whoever may delete decides, and
    an artifact of a key that was withdrawn can go too.

    Raises:
        ConfigError: there are blobs and no statement: another kind of store has those too.
        StoreError: the store could not be read or written. What was removed is consistent.
    """
    now = time.time() if now_unix is None else now_unix
    statements = statement_keys(store, None)
    if not statements and store.list(BLOBS):
        raise ConfigError(
            f"{store.uri} has blobs and not one statement, so nothing tells that it is a store of "
            "serve_warm",
            hint="nothing was removed: check the address; if it is the right one, delete it",
        )
    entries, unreadable, foreign = _entries(store, statements)
    kept = set(in_use)
    chosen = _choose(entries, rules, kept, now)
    removed = tuple(item for item in chosen if item.statement not in kept)
    gone = {item.statement for item in removed}
    if do == "remove":
        for item in removed:
            store.delete(item.statement)
            logger.info("pruned statement=%s why=%s", item.statement, item.why)
    named = {blob for entry in entries if entry.key not in gone for blob in entry.blobs}
    # What cannot even be parsed may name any blob.
    blobs = [] if foreign is None else _find_forgotten(store, named | foreign, now, entries)
    if do == "remove" and blobs:
        # Somebody may have published meanwhile, and found one of these blobs there.
        left = {entry.key for entry in entries}.union(unreadable) - gone
        blobs = _delete_unnamed(store, blobs, left)
    return Pruned(
        removed=removed,
        blobs=tuple(key for key, _ in blobs),
        freed_bytes=sum(size for _, size in blobs),
        in_use=tuple(item.statement for item in chosen if item.statement in kept),
        unreadable=tuple(unreadable),
    )


def _entries(store: Store, keys: Iterable[str]) -> tuple[list[_Entry], list[str], set[str] | None]:
    """Return what can be read, what cannot, and the blobs that the latter name if one can tell."""
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
        manifest = _readable(payload)
        if manifest is not None:
            entries.append(_Entry(key=key, manifest=manifest))
            continue
        unreadable.append(key)
        subjects = _subjects(payload)
        foreign = None if foreign is None or subjects is None else foreign | subjects
    return entries, unreadable, foreign


def _subjects(payload: bytes) -> set[str] | None:
    """Return the blobs of a statement of any format: every in-toto statement has subjects."""
    try:
        digests = [subject["digest"]["sha256"] for subject in parse_json(payload)["subject"]]
    except (ValueError, KeyError, TypeError):
        return None
    if not all(isinstance(digest, str) and _HEX_64.fullmatch(digest) for digest in digests):
        return None
    return {f"{BLOBS}{digest}" for digest in digests}


def _choose(
    entries: Sequence[_Entry], rules: Rules, in_use: Collection[str], now: float
) -> list[Removed]:
    chosen: dict[str, Why] = {}
    limit = None if rules.torch_before is None else _version(rules.torch_before)
    for entry in entries:
        version = _version(entry.torch)
        if limit is not None and version is not None and version < limit:
            chosen[entry.key] = "torch"
    left = [entry for entry in entries if entry.key not in chosen]
    old_first = _without_newest(left, rules.keep_newest)
    if rules.older_than_s is not None:
        for entry in old_first:
            if now - _read_created(entry) > rules.older_than_s:
                chosen.setdefault(entry.key, "age")
    if rules.max_bytes is not None:
        for entry in old_first:
            # What is in use stays, and goes on taking its room.
            staying = [e for e in entries if e.key not in chosen or e.key in in_use]
            if _bytes_of(staying) <= rules.max_bytes:
                break
            chosen.setdefault(entry.key, "size")
    return [
        Removed(
            statement=entry.key,
            why=chosen[entry.key],
            created=entry.manifest.created,
            torch=entry.torch,
        )
        for entry in entries
        if entry.key in chosen
    ]


def _without_newest(entries: Iterable[_Entry], keep: int) -> list[_Entry]:
    """Return the entries that may go, the oldest first.

    Two envelopes of one artifact count as one: a signature more is not a newer build.
    """
    variants: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        of = (entry.manifest.deployment, entry.manifest.fingerprint.key)
        variants.setdefault(of, []).append(entry)
    may_go = []
    for variant in variants.values():
        newest = sorted({entry.manifest.created for entry in variant}, reverse=True)[:keep]
        may_go += [entry for entry in variant if entry.manifest.created not in newest]
    return sorted(may_go, key=lambda entry: entry.manifest.created)


def _bytes_of(entries: Iterable[_Entry]) -> int:
    sizes = {part.sha256: part.stored_bytes for e in entries for part in e.manifest.parts}
    return sum(sizes.values())


def _find_forgotten(
    store: Store, named: set[str], now: float, entries: Sequence[_Entry]
) -> list[tuple[str, int]]:
    """Return the blobs that nothing names, with their sizes."""
    known = {blob for entry in entries for blob in entry.blobs}
    found = []
    for key in store.list(BLOBS):
        # Only what can be a blob of ours, whatever else somebody keeps or has put there.
        if key in named or not _HEX_64.fullmatch(key.removeprefix(BLOBS)):
            continue
        try:
            blob = store.head(key)
        except ObjectNotFound:
            continue
        # One that a removed statement named was complete before that, and is in no push now. If
        # it is after all, the push finds out (`push.push` looks at its blobs at its end).
        if key in known or now - blob.modified_unix > GRACE_S:
            found.append((key, blob.size_bytes))
    return found


def _delete_unnamed(
    store: Store, blobs: Sequence[tuple[str, int]], seen: Collection[str]
) -> list[tuple[str, int]]:
    """Delete what nothing names still; look again now and then, since deleting takes its time."""
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
    """Return the blobs that no statement names which was published after `seen` was read."""
    new = [key for key in statement_keys(store, None) if key not in seen]
    entries, _, foreign = _entries(store, new)
    if foreign is None:
        return []
    named = foreign.union(*(entry.blobs for entry in entries))
    return [(key, size) for key, size in blobs if key not in named]


def _read_created(entry: _Entry) -> float:
    return datetime.fromisoformat(entry.manifest.created.replace("Z", "+00:00")).timestamp()


def _version(text: str) -> Version | None:
    try:
        # Without the local part: 2.13.0+cpu is a 2.13.0.
        return Version(Version(text).public)
    except InvalidVersion:
        return None
