# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a Triton kernel for an H100 or H200, which need not be there; prints what was counted.

python cross_compile.py CACHE_DIRECTORY
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve_warm import compiler
from serve_warm.config import point_torch_caches_at

HOPPER = GPUTarget("cuda", 90, 32)


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way to name them
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    tl.store(out + places, tl.load(x + places, there) + tl.load(y + places, there), there)


def main(cache: Path) -> dict[str, object]:
    point_torch_caches_at(cache)
    watch = compiler.watch()
    watch.count_kernels_in(cache)
    pointers = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=add, signature=pointers, constexprs={"BLOCK": 256})
    before = watch.counts()
    built = triton.compile(source, target=HOPPER)
    assert os.environ["TRITON_CACHE_DIR"] == str(cache / "triton")
    return {
        "counts": dataclasses.asdict(watch.counts() - before),
        "bytes": len(built.asm["cubin"]),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
