# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Limits for the comparison of starts, and the reasons for the limits that are missed.

The functions take documents that bench_startup.py writes. docs/benchmarks.md and the tests of the
committed result both use this module, so they always agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKLOADS = ("minilm", "resnet152", "decoder24")
"""Workloads that must meet `OVERHEAD` and `READY`. The others must only be faster than the
alternatives."""

OVERHEAD = {
    1: {"cold": 1 / 4, "torch_bytes": 1 / 2},
    2: {"cold": 1 / 40, "torch_bytes": 1 / 20},
    3: {"cold": 1 / 60, "torch_bytes": 1 / 30},
}
"""Largest allowed ratio of a level's `overhead_s` to another system's, in the same turn."""

READY = {2: 1.25}
"""Largest allowed ratio of a level's `ready_s` to its floor."""

FASTER = (2, 3)
"""Levels that must be faster than every alternative."""

ALTERNATIVES = (
    *("cold", "torch_bytes", "copied_dir", "redis", "caching_precompile"),
    "aotinductor",
)
"""Systems that a user could run instead to serve a compiled model."""

IMPORT = (
    "the part of the import of torch's compiler that follows the construction of the model counts "
    "as overhead. Without this part of the import, the overhead is below the limit"
)

MISSED: Mapping[tuple[str, str], str] = {
    ("minilm", "level 2, overhead relative to cold"): IMPORT,
    ("resnet152", "level 2, overhead relative to cold"): IMPORT,
    ("decoder24", "level 2, overhead relative to cold"): IMPORT,
    ("decoder24", "level 2, overhead relative to torch_bytes"): IMPORT,
}
"""The reason for each check that does not hold, by workload and claim. A test fails if a check in
this table holds, or if a check that is not in this table does not hold."""


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
        "64-layer recipe, cold start: compiling by region relative to compiling the whole model",
        *(_REGIONS, ("recipe64_gpu", "cold", None), "past_import_s", 1 / 5),
    ),
    (
        "64-layer recipe, compiled by region, level 2 relative to cold",
        *(("recipe64_regions_gpu", "serve_warm", 2), _REGIONS, "past_import_s", 1 / 3),
    ),
)
"""The claim, the two rows that it compares, the clock, and the largest allowed ratio of the first
row to the second. For models compiled by region, the clock leaves out the import of the
compiler."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A claim about one workload: `value` must be at most `limit`."""

    workload: str
    claim: str
    """For example `level 2, overhead relative to cold`, or `level 2, sooner ready than cold`."""
    value: float
    limit: float
    past_import: float | None = None
    """The value without the compiler's import on both sides. None if the level's overhead includes
    no import."""

    @property
    def key(self) -> tuple[str, str]:
        return self.workload, self.claim

    @property
    def held(self) -> bool:
        return self.value <= self.limit


def checks(found: Mapping[str, Any]) -> Sequence[Check]:
    """Return the claims about a document. A claim is left out if one of its sides failed."""
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
            claim=f"level {level}, time to READY divided by its floor",
            value=row["ratios"]["ready_to_floor"],
            limit=READY[level],
        )


def _faster(
    workload: str, level: int, row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Iterator[Check]:
    for other in others:
        # An AOTInductor package contains the weights, so its overhead includes loading them.
        # serve_warm's overhead does not include building the model.
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
    """Return the median of the ratios within a turn, or `None` if no turn has both rows."""
    theirs = {run["turn"]: run[clock] for run in other["runs"]}
    ratios = [
        run[clock] / theirs[run["turn"]] for run in row["runs"] if theirs.get(run["turn"], 0.0) > 0
    ]
    return statistics.median(ratios) if ratios else None
