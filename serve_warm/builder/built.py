# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a build: the published artifacts, their sizes, and the reports of the replicas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from serve_warm._records import record

if TYPE_CHECKING:
    from serve_warm.artifact.manifest import Manifest


@record(frozen=True, kw_only=True)
class NothingToBuild:
    """The result of a build if the replica needs no artifact, because it compiles nothing."""

    warnings: tuple[str, ...]
    """The warnings of the replicas, without duplicates."""
    cold: Mapping[str, Any]
    """The report of the replica."""
    published: Literal["nothing"] = "nothing"


@record(frozen=True, kw_only=True)
class Built:
    """An artifact that passed its round trip and is published."""

    published: Literal["new", "kept"]
    """`kept` means that the variant was already published, and the published artifact passed its
    round trip."""
    store: str
    statement: str
    """The key of the statement. For a gang, `statement`, `variant` and both reports belong to
    the first rank."""
    ranks: tuple[str, ...]
    """The statements for all ranks of a gang; empty for a single replica."""
    variant: str
    """The key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part. For a kept artifact, these are the bytes of the published artifact."""
    portable_libraries: int | None
    """Number of libraries that were disassembled and found to run on every CPU with AVX2. `None`
    for an artifact that is only for this CPU."""
    trust: str
    """Lines to add to a trust.toml, so that machines with this file trust the signer. Empty for a
    kept or unsigned artifact."""
    seconds: Mapping[str, float]
    """Wall-clock seconds that each phase of the build took, in order. `round trips` covers all
    round trips. Each round trip is also listed by its label. Round trips may have run at the same
    time."""
    warnings: tuple[str, ...]
    """The warnings of the replicas. If warnings differ only in numbers, only the latest is
    listed."""
    cold: Mapping[str, Any]
    """The report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """The report of a fresh replica that loaded the artifact."""
    entries: tuple[Mapping[str, Any], ...] = ()
    """The kinds of calls with their levels, and how far each entry is from full precision."""


class Names(TypedDict):
    """The fields of `Built` that name the artifacts."""

    statement: str
    ranks: tuple[str, ...]
    variant: str


class Sizes(TypedDict):
    """The fields of `Built` with sizes."""

    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]


class Told(TypedDict):
    """The fields of `Built` that come from replicas."""

    entries: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]
    cold: Mapping[str, Any]
    round_trip: Mapping[str, Any]


def name_built(statements: Sequence[str], manifests: Sequence[Manifest]) -> Names:
    """Return the names of the artifacts. `statements` and `manifests` are sorted by rank."""
    return {
        "statement": statements[0],
        "ranks": tuple(statements) if len(statements) > 1 else (),
        "variant": manifests[0].fingerprint.key,
    }


def measure_built(manifests: Sequence[Manifest]) -> Sizes:
    """Return the sizes of the artifacts, summed over all ranks."""
    parts = count_bytes(manifests)
    raw_bytes = sum(part.raw_bytes for manifest in manifests for part in manifest.parts)
    return {"stored_bytes": sum(parts.values()), "raw_bytes": raw_bytes, "parts": parts}


def tell_built(by_rank: Sequence[Mapping[str, Any]], warm: Sequence[Mapping[str, Any]]) -> Told:
    """Return the warnings of all ranks, and the entries and the two reports of the first rank."""
    cold = [packed["report"] for packed in by_rank]
    return {
        "entries": tuple(by_rank[0]["facts"].get("entries", ())),
        "warnings": collect_warnings(*cold, *warm),
        "cold": cold[0],
        "round_trip": warm[0],
    }


def collect_warnings(*reports: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the warnings in these reports. Warnings that differ only in numbers count as one.

    >>> collect_warnings({"warnings": ["2 threads", "a"]}, {"warnings": ["3 threads"]})
    ('3 threads', 'a')
    """
    told: dict[str, str] = {}
    for report in reports:
        for warning in report["warnings"]:
            told[re.sub(r"\d+", "", warning)] = warning
    return tuple(told.values())


def count_bytes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the stored bytes by part, summed over all manifests."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        sizes.update({part.name: part.stored_bytes for part in manifest.parts})
    return dict(sizes)
