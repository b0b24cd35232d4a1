# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The statements in a store: their keys, and how statements are read and verified.

    statements/<application>/<deployment>/<variant>.dsse.json     one signed artifact

Nothing from a store is trusted before the signature is checked.
"""

from __future__ import annotations

import functools
import hashlib
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import InitVar

from serve_warm._daemon_threads import begin
from serve_warm._records import record
from serve_warm.artifact.manifest import Manifest, Place
from serve_warm.errors import ArtifactRefused, ObjectTooLarge, StoreError
from serve_warm.stores import Store, list_keys
from serve_warm.trust import Trust
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES, Check, Envelope
from serve_warm.trust.verify import (
    Verified,
    check_age_and_denied,
    check_any_trust,
    check_required,
    verify,
)

STATEMENTS = "statements/"
STATEMENT_SUFFIX = ".dsse.json"
VARIANT = re.compile(
    r"/(?P<variant>[0-9a-f]{16})(?:-g(?P<generation>[1-9][0-9]{0,5}))?"
    r"(?:-s[0-9a-f]{8})?" + re.escape(STATEMENT_SUFFIX) + r"\Z"
)
"""Pattern for the end of a statement's key."""
GLANCE_BYTES = 128 << 10
"""Size in bytes of the largest statement that a pull reads at first. Larger statements come last,
because anyone with write access to the store can add large statements."""
CHECK_BYTES = 64 << 10
"""The work of one signature check is at least the work of hashing this many bytes."""
READERS = 8
"""Number of concurrent reads. Statements are read concurrently, because each statement costs a
round trip, and each variant has a statement."""

Read = bytes | StoreError | ArtifactRefused
"""The bytes of a statement in a store, or the error from reading the statement."""


def statement_keys(
    store: Store, *, application: str | None = None, deployment: str | None = None
) -> list[str]:
    """Return the keys of all statements, or of one application or deployment, trusted or not.

    Raises:
        StoreError: the store could not be read.
    """
    prefix = STATEMENTS if application is None else f"{STATEMENTS}{name_in_key(application)}/"
    if application is not None and deployment is not None:
        prefix += f"{name_in_key(deployment)}/"
    wanted = None if deployment is None else name_in_key(deployment)
    return [
        key
        for key in list_keys(store, prefix)
        if is_statement(key) and wanted in (None, key.split("/")[2])
    ]


def describe_filter(application: str | None, deployment: str | None) -> str:
    """Return text for a message about some statements of a store; empty for all of them."""
    text = f" for {deployment!r}" if deployment is not None else ""
    return text if application is None else f"{text} of application {application!r}"


def is_statement(key: str) -> bool:
    """Return whether a key below `statements/` belongs to a statement."""
    # A key with more folders belongs to no deployment.
    return key.endswith(STATEMENT_SUFFIX) and key.count("/") == 3


def is_of_old_layout(key: str) -> bool:
    """Return whether a key is of a version that kept no applications: `statements/NAME/...`."""
    return key.endswith(STATEMENT_SUFFIX) and key.count("/") == 2


def statements_of(place: Place) -> str:
    """Return the key prefix of a deployment's statements; it is readable and unique."""
    return f"{STATEMENTS}{name_in_key(place.application)}/{name_in_key(place.deployment)}/"


def read_place(key: str) -> tuple[str, str]:
    """Return the application and deployment in a statement's key, which anyone can choose.

    A name that is too long for a key is returned as it is in the key.
    """
    application, deployment = map(urllib.parse.unquote, key.split("/")[1:3])
    return application, deployment


def name_in_key(name: str) -> str:
    """Return the name of an application or a deployment as one component of a key."""
    name = urllib.parse.quote(name, safe="", errors="surrogatepass")
    # Names in a key must not begin with a dot, and quoting keeps dots. No other name gives %2E.
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > 200:
        # Quoting never produces %~, so no short name can give this result.
        name = f"{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def variant_of(key: str) -> str:
    """Return the fingerprint key in a statement's name; empty if there is none.

    Anyone can choose a statement's name, so use the result only to decide what to read first.
    """
    found = VARIANT.search(key)
    return found["variant"] if found else ""


def generation(key: str) -> int:
    """Return the generation of a statement: 1, plus 1 for each superseded statement."""
    found = VARIANT.search(key)
    return int(found["generation"] or 1) if found else 1


def rank(created: str, key: str) -> tuple[str, int, str]:
    """Return a sort key for statements. A pull takes the last statement that fits."""
    return created, generation(key), key


def check_place(manifest: Manifest, key: str) -> None:
    """Refuse a statement that is stored under another application or deployment.

    Raises:
        ArtifactRefused: `bad_statement`.
    """
    prefix = key[: key.rfind("/") + 1]
    if statements_of(manifest.place) != prefix:
        raise ArtifactRefused(
            f"the statement is for {manifest.place} but is stored under {prefix}",
            reason="bad_statement",
            hint="an artifact cannot be copied to another application or deployment: build an "
            "artifact for that deployment",
        )


def read_envelope(source: Store, key: str, *, max_bytes: int = MAX_ENVELOPE_BYTES) -> bytes:
    """Return the bytes of a statement, up to the size limit of envelopes.

    Raises:
        ArtifactRefused: `too_large`.
        ObjectNotFound: the statement no longer exists.
        StoreError: the store could not be read.
    """
    try:
        return source.get(key, max_bytes=max_bytes)
    except ObjectTooLarge as error:
        raise ArtifactRefused(error.message, reason="too_large") from error


