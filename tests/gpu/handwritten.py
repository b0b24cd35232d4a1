# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel as users write them, tuned over three configurations; prints what it took.

    python handwritten.py CACHE_DIRECTORY

Decorated before anything of serve_warm is imported, as in a module of the user's.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["count"]
)
@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way to name them
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    tl.store(out + places, tl.load(x + places, there) + tl.load(y + places, there), there)


def main(cache: Path) -> dict[str, object]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from serve_warm import compiler
    from serve_warm.config import point_torch_caches_at

    point_torch_caches_at(cache)
    watch = compiler.watch()
    watch.count_kernels_in(cache)
    x, y = torch.rand(2, 1000, device="cuda")
    spans = []
    for _ in range(2):
        before = watch.counts()
        out = torch.empty_like(x)
        add[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000)
        spans.append(dataclasses.asdict(watch.counts() - before))
    return {
        "error": (out - (x + y)).abs().max().item(),
        "spans": spans,
        "events": [str(event) for event in watch.events()],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
