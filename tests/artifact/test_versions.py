# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Two releases in one roll-out: each reads what the other published, or says why not.

`data/first_release` is a store that the first release wrote, signed with the key of `SEED`.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import DEPLOYMENT, build, cache_directory, fingerprint, publish_statement, trusting
from serve_warm.artifact.archive import pack_directory, unpack_directory
from serve_warm.artifact.manifest import FORMAT
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.artifact.pull import pull
from serve_warm.artifact.push import push
from serve_warm.errors import AlreadyPublished, ArtifactRefused
from serve_warm.stores.local import LocalStore
from serve_warm.trust.envelope import Envelope

FIRST_RELEASE = Path(__file__).parents[1] / "data" / "first_release"
SEED = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SEED)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    shutil.copytree(FIRST_RELEASE, tmp_path / "store")
    return LocalStore(root=tmp_path / "store")


def pulled_cache(store: LocalStore, tmp_path: Path, **options: Any) -> tuple[str, bytes]:
    with pull(
        store,
        deployment=DEPLOYMENT,
        fingerprint=fingerprint(),
        trust=trusting(KEY),
        cache=NodeCache.open(tmp_path / "node"),
        **options,
    ) as pulled:
        return pulled.chosen.key, pulled.raw["cache"].read()


def statement_of(store: LocalStore, key: str) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads(Envelope.parse((store.root / key).read_bytes()).payload)
    return statement


def test_what_the_first_release_published_is_read(store: LocalStore, tmp_path: Path):
    """An artifact of the first release is verified, taken and unpacked, both parts of it."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)

    _, raw = pulled_cache(store, tmp_path, parts=("cache", "torch_bytes"))
    unpack_directory(io.BytesIO(raw), target)

    (tmp_path / "expected").mkdir()
    assert raw == pack_directory(cache_directory(tmp_path / "expected"))
    assert pack_directory(target) == raw


def test_what_is_published_now_looks_like_the_first_release_to_its_strict_reader(
    store: LocalStore,
):
    """The first release refuses unknown members, and finds none."""
    [old] = store.list("statements/")
    said = {"provenance": {"source": "4f2c", "builder": "https://ci"}}
    manifest, parts = build(deployment="Other", facts=said)

    new = statement_of(store, push(store, manifest, parts, [KEY]))

    old = statement_of(store, old)
    assert new.keys() == old.keys()
    assert new["predicateType"] == old["predicateType"]
    assert new["predicate"].keys() == old["predicate"].keys()
    assert new["predicate"]["parts"][0].keys() == old["predicate"]["parts"][0].keys()
    assert new["predicate"]["fingerprint"].keys() == old["predicate"]["fingerprint"].keys()


def test_a_variant_of_the_first_release_is_not_published_over(store: LocalStore):
    """Whatever it named its statements, a taken variant is taken."""
    manifest, parts = build(created="2026-11-21T10:00:00.000000Z")

    with pytest.raises(AlreadyPublished, match="different contents in cache, torch_bytes"):
        push(store, manifest, parts, [KEY])


def test_a_variant_of_the_first_release_can_be_superseded(store: LocalStore, tmp_path: Path):
    """The newer one is taken, and the older one stays for replicas that run the first release."""
    manifest, parts = build(created="2026-11-21T10:00:00.000000Z", raw={"cache": b"newer"})

    key = push(store, manifest, parts, [KEY], on_taken="supersede")

    assert pulled_cache(store, tmp_path) == (key, b"newer")
    assert len(store.list("statements/")) == 2


def test_a_later_format_beside_ours_is_passed_over_with_its_reason(
    store: LocalStore, tmp_path: Path
):
    """During a roll-out, the older release loads the newest artifact that it can read."""
    [old] = store.list("statements/")
    later = statement_of(store, old)
    later["predicateType"] = f"https://serve-warm.dev/artifact/v{FORMAT + 1}"
    later["predicate"] |= {
        "format": FORMAT + 1,
        "created": "2026-11-21T10:00:00.000000Z",
        "something": "new",
    }
    name = publish_statement(store, json.dumps(later).encode(), KEY, name="0" * 16)

    key, _ = pulled_cache(store, tmp_path)
    store.delete(old)
    with pytest.raises(ArtifactRefused) as caught:
        pulled_cache(store, tmp_path)

    assert key == old
    assert caught.value.reason == "newer_format"
    assert f"format {FORMAT + 1}, but this release reads format {FORMAT}" in caught.value.message
    assert "upgrade" in caught.value.hint
    assert [considered.statement for considered in caught.value.trace] == [name]
