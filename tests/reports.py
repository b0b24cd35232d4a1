# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A report in which every field has a value of its own."""

from __future__ import annotations

from serve_warm.report import (
    ArtifactUse,
    CompileEvent,
    Counts,
    Coverage,
    EntryUse,
    InputResult,
    Report,
    Stage,
    StageTime,
    Verdict,
)

FULL = Report(
    application="app",
    deployment="Embedder",
    replica="Embedder#x1",
    stage=Stage.READY,
    verdict=Verdict.PARTIAL,
    degraded=("uncovered: 1 of 2 inputs",),
    covered=Coverage(expected=2, proven=1),
    stages=(
        StageTime(stage=Stage.PULLING, seconds=0.25, hidden_s=1.5),
        StageTime(stage=Stage.REPLAYING, seconds=2.0),
        StageTime(stage=Stage.PULLING, seconds=0.5),
    ),
    inputs=(
        InputResult(name="embed batch=8", proven=True, first_s=1.5, steady_s=0.1, compiles=2),
        InputResult(
            name="embed batch=1",
            proven=False,
            first_s=0.5,
            steady_s=0.05,
            compiles=1,
            note="would compile: size mismatch",
        ),
    ),
    passes=3,
    inputs_done=2,
    to_proof_s=3.5,
    overhead_s=3.0,
    cpu_s=9.0,
    warmup=Counts(
        compiles=3,
        fx_hits=6,
        fx_misses=1,
        aot_bypasses=2,
        compiler_processes=3,
        compiler_s=1.25,
        compile_s=2.5,
    ),
    after_ready=Counts(compiles=1, recompiles=1, captures=2, eager_falls=4, forbidden=5),
    events=(
        CompileEvent(
            kind="recompile",
            function="forward (model.py:7)",
            signature="x=float32[3]",
            reason="size mismatch",
            seconds=0.5,
            thread=42,
            at_unix=1795172519.5,
        ),
    ),
    entries=(
        EntryUse(callable="app.Net", call="(t0) with Tensor float32[8, 16]", level=2, calls=1),
        EntryUse(callable="app.Net", call="(t0) with Tensor float32[9, 16]", level=1, calls=3),
    ),
    artifact=ArtifactUse(
        store="file:///srv/artifacts",
        source="file",
        statement="statements/Embedder/147378e2d3f56607.dsse.json",
        created="2026-11-20T10:00:00.000000Z",
        stored_bytes=100,
        raw_bytes=900,
        reason="2 files of 3",
        trace=("statements/x: accepted",),
    ),
    threads=(41, 42),
    warnings=("compiled calls were made from 2 threads",),
    error="none",
    versions={"serve_warm": "0.1.0", "ray": "2.60.0", "torch": "2.13.0", "threads": "1"},
    pid=4711,
    started_unix=1795172500.0,
    created_boot_s=100.0,
    elapsed_s=5.25,
    ready_unix=1795172503.5,
    deadline_s=1800.0,
    artifact_configured=True,
    image_created_unix=1795000000.0,
)
