# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Probe and server of a node say "ready" never before it is, whatever is killed and when."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_S, App, Cluster, wait_until
from integration.test_node import PERIOD_S, kill_controller, options
from serve_warm import builder
from witness import NEVER, NodeServer, Witness, false_readies, late_readies, probed

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(1800)]

STAGES = ("PENDING", "PULLING", "VERIFYING", "LOADING", "REPLAYING", "PROVING", "READY")

TRIES = 8
"""Some stages last a few milliseconds: a kill that lands in the next one is tried again."""


class Run:
    """The application under one name, whose replicas are waited for and killed."""

    def __init__(self, cluster: Cluster, store: str) -> None:
        self._cluster = cluster
        self._settings = {"warmup": {"artifact": store, "on_missing": "fail"}}
        self._witness: Witness
        self._killed: set[int] = set()
        self.app = self.deploy()
        self.killed_in = dict.fromkeys(STAGES, 0)

    def deploy(self, *, name: str = "", replicas: int = 1, what: str = "app") -> App:
        target = (f"stress.witnessed_app:{what}", "Witnessed", self._settings)
        return self._cluster.configure(*target, name=name, num_replicas=replicas)

    def again(self, *, replicas: int = 1, what: str = "app") -> None:
        self.deploy(name=self.app.name, replicas=replicas, what=what)

    def before(self, witness: Witness) -> None:
        self._witness = witness

    def warm(self, count: int) -> list[int]:
        """Wait until so many are warm and all sources say so, and return their process ids."""
        wait_until(f"{count} are warm", lambda: len(self._witness.warm()) == count)
        wait_until("all say so", self._witness.agree)
        return [life.pid for life in self._witness.warm()]

    def living(self, count: int) -> None:
        wait_until(f"there are {count}", lambda: len(self._witness.living()) == count)

    def gone(self, pid: int) -> None:
        wait_until(f"{pid} ends", lambda: pid not in [o.pid for o in self._witness.living()])

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)
        self.gone(pid)

    def kill_at(self, stage: str) -> None:
        """Kill the one that is warm, and its successor as soon as that reports the stage."""
        for _ in range(TRIES):
            self.kill(self.warm(1)[0])
            landed = self._kill_successor(STAGES.index(stage))
            self.killed_in[landed] += 1
            if landed == stage:
                return

    def _kill_successor(self, wanted: int) -> str:
        ended = {life.pid for life in self._witness.lives() if life.ended_s < NEVER}
        ended |= self._killed
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            for path in self._cluster.state_dir.glob("*.json"):
                try:
                    state = json.loads(path.read_text())
                except FileNotFoundError:
                    continue  # swept
                pid = state["pid"]
                if state["application"] != self.app.name or pid in ended:
                    continue
                if STAGES.index(state["stage"]) >= wanted and path.exists():
                    os.kill(pid, signal.SIGKILL)
                    landed = json.loads(path.read_text())["stage"]
                    self._killed.add(pid)
                    self.gone(pid)
                    return str(landed)
            time.sleep(0.0005)
        pytest.fail(f"no replica reached {STAGES[wanted]}")


@pytest.fixture(name="run")
def run_fixture(cluster: Cluster, tmp_path: Path) -> Iterator[Run]:
    """An application with an artifact, deployed just now."""
    bound = builder.load_app("stress.witnessed_app:app")
    builder.build(bound, str(tmp_path / "store"), on=builder.Cluster(port=0))
    started = Run(cluster, str(tmp_path / "store"))
    yield started
    cluster.delete({started.app.name: started.app})


def test_every_answer_is_true(cluster: Cluster, run: Run) -> None:
    """Start, scale-up, rolling update, a kill in each stage, of the controller and of the server.

    All the while each source is asked again and again. What it says is held against what the
    replicas note themselves and when the kernel says that they ended.
    """
    asked = options(cluster, run.app, "Witnessed")
    latched, strict = NodeServer(*asked), NodeServer(*asked, "--no-latch")
    ask: dict[str, Callable[[], tuple[bool, str] | None]] = {
        "/readyz": latched.readyz,
        "/metrics": latched.scraped,
        "probe": lambda: probed(*asked),
        "/readyz, no latch": strict.readyz,
        "probe, no latch": lambda: probed(*asked, "--no-latch"),
    }
    with Witness(cluster.state_dir, run.app.name, inputs=2, ask=ask, pause_s=0.02) as witness:
        run.before(witness)
        # A start, a second replica, its death and that of the first, and back to one.
        (first,) = run.warm(1)
        run.again(replicas=2)
        (second,) = set(run.warm(2)) - {first}
        run.kill(second)
        run.living(2)
        run.kill(first)
        run.warm(2)
        run.again()
        run.living(1)
        # Another version.
        (old,) = run.warm(1)
        run.again(what="app_again")
        run.gone(old)
        run.warm(1)
        # A replica in each of its stages.
        for stage in STAGES:
            run.kill_at(stage)
        run.warm(1)
        # Whoever manages, and whoever answers: with and without a replica beside.
        kill_controller()
        (last,) = run.warm(1)
        latched.kill()
        run.kill(last)
        latched.begin()
        run.warm(1)
        latched.kill()
        latched.begin()
        run.warm(1)
    for each in (latched, strict):
        each.kill()

    lives = witness.lives()
    found: dict[str, Any] = {}
    for source in witness.sources:
        latch = "off" if "no latch" in source else "on"
        answers = witness.of(source)
        found[source] = {
            "answers": len(answers),
            "ready": sum(answer.ready for answer in answers),
            "false": false_readies(answers, lives, latch=latch),
            "late": late_readies(answers, lives, latch=latch, period_s=PERIOD_S),
        }
    print(json.dumps({"kills": run.killed_in, "replicas": len(lives)}), found)  # noqa: T201
    assert all(run.killed_in.values())
    for each in found.values():
        assert 0 < each["ready"] < each["answers"]
        assert (each["false"], each["late"]) == ([], [])
