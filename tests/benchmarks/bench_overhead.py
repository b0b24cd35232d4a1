# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cost that the watch adds to a warm call of a compiled function.

    python tests/benchmarks/bench_overhead.py [--rounds 15] [--calls 20000]

One process measures calls with the watch's hook and without it. Both sides run in each round, so
that other work on the machine affects both. The function does almost nothing, so the difference is
the cost of the hook. The JSON on stdout has microseconds per call.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time

import torch
from torch._dynamo import eval_frame

from serve_warm import __version__
from serve_warm.compiler.watch import watch_process

LIMIT_US = 2.0
"""Limit for the cost that the watch adds to a warm call."""


def one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def us_per_call(function, x: torch.Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - start) / calls * 1e6


def measure(rounds: int, calls: int) -> dict[str, object]:
    stock = eval_frame._callback_from_stance
    seen = watch_process()
    hooked = eval_frame._callback_from_stance
    assert hooked is not stock, "the watch is already installed: start a fresh process"

    torch.set_num_threads(1)
    function = torch.compile(one, backend="eager", dynamic=False)
    x = torch.ones(8)
    us: dict[str, list[float]] = {"stock": [], "watched": []}
    with torch.inference_mode():
        for _ in range(3):
            function(x)
        before = seen.counts()
        for number in range(rounds + 1):
            sides = [("stock", stock), ("watched", hooked)]
            for name, hook in sides if number % 2 else reversed(sides):
                eval_frame._callback_from_stance = hook
                took = us_per_call(function, x, calls)
                if number:  # the first round warms caches and clocks
                    us[name].append(took)
        eval_frame._callback_from_stance = hooked
    assert (seen.counts() - before).quiet, "something compiled during the measurement"
    added = [w - s for s, w in zip(us["stock"], us["watched"], strict=True)]
    return {
        "benchmark": "overhead of the watch per warm call",
        "stock_us": round(statistics.median(us["stock"]), 3),
        "watched_us": round(statistics.median(us["watched"]), 3),
        "added_us": round(statistics.median(added), 3),
        "added_us_quartiles": [round(q, 3) for q in statistics.quantiles(added, n=4)],
        "limit_us": LIMIT_US,
        "rounds": rounds,
        "calls_per_round": calls,
        "versions": {
            "serve_warm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": platform.machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--calls", type=int, default=20_000, help="calls per round (default 20000)")
    options = parser.parse_args()
    result = measure(options.rounds, options.calls)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if result["added_us"] < LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
