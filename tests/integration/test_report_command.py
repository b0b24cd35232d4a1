# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm report --address` as a process beside a running cluster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import ray

from integration import apps as shapes
from processes import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import App

pytestmark = [pytest.mark.ray, pytest.mark.long]


def test_the_replicas_of_a_cluster_tell_their_starts(start: Callable[..., App], tmp_path: Path):
    """The output has each deployment with the mixin, including one behind another, and no other."""
    app = start(shapes.Caller.bind(shapes.Handlers.bind(0.5, ids=()))).ready()
    address = ray.get_runtime_context().gcs_address

    command = [sys.executable, "-m", "serve_warm.cli", "report", "--address", address]
    ran = run_to_end([*command, "--json", tmp_path / "starts.json"], timeout=200)

    assert ran.returncode == 0, ran.stderr
    starts = [
        one
        for one in json.loads((tmp_path / "starts.json").read_text())["starts"]
        if one["application"] == app.name
    ]
    assert sorted(one["deployment"] for one in starts) == ["Caller", "Handlers"]
    for one in starts:
        [line] = [text for text in ran.stdout.splitlines() if one["replica"] in text]
        assert " ready " in f" {line.lower()} "
