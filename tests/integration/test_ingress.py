# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A wrapped application with Ray's direct ingress and with HAProxy records its requests, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from components import require
from processes import run_to_end

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.stress  # a cluster of its own for each
@pytest.mark.parametrize("mode", ["direct", "haproxy"])
def test_requests_that_pass_no_proxy_of_ray_are_recorded(mode: str):
    if mode == "haproxy":
        require("haproxy", "apt-get install haproxy")
    command = [sys.executable, "tests/integration/ingress_process.py", mode]
    ended = run_to_end(command, cwd=ROOT, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "statuses": [200, 200, 200],
        "requests": [["POST /", 3]],
        "calls": 3,
        "haproxy": mode == "haproxy",
    }
