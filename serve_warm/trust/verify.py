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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from serve_warm.errors import CHANGED_LATER, ArtifactRefused
from serve_warm.trust.envelope import Envelope, parse_json
from serve_warm.trust.files import how_to_trust
from serve_warm.trust.keys import TrustedKey
from serve_warm.trust.patterns import matches
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
            envelope), `untrusted` (signed by nobody we know, or by a key that is not trusted for
            this deployment or store), `bad_signature` (names a key we trust, and that key did not
            sign this).
    """
    if not (trust.keys or trust.pinned or trust.unsigned_ok):
        raise ArtifactRefused("this machine trusts no key", reason="no_trust", hint=how_to_trust())
    opened = Envelope.parse(envelope)
    signers = opened.signers(trust.keys)
    # Signed by a key that is trusted for something: its payload may be looked into by now.
    deployment = _deployment_in(opened.payload) if any(key.deployments for key in signers) else None
    covering = [key for key in signers if key.covers(deployment=deployment, store=store)]
    if covering:
        names = {key.raw: key.name for key in reversed(covering)}
        return Believed(
            payload=opened.payload, how="signature", signers=tuple(reversed(names.values()))
        )
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
    raise _out_of_scope(signers, deployment, store) if signers else _refusal(opened, trust)


def _deployment_in(payload: bytes) -> str | None:
    """Return the deployment that a statement is for; None where it names none."""
    try:
        deployment = parse_json(payload)["predicate"]["deployment"]
    except (ValueError, KeyError, TypeError):
        return None
    return deployment if isinstance(deployment, str) else None


def _out_of_scope(
    signers: Sequence[TrustedKey], deployment: str | None, store: str
) -> ArtifactRefused:
    named = "; ".join(f"{key.name!r} is trusted for {key.scope} alone" for key in signers)
    what = "this" if deployment is None else f"this is for {deployment!r} and"
    return ArtifactRefused(
        f"signed by a key out of its scope: {named}, and {what} comes from {store or 'no store'}",
        reason="untrusted",
        hint="sign with a key for it, or widen `deployments` or `stores` of the key in the trust "
        "file",
    )


def _refusal(opened: Envelope, trust: Trust) -> ArtifactRefused:
    """Return why nobody vouches for an envelope, in the words that help most."""
    claimed = {signature.key_id for signature in opened.signatures}
    forged = [key for key in trust.keys if key.id in claimed]
    if forged:
        return ArtifactRefused(
            f"the signature of {forged[0].name!r} ({forged[0].id[:16]}) does not belong to this "
            "statement",
            reason="bad_signature",
            hint=CHANGED_LATER,
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
    age_s = _age_s(created, now_unix)
    if age_s < -MAX_CLOCK_SKEW_S:
        raise ArtifactRefused(
            f"created {created}, which is {-age_s / 86400:.1f} days ahead of this machine's clock",
            reason="expired",
            hint="one of two clocks is wrong: this machine's, or that of the machine that built "
            "it; if it was that one, build and push again",
        )
    if age_s > trust.age_limit_s:
        default = ", where no policy says another" if trust.max_age_s is None else ""
        raise ArtifactRefused(
            f"created {created}, which is {_show_age(age_s)} ago; the limit is "
            f"{_show_age(trust.age_limit_s)}{default}",
            reason="expired",
            hint="build again with --if-published supersede, or raise max_age_days in the trust "
            "file (max_age_s in code)",
        )


def _show_age(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else f"{seconds / 3600:.2f} hours"


def _age_s(created: str, now_unix: float | None) -> float:
    try:
        created_at = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError as error:
        raise ArtifactRefused("created is not a time", reason="bad_statement") from error
    if created_at.tzinfo is None:
        raise ArtifactRefused("created is a time without a zone", reason="bad_statement")
    return (time.time() if now_unix is None else now_unix) - created_at.timestamp()


def describe_end(trust: Trust, *, created: str, now_unix: float | None = None) -> str:
    """Return in a sentence when an artifact becomes too old, if nine tenths of its time are over.

    Empty before that: a fleet should hear of it before it goes cold.
    """
    age_s, limit_s = _age_s(created, now_unix), trust.age_limit_s
    if age_s < 0.9 * limit_s:
        return ""
    return (
        f"the artifact was created {created}, and is refused as too old in "
        f"{max(0.0, limit_s - age_s) / 86400:.1f} days: build it again, or raise max_age_days"
    )


def check_required(trust: Trust, said: Mapping[str, Any]) -> None:
    """Refuse what does not say of where it comes from what the policies require.

    `said` has what the statement says by the names of `policy.FACTS`.

    Raises:
        ArtifactRefused: `untrusted`.
    """
    for name, pattern in sorted(trust.require):
        found = said.get(name)
        if not isinstance(found, str) or not matches(pattern, found):
            says = f"says {name} {found!r}" if isinstance(found, str) else f"says no {name}"
            raise ArtifactRefused(
                f"the artifact {says}, and {pattern!r} is required here",
                reason="untrusted",
                hint="build it where `require` of the trust file allows, with --source-commit, "
                "--image and --builder as it says",
            )


def _show(key_ids: Iterable[str]) -> str:
    # Whoever wrote the envelope chose these strings: print only what can be a key id.
    shown = sorted(text[:16] if _KEY_ID.fullmatch(text) else "a key without id" for text in key_ids)
    return ", ".join(shown)
