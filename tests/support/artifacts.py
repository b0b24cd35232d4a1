# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Small artifacts for tests, made with serve_warm itself, and functions that forge artifacts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel
from serve_warm.artifact.manifest import Manifest, Part, Place
from serve_warm.errors import ObjectExists, ObjectNotFound, ObjectTooLarge, StoreError
from serve_warm.fingerprint import Fingerprint
from serve_warm.stores import Listed, Object, Sink, Store, check_key, pieces_of
from serve_warm.trust.envelope import sign
from serve_warm.trust.keys import TrustedKey
from serve_warm.trust.policy import Trust

APPLICATION = "app"
DEPLOYMENT = "Embedder"
PLACE = Place(application=APPLICATION, deployment=DEPLOYMENT)
MACHINE = {
    "serve_warm": "rules 1",
    "cpu_isa": "avx2 avx512f",
    "python": "CPython 3.11.7",
    "torch": "2.13.0+cpu",
    "triton": "none",
    "compiler": "g++ 12.2.0",
    "gpu": "none",
}
DAY = 86400.0
NOW = datetime(2026, 11, 20, tzinfo=timezone.utc).timestamp()
APP = {"threads": "4", "grad_mode": "inference", "compile_arguments": "dynamic=False"}


@dataclass
class MemoryStore:
    """A store in a dictionary. Tests can make it change its answers, and read its log."""

    objects: dict[str, bytes] = field(default_factory=dict)
    modified: dict[str, float] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    uri: str = "memory:"

    def pages(self, prefix: str) -> Iterator[Sequence[Listed]]:
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        for start in range(0, len(keys), 1000):
            yield [
                Listed(key=key, modified_unix=self.modified.get(key))
                for key in keys[start : start + 1000]
            ]

    def head(self, key: str) -> Object:
        size = len(self._there(key))
        stamp = self.modified.get(key, time.time())
        return Object(key=key, size_bytes=size, modified_unix=stamp, version="")

    def get(self, key: str, *, max_bytes: int) -> bytes:
        self.read.append(key)
        if len(self._there(key)) > max_bytes:
            raise ObjectTooLarge(key, store=self.uri, max_bytes=max_bytes)
        return self.objects[key]

    def download(self, found: Object, sink: Sink) -> None:
        self.read.append(found.key)
        offset = 0
        for piece in pieces_of(self._there(found.key)):
            sink(offset, piece)
            offset += len(piece)
        if offset != found.size_bytes:
            raise StoreError(f"{self.uri}: {found.key!r} was changed while it was being read")

    def create(self, key: str, source: bytes | BinaryIO) -> None:
        check_key(key)
        self.written.append(key)
        data = b"".join(pieces_of(source))
        if self.objects.setdefault(key, data) != data:
            raise ObjectExists(key, store=self.uri)
        self.modified.setdefault(key, time.time())

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self.objects.pop(key, None)
        self.modified.pop(key, None)

    def _there(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound(key, store=self.uri)
        return self.objects[key]


def new_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


LONG_S = 100 * 365 * 86400.0
"""An age limit for artifacts that have a fixed creation time in a test."""


def trusting(*keys: Ed25519PrivateKey, **others: Any) -> Trust:
    return Trust(
        max_age_s=others.pop("max_age_s", LONG_S),
        keys=tuple(
            TrustedKey(name=f"key{number}", raw=key.public_key().public_bytes_raw())
            for number, key in enumerate(keys)
        ),
        **others,
    )


def fingerprint(**factors: str) -> Fingerprint:
    """Return the default fingerprint with some factors changed."""
    return Fingerprint(
        machine={name: factors.get(name, value) for name, value in MACHINE.items()},
        app={name: factors.get(name, value) for name, value in APP.items()},
    )


def cache_directory(directory: Path) -> Path:
    """Fill a directory with names and contents like those in torch's cache."""
    files = {
        "fxgraph/m2/fm225qgkjwe6hzsmup6stp52ogf5gku3wxzzasu4q45pdrvvzek7/vn5fvpc": b"\x80\x04graph",
        f"aotautograd/a{'n' * 51}/{'y' * 120}": b"a name that needs a long tar header" * 9,
        "24/c244b2rga7kqcbbf2xhyb.so": bytes(range(256)) * 64,
        "24/c244b2rga7kqcbbf2xhyb.cpp": b"int main() {}\n",
        "empty.best_config": b"",
        "locks/c244b2rga7kqcbbf2xhyb.lock": b"",
        "24/.4711.0815.tmp": b"half a file",
    }
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (directory / "an_empty_one").mkdir(exist_ok=True)
    return directory


def build(
    *,
    application: str = APPLICATION,
    deployment: str = DEPLOYMENT,
    made_of: CodeAndModel = NOTHING_KNOWN,
    created: str = "2026-11-20T10:00:00.000000Z",
    built_for: Fingerprint | None = None,
    raw: Mapping[str, bytes] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> tuple[Manifest, dict[str, bytes]]:
    """Return a manifest and the stored bytes of its parts; `raw` has the raw bytes by part name."""
    packed = [pack_part(name, data) for name, data in (raw or {"cache": b"kernels"}).items()]
    manifest = Manifest(
        place=Place(application=application, deployment=deployment),
        made_of=made_of,
        created=created,
        fingerprint=built_for or fingerprint(),
        parts=tuple(part for part, _ in packed),
        facts=facts or {},
    )
    return manifest, {part.name: stored for part, stored in packed}


def packed_cache(directory: Path) -> bytes:
    return pack_directory(cache_directory(directory))


def blob_key(part: Part) -> str:
    return f"blobs/sha256/{part.sha256}"


def days_ago(days: float) -> str:
    """Return a creation time some days before NOW."""
    moment = datetime.fromtimestamp(NOW - days * DAY, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def publish_statement(store: Store, payload: bytes, *keys: Ed25519PrivateKey, name: str) -> str:
    """Write a statement with any content to a store, signed but otherwise unchecked."""
    key = f"statements/{APPLICATION}/{DEPLOYMENT}/{name}.dsse.json"
    store.create(key, sign(payload, *keys))
    return key


def edited(envelope: bytes, **members: Any) -> bytes:
    """Return an envelope with some members replaced and the signatures unchanged."""
    return json.dumps({**json.loads(envelope), **members}).encode()


def of_format_2(manifest: Manifest) -> bytes:
    payload = json.loads(manifest.to_statement())
    payload["predicateType"] = "https://serve-warm.dev/artifact/v2"
    payload["predicate"]["format"] = 2
    payload["predicate"]["something"] = "new"
    return json.dumps(payload).encode()
