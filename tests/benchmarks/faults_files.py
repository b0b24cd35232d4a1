# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What happens if a pipe, socket, device or folder is in the place of a file of serve_warm.

    python tests/benchmarks/faults_files.py

Runs the table of `tests/test_regular_files.py`: a row for each file, and a try for each kind. The
outcome is `named` if each try gave the expected error, `hung` if one took longer than `HUNG_S`,
else `wrong`. `faults_stores.py` runs this program and keeps its rows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import TimeoutError as HungError
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from benchmarks.fault_rows import FaultRow  # noqa: E402 - found through the line above
from serve_warm._daemon_threads import begin  # noqa: E402
from test_regular_files import FILES, KINDS  # noqa: E402

HUNG_S = 20.0


def run() -> Iterator[FaultRow]:
    for name, check in FILES.items():
        said: dict[str, str] = {}
        for put in KINDS:
            kind = put.__name__.removeprefix("put_")
            with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
                # As in tests: private folders are below it.
                patch.setenv("TMPDIR", folder)
                patch.setattr(tempfile, "tempdir", None)
                asked = begin(lambda: check(Path(folder), put, patch), name="asked")  # noqa: B023
                try:
                    asked.result(HUNG_S)
                except HungError:
                    said[kind] = "hung"
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is a row
                    said[kind] = f"wrong: {error}"[:300]
        outcomes = {text.partition(":")[0] for text in said.values()}
        yield {
            "name": f"not a regular file: {name}",
            "kind": "store",
            "tries": len(KINDS),
            "outcome": next(iter(sorted(outcomes)), "named"),
            "said": "; ".join(f"{kind}: {text}" for kind, text in said.items()),
        }


def main() -> int:
    rows = list(run())
    sys.stdout.writelines(f"{row['outcome']}: {row['name']}: {row['said']}\n" for row in rows)
    return 1 if any(row["outcome"] != "named" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
