# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: an artifact comes while `__init__` runs, and a failing `__init__` is not held up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import build, packed_cache, trusting
from integration import apps as shapes
from serve_warm.artifact.push import push
from serve_warm.fingerprint import Fingerprint
from serve_warm.replica.deployment import ATTRIBUTE
from serve_warm.stores.local import LocalStore

pytestmark = [pytest.mark.ray, pytest.mark.long]

HANG_S = 300.0
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""The same in every process that imports this."""


@shapes.deployment()
class Loading(shapes.Embedder.func_or_class):
    """Takes three seconds for its weights, and longer where its artifact does."""

    warmup_trust = trusting(KEY)

    def __init__(self) -> None:
        work = self.__dict__[ATTRIBUTE]._prefetch
        self.prefetches = work is not None
        time.sleep(3)
        # Not "long enough": until it is there, however slow the machine.
        self.came = self.prefetches and work._taken.result(HANG_S) is not None
        super().__init__()

    async def in_init(self) -> dict[str, Any]:
        return {"prefetches": self.prefetches, "came": self.came}


@shapes.deployment()
class Failing(Loading.func_or_class):
    """Fails when its artifact is on its way or there."""

    def __init__(self) -> None:
        super().__init__()
        raise KeyError("no such weights")


def published(store: LocalStore, built_for: dict[str, Any], tmp_path: Path) -> str:
    manifest, stored = build(
        deployment="Loading",
        built_for=Fingerprint(**built_for),
        raw={"cache": packed_cache(tmp_path / "built")},
    )
    return push(store, manifest, stored, [KEY])


def test_an_artifact_comes_while_init_runs(start, tmp_path: Path):
    """The start finds the artifact ready, reports the hidden time, and serves with it."""
    store = LocalStore(root=tmp_path / "store")
    cold = start(Loading.bind()).ready()
    key = published(store, cold.report()["fingerprint"], tmp_path)
    warmup = {"artifact": store.uri}

    app = start(Loading.options(user_config={"warmup": warmup}).bind()).ready()

    report = app.report()
    assert cold.call("in_init") == {"prefetches": False, "came": False}
    assert app.call("in_init") == {"prefetches": True, "came": True}
    assert (report["verdict"], report["artifact"]["statement"]) == ("full_hit", key)
    hidden = {time["stage"]: time["hidden_s"] for time in report["stages"]}
    assert all(hidden[stage] > 0 for stage in ("PULLING", "VERIFYING", "LOADING"))
    assert hidden["PENDING"] == hidden["REPLAYING"] == hidden["PROVING"] == 0
    caches = app.call("caches")
    assert not set(caches["in __init__"]) & set(caches["now"])
    assert app.post(json={"values": [1.0]}).json() == {"values": [3.0]}


def test_nothing_is_begun_where_nothing_is_to_be_pulled(start):
    """The kill switch leaves no thread of serve_warm. Without an artifact there is none either."""
    config = {"warmup": {"artifact": "./nowhere", "enabled": False}}

    app = start(Loading.options(user_config=config).bind()).ready()

    assert app.call("in_init") == {"prefetches": False, "came": False}


def test_an_init_that_raises_is_raised(start, tmp_path: Path):
    """Serve sees the user's error, and no other."""
    warmup = {"artifact": str(tmp_path / "store")}

    message = start(Failing.options(user_config={"warmup": warmup}).bind()).failed()

    assert "no such weights" in message
