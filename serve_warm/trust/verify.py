# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Verification of envelopes: signatures and digests are checked against a trust policy.

Verification has two steps, because the second step needs the verified payload. `verify` returns the
payload and the reason why it may be parsed. `check_age_and_denied` then refuses payloads that
are denied, too old or dated in the future. An artifact that passed both steps
is a `serve_warm.artifact.statements.TrustedStatement`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from serve_warm._records import record
from serve_warm.errors import CHANGED_LATER, ArtifactRefused
from serve_warm.trust.envelope import Check, Envelope, parse_json
from serve_warm.trust.files import how_to_trust
from serve_warm.trust.keys import TrustedKey
from serve_warm.trust.patterns import matches
from serve_warm.trust.policy import Trust

logger = logging.getLogger(__name__)

MAX_CLOCK_SKEW_S = 86400.0
"""Maximum number of seconds that `created` may be ahead of this machine's clock."""

_KEY_ID = re.compile(r"[0-9a-f]{64}")


@record(frozen=True, kw_only=True)
class Verified:
    """A payload that may be parsed, and why. The payload might still be denied or too old."""

    payload: bytes = field(repr=False)
    how: Literal["signature", "pin", "unsigned_ok"]
    """Why the payload may be parsed. If several reasons apply, this is the first in the order of
    the `Literal`, so a signed payload never counts as unsigned."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed the payload; empty unless `how` is `signature`."""

    @property
    def digest(self) -> str:
        """Hex sha256 of the payload, as used in `pinned` and `denied`."""
        return hashlib.sha256(self.payload).hexdigest()


def verify(
    envelope: bytes | Envelope, trust: Trust, *, store: str = "", check: Check = "all"
) -> Verified:
    """Return the payload of an envelope, and the reason why `trust` accepts its origin.

    `store` is the address that the store itself reports, never an address from the envelope. The
    payload might still be denied or too old. `check` says which signatures are checked; the others
    count as wrong.

    Raises:
        ArtifactRefused: `no_trust` (nothing is configured), `too_large`, `bad_statement` (not an
            envelope), `untrusted` (no trusted key signed the envelope, or the signing keys are not
            trusted for this deployment or store), `bad_signature` (the envelope names a trusted key
            that did not sign it).
    """
    check_any_trust(trust)
    opened = envelope if isinstance(envelope, Envelope) else Envelope.parse(envelope)
    signers = opened.signers(trust.keys, check=check)
    # If a key that is trusted for any scope signed the payload, the payload may be parsed.
    deployment = _deployment_in(opened.payload) if any(key.deployments for key in signers) else None
    covering = [key for key in signers if key.covers(deployment=deployment, store=store)]
    if covering:
        names = {key.raw: key.name for key in reversed(covering)}
        return Verified(
            payload=opened.payload, how="signature", signers=tuple(reversed(names.values()))
        )
    if hashlib.sha256(opened.payload).hexdigest() in trust.pinned:
        return Verified(payload=opened.payload, how="pin")
    for allowed in trust.unsigned_ok:
        if allowed.store == store:
            logger.warning(
                "no trusted key signed this artifact; it is used because unsigned_ok names its "
                "store: store=%s reason=%s",
                allowed.store,
                allowed.reason,
            )
            return Verified(payload=opened.payload, how="unsigned_ok")
    raise _out_of_scope(signers, deployment, store) if signers else _refusal(opened, trust, store)


def check_any_trust(trust: Trust) -> None:
    """Refuse everything if nothing is trusted.

    Raises:
        ArtifactRefused: `no_trust`.
    """
    if not (trust.keys or trust.pinned or trust.unsigned_ok):
        raise ArtifactRefused("this machine trusts no key", reason="no_trust", hint=how_to_trust())


def _deployment_in(payload: bytes) -> str | None:
    """Return the deployment that a statement names; None if it names no deployment."""
    try:
        deployment = parse_json(payload)["predicate"]["deployment"]
    except (ValueError, KeyError, TypeError):
        return None
    return deployment if isinstance(deployment, str) else None


def _out_of_scope(
    signers: Sequence[TrustedKey], deployment: str | None, store: str
) -> ArtifactRefused:
    scopes = "; ".join(f"{key.name!r} is trusted only for {key.scope}" for key in signers)
    source = store or "no store"
    artifact = f"the artifact is for {deployment!r} and comes from {source}"
    if deployment is None:
        artifact = f"the artifact comes from {source}"
    return ArtifactRefused(
        f"the signing key is not trusted for this artifact: {scopes}, but {artifact}",
        reason="untrusted",
        hint="sign with a key for this scope, or extend `deployments` or `stores` of the key in "
        "the trust file",
    )


