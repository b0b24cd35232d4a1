# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: the replicas of a gang are ranks of one process group, and start together."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import build, packed_cache, trusting
from compiled import compiled, double
from integration import apps as shapes
from serve_warm import Input, WarmupMixin
from serve_warm.artifact.push import push
from serve_warm.builder import bench
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build as build_artifact
from serve_warm.builder.publishing import Destination
from serve_warm.builder.signing import Signing
from serve_warm.errors import ConfigError
from serve_warm.fingerprint import Fingerprint
from serve_warm.replica.serve.deployment import ATTRIBUTE
from serve_warm.stores import open_store
from serve_warm.stores.local import LocalStore

pytest.importorskip("ray.serve.gang", reason="this Ray has no gang scheduling")

from ray import serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]

HANG_S = 300.0
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""The same in every process that imports this."""
STEPS = 3


@shapes.deployment(
    num_replicas=2, ray_actor_options={"num_cpus": 0.5}, gang_scheduling_config={"gang_size": 2}
)
class Sharded(WarmupMixin):
    """A sum over the ranks, between two things that are compiled; the second rank compiles more."""

    warmup_trust = trusting(KEY)

    def __init__(self) -> None:
        work = self.__dict__[ATTRIBUTE]._prefetch
        self.came = work is not None and work._taken.result(HANG_S) is not None
        gang = serve.get_replica_context().gang_context
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{tempfile.gettempdir()}/{gang.gang_id}",
            rank=gang.rank,
            world_size=gang.world_size,
        )
        self.before, self.after = compiled(double), compiled(double)
        self.steps = [compiled(double) for _ in range(STEPS * gang.rank)]

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.predict, args=(torch.ones(n),), size=n) for n in (2, 3)]

    async def predict(self, x: torch.Tensor) -> torch.Tensor:
        if self.steps:
            self.steps.pop()(torch.ones(2))
        part = self.before(x)
        torch.distributed.all_reduce(part)
        return self.after(part)

    async def told(self) -> dict[str, Any]:
        return {"came": self.came, **self.warmup_report()}


app = Sharded.bind()


def told(app: Any) -> list[dict[str, Any]]:
    """Return the answer of each replica by its rank. A request would reach only one replica."""
    said = app.handle.broadcast("told").results(timeout_s=HANG_S)
    return sorted(said, key=lambda one: one["fingerprint"]["app"]["rank"])


@pytest.fixture(scope="module")
def cold(cluster) -> list[dict[str, Any]]:
    """Each member's report of a start without an artifact."""
    started = cluster.start({"cold": Sharded.bind()})
    said = told(started["cold"].ready())
    cluster.delete(started)
    return said


def test_a_gang_starts_together(start, cold: list[dict[str, Any]], tmp_path: Path):
    """All members make as many passes as the slowest member. Each loads its own artifact."""
    store = LocalStore(root=tmp_path / "store")
    keys = [published(store, said["fingerprint"], tmp_path / str(n)) for n, said in enumerate(cold)]
    config = {"artifact": store.uri}

    warm = told(start(Sharded.options(user_config={"warmup": config}).bind()).ready())

    assert [said["fingerprint"]["app"]["rank"] for said in cold] == ["0 of 2", "1 of 2"]
    assert [said["stage"] for said in cold] == ["READY", "READY"]
    assert [said["passes"] for said in cold] == [4, 4]
    assert [said["covered"] for said in cold] == [{"expected": 2, "proven": 2}] * 2
    assert [said["verdict"] for said in warm] == ["full_hit", "full_hit"]
    assert [said["artifact"]["statement"] for said in warm] == keys
    assert [said["came"] for said in warm] == [True, True]


def test_a_gang_is_built_as_one(on, start, tmp_path: Path):
    """A build starts the whole gang, and publishes a variant for each rank that all load."""
    loaded = load_app("integration.test_gang:app")
    uri = str(tmp_path / "store")

    built = build_artifact(
        loaded, Destination(store=open_store(uri)), on=on, signing=Signing(key=KEY)
    )

    warmup = {"artifact": uri, "on_missing": "fail"}
    replica = start(Sharded.options(user_config={"warmup": warmup}).bind()).ready()
    warm = told(replica)
    assert (loaded.replicas, loaded.num_cpus) == (2, 1.0)
    assert built.statement == built.ranks[0]
    assert [said["verdict"] for said in warm] == ["full_hit", "full_hit"]
    assert tuple(said["artifact"]["statement"] for said in warm) == built.ranks
    with pytest.raises(ConfigError, match="a gang of 2 replicas"):
        bench.run(loaded, uri, on=on)


def published(store: LocalStore, built_for: dict[str, Any], folder: Path) -> str:
    manifest, stored = build(
        deployment="Sharded",
        built_for=Fingerprint(**built_for),
        raw={"cache": packed_cache(folder)},
    )
    return push(store, manifest, stored, [KEY])
