# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a version of torch or Triton has the functions that the table of patches knows.

`digests.json` has the digest of each function in each version with which serve_warm is tested.
`make upstream TORCH=2.16.0 ARGS=--write` adds a version.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serve_warm.private_apis.sources import Sources
from serve_warm.private_apis.table import TABLE, Patch

FILE = Path(__file__).with_name("digests.json")

Verdict = Literal["known", "changed", "gone", "not in this version"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One row of the table, compared with one version of its package."""

    patch: Patch
    verdict: Verdict
    digest: str
    """Of the function in this version, or empty if there is none."""
    known_from: str = ""
    """The newest tested version with the same function."""

    def __str__(self) -> str:
        """Return what was found, in words."""
        if self.verdict == "changed":
            return f"{self.patch.at[0]} is another function ({self.digest}) than in tested versions"
        if self.verdict == "gone":
            return f"{self.patch.at[0]} is gone"
        return f"{self.patch.at[0]} is {self.verdict}"


@functools.cache
def tested() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the digests by package (`torch`), version and row."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(FILE.read_text())
    return found


def judge(package: str, version: str, sources: Sources, *, level: int = 1) -> Iterator[Judged]:
    """Compare the rows of a package that this level or a higher one needs."""
    versions = tested().get(package, {})
    for patch in TABLE:
        if package_of(patch) != package or patch.level < level:
            continue
        digest = digest_of(patch, sources)
        known = [each for each, digests in versions.items() if digests.get(patch.name) == digest]
        if digest and known:
            newest = max(known, key=_numbers)
            yield Judged(patch=patch, verdict="known", digest=digest, known_from=newest)
        elif digest:
            yield Judged(patch=patch, verdict="changed", digest=digest)
        else:
            is_expected = _numbers(patch.since) <= _numbers(version) and not (
                patch.until and _numbers(patch.until) <= _numbers(version)
            )
            verdict: Verdict = "gone" if is_expected else "not in this version"
            yield Judged(patch=patch, verdict=verdict, digest="")


def unknown(judged: Iterable[Judged]) -> list[Judged]:
    """Return the rows that have another function, or none, where tested versions have one."""
    return [each for each in judged if each.verdict in ("changed", "gone")]


def digest_of(patch: Patch, sources: Sources) -> str:
    """Return the digest of the function that a row replaces, or an empty string if there is none.

    For an attribute that a class inherits, or gets only from the patch, it is that of the class.
    """
    for place in (patch.home,) if patch.home else patch.at:
        owner = place.rpartition(".")[0] if "." in place.partition(":")[2] else ""
        digest = None if patch.adds else sources.digest(place)
        if digest is None and owner and not owner.endswith("*") and not patch.until:
            digest = sources.digest(owner)
        if digest is not None:
            return digest
    return ""


def package_of(patch: Patch) -> str:
    """Return the name of the package whose function a row replaces."""
    return patch.at[0].partition(".")[0].partition(":")[0]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: `2.16.0a0+gitabc` is later than `2.9`."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))
