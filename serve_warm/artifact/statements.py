# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The statements in a store: where they stand, how they are read, and which are believed.

    statements/<deployment>/<variant>.dsse.json     one signed artifact

Nothing a store says is believed before the signature is checked.
"""

from __future__ import annotations

import hashlib
import re
import threading
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

from serve_warm.artifact.manifest import Manifest
from serve_warm.errors import ArtifactRefused, ObjectTooLarge, StoreError
from serve_warm.stores import Store
from serve_warm.trust import Trust
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, Envelope
from serve_warm.trust.verify import Believed, check_age_and_denied, check_required, verify

STATEMENTS = "statements/"
STATEMENT_SUFFIX = ".dsse.json"
VARIANT = re.compile(
    r"/(?P<variant>[0-9a-f]{16})(?:-g(?P<generation>[1-9][0-9]{0,5}))?(?:-[0-9a-f]{16})?"
    r"(?:-s[0-9a-f]{8})?" + re.escape(STATEMENT_SUFFIX) + r"\Z"
)
"""The end of a statement's key. The 16 digits are what the first release named rebuilds by."""
READERS = 8
"""Statements that are read at once: each costs a round trip, and there is one a variant."""

Read = bytes | StoreError | ArtifactRefused
"""A statement as it is in a store, or why there is none."""


def statement_keys(store: Store, deployment: str | None) -> list[str]:
    """Return the statements of a store, all or those of one deployment, trusted or not.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = STATEMENTS if deployment is None else statements_of(deployment)
    return [key for key in store.list(prefix) if is_statement(key)]


def is_statement(key: str) -> bool:
    """Return whether a key below `statements/` is that of a statement."""
    # A deeper key is of no deployment, whoever put it there.
    return key.endswith(STATEMENT_SUFFIX) and key.count("/") == 2


def statements_of(deployment: str) -> str:
    """Return the prefix of a deployment's statements: readable, and no two names share one."""
    name = urllib.parse.quote(deployment, safe="", errors="surrogatepass")
    # Quoting leaves dots alone, and no name in a key begins with one. Nothing else gives %2E.
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > 200:
        # Quoting never gives %~, so no short name can become this.
        name = f"{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{STATEMENTS}{name}/"


def variant_of(key: str) -> str:
    """Return the fingerprint's key that a statement is named after; empty for another name.

    Anybody may give a statement any name: it says where to look first, and nothing else.
    """
    found = VARIANT.search(key)
    return found["variant"] if found else ""


def generation(key: str) -> int:
    """Return how often a statement of its variant was superseded before, counted from 1."""
    found = VARIANT.search(key)
    return int(found["generation"] or 1) if found else 1


def rank(created: str, key: str) -> tuple[str, int, str]:
    """Order the statements of one variant: of those that fit a pull takes the last one."""
    return created, generation(key), key


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


def read_at_once(store: Store, keys: Sequence[str]) -> list[Read]:
    """Return these statements, each read in a thread of its own; no more than `READERS` of them.

    In daemon threads, not in a pool: Python waits for those of a pool when it ends, and a store
    that does not answer would keep a process whose `__init__` has failed.
    """
    answers: dict[str, Read] = {}

    def run(key: str) -> None:
        try:
            answers[key] = read_envelope(store, key)
        except (StoreError, ArtifactRefused) as error:
            answers[key] = error

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
class Statement:
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


def verify_statement(key: str, envelope: Read, *, trust: Trust, store: str) -> Statement:
    """Check what can be checked of one statement anywhere: size, signature, format, deployment.

    `store` is the address of the store that was read.
    """
    try:
        if isinstance(envelope, Exception):
            raise envelope
        believed = verify(envelope, trust, store=store)
        manifest = Manifest.from_statement(believed.payload)
        check_place(manifest, key)
    except StoreError as error:
        return Statement(key=key, unread=error)
    except ArtifactRefused as refusal:
        about = payload_digest(envelope) if isinstance(envelope, bytes) else ""
        return Statement(key=key, refusal=bare(refusal), payload_digest=about)
    return Statement(key=key, manifest=manifest, believed=believed, payload_digest=believed.digest)


def bare(refusal: ArtifactRefused) -> ArtifactRefused:
    """Return a refusal without the frames that it came through: they hold the statement."""
    return ArtifactRefused(refusal.message, reason=refusal.reason, hint=refusal.hint)


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
    check_limits(manifest, believed, trust)
    return manifest


def check_limits(manifest: Manifest, believed: Believed, trust: Trust) -> None:
    """Refuse what is denied, from the wrong time, or not from where the policies require.

    Raises:
        ArtifactRefused: as `check_age_and_denied` and `check_required`.
    """
    check_age_and_denied(
        trust,
        payload_digest=believed.digest,
        part_digests=[part.sha256 for part in manifest.parts],
        created=manifest.created,
    )
    check_required(trust, manifest.provenance)
