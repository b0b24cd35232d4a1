# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How many models have an entry only because a build traces them again with other orders of sets.

    python tests/benchmarks/bench_set_orders.py --json tests/benchmarks/results/set_orders.json

The order of a set differs in each process. If the trace of a call iterates over a set, a build
could only refuse the call, or show that the graph is the same for other orders
(`precompile.trace.set_orders`). The program traces the first call of each model of
`make architectures`, compiles nothing, and counts the sets. The results of that run say which
models have an entry. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from architectures import processes  # noqa: E402
from served_models.table import ROWS, SECOND  # noqa: E402

RESULTS = TESTS / "benchmarks" / "results"
LIMIT_S = 300.0


def levels() -> dict[str, bool]:
    """Return which models have entries of level 2."""
    rows: list[dict[str, Any]] = []
    for name in ("architectures", "more_architectures"):
        rows += json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {row["name"]: row["level_2"]["served"] for row in rows}


def main() -> None:
    """Trace all models, print a line for each with sets, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    served = levels()
    rows, failed = [], {}
    with (
        tempfile.TemporaryDirectory() as folder,
        processes(Path(folder), "trace") as started,
    ):
        for name in [*ROWS, *SECOND]:
            answer = started["trace"].ask(name, 2, Path(folder), LIMIT_S)
            if "sets" not in answer:
                failed[name] = answer.get("failed", "no answer")
            elif answer["sets"]:
                rows.append({"name": name, "sets": answer["sets"], "has_entry": served[name]})
                sys.stdout.write(f"{name}: {answer['sets']} sets\n")
                sys.stdout.flush()
    result = {
        "models": len(ROWS) + len(SECOND),
        "with_sets": len(rows),
        "with_sets_and_an_entry": sum(row["has_entry"] for row in rows),
        "rows": rows,
        "not_traced": failed,
    }
    asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
