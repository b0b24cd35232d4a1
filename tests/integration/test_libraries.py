# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: a replica at level 3 starts without torch's compiler and without a C++ compiler."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ray import serve

import serve_warm
from artifacts import trusting
from benchmarks.bench_imports import NOT_IN_A_START, run
from integration.clients import published
from serve_warm import Input, WarmupMixin
from serve_warm.builder.signing import Signing

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(300)]

COMPILER = {"torch._dynamo", "torch._inductor"}
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""The same in every process that imports this."""


@serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=0)
class Scoring(WarmupMixin):
    """Has one library for each of two shapes."""

    warmup_trust = trusting(KEY)

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.eager = torch.nn.Sequential(
            torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)
        ).eval()
        self.model = serve_warm.compile(self.eager, level=3, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.run, args=(batch,), size=batch) for batch in (8, 2)]

    async def run(self, batch: int) -> list[float]:
        with torch.inference_mode():
            x = torch.linspace(-1, 1, batch * 16).view(batch, 16)
            return (self.model(x) - self.eager(x)).abs().flatten().tolist()

    async def imported(self) -> list[str]:
        return sorted(sys.modules)

    async def path(self) -> str:
        return os.environ.get("PATH", "")


app = Scoring.bind()


@serve.deployment(name="Scoring", ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=0)
class WithoutCompiler(Scoring.func_or_class):
    """The same on a machine without g++, and without anything else on its PATH."""

    def __new__(cls) -> Any:
        # Not in `runtime_env`: Ray's own start of a worker needs a PATH.
        os.environ["PATH"] = "/nowhere"
        os.environ.pop("CXX", None)
        return super().__new__(cls)


@pytest.fixture(scope="module")
def store(cluster, on) -> str:
    """Return the store with the published artifact."""
    options = {"on": on, "signing": Signing(key=KEY)}
    return published(cluster, "integration.test_libraries:app", "libraries", **options)


@pytest.fixture(scope="module")
def without_compiler(cluster, store, tmp_path_factory) -> Any:
    """A replica whose PATH leads nowhere, with whatever the artifact has."""
    # Its own state folder: where others have recorded calls, a replica removes their old files
    # after READY, and imports what does that.
    states = str(tmp_path_factory.mktemp("states"))
    warmup = {"artifact": store, "on_unproven": "fail", "state_dir": states}
    bound = WithoutCompiler.options(user_config={"warmup": warmup}).bind()
    started = cluster.start({"without-compiler": bound})
    (app,) = started.values()
    yield app.ready()
    cluster.delete(started)


def test_a_replica_is_proven_without_any_compiler(without_compiler):
    """Neither Dynamo nor Inductor is imported, no g++ exists, and outputs equal eager's."""
    replica = without_compiler
    errors = replica.call("run", 8) + replica.call("run", 2)
    report = replica.report()

    assert replica.call("path") == "/nowhere"
    imported = set(replica.call("imported"))
    assert not COMPILER & imported
    assert report["compiler_imported"] == ""
    assert (report["verdict"], report["warnings"]) == ("full_hit", [])
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert [use["level"] for use in report["entries"]] == [3, 3]
    assert report["fingerprint"]["machine"]["compiler"] == "not needed"
    assert max(errors) < 1e-5


def test_a_start_imports_what_the_benchmark_measures(without_compiler, tmp_path):
    """No module of serve_warm that only a build, a command or another store needs."""
    imported = set(without_compiler.call("imported"))
    measured, _ = run(folder=str(tmp_path))

    ours = {name for name in imported if name.partition(".")[0] == "serve_warm"}
    assert imported & NOT_IN_A_START == set()
    assert ours == {name for name in measured["modules"] if name.startswith("serve_warm")}
