# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a version of torch or Triton has the functions that the table of patches knows.

`digests.json` has the digest of each function in each version with which serve_warm is tested.
`make upstream TORCH=2.16.0 ARGS=--write` adds a version.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypedDict

from serve_warm._records import record
from serve_warm.private_apis.sources import PackageSources
from serve_warm.private_apis.table import TABLE, Patch

FILE = Path(__file__).with_name("digests.json")

Verdict = Literal["known", "changed", "gone", "not in this version"]


@record(frozen=True, kw_only=True)
class Judged:
    """One row of the table, compared with one version of its package."""

    patch: Patch
    verdict: Verdict
    digest: str
    """Of the function in this version, or empty if there is none."""

    def __str__(self) -> str:
        """Return what was found, in words."""
        if self.verdict == "changed":
            return f"{self.patch.at[0]} is another function ({self.digest}) than in tested versions"
        if self.verdict == "gone":
            return f"{self.patch.at[0]} is gone"
        return f"{self.patch.at[0]} is {self.verdict}"


class Tested(TypedDict):
    """What `digests.json` says about one version of a package."""

    functions: dict[str, str]
    """The digest of each row's function, by the row's name."""
    files: dict[str, str]
    """The digest of each module that has one of these functions, or could have had it."""


@functools.cache
def tested() -> Mapping[str, Mapping[str, Tested]]:
    """Return the tested versions by package (`torch`) and version."""
    found: dict[str, dict[str, Tested]] = json.loads(FILE.read_text())
    return found


def judge(package: str, version: str, sources: PackageSources, *, level: int = 1) -> list[Judged]:
    """Compare the rows of a package that this level or a higher one needs."""
    patches = [each for each in TABLE if package_of(each) == package and each.level >= level]
    versions = tested().get(package, {})
    same = _same_files(sources, versions)
    known = versions[same]["functions"] if same else {}
    return [
        _judge(
            each,
            known.get(each.name, "") if same else digest_of(each, sources),
            version,
            versions,
        )
        for each in patches
    ]


def _same_files(sources: PackageSources, versions: Mapping[str, Tested]) -> str:
    """Return the tested version with the same files, if any: parsing all files takes seconds."""
    for version, known in versions.items():
        if all(sources.file_digest(name) == digest for name, digest in known["files"].items()):
            return version
    return ""


def _judge(patch: Patch, digest: str, version: str, versions: Mapping[str, Tested]) -> Judged:
    if not digest:
        verdict: Verdict = "gone" if patch.is_in(version) else "not in this version"
        return Judged(patch=patch, verdict=verdict, digest="")
    known = any(each["functions"].get(patch.name) == digest for each in versions.values())
    return Judged(patch=patch, verdict="known" if known else "changed", digest=digest)


def unknown(judged: Iterable[Judged]) -> list[Judged]:
    """Return the rows that have another function, or none, where tested versions have one."""
    return [each for each in judged if each.verdict in ("changed", "gone")]


@record(frozen=True, kw_only=True)
class TorchSource:
    """Whether a build may make entries with the torch that is installed."""

    version: str
    unknown: tuple[Judged, ...]
    """The functions that differ from those of tested versions, for levels 2 and 3."""
    is_accepted: bool
    """Whether a person accepted them (`serve-warm build --accept-torch-source`)."""

    @classmethod
    def installed(cls, version: str, *, is_accepted: bool = False) -> TorchSource:
        """Compare the installed torch, whose version is `version`, with the tested versions."""
        sources = PackageSources.installed("torch")
        judged = judge("torch", version, sources, level=2) if sources is not None else []
        return cls(version=version, unknown=tuple(unknown(judged)), is_accepted=is_accepted)

    def why_not(self, level: int) -> str:
        """Return why a build makes no entries of a level, or an empty string."""
        needed = [each for each in self.unknown if each.patch.level <= level]
        if not needed or self.is_accepted:
            return ""
        more = f", and {len(needed) - 1} more" if len(needed) > 1 else ""
        return (
            f"torch {self.version} was not tested with serve_warm, and {needed[0]}{more}: use "
            f"torch {', '.join(tested()['torch'])}, or compare your model's answers yourself and "
            "build with --accept-torch-source"
        )

    def accepted(self) -> dict[str, str]:
        """Return the digests of the functions that a person accepted, by place."""
        return {each.patch.at[0]: each.digest for each in self.unknown if self.is_accepted}


def digest_of(patch: Patch, sources: PackageSources) -> str:
    """Return the digest of the function that a row replaces, or an empty string if there is none.

    For an attribute that a class inherits, or gets only from the patch, it is that of the class.
    """
    is_always_there = not (patch.since or patch.until)
    for place in (patch.home,) if patch.home else patch.at:
        module, _, name = place.partition(":")
        owner, _, _ = name.rpartition(".")
        digest = None if patch.adds else sources.digest(place)
        if digest is None and owner and (patch.adds or is_always_there):
            digest = sources.digest(f"{module}:{owner}")
        if digest is not None:
            return digest
    return ""


def package_of(patch: Patch) -> str:
    """Return the name of the package whose function a row replaces."""
    return patch.at[0].partition(".")[0].partition(":")[0]