def read_at_once(store: Store, keys: Sequence[str], *, max_bytes: int) -> list[Read]:
    """Return these statements, reading each in its own thread; pass at most `READERS` keys.

    This function uses daemon threads, because Python waits for the threads of a pool at exit. If
    `__init__` failed while a store did not answer, a pool would keep the process alive.
    """

    def read(key: str) -> Read:
        try:
            return read_envelope(store, key, max_bytes=max_bytes)
        except (StoreError, ArtifactRefused) as error:
            return error

    others = [begin(functools.partial(read, key), name="serve_warm-pull") for key in keys[1:]]
    return [*map(read, keys[:1]), *(other.result() for other in others)]


@record(frozen=True, kw_only=True)
class Readable:
    """The content of a statement that a trust policy accepts.

    Age and other limits are not checked yet.
    """

    manifest: Manifest
    verified: Verified


@record(frozen=True, kw_only=True)
class Statement:
    """The result of reading a statement: its content, a refusal, or the reading error."""

    key: str
    outcome: Readable | ArtifactRefused | StoreError
    payload_digest: str = ""
    """Hex sha256 of the payload; empty if the payload cannot be read."""
    is_final: bool = True
    """False if more of the statement must be read, or more of its signatures checked."""
    work_bytes: int = 0
    """The work for a refused statement, as the number of bytes that could have been read instead.
    """

    @property
    def readable(self) -> Readable | None:
        """The statement's content; None if the statement is refused or could not be read."""
        return self.outcome if isinstance(self.outcome, Readable) else None


def verify_statement(
    key: str, envelope: Read, *, trust: Trust, store: str, check: Check = "all"
) -> Statement:
    """Return a statement with the result of the checks that do not depend on the machine.

    The checks are size, signature, format, application and deployment. `store` is the address of
    the store that the envelope was read from. With `check="named"`, the envelope may have been read
    with a smaller size limit, and the result may not be final.
    """
    opened: Envelope | None = None
    try:
        if isinstance(envelope, Exception):
            raise envelope
        check_any_trust(trust)
        opened = Envelope.parse(envelope)
        verified = verify(opened, trust, store=store, check=check)
        manifest = Manifest.from_statement(verified.payload)
        check_place(manifest, key)
    except StoreError as error:
        return Statement(key=key, outcome=error)
    except ArtifactRefused as refusal:
        has_unread = opened is None and refusal.reason == "too_large"
        has_unchecked = opened is not None and opened.has_unnamed(trust.keys)
        return Statement(
            key=key,
            outcome=bare(refusal),
            payload_digest="" if opened is None else _digest(opened),
            is_final=check == "all" or not (has_unread or has_unchecked),
            work_bytes=_count_work(envelope, opened, trust),
        )
    return Statement(
        key=key,
        outcome=Readable(manifest=manifest, verified=verified),
        payload_digest=verified.digest,
        is_final=check == "all"
        or verified.how == "signature"
        or not opened.has_unnamed(trust.keys),
    )


def _count_work(envelope: Read, opened: Envelope | None, trust: Trust) -> int:
    size = len(envelope) if isinstance(envelope, bytes) else MAX_ENVELOPE_BYTES
    if opened is None:
        return size
    # Hashing a payload takes less than an eighth of the time of reading it from a store.
    return size + opened.count_checks(trust.keys) * max(len(opened.payload), CHECK_BYTES) // 8


def bare(refusal: ArtifactRefused) -> ArtifactRefused:
    """Return a refusal without its traceback: a traceback would keep the statement in memory."""
    return ArtifactRefused(refusal.message, reason=refusal.reason, hint=refusal.hint)


def readable_manifest(payload: bytes) -> Manifest | None:
    """Return the manifest of a payload, trusted or not; None if this release cannot read it."""
    try:
        return Manifest.from_statement(payload)
    except ArtifactRefused:
        return None


def payload_digest(envelope: bytes) -> str:
    """Return the digest of an envelope's payload, trusted or not.

    Empty if the envelope cannot be read.
    """
    try:
        return _digest(Envelope.parse(envelope))
    except ArtifactRefused:
        return ""


def _digest(opened: Envelope) -> str:
    return hashlib.sha256(opened.payload).hexdigest()


@record(frozen=True, kw_only=True)
class TrustedStatement:
    """A verified artifact that can be used. The constructor applies the limits of the trust policy.

    Raises:
        ArtifactRefused: the artifact is denied, too old, dated in the future, or not from a
            required origin (`check_age_and_denied`, `check_required`).
    """

    manifest: Manifest
    verified: Verified
    trust: InitVar[Trust]

    def __post_init__(self, trust: Trust) -> None:
        check_age_and_denied(
            trust,
            payload_digest=self.verified.digest,
            part_digests=[part.sha256 for part in self.manifest.parts],
            created=self.manifest.created,
        )
        check_required(trust, self.manifest.provenance)


def believe(verified: Verified, trust: Trust) -> TrustedStatement:
    """Return the artifact of a verified payload; raise if the artifact is denied or too old.

    Raises:
        ArtifactRefused: `newer_format`, `bad_statement`, or a reason that `TrustedStatement` lists.
    """
    manifest = Manifest.from_statement(verified.payload)
    return TrustedStatement(manifest=manifest, verified=verified, trust=trust)
