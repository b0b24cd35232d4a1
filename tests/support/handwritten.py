# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels as users write them, launched or built for given GPUs; prints the counts.

    python handwritten.py '{"do": "launch", "cache": "/a/folder"}'
    python handwritten.py '{"do": "build", "cache": "/a/folder", "targets": [["cuda", 90, 32]]}'

Kernels are decorated before serve_warm is imported, as in a user's module. A build does not need
the target GPU. Without a GPU, launches need Triton's interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def stopwatch(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
    """Return times in the form of Triton's measurement on a device."""
    start = time.perf_counter()
    call()
    return [time.perf_counter() - start] * len(quantiles)


MEASURED_BY = None if DEVICE == "cuda" else stopwatch


@triton.jit
def double(x, out, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's names for constants
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    tl.store(out + places, tl.load(x + places, there) * 2, there)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (128, 256, 512)],
    key=["count"],
    do_bench=MEASURED_BY,
)
@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    tl.store(out + places, tl.load(x + places, there) + tl.load(y + places, there), there)


def clear(arguments: dict[str, Any]) -> None:
    arguments["out"].zero_()


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=clear) for block in (128, 256)],
    key=["count"],
    do_bench=MEASURED_BY,
)
@triton.jit
def accumulate(x, out, count, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    tl.store(out + places, tl.load(out + places, there) + tl.load(x + places, there), there)


def launch(watch: Any) -> dict[str, Any]:
    """Launch each kernel twice; return the counts of each launch, and the error of the last."""
    x, y = torch.rand(2, COUNT, device=DEVICE)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(COUNT, meta["BLOCK"]),)

    launches: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
        "double": (lambda out: double[grid](x, out, COUNT, BLOCK=256), x * 2),
        "add": (lambda out: add[grid](x, y, out, COUNT), x + y),
        "accumulate": (lambda out: accumulate[grid](x, out, COUNT), x),
    }
    said: dict[str, Any] = {}
    for name, (call, wanted) in launches.items():
        spans = []
        for _ in range(2):
            before, out = watch.counts(), torch.full_like(x, 7.0)
            call(out)
            spans.append(dataclasses.asdict(watch.counts() - before))
        said[name] = {"spans": spans, "error": (out - wanted).abs().max().item()}
    return {"launched": said, "events": [str(event) for event in watch.events()]}


def build(watch: Any, targets: list[list[Any]]) -> dict[str, Any]:
    """Build one kernel for each target; return the counts and the size of each binary."""
    pointers = {"x": "*fp32", "out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=double, signature=pointers, constexprs={"BLOCK": 256})
    before, sizes = watch.counts(), []
    for target in targets:
        built = triton.compile(source, target=GPUTarget(*target))
        sizes.append(len(built.kernel))
    return {"counts": dataclasses.asdict(watch.counts() - before), "bytes": sizes}


def main(do: str, cache: str, targets: list[list[Any]] | None = None) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from serve_warm.compiler.watch import watch_process
    from serve_warm.config import point_torch_caches_at

    point_torch_caches_at(Path(cache))
    watch = watch_process()
    watch.count_kernels_in(Path(cache))
    return build(watch, targets or []) if do == "build" else launch(watch)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
