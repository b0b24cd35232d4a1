# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On real Ray: an application that names no serve_warm, deployed by `serve_warm.app:wrap`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import requests

if TYPE_CHECKING:
    from conftest import App, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

SCALE = 2.0
RIGHT = {
    "lifespan": "started",
    "plain": [6.0] * 3,
    "function": 9.0,
    "generator": [3.0] * 3,
    "strict": [10.0] * 3,
    "named": [7.0] * 3,
}


@pytest.fixture(scope="module")
def wrapped(cluster: Cluster) -> Iterator[App]:
    app = cluster.configure(
        "serve_warm.app:wrap",
        "Api",
        None,
        args={
            "app": "integration.untouched:build",
            "args": {"scale": SCALE},
            "artifact": str(cluster.state_dir.parent / "nothing-was-built"),
            "compile": {"Named": ["pipe.unet"]},
        },
        ray_actor_options={"num_cpus": 0},
    )
    yield app.ready()
    cluster.delete({app.name: app})


def test_all_shapes_of_deployments_answer_as_before(wrapped: App):
    for _ in range(2):
        answer = requests.get(wrapped.url, params={"size": 3}, timeout=100)
        assert answer.json() == RIGHT


@pytest.fixture(scope="module")
def reports(wrapped: App) -> dict[str, Any]:
    requests.get(wrapped.url, params={"size": 3}, timeout=100)
    found: dict[str, Any] = wrapped.call("reports")
    return found


@pytest.mark.parametrize("name", sorted(RIGHT.keys() - {"lifespan"}))
def test_a_replica_says_that_nothing_is_declared(name: str, reports: dict[str, Any]):
    report = reports[name]
    assert (report["stage"], report["covered"]["expected"]) == ("READY", 0)
    assert any("no inputs are declared" in each for each in report["warnings"])


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        ("plain", ["integration.untouched.Layer", "integration.untouched.triple"]),
        ("function", ["integration.untouched.triple"]),
        ("strict", ["integration.untouched.Layer"]),
        ("named", []),
    ],
)
def test_the_report_lists_what_the_application_compiled(
    name: str, compiled: list[str], reports: dict[str, Any]
):
    listed = reports[name]["compiled_by_app"]
    assert [each for each in listed if each["left"] or each["late"]] == []
    assert {each["name"] for each in listed} >= set(compiled)


@pytest.mark.parametrize("name", ["plain", "function", "strict", "named"])
@pytest.mark.usefixtures("reports")
def test_calls_are_recorded(name: str, wrapped: App):
    found = wrapped.call("recorded")[name]
    assert found["application"] == "integration.untouched"
    assert {each["tensors"][0] for each in found["calls"]} == {
        "Tensor float32[3] strides [1] on cpu"
    }
    assert found["not_recorded"] == {}
