# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica that is killed at any stage leaves nothing behind that its successor reads."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from serve_warm.builder.app import App, load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import Cluster
from serve_warm.builder.publishing import Destination
from serve_warm.stores import open_store

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(1200)]

STAGES = ("PENDING", "PULLING", "VERIFYING", "LOADING", "REPLAYING", "PROVING", "READY")

TRIES = 8
"""Attempts per stage. Some stages last only a few milliseconds, so a kill may come in the next
stage."""


@pytest.fixture(scope="module")
def running(on: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, App, Path]:
    """The shared cluster, the application, and a store with its artifact."""
    store = tmp_path_factory.mktemp("store")
    app = load_app("tests.stress.app:app")
    build(app, Destination.of(open_store(str(store))), on=on)
    return on, app, store


@pytest.mark.parametrize("stage", STAGES)
def test_the_start_after_a_kill_is_a_clean_one(running, tmp_path, stage):
    """In whatever stage a replica dies, its successor loads the artifact and compiles nothing."""
    cluster, app, store = running
    for attempt in range(TRIES):
        states = tmp_path / f"{attempt}" / "state"
        settings = {"artifact": str(store), "state_dir": str(states), "on_missing": "fail"}
        with cluster.deployed(app, settings) as name:
            killed = _kill_at(states, stage)
            report = _report_of_successor(name, killed["pid"])
        if killed["stage"] == stage:
            break

    assert killed["stage"] == stage
    assert report["verdict"] == "full_hit"
    assert report["warmup"]["compiler_processes"] == 0
    assert report["covered"] == {"expected": 2, "proven": 2}


def _kill_at(states: Path, stage: str) -> dict[str, Any]:
    """Kill the first replica that reports `stage`, and return the state that it died with."""
    end = time.monotonic() + 120
    wanted = STAGES.index(stage)
    while time.monotonic() < end:
        for path in states.glob("*.json"):
            state = json.loads(path.read_text())
            if STAGES.index(state["stage"]) >= wanted:
                os.kill(state["pid"], signal.SIGKILL)
                last: dict[str, Any] = json.loads(path.read_text())
                return last
        time.sleep(0.0005)
    pytest.fail(f"no replica reached {stage}")


def _report_of_successor(name: str, dead: int) -> dict[str, Any]:
    from ray import serve
    from ray.exceptions import RayError

    end = time.monotonic() + 120
    while time.monotonic() < end:
        # Serve notices the death later. Until then, calls fail or wait.
        try:
            handle = serve.get_deployment_handle("Victim", app_name=name)
            report: dict[str, Any] = handle.warmup_report.remote().result(timeout_s=200)
        except (RayError, TimeoutError):
            continue
        if report["pid"] != dead:
            return report
        time.sleep(0.1)
    pytest.fail("no successor became ready")
