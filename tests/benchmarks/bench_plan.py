# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a plan makes of 5,000 requests of mixed sizes, and what recording them costs a call.

    python tests/benchmarks/bench_plan.py [--json tests/benchmarks/results/learn.json]

The requests have the lengths of the docstrings in Python's standard library (`docstrings.json`,
which `--count` makes anew), in a random order. Each request goes to an encoder that pads to the
next of five sizes. Longer ones also go to a ranker that is compiled for all sizes at once, and one
in three to a tagger for which torch decides (level 1). Then:

1. a process without an artifact records the requests, and counts what they compile: the paths hit
2. a build replays the plan of all recorded kinds, and reduces it
3. a process with only the reduced plan gets the same requests. What they compile was not covered

The minimum is that of an enumeration of all subsets. The recorder's microseconds are
those between the fastest of 15 runs with and without it, in turns, in one process.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import collections
import concurrent.futures
import functools
import itertools
import json
import random
import sys
import sysconfig
import tempfile
import time
import timeit
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support")]

import torch  # noqa: E402

import serve_warm  # noqa: E402
from serve_warm.builder.bench import machine  # noqa: E402
from serve_warm.learn.buckets import best_edges  # noqa: E402
from serve_warm.learn.plan import InputPlan, make_plan  # noqa: E402
from serve_warm.learn.recorder import Recorder  # noqa: E402
from serve_warm.precompile.dispatch.session import SESSION  # noqa: E402
from starts import StandIn, warm_up  # noqa: E402

LENGTHS = Path(__file__).with_name("docstrings.json")
REQUESTS = 5000
EDGES = (16, 32, 64, 128, 512)
"""Sizes to which the encoder pads, as a person would choose them."""

WORDS = 1000
LONG = 40
"""Number of words from which a request also goes to the ranker."""


class Encoder(torch.nn.Module):
    """Means of embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, 32)
        self.mixed = torch.nn.Linear(32, 32)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.mixed(self.words(words)).tanh().mean(dim=1)


class Replica(StandIn):
    """A replica of a wrapped application with three compiled callables."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.declared = None
        self.owner.encode = serve_warm.compile(Encoder().eval(), dynamic=False)
        self.owner.rank = serve_warm.compile(Ranker().eval(), dynamic=True)
        self.owner.tag = serve_warm.compile(tag, backend="aot_eager")

    def check(self, inputs: Any) -> None:
        """Accept the calls of a plan."""

    async def call(self, item: Any) -> None:
        await item.target()

    @torch.inference_mode()
    def answer(self, number: int, length: int) -> None:
        words = torch.full((1, length), number % WORDS)
        edge = next(edge for edge in EDGES if edge >= length)
        self.owner.encode(torch.nn.functional.pad(words, (0, edge - length)))
        if length >= LONG:
            self.owner.rank(words)
        if number % 3 == 0:
            self.owner.tag(words)


class Ranker(Encoder):
    """Another model of the same kind."""


def tag(words: torch.Tensor) -> torch.Tensor:
    return (words * 3 + 1).cumsum(dim=1) % 7


def lengths() -> list[int]:
    """Return the number of words of each request."""
    counted = json.loads(LENGTHS.read_text())
    sizes = [min(int(size), EDGES[-1]) for size in counted]
    return random.Random(8).choices(sizes, list(counted.values()), k=REQUESTS)


def count_docstrings() -> dict[str, int]:
    """Return the number of docstrings of Python's standard library by their number of words."""
    counted = collections.Counter[int]()
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3"}.isdisjoint(file.parts):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    counted[len((ast.get_docstring(node) or "").split())] += 1
    return {str(size): counted[size] for size in sorted(counted) if size}


def recorded() -> dict[str, Any]:
    """Answer the requests without an artifact, and return what was recorded and compiled."""
    replica = Replica()
    start = warm_up(replica, record="signatures")
    for number, length in enumerate(lengths()):
        replica.answer(number, length)
    assert isinstance(SESSION.recorder, Recorder)
    calls, not_recorded = SESSION.recorder.calls()
    plan = make_plan(calls, not_recorded)
    return {"plan": plan.to_json(), "paths_hit": start.report().after_ready.compiles}


def reduced(plan: dict[str, Any]) -> dict[str, Any]:
    """Build with a plan. Return the plan of the artifact, and the code that each call reached."""
    from serve_warm.learn import reduced as module

    seen: list[frozenset[Any]] = []
    reduce_plan = module.reduce_plan

    def noting(given: InputPlan, found: Any, **options: Any) -> InputPlan:
        seen.extend(each.codes for each in found)
        return reduce_plan(given, found, **options)

    module.reduce_plan = noting
    start = warm_up(Replica(), plan=json.dumps(plan), on_unproven="fail")
    _, facts = asyncio.run(start.pack())
    numbers = {code: number for number, code in enumerate(frozenset().union(*seen))}
    reached = {frozenset(numbers[code] for code in codes) for codes in seen}
    return {"plan": facts["plan"], "reached": [sorted(each) for each in reached]}


