# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How long a pull takes beside junk statements, and whether it finds the good artifact.

    python tests/benchmarks/faults_junk.py

Prints a row for each shape of junk in `tests/support/junk.py`, and for several names and times. One
folder store has one good artifact and `COUNT` junk statements. The outcome is `found`, `slow` if
the pull used more CPU-seconds than `MOST_CPU_S`, or `hidden` if it did not find the artifact. Only
CPU-seconds are compared, because other processes may be running. `faults_stores.py` runs this
program and keeps its rows.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from artifacts import PLACE, build, fingerprint, new_key, trusting  # noqa: E402
from benchmarks.fault_rows import FaultRow  # noqa: E402
from junk import SHAPES, plant  # noqa: E402
from serve_warm.artifact.node_cache import NodeCache  # noqa: E402
from serve_warm.artifact.pull import pull  # noqa: E402
from serve_warm.artifact.push import push  # noqa: E402
from serve_warm.artifact.statements import statements_of  # noqa: E402
from serve_warm.errors import ServeWarmError  # noqa: E402
from serve_warm.stores.local import LocalStore  # noqa: E402
from serve_warm.trust.envelope import MAX_ENVELOPE_BYTES  # noqa: E402

COUNT = 512
MOST_CPU_S = 5.0
DAY_S = 86400.0

NAMES = {"any name": "{}.dsse.json", "our variant": fingerprint().key + "-s{:08x}.dsse.json"}
WORST = ("nested just below the limit", "wrong signatures of a trusted key", "zeros")
PLACES = [
    *((shape, "our variant", "newer") for shape in SHAPES),
    *((shape, "our variant", "older") for shape in WORST),
    *((shape, "any name", "newer") for shape in WORST),
]


def run() -> Iterator[FaultRow]:
    with tempfile.TemporaryDirectory() as folder:
        for number, (shape, name, when) in enumerate(PLACES):
            took_s, cpu_s, outcome = measure(Path(folder) / str(number), shape, name, when)
            yield {
                "name": f"{COUNT} junk statements of 1 MiB, {name}, {when}: {shape}",
                "kind": "store",
                "tries": 1,
                "outcome": outcome,
                "said": f"{took_s:.1f} s, {cpu_s:.1f} CPU-s",
            }


def measure(folder: Path, shape: str, name: str, when: str) -> tuple[float, float, str]:
    """Return the seconds and CPU-seconds of a pull, and its outcome."""
    folder.mkdir()
    store, key = LocalStore(root=folder / "store"), new_key()
    created = datetime.now(timezone.utc) - timedelta(days=1)
    manifest, stored = build(created=created.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    good = push(store, manifest, stored, [key])
    trust = trusting(key)
    written = time.time() + (3600 if when == "newer" else -30 * DAY_S)
    statements = store.root / statements_of(PLACE)
    data = SHAPES[shape](MAX_ENVELOPE_BYTES, trust.keys[0].id)
    plant(statements, NAMES[name], data, count=COUNT, modified_unix=written)
    began, cpu = time.perf_counter(), time.process_time()
    found = ""
    try:
        with NodeCache.open(folder / "cache") as cache:
            asked = {"place": PLACE, "fingerprint": fingerprint(), "trust": trust}
            with pull(store, cache=cache, **asked) as pulled:
                found = pulled.chosen.key
    except ServeWarmError as error:
        found = f"{type(error).__name__}: {error.message}"[:200]
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    outcome = "found" if cpu_s <= MOST_CPU_S else "slow"
    return took_s, cpu_s, outcome if found == good else f"hidden: {found}"


def main() -> int:
    logging.disable()
    os.nice(5)
    wrong = 0
    for row in run():
        wrong += row["outcome"] != "found"
        sys.stdout.write(f"{row['outcome']}: {row['name']}: {row['said']}\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
