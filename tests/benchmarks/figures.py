# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A program that writes measured figures, and texts from the code, into the documents.

    python tests/benchmarks/figures.py

`make bench` runs it at the end. Run it too after you change a setting, a command, an exit code, a
verdict or a metric. tests/tooling/test_readme.py fails if a document is out of date.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import from_code, house, limits

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
NODE = ROOT / "docs" / "reference" / "node.md"
SETTINGS = ROOT / "docs" / "reference" / "settings.md"
CLI = ROOT / "docs" / "reference" / "cli.md"
EXIT_CODES = ROOT / "docs" / "reference" / "exit-codes.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
MESSAGES = ROOT / "docs" / "reference" / "messages.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
LEVELS = ROOT / "docs" / "concepts" / "levels.md"
GENERATION = ROOT / "docs" / "guides" / "generation.md"
IMAGE = ROOT / "docs" / "guides" / "images.md"
GPU = ROOT / "docs" / "benchmarks-gpu.md"
EXAMPLES = ROOT / "deployments"
RESULTS = Path(__file__).parent / "results"

NAMES = {
    "cold": "cold: serve_warm without an artifact",
    "torch_bytes": "only torch's own cache (`load_cache_artifacts`)",
    "warm": "serve_warm",
}


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def head(*names: str, left: int = 1) -> list[str]:
    """Return the first lines of a table. The columns after the first `left` ones have numbers."""
    return [row(*names), f"|{'---|' * left}{'---:|' * (len(names) - left)}"]


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def page(*parts: str | Sequence[str]) -> str:
    """Return tables and paragraphs, with an empty line between two of them."""
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts)


def figures() -> str:
    """Return the first table of the README: three ways to start, and the floor."""
    result = load("text_embedder")
    medians, machine = result["medians"], result["machine"]
    repeats = sum(run["mode"] == "warm" for run in result["runs"])
    first = ("MiniLM, six shapes, one replica, on a CPU", "time from model construction to proof")
    lines = head(*first, "ready", "compiler processes")
    floor = ("floor: only imports, weight loading and forward passes", result["floor"])
    named = [*((name, medians[mode]) for mode, name in NAMES.items()), floor]
    for name, of in named:
        compilers = f"{of.get('compiler_processes', 0):.0f}"
        lines.append(row(name, f"{of['to_proof_s']:.1f} s", f"{of['ready_s']:.1f} s", compilers))
    return page(
        lines,
        f"`make bench`: medians of {repeats} interleaved runs on {machine['cpus']} shared "
        f"cores ({machine['cpu']}), no GPU, torch {machine['torch']}, Ray {machine['ray']}, "
        f"Python {machine['python']}. [Other ways to start, other models, GPUs]"
        "(docs/benchmarks.md).",
    )


def costs() -> str:
    """Return a list: a comparison of the README's starts, and the costs of a request and a pull."""
    result = load("text_embedder")
    ratios = result["ratios"]
    other = load("image_classifier")["ratios"]
    request = load("request")["added_us"]
    transfer = load("transfer")
    items = (
        (
            "From the end of model construction to the proof, a warm start takes "
            f"{ratios['warm_to_cold']:.2f} times as long as a cold start, and "
            f"{ratios['warm_to_torch_bytes']:.2f} times as long as one from torch's own cache "
            f"(ResNet-152: {other['warm_to_cold']:.2f} and {other['warm_to_torch_bytes']:.2f})."
        ),
        (
            f"serve_warm adds {request['inline']:.1f} µs to a request whose model is warm, and "
            f"`on_model_thread` adds {request['on_model_thread']:.0f} µs."
        ),
        (
            f"Pulling and verifying 256 MiB takes {transfer['pull_s']:.2f} s with 85 MB/s for each "
            f"connection ({transfer['times_a_single_stream']:.1f} times as fast as a single "
            f"stream), and {transfer['peak_mib']:.0f} MiB of memory."
        ),
    )
    return "\n".join(f"- {item}" for item in items)


def example(name: str) -> str:
    """Return the table in the README of an example: three ways to start it.

    The table has CPU time, because wall time depends on other work on the machine.
    """
    result = load(name)
    medians, machine = result["medians"], result["machine"]
    counts = {"compiler_processes": "compiler processes"}
    counts |= {"compiles_after_ready": "compiles after ready"}
    lines = head("start", "CPU time until ready", "vs. cold", *counts.values())
    for mode, words in NAMES.items():
        of = medians[mode]
        took = (f"{of['cpu_s']:.0f} s", f"{of['cpu_s'] / medians['cold']['cpu_s']:.2f}")
        lines.append(row(words, *took, *(f"{of[key]:.0f}" for key in counts)))
    repeats = sum(run["mode"] == "warm" for run in result["runs"])
    runs = "one run" if repeats == 1 else f"medians of {repeats} runs"
    return page(
        lines,
        f"`serve-warm bench`, {runs} of each on {machine['cpus']} shared cores "
        f"({machine['cpu']}) with other work, no GPU, torch {machine['torch']}, Ray "
        f"{machine['ray']}, Python {machine['python']}.",
    )


