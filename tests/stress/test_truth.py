# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A node's probe and server never say "ready" too early, no matter what is killed and when."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import HANG_S, Cluster, wait_until
from integration.test_node import PERIOD_S, options
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import Cluster as RayCluster
from serve_warm.builder.publishing import Destination
from serve_warm.stores import open_store
from witness import NEVER, NodeServer, Witness, false_readies, late_readies, probed

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(1800)]

STAGES = ("PENDING", "PULLING", "VERIFYING", "LOADING", "REPLAYING", "PROVING", "READY")

TRIES = 4
"""Attempts per stage. Some stages last only a few milliseconds, so a kill may come in the next
stage."""


class Run:
    """An application whose replicas the tests wait for and kill.

    Meanwhile, a witness asks each source again and again. `judge` compares the answers with the
    notes of the replicas, and with the times at which their processes ended, as the kernel reports
    them.
    """

    def __init__(self, cluster: Cluster, store: str, stack: contextlib.ExitStack) -> None:
        self._cluster = cluster
        settings = {"warmup": {"artifact": store, "on_missing": "fail"}}
        self._killed: set[int] = set()
        self.app = cluster.configure("stress.witnessed_app:app", "Witnessed", settings)
        asked = options(cluster, self.app.name, "Witnessed")
        self.server = stack.enter_context(NodeServer(*asked))
        strict = stack.enter_context(NodeServer(*asked, "--no-latch"))
        ask = {
            "/readyz": self.server.readyz,
            "/metrics": self.server.scraped,
            "probe": lambda: probed(*asked),
            "/readyz, no latch": strict.readyz,
            "probe, no latch": lambda: probed(*asked, "--no-latch"),
        }
        watch = Witness(cluster.state_dir, self.app.name, inputs=2, ask=ask, pause_s=0.02)
        self.witness = stack.enter_context(watch)

    def warm(self, count: int) -> list[int]:
        """Wait until `count` replicas are warm and all sources say so. Return their process ids."""
        wait_until(f"{count} are warm", lambda: len(self.witness.warm()) == count)
        wait_until("all say so", self.witness.agree)
        # Serve must say so too. A replica that dies before Serve knows of its start ends a rolling
        # update.
        wait_until("Serve says so", lambda: self.app.status()[0] == "RUNNING")
        return [life.pid for life in self.witness.warm()]

    def gone(self, pid: int) -> None:
        wait_until(f"{pid} ends", lambda: pid not in [o.pid for o in self.witness.living()])

    def kill_at(self, stage: str) -> str:
        """Kill the next replica as soon as it reports the stage. Return its report."""
        ended = {life.pid for life in self.witness.lives() if life.ended_s < NEVER} | self._killed
        old: set[Path] = set()
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            for path in set(self._cluster.state_dir.glob("*.json")) - old:
                state = json.loads(path.read_text())
                pid = state["pid"]
                if state["application"] != self.app.name or pid in ended:
                    old.add(path)
                elif STAGES.index(state["stage"]) >= STAGES.index(stage):
                    os.kill(pid, signal.SIGKILL)
                    self._killed.add(pid)
                    self.gone(pid)
                    return str(state["stage"])
            time.sleep(0.0005)
        pytest.fail(f"no replica reached {stage}")

    def judge(self) -> None:
        """Compare each answer so far with the truth."""
        lives, found = self.witness.lives(), {}
        for source in self.witness.sources:
            latch = "off" if "no latch" in source else "on"
            answers = self.witness.of(source)
            false = false_readies(answers, lives, latch=latch)
            late = late_readies(answers, lives, latch=latch, period_s=PERIOD_S)
            found[source] = {
                "answers": len(answers),
                "ready": sum(answer.ready for answer in answers),
                "false": len(false),
                "late": len(late),
            }
            assert (false, late) == ([], [])
            assert 0 < found[source]["ready"] < found[source]["answers"]
        print(json.dumps({"replicas": len(lives), **found}))  # noqa: T201 - ARGS=-s shows it


@pytest.fixture(name="store", scope="module")
def store_fixture(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the artifact of the application."""
    store = str(tmp_path_factory.mktemp("store"))
    bound = load_app("stress.witnessed_app:padded")
    build(bound, Destination(store=open_store(store)), on=RayCluster(port=0))
    return store


@pytest.fixture(name="run")
def run_fixture(cluster: Cluster, store: str) -> Iterator[Run]:
    """The application, just deployed."""
    with contextlib.ExitStack() as stack:
        started = Run(cluster, store, stack)
        yield started
    cluster.delete({started.app.name: started.app})


def test_every_answer_is_true_while_replicas_are_killed(run: Run) -> None:
    """The kills happen in each stage of a start, and in the serving stage."""
    run.warm(1)
    killed_in = dict.fromkeys(STAGES, 0)
    for stage in reversed(STAGES):
        for _ in range(TRIES):
            landed = run.kill_at(stage)
            killed_in[landed] += 1
            if landed == stage:
                break
    run.warm(1)
    run.judge()

    print(json.dumps(killed_in))  # noqa: T201 - as above
    assert all(killed_in.values())
