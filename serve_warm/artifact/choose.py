# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of an artifact for a machine and app, and why other artifacts were not chosen.

This module chooses a statement that is trusted and fits the machine and app. If there are several
such statements, it chooses the statement whose code and model match most closely
(`code_and_model`), and among these the statement with the latest signed creation time. A trace
records why every other statement was not chosen. Reports and errors show this trace. This module
does not read stores.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, NoReturn

from serve_warm._records import record
from serve_warm.artifact.code_and_model import CLOSENESS, NOTHING_KNOWN, CodeAndModel
from serve_warm.artifact.manifest import Manifest, Place
from serve_warm.artifact.statements import Statement, TrustedStatement, bare, rank
from serve_warm.errors import ArtifactNotFound, ArtifactRefused, ObjectNotFound, StoreError
from serve_warm.fingerprint import NONE, UNKNOWN, Fingerprint, Mismatch
from serve_warm.trust import Trust

logger = logging.getLogger(__name__)

SHOWN_VARIANTS = 5
"""Number of variants that an error lists if no variant fits. The error's trace lists all
variants."""


@record(frozen=True, kw_only=True)
class Considered:
    """The decision about one statement: whether it was accepted, and the reason."""

    statement: str
    """The key of the statement in the store."""
    reason: str
    """`fits`, `fingerprint` (built for another machine or app), `gone` (pruned before it was read),
    `unreadable` (the store could not read it), or the `reason` of ArtifactRefused."""
    message: str = ""
    """The reason in words. Empty if `mismatches` explains the reason. For an accepted statement of
    which code or model was compared: how closely they match, and why it is taken."""
    mismatches: tuple[Mismatch, ...] = ()
    created: str = ""
    """The signed creation time. Empty if the statement is not trusted."""

    @property
    def accepted(self) -> bool:
        """Whether the statement is trusted and fits the machine and app: `choose` may take it."""
        return self.reason == "fits"

    def __str__(self) -> str:
        if self.accepted:
            said = f", {self.message}" if self.message else ""
            return f"{self.statement}: accepted, created {self.created}{said}"
        words = "; ".join(map(str, self.mismatches)) or self.message
        return f"{self.statement}: rejected ({self.reason}): {words}"


@record(frozen=True, kw_only=True)
class Candidate:
    """A statement, and whether it is accepted for one machine and app."""

    considered: Considered
    statement: Statement
    refusal: ArtifactRefused | None = None
    believed: TrustedStatement | None = None
    """The verified artifact. None unless the statement is accepted."""


@record(frozen=True, kw_only=True)
class Chosen:
    """The statement that a pull chooses, and the trace of all statements that were considered."""

    key: str
    believed: TrustedStatement
    trace: tuple[Considered, ...]

    @property
    def manifest(self) -> Manifest:
        """The manifest in the statement."""
        return self.believed.manifest


def weigh(
    statements: Sequence[Statement],
    fingerprint: Fingerprint,
    trust: Trust,
    *,
    unknown: Collection[str] = (),
    limits: Literal["fitting", "all"] = "fitting",
) -> list[Candidate]:
    """Return a candidate for each statement, checked for this machine and app.

    The checks cover the fingerprint, the deny-list, the age and the required facts. Differences in
    the `unknown` factors are ignored. `limits` selects which statements are checked against the
    deny-list, the age limit and the required facts. A starting replica checks only statements that
    fit its machine and app, so artifacts for other machines cause no alarm.
    """
    candidates = [
        _consider(statement, fingerprint=fingerprint, trust=trust, unknown=unknown, limits=limits)
        for statement in statements
    ]
    # After a key rotation, an artifact has an old and a new envelope. Do not report the old one.
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
    outcome = statement.outcome
    if isinstance(outcome, StoreError):
        considered = Considered(
            statement=statement.key,
            reason="gone" if isinstance(outcome, ObjectNotFound) else "unreadable",
            message=outcome.message,
        )
        return Candidate(considered=considered, statement=statement)
    if isinstance(outcome, ArtifactRefused):
        return _refused(statement, outcome)
    manifest = outcome.manifest
    mismatches = tuple(
        mismatch
        for mismatch in manifest.fingerprint.compare(fingerprint)
        if mismatch.factor not in unknown
    )
    believed = None
    if limits == "all" or not mismatches:
        try:
            believed = TrustedStatement(manifest=manifest, verified=outcome.verified, trust=trust)
        except ArtifactRefused as error:
            return _refused(statement, bare(error))
    considered = Considered(
        statement=statement.key,
        reason="fingerprint" if mismatches else "fits",
        mismatches=mismatches,
        created=manifest.created,
    )
    accepted = None if mismatches else believed
    return Candidate(considered=considered, statement=statement, believed=accepted)