SEAT_STARTS = {
    "plain": "on a plain worker",
    "preload": "on a worker with `RAY_preload_python_modules`",
    "seat": "on a seat",
    "empty": "an empty deployment, without torch",
}


OVERHEAD_PARTS = ("process", "ray", "imports", "ours")
"""The parts of a start on a seat that have a limit: all but CUDA, the weights and the passes."""


def seats() -> str:
    """Return the table of starts on seats. The JSON has the parts of each start."""
    found = load("seats")
    lines = head("creation → RUNNING", "median", "least to most", "without weights and passes")
    for mode, words in SEAT_STARTS.items():
        took, parts = found[f"{mode}_s"], found["seconds"].get(mode)
        times = (f"{statistics.median(took):.1f} s", f"{min(took):.1f} to {max(took):.1f} s")
        lines.append(row(words, *times, _overhead_of(parts) if parts else ""))
    machine, versions = found["machine"], found["versions"]
    return page(
        lines,
        (
            f"`make seats`: {found['starts']} rounds of all starts on {machine['cpus']} shared "
            f"cores, torch {versions['torch']}, Ray {versions['ray']}. A start on a seat takes "
            f"{_ratio(found['seat_s'], found['plain_s'])} times as long as on a plain worker. "
            f"{found['full_hits']} of {found['starts']} starts on seats were full hits. A seat "
            f"uses {found['memory_bytes_per_seat'] / 1e6:.0f} MB, with its share of shared memory."
        ),
        *([_scale_ups(found)] if "scale_s" in found else []),
        *([_neighbour(found)] if "neighbour_s" in found else []),
        *(_seats_on_a_gpu(found["gpu"]) if found["gpu"] else []),
    )


def _overhead_of(parts: Mapping[str, float]) -> str:
    return f"{sum(parts[name] for name in OVERHEAD_PARTS):.2f} s"


def _ratio(ours: Iterable[float], others: Iterable[float]) -> str:
    """Return the median of the ratios within a round."""
    return f"{statistics.median(our / other for our, other in zip(ours, others, strict=True)):.2f}"


def _scale_ups(found: Mapping[str, Any]) -> str:
    plain, seat = found["scale_s"]["plain"], found["scale_s"]["seat"]
    return (
        "When a loaded deployment was scaled from one replica to three, the second new replica "
        f"answered after {statistics.median(plain['all']):.1f} s on plain workers, and after "
        f"{statistics.median(seat['all']):.1f} s on seats ({found['scale_hits']} of "
        f"{found['scale_starts']} found a seat)."
    )


def _neighbour(found: Mapping[str, Any]) -> str:
    alone, importing = (
        f"{statistics.median(found['neighbour_s'][name]['p99']) * 1e3:.1f} ms"
        for name in ("alone", "importing")
    )
    return (
        f"While a seat ran its imports, the p99 latency of its replica was {importing} instead of "
        f"{alone}."
    )


def _seats_on_a_gpu(found: Mapping[str, Any]) -> list[str | list[str]]:
    modes = ("plain", "preload", "seat")
    lines = head("on a GPU", *modes, "seat, without CUDA, weights and passes")
    for model, each in found.items():
        times = (f"{statistics.median(each[f'{mode}_s']):.1f} s" for mode in modes)
        lines.append(row(model, *times, _overhead_of(each["seconds"]["seat"])))
    about = next(iter(found.values()))
    machine, versions = about["machine"], about["versions"]
    rounds = " and ".join(f"{each['starts']} rounds of {model}" for model, each in found.items())
    text = (
        f"`python tests/gpu/seats_gpu.py`: level 3, {rounds} on one {machine['gpu']}, torch "
        f"{versions['torch']}, Ray {versions['ray']}."
    )
    return [lines, text]


def imports() -> str:
    """Return how long a replica takes to import serve_warm."""
    found = load("imports")
    versions = found["versions"]
    return (
        f"Until READY, a level-3 replica imports {found['modules']} modules of serve_warm, which "
        f"add {statistics.median(found['cpu_s']) * 1e3:.0f} ms of CPU time to the imports of torch "
        f"and Ray Serve (`python tests/benchmarks/bench_imports.py`, torch "
        f"{versions['torch']}, Ray {versions['ray']})."
    )


# The comparison of starts ---------------------------------------------------------------------

UNKNOWN = "no reason is known"

OTHERS = ("cold", "torch_bytes")
"""Systems that the first tables of docs/benchmarks.md compare with serve_warm."""


def comparison() -> str:
    """Return the comparison of starts: readiness, needs and claims."""
    return compared(load("startup"))


def compared(found: Mapping[str, Any]) -> str:
    """Return the text for a document that bench_startup.py writes."""
    needs = [f"- {name}: {words}" for name, words in found["needs"].items() if name != "floor"]
    return page(
        readiness(found),
        "### What each system needs",
        needs,
        "## Claims and results",
        *asked(found),
    )