def compiled_by_requests(plan: dict[str, Any]) -> int:
    """Return how often the requests compile after a start that has replayed a plan."""
    replica = Replica()
    start = warm_up(replica, plan=json.dumps(plan), on_unproven="fail")
    for number, length in enumerate(lengths()):
        replica.answer(number, length)
    return start.report().after_ready.compiles


def smallest(reached: list[list[int]]) -> int:
    """Return the size of the smallest cover, by enumerating subsets of growing size."""
    wanted = set().union(*map(set, reached))
    for size in range(len(reached) + 1):
        for chosen in itertools.combinations(reached, size):
            if set().union(*map(set, chosen)) == wanted:
                return size
    raise AssertionError("all subsets were tried")


def padding_saved() -> float:
    """Return the share of padded values that the best edges save, of those of `EDGES`."""
    counts = collections.Counter(lengths())
    own = sum(size * count for size, count in counts.items())
    padded = sum(next(e for e in EDGES if e >= size) * count for size, count in counts.items())
    best = best_edges(counts, len(EDGES)).padding * own
    return 1 - best / (padded - own)


def recorder_us() -> dict[str, float]:
    """Return what recording costs a call, in microseconds, by the kind of call."""
    function = serve_warm.compile(lambda *given: given[0], backend="eager", dynamic=False)
    one, four = (torch.ones(3),), tuple(torch.ones(3) for _ in range(4))
    new = [(torch.ones(size),) for size in range(1, 1001)]

    def seconds(calls: int, call: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls

    def paired(arguments: tuple[torch.Tensor, ...], calls: int = 20_000) -> float:
        call = functools.partial(function, *arguments)
        call()
        without, with_it = [], []
        for _ in range(15):
            SESSION.recorder = None
            without.append(seconds(calls, call))
            SESSION.recorder = recorder
            with_it.append(seconds(calls, call))
        # The fastest runs are those that nothing else on the machine disturbed, as in timeit.
        return 1e6 * (min(with_it) - min(without))

    with torch.inference_mode():
        recorder = Recorder()
        recorder.begin()
        known, of_four = paired(one), paired(four)
        costs = []
        for _ in range(15):
            fresh = Recorder()
            fresh.begin()
            counts = next(iter(SESSION.counts))
            each = iter(new)
            costs.append(seconds(len(new), lambda: fresh.note(counts, next(each), {})))  # noqa: B023
    SESSION.recorder = None
    # The statement with which the dispatcher counts a call that an entry answers.
    uses = {"counts": next(iter(SESSION.counts)).by_use, "use": ("t0", 2, "", "")}
    uses["counts"][uses["use"]] = 0
    counted = min(timeit.repeat("counts[use] += 1", globals=uses, number=100_000, repeat=9))
    return {
        "known": round(known, 2),
        "each_more_tensor": round((of_four - known) / 3, 2),
        "new": round(1e6 * min(costs), 2),
        "where_an_entry_answers": round(10 * counted, 2),
    }


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(private, function, *args).result()


def private(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with caches of its own."""
    import os

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        return function(*args)


def measure() -> dict[str, Any]:
    traffic = apart(recorded)
    plan = traffic["plan"]
    made = apart(reduced, plan)
    missed = apart(compiled_by_requests, made["plan"])
    kept = InputPlan.from_json(made["plan"], source="the artifact")
    return {
        "requests": REQUESTS,
        "kinds": len(plan["calls"]),
        "paths_hit": traffic["paths_hit"],
        "paths_covered": traffic["paths_hit"] - missed,
        "inputs": len(kept.calls),
        "minimum": smallest(made["reached"]),
        "share": round(kept.share, 4),
        "padding_saved": round(padding_saved(), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that gets the results")
    parser.add_argument("--recorder", action="store_true", help="only measure the recorder")
    parser.add_argument("--count", action="store_true", help="only count the docstrings again")
    options = parser.parse_args()
    if options.count:
        LENGTHS.write_text(json.dumps(count_docstrings()) + "\n")
        return 0
    result: dict[str, Any] = {} if options.recorder else {"plan": measure()}
    result["recorder_us"] = apart(recorder_us)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if options.json is not None:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        # The rest is of the machine that measured it.
        known |= result | {"recorder_machine" if options.recorder else "machine": machine()}
        options.json.write_text(json.dumps(known, indent=1) + "\n")
    if options.recorder:
        return 0
    plan = result["plan"]
    return plan["paths_covered"] < plan["paths_hit"] or plan["inputs"] > 1.2 * plan["minimum"]


if __name__ == "__main__":
    sys.exit(main())
