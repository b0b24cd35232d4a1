# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` that decode with compiled steps, and the cost of a start and a step.

    python tests/benchmarks/bench_generation.py [--json FILE] [--again] [MODEL ...]

One process builds the entries of a small random model. Another process loads the entries and
generates twice, the second time with compiling forbidden. Two more processes use torch.compile
without entries, one after the other, so that the second finds torch's caches filled. Rows that FILE
has are kept unless `--again` is given, so an interrupted run continues.

    tokens_equal  the sampled tokens equal those of the eager model in the same process: 32 tokens
                  for each prompt of the batch, and 2 for the single prompt
    compiles      compiles from the loading of the entries on; compiler_processes likewise
    to_proof_s    seconds from loading entries to the end of a pass in which compiling is forbidden
    to_proof_cpu_s  the same in CPU seconds
    torch_s       the same with torch.compile alone, torch's caches empty; torch_cpu_s likewise
    cached_s      the same with torch's caches filled, as at level 1; cached_cpu_s likewise
    dispatch_us   CPU time of serve_warm in one decode step, without the code that it dispatches to
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

import torch

import generators
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries import function as entry_function
from serve_warm.precompile.libraries.run import Followed, Function

RESULTS = Path(__file__).parent / "results" / "generation.json"
MODELS = (
    *("llama", "qwen3", "gemma3", "gpt2", "mixtral", "t5", "whisper", "llava"),
    *("mistral", "bart"),
)
LEVELS = (2, 3)
CLOCKS = ("torch_s", "torch_cpu_s", "cached_s", "cached_cpu_s")
PROMPTS = ((12, 9), (3,))
"""Prompt lengths of a batch and of a single prompt, one for each bucket."""


def replay(model: Any, name: str) -> list[list[list[int]]]:
    return [
        generators.generate(model, generators.batch_of(name, lengths), max_new_tokens=count)
        for lengths, count in zip(PROMPTS, (generators.TOKENS, 2), strict=True)
    ]