def measured(found: Mapping[str, Any]) -> dict[tuple[str, str, int | None], Mapping[str, Any]]:
    """Return the rows with figures, by workload, system and level."""
    return {
        (of["workload"], of["system"], of["level"]): of
        for of in found["rows"]
        if of["ready_s"] is not None
    }


def best_alternative(
    found: Mapping[str, Any], workload: str, clock: str, digits: int, *without: str
) -> str:
    """Return the least time of an alternative other than a cold start, and its name."""
    rows = measured(found)
    keys = ((workload, name, None) for name in limits.ALTERNATIVES if name not in without)
    others = [rows[key] for key in keys if key in rows and key[1] != "cold"]
    if not others:
        return "–"
    least = min(others, key=lambda of: of[clock])
    return f"{least[clock]:.{digits}f} ({least['system']})"


def cell(of: Mapping[str, Any] | None, clock: str, digits: int) -> str:
    return "–" if of is None else f"{of[clock]:.{digits}f}"


def readiness(found: Mapping[str, Any]) -> Sequence[str]:
    """Return the times to ready, and the time of a call in eager execution."""
    rows = measured(found)
    levels = tuple(f"level {n}" for n in (2, 3))
    lines = head("ready, s", "cold", "best alternative", *levels, "eager", "eager call / level 3")
    for workload, title in found["titles"].items():
        eager = rows.get((workload, "eager", None))
        ours = [rows.get((workload, "serve_warm", n)) for n in (2, 3)]
        calls = "–"
        if eager and ours[-1]:
            keys = ("steady_p50_s", "steady_largest_p50_s")
            calls = ", ".join(f"{eager[key] / ours[-1][key]:.2f}" for key in keys)
        cells = (
            cell(rows.get((workload, "cold", None)), "ready_s", 1),
            best_alternative(found, workload, "ready_s", 1),
            *(cell(of, "ready_s", 1) for of in (*ours, eager)),
        )
        lines.append(row(short(title), *cells, calls))
    return lines


def short(title: str) -> str:
    return title.split(",", maxsplit=1)[0]


