# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a comparison of starts has to show, and what of it does not hold, with the reasons.

It works on documents as bench_startup.py writes them; docs/benchmarks.md and the tests of the
committed result say the same because both ask here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKLOADS = ("minilm", "resnet152", "decoder24")
"""Held to `OVERHEAD` and `READY`; the others only to being faster than what there is instead."""

OVERHEAD = {
    1: {"cold": 1 / 4, "torch_bytes": 1 / 2},
    2: {"cold": 1 / 40, "torch_bytes": 1 / 20},
    3: {"cold": 1 / 60, "torch_bytes": 1 / 30},
}
"""Largest part that a level's `overhead_s` may be of another system's, in the same turn."""

READY = {2: 1.25}
"""Largest multiple of its floor that a level's `ready_s` may be."""

FASTER = (2, 3)
"""Levels that are to be faster than every alternative."""

ALTERNATIVES = (
    *("cold", "torch_bytes", "copied_dir", "redis", "caching_precompile"),
    "aotinductor",
)
"""What a user could run instead to serve a compiled model."""

IMPORT = (
    "the model is built before the import of torch's compiler ends, so the rest of the import "
    "counts as overhead; without this import, the limit holds"
)

MISSED: Mapping[tuple[str, str], str] = {
    ("decoder24", "level 2, overhead relative to cold"): IMPORT,
    ("decoder24", "level 2, overhead relative to torch_bytes"): IMPORT,
}
"""Workload and claim of each check that does not hold, with its reason. An entry that has come to
hold fails a test, as a check that is missed without one does."""


_LEVEL_2 = ("resnet152_gpu", "serve_warm", 2)
_REGIONS = ("recipe64_regions_gpu", "cold", None)

ON_A_GPU = (
    (
        "ResNet-152, level 2 relative to cold",
        *(_LEVEL_2, ("resnet152_gpu", "cold", None), "to_proof_s", 1 / 8),
    ),
    (
        "ResNet-152, level 2 relative to torch's bytes",
        *(_LEVEL_2, ("resnet152_gpu", "torch_bytes", None), "to_proof_s", 1 / 4),
    ),
    (
        "64-layer recipe, cold start by regions, relative to a cold start of the whole model",
        *(_REGIONS, ("recipe64_gpu", "cold", None), "past_import_s", 1 / 5),
    ),
    (
        "64-layer recipe by regions, level 2 relative to cold",
        *(("recipe64_regions_gpu", "serve_warm", 2), _REGIONS, "past_import_s", 1 / 3),
    ),
)
"""Claim, the two rows that it compares, the clock, and the largest part that the first may be.
What is compiled by regions is held against a compile, without the compiler's import on any side."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A claim about one workload: `value` is to be `limit` at most."""

    workload: str
    claim: str
    """For example `level 2, overhead relative to cold`, or `level 2, sooner ready than cold`."""
    value: float
    limit: float
    past_import: float | None = None
    """The value without the compiler's import on both sides, where some of it is left."""

    @property
    def key(self) -> tuple[str, str]:
        return self.workload, self.claim

    @property
    def held(self) -> bool:
        return self.value <= self.limit


def checks(found: Mapping[str, Any]) -> Sequence[Check]:
    """Return the claims about the rows of a document; empty if one side has failed."""
    rows = {(row["workload"], row["system"], row["level"]): row for row in found["rows"]}
    result = []
    for workload in dict.fromkeys(row["workload"] for row in found["rows"]):
        ours = {
            level: row
            for level in OVERHEAD
            if (row := rows.get((workload, "serve_warm", level))) and row["ready_s"] is not None
        }
        for level, row in ours.items():
            result += _of_level(workload, level, row)
            others = [rows.get((workload, name, None)) for name in ALTERNATIVES]
            if level in FASTER:
                result += _faster(workload, level, row, [other for other in others if other])
    return result


def checks_on_a_gpu(found: Mapping[str, Any]) -> Sequence[Check]:
    """Return the claims of `ON_A_GPU` for which the document has both rows."""
    rows = {(row["workload"], row["system"], row["level"]): row for row in found["rows"]}
    return [
        Check(
            workload=one[0], claim=claim, value=rows[one][clock] / rows[other][clock], limit=limit
        )
        for claim, one, other, clock, limit in ON_A_GPU
        if one in rows and other in rows
    ]


def _of_level(workload: str, level: int, row: Mapping[str, Any]) -> Iterator[Check]:
    if workload not in WORKLOADS:
        return
    for other, limit in OVERHEAD[level].items():
        if f"overhead_to_{other}" in row["ratios"]:
            yield Check(
                workload=workload,
                claim=f"level {level}, overhead relative to {other}",
                value=row["ratios"][f"overhead_to_{other}"],
                past_import=(
                    row["ratios"][f"past_import_to_{other}"] if row["import_left_s"] else None
                ),
                limit=limit,
            )
    if level in READY:
        yield Check(
            workload=workload,
            claim=f"level {level}, ready relative to its floor",
            value=row["ratios"]["ready_to_floor"],
            limit=READY[level],
        )


def _faster(
    workload: str, level: int, row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Iterator[Check]:
    for other in others:
        # A package of AOTInductor holds the weights: loading them is in its overhead, and building
        # the model is not in ours.
        claims = {"sooner ready": "ready_s", "less overhead": "overhead_s"}
        if other["system"] == "aotinductor":
            del claims["less overhead"]
        for claim, clock in claims.items():
            ratio = paired(row, other, clock)
            if ratio is not None and other["ready_s"] is not None:
                yield Check(
                    workload=workload,
                    claim=f"level {level}, {claim} than {other['system']}",
                    value=ratio,
                    limit=1.0,
                )


def paired(row: Mapping[str, Any], other: Mapping[str, Any], clock: str) -> float | None:
    """Return the median of the ratios within a turn, `None` without a turn of both."""
    theirs = {run["turn"]: run[clock] for run in other["runs"]}
    ratios = [
        run[clock] / theirs[run["turn"]] for run in row["runs"] if theirs.get(run["turn"], 0.0) > 0
    ]
    return statistics.median(ratios) if ratios else None