def _refused(statement: Statement, refusal: ArtifactRefused) -> Candidate:
    considered = Considered(statement=statement.key, reason=refusal.reason, message=refusal.message)
    return Candidate(considered=considered, statement=statement, refusal=refusal)


def choose(candidates: Sequence[Candidate], here: CodeAndModel) -> Chosen | None:
    """Return the accepted candidate that a replica takes; None if no candidate was accepted.

    A replica with the code and model `here` takes the candidate that matches them most closely, and
    among these the newest.
    """
    fitting = {
        candidate.statement.key: candidate.believed
        for candidate in candidates
        if candidate.believed is not None
    }
    if not fitting:
        return None
    close = {key: each.manifest.made_of.closeness(here) for key, each in fitting.items()}
    ages = {key: rank(each.manifest.created, key) for key, each in fitting.items()}
    key = max(fitting, key=lambda each: (close[each], ages[each]))
    said = {each: CLOSENESS[count] for each, count in close.items() if here != NOTHING_KNOWN}
    if ages[key] < max(ages.values()):
        said[key] += ", so it is taken although a newer one fits"
        logger.info("took statement=%s: %s", key, said[key])
    return Chosen(
        key=key,
        believed=fitting[key],
        trace=tuple(
            replace(each.considered, message=said.get(each.statement.key, each.considered.message))
            for each in candidates
        ),
    )


def in_order_of_use(candidates: Sequence[Candidate]) -> list[Considered]:
    """Return all considered statements, most relevant first.

    Accepted statements come first, the newest before others, then near misses.
    """
    looked_at = [candidate.considered for candidate in candidates]
    looked_at.sort(key=lambda seen: rank(seen.created, seen.statement), reverse=True)
    return sorted(
        looked_at, key=lambda c: (not c.accepted, c.reason != "fingerprint", len(c.mismatches))
    )


def warn_of_refused(candidates: Sequence[Candidate], *, uri: str) -> None:
    """Log refused statements: a few with their reasons, and a count of the rest."""
    refused = [(c.statement.key, c.refusal) for c in candidates if c.refusal is not None]
    for key, refusal in refused[:SHOWN_VARIANTS]:
        logger.warning("refused statement=%s reason=%s: %s", key, refusal.reason, refusal.message)
    if len(refused) > SHOWN_VARIANTS:
        rest = len(refused) - SHOWN_VARIANTS
        logger.warning("refused %d more statements in %s", rest, uri)


