# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: the replicas of a gang are ranks of one process group, and start together."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import trusting
from compiled import compiled, double
from integration import apps as shapes
from serve_warm import Input, WarmupMixin
from serve_warm.builder import bench
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build as build_artifact
from serve_warm.builder.publishing import Destination
from serve_warm.builder.signing import Signing
from serve_warm.errors import ConfigError
from serve_warm.replica.serve.deployment import ATTRIBUTE
from serve_warm.stores import open_store

pytest.importorskip("ray.serve.gang", reason="this Ray has no gang scheduling")

from ray import serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]

HANG_S = 300.0
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""The same in every process that imports this."""


@shapes.deployment(
    num_replicas=2, ray_actor_options={"num_cpus": 0.5}, gang_scheduling_config={"gang_size": 2}
)
class Sharded(WarmupMixin):
    """A sum over the ranks, between two things that are compiled."""

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

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.predict, args=(torch.ones(n),), size=n) for n in (2, 3)]

    async def predict(self, x: torch.Tensor) -> torch.Tensor:
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


def test_a_gang_is_built_as_one(on, start, tmp_path: Path):
    """A build starts the whole gang, and publishes a variant for each rank.

    Each rank fetches its own variant during `__init__`, and loads it.
    """
    loaded = load_app("integration.test_gang:app")
    uri = str(tmp_path / "store")

    built = build_artifact(loaded, Destination.of(open_store(uri)), on=on, signing=Signing(key=KEY))

    warmup = {"artifact": uri, "on_missing": "fail"}
    replica = start(Sharded.options(user_config={"warmup": warmup}).bind()).ready()
    warm = told(replica)
    assert (loaded.replicas, loaded.num_cpus) == (2, 1.0)
    assert built.statement == built.ranks[0]
    assert [said["verdict"] for said in warm] == ["full_hit", "full_hit"]
    assert tuple(said["artifact"]["statement"] for said in warm) == built.ranks
    assert [said["came"] for said in warm] == [True, True]
    with pytest.raises(ConfigError, match="a gang of 2 replicas"):
        bench.run(loaded, uri, on=on)
