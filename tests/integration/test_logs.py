# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What Serve's own log has of a start that fails."""

from __future__ import annotations

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