def raise_none_fits(
    candidates: Sequence[Candidate], *, uri: str, place: Place, left: int = 0
) -> NoReturn:
    """Raise the error that explains why nothing can be pulled.

    `left` is the number of unread statements.

    Raises:
        StoreError: an unread statement might fit.
        ArtifactRefused: a statement was refused.
        ArtifactNotFound: no statement exists, or none fits; `trace` gives the reason for each
            statement.
    """
    trace = tuple(candidate.considered for candidate in candidates)
    for candidate in candidates:
        # This statement might fit, so the start should retry.
        outcome = candidate.statement.outcome
        if isinstance(outcome, StoreError) and candidate.considered.reason == "unreadable":
            raise outcome
    for candidate in candidates:
        # Check this before "nothing fits", because a new build would be refused too.
        if candidate.refusal is not None:
            key = candidate.considered.statement
            raise with_trace(candidate.refusal, key, trace)
    if not candidates:
        raise ArtifactNotFound(
            f"{uri} has no artifact for {place}",
            hint="build an artifact with: serve-warm build APP --store " + uri,
        )
    # List the nearest misses first, because they best show what to change.
    nearest = sorted(trace, key=lambda considered: len(considered.mismatches))
    lines = [f"  {considered}" for considered in nearest[:SHOWN_VARIANTS]]
    if len(nearest) > SHOWN_VARIANTS:
        lines.append(f"  and {len(nearest) - SHOWN_VARIANTS} more")
    hint = find_hint(trace, nearest[0], uri)
    if left:
        lines.append(f"  and {left} more that were not read")
        hint = f"remove files that are not artifacts from {uri}, or use another store; {hint}"
    raise ArtifactNotFound(
        f"no artifact for {place} in {uri} fits this machine ({len(trace)} considered):\n"
        + "\n".join(lines),
        trace=trace,
        hint=hint,
    )


def say_why_none(candidates: Sequence[Candidate]) -> str:
    """Return a short reason why no candidate was chosen; `candidates` must not be empty.

    As in `raise_none_fits`, an unreadable statement comes first, then a refused statement, then the
    nearest miss.
    """
    unread = [c.considered for c in candidates if c.considered.reason == "unreadable"]
    refused = [c.considered for c in candidates if c.refusal is not None]
    for seen in (*unread, *refused):
        verb = "cannot be read" if seen.reason == "unreadable" else f"is refused ({seen.reason})"
        return f"{seen.statement} {verb}: {seen.message}"
    nearest = min((c.considered for c in candidates), key=lambda seen: len(seen.mismatches))
    return f"no artifact fits this machine: {nearest}"


def of_another_gpu(considered: Considered) -> str:
    """Return a sentence with the variant's GPU and this machine's GPU; empty if they match."""
    named = {NONE: "a machine without a GPU", UNKNOWN: "a GPU that torch cannot use", None: NONE}
    for mismatch in considered.mismatches:
        if mismatch.factor == "gpu":
            built, here = (named.get(side, side) for side in (mismatch.artifact, mismatch.here))
            return f"the artifact was built on {built}, not on {here}"
    return ""


def find_hint(
    trace: Sequence[Considered], nearest: Considered, uri: str, *, app: Sequence[str] = ("APP",)
) -> str:
    """Return a hint that says what to do if no variant fits. `app` is what to build, and how."""
    build = (
        "build an artifact on the same kind of machine, with the same settings: serve-warm build "
        f"{shlex.join((*app, '--store', uri))}"
    )
    if any(map(_wants_portable, trace)):
        return "set `cpu: portable` in user_config.warmup to use the artifact built for every CPU"
    if all(map(of_another_gpu, trace)):
        return f"{of_another_gpu(nearest)}; {build}"
    if all({m.factor for m in considered.mismatches} == {"threads"} for considered in trace):
        return (
            "the thread count comes from the deployment's num_cpus: build with the num_cpus that "
            f"you deploy with, or restore the old num_cpus; {build}"
        )
    return build


def _wants_portable(considered: Considered) -> bool:
    """Return whether a variant is portable (built for every CPU) and only CPU factors differ."""
    differing = {mismatch.factor: mismatch.artifact for mismatch in considered.mismatches}
    return differing.get("cpu") == "portable" and differing.keys() <= {
        "cpu",
        "cpu_isa",
        "cpu_capability",
    }


def with_trace(
    refusal: ArtifactRefused, statement: str, trace: tuple[Considered, ...]
) -> ArtifactRefused:
    """Return the refusal, extended with the name of the refused statement and the trace."""
    return ArtifactRefused(
        f"{statement}: {refusal.message}",
        reason=refusal.reason,
        hint=refusal.hint,
        statement=statement,
        trace=trace,
    )
