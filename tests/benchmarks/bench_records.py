# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of a replica's imports of serve_warm, with records and with plain dataclasses.

python tests/benchmarks/bench_records.py > tests/benchmarks/results/records.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from serve_warm.builder.bench import machine

TURNS = 9

PROGRAM = """
import dataclasses, sys, time
import torch
from ray import serve
from serve_warm import _records
if sys.argv[1] == "dataclass":
    _records.record = dataclasses.dataclass
began = time.process_time()
import serve_warm.replica.serve.hook, serve_warm.replica.start.stages
import serve_warm.precompile.compiled
import serve_warm.precompile.entries.table, serve_warm.precompile.parity.checks
print(time.process_time() - began)
"""


def main() -> None:
    found: dict[str, list[float]] = {"record": [], "dataclass": []}
    for turn in range(TURNS + 1):
        for kind, seconds in found.items():
            command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            if turn:  # the first turn writes bytecode
                seconds.append(round(float(done.stdout.split()[-1]), 4))
    pairs = zip(found["dataclass"], found["record"], strict=True)
    saved_s = round(statistics.median(plain - record for plain, record in pairs), 4)
    result = {"machine": machine(), "cpu_s": found, "saved_s": saved_s}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
