# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a warm call of a small model costs: eager, a hit of torch.compile, and serve_warm.compile.

    python tests/benchmarks/bench_call.py [--rounds 15] [--calls 5000]

The model has two small layers, so that what is measured is how the call gets to the kernels. All
sides are measured in one process, round by round, in turns and from both ends, so that whatever
else the machine does meets all. torch.compile is without the watch, as it is without us;
serve_warm.compile is with it, as in a replica. JSON goes to stdout, in microseconds per call.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch._dynamo import eval_frame

import serve_warm
from benchmarks import workloads
from serve_warm import compiler, precompile

LIMIT = 1.0
"""A call through serve_warm.compile may cost so many times a hit of torch.compile."""


def us_per_call(function: Callable[[Any], Any], x: torch.Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - start) / calls * 1e6


def with_entries(model: torch.nn.Module, x: torch.Tensor, folder: Path) -> Any:
    """Return the model through serve_warm.compile, its entry made, written and loaded."""
    compiled = serve_warm.compile(model, dynamic=False)
    with precompile.building() as library:
        compiled(x)
    for name, data in library.to_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    why = precompile.load(folder)
    if why:
        raise RuntimeError(why)
    return compiled


def measure(rounds: int, calls: int, folder: Path) -> dict[str, Any]:
    stock = eval_frame._callback_from_stance
    seen = compiler.watch()
    hooked = eval_frame._callback_from_stance
    assert hooked is not stock, "the watch was there before: start a fresh process"

    torch.set_num_threads(1)
    workload = workloads.ALL["tiny"]
    # Of one structure and two objects: what is compiled for one is not found by the other.
    eager, other = workload.build(workloads.SEED), workload.build(workloads.SEED)
    [x] = workload.inputs()[-1].args
    with torch.inference_mode():
        ours = with_entries(other, x, folder)
        theirs = torch.compile(eager, dynamic=False)
        sides = [
            ("eager", eager, stock),
            ("torch_compile", theirs, stock),
            ("serve_warm", ours, hooked),
        ]
        us: dict[str, list[float]] = {name: [] for name, *_ in sides}
        for _, function, _ in sides:
            assert (function(x) - eager(x)).abs().max() < 1e-5
            us_per_call(function, x, 3)
        before = seen.counts()
        for number in range(rounds + 1):
            for name, function, hook in sides if number % 2 else reversed(sides):
                eval_frame._callback_from_stance = hook
                took = us_per_call(function, x, calls)
                if number:  # the first round warms caches and clocks
                    us[name].append(took)
        eval_frame._callback_from_stance = hooked
    assert (seen.counts() - before).quiet, "something compiled while it was measured"
    assert {use.level for use in precompile.uses()} == {2}, precompile.uses()
    ratios = [o / t for o, t in zip(us["serve_warm"], us["torch_compile"], strict=True)]
    return {
        "benchmark": "a warm call of a two-layer model",
        "us": {name: round(statistics.median(values), 2) for name, values in us.items()},
        "serve_warm_to_torch_compile": round(statistics.median(ratios), 3),
        "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        "limit": LIMIT,
        "rounds": rounds,
        "calls_per_round": calls,
        "versions": {
            "serve_warm": serve_warm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": platform.machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--calls", type=int, default=5000, help="calls a round (default 5000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/inductor"
        result = measure(options.rounds, options.calls, Path(scratch) / "entries")
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if result["serve_warm_to_torch_compile"] < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
