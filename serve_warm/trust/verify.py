# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an envelope is believed: its signatures and digest held against whom we trust.

Two steps, since the second needs what the first lets be read: `verify` returns the payload that is
believed and why, `check_age_and_denied` takes back what is denied or from the wrong time.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from serve_warm.errors import ArtifactRefused
from serve_warm.trust.envelope import Envelope
from serve_warm.trust.files import how_to_trust
from serve_warm.trust.policy import Trust

logger = logging.getLogger(__name__)

MAX_CLOCK_SKEW_S = 86400.0
"""How far in the future, by this machine's clock, an artifact may say that it was created."""

_KEY_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Believed:
    """A payload that may be read and acted on, and why."""

    payload: bytes = field(repr=False)
    how: Literal["signature", "pin", "unsigned_ok"]
    """The first of these that holds, so that a signed one never counts as unsigned."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed it; empty unless `how` is `signature`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the payload, as `pinned` and `denied` have it."""
        return hashlib.sha256(self.payload).hexdigest()


def verify(envelope: bytes, trust: Trust, *, store: str = "") -> Believed:
    """Return the payload of an envelope that `trust` believes, and why it does.

    `store` is the address of the store that was read, as the store gives it. It never comes from
    the envelope. What was believed can still be denied or too old: `check_age_and_denied` says so,
    once the payload has been read.

    Raises:
        ArtifactRefused: `no_trust` (nothing is configured), `too_large`, `bad_statement` (not an
            envelope), `untrusted` (signed by nobody we know), `bad_signature` (names a key we
            trust, and that key did not sign this).
    """
    if not (trust.keys or trust.pinned or trust.unsigned_ok):
        raise ArtifactRefused(
            "no key is trusted, so no artifact can be", reason="no_trust", hint=how_to_trust()
        )
    opened = Envelope.parse(envelope)
    signers = opened.signers(trust.keys)
    if signers:
        names = tuple(signer.name for signer in signers)
        return Believed(payload=opened.payload, how="signature", signers=names)
    if hashlib.sha256(opened.payload).hexdigest() in trust.pinned:
        return Believed(payload=opened.payload, how="pin")
    for allowed in trust.unsigned_ok:
        if allowed.store == store:
            logger.warning(
                "nobody who is trusted signed this artifact, and it is believed all the same, "
                "because unsigned_ok names its store: store=%s reason=%s",
                allowed.store,
                allowed.reason,
            )
            return Believed(payload=opened.payload, how="unsigned_ok")
    raise _refusal(opened, trust)


def _refusal(opened: Envelope, trust: Trust) -> ArtifactRefused:
    """Return why nobody vouches for an envelope, in the words that help most."""
    claimed = {signature.key_id for signature in opened.signatures}
    forged = [key for key in trust.keys if key.id in claimed]
    if forged:
        return ArtifactRefused(
            f"the signature of {forged[0].name!r} ({forged[0].id[:16]}) does not belong to this "
            "statement",
            reason="bad_signature",
            hint="the statement was changed after it was signed; build and push again",
        )
    found = f"signed by {_show(claimed)}, which is not trusted here"
    return ArtifactRefused(
        found if claimed else "the statement carries no signature",
        reason="untrusted",
        hint=how_to_trust(),
    )


def check_age_and_denied(
    trust: Trust,
    *,
    payload_digest: str,
    part_digests: Iterable[str],
    created: str,
    now_unix: float | None = None,
) -> None:
    """Refuse what was believed and is nevertheless on the deny-list, or from the wrong time.

    Digests are hex sha256, of the payload and of the parts as they are stored. `created` is the
    time that the payload states, in ISO 8601 with its zone; `now_unix` is in seconds since the
    epoch, and this machine's clock if None. A creation more than a day ahead of it is refused
    whatever the age limit: it would be the newest for ever.

    Raises:
        ArtifactRefused: `denied`, `expired` (too old, or from the future), or `bad_statement`
            (`created` is not a time).
    """
    for what, digest in (
        ("the statement", payload_digest),
        *(("a part of the artifact", digest) for digest in part_digests),
    ):
        if digest in trust.denied:
            raise ArtifactRefused(
                f"{what} (sha256 {digest}) is denied here, whoever signed it",
                reason="denied",
                hint="its digest is under `denied` in a trust file or in code; build and push a "
                "new one",
            )
    try:
        created_at = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError as error:
        raise ArtifactRefused("created is not a time", reason="bad_statement") from error
    if created_at.tzinfo is None:
        raise ArtifactRefused("created is a time without a zone", reason="bad_statement")
    age_s = (time.time() if now_unix is None else now_unix) - created_at.timestamp()
    if age_s < -MAX_CLOCK_SKEW_S:
        raise ArtifactRefused(
            f"created {created}, which is {-age_s / 86400:.1f} days ahead of this machine's clock",
            reason="expired",
            hint="one of two clocks is wrong: this machine's, or that of the machine that built "
            "it; if it was that one, build and push again",
        )
    if trust.max_age_s is not None and age_s > trust.max_age_s:
        raise ArtifactRefused(
            f"created {created}, which is {age_s / 86400:.1f} days ago; the limit is "
            f"{trust.max_age_s / 86400:.1f} days",
            reason="expired",
            hint="build and push again, or raise max_age_days in the trust file (max_age_s in "
            "code)",
        )


def _show(key_ids: Iterable[str]) -> str:
    # Whoever wrote the envelope chose these strings: print only what can be a key id.
    shown = sorted(text[:16] if _KEY_ID.fullmatch(text) else "a key without id" for text in key_ids)
    return ", ".join(shown)