def part(value: float | None) -> str:
    """Write a ratio in the form of the limits: `1/40` if it is small."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value > 0.5 else f"1/{1 / value:.3g}"


def asked(found: Mapping[str, Any]) -> Sequence[str | Sequence[str]]:
    """Return the limits with results, and the reasons for the missed ones."""
    all_checks = limits.checks(found)
    by_claim: dict[tuple[str, float], dict[str, limits.Check]] = {}
    faster = [check for check in all_checks if check.limit == 1.0]
    for check in all_checks:
        if check.limit != 1.0 or not check.held:  # the others are counted below
            by_claim.setdefault((check.claim, check.limit), {})[check.workload] = check
    names = {
        name: short(title)
        for name, title in found["titles"].items()
        if any(name in checks for checks in by_claim.values())
    }
    lines = head("claim", "limit", *names.values())
    for (claim, limit), checks in by_claim.items():
        cells = ("–" if name not in checks else of_check(checks[name]) for name in names)
        lines.append(row(claim, part(limit), *cells))
    reasons = dict.fromkeys(
        limits.MISSED.get(check.key, UNKNOWN) for check in all_checks if not check.held
    )
    return [
        lines,
        " ".join(["Missed limits are in bold:", *(f"{reason}." for reason in reasons)])
        if reasons
        else "All limits are held.",
        (
            f"Levels {' and '.join(map(str, limits.FASTER))} were faster than the alternatives in "
            f"{sum(check.held for check in faster)} of {len(faster)} comparisons of readiness and "
            "overhead (without the overhead of aotinductor, which includes loading the weights). "
            f"{_not_compared(found)}"
        ),
    ]


def of_check(check: limits.Check) -> str:
    return part(check.value) if check.held else f"**{part(check.value)}**"


def _not_compared(found: Mapping[str, Any]) -> str:
    """Return how many comparisons with alternatives are missing, and which starts failed."""
    workloads: dict[str, list[str]] = {}
    count = 0
    for of in found["rows"]:
        if of["system"] not in limits.ALTERNATIVES or of["ready_s"] is not None:
            continue
        workloads.setdefault(of["system"], []).append(short(found["titles"][of["workload"]]))
        clocks = 1 if of["system"] == "aotinductor" else 2  # readiness, and overhead
        count += clocks * len(limits.FASTER)
    if not count:
        return "Every alternative started on every model."
    words = "; ".join(f"{system} on {', '.join(titles)}" for system, titles in workloads.items())
    return f"{count} comparisons are missing, because the alternative failed ({words})."


def side_by_side(found: Mapping[str, Any]) -> str:
    """Return the overheads of the comparison as a table, and where they were measured."""
    rows = measured(found)
    ways = ("cold", "torch's own cache", "best alternative")
    levels = ("level 1", "level 2", "level 2 without `import left`", "level 3")
    lines = head("overhead, s", *ways, *levels)
    for workload, title in found["titles"].items():
        ours = {n: rows.get((workload, "serve_warm", n)) for n in (1, 2, 3)}
        cells = (
            *(cell(rows.get((workload, name, None)), "overhead_s", 0) for name in OTHERS),
            # An AOTInductor package contains the weights, and its overhead includes loading them.
            best_alternative(found, workload, "overhead_s", 0, "aotinductor"),
            *(cell(ours[n], "overhead_s", 2) for n in (1, 2)),
            *(cell(ours[2], "past_import_s", 2), cell(ours[3], "overhead_s", 2)),
        )
        lines.append(row(short(title), *cells))
    machine = found["machine"]
    return page(
        lines,
        f"Medians of {found['repeats']} rounds on {machine['cpus']} shared cores "
        f"({machine['cpu']}), with {found['threads']} thread, without Ray, and without a GPU, for "
        f"torch {machine['torch']} and Python {machine['python']}. "
        "[`startup.json`](../tests/benchmarks/results/startup.json) has all systems and columns.",
    )


def loading() -> str:
    """Return how long it takes to load the entries of an artifact, and why they load one by one."""
    found = load("startup")
    by_level = {
        level: [
            row
            for row in found["rows"]
            if (row["system"], row["level"]) == ("serve_warm", level) and row["ready_s"] is not None
        ]
        for level in (2, 3)
    }
    slowest = max(by_level[2], key=lambda row: row["stages"]["load"])
    low, high = extremes(row["stages"]["load"] for row in by_level[2])
    low_3, high_3 = extremes(row["stages"]["load"] for row in by_level[3])
    title = short(found["titles"][slowest["workload"]])
    cpu_s, wall_s = slowest["cpu_stages"]["load"], slowest["stages"]["load"]
    waits = ", so it spends no time waiting" if wall_s < 1.1 * cpu_s else ""
    return (
        "serve_warm loads entries one by one. Finishing the pull, checking the artifact and "
        f"loading the entries together take {low:.2f} to {high:.2f} s at level 2, and "
        f"{low_3:.2f} to {high_3:.2f} s at level 3 ([{len(by_level[2])} models]"
        f"(../benchmarks.md)). On {title}, the slowest model, this work takes "
        f"{cpu_s:.2f} s of CPU time and {wall_s:.2f} s of wall time{waits}. Python "
        "unpickles and checks each fact, and the GIL allows only one thread to do this at a time. "
        "It was not measured whether other parts of the load could run in parallel."
    )


def extremes(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def architectures(name: str = "architectures") -> str:
    """Return the level that each model reached, and the reasons of those below the highest one."""
    found = load(name)
    versions, rows = found["versions"], found["rows"]
    libraries = ", ".join(f"{name} {versions[name]}" for name in versions if name != "python")
    software = f"Versions: Python {versions['python']}, {libraries}, {found['machine']}"
    if name != "architectures" and versions == load("architectures")["versions"]:
        software = "The versions are those above"
    levels = [level for level in (2, 3) if ran(rows, level)]
    reached = ", and ".join(
        f"{served(rows, level)} of {ran(rows, level)} models reached level {level}"
        for level in levels
    )
    highest: dict[str, list[str]] = {}
    below: dict[tuple[int, str], list[str]] = {}
    for of in rows:
        level = max((each for each in levels if of[f"level_{each}"]["served"]), default=1)
        if level == levels[-1]:
            name_alone = of["name"].removeprefix(f"{of['library']} ")
            highest.setdefault(of["library"], []).append(name_alone)
        else:
            reason = SHARED_ADVICE.split(of[f"level_{level + 1}"]["reason"])[0].replace("|", "/")
            short = textwrap.shorten(reason, 165, placeholder=" …")
            below.setdefault((level, short), []).append(of["name"])
    return page(
        f"{reached}. {software}.",
        [
            *head("library", f"models that reached level {levels[-1]}", left=2),
            *(row(library, "; ".join(names)) for library, names in highest.items()),
        ],
        [
            *head("other models", "level", "why not higher", left=3),
            *(row("; ".join(below[key]), *key) for key in sorted(below)),
        ],
    )


SHARED_ADVICE = re.compile(
    r"\. (?:Compile the parts|torch can trace|These parts|The fixed limit|Pass the) |, which keeps "
)
"""The start of explanations that the table leaves out, because the page has them once."""


def served(rows: Iterable[Mapping[str, Any]], level: int) -> int:
    return sum((row[f"level_{level}"] or {}).get("served", False) for row in rows)


def ran(rows: Iterable[Mapping[str, Any]], level: int) -> int:
    return sum(row[f"level_{level}"] is not None for row in rows)


def generation() -> str:
    """Return the models that decode with compiled steps, and the cost of a start and a step."""
    found = load("generation")
    versions, rows = found["versions"], found["rows"]
    slowest = max(of["to_proof_cpu_s"] / of["torch_cpu_s"] for of in rows)
    cpu = [of["to_proof_cpu_s"] / of["cached_cpu_s"] for of in rows]
    steps_us = extremes(of["dispatch_us"] for of in rows)
    equal, compiled = all(of["tokens_equal"] for of in rows), sum(of["compiles"] for of in rows)
    by_model = {(of["model"], of["level"]): of for of in rows}
    return page(
        f"Versions: transformers {versions['transformers']}, torch {versions['torch']}, Python "
        f"{versions['python']}, {versions['machine']}. `start` is at most {slowest:.1%} of "
        f"`torch`, and {min(cpu):.1%} to {max(cpu):.0%} of a start at level 1. "
        f"{'All' if equal else 'Not all'} models gave the tokens of eager execution, and the "
        f"starts compiled {compiled or 'nothing'}. serve_warm's own code takes {steps_us[0]:.0f} "
        f"to {steps_us[1]:.0f} µs of a decode step.",
        [
            *head("CPU s", "start, level 2", "start, level 3", "torch"),
            *(
                row(
                    model,
                    *(f"{by_model[model, each]['to_proof_cpu_s']:.2f}" for each in (2, 3)),
                    f"{by_model[model, 2]['torch_cpu_s']:.1f}",
                )
                for model in dict.fromkeys(of["model"] for of in rows)
            ),
        ],
    )


def probe_cost() -> str:
    """Return how long probes take, idle and during a compile."""
    result = load("probe")
    idle, busy = (result["ms"][when] for when in ("idle", "beside_a_compile"))
    words = {
        "exec": "`node.py probe`",
        "exec_compiled_file": "`node.pyc probe`, compiled beforehand",
        "http": "`/readyz`",
    }
    lines = head("95th percentile, ms", "idle", "during a compile")
    for key, name in words.items():
        lines.append(row(name, f"{idle[key]['p95']:.1f}", f"{busy[key]['p95']:.1f}"))
    return page(
        lines, f"Measured by `tests/benchmarks/bench_probe.py` on {result['cpus']} shared cores."
    )


def comparison_line() -> str:
    return side_by_side(load("startup"))


def on_a_gpu() -> str:
    """Return the starts that were measured on a GPU, with their claims."""
    found = load("startup_gpu")
    machine, rows = found["machine"], measured(found)
    levels = tuple(f"level {n}" for n in (1, 2, 3))
    lines = head("to proof, s", "cold", "torch's own cache", "best alternative", *levels)
    for workload, title in found["titles"].items():
        cells = (
            *(cell(rows.get((workload, name, None)), "to_proof_s", 1) for name in OTHERS),
            best_alternative(found, workload, "to_proof_s", 1),
            *(cell(rows.get((workload, "serve_warm", n)), "to_proof_s", 1) for n in (1, 2, 3)),
        )
        lines.append(row(title, *cells))
    claims = [
        f"- {check.claim}: {of_check(check)} (limit {part(check.limit)})"
        for check in limits.checks_on_a_gpu(found)
    ]
    return page(
        lines,
        f"Medians of {found['repeats']} rounds on one {machine['gpu']}, torch "
        f"{machine['torch']}. "
        "[`startup_gpu.json`](../tests/benchmarks/results/startup_gpu.json) has the command and "
        "all columns.",
        claims,
    )


def builds_on_a_gpu() -> str:
    """Return where the seconds of level-3 builds on a GPU go, beside those of an earlier commit."""
    found = load("build_gpu")
    machine = found["machine"]
    parts = ("compile", "code", "wait", "pack", "whole", "cpu_s")
    lines = head("workload", "", *(part.replace("cpu_s", "CPU seconds") for part in parts), left=2)
    for of in found["rows"]:
        lines += [
            row(of["workload"], side, *(f"{of[side][part]:.0f}" for part in parts))
            for side in ("before", "after")
            if side in of  # `make gpu` builds with its own commit alone
        ]
    before = f"--before {found['before']} " if found["before"] else ""
    return page(
        f"`python tests/benchmarks/bench_build.py {before}--workloads "
        f"{','.join(of['workload'] for of in found['rows'])} --turns 1`, {machine['gpu']}, "
        f"{machine['cpus']} cores, torch {machine['torch']}, seconds.",
        lines,
    )


def requests_on_a_gpu() -> str:
    """Return the clients' measurements of a replica on a GPU, and of a naive replica."""
    found = load("requests_gpu")
    machine, ours, naive = found["machine"], found["serve_warm"], found["naive"]
    sides = (ours, naive)

    def alone(side: Mapping[str, Any], key: str, digits: int) -> str:
        return f"{statistics.median(one[key] for one in side['alone']):.{digits}f}"

    def ready(side: Mapping[str, Any]) -> str:
        all_s = side["ready_s"] if isinstance(side["ready_s"], list) else [side["ready_s"]]
        return f"{statistics.median(all_s):.1f}"

    def after(side: Mapping[str, Any], key: str) -> str:
        return str((side.get("after_ready") or side["after_init"])[key])

    together = [side["together"] for side in sides]
    lines = [
        (
            f"`python tests/gpu/serve_requests.py` with `{found['config']}`, on an "
            f"{machine['gpu']}, torch {machine['torch']}."
        ),
        "",
        "| | serve_warm | naive |",
        "|---|---:|---:|",
        row("ready, s", *map(ready, sides)),
        row("median of a single client, ms", *(alone(side, "p50_ms", 1) for side in sides)),
        row("first request / median", *(alone(side, "first_to_p50", 2) for side in sides)),
        row(
            f"answers to {together[0]['clients']} clients",
            *(f"{each['requests']:,} in {each['seconds']:.0f} s" for each in together),
        ),
        row(
            "their median and p99, ms", *(f"{e['p50_ms']:.0f}, {e['p99_ms']:.0f}" for e in together)
        ),
        row("answers that differ from eager execution", *(str(each["wrong"]) for each in together)),
    ]
    counted = ("compiles", "captures", "kernels", "tunings")
    lines.append(
        row(
            "compiles, captures, kernel builds, autotuning runs after READY",
            *(", ".join(after(side, key) for key in counted) for side in sides),
        )
    )
    lines.append(
        row("CUDA graphs abandoned after READY", *(after(each, "graph_skips") for each in sides))
    )
    return "\n".join(lines)


