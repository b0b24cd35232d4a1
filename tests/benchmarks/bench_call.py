# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of a warm call through torch.compile and through serve_warm.compile.

    python tests/benchmarks/bench_call.py [--rounds 15] [--calls 2000] [--models tiny,minilm]

The benchmark measures three models: one with two linear layers, MiniLM, and a 24-layer decoder. The
time of the kernels would hide the time that a call takes to reach them. So if `kernels` is
`stubbed`, the innermost callable of each compiled graph (`CompiledFxGraph.current_callable`)
returns the outputs of its first run. Both sides get the same stub. If `kernels` is `run`, the
kernels run.

One process measures all sides in turn, on one thread and in CPU time of this thread. The order of
the sides is reversed after each round. torch.compile runs without serve_warm's watch, which counts
compiles. serve_warm.compile runs with the watch, as in a replica. The JSON on stdout has
microseconds per call. The exit status is 1 if a ratio is above the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch._dynamo import eval_frame
from torch._inductor.output_code import CompiledFxGraph

import serve_warm
from benchmarks import workloads
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION

LIMIT = 0.6
"""Highest allowed ratio of a serve_warm.compile call to a torch.compile call."""

MODELS = ("tiny", "minilm", "decoder24")
"""Names of workloads. The first one is measured with its kernels run and stubbed, the others only
with their kernels stubbed."""

Call = Callable[[], Any]


def us_per_call(call: Call, calls: int) -> float:
    """Return this thread's CPU time, in microseconds per call."""
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls * 1e6


def load_entries(declared: Call, folder: Path) -> None:
    """Make entries for the calls of `declared`, write them, and load them."""
    with building() as build:
        declared()
    folder.mkdir(parents=True)
    for name, data in build.table.to_files().items():
        (folder / name).write_bytes(data)
    why = SESSION.load(folder)
    if why:
        raise RuntimeError(why)


@contextlib.contextmanager
def stubbed(calls: Sequence[Call]) -> Iterator[None]:
    """Make the graphs of these calls return their first results, without computing."""
    replaced: list[tuple[Any, Any]] = []

    def stub_of(graph: Any) -> Callable[[list[Any]], Any]:
        inner = graph.current_callable
        outputs: list[Any] = []

        def stub(inputs: list[Any]) -> Any:
            if not outputs:
                outputs.append(inner(inputs))
            inputs.clear()  # as generated code does
            return outputs[0]

        return stub

    for graph in [each for each in gc.get_objects() if type(each) is CompiledFxGraph]:
        if graph.current_callable is not None:
            replaced.append((graph, graph.current_callable))
            graph.current_callable = stub_of(graph)
    try:
        for call in calls:
            call()
        yield
    finally:
        for graph, inner in replaced:
            graph.current_callable = inner


def in_turns(sides: dict[str, tuple[Call, Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Return each side's microseconds per call, by round. A side is a call and torch's hook."""
    us: dict[str, list[float]] = {name: [] for name in sides}
    before = eval_frame._callback_from_stance
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else reversed(sides):
            call, eval_frame._callback_from_stance = sides[name]
            took = us_per_call(call, calls)
            if number:  # the first round warms caches and clocks
                us[name].append(took)
    eval_frame._callback_from_stance = before
    return us


def row_of(
    name: str, kernels: str, us: dict[str, list[float]], ours: Any, calls: int
) -> dict[str, Any]:
    """Return the results for one model."""
    watch = ours._serve_warm.binder.binding.watch
    ratios = [o / t for o, t in zip(us["serve_warm"], us["torch_compile"], strict=True)]
    return {
        "name": name,
        "kernels": kernels,
        "us": {side: round(statistics.median(values), 2) for side, values in us.items()},
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        "watch_us": round(min(us_per_call(watch.unchanged, calls) for _ in range(5)), 2),
        "facts": watch.size()[0],
        "dicts": watch.size()[1],
    }


def measured(
    name: str, rounds: int, calls: int, folder: Path, hooks: tuple[Any, Any]
) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    workload = workloads.ALL[name]
    workload.import_libraries()
    # Two objects with one structure: neither finds code that was compiled for the other.
    eager, other = workload.build(workloads.SEED), workload.build(workloads.SEED)
    example = workload.inputs()[-1]

    def call_of(function: Callable[..., Any]) -> Call:
        args, kwargs = example.args, example.kwargs
        return lambda: function(*args, **kwargs)

    stock, hooked = hooks
    with torch.inference_mode():
        ours = serve_warm.compile(other, dynamic=False)
        load_entries(call_of(ours), folder)
        sides = {
            "torch_compile": (call_of(torch.compile(eager, dynamic=False)), stock),
            "serve_warm": (call_of(ours), hooked),
        }
        expected = workload.tensor(call_of(eager)())
        for call, _ in sides.values():
            assert (workload.tensor(call()) - expected).abs().max() < 1e-4
            us_per_call(call, 3)
        quiet = watch_process().counts()
        rows = []
        if name == MODELS[0]:
            us = in_turns({"eager": (call_of(eager), stock), **sides}, rounds, calls)
            rows.append(row_of(name, "run", us, ours, calls))
        with stubbed([call for call, _ in sides.values()]):
            us = in_turns(sides, rounds, calls)
            rows.append(row_of(name, "stubbed", us, ours, calls))
    assert (watch_process().counts() - quiet).quiet, "something compiled during the measurement"
    levels = {use.level for use in ours._serve_warm.uses()}
    assert levels == {2}, SESSION.uses()
    SESSION.unload()
    torch._dynamo.reset()
    return rows


def measure(models: Sequence[str], rounds: int, calls: int, folder: Path) -> dict[str, Any]:
    stock = eval_frame._callback_from_stance
    watch_process()
    hooks = stock, eval_frame._callback_from_stance
    assert hooks[1] is not stock, "the watch is already installed: start a fresh process"

    torch.set_num_threads(1)
    rows = [row for name in models for row in measured(name, rounds, calls, folder / name, hooks)]
    first = rows[0]
    return {
        "benchmark": "a warm call, by model",
        "us": first["us"],
        "serve_warm_to_torch_compile": first["ratio"],
        "quartiles": first["quartiles"],
        "limit": LIMIT,
        "rounds": rounds,
        "calls_per_round": calls,
        "models": rows,
        **about(),
    }


def about() -> dict[str, Any]:
    """Return the versions and the machine of a measurement."""
    versions = {"serve_warm": serve_warm.__version__, "torch": torch.__version__}
    versions["python"] = platform.python_version()
    return {"versions": versions, "machine": platform.machine()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per round (default 2000)")
    parser.add_argument("--models", default=",".join(MODELS), help="workloads, tiny first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/inductor"
        folder = Path(scratch) / "entries"
        result = measure(options.models.split(","), options.rounds, options.calls, folder)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if all(row["ratio"] <= LIMIT for row in result["models"]) else 1


if __name__ == "__main__":
    sys.exit(main())
