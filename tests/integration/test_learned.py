# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray, with the commands: an untouched application learns its inputs from its traffic."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import yaml

from conftest import wait_until
from serve_warm._private_folders import CALL_FOLDER as FOLDER

if TYPE_CHECKING:
    from conftest import App, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

TARGET = "integration.untouched_scorer:app"
LENGTHS = (3, 40, 9)
"""Lengths of texts; the application pads them to 16 and 64."""


def command(*words: str, address: bool = True) -> subprocess.CompletedProcess[str]:
    at = ["--address", ray.get_runtime_context().gcs_address] if address else []
    line = [sys.executable, "-m", "serve_warm.cli", *words, *at]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(autouse=True)
def nothing_recorded(cluster: Cluster) -> None:
    """Remove what replicas of other tests have recorded on this node."""
    shutil.rmtree(cluster.state_dir / FOLDER, ignore_errors=True)


def deploy(cluster: Cluster, **settings: str) -> App:
    return cluster.configure(
        *("serve_warm.app:wrap", "Scorer", None), args={"app": TARGET, **settings}
    ).ready()


def answers(app: App) -> list[Any]:
    return [app.post(json=[[1] * length] * 2).json() for length in LENGTHS]


def test_traffic_a_plan_and_a_build_make_a_start_warm(cluster: Cluster, tmp_path: Path):
    """Nobody declares an input, and no request ever waits for the compiler."""
    store, file = tmp_path.as_uri(), tmp_path / "plan.yaml"
    app = deploy(cluster, artifact=store, on_missing="eager", after_ready="eager")
    expected, report = answers(app), app.report()
    planned = command("plan", "--output", str(file))
    cluster.delete({app.name: app})
    built = command("build", TARGET, "--store", store, "--plan", str(file))
    warm = deploy(cluster, artifact=store, on_missing="fail")
    results, later = answers(warm), warm.report()
    cluster.delete({warm.name: warm})

    assert (report["verdict"], report["after_ready"]["compiles"]) == ("eager", 0)
    assert planned.returncode == 0, planned.stderr
    assert (
        "2 kinds of calls, 100% of 3 recorded calls: 1 replica of "
        "integration.untouched_scorer/Scorer" in planned.stderr
    )
    calls = yaml.safe_load(file.read_text())["calls"]
    assert [(each["tensors"][0].partition(" strides")[0], each["calls"]) for each in calls] == [
        ("Tensor int64[2, 64]", 1),
        ("Tensor int64[2, 16]", 2),
    ]
    assert built.returncode == 0, built.stderr
    assert "2/2 inputs proven" in built.stdout
    assert (later["verdict"], later["covered"]) == ("full_hit", {"expected": 2, "proven": 2})
    learned = later["learned"]
    assert (learned["kinds"], learned["proven"], learned["calls"]) == (2, 2, 3)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert later["warmup"]["compiler_processes"] == later["after_ready"]["compiles"] == 0
    assert [each["level"] for each in later["entries"]] == [2, 2]


def test_a_build_without_a_plan_says_how_to_get_one(tmp_path: Path):
    built = command("build", TARGET, "--store", tmp_path.as_uri())
    assert built.returncode == 1
    assert "Scorer declares no inputs, and no plan is given" in built.stderr
    assert "serve-warm plan -o plan.yaml" in built.stderr


def test_a_plan_of_a_cluster_without_traffic_says_what_to_do(cluster: Cluster, tmp_path: Path):
    app = deploy(cluster, artifact=tmp_path.as_uri())
    planned = command("plan")
    cluster.delete({app.name: app})
    assert planned.returncode == 1
    assert "no call that can be replayed is recorded by" in planned.stderr
    assert "hint: send some traffic first" in planned.stderr


def has_all_calls(file: Path) -> bool:
    return sum(each["calls"] for each in json.loads(file.read_text())["calls"]) == len(LENGTHS)


def test_a_new_replica_knows_what_an_ended_one_recorded(cluster: Cluster, tmp_path: Path):
    """Pods end, with their processes, before anybody makes a plan."""
    settings = {"artifact": tmp_path.as_uri(), "on_missing": "eager", "after_ready": "eager"}
    app = deploy(cluster, **settings)
    answers(app)
    folder = cluster.state_dir / FOLDER
    wait_until("a file has the calls", lambda: any(map(has_all_calls, folder.glob("*.json"))))
    cluster.delete({app.name: app})
    app = deploy(cluster, **settings)
    file = tmp_path / "plan.yaml"
    planned = command("plan", "--forget", "--output", str(file))
    again = command("plan")
    cluster.delete({app.name: app})

    assert planned.returncode == 0, planned.stderr
    assert [each["calls"] for each in yaml.safe_load(file.read_text())["calls"]] == [1, 2]
    assert "1 replica of integration.untouched_scorer/Scorer and 1 that have ended" in (
        planned.stderr
    )
    assert again.returncode == 1, "they were to be forgotten"


@pytest.mark.stress  # over a minute; tests/learn has the parts
def test_recorded_requests_are_replayed_as_requests(cluster: Cluster, tmp_path: Path):
    """With `record: values`, which a person chooses, also at the build."""
    store, file = tmp_path.as_uri(), tmp_path / "plan.yaml"
    settings = {"artifact": store, "on_missing": "eager", "after_ready": "eager"}
    app = deploy(cluster, **settings, record="values")
    expected = answers(app)
    without = command("plan")
    command("plan", "--values", "--output", str(file))
    cluster.delete({app.name: app})
    build = ("build", TARGET, "--store", store, "--plan", str(file))
    refused = command(*build)
    built = command(*build, "--with-values")
    inspected = command("inspect", store, address=False)
    warm = deploy(cluster, artifact=store, on_missing="fail")
    results, report = answers(warm), warm.report()
    cluster.delete({warm.name: warm})

    assert "requests" not in yaml.safe_load(without.stdout)
    requests = yaml.safe_load(file.read_text())["requests"]
    assert [(each["target"], each["calls"]) for each in requests] == [("POST /", 2), ("POST /", 1)]
    assert requests[0]["arguments"] == {"json": [[1] * 3] * 2}
    assert refused.returncode == 1
    assert "which the artifact would contain" in refused.stderr
    assert built.returncode == 0, built.stderr
    assert "contains the values of 2 recorded requests" in inspected.stdout
    learned = report["learned"]
    assert (learned["requests"], learned["requests_proven"], learned["kinds"]) == (2, 2, 0)
    assert (report["verdict"], learned["share"]) == ("full_hit", 1.0)
    assert report["after_ready"]["compiles"] == 0
    for ours, theirs in zip(results, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