def warm_calls() -> str:
    """Return the tables of warm calls, by model and by the change before each call."""
    found, changes = load("call"), load("changes")
    versions = found["versions"]
    by_model = head("model", "kernels", "torch.compile µs", "serve_warm µs", "ratio", left=2)
    for of in found["models"]:
        us = (f"{of['us'][side]:.0f}" for side in ("torch_compile", "serve_warm"))
        by_model.append(row(of["name"], of["kernels"], *us, f"{of['ratio']:.2f}"))
    by_level: dict[int, list[str]] = {}
    for of in changes["rows"]:
        change = f"{of['name'].removesuffix(' before each call')} {of['ratio']:.2f}"
        by_level.setdefault(of["level"], []).append(change)
    most = dict.fromkeys(of["limit"] for of in changes["rows"])
    return page(
        f"`python tests/benchmarks/bench_call.py`, medians of {found['rounds']} alternating "
        f"rounds of {found['calls_per_round']} calls, 1 thread, torch {versions['torch']}, Python "
        f"{versions['python']}; the ratio must be at most {found['limit']}.",
        by_model,
        f"`python tests/benchmarks/bench_changes.py`, a model of {changes['layers']} layers, "
        f"medians of {changes['rounds']} rounds of {changes['calls_per_round']} calls. The ratios "
        "include a change before each call. At level 1, `torch.compile` runs the calls. There were "
        f"{sum(of['compiles'] for of in changes['rows'])} compiles. Limits: "
        f"{' and '.join(map(str, most))} (for adapters).",
        [f"- level {level}: {'; '.join(by_level[level])}" for level in sorted(by_level)],
    )


