# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A Llama-shaped model through `compile_generation`, in one process that builds or starts.

    python tests/gpu/decode_process.py build --level 2 --in FOLDER [--tiny]
    python tests/gpu/decode_process.py start --level 2 --in FOLDER [--tiny]

Prints JSON. A start loads the entries and generates until all graphs are captured. Then it checks
that the tokens are eager's, counts graph launches in each call of the model, and counts captures in
10,000 steps. It also measures serve_warm's own time in a step. `--tiny` is for a CPU, where nothing
is captured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS), str(TESTS.parent)]

import torch  # noqa: E402 - found through the line above

import generators  # noqa: E402
import serve_warm  # noqa: E402
from benchmarks import bench_generation  # noqa: E402
from serve_warm.compiler.proof import forbid  # noqa: E402
from serve_warm.compiler.watch import watch_process  # noqa: E402
from serve_warm.precompile.session import SESSION  # noqa: E402

LARGE = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "max_position_embeddings": 512,
    # Larger than the library's default, so that tokens differ from step to step.
    "initializer_range": 0.05,
}
SLOTS = 8
LENGTHS = (16, 64)
PROMPTS = ((60, 40, 64), (9,))
"""Prompt lengths of a batch and of a single prompt, which use both buckets."""
STEPS = 10_000
PASSES = 3
"""One pass before the captures, one with the captures, and one that launches the graphs."""
PROFILED = 10


def load(*, tiny: bool) -> Any:
    """Return the eager model, in float32, so that compiled steps can give the same tokens."""
    import transformers

    settings = {**generators.TEXT, **({} if tiny else LARGE)}
    torch.manual_seed(0)
    with torch.device("cpu" if tiny else "cuda"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()


def compiled(model: Any, level: int, *, tiny: bool) -> Any:
    mode = {} if tiny else {"mode": "reduce-overhead"}
    max_length = 60 if tiny else 512
    lengths = generators.PROMPT_LENGTHS if tiny else LENGTHS
    return serve_warm.compile_generation(
        model, batch=SLOTS, max_length=max_length, prompt_lengths=lengths, level=level, **mode
    )


def replay(model: Any, *, tiny: bool) -> list[list[list[int]]]:
    prompts = bench_generation.PROMPTS if tiny else PROMPTS
    made = []
    for lengths in prompts:
        inputs = generators.batch_of("llama", lengths)
        made.append(
            generators.generate(model, {key: x.to(model.device) for key, x in inputs.items()})
        )
    return made


def build(level: int, folder: Path, *, tiny: bool) -> dict[str, Any]:
    began = time.perf_counter()
    model = compiled(load(tiny=tiny), level, tiny=tiny)
    with torch.compiler.set_stance("force_eager"), SESSION.building() as building:
        replay(model, tiny=tiny)
    table = building.table
    for file, data in table.to_files(level).items():
        (folder / file).write_bytes(data)
    return {
        "refused": sorted(table.refused.values()),
        "build_s": round(time.perf_counter() - began, 1),
        "artifact_bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }


def start(level: int, folder: Path, *, tiny: bool) -> dict[str, Any]:
    watch = watch_process()
    model = load(tiny=tiny)
    eager = replay(model, tiny=tiny)
    model = compiled(model, level, tiny=tiny)
    before = watch.counts()
    began = time.perf_counter()
    why = SESSION.load(folder)
    for _ in range(PASSES):
        replay(model, tiny=tiny)
    with forbid():
        made = replay(model, tiny=tiny)
    to_proof_s = time.perf_counter() - began
    warm = watch.counts() - before
    found = {
        "why": why,
        "tokens_equal": made == eager,
        "compiles": warm.compiles,
        "compiler_processes": warm.compiler_processes,
        "kernels": warm.kernels,
        "captures": warm.captures,
        "graph_skips": warm.graph_skips,
        "skips": sorted({e.reason for e in watch.events() if e.kind == "skip"}),
        "to_proof_s": round(to_proof_s, 3),
        "uses": sorted({(use.level, use.reason) for use in SESSION.uses()}),
    }
    found |= launches(model)
    found |= many_steps(model)
    found |= {"dispatch_us": round(bench_generation.dispatch_us(model), 1)}
    return found


def launches(model: Any) -> dict[str, Any]:
    """Return the graph launches in each call of a step, as counted in Python and by the driver.

    Also returns the kernels that are launched beside the graphs. torch's profiler sees the driver's
    calls through CUPTI.
    """
    decoder = model._serve_warm_decoder
    prompt = torch.ones(decoder.prompt_lengths[0], dtype=torch.int64)
    calls = {
        "prefill": lambda: decoder.prefill(0, prompt),
        "decode": lambda: decoder.decode({0: (1, len(prompt))}),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        with replays() as counted:
            call()
        found[f"replays_of_{name}"] = counted[0]
        if torch.cuda.is_available():
            from torch.profiler import ProfilerActivity, profile

            both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            with profile(activities=both) as profiler:
                for _ in range(PROFILED):
                    call()
                torch.cuda.synchronize()
            events = [event.name for event in profiler.events()]
            found[f"launches_of_{name}"] = events.count("cudaGraphLaunch") / PROFILED
            kernels = sum(event.startswith("cudaLaunchKernel") for event in events)
            found[f"kernels_beside_{name}"] = kernels / PROFILED
    return found


@contextlib.contextmanager
def replays() -> Iterator[list[int]]:
    """Count launches of graphs from Python, by torch's graph trees or by serve_warm."""
    graph: Any = torch.cuda.CUDAGraph
    original, counted = graph.replay, [0]

    def replay(self: Any) -> None:
        counted[0] += 1
        original(self)

    graph.replay = replay
    try:
        yield counted
    finally:
        graph.replay = original


def many_steps(model: Any) -> dict[str, Any]:
    """Return the compiles and captures in 10,000 steps, and the time of one step."""
    watch, decoder = watch_process(), model._serve_warm_decoder
    first = decoder.prompt_lengths[0]
    room = decoder.max_length - first
    before = watch.counts()
    began, cpu = time.perf_counter(), time.thread_time()
    for number in range(STEPS):
        if not number % room:
            decoder.prefill(0, torch.ones(first, dtype=torch.int64))
        logits = decoder.decode({0: (number % 60, first + number % room)})
    is_finite = bool(torch.isfinite(logits[0]).all())
    took, cpu = time.perf_counter() - began, time.thread_time() - cpu
    counts = watch.counts() - before
    return {
        "steps": STEPS,
        "captures_in_steps": counts.captures,
        "compiles_in_steps": counts.compiles,
        "is_finite": is_finite,
        "step_us": round(took / STEPS * 1e6, 1),
        "step_cpu_us": round(cpu / STEPS * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=["build", "start"])
    parser.add_argument("--level", type=int, required=True)
    parser.add_argument("--in", type=Path, dest="folder", required=True)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    # A start finds the kernels of its build there. In a replica, the artifact contains them.
    os.environ["TRITON_CACHE_DIR"] = str(asked.folder.resolve().parent / "triton")
    do = {"build": build, "start": start}[asked.do]
    found = do(asked.level, asked.folder, tiny=asked.tiny)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
