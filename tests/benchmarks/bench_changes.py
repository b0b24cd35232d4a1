# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of a call in a process where something changes before each call.

    python tests/benchmarks/bench_changes.py [--rounds 5] [--calls 300]

Examples of changes are `.eval()` or `.to()`, a different shape, text or number, switching between
two adapters, and hooks and modules that other code makes. The model has 24 linear layers of width
4, so the time is mostly the time that a call takes to reach the kernels.

Each scenario runs with torch.compile and with serve_warm.compile, in turns in one process. Times
are CPU time of the thread, and include the change itself. The JSON on stdout has microseconds per
call. The exit status is 1 if a call of serve_warm compiles, or if a ratio is above the limit of its
scenario.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import nn

import serve_warm
from benchmarks.bench_call import about, load_entries
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.dispatch.session import SESSION

LAYERS, WIDTH = 24, 4
SHAPES = 300

LIMIT = 1.15
"""Highest allowed ratio of a serve_warm call to a torch.compile call. At level 1, both calls go to
torch.compile."""

LOOK_LIMIT = 6.0
"""The limit for changes that make serve_warm check facts again, which it does in Python."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.adapter = nn.Linear(WIDTH, WIDTH)
        self.active = "first"

    def forward(self, x: Any) -> Any:
        return self.linear(x) if self.active == "first" else self.adapter(x)


class Model(nn.Module):
    """Layers with two adapters. A call may also pass a text and a number."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Any, text: str = "", number: float = 0.5) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def set_adapter(self, name: str) -> None:
        for layer in self.layers:
            layer.active = name


def function(x: Any) -> Any:
    """Multiply matrices twice, without a module."""
    return x @ x.T @ x


def rows(number: int) -> torch.Tensor:
    return torch.ones(number, WIDTH)


Step = Callable[[Any, int], Any]
"""Changes something and calls the compiled callable. Takes the callable and the number of the
call."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A change that is made before each call."""

    name: str
    step: Step
    declared: Callable[[Any], Any] = lambda compiled: compiled(rows(3))
    """Makes the calls that the build makes entries for."""
    make: Callable[[], Any] = lambda: Model().eval()
    arguments: dict[str, Any] = field(default_factory=lambda: {"dynamic": False})
    level: int = 2
    limit: float = LIMIT


def _eval(compiled: Any, _: int) -> Any:
    compiled.eval()
    return compiled(rows(3))


def _to(compiled: Any, _: int) -> Any:
    compiled.to("cpu")
    return compiled(rows(3))


def _freeze(compiled: Any, number: int) -> Any:
    if number == 0:
        compiled.requires_grad_(requires_grad=False)
    return compiled(rows(3))


ADAPTERS = ("first", "second")


def _switch(compiled: Any, number: int) -> Any:
    compiled.set_adapter(ADAPTERS[number % 2])
    return compiled(rows(3))


def _each_adapter(compiled: Any) -> None:
    # Twice, because the build withdraws an entry that answers no later call.
    for name in ADAPTERS * 2:
        compiled.set_adapter(name)
        compiled(rows(3))


def _build_modules(compiled: Any, _: int) -> Any:
    nn.Linear(WIDTH, WIDTH)
    return compiled(rows(3))


def _add_hook(compiled: Any, _: int) -> Any:
    nn.Linear(WIDTH, WIDTH).register_forward_hook(_hook)
    return compiled(rows(3))


def _hook(_module: Any, _args: Any, out: Any) -> Any:
    return out


SCENARIOS = (
    Scenario(name="nothing changes", step=lambda compiled, _: compiled(rows(3))),
    Scenario(name=".eval() before each call", step=_eval),
    Scenario(name=".to('cpu') before each call", step=_to),
    Scenario(name=".requires_grad_(False) once", step=_freeze),
    Scenario(
        name=f"{SHAPES} shapes in turn, dynamic=True",
        step=lambda compiled, number: compiled(rows(2 + number % SHAPES)),
        arguments={"dynamic": True},
    ),
    Scenario(
        name=f"{SHAPES} shapes in turn, without an entry",
        step=lambda compiled, number: compiled(rows(4 + number % SHAPES)),
        arguments={},
        level=1,
    ),
    Scenario(
        name="a different text on each call",
        step=lambda compiled, number: compiled(rows(3), f"request {number}"),
        level=1,
    ),
    Scenario(
        name="a different float on each call",
        step=lambda compiled, number: compiled(rows(3), "", number + 0.25),
        level=1,
    ),
    Scenario(name="two adapters in turn", step=_switch, declared=_each_adapter, limit=LOOK_LIMIT),
    Scenario(name="a new module is built before each call", step=_build_modules),
    Scenario(name="a hook is added to a different module before each call", step=_add_hook),
    Scenario(
        name="a hook is added to a module before each call to a compiled function",
        step=_add_hook,
        make=lambda: function,
    ),
)


def us_per_call(step: Step, compiled: Any, numbers: range) -> float:
    """Return this thread's CPU time, in microseconds per call."""
    start = time.thread_time()
    for number in numbers:
        step(compiled, number)
    return (time.thread_time() - start) / len(numbers) * 1e6


def measure(scenario: Scenario, rounds: int, calls: int, folder: Path) -> dict[str, Any]:
    torch._dynamo.reset()
    ours = serve_warm.compile(scenario.make(), **scenario.arguments)
    load_entries(lambda: scenario.declared(ours), folder)
    theirs = torch.compile(scenario.make(), **scenario.arguments)
    sides = {"torch_compile": theirs, "serve_warm": ours}
    us: dict[str, list[float]] = {name: [] for name in sides}
    compiles = 0
    for number in range(rounds + 1):
        numbers = range(calls * number, calls * (number + 1))
        for name in list(sides) if number % 2 else reversed(sides):
            before = watch_process().counts()
            took = us_per_call(scenario.step, sides[name], numbers)
            if number:  # torch.compile and level 1 compile in the first round
                us[name].append(took)
            if name == "serve_warm" and (number or scenario.level > 1):
                compiles += (watch_process().counts() - before).compiles
    lowest = min(ours._serve_warm.uses(), key=lambda use: use.level)
    assert lowest.level == scenario.level, (scenario.name, lowest)
    SESSION.unload()
    ratios = [o / t for o, t in zip(us["serve_warm"], us["torch_compile"], strict=True)]
    return {
        "name": scenario.name,
        "level": scenario.level,
        "us": {name: round(statistics.median(values), 1) for name, values in us.items()},
        "ratio": round(statistics.median(ratios), 3),
        "limit": scenario.limit,
        "compiles": compiles,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--calls", type=int, default=300, help="calls per round (default 300)")
    parser.add_argument("--only", default="", help="only scenarios with this text in the name")
    options = parser.parse_args()
    watch_process()
    torch.set_num_threads(1)
    chosen = [each for each in SCENARIOS if options.only in each.name]
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{scratch}/inductor")
        found = [
            measure(each, options.rounds, options.calls, Path(scratch) / f"entries{number}")
            for number, each in enumerate(chosen)
        ]
    result = {
        "benchmark": "a warm call after a change",
        "rows": found,
        "rounds": options.rounds,
        "calls_per_round": options.calls,
        "layers": LAYERS,
        **about(),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if all(row["ratio"] <= row["limit"] and not row["compiles"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