def soundness() -> str:
    """Return the results of calls after a change, by version of torch and by system."""
    found = load("soundness")
    values = ("right", "level1", "refused", "raises", "wrong")
    lines = [
        (
            f"`make soundness`, {len(found['rows'])} cases on {found['machine']['cpu']}, Python "
            f"{found['versions']['python']}. With torch 2.11 and 2.15, only the cases about "
            "lookups, identity and returned values were run, and, with an earlier commit, those "
            "about guards. 572 of the cases with torch 2.13 were run with an earlier commit too."
        ),
        "",
        f"| torch | | {' | '.join(values)} |",
        f"|---|---|{'---:|' * len(values)}",
    ]
    for torch in sorted({row["torch"].partition("+")[0] for row in found["rows"]}):
        rows = [row for row in found["rows"] if row["torch"].partition("+")[0] == torch]
        for key, name in (("level2", "level 2"), ("level3", "level 3"), ("stock", "torch.compile")):
            counts = [sum(row[key] == value for row in rows) for value in values]
            lines.append(f"| {torch} | {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def fuzz() -> str:
    found = load("fuzz")
    torch = found["torch"].partition("+")[0]
    return (
        f"`python tests/soundness/fuzz.py --programs 50000 --seed {found['seed']}`, torch {torch}: "
        f"{found['programs']:,} programs of {found['builds']:,} builds, with {found['pairs']:,} "
        "different pairs of a read and a change. Entries answered "
        f"{found['answered_by_entry']:,} programs, and `torch.compile` answered "
        f"{found['level1']:,}. {found['wrong']} answers were wrong."
    )


def half_precision() -> str:
    """Return the start of a decoder in bfloat16 on a GPU, by level."""
    found = load("half_precision_gpu")
    machine, static = found["machine"], found["static_cache"]
    names = ("RMSE ratio", "largest-error ratio", "load to proof", "step")
    lines = head("level", "refused", *names)
    for of in found["half_precision"]:
        entries = of["entries"]
        ratios = (max(e[name] for e in entries) for name in ("rmse_ratio", "max_ratio"))
        cells = (f"{len(of['refused'])} of {len(entries)}", *(f"{each:.2f}" for each in ratios))
        times = (f"{of['to_proof_s']:.2f} s", f"{of['full_step_ms']:.1f} ms")
        lines.append(row(of["level"], *cells, *times))
    return page(
        f"`python tests/gpu/models_gpu.py --models half_precision`, {machine['gpu']}, torch "
        f"{machine['torch']}: random weights of Qwen3-0.6B's size in bfloat16, 8 slots of 1,024 "
        "tokens, CUDA graphs. Steps are medians with 8 rows. With a static cache of transformers "
        f"and `torch.compile`, a step took {static['full_step_ms']:.1f} ms.",
        lines,
    )


def yardstick() -> str:
    """Return how well full precision tells right code from damaged code, by device and dtype."""
    found = load("yardstick")
    names = ("right: pass", "fixed limit", "bad: refused", "fixed limit", "RMSE ratio")
    lines = head("device", "dtype", *names, left=2)
    kinds = dict.fromkeys((row["gpu"] or "CPU", row["torch"]) for row in found["rows"])
    for (device, torch), dtype in itertools.product(kinds, ("bfloat16", "float16", "float32")):
        rows = [
            row
            for row in found["rows"]
            if ((row["gpu"] or "CPU"), row["torch"], row["dtype"]) == (device, torch, dtype)
        ]
        right = [row for row in rows if row["damage"] is None]
        damaged = [row for row in rows if row["expected"] is False]
        passed, old_passed = (sum(row[key] for row in right) for key in ("passes", "old_passes"))
        kept, old_kept = (sum(not row[key] for row in damaged) for key in ("passes", "old_passes"))
        largest = max(row["rmse_ratio"] for row in right)
        lines.append(
            f"| {device}, torch {torch.partition('+')[0]} | {dtype} | {passed} of {len(right)} | "
            f"{old_passed} | {kept} of {len(damaged)} | {old_kept} | {largest:.2f} |"
        )
    few = found["small"]
    said = (
        f"Of {sum(row['right'] for row in few)} right results "
        f"of 1, 2 and 10 numbers, {sum(row['refused'] for row in few)} were refused."
    )
    return page(lines, said)


def at_once_on_gpus() -> str:
    """Return a comparison of replicas that start at the same time with a single replica."""
    found = load("replicas_gpu")
    *runs, summary = found["runs"]
    together = [run for run in runs if run["run"] == "together"]
    took = [run["to_proof_s"] for run in together]
    warm = sum(run["verdict"] == "full_hit" for run in together)
    counted = sum(run[key] for run in together for key in ("compiles", "kernels", "tunings"))
    return (
        f"{summary['replicas']} replicas of `{summary['workload']}` started at the same moment, at "
        f"level {summary['level']}, on {found['gpus']} {found['machine']['gpu']}. {warm} starts "
        f"were full hits. Together, they caused {counted} compiles, kernel builds and autotuning "
        f"runs, and one download of {summary['downloaded_bytes'] / 1e6:.2f} MB. They took "
        f"{statistics.median(took):.1f} s to proof (median; at most {max(took):.1f} s), and a "
        f"replica alone took {summary['alone_s']:.1f} s."
    )


def images() -> str:
    """Return the measurements of `make images`: time and size of each step, and the start."""
    found = load("images")
    machine, versions, seconds = found["machine"], found["versions"], found["seconds"]
    names = {"base": "Debian 12 with Python", "artifact": "`serve-warm build`"}
    names["start"] = "start of `baked`, until a replica is ready"
    steps = []
    for step, took in seconds.items():
        size = found["sizes_bytes"].get(step)
        cost = f"{took:.0f} s" if took >= 1 else "under 1 s"
        steps.append(f"{names.get(step, f'`{step}`')} {cost}{f', {_size(size)}' if size else ''}")
    return (
        f"{'; '.join(steps)}.\n\n"
        f"One run of `{found['command']}` on {machine['cpus']} shared cores, torch "
        f"{versions['torch']}, Ray {versions['ray']}. Sizes are uncompressed, with shared layers. "
        f"The replica was ready in {found['ready_s']:.1f} s (`{found['verdict']}`, "
        f"{found['compiler_processes']} compiler processes)."
    )


def _size(size_bytes: int) -> str:
    if size_bytes < 2e6:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:.2f} GB"