def build(name: str, level: int, folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    model = generators.load_compiled(name, level=level)
    with torch.compiler.set_stance("force_eager"), building() as build:
        replay(model, name)
    table = build.table
    entries = [entry for unit in table.units.values() for entry in unit.entries]
    for file, data in table.to_files(level).items():
        (folder / file).write_bytes(data)
    return {
        # An entry below the requested level gives the reason.
        "refused": sorted([*table.refused.values(), *(e.reason for e in entries if e.reason)]),
        "build_s": round(time.perf_counter() - began, 1),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }


def start(name: str, level: int, folder: Path) -> dict[str, Any]:
    watch = watch_process()
    eager = replay(generators.load(name), name)
    model = generators.load_compiled(name, level=level)
    before = watch.counts()
    began, cpu = time.perf_counter(), cpu_s()
    why = SESSION.load(folder)
    replay(model, name)
    with forbid():
        made = replay(model, name)
    took, cpu = time.perf_counter() - began, cpu_s() - cpu
    counts = watch.counts() - before
    return {
        "why": why,
        "tokens_equal": made == eager,
        "compiles": counts.compiles,
        "compiler_processes": counts.compiler_processes,
        "to_proof_s": round(took, 3),
        "to_proof_cpu_s": round(cpu, 3),
        "levels": sorted({use.level for use in SESSION.uses()}),
        "dispatch_us": round(dispatch_us(model), 1),
    }


def stock(name: str, level: int, folder: Path) -> dict[str, Any]:
    del level, folder
    model = generators.load_compiled(name)
    began, cpu = time.perf_counter(), cpu_s()
    replay(model, name)
    with forbid():
        replay(model, name)
    took, cpu = time.perf_counter() - began, cpu_s() - cpu
    return {"s": round(took, 3), "cpu_s": round(cpu, 3)}


def cpu_s() -> float:
    """Return the CPU time of this process and of the compilers that it has waited for."""
    return sum(os.times()[:4])


def dispatch_us(model: Any, calls: int = 2000) -> float:
    """Return the lowest CPU time of a decode step whose graph computes nothing, in microseconds."""
    decoder = model._serve_warm_decoder
    step = decoder._decode
    dispatcher = vars(step)["_serve_warm"]
    for same in dispatcher.binder.binding.hits.values():
        for *_, fn, _ in same:
            compute_nothing(fn)
    best = float("inf")
    with torch.inference_mode():
        tokens = torch.zeros(decoder.slots, dtype=torch.int64, device=decoder.device)
        positions = torch.full_like(tokens, decoder.max_length)
        for _ in range(5):
            began = time.thread_time()
            for _ in range(calls):
                step(tokens, positions)
            best = min(best, (time.thread_time() - began) / calls * 1e6)
    return best


def compute_nothing(fn: Any) -> None:
    """Make an entry's code return its first result on each call, without launching kernels."""
    fn = fn.function if isinstance(fn, Followed) else fn
    if not isinstance(fn, Function):
        graph = entry_function._graph_of(fn)
        graph._compiled = _stub_of(graph._compiled)
    elif fn._graphs is not None:
        # serve_warm itself finds the CUDA graph of a call, so only the launch is replaced.
        vars(fn._graphs._local)["latest"] = None
        kept = vars(fn._graphs._local)["kept"]
        for key, found in kept.items():
            kept[key] = dataclasses.replace(found, launch=_stub_of(found.launch))
    else:
        fn.native = _stub_of(fn.native)


def _stub_of(run: Any) -> Any:
    outputs: list[Any] = []

    def stub(*inputs: Any) -> Any:
        if not outputs:
            outputs.append(run(*inputs))
        return outputs[0]

    return stub


def row_of(name: str, level: int, known: dict[str, Any]) -> dict[str, Any]:
    clocks = clocks_of(name, known)
    with tempfile.TemporaryDirectory() as folder:
        row = {"model": name, "level": level, **clocks}
        for do in ("build", "start"):
            row |= ask(name, level, do, Path(folder))
            if row["refused"]:
                sys.exit(f"{name} at level {level} has no entry: {row['refused'][0]}")
    return row


def clocks_of(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of torch.compile without entries: with empty and with filled caches.

    These times do not depend on the level. If `known`, the row of another level, has these times,
    they are taken from there.
    """
    if known.keys() >= set(CLOCKS):
        return {key: known[key] for key in CLOCKS}
    with tempfile.TemporaryDirectory() as folder:
        empty, filled = (ask(name, LEVELS[0], "stock", Path(folder)) for _ in range(2))
    values = (*empty.values(), *filled.values())
    return dict(zip(CLOCKS, values, strict=True))


def ask(name: str, level: int, do: str, folder: Path) -> dict[str, Any]:
    """Run one step in a new process, and return its result."""
    (folder / "entries").mkdir(exist_ok=True)
    question = [name, "--do", do, "--level", str(level), "--in", f"{folder}/entries"]
    ended = subprocess.run(
        [sys.executable, __file__, *question],
        env={
            **os.environ,
            # As in a replica: the kernels of level 2 are in torch's caches.
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        sys.exit(f"{name} at level {level} could not {do}:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--do", choices=["build", "start", "stock"])
    parser.add_argument("--level", type=int, action="append")
    parser.add_argument("--in", type=Path, dest="folder")
    parser.add_argument("names", nargs="*", metavar="MODEL")
    asked = parser.parse_args()
    names, levels = asked.names or MODELS, asked.level or LEVELS
    if asked.do:
        torch.set_num_threads(1)
        do = {"build": build, "start": start, "stock": stock}[asked.do]
        sys.stdout.write("\n" + json.dumps(do(names[0], levels[0], asked.folder)) + "\n")
        return
    import transformers

    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    rows: dict[tuple[str, int], Any] = {}
    if asked.json.exists():
        rows = {(r["model"], r["level"]): r for r in json.loads(asked.json.read_text())["rows"]}
    for key in [(name, level) for name in names for level in levels]:
        known = {} if asked.again and key[1] == levels[0] else rows.get((key[0], 5 - key[1]), {})
        row = {} if asked.again else rows.get(key, {})
        if not row.keys() >= set(CLOCKS):
            rows[key] = row | clocks_of(key[0], known) if row else row_of(*key, known)
            sys.stdout.write(json.dumps(rows[key]) + "\n")
            listed = [rows[key] for key in sorted(rows)]
            text = json.dumps({"versions": versions, "rows": listed}, indent=1)
            asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
