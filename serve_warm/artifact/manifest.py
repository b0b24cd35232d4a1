# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of an artifact: its parts with digests, in one statement that can be signed.

A part is a blob of bytes, compressed with zstd. The manifest lists the parts with the digests of
their stored and raw bytes. The manifest also names the application and deployment, the machine and
the app, and the code and model that the parts were built for. A serialized manifest is an in-toto
statement (https://in-toto.io/Statement/v1) whose subjects are the stored parts. One statement
covers all parts, so parts of two artifacts cannot be mixed.

    part           raw bytes
    cache          a tar of the cache directory: torch's entries and the built kernels
    precompiled    a tar of entries made ahead of time and their index (`precompile.entries.table`)
    exported       a tar of libraries made ahead of time, which need no compiler, and their index

The parser is strict and limits sizes: it refuses malformed input and never repairs it. This module
does not decide whether bytes may be loaded: `serve_warm.trust.verify` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timezone
from typing import Any

from serve_warm._records import record
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel
from serve_warm.errors import ArtifactRefused
from serve_warm.fingerprint import Fingerprint
from serve_warm.trust.envelope import parse_json
from serve_warm.trust.policy import FACTS

FORMAT = 1
"""Version of the format of statements and parts. Readers refuse a newer version."""

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://serve-warm.dev/artifact/v"
"""The prefix of predicate types. The format version comes after the prefix."""

CACHE = "cache"
"""The part with torch's cache directory, including the built kernels."""

PRECOMPILED = "precompiled"
"""The part with the entries of level 2."""

EXPORTED = "exported"
"""The part with the libraries of level 3."""

DIRECTORY_PARTS = frozenset({CACHE, PRECOMPILED, EXPORTED})
"""Parts whose raw bytes are a packed directory."""

MAX_PARTS = 16
MAX_STORED_BYTES = 1 << 30
"""Size limit in bytes for one part as stored and downloaded."""
MAX_RAW_BYTES = 4 << 30
"""The largest size, in bytes, that an unpacked part may have on disk during installation."""

CODEC = "zstd"

PROVENANCE = "provenance"
"""Name of the fact that records the origin of the artifact, with the fields in `policy.FACTS`."""

VALUES = "recorded_requests"
"""Name of the fact with the number of recorded requests that the artifact contains, if any."""

ACCEPTED = "accepted_torch_source"
"""Name of the fact with the functions of an untested torch that a person accepted, by place, each
with its digest."""

_ANY_BYTES = 1 << 50
"""No real part is this large, so a statement with such a part is malformed."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CREATED_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
# Only ASCII digits match, so sorting times as text sorts them by time.
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


@record(frozen=True, kw_only=True)
class Part:
    """One blob of an artifact."""

    name: str
    """A lower-case letter, then up to 63 of a-z, 0-9 and _."""
    sha256: str
    """Hex sha256 of the stored bytes. This digest is in the statement's subject and the blob's
    key."""
    stored_bytes: int
    raw_sha256: str
    raw_bytes: int
    codec: str = CODEC

    def __post_init__(self) -> None:
        problems = [
            f"{label} is {value!r}"
            for label, value, good in (
                ("name", self.name, _PART_NAME.fullmatch(self.name)),
                ("sha256", self.sha256, _HEX_64.fullmatch(self.sha256)),
                ("raw_sha256", self.raw_sha256, _HEX_64.fullmatch(self.raw_sha256)),
                ("stored_bytes", self.stored_bytes, 0 < self.stored_bytes < _ANY_BYTES),
                ("raw_bytes", self.raw_bytes, 0 <= self.raw_bytes < _ANY_BYTES),
                ("codec", self.codec, self.codec == CODEC),
            )
            if not good
        ]
        if problems:
            raise ValueError(f"not a valid part: {', '.join(problems)}")


@record(frozen=True, kw_only=True)
class Place:
    """The application and the deployment that an artifact is kept for."""

    application: str
    """Name of the application, which does not depend on the name under which Serve runs it."""
    deployment: str

    def __post_init__(self) -> None:
        for what, name in (("an application", self.application), ("a deployment", self.deployment)):
            if not name or not name.isprintable():
                raise ValueError(f"not the name of {what}: {name!r}")

    def __str__(self) -> str:
        return f"{self.deployment!r} of application {self.application!r}"


@record(frozen=True, kw_only=True)
class Manifest:
    """The description of one artifact: what it was built for, and its parts."""

    place: Place
    made_of: CodeAndModel = NOTHING_KNOWN
    fingerprint: Fingerprint
    parts: tuple[Part, ...]
    created: str
    """Creation time in UTC, in the format of `utc_now`. Sorting such times as text puts the oldest
    first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON about the build, for people and later releases. These facts never decide whether an
    artifact fits, but a policy can require values of `provenance` (`serve_warm.trust.verify`)."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not 1 <= len(names) <= MAX_PARTS or len(set(names)) != len(names):
            raise ValueError(
                f"an artifact must have 1 to {MAX_PARTS} parts with distinct names: {names}"
            )
        if self.format != FORMAT:
            raise ValueError(f"cannot write format {self.format}, only format {FORMAT}")
        if not _CREATED.fullmatch(self.created):
            raise ValueError(f"`created` is not a time: {self.created!r}")
        datetime.strptime(self.created, _CREATED_FORMAT).replace(tzinfo=timezone.utc)

    @property
    def created_unix(self) -> float:
        """`created` in seconds since the epoch."""
        return datetime.fromisoformat(self.created.replace("Z", "+00:00")).timestamp()

    @property
    def provenance(self) -> Mapping[str, str]:
        """The origin that the builder recorded: any of `source`, `image` and `builder`."""
        said = self.facts.get(PROVENANCE)
        return {
            name: said[name]
            for name in FACTS
            if isinstance(said, Mapping) and isinstance(said.get(name), str)
        }

    def part(self, name: str) -> Part:
        """Return the part with this name.

        Raises:
            ArtifactRefused: `missing_part`.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise ArtifactRefused(
            f"the artifact has no part {name!r}, only {', '.join(p.name for p in self.parts)}",
            reason="missing_part",
            hint=f"build an artifact with part {name!r}, or load only parts that the artifact has",
        )

    def to_statement(self) -> bytes:
        """Return the in-toto statement. Equal manifests give equal bytes.

        Raises:
            ValueError: the facts are not JSON.
        """
        statement = {
            "_type": STATEMENT_TYPE,
            "subject": [_subject(part) for part in self.parts],
            "predicateType": f"{PREDICATE_TYPE}{self.format}",
            "predicate": {
                "format": self.format,
                "application": self.place.application,
                "deployment": self.place.deployment,
                "code": self.made_of.code,
                "model": self.made_of.model,
                "created": self.created,
                "fingerprint": self.fingerprint.to_json(),
                "parts": [vars(part) for part in self.parts],
                "facts": dict(self.facts),
            },
        }
        try:
            text = json.dumps(statement, allow_nan=False, separators=(",", ":"), sort_keys=True)
        except TypeError as error:
            raise ValueError(f"the facts of an artifact are not JSON: {error}") from error
        return text.encode()

    @classmethod
    def from_statement(cls, payload: bytes) -> Manifest:
        """Parse a statement strictly.

        Raises:
            ArtifactRefused: `newer_format`, or `bad_statement` for any other deviation.
        """
        try:
            statement = parse_json(payload)
            _check_format(statement)
            return _read_statement(statement)
        except ValueError as error:
            raise ArtifactRefused(
                f"not an artifact statement: {error}", reason="bad_statement"
            ) from error


def utc_now() -> str:
    """Return the current time in the format of manifests: ISO 8601, UTC, microseconds."""
    return datetime.now(timezone.utc).strftime(_CREATED_FORMAT)


def _subject(part: Part) -> dict[str, Any]:
    return {"name": part.name, "digest": {"sha256": part.sha256}}


def _check_format(statement: Any) -> None:
    """Refuse a newer format before reading fields whose meaning might have changed."""
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT_TYPE:
        raise ValueError(f"_type is not {STATEMENT_TYPE}")
    kind, predicate = statement.get("predicateType"), statement.get("predicate")
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        raise ValueError("predicate or predicateType is missing")  # noqa: TRY004 - as others
    version = kind.removeprefix(PREDICATE_TYPE)
    if kind == version or not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise ValueError(f"predicateType is not {PREDICATE_TYPE}{FORMAT}")
    if predicate.get("format") != int(version):
        raise ValueError("format and predicateType disagree")
    if int(version) > FORMAT:
        raise ArtifactRefused(
            f"the artifact has format {version}, but this release reads format {FORMAT}",
            reason="newer_format",
            hint="upgrade serve-warm on this machine, or build with the release that this machine "
            "runs",
        )


def _read_statement(statement: Any) -> Manifest:
    _members(statement, _type=str, subject=list, predicateType=str, predicate=dict)
    predicate = _members(
        statement["predicate"],
        format=int,
        application=str,
        deployment=str,
        code=str,
        model=str,
        created=str,
        fingerprint=dict,
        parts=list,
        facts=dict,
    )
    parts = tuple(
        Part(
            **_members(
                item,
                name=str,
                sha256=str,
                stored_bytes=int,
                raw_sha256=str,
                raw_bytes=int,
                codec=str,
            )
        )
        for item in predicate["parts"]
    )
    if statement["subject"] != [_subject(part) for part in parts]:
        raise ValueError("the statement's subjects do not match its parts")
    return Manifest(
        format=predicate["format"],
        place=Place(application=predicate["application"], deployment=predicate["deployment"]),
        made_of=CodeAndModel(code=predicate["code"], model=predicate["model"]),
        created=predicate["created"],
        fingerprint=Fingerprint.from_json(predicate["fingerprint"]),
        parts=parts,
        facts=predicate["facts"],
    )


def _members(data: Any, **types: type) -> dict[str, Any]:
    """Return `data` if it is an object that has exactly these members with exactly these types."""
    if not isinstance(data, dict) or data.keys() != types.keys():
        raise ValueError(f"an object must have exactly these members: {', '.join(types)}")
    for name, kind in types.items():
        # Not isinstance, which would accept True as a number.
        if type(data[name]) is not kind:
            raise ValueError(f"{name} is not of type {kind.__name__}")
    return data


def check_caps(part: Part) -> None:
    """Refuse a part if the manifest states a size above the limits.

    Raises:
        ArtifactRefused: `too_large`.
    """
    for label, size, limit in (
        ("stored", part.stored_bytes, MAX_STORED_BYTES),
        ("unpacked", part.raw_bytes, MAX_RAW_BYTES),
    ):
        if size > limit:
            raise ArtifactRefused(
                f"part {part.name} has {size} {label} bytes, but the limit is {limit}",
                reason="too_large",
            )
