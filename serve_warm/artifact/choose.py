# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which artifact a machine and app take of those that a store has, and why not the others.

Of the statements that are trusted and fit, the one that was created last by its signed time is
chosen. Each of the others keeps the reason why it was not, and together they are the trace that
reports and errors show. Nothing here reads a store.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from serve_warm.artifact.manifest import Manifest
from serve_warm.artifact.statements import Statement, bare, check_limits, rank
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound
from serve_warm.fingerprint import NONE, UNKNOWN, Fingerprint, Mismatch
from serve_warm.trust import Trust
from serve_warm.trust.verify import Believed

logger = logging.getLogger(__name__)

SHOWN_VARIANTS = 5
"""Variants whose differences an error spells out when none fits; its trace has all."""


@dataclass(frozen=True, kw_only=True)
class Considered:
    """One statement that was looked at, and what came of it."""

    statement: str
    """Its key in the store."""
    accepted: bool
    """Trusted and fitting. Of several accepted ones the one that was created last is chosen."""
    reason: str
    """`fits`, `fingerprint` (for another machine or app), `gone` (pruned meanwhile), `unreadable`
    (the store did not give it), or a reason of ArtifactRefused."""
    message: str = ""
    """The reason in words, where it is not in the mismatches."""
    mismatches: tuple[Mismatch, ...] = ()
    created: str = ""
    """Empty where the statement is not believed."""

    def __str__(self) -> str:
        if self.accepted:
            return f"{self.statement}: accepted, created {self.created}"
        words = "; ".join(map(str, self.mismatches)) or self.message
        return f"{self.statement}: rejected ({self.reason}): {words}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A statement as a machine and app see it."""

    considered: Considered
    statement: Statement
    refusal: ArtifactRefused | None = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The statement that a pull takes, and what else was looked at."""

    key: str
    manifest: Manifest
    believed: Believed
    trace: tuple[Considered, ...]


def weigh(
    statements: Sequence[Statement],
    fingerprint: Fingerprint,
    trust: Trust,
    *,
    unknown: Collection[str] = (),
    limits: Literal["fitting", "all"] = "fitting",
) -> list[Candidate]:
    """Hold each statement against this machine and app: fingerprint, deny-list, age.

    `unknown` are factors whose difference does not count. `limits` says of which the deny-list and
    the age are looked at. For a start only those matter that fit: what is for other machines must
    not be an alarm on this one.
    """
    candidates = [
        _consider(statement, fingerprint=fingerprint, trust=trust, unknown=unknown, limits=limits)
        for statement in statements
    ]
    # After a rotation the old envelope of an artifact stands beside the new one: not an alarm.
    vouched = {c.statement.payload_digest for c in candidates if not c.refusal} - {""}
    return [
        replace(candidate, refusal=None)
        if candidate.statement.payload_digest in vouched
        else candidate
        for candidate in candidates
    ]


def fits(statement: Statement, fingerprint: Fingerprint, trust: Trust) -> bool:
    """Return whether a pull may choose a statement for this machine and app."""
    seen = _consider(statement, fingerprint=fingerprint, trust=trust, unknown=(), limits="fitting")
    return seen.considered.accepted


def _consider(
    statement: Statement,
    *,
    fingerprint: Fingerprint,
    trust: Trust,
    unknown: Collection[str],
    limits: Literal["fitting", "all"],
) -> Candidate:
    key, manifest, believed = statement.key, statement.manifest, statement.believed
    refusal = statement.refusal
    if statement.unread is not None:
        considered = Considered(
            statement=key,
            accepted=False,
            reason="gone" if isinstance(statement.unread, ObjectNotFound) else "unreadable",
            message=statement.unread.message,
        )
        return Candidate(considered=considered, statement=statement)
    if manifest is not None and believed is not None:
        mismatches = tuple(
            mismatch
            for mismatch in manifest.fingerprint.compare(fingerprint)
            if mismatch.factor not in unknown
        )
        try:
            if limits == "all" or not mismatches:
                check_limits(manifest, believed, trust)
        except ArtifactRefused as error:
            refusal = bare(error)
        else:
            considered = Considered(
                statement=key,
                accepted=not mismatches,
                reason="fingerprint" if mismatches else "fits",
                mismatches=mismatches,
                created=manifest.created,
            )
            return Candidate(considered=considered, statement=statement)
    if refusal is None:  # pragma: no cover  (a statement is believed, refused or unread)
        raise AssertionError
    considered = Considered(
        statement=key, accepted=False, reason=refusal.reason, message=refusal.message
    )
    return Candidate(considered=considered, statement=statement, refusal=refusal)


def choose(candidates: Sequence[Candidate]) -> Chosen | None:
    """Return the one that was created last of those that fit; None where none does."""
    fitting = [
        Chosen(
            key=candidate.statement.key,
            manifest=candidate.statement.manifest,
            believed=candidate.statement.believed,
            trace=tuple(candidate.considered for candidate in candidates),
        )
        for candidate in candidates
        if candidate.considered.accepted
        and candidate.statement.manifest is not None
        and candidate.statement.believed is not None
    ]
    return max(fitting, key=lambda one: rank(one.manifest.created, one.key), default=None)


def in_order_of_use(candidates: Sequence[Candidate]) -> list[Considered]:
    """Return what was looked at: what a pull takes, the other accepted ones, the nearest misses."""
    looked_at = [candidate.considered for candidate in candidates]
    looked_at.sort(key=lambda seen: rank(seen.created, seen.statement), reverse=True)
    return sorted(
        looked_at,
        key=lambda c: (not c.accepted, c.reason != "fingerprint", len(c.mismatches)),
    )


def warn_of_refused(candidates: Sequence[Candidate], *, uri: str) -> None:
    """Log what was refused, a few with their reasons and the rest as a number."""
    refused = [(c.statement.key, c.refusal) for c in candidates if c.refusal is not None]
    for key, refusal in refused[:SHOWN_VARIANTS]:
        logger.warning("refused statement=%s reason=%s: %s", key, refusal.reason, refusal.message)
    if len(refused) > SHOWN_VARIANTS:
        rest = len(refused) - SHOWN_VARIANTS
        logger.warning("refused %d more statements of %s", rest, uri)


def raise_none_fits(
    candidates: Sequence[Candidate], *, uri: str, deployment: str | None, left: int = 0
) -> NoReturn:
    """Say why there is nothing to pull; `left` is how many statements were not read.

    Raises:
        StoreError: one that was not read might fit.
        ArtifactRefused: one was refused.
        ArtifactNotFound: there is none at all, or none fits; `trace` says why for each.
    """
    trace = tuple(candidate.considered for candidate in candidates)
    for candidate in candidates:
        # It might be the one that fits: the start is to try again.
        unread = candidate.statement.unread
        if unread is not None and candidate.considered.reason == "unreadable":
            raise unread
    for candidate in candidates:
        # Said first: whoever reads "nothing fits" builds again, and would be refused again.
        if candidate.refusal is not None:
            key = candidate.considered.statement
            raise with_trace(candidate.refusal, key, trace)
    if not candidates:
        raise ArtifactNotFound(
            f"{uri} has no artifact for {deployment!r}",
            hint="build one with: serve-warm build APP --store " + uri,
        )
    # The nearest ones first: they tell most about what to change.
    nearest = sorted(trace, key=lambda considered: len(considered.mismatches))
    lines = [f"  {considered}" for considered in nearest[:SHOWN_VARIANTS]]
    if len(nearest) > SHOWN_VARIANTS:
        lines.append(f"  and {len(nearest) - SHOWN_VARIANTS} more")
    hint = _find_hint(trace, nearest[0], uri)
    if left:
        lines.append(f"  and {left} more that were not read")
        hint = f"remove what is no artifact from {uri}, or use another store; {hint}"
    raise ArtifactNotFound(
        f"no artifact for {deployment!r} in {uri} fits here, of {len(trace)}:\n" + "\n".join(lines),
        trace=trace,
        hint=hint,
    )


def of_another_gpu(considered: Considered) -> str:
    """Return in a sentence on which GPU a variant was built and which is here; empty if equal."""
    named = {NONE: "a machine without a GPU", UNKNOWN: "a GPU that torch cannot use", None: NONE}
    for mismatch in considered.mismatches:
        if mismatch.factor == "gpu":
            built, here = (named.get(side, side) for side in (mismatch.artifact, mismatch.here))
            return f"it was built on {built}, and here is {here}"
    return ""


def _find_hint(trace: Sequence[Considered], nearest: Considered, uri: str) -> str:
    """Return what to do where none of the variants fits."""
    build = (
        f"build one on a machine and with settings like these: serve-warm build APP --store {uri}"
    )
    if any(map(_wants_portable, trace)):
        return "set `cpu: portable` in user_config.warmup to use what was built for every CPU"
    if all(map(of_another_gpu, trace)):
        return f"{of_another_gpu(nearest)}; {build}"
    if all(_differs_in(considered, "threads") for considered in trace):
        return (
            "threads are the num_cpus of the deployment: build with the options that you deploy, "
            f"or restore num_cpus; {build}"
        )
    return build


def _differs_in(considered: Considered, factor: str) -> bool:
    """Whether a variant is missed for nothing but one factor."""
    return {mismatch.factor for mismatch in considered.mismatches} == {factor}


def _wants_portable(considered: Considered) -> bool:
    """Whether a variant is missed for nothing but that it is for every CPU."""
    differing = {mismatch.factor: mismatch.artifact for mismatch in considered.mismatches}
    return differing.get("cpu") == "portable" and differing.keys() <= {
        "cpu",
        "cpu_isa",
        "cpu_capability",
    }


def with_trace(
    refusal: ArtifactRefused, statement: str, trace: tuple[Considered, ...]
) -> ArtifactRefused:
    """Return a refusal that names its statement and has what else was looked at."""
    return ArtifactRefused(
        f"{statement}: {refusal.message}",
        reason=refusal.reason,
        hint=refusal.hint,
        statement=statement,
        trace=trace,
    )
