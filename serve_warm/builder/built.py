# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a build: what was published, how large it is, and the reports that prove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from serve_warm.artifact.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class NothingToBuild:
    """What a build comes to where the replica compiles nothing: no artifact, and none is needed."""

    cold: Mapping[str, Any]
    """Report of the replica."""
    published: Literal["nothing"] = "nothing"


@dataclass(frozen=True, kw_only=True)
class Built:
    """An artifact that passed its round trip and is published."""

    published: Literal["new", "kept"]
    """`kept`: the store had the variant before, `if_published` is `keep`, and that one passed."""
    store: str
    statement: str
    """Of a gang that of its first rank, as are `variant` and both reports."""
    ranks: tuple[str, ...]
    """The statements of all ranks of a gang; empty for a replica by itself."""
    variant: str
    """Key of the fingerprint."""
    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]
    """Stored bytes by part; of one that was kept, as it was published."""
    portable_libraries: int | None
    """Libraries that were disassembled and run on every CPU with AVX2; `None` for an artifact
    that is for this CPU alone."""
    trust: str
    """The lines for a trust.toml that trusts whoever signed this; empty for one that was kept, and
    where nobody did."""
    seconds: Mapping[str, float]
    """Wall seconds of the build by phase, in order. `round trips` is all of them, and those by
    their labels may have run beside each other."""
    cold: Mapping[str, Any]
    """Report of the replica that compiled."""
    round_trip: Mapping[str, Any]
    """Report of the fresh replica that loaded the artifact."""


class Names(TypedDict):
    """The fields of `Built` that name what was made."""

    statement: str
    ranks: tuple[str, ...]
    variant: str


class Sizes(TypedDict):
    """The fields of `Built` that say how large it is."""

    stored_bytes: int
    raw_bytes: int
    parts: Mapping[str, int]


def name_built(statements: Sequence[str], manifests: Sequence[Manifest]) -> Names:
    """Return the names of what was made, of a gang with the first rank first."""
    return {
        "statement": statements[0],
        "ranks": tuple(statements) if len(statements) > 1 else (),
        "variant": manifests[0].fingerprint.key,
    }


def measure_built(manifests: Sequence[Manifest]) -> Sizes:
    """Return the sizes of what was made, of all ranks together."""
    parts = count_bytes(manifests)
    raw_bytes = sum(part.raw_bytes for manifest in manifests for part in manifest.parts)
    return {"stored_bytes": sum(parts.values()), "raw_bytes": raw_bytes, "parts": parts}


def count_bytes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the stored bytes by part, of all manifests together."""
    sizes: Counter[str] = Counter()
    for manifest in manifests:
        sizes.update({part.name: part.stored_bytes for part in manifest.parts})
    return dict(sizes)
