# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What Serve itself writes of a start, where it is told to write JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from conftest import wait_until
from integration import apps as shapes
from serve_warm import node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("shape", [shapes.Unborn, shapes.UnbornLater], ids=["sync", "async"])
def test_a_constructor_that_raises_is_named_in_log_and_state(start, cluster, tmp_path: Path, shape):
    """Serve reports the error only to its controller, and the replica's log would just end."""
    deployment = shape.options(logging_config={"logs_dir": str(tmp_path)})
    app = start(deployment.bind("scorer"))

    def failed() -> list[dict[str, Any]]:
        # Serve ends such a replica at once, so it counts as dead.
        states = [each.state for each in node.look(cluster.state_dir) if each.state is not None]
        return [
            state
            for state in states
            if state["application"] == app.name and state["stage"] == "FAILED"
        ]

    wait_until("a replica has failed", failed)

    text = "".join(path.read_text() for path in tmp_path.glob("replica_*.log"))
    said = "__init__ raised FileNotFoundError: /models/scorer.pt (apps.py:"
    assert failed()[0]["error"].startswith(said)
    assert f"warm-up failed: {said}" in text


@pytest.mark.long
def test_a_start_is_fields_of_serves_own_json_logs(start, tmp_path: Path):
    """Each stage, the verdict and a compile in traffic, of the replica that Serve names beside."""
    logging_config = {"encoding": "JSON", "logs_dir": str(tmp_path)}
    deployment = shapes.Embedder.options(
        logging_config=logging_config, ray_actor_options={"num_cpus": 0}
    )
    app = start(deployment.bind()).ready()
    app.post(json={"values": [1.0] * 5})

    def events() -> list[dict[str, Any]]:
        lines = [
            json.loads(line)
            for path in tmp_path.glob("replica_*.log")
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if "warmup_event" in line]

    wait_until("the compile is written", lambda: events()[-1]["warmup_event"] == "compile")

    found = events()
    assert [(each["warmup_event"], each["warmup_stage"]) for each in found] == [
        *(("stage", stage) for stage in ("pending", "replaying", "proving", "ready")),
        ("verdict", "ready"),
        ("compile", "ready"),
    ]
    assert found[4]["warmup_verdict"] == "off"
    assert found[4]["warmup_inputs_done"] == found[4]["warmup_inputs_expected"] == 2
    assert {each["warmup_application"] for each in found} == {app.name}
    assert {each["deployment"] for each in found} == {f"{app.name}_Embedder"}
    assert len({each["replica"] for each in found}) == 1