def _refusal(opened: Envelope, trust: Trust, store: str) -> ArtifactRefused:
    """Return the most specific refusal for an envelope that no trusted key signed."""
    claimed = {signature.key_id for signature in opened.signatures}
    forged = [key for key in trust.keys if key.id in claimed]
    if forged:
        return ArtifactRefused(
            f"the signature of {forged[0].name!r} ({forged[0].id[:16]}) does not match this "
            "statement",
            reason="bad_signature",
            hint=CHANGED_LATER,
        )
    if not claimed:
        # Trusting one more key would not help.
        return ArtifactRefused(
            "the statement has no signature",
            reason="untrusted",
            hint="replicas load only signed artifacts. Whoever has a private key that this machine "
            f"trusts can check and sign this one: serve-warm sign {shlex.quote(store or 'STORE')} "
            "--unsigned "
            "--application NAME --deployment NAME --key FILE",
        )
    return ArtifactRefused(
        f"signed by {_show(claimed)}, which is not trusted here",
        reason="untrusted",
        hint=how_to_trust(),
    )


def check_age_and_denied(
    trust: Trust, *, payload_digest: str, part_digests: Iterable[str], created: str
) -> None:
    """Refuse a verified payload that is denied, too old, or dated in the future.

    Digests are the hex sha256 of the payload, and of each part as stored. `created` is the
    payload's creation time, in ISO 8601 with a time zone. A creation time more than a day in the
    future is always refused, because otherwise the artifact would count as the newest for too long.

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
                f"{what} (sha256 {digest}) is on the deny-list",
                reason="denied",
                hint="a trust file or code lists this digest under `denied`; build and push a new "
                "artifact",
            )
    age_s = _age_s(created)
    if age_s < -MAX_CLOCK_SKEW_S:
        raise ArtifactRefused(
            f"the artifact was created at {created}, which is {_show_age(-age_s)} in the future "
            "according to this machine's clock",
            reason="expired",
            hint=(
                "correct the clock of this machine or of the build machine; if the build machine's "
                "clock was wrong, build and push again"
            ),
        )
    if age_s > trust.age_limit_s:
        is_default = trust.max_age_s is None
        set_by = "the default" if is_default else trust.max_age_set_by
        raise ArtifactRefused(
            f"the artifact was created at {created}, {_show_age(age_s)} ago, but the limit is "
            f"{_show_age(trust.age_limit_s)} ({set_by})",
            reason="expired",
            hint="build again with --if-published supersede, or "
            + ("set max_age_days in a trust file" if is_default else f"raise {set_by}"),
        )


def _show_age(seconds: float) -> str:
    """Return an age as text, in the largest unit in which the age is at least 1.

    An age below a minute is in seconds.

    >>> [_show_age(age) for age in (200_000.0, 7200.0, 90.0, 0.1)]
    ['2.3 days', '2.0 hours', '1.5 minutes', '0.1 seconds']
    """
    units = (("days", 86400), ("hours", 3600), ("minutes", 60))
    unit, size = next((each for each in units if seconds >= each[1]), ("seconds", 1))
    return f"{seconds / size:.1f} {unit}"


def _age_s(created: str) -> float:
    try:
        created_at = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError as error:
        raise ArtifactRefused("`created` is not a time", reason="bad_statement") from error
    if created_at.tzinfo is None:
        raise ArtifactRefused("`created` has no time zone", reason="bad_statement")
    return time.time() - created_at.timestamp()


def describe_end(trust: Trust, *, created: str) -> str:
    """Return a warning that an artifact will soon be too old.

    The text is empty while the artifact's age is below 90 % of the limit. The warning leaves time
    to rebuild the artifact before replicas refuse it and start cold.
    """
    age_s, limit_s = _age_s(created), trust.age_limit_s
    if age_s < 0.9 * limit_s:
        return ""
    return (
        f"the artifact was created at {created}, and in {_show_age(max(0.0, limit_s - age_s))} it "
        "will be refused as too old: build it again, or raise "
        f"{'max_age_days' if trust.max_age_s is None else trust.max_age_set_by}"
    )


def check_required(trust: Trust, said: Mapping[str, Any]) -> None:
    """Refuse an artifact whose origin does not match what the policy requires.

    `said` maps names in `policy.FACTS` to the values in the statement.

    Raises:
        ArtifactRefused: `untrusted`.
    """
    for name, pattern in sorted(trust.require):
        found = said.get(name)
        if not isinstance(found, str) or not matches(pattern, found):
            says = f"has {name} {found!r}" if isinstance(found, str) else f"has no {name}"
            raise ArtifactRefused(
                f"the artifact {says}, but {pattern!r} is required here",
                reason="untrusted",
                hint="build an artifact with --source-commit, --image and --builder values that "
                "match `require` in the trust file",
            )


def _show(key_ids: Iterable[str]) -> str:
    # The envelope is untrusted, so print only strings that can be key ids.
    shown = sorted(
        text[:16] if _KEY_ID.fullmatch(text) else "a key without an id" for text in key_ids
    )
    return ", ".join(shown)
