# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Shared helpers for tests of publishing and pulling: a signer, a store, and forged blobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from artifacts import PLACE, MemoryStore, build, fingerprint, new_key, trusting
from serve_warm.artifact.blobs import zstd
from serve_warm.artifact.code_and_model import NOTHING_KNOWN, CodeAndModel
from serve_warm.artifact.node_cache import NodeCache, default_root
from serve_warm.artifact.pull import Pulled, pull
from serve_warm.artifact.push import push
from serve_warm.artifact.push import sign as sign_all
from serve_warm.fingerprint import Fingerprint
from serve_warm.trust.policy import Trust

if TYPE_CHECKING:
    from serve_warm.artifact.manifest import Manifest
    from serve_warm.stores import Store

KEY = new_key()
OTHER = new_key()
OLDER, NEWER, NEWEST = (f"2026-11-20T10:00:0{second}.000000Z" for second in range(3))


@pytest.fixture(name="store")
def store_fixture() -> MemoryStore:
    return MemoryStore()


def publish(store: Store, *, on_taken: Any = "refuse", **fields: Any) -> tuple[str, Manifest]:
    """Push an artifact that `artifacts.build` makes; return the statement key and the manifest."""
    manifest, stored = build(**fields)
    return push(store, manifest, stored, [KEY], on_taken=on_taken), manifest


def supersede(store: Store, **fields: Any) -> tuple[str, Manifest]:
    return publish(store, on_taken="supersede", **fields)


def pull_here(
    store: Store,
    *,
    here: Fingerprint | None = None,
    here_of: CodeAndModel = NOTHING_KNOWN,
    trust: Trust | None = None,
    **options: Any,
) -> Pulled:
    """Pull an artifact and close it; return it with the bytes of its files instead of the files."""
    options = {"place": PLACE, "here": here_of, **options}
    with (
        NodeCache.open(default_root()) as cache,
        pull(
            store,
            fingerprint=here or fingerprint(),
            trust=trust or trusting(KEY),
            cache=cache,
            **options,
        ) as pulled,
    ):
        held: Any = {name: file.read() for name, file in pulled.raw.items()}
        return replace(pulled, raw=held)


def sign_again(*args: Any, **options: Any) -> list[str]:
    """Sign all artifacts of a store, and check that none was skipped."""
    done = sign_all(*args, **options)
    assert done.refused == ()
    return list(done.statements)


def flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


FORGED_BLOBS = {
    "flipped": (flip, "digest_mismatch"),
    "truncated": (lambda data: data[:-1], "truncated"),
    "empty": (lambda _: b"", "truncated"),
    "extended": (lambda data: data + b"\0", "size_mismatch"),
    "replaced": (lambda data: bytes(len(data)), "digest_mismatch"),
    "bomb": (lambda _: zstd.compress(bytes(1 << 24)), "size_mismatch"),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]
