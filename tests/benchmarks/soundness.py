# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A check that entries answer correctly after an application has changed: `make soundness`.

    python tests/benchmarks/soundness.py --json tests/benchmarks/results/soundness.json
        [--only NAME ...] [--resume] [--python build/matrix/torch2.11/bin/python ...]

Each row is one change and one call, at levels 2 and 3 and with torch.compile (`tests/soundness`).
Rows of `peft` and `diffusers` run in their own environment, which the first run installs. The
results of a row:

    right     an entry of the level answered, as eager does on the changed application
    level1    the entry was not used, and the call fell back to level 1
    refused   no entry of the level was made; the reason says why
    wrong     the answer differs from eager's
    raises    the call raises, and eager answers

Progress goes to stderr. The exit status is 1 if a row is wrong, or if a row raises where
torch.compile is right. It is also 1 if a row or the whole run proves nothing, or if no build has a
kind of guard that a row is about.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tooling"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import matrix
import serve_warm
from soundness import runs, table

FOLDER = Path(__file__).resolve().parents[2] / "build" / "soundness"

ENVIRONMENT = matrix.Row(name="adapters", pins={}, tests=(), packages=("peft", "diffusers"))
"""An environment with packages that the project's own environment lacks."""


MOST_REFUSED = 0.25
"""Largest share of rows whose build may have no entry. A row that leaves something behind could
make the builds of all later rows fail, and no answer would be wrong."""


A_WHOLE_RUN = 100
"""Number of rows from which `MOST_REFUSED` counts."""


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each result that must not be in a release."""
    found = []
    refused = sum(row["level2"] == "refused" for row in rows)
    if len(rows) >= A_WHOLE_RUN and refused > MOST_REFUSED * len(rows):
        found.append(f"{refused} of {len(rows)} rows had no entry, so they prove nothing")
    for row in rows:
        if "dishonest" in row:
            found.append(f"proves nothing: {row['dishonest']}")
            continue
        bad = [
            f"{level} {row[level]}"
            for level in ("level2", "level3")
            if row[level] == "wrong" or (row[level] == "raises" and row["stock"] == "right")
        ]
        if bad:
            found.append(f"{row['name']}: {', '.join(bad)} (stock {row['stock']}): {row['reason']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result (default stdout)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="run only groups with this text in their name, or in that of a row",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="Python of another environment: run the rows about guards with its torch too; "
        "make matrix ARGS=--keep leaves such environments",
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    options = parser.parse_args()
    folder = FOLDER / "run"
    if not options.resume:
        shutil.rmtree(folder, ignore_errors=True)
    chosen = {
        name: group
        for name, group in table.GROUPS.items()
        if any(part in text for part in options.only or [""] for text in (name, *names(group)))
    }
    here = {name: group for name, group in chosen.items() if not table.missing(group)}
    elsewhere = {name: group for name, group in chosen.items() if name not in here}
    rows = runs.run(here, folder)
    if elsewhere:
        rows += runs.run(elsewhere, folder / "adapters", python=environment())
    for number, python in enumerate(options.python):
        guards = {name: group for name, group in here.items() if group.kind == "guard"}
        rows += runs.run(guards, folder / f"python{number}", python=python)
    result = {
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "serve_warm": serve_warm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.json:
        options.json.write_text(text)
    else:
        sys.stdout.write(text)
    wrong = failures(rows)
    unseen = table.unseen(runs.guards(folder))
    wrong += [f"proves nothing: no build has a guard of kind {kind}" for kind in unseen]
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    sys.stderr.write(f"{len(rows)} rows, {len(wrong)} of them wrong\n")
    return 1 if wrong else 0


def environment() -> str:
    """Return the Python of the environment with adapters. Install the environment if needed."""
    folder = FOLDER / ENVIRONMENT.name
    why = matrix.install(ENVIRONMENT, folder)
    if why:
        raise SystemExit(f"the environment for {', '.join(ENVIRONMENT.packages)}: {why}")
    return matrix.python(folder)


def names(group: Any) -> list[str]:
    return [row.name for row in group.rows]


if __name__ == "__main__":
    sys.exit(main())
