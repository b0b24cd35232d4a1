# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What `serve-warm bench` makes of the records of its runs."""

from __future__ import annotations

from typing import Any

import jsonschema

from serve_warm.builder import bench
from serve_warm.report import Stage

RUN: dict[str, Any] = {
    "to_proof_s": 2.0,
    "ready_s": 3.0,
    "overhead_s": 1.0,
    "cpu_s": 4.0,
    "first_request_s": 0.1,
    "steady_p50_s": 0.05,
    "compiles": 0,
    "compiler_processes": 0,
    "compiles_after_ready": 0,
    "covered": {"expected": 2, "proven": 2},
}


def test_parity_is_a_row_and_a_figure_of_its_own():
    """The cost of the checks against eager is separate from the proof."""
    cold = {**RUN, "mode": "cold", "verdict": "off", "parity_s": 0.0, "stages": {"proving": 0.5}}
    stages = {"proving": 0.5, "parity": 0.25}
    warm = {**RUN, "mode": "warm", "verdict": "full_hit", "parity_s": 0.25, "stages": stages}
    medians = {run["mode"]: bench._median([run]) for run in (cold, warm)}
    header, rows = bench.table({"runs": [cold, warm], "medians": medians})
    run_schema = bench.schema()["properties"]["runs"]["items"]
    assert header[:3] == ["", "cold", "serve_warm"]
    assert [f"stage {Stage.PARITY.value.lower()}", "–", "0.25 s", ""] in rows
    assert ["  compared with eager", "0 %", "12 %", ""] in rows
    assert medians["warm"]["parity_s"] == 0.25
    for run in (cold, warm):
        jsonschema.validate(run, run_schema)
