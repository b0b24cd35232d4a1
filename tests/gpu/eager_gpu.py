# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Unforeseen calls on a GPU with `after_ready: eager`: ResNet-152 and a decoder, with CUDA graphs.

    PYTHONPATH=. python tests/gpu/eager_gpu.py --json tests/benchmarks/results/eager_gpu.json

Each model is warmed up with one size and CUDA graphs. Then 2000 calls follow, of this size and of
others in turn; every answer is compared with the uncompiled model. Each model is one piece: a new
run continues a stopped one, and exits with 75 while pieces are left. It needs no Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "tests" / name) for name in ("support", "gpu", "benchmarks")),
]

import torch  # noqa: E402
from pieces import MORE, Pieces  # noqa: E402
from workloads import ALL  # noqa: E402

import serve_warm  # noqa: E402
from outside_serve import OutsideServe  # noqa: E402
from serve_warm.compiler.watch import unwatched_compiles  # noqa: E402
from serve_warm.config import WarmupConfig  # noqa: E402
from serve_warm.inputs import Input  # noqa: E402
from serve_warm.replica.start.stages import Warmup  # noqa: E402

CALLS = 2000
MUST_BE_ZERO = ("wrong", "compiles", "captures")
TOLERANCE = 0.05
"""Largest allowed difference from the uncompiled model, relative to its largest value. TF32 and
other kernels make such differences on this scale; another answer differs by about 1."""


class Replica(OutsideServe):
    """One handler, which calls the model with one size."""

    deployment, replica = "OnGpu", "OnGpu#1"

    def __init__(self, call: Callable[[int], Any], size: int) -> None:
        self.unwatched_compiles_before = unwatched_compiles()
        self.owner = self
        self._call, self._size = call, size

    async def warmup_inputs(self) -> Any:
        return [Input(target="handler", name="declared", args=(self._size,))]

    async def call(self, item: Input) -> None:
        self._call(*item.args)
        torch.cuda.synchronize()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A workload, how to make an input of a size, and sizes: the declared one, and others."""

    workload: str
    make: Callable[[int], torch.Tensor]
    declared: int
    others: Sequence[int]


def _images(batch: int) -> torch.Tensor:
    return torch.rand(batch, 3, 128, 128, device="cuda") * 2 - 1


def _tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), device="cuda")


MODELS = {
    "resnet152": Sizes(workload="resnet152_gpu", make=_images, declared=8, others=(1, 3, 5, 12)),
    "decoder24": Sizes(
        workload="decoder24_gpu", make=_tokens, declared=64, others=(2, 17, 33, 100)
    ),
}


@torch.inference_mode()
def measure(of: Sizes) -> dict[str, Any]:
    """Return the figures of one model."""
    workload, declared, others = ALL[of.workload], of.declared, of.others
    workload.import_libraries()
    plain = workload.place_module()
    model = serve_warm.compile(plain, **workload.arguments)

    def call(which: Any, size: int) -> torch.Tensor:
        torch.manual_seed(size)
        return workload.tensor(which(of.make(size)))

    def timed(which: Any, size: int) -> tuple[float, torch.Tensor]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        answer = call(which, size)
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began), answer

    right = {size: call(plain, size).clone() for size in (declared, *others)}
    eager_ms = [timed(plain, size)[0] for _ in range(20) for size in others]
    replica = Replica(lambda size: call(model, size), declared)
    start = Warmup(replica, WarmupConfig(after_ready="eager", deadline_s=400.0))
    asyncio.run(start.run())
    alone = [timed(model, declared)[0] for _ in range(200)]
    pool = sum(each.pool_bytes for each in start.report().memory)
    beside, unforeseen, wrong, worst = [], [], 0, 0.0
    for number in range(CALLS):
        size = declared if number % 2 else others[number // 2 % len(others)]
        took, answer = timed(model, size)
        (beside if size == declared else unforeseen).append(took)
        error = float((answer - right[size]).abs().max() / right[size].abs().max())
        worst, wrong = max(worst, error), wrong + (error > TOLERANCE)
    report = start.report()
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "calls": CALLS,
        "eager_calls": sum(each.calls for each in report.eager_calls),
        "wrong": wrong,
        "worst_error": worst,
        "compiles": report.after_ready.compiles,
        "captures": report.after_ready.captures,
        "captures_before_ready": report.warmup.captures,
        "pool_bytes": [pool, sum(each.pool_bytes for each in report.memory)],
        "eager_ms": round(statistics.median(eager_ms), 3),
        "unforeseen_p50_ms": round(statistics.median(unforeseen), 3),
        "unforeseen_max_ms": round(max(unforeseen), 3),
        "foreseen_p50_ms": [round(statistics.median(each), 3) for each in (alone, beside)],
        "foreseen_p99_ms": [
            round(statistics.quantiles(each, n=100)[-1], 3) for each in (alone, beside)
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that gets the figures")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "eager_gpu")
    parser.add_argument("--limit-s", type=float, default=480.0)
    options = parser.parse_args()
    pieces = Pieces(options.work, limit_s=options.limit_s)
    done = {
        name: pieces.do_once(name, functools.partial(lambda of, _: measure(of), of))
        for name, of in MODELS.items()
    }
    text = json.dumps({name: each for name, each in done.items() if each}, indent=1) + "\n"
    sys.stdout.write(text)
    if options.json is not None:
        options.json.write_text(text)
    if None in done.values():
        return MORE
    return int(
        any(each["wrong"] or each["compiles"] or each["captures"] for each in done.values() if each)
    )


if __name__ == "__main__":
    sys.exit(main())
