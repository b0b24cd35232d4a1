# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The provenance of a release: an in-toto statement with SLSA's predicate, and its signature.

The statement says which files were built, from which commit, with which locks, and by whom. With a
key, it is signed like an artifact: in a DSSE envelope, with Ed25519.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from serve_warm.errors import ArtifactRefused
from serve_warm.trust.envelope import Envelope, parse_json, sign
from serve_warm.trust.keys import TrustedKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://serve-warm.dev/release-check/v1"
UNNAMED_BUILDER = "https://serve-warm.dev/builder/unnamed"
MATERIALS = ("constraints.txt", "locks/build.txt", "locks/ci.txt")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The commit of a source tree."""

    commit: str
    """Hex digits; "" outside of a git repository."""
    committed: datetime
    changed: tuple[str, ...] = ()
    """Paths of files that differ from the commit, or that the commit does not have."""


def read_source(root: Path) -> Source:
    """Return the commit of a source tree, and the paths that have changed since."""
    shown = _git(root, "show", "--no-patch", "--format=%H %ct", "HEAD").split()
    if len(shown) != 2:
        return Source(commit="", committed=datetime.fromtimestamp(0, timezone.utc))
    commit, seconds = shown
    changed = [line[3:] for line in _git(root, "status", "--porcelain").splitlines()]
    changed += _hidden_changes(root)
    return Source(
        commit=commit,
        committed=datetime.fromtimestamp(int(seconds), timezone.utc),
        changed=tuple(dict.fromkeys(changed)),
    )


def _hidden_changes(root: Path) -> list[str]:
    """Return the changes that git hides: files that it ignores or treats as unchanged."""
    listed = (line.split(None, 3) for line in _git(root, "ls-tree", "-r", "HEAD").splitlines())
    tree = {path: blob for mode, _, blob, path in listed if mode.startswith("100")}
    there = [path for path in tree if (root / path).is_file()]
    blobs = _git(root, "hash-object", "--stdin-paths", given="\n".join(there)).split()
    package = (each for each in (root / "serve_warm").rglob("*") if each.is_file())
    names = [each.relative_to(root).as_posix() for each in package]
    return [
        *(path for path, blob in zip(there, blobs, strict=True) if tree[path] != blob),
        *(path for path in tree if not (root / path).is_file()),
        *(name for name in names if name not in tree and "__pycache__" not in name),
    ]


def _git(root: Path, *arguments: str, given: str = "") -> str:
    command = ["git", "-C", str(root), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, input=given)
    return ran.stdout if ran.returncode == 0 else ""


def write(
    files: Iterable[Path], source: Source, *, root: Path, builder: str, started: datetime
) -> bytes:
    """Return the statement about files that were built here."""
    commit = [{"name": "source", "digest": {"gitCommit": source.commit}}] if source.commit else []
    backend = metadata.version("hatchling")
    statement = {
        "_type": STATEMENT,
        "subject": [_describe(file.name, file) for file in sorted(files)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": "make release-check"},
                "internalParameters": {
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                },
                "resolvedDependencies": [
                    *commit,
                    {"uri": f"pkg:pypi/hatchling@{backend}"},
                    *(_describe(name, root / name) for name in MATERIALS),
                ],
            },
            "runDetails": {
                "builder": {"id": builder},
                "metadata": {
                    "startedOn": _time(started),
                    "finishedOn": _time(datetime.now(timezone.utc)),
                },
            },
        },
    }
    return json.dumps(statement, indent=2, sort_keys=True).encode() + b"\n"


def _describe(name: str, file: Path) -> dict[str, object]:
    return {"name": name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def problems(statement: bytes, files: Iterable[Path], source: Source) -> Iterator[str]:
    """Yield the differences between a statement and these files and this commit."""
    try:
        fields = parse_json(statement)
        kinds = (fields["_type"], fields["predicateType"])
        subjects = {each["name"]: each["digest"]["sha256"] for each in fields["subject"]}
        predicate = fields["predicate"]
        dependencies = predicate["buildDefinition"]["resolvedDependencies"]
        commits = [d["digest"]["gitCommit"] for d in dependencies if d.get("name") == "source"]
        builder = predicate["runDetails"]["builder"]["id"]
    except (ValueError, KeyError, TypeError) as error:
        yield f"it is no provenance of SLSA: {error!r}"
        return
    if kinds != (STATEMENT, PREDICATE):
        yield f"its types are {' and '.join(map(str, kinds))}"
    if not re.match(r"[a-z][a-z0-9+.-]*:.", str(builder)):
        yield f"the builder {builder!r} is no URI: name one with ARGS='--builder https://…'"
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if subjects.pop(file.name, None) != digest:
            yield f"it does not name {file.name} with sha256 {digest}"
    yield from (f"it names {name}, which is not in dist" for name in sorted(subjects))
    if not source.commit:
        yield "there is no commit: release from a checkout of git"
    elif commits != [source.commit]:
        yield f"its commit is {commits}, not {source.commit}"
    if source.changed:
        yield f"{len(source.changed)} files are not as in the commit, {source.changed[0]} first"


def envelop(statement: bytes, key: Ed25519PrivateKey) -> bytes:
    """Return the envelope of a statement, as one line of a `.intoto.jsonl` file."""
    return sign(statement, key) + b"\n"


def signature_problems(envelope: bytes, statement: bytes, key: TrustedKey) -> Iterator[str]:
    """Yield the problems of an envelope: another statement, or no signature of the key."""
    try:
        opened = Envelope.parse(envelope)
    except ArtifactRefused as error:
        yield str(error)
        return
    if opened.payload != statement:
        yield "another statement is signed"
    if not opened.signers([key]):
        yield f"key {key.id} has not signed it"
