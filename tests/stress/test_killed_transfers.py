# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A push or pull that is killed at any point leaves nothing partial that others can see."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import run_to_end
from s3_servers import Server, moto  # noqa: F401 - a fixture

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("killed_transfers.py")


def campaign(
    operation: str, store: str, node: Path, how: str, count: int, **environment: str
) -> dict[str, Any]:
    tests = PROGRAM.parents[1]
    path = os.pathsep.join(map(str, (tests, tests / "support", tests.parent)))
    ended = run_to_end(
        [sys.executable, str(PROGRAM), operation, store, str(node), how, str(count)],
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.parametrize("operation", ["push", "pull"])
def test_killed_before_any_file_operation(tmp_path: Path, operation: str):
    """After a kill before any file operation, others see nothing or the whole artifact."""
    result = campaign(operation, str(tmp_path / "store"), tmp_path / "node", "steps", 500)

    assert result["violations"] == [], result
    assert (result["killed"] > 5, result["finished"]) == (True, 1)


@pytest.mark.parametrize("operation", ["push", "pull"])
def test_killed_at_random_points_with_s3(
    tmp_path: Path,
    moto: Server,  # noqa: F811
    operation: str,
):
    """Fifty random points of a push and of a pull, with an S3 server as the store."""
    store = f"s3://{moto.new_bucket()}/artifacts"

    result = campaign(operation, store, tmp_path / "node", "random", 50, **moto.environment())

    assert result["violations"] == [], result
    assert result["killed"] == 50
