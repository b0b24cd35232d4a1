# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The limits for a comparison of starts, and the text about it, are taken from its rows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bench_startup, figures, limits, start_process
from benchmarks.bench_startup import Entrant, compared, row_of

BEFORE_S = {"imports": 1.5, "weights": 0.5}
COMPUTE_S = 0.5


def start_of(*, overhead_s: float, import_left_s: float = 0.5, turn: int = 1) -> dict[str, Any]:
    to_proof_s = overhead_s + COMPUTE_S
    first_s = to_proof_s - import_left_s - 0.2
    stages = {**BEFORE_S, "compiler": import_left_s, "load": 0.1, "first_pass": first_s}
    stages |= {"quiet": 0.0, "proof": 0.1}
    assert tuple(stages) == start_process.STAGES
    return {
        "turn": turn,
        "to_proof_s": to_proof_s,
        "overhead_s": overhead_s,
        "import_left_s": import_left_s,
        "past_import_s": overhead_s - import_left_s,
        "cpu_s": to_proof_s + 2,
        "ready_s": to_proof_s + 2,
        "floor_s": 4.0,
        "compiler_processes": 0,
        "artifact_bytes": 100,
        "steady_p50_s": 0.001,
        "steady_largest_p50_s": 0.002,
        "peak_rss_bytes": 10**9,
        "passes": 2,
        "compute_s": COMPUTE_S,
        "stages": stages,
        "cpu_stages": stages,
        "max_error": 1e-6,
        "note": "",
    }


OVERHEADS = {
    Entrant(system="eager"): 0.01,
    Entrant(system="cold"): 40.0,
    Entrant(system="torch_bytes"): 20.0,
    Entrant(system="aotinductor"): 1.0,
    Entrant(system="serve_warm", level=1): 5.0,
    Entrant(system="serve_warm", level=2): 1.2,
    Entrant(system="serve_warm", level=3): 0.6,
}


def a_document(workload: str = "minilm", **failures: str) -> dict[str, Any]:
    """Return a comparison in which level 2 misses its limit only because of its import."""
    rows = [
        row_of(
            workload,
            entrant,
            [start_of(overhead_s=overhead_s), start_of(overhead_s=overhead_s, turn=2)],
            failure=failures.get(entrant.system, ""),
        )
        for entrant, overhead_s in OVERHEADS.items()
    ]
    return bench_startup.document(
        compared(rows), repeats=2, node="fresh", command="python bench.py", took_s=60.0
    )


def by_claim(found: dict[str, Any]) -> dict[str, limits.Check]:
    return {check.claim: check for check in limits.checks(found)}


def test_each_level_is_held_to_its_own_limits():
    """Overhead is compared with cold and torch's bytes. At level 2, readiness has a limit too."""
    found = by_claim(a_document())

    assert found["level 1, overhead relative to cold"].value == pytest.approx(5 / 40)
    assert found["level 1, overhead relative to cold"].held
    assert found["level 2, overhead relative to cold"].value == pytest.approx(1.2 / 40)
    assert not found["level 2, overhead relative to cold"].held
    assert found["level 3, overhead relative to torch_bytes"].held
    assert found["level 2, time to READY divided by its floor"].value == pytest.approx(3.7 / 4)
    assert "level 1, time to READY divided by its floor" not in found


def test_the_import_that_was_left_is_told_apart():
    """The import is subtracted on both sides."""
    check = by_claim(a_document())["level 2, overhead relative to cold"]

    assert check.past_import == pytest.approx(0.7 / 39.5)


def test_who_is_faster_is_asked_of_both_upper_levels():
    """Overhead and readiness are compared. For AOTInductor, only readiness is comparable."""
    found = by_claim(a_document())

    assert found["level 2, less overhead than torch_bytes"].limit == 1.0
    assert {claim for claim in found if "aotinductor" in claim} == {
        *("level 2, sooner ready than aotinductor", "level 3, sooner ready than aotinductor")
    }
    assert not found["level 2, sooner ready than aotinductor"].held
    assert found["level 3, sooner ready than aotinductor"].held
    assert not any("eager" in claim for claim in found)


def test_nothing_is_asked_against_a_system_that_failed():
    """A failed system has no figures to compare with."""
    found = by_claim(a_document(aotinductor="RuntimeError in load: no"))

    assert not any("aotinductor" in claim for claim in found)


def test_other_workloads_are_held_to_being_faster_alone():
    """The other limits are only for real models."""
    found = by_claim(a_document("recipe64"))

    assert {check.limit for check in found.values()} == {1.0}


def test_the_text_names_what_misses_and_what_fails():
    """A missed limit is named with its reason, and a failed system with its message."""
    text = figures.compared(a_document("decoder24", torch_bytes="AssertionError in load: no"))

    assert "| level 2, overhead relative to cold | 1/40 | 1/33.3 | 1/56.4 | **missed** |" in text
    assert f"1/33.3. {limits.IMPORT[:1].upper()}{limits.IMPORT[1:]}." in text
    assert "- torch_bytes fails: `AssertionError in load: no`" in text


def test_whoever_is_best_is_named_with_the_reason():
    """If serve_warm is not the best, the text says why. Eager execution is compared separately."""
    found = a_document()
    [first] = [row for row in found["rows"] if row["system"] == "aotinductor"]
    first["artifact_bytes"] = first["peak_rss_bytes"] = 1

    text = figures.compared(found)

    assert "| shortest time to ready | serve_warm level 3, 3.1 s |" in text
    assert "| least memory | aotinductor, 0 MB |" in text
    assert "- aotinductor (smallest artifact; least memory): aotinductor builds no model" in text
    assert (
        "- MiniLM (6 inputs): eager is ready after 2.5 s, and serve_warm level 3 after 3.1 s."
        in text
    )


def test_the_first_table_of_the_benchmarks_has_all_levels():
    """It has the overhead of each level, and of the alternatives."""
    text = figures.side_by_side(a_document())

    assert "| MiniLM | 40 | 20 | 5.00 | 1.20 | 0.70 | 0.60 |" in text