def decoding_on_a_gpu() -> str:
    """Return the cost of decoding with `compile_generation` on a GPU, at each level."""
    found = load("models_gpu")
    machine = found["machine"]
    levels = [
        {
            **each,
            "artifact_megabytes": each["artifact_bytes"] / 1e6,
            "step_ms": each["step_us"] / 1e3,
        }
        for each in found["decode"]
    ]

    def row(name: str, *keys: str, text: str = "{}") -> str:
        cells = (text.format(*(each[key] for key in keys)) for each in levels)
        return f"| {name} | {' | '.join(cells)} |"

    equal = " | ".join("yes" if each["tokens_equal"] else "no" for each in levels)
    counted = ("compiles", "captures_in_steps", "compiles_in_steps")
    lines = [
        row("", "level", text="level {}"),
        "|---|" + "---:|" * len(levels),
        row("build, s", "build_s"),
        row("artifact, MB", "artifact_megabytes", text="{:.1f}"),
        row("load to proof, s", "to_proof_s", text="{:.1f}"),
        f"| same tokens as eager execution | {equal} |",
        row(
            f"compiles in the start; captures, compiles in {levels[0]['steps']:,} steps",
            *counted,
            text="{}; {}, {}",
        ),
        row("decode step with 8 slots, ms", "step_ms", text="{:.2f}"),
        row("CPU time of serve_warm in it, µs", "dispatch_us", text="{:.0f}"),
        "",
        (
            "`python tests/gpu/models_gpu.py --models decode`: a Llama of 8 layers with random "
            f"weights in float32, on one {machine['gpu']}, one run; torch {machine['torch']}."
        ),
    ]
    return "\n".join(lines)


