# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The catalog: describing the statements of a store, and verifying all of it."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest

from artifacts import (
    DAY,
    MemoryStore,
    blob_key,
    build,
    cache_directory,
    days_ago,
    of_format_2,
    publish_statement,
    trusting,
)
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.catalog import check, describe
from serve_warm.artifact.push import push
from serve_warm.errors import StoreError
from serve_warm.stores import Object
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES
from serve_warm.trust.policy import Trust
from transfers import KEY, OTHER, flip, store_fixture  # noqa: F401 - a fixture
from transfers import supersede as publish


# --- describe ------------------------------------------------------------------------------
def test_describe_tells_what_is_in_a_store(store: MemoryStore):
    good, manifest = publish(store)
    other, _ = publish(store, deployment="Other")
    stranger = build(created=days_ago(1))[0]
    foreign = publish_statement(store, stranger.to_statement(), OTHER, name="f")
    newer = publish_statement(store, of_format_2(manifest), KEY, name="n")
    broken, large = (f"statements/app/Embedder/{name}.dsse.json" for name in "xy")
    store.objects[broken] = b"{"
    store.objects[large] = bytes(MAX_ENVELOPE_BYTES + 1)
    store.objects["statements/app/Embedder/README.md"] = b"hello"
    store.objects["statements/app/Embedder/deeper/z.dsse.json"] = b"hello"

    described = {item.statement: item for item in describe(store, trusting(KEY))}

    assert sorted(described) == sorted([good, other, foreign, newer, broken, large])
    assert {key for key, item in described.items() if item.trusted} == {good, other}
    assert (described[good].signers, described[good].how) == (("key0",), "signature")
    assert described[good].manifest == manifest
    assert described[good].digest == hashlib.sha256(manifest.to_statement()).hexdigest()
    assert described[other].manifest.place.deployment == "Other"
    assert described[foreign].reason == "untrusted"
    assert described[foreign].manifest == stranger
    assert described[foreign].digest == hashlib.sha256(stranger.to_statement()).hexdigest()
    assert described[newer].reason == "newer_format"
    assert described[newer].manifest is None
    assert described[newer].digest
    assert (described[broken].reason, described[broken].manifest) == ("bad_statement", None)
    assert described[large].reason == "too_large"
    assert [key for key in store.read if key.startswith("blobs/")] == []


def test_one_deployment_can_be_described(store: MemoryStore):
    publish(store)
    other, _ = publish(store, deployment="Other")
    (item,) = describe(store, trusting(KEY), deployment="Other")
    assert item.statement == other
    assert store.read == [other]


def test_describe_works_without_any_trust(store: MemoryStore):
    """A store can be described before deciding whom to trust."""
    publish(store)
    (item,) = describe(store, Trust())
    assert (item.trusted, item.reason) == (False, "no_trust")
    assert "[[keys]]" in item.hint
    assert item.manifest is not None


@pytest.mark.parametrize("limit", ["expired", "denied"])
def test_what_is_not_in_force_is_told(store: MemoryStore, limit: str):
    """An artifact that a replica would refuse for its age or digest is not trusted."""
    _, manifest = publish(store, created=days_ago(3000))
    trust = {
        "expired": trusting(KEY, max_age_s=DAY),
        "denied": trusting(KEY, denied=frozenset({manifest.parts[0].sha256})),
    }[limit]
    (item,) = describe(store, trust)
    assert (item.trusted, item.reason) == (False, limit)
    assert item.manifest == manifest


# --- check ---------------------------------------------------------------------------------
def test_a_damaged_blob_is_found(store: MemoryStore, tmp_path: Path):
    """A replica would refuse the artifact although its statement and signature are good."""
    raw = pack_directory(cache_directory(tmp_path / "source"))
    statement, manifest = publish(store, raw={"cache": raw})
    good, _ = publish(store, deployment="Good", raw={"cache": raw + bytes(10240)})
    gone, of_gone = publish(store, deployment="Gone", raw={"cache": raw + bytes(20480)})
    key = blob_key(manifest.parts[0])
    store.objects[key] = flip(store.objects[key])
    del store.objects[blob_key(of_gone.parts[0])]

    checked = {item.statement: item for item in check(store, trusting(KEY))}

    found = checked[statement]
    assert (found.trusted, found.reason) == (False, "digest_mismatch")
    assert (found.manifest, found.signers) == (manifest, ("key0",))
    assert found.digest == hashlib.sha256(manifest.to_statement()).hexdigest()
    assert found.hint
    assert (checked[gone].trusted, checked[gone].reason) == (False, "missing_part")
    assert "part cache" in checked[gone].message
    assert checked[good].trusted


def test_a_good_store_is_good(store: MemoryStore, tmp_path: Path):
    """All parts of all variants are downloaded and unpacked, and no file is left behind."""
    raw = pack_directory(cache_directory(tmp_path / "source"))
    publish(store, raw={"cache": raw, "extra": b"more"})
    publish(store, raw={"cache": raw}, deployment="Other")
    before = set(Path(tempfile.gettempdir()).iterdir())
    checked = check(store, trusting(KEY))
    assert [(item.trusted, item.reason) for item in checked] == 2 * [(True, "")]
    assert sum(key.startswith("blobs/") for key in store.read) == 3
    assert set(Path(tempfile.gettempdir()).iterdir()) == before


def test_what_could_not_be_put_in_place_is_found(store: MemoryStore):
    """A broken artifact is reported even if a trusted key signed it."""
    push(store, *build(raw={"cache": b"kernels"}), [KEY])
    (item,) = check(store, trusting(KEY))
    assert (item.trusted, item.reason) == (False, "bad_archive")


def test_parts_of_strangers_are_not_even_downloaded(store: MemoryStore):
    """No part is unpacked before the signature is checked."""
    publish(store)
    (item,) = check(store, trusting(OTHER))
    assert (item.trusted, item.reason) == (False, "untrusted")
    assert [key for key in store.read if key.startswith("blobs/")] == []


def test_a_store_that_cannot_be_read_is_an_error(store: MemoryStore):
    """An outage is an error, not a result for artifacts."""

    class Broken(MemoryStore):
        def head(self, key: str) -> Object:
            raise StoreError("connection refused")

    publish(store)
    with pytest.raises(StoreError, match="connection refused"):
        check(Broken(objects=store.objects), trusting(KEY))
