# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of CUDA graphs, by the order in which a model's sizes are captured.

    python tests/gpu/capture_order.py

Each order runs in its own process. `in passes` calls all sizes in each pass, as a warm-up does. `in
a row` calls one size until its graph is launched, and then the next size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SIZES = (8192, 4096, 2048, 1024, 512, 256)
"""Rows of the inputs, which are 1024 wide. The hidden layers are eight times as wide."""
CALLS = 3
"""Calls of each size: one before the capture, the capture, and a launch of the graph."""


def measure(sizes: tuple[int, ...], how: str) -> dict[str, object]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch
    from torch import nn

    from serve_warm.compiler import cuda_graphs
    from serve_warm.compiler.watch import watch_process

    watch = watch_process()
    torch.manual_seed(0)
    wide = 8192
    layers = (
        nn.Linear(1024, wide),
        nn.GELU(),
        nn.Linear(wide, wide),
        nn.GELU(),
        nn.Linear(wide, 1024),
    )
    model = torch.compile(nn.Sequential(*layers).cuda(), mode="reduce-overhead", dynamic=False)
    inputs = [torch.rand(size, 1024, device="cuda") for size in sizes]
    calls = [x for x in inputs for _ in range(CALLS)] if how == "in a row" else [*inputs] * CALLS
    with torch.inference_mode():
        for x in calls:
            model(x)
    torch.cuda.synchronize()
    return {"captures": watch.counts().captures, "bytes": sum(cuda_graphs.pool_bytes().values())}


def main() -> None:
    if len(sys.argv) > 1:
        sizes, how = json.loads(sys.argv[1])
        sys.stdout.write(json.dumps(measure(tuple(sizes), how)) + "\n")
        return
    for order, sizes in (("largest first", SIZES), ("smallest first", SIZES[::-1])):
        for how in ("in passes", "in a row"):
            ended = subprocess.run(
                [sys.executable, __file__, json.dumps([sizes, how])],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            said = json.loads(ended.stdout.splitlines()[-1])
            megabytes = said["bytes"] / 1e6
            sys.stdout.write(
                f"{order}, {how}: {said['captures']} captures hold {megabytes:.0f} MB\n"
            )


if __name__ == "__main__":
    main()
