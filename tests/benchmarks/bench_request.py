# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cost that the mixin adds to a request, with the model run inline and on the model thread.

    python tests/benchmarks/bench_request.py [--rounds 15] [--calls 2000]

One process measures three handlers in turn, in one event loop: without the mixin, with the mixin,
and with the mixin's model thread. The compiled model does nothing, so the difference is the cost of
the mixin. The JSON on stdout has microseconds per request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from typing import Any

import ray
import torch

from serve_warm import Input, WarmupMixin, __version__

LIMITS_US = {"inline": 20.0, "on_model_thread": 120.0}
"""Limits for the cost that the mixin adds to a request, at the median."""


class Plain:
    def __init__(self) -> None:
        self.model = torch.compile(torch.nn.Identity(), backend="eager", dynamic=False)

    async def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class Mixed(WarmupMixin, Plain):
    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.predict, args=(torch.ones(8),))]


class OnThread(Mixed):
    async def predict(self, x: torch.Tensor) -> torch.Tensor:
        return await self.on_model_thread(self.model, x)


async def us_per_request(owner: Any, calls: int) -> float:
    x = torch.ones(8)
    start = time.perf_counter()
    for _ in range(calls):
        await owner.predict(x)
    return (time.perf_counter() - start) / calls * 1e6


async def measure(rounds: int, calls: int) -> dict[str, Any]:
    # Read torch's callback before serve_warm replaces it. The plain handler runs with this
    # callback.
    from torch._dynamo import eval_frame

    stock = eval_frame._callback_from_stance
    plain, mixed, on_thread = Plain(), Mixed(), OnThread()
    await mixed.warm_up()
    await on_thread.warm_up()
    hooked = eval_frame._callback_from_stance
    assert hooked is not stock
    await us_per_request(plain, 10)
    sides = [
        ("plain", plain, stock),
        ("inline", mixed, hooked),
        ("on_model_thread", on_thread, hooked),
    ]
    us: dict[str, list[float]] = {name: [] for name, *_ in sides}
    for number in range(rounds + 1):
        for name, owner, hook in sides if number % 2 else reversed(sides):
            eval_frame._callback_from_stance = hook
            took = await us_per_request(owner, calls)
            if number:  # the first round warms caches and clocks
                us[name].append(took)
    eval_frame._callback_from_stance = hooked
    assert mixed.warmup_report()["after_ready"]["compiles"] == 0
    added = {
        name: statistics.median(o - p for o, p in zip(us[name], us["plain"], strict=True))
        for name in LIMITS_US
    }
    return {
        "benchmark": "what the mixin costs a request",
        "us": {name: round(statistics.median(values), 2) for name, values in us.items()},
        "added_us": {name: round(value, 2) for name, value in added.items()},
        "limits_us": LIMITS_US,
        "rounds": rounds,
        "calls_per_round": calls,
        "versions": {
            "serve_warm": __version__,
            "torch": torch.__version__,
            "ray": ray.__version__,
            "python": platform.python_version(),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--calls", type=int, default=2000, help="requests per round (default 2000)")
    options = parser.parse_args()
    result = asyncio.run(measure(options.rounds, options.calls))
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    over = [name for name, limit in LIMITS_US.items() if result["added_us"][name] > limit]
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
