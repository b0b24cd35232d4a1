# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray, with real kernels: a build that is interrupted keeps what it has compiled."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import serve

from conftest import wait_until
from serve_warm import Input, WarmupMixin, builder
from serve_warm.unfinished import LIST_NAME

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

GATE = "unfinished-gate"
"""While a file of this name is in the folder for temporary files, the second input waits; the
replica writes its process id into it."""


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Summing(WarmupMixin):
    """Compiles one kernel for each of two shapes."""

    def __init__(self) -> None:
        self.model = torch.compile(lambda x: (x.sin() * 2 + x.cos()).relu().sum(), dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.run, args=(size,), size=size) for size in (96, 64)]

    async def run(self, size: int) -> float:
        gate = Path(tempfile.gettempdir()) / GATE
        if size == 64 and gate.exists():
            gate.write_text(str(os.getpid()))
            for _ in iter(gate.exists, False):
                await asyncio.sleep(0.05)
        with torch.inference_mode():
            return float(self.model(torch.ones(size)))


app = Summing.bind()


class Interrupted:
    """Progress of a build that ends it, as Ctrl-C does, once its replica waits at the gate.

    The replica is killed before, so that neither of them has a last word.
    """

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def __call__(self, _: str) -> None:
        if victim := self._gate.read_text():
            os.kill(int(victim), signal.SIGKILL)
            raise KeyboardInterrupt


@pytest.fixture
def gate(cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Close the gate; open it at the end. The builder uses the same base as the replicas."""
    base = cluster.state_dir.parent
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    gate = base / GATE
    # What builds of other tests have left, whose builder had another folder for temporary files.
    for left in base.glob("serve_warm-*/builds/*"):
        shutil.rmtree(left)
    gate.touch()
    yield gate
    gate.unlink(missing_ok=True)


@pytest.fixture
def on(cluster) -> builder.Cluster:
    return builder.Cluster(int(cluster.url.rpartition(":")[2]))


@pytest.fixture
def loaded() -> builder.App:
    return builder.load_app("integration.test_unfinished:app")


@pytest.fixture(scope="module")
def uninterrupted(cluster) -> int:
    """Return how often a start that goes on from nothing runs the compiler."""
    on = builder.Cluster(int(cluster.url.rpartition(":")[2]))
    with on.running(builder.load_app("integration.test_unfinished:app"), {}) as start:
        runs: int = start.report()["warmup"]["compiler_processes"]
    return runs


def kept(gate: Path) -> tuple[int, Path]:
    """Return how many libraries the one unfinished build has kept, and its folder."""
    (listed,) = gate.parent.glob(f"serve_warm-*/builds/*/{LIST_NAME}")
    names = json.loads(listed.read_text())["files"]
    return sum(name.endswith(".so") for name in names), listed.parent


def assert_gone_on(built: builder.Built, libraries: int, uninterrupted: int) -> None:
    assert 0 < libraries < uninterrupted
    assert built.note.startswith(f"resuming: {libraries} kernels of an interrupted build of ")
    assert built.cold["warmup"]["compiler_processes"] == uninterrupted - libraries
    assert built.cold["covered"] == {"expected": 2, "proven": 2}
    assert built.round_trip["verdict"] == "full_hit"
    assert built.round_trip["warmup"]["compiler_processes"] == 0
    assert built.round_trip["covered"] == {"expected": 2, "proven": 2}


def test_the_next_build_goes_on_from_an_interrupted_one(
    uninterrupted: int, loaded, on, gate: Path, tmp_path: Path
):
    """Only what was not compiled is compiled, and its artifact passes the whole round trip."""
    with pytest.raises(KeyboardInterrupt):
        builder.build(loaded, str(tmp_path), on=on, progress=Interrupted(gate))
    libraries, folder = kept(gate)
    gate.unlink()

    built = builder.build(loaded, str(tmp_path), on=on)

    assert_gone_on(built, libraries, uninterrupted)
    assert not folder.exists()


@pytest.mark.stress  # kills a builder, for most of a minute
def test_a_build_goes_on_from_a_replica_that_is_killed(
    uninterrupted: int, loaded, on, gate: Path, tmp_path: Path
):
    """Serve starts another one at once, which compiles only what the first one did not."""
    noticed: list[str] = []

    with ThreadPoolExecutor(1) as threads:
        building = threads.submit(
            builder.build, loaded, str(tmp_path), on=on, notice=noticed.append
        )
        try:
            victim = int(wait_until("the replica waits", gate.read_text))
            libraries, _ = kept(gate)
            gate.write_text("")
            os.kill(victim, signal.SIGKILL)
            wait_until("the next one waits", gate.read_text)
        finally:
            gate.unlink()  # or the build, and with it this block, would have no end
        built = building.result()

    assert noticed == [built.note]
    assert built.cold["pid"] != victim
    assert_gone_on(built, libraries, uninterrupted)