MODELS_ON_A_GPU = {
    "vit_large_gpu": "ViT-L, batch 32",
    "whisper_large_gpu": "Whisper of large's size, 30 s of audio",
}
STARTS_ON_A_GPU = {
    ("cold", None): "cold",
    ("torch_bytes", None): "torch's own cache",
    ("serve_warm", 2): "level 2",
    ("serve_warm", 3): "level 3",
}


def models_on_a_gpu() -> str:
    """Return how long large models take from construction to proof on a GPU."""
    found = load("models_gpu")
    machine = found["machine"]
    rows = {(of["workload"], of["system"], of["level"]): of for of in found["rows"]}
    lines = head("to proof, s", *STARTS_ON_A_GPU.values(), "a call at level 3, ms")
    for model, title in MODELS_ON_A_GPU.items():
        of_each = [rows[(model, *system)] for system in STARTS_ON_A_GPU]
        call_ms = f"{of_each[-1]['steady_p50_s'] * 1e3:.1f}"
        lines.append(row(title, *(f"{of['to_proof_s']:.2f}" for of in of_each), call_ms))
    return page(
        lines,
        "`python tests/gpu/models_gpu.py --models vit_large,whisper_large --turns 1`: models "
        f"in bfloat16 with CUDA graphs, on one {machine['gpu']}, one run of each "
        f"system; torch {machine['torch']}.",
    )


SECTIONS = {
    "figures": (README, figures),
    "costs": (BENCHMARKS, costs),
    "comparison line": (BENCHMARKS, comparison_line),
    "comparison": (BENCHMARKS, comparison),
    "seats": (BENCHMARKS, seats),
    "imports": (BENCHMARKS, imports),
    "warm calls": (BENCHMARKS, warm_calls),
    "starts on a GPU": (GPU, on_a_gpu),
    "builds on a GPU": (GPU, builds_on_a_gpu),
    "requests on a GPU": (GPU, requests_on_a_gpu),
    "replicas at once on GPUs": (GPU, at_once_on_gpus),
    "decoding on a GPU": (GPU, decoding_on_a_gpu),
    "models on a GPU": (GPU, models_on_a_gpu),
    "loading": (LEVELS, loading),
    "soundness": (LEVELS, soundness),
    "yardstick": (LEVELS, yardstick),
    "fuzz": (LEVELS, fuzz),
    "half precision": (GPU, half_precision),
    "architectures": (LEVELS, architectures),
    "more architectures": (LEVELS, functools.partial(architectures, "more_architectures")),
    "generation": (GENERATION, generation),
    "images": (IMAGE, images),
    **{
        f"{name} starts": (EXAMPLES / name / "README.md", functools.partial(example, name))
        for name in ("image_generator", "speech_to_text")
    },
    "probe cost": (NODE, probe_cost),
    "rooms": (ARCHITECTURE, house.picture),
    **{
        f"rooms of {package}": (ARCHITECTURE, functools.partial(house.picture, package))
        for package in house.WITH_ROOMS
    },
    "settings": (SETTINGS, from_code.settings),
    "commands": (CLI, from_code.commands),
    "exit codes": (EXIT_CODES, from_code.exit_codes),
    "verdicts": (MESSAGES, from_code.verdicts),
    "metrics": (METRICS, from_code.replica_metrics),
    "node metrics": (METRICS, from_code.node_metrics),
}
"""The file and the text of each section."""


def section(file: Path, name: str) -> re.Match[str]:
    """Return a match whose only group is the text between the markers of a section."""
    text = file.read_text()
    found = re.search(f"(?<=<!-- {name} -->\n)(.*?)(?=\n<!-- /{name} -->)", text, re.DOTALL)
    if found is None:
        message = f"{file.name} has no section {name!r}"
        raise LookupError(message)
    return found


def main() -> None:
    """Replace the sections in their files."""
    for name, (file, write) in SECTIONS.items():
        old = section(file, name)
        file.write_text(old.string[: old.start()] + write() + old.string[old.end() :])


if __name__ == "__main__":
    main()
