# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder through `compile_generation`, in one process that builds, starts or measures eagerly.

    python tests/gpu/decode_process.py decode build --level 2 --in FOLDER [--tiny]
    python tests/gpu/decode_process.py decode start --level 2 --in FOLDER [--tiny]
    python tests/gpu/decode_process.py half_precision static --in FOLDER [--tiny]

Prints JSON. A start loads the entries and generates until all graphs are captured. Then it checks
that the tokens are eager's, counts graph launches in each call of the model, and counts captures in
10,000 steps. It also measures serve_warm's own time in a step. `static` measures a step of a static
cache of transformers, compiled with torch.compile. `--tiny` is for a CPU, where nothing is
captured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS), str(TESTS.parent)]

import torch  # noqa: E402 - found through the line above

import generators  # noqa: E402
import serve_warm  # noqa: E402
from benchmarks import bench_generation  # noqa: E402
from serve_warm.compiler.proof import forbid  # noqa: E402
from serve_warm.compiler.watch import watch_process  # noqa: E402
from serve_warm.generation.steps import CACHE  # noqa: E402
from serve_warm.precompile import building  # noqa: E402
from serve_warm.precompile.dispatch.session import SESSION  # noqa: E402

SLOTS = 8
STEPS = 10_000
TIMED_STEPS = 200
PASSES = 3
"""One pass before the captures, one with the captures, and one that launches the graphs."""
PROFILED = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """A decoder, and the prompts that it generates from."""

    model: str
    sizes: Mapping[str, Any]
    dtype: torch.dtype
    max_length: int
    prompt_lengths: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...]
    """The lengths of each batch of prompts. All buckets are used."""
    tokens: int
    """New tokens of a prompt."""
    device: str = "cuda"

    def tiny(self) -> Case:
        return replace(
            self,
            sizes={},
            device="cpu",
            max_length=generators.MAX_LENGTH,
            prompt_lengths=generators.PROMPT_LENGTHS,
            prompts=bench_generation.PROMPTS,
        )

    def load(self) -> Any:
        """Return the eager model, with random weights."""
        import transformers

        config, model, settings = generators.MODELS[self.model]
        torch.manual_seed(0)
        with torch.device(self.device):
            made = getattr(transformers, model)(
                getattr(transformers, config)(**{**settings, **self.sizes})
            )
            return made.to(self.dtype).eval()

    @property
    def mode(self) -> str | None:
        return "reduce-overhead" if self.device == "cuda" else None

    def compiled(self, model: Any, level: int) -> Any:
        return serve_warm.compile_generation(
            model,
            batch=SLOTS,
            max_length=self.max_length,
            prompt_lengths=self.prompt_lengths,
            level=level,
            **({"mode": self.mode} if self.mode else {}),
        )

    def replay(self, model: Any) -> list[list[list[int]]]:
        made = []
        for lengths in self.prompts:
            inputs = generators.batch_of(self.model, lengths)
            on_device = {key: x.to(model.device) for key, x in inputs.items()}
            made.append(generators.generate(model, on_device, max_new_tokens=self.tokens))
        return made


CASES = {
    # In float32, so that compiled steps can give the same tokens.
    "decode": Case(
        model="llama",
        sizes={
            "vocab_size": 8192,
            "hidden_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "intermediate_size": 2816,
            "num_key_value_heads": 4,
            "max_position_embeddings": 512,
            # Larger than the library's default, so that tokens differ from step to step.
            "initializer_range": 0.05,
        },
        dtype=torch.float32,
        max_length=512,
        prompt_lengths=(16, 64),
        prompts=((60, 40, 64), (9,)),
        tokens=generators.TOKENS,
    ),
    # The sizes of Qwen3-0.6B's configuration.
    "half_precision": Case(
        model="qwen3",
        sizes={
            "vocab_size": 151936,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
        },
        dtype=torch.bfloat16,
        max_length=1024,
        prompt_lengths=(128, 512),
        prompts=((125,) * SLOTS, (509,) * SLOTS),
        tokens=8,
    ),
}


def build(case: Case, level: int, folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    model = case.compiled(case.load(), level)
    with torch.compiler.set_stance("force_eager"), building() as build:
        case.replay(model)
    table = build.table
    for file, data in table.to_files(level).items():
        (folder / file).write_bytes(data)
    return {
        "refused": sorted(table.refused.values()),
        "entries": table.described(),
        "build_s": round(time.perf_counter() - began, 1),
        "artifact_bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }


def start(case: Case, level: int, folder: Path) -> dict[str, Any]:
    watch = watch_process()
    model = case.load()
    eager = case.replay(model)
    model = case.compiled(model, level)
    before = watch.counts()
    began = time.perf_counter()
    why = SESSION.load(folder)
    for _ in range(PASSES):
        case.replay(model)
    with forbid():
        made = case.replay(model)
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
    decoder = model._serve_warm_decoder
    found |= {
        "full_step_ms": step_ms(
            case, lambda at: decoder.decode(dict.fromkeys(range(SLOTS), (7, at)))
        )
    }
    # At the end, because the steps compute nothing from then on.
    return found | {"dispatch_us": round(bench_generation.dispatch_us(model), 1)}


def static(case: Case) -> dict[str, Any]:
    from transformers import StaticCache

    model = case.load()
    cache = StaticCache(config=model.config, max_cache_len=case.max_length)
    step = torch.compile(model, mode=case.mode, dynamic=False)
    first = case.prompt_lengths[0]
    tokens = torch.full((SLOTS, 1), 7, device=model.device)

    def run(at: int) -> None:
        place = torch.tensor([at], device=model.device)
        step(
            input_ids=tokens,
            position_ids=place[None].expand(SLOTS, 1),
            cache_position=place,
            use_cache=True,
            **{CACHE: cache},
        )

    with torch.inference_mode():
        prompt = torch.full((SLOTS, first), 7, device=model.device)
        model(input_ids=prompt, use_cache=True, **{CACHE: cache})
        return {"full_step_ms": step_ms(case, run)}


def step_ms(case: Case, step: Callable[[int], Any]) -> float:
    """Return the median time of a step in milliseconds, with the wait for its results."""
    times, first = [], case.prompt_lengths[0]
    for at in range(first, min(first + TIMED_STEPS, case.max_length)):
        began = time.perf_counter()
        step(at)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(times), 3)


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

    with mock.patch.object(graph, "replay", replay):
        yield counted


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
    parser.add_argument("case", choices=CASES)
    parser.add_argument("do", choices=["build", "start", "static"])
    parser.add_argument("--level", type=int)
    parser.add_argument("--in", type=Path, dest="folder", required=True)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    case = CASES[asked.case].tiny() if asked.tiny else CASES[asked.case]
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    # A start finds the kernels of its build there. In a replica, the artifact contains them.
    os.environ["TRITON_CACHE_DIR"] = str(asked.folder.resolve().parent / "triton")
    if asked.do == "static":
        found = static(case)
    else:
        do = {"build": build, "start": start}[asked.do]
        found = do(case, asked.level, asked.folder)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
