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
    medians, ratios = result["medians"], result["ratios"]
    other = load("image_classifier")["ratios"]
    warm, cold = medians["warm"]["overhead_s"], medians["cold"]["overhead_s"]
    request = load("request")["added_us"]
    transfer = load("transfer")
    items = (
        (
            "From the end of model construction to the proof, a warm start takes "
            f"{ratios['warm_to_cold']:.2f} times as long as a cold start, and "
            f"{ratios['warm_to_torch_bytes']:.2f} times as long as a start from torch's own "
            f"cache. For ResNet-152, the ratios are {other['warm_to_cold']:.2f} and "
            f"{other['warm_to_torch_bytes']:.2f}."
        ),
        (
            f"Without the compute time of the passes, a warm start takes {warm:.2f} s, and a cold "
            f"start takes {cold:.1f} s."
        ),
        (
            f"serve_warm adds {request['inline']:.1f} µs to a request whose model is warm, and "
            f"`on_model_thread` adds {request['on_model_thread']:.0f} µs."
        ),
        (
            f"Pulling and verifying 256 MiB takes {transfer['pull_s']:.2f} s if each connection "
            f"delivers 85 MB/s. This is {transfer['times_a_single_stream']:.1f} times as fast as "
            f"a single stream. The pull uses {transfer['peak_mib']:.0f} MiB of memory."
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
    "plain": "on a plain worker, which must first import everything",
    "preload": "on a worker with `RAY_preload_python_modules`",
    "seat": "on a seat",
    "empty": "an empty deployment, without torch",
}


def seats() -> str:
    """Return the table of starts on seats, with their parts."""
    found = load("seats")
    parts = ("process", "ray", "imports", "weights", "passes", "ours")
    names = ("creation → RUNNING", "median", "least to most", *parts[:-1], "serve_warm")
    lines = head(*names, left=len(names))
    for mode, words in SEAT_STARTS.items():
        took = found[f"{mode}_s"]
        each = found["seconds"].get(mode, {})
        cells = [f"{each[name]:.2f}" if each else "" for name in parts]
        times = (f"{statistics.median(took):.1f} s", f"{min(took):.1f} to {max(took):.1f} s")
        lines.append(row(words, *times, *cells))
    of_plain = statistics.median(
        seat / plain for seat, plain in zip(found["seat_s"], found["plain_s"], strict=True)
    )
    machine, versions = found["machine"], found["versions"]
    loads = dict.fromkeys(f"{load:.0f}" for load in (min(found["load"]), max(found["load"])))
    return page(
        lines,
        (
            f"`make seats`: {found['starts']} rounds of all four starts on {machine['cpus']} "
            f"shared cores ({machine['cpu']}), load {' to '.join(loads)}, "
            f"torch {versions['torch']}, Ray {versions['ray']}. A start "
            f"on a seat takes {of_plain:.2f} times as long as a start on a plain worker (median "
            f"of the rounds). {found['full_hits']} of {found['starts']} starts on seats were full "
            f"hits, and {found['thread_drift']} of them had a different fingerprint than the "
            f"start on a plain worker. A seat uses {found['memory_bytes_per_seat'] / 1e6:.0f} MB "
            "of memory. In this figure, memory that several processes share is divided among them."
        ),
        *([_scale_ups(found)] if "scale_s" in found else []),
        *([_neighbour(found)] if "neighbour_s" in found else []),
        *(_seats_on_a_gpu(found["gpu"]) if found["gpu"] else []),
    )


def _scale_ups(found: Mapping[str, Any]) -> str:
    plain, seat = found["scale_s"]["plain"], found["scale_s"]["seat"]
    first, all_new = (
        statistics.median(s / p for s, p in zip(seat[name], plain[name], strict=True))
        for name in ("first", "all")
    )
    return (
        "Under load, a deployment was scaled from one replica to three. On plain workers, the "
        f"first new replica answered {statistics.median(plain['first']):.1f} s after the scale-up "
        f"began, and the second after {statistics.median(plain['all']):.1f} s. On seats, the "
        f"first answered after {statistics.median(seat['first']):.1f} s, and the second after "
        f"{statistics.median(seat['all']):.1f} s. On a seat, the first new replica takes "
        f"{first:.2f} times as long as on a plain worker, and the second takes {all_new:.2f} "
        "times as long (medians of the rounds). "
        f"{found['scale_hits']} of {found['scale_starts']} new replicas found a seat."
    )


def _neighbour(found: Mapping[str, Any]) -> str:
    alone, importing = found["neighbour_s"]["alone"], found["neighbour_s"]["importing"]

    def compared(name: str) -> str:
        before, beside = statistics.median(alone[name]), statistics.median(importing[name])
        return f"{name} {before * 1e3:.1f} ms without imports, {beside * 1e3:.1f} ms during imports"

    return (
        "A seat runs its imports at low priority. Latency of requests to the replica that asked "
        f"for the seat: {compared('p50')}; {compared('p99')} (medians of the rounds)."
    )


def _seats_on_a_gpu(found: Mapping[str, Any]) -> list[str | list[str]]:
    parts = ("process", "ray", "imports", "cuda", "weights", "passes", "ours")
    names = ("on a GPU", "start", "median", *parts[:-1], "serve_warm")
    lines = head(*names, left=len(names))
    for model, each in found.items():
        for mode in ("plain", "preload", "seat"):
            cells = (f"{each['seconds'][mode][name]:.2f}" for name in parts)
            lines.append(row(model, mode, f"{statistics.median(each[f'{mode}_s']):.1f} s", *cells))
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
    machine, versions = found["machine"], found["versions"]
    most = list(found["by_module_s"].items())[:3]
    return (
        f"When a level-3 replica is READY, it has imported {found['modules']} modules of "
        "serve_warm. These modules and their libraries add "
        f"{statistics.median(found['cpu_s']) * 1e3:.0f} ms of CPU time to the imports of torch and "
        f"Ray Serve ({min(found['cpu_s']) * 1e3:.0f} ms in the fastest process, "
        f"{max(found['cpu_s']) * 1e3:.0f} ms in the slowest). `-X importtime` reports "
        f"{statistics.median(found['importtime_s']) * 1e3:.0f} ms, including "
        f"{found['libraries_s'] * 1e3:.0f} ms for the libraries. The slowest imports are "
        + ", ".join(f"`{name}` ({own_s * 1e3:.1f} ms)" for name, own_s in most)
        + ".\n\n"
        f"`python tests/benchmarks/bench_imports.py`: {len(found['cpu_s'])} processes on "
        f"{machine['cpus']} shared cores ({machine['cpu']}), load {found['load']:.0f}, torch "
        f"{versions['torch']}, Ray {versions['ray']}, Python {machine['python']}."
    )


# The comparison of starts ---------------------------------------------------------------------

START = (
    ("shortest time to ready", "ready_s", "{:.1f} s", 1),
    ("least overhead", "overhead_s", "{:.2f} s", 1),
    ("least CPU time until ready", "cpu_s", "{:.1f} s", 1),
    ("smallest artifact", "artifact_bytes", "{:.2f} MB", 1e-6),
    ("least memory", "peak_rss_bytes", "{:.0f} MB", 1e-6),
)
"""The properties of a start in which a system can be best: words, key, format and scale."""

CALL = (
    ("fastest call, smallest input", "steady_p50_s", "{:.2f} ms", 1e3),
    ("fastest call, largest input", "steady_largest_p50_s", "{:.1f} ms", 1e3),
)
"""The same for calls. These properties include the eager model."""

WHY: Mapping[str, Mapping[str, str]] = {
    "eager": {
        "steady": "for large operations, torch's own kernels are as fast as compiled kernels on "
        "this CPU; compiled code saves only the work between these operations"
    },
    "aotinductor": {
        "": "aotinductor builds no model, because each package contains the weights; its loader "
        "imports less than Dynamo and Inductor; it checks no shapes, and only warns of another CPU",
        "steady": "it does not check arguments, because neither Dynamo nor serve_warm runs first",
    },
    "torch_bytes": {"artifact": "the artifact holds sources, so every start runs g++ again"},
    "redis": {"artifact": "the artifact holds sources, so every start runs g++ again"},
}
"""Why another system is best, by the beginning of the key. If several match, the last one
counts."""

FOR_ALL = {
    "steady": "it runs the same kernels as serve_warm, so the difference is noise",
    "peak_rss": "the process loads no libraries for stores, signatures and settings",
}
"""Reasons for every system. A matching reason in `WHY` counts instead."""

UNKNOWN = "no reason is known"

OTHERS = ("cold", "torch_bytes")
"""Systems that the first tables of docs/benchmarks.md compare with serve_warm."""


def comparison() -> str:
    """Return the comparison of starts: tables, claims, and the best system."""
    return compared(load("startup"))


def compared(found: Mapping[str, Any]) -> str:
    """Return the text for a document that bench_startup.py writes."""
    machine = found["machine"]
    lines = [
        (
            f"`{found['command']}`, medians of {found['repeats']} rounds on {machine['cpus']} "
            f"shared cores ({machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB), "
            f"{found['threads']} thread, no GPU; torch {machine['torch']}, Python "
            f"{machine['python']}, serve_warm {machine['serve_warm']}; "
            f"{found['took_s'] / 60:.0f} minutes."
        )
    ]
    lines += tables(found, "### {}")
    lines += ["", "### What each system needs", "", "| system | needs |", "|---|---|"]
    lines += [f"| {system} | {words} |" for system, words in found["needs"].items()]
    lines += ["", "## Claims and results", "", *asked(found)]
    lines += ["", "## The best system for each property", "", *best(found)]
    return "\n".join(lines)


def tables(found: Mapping[str, Any], title: str) -> Iterable[str]:
    """Yield the lines of a table for each workload, each after an empty line and its title."""
    for workload, words in found["titles"].items():
        rows = [row for row in found["rows"] if row["workload"] == workload]
        yield from ("", title.format(words), "", *starts(rows))


def label(row: Mapping[str, Any]) -> str:
    return row["system"] if row["level"] is None else f"{row['system']} level {row['level']}"


def starts(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the table of one workload, and a line for each system without figures."""
    names = (
        *("system", "to proof s", "overhead s", "overhead / cold", "overhead / torch_bytes"),
        *("import left s", "CPU s", "ready s", "floor s", "ready / floor", "compiler runs"),
        *("artifact MB", "peak MB", "call ms, smallest", "largest", "error"),
    )
    lines = head(*names)
    without = []
    for of in rows:
        if of["ready_s"] is None:
            said = of["failure"].replace("`", "'")
            why_not = f"fails: `{said}`" if said else f"not measured: {of['not_measured']}"
            without.append(f"- {label(of)} {why_not}")
            lines.append(row(label(of), *"–" * (len(names) - 1)))
            continue
        ratios = of["ratios"]
        ready_to_floor = "" if of["system"] == "floor" else f"{ratios['ready_to_floor']:.2f}"
        cells = (
            *(f"{of['to_proof_s']:.2f}", f"{of['overhead_s']:.2f}"),
            *(part(ratios.get("overhead_to_cold")), part(ratios.get("overhead_to_torch_bytes"))),
            *(f"{of['import_left_s']:.2f}", f"{of['cpu_s']:.1f}", f"{of['ready_s']:.2f}"),
            *(f"{of['floor_s']:.2f}", ready_to_floor, of["compiler_processes"]),
            *(f"{of['artifact_bytes'] * 1e-6:.2f}", f"{of['peak_rss_bytes'] * 1e-6:.0f}"),
            *(f"{of['steady_p50_s'] * 1e3:.2f}", f"{of['steady_largest_p50_s'] * 1e3:.1f}"),
            f"{of['max_error']:.0e}",
        )
        lines.append(row(label(of), *cells))
    return [*lines, "", *without] if without else lines


def part(value: float | None) -> str:
    """Write a ratio in the form of the limits: `1/40` if it is small."""
    if value is None:
        return ""
    if value < 1 / 1000:
        return "< 1/1000"  # a row without overhead: eager, or the floor itself
    return f"{value:.2f}" if value > 0.5 else f"1/{1 / value:.3g}"


def asked(found: Mapping[str, Any]) -> Sequence[str]:
    """Return the limits with results, and each claim that does not hold with its reason."""
    lines = [
        "| | claim | limit | measured | without the remaining import | |",
        "|---|---|---:|---:|---:|---|",
    ]
    all_checks = limits.checks(found)
    missed = [check for check in all_checks if not check.held]
    for check in all_checks:
        if check.limit == 1.0 and check.held:
            continue  # counted below
        verdict = "held" if check.held else "**missed**"
        lines.append(
            f"| {found['titles'][check.workload]} | {check.claim} | {part(check.limit)} "
            f"| {part(check.value)} | {part(check.past_import)} | {verdict} |"
        )
    faster = [check for check in all_checks if check.limit == 1.0]
    lines += [
        "",
        (
            f"Levels {' and '.join(map(str, limits.FASTER))} were compared with the alternatives "
            f"({', '.join(limits.ALTERNATIVES)}). In {sum(check.held for check in faster)} of "
            f"{len(faster)} comparisons of readiness and overhead, serve_warm was faster. The "
            "table above lists each comparison in which serve_warm was slower. The overhead of "
            "aotinductor is not compared, because this overhead includes loading the weights. "
            f"{_not_compared(found)}"
        ),
    ]
    if missed:
        lines.append("")
    for check in missed:
        reason = limits.MISSED.get(check.key, UNKNOWN)
        title = found["titles"][check.workload]
        lines.append(f"- {title}, {check.claim}: {part(check.value)}. {sentence(reason)}")
    return lines


def _not_compared(found: Mapping[str, Any]) -> str:
    """Return how many comparisons with alternatives are missing, and which starts failed."""
    workloads: dict[str, list[str]] = {}
    count = 0
    for row in found["rows"]:
        if row["system"] not in limits.ALTERNATIVES or row["ready_s"] is not None:
            continue
        title = found["titles"][row["workload"]].split(",")[0]
        workloads.setdefault(row["system"], []).append(title)
        clocks = 1 if row["system"] == "aotinductor" else 2  # readiness, and overhead
        count += clocks * len(limits.FASTER)
    if not count:
        return "Every alternative started on every model."
    words = "; ".join(f"{system} on {', '.join(titles)}" for system, titles in workloads.items())
    return (
        f"{count} comparisons are missing, because the alternative failed on the model "
        f"({words}). Each error message is below the table of its model."
    )


def best(found: Mapping[str, Any]) -> Sequence[str]:
    """Return the best system for each property, and the reason if it is not serve_warm."""
    titles = found["titles"]
    lines = [f"| | {' | '.join(titles.values())} |", "|---|" + "---|" * len(titles)]
    won: dict[tuple[str, str], dict[str, None]] = {}
    eager = {row["workload"]: row for row in found["rows"] if row["system"] == "eager"}
    for words, key, form, scale in (*START, *CALL):
        cells = []
        for workload in titles:
            # Eager needs no compile and gains nothing from one. The lines below the table compare
            # it with serve_warm.
            out = {"floor"} if key.startswith("steady") else {"floor", "eager"}
            rows = [
                row
                for row in found["rows"]
                if row["workload"] == workload and row["system"] not in out and row[key]
            ]
            if not rows:
                cells.append("")
                continue
            first = min(rows, key=lambda row: row[key])
            cells.append(f"{label(first)}, {form.format(first[key] * scale)}")
            if first["system"] != "serve_warm":
                won.setdefault((first["system"], why(first["system"], key)), {})[words] = None
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines.append("")
    for (system, reason), words in won.items():
        lines.append(f"- {system} ({'; '.join(words)}): {reason}.")
    for workload, title in titles.items():
        ours = [
            row
            for row in found["rows"]
            if row["workload"] == workload and row["system"] == "serve_warm" and row["ready_s"]
        ]
        if not ours or not eager.get(workload, {}).get("ready_s"):
            continue
        row, other = min(ours, key=lambda row: row["ready_s"]), eager[workload]
        small, large = (f"{other[key] / row[key]:.2f}" for _, key, _, _ in CALL)
        model = title.replace(", ", " (") + ")"
        lines.append(
            f"- {model}: eager is ready after {other['ready_s']:.1f} s, and {label(row)} after "
            f"{row['ready_s']:.1f} s. An eager call takes {small} times as long as a call with "
            f"serve_warm for the smallest input, and {large} times as long for the largest input."
        )
    return lines


def why(system: str, key: str) -> str:
    known = [*FOR_ALL.items(), *WHY.get(system, {}).items()]
    return ([reason for start, reason in known if key.startswith(start)] or [UNKNOWN])[-1]


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def side_by_side(found: Mapping[str, Any]) -> str:
    """Return the overheads of the comparison as a table, and where they were measured."""
    rows = {
        (row["workload"], row["system"], row["level"]): row
        for row in found["rows"]
        if row["ready_s"] is not None
    }

    def cell(row: Mapping[str, Any] | None, clock: str, digits: int) -> str:
        return "–" if row is None else f"{row[clock]:.{digits}f}"

    levels = ("level 1", "level 2", "level 2 without `import left`", "level 3")
    lines = head("overhead, s", "cold", "torch's own cache", *levels)
    for workload, title in found["titles"].items():
        levels = {n: rows.get((workload, "serve_warm", n)) for n in (1, 2, 3)}
        cells = (
            *(cell(rows.get((workload, name, None)), "overhead_s", 0) for name in OTHERS),
            *(cell(levels[n], "overhead_s", 2) for n in (1, 2)),
            *(cell(levels[2], "past_import_s", 2), cell(levels[3], "overhead_s", 2)),
        )
        lines.append(row(title.split(",")[0], *cells))
    machine = found["machine"]
    return page(
        lines,
        f"The table and the figure show medians of {found['repeats']} rounds on "
        f"{machine['cpus']} shared cores ({machine['cpu']}), with {found['threads']} thread, "
        f"without Ray, and without a GPU, for torch {machine['torch']} and Python "
        f"{machine['python']}.",
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
    title = found["titles"][slowest["workload"]].split(",")[0]
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
    """Return the overheads of the comparison, and starts and requests on a GPU."""
    return f"{side_by_side(load('startup'))}\n\n{gpu_line()}"


def gpu_line() -> str:
    """Return a table with starts of the reference case on a GPU, and the requests after a start."""
    found, asked = load("startup_gpu"), load("requests_gpu")
    machine, ours, naive = found["machine"], asked["serve_warm"], asked["naive"]

    def to_proof(system: str, level: int | None = None) -> str:
        [row] = [
            row
            for row in found["rows"]
            if (row["workload"], row["system"], row["level"]) == ("resnet152_gpu", system, level)
        ]
        return f"{row['to_proof_s']:.1f}"

    counted = {"compiles": "compiles", "captures": "captures", "tunings": "autotuning runs"}
    *first, last = (f"{ours['after_ready'][key]} {words}" for key, words in counted.items())
    cells = [
        *(to_proof(system) for system in OTHERS),
        *(to_proof("serve_warm", level) for level in (1, 2, 3)),
    ]
    ways = ("cold", "torch's own cache", "level 1", "level 2", "level 3")
    lines = [
        *head("seconds from model construction to proof, on a GPU", *ways),
        row("ResNet-152, batch 32, CUDA graphs", *cells),
        "",
        (
            f"This table shows medians of {found['repeats']} rounds on an {machine['gpu']}, for "
            f"torch {machine['torch']}. On an {asked['machine']['gpu']}, "
            f"{ours['together']['clients']} clients sent "
            f"{ours['together']['requests']:,} requests to the image classifier under Ray Serve. "
            f"These requests caused {', '.join(first)} and {last}, and got "
            f"{ours['together']['wrong']} wrong answers. A naive deployment with a warm-up in "
            f"`__init__` and a sync route answered {naive['together']['wrong']} of "
            f"{naive['together']['requests']:,} requests wrongly. "
            "[Benchmarks on GPUs](benchmarks-gpu.md) has the commands, and lists what was not run."
        ),
    ]
    return "\n".join(lines)


def on_a_gpu() -> str:
    """Return the starts that were measured on a GPU, with their claims."""
    found = load("startup_gpu")
    machine = found["machine"]
    lines = [
        (
            f"`{found['command']}`, medians of {found['repeats']} rounds on one {machine['gpu']} "
            f"and {machine['cpus']} cores ({machine['cpu']}), {found['threads']} thread; torch "
            f"{machine['torch']}, Python {machine['python']}, serve_warm "
            f"{machine['serve_warm']}; {found['took_s'] / 60:.0f} minutes."
        )
    ]
    lines += tables(found, "**{}**")
    lines += ["", "| claim | limit | measured | |", "|---|---:|---:|---|"]
    for check in limits.checks_on_a_gpu(found):
        verdict = "held" if check.held else "**missed**"
        lines.append(f"| {check.claim} | {part(check.limit)} | {part(check.value)} | {verdict} |")
    return "\n".join(lines)


def requests_on_a_gpu() -> str:
    """Return the clients' measurements of a replica on a GPU, and of a naive replica."""
    found = load("requests_gpu")
    machine, ours, naive = found["machine"], found["serve_warm"], found["naive"]
    sides = (ours, naive)

    def alone(side: Mapping[str, Any], key: str, digits: int) -> str:
        least, most = extremes(one[key] for one in side["alone"])
        if least == most:
            return f"{least:.{digits}f}"
        middle = statistics.median(one[key] for one in side["alone"])
        return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"

    def ready(side: Mapping[str, Any]) -> str:
        all_s = side["ready_s"] if isinstance(side["ready_s"], list) else [side["ready_s"]]
        return f"{statistics.median(all_s):.1f}"

    def after(side: Mapping[str, Any], key: str) -> str:
        return str((side.get("after_ready") or side["after_init"])[key])

    together = [side["together"] for side in sides]
    lines = [
        (
            f"`python tests/gpu/serve_requests.py` with `{found['config']}`: "
            f"{len(ours['alone'])} replicas with serve_warm and one naive replica, on an "
            f"{machine['gpu']} and {machine['cpus']} cores; torch {machine['torch']}, Ray "
            f"{machine['ray']}, Python {machine['python']}."
        ),
        "",
        "| | serve_warm | naive |",
        "|---|---:|---:|",
        row("ready, s", *map(ready, sides)),
        row("first request, ms", *(alone(side, "first_ms", 1) for side in sides)),
        row("median of the next 100 requests, ms", *(alone(side, "p50_ms", 1) for side in sides)),
        row("first / median", *(alone(side, "first_to_p50", 2) for side in sides)),
        row(
            f"answers to {together[0]['clients']} clients",
            *(f"{each['requests']:,} in {each['seconds']:.0f} s" for each in together),
        ),
        row("median and p99, ms", *(f"{e['p50_ms']:.0f}, {e['p99_ms']:.0f}" for e in together)),
        row("answers that differ from eager execution", *(str(each["wrong"]) for each in together)),
    ]
    counted = ("compiles", "captures", "kernels", "tunings")
    lines += [row(f"{key} after ready", *(after(side, key) for side in sides)) for key in counted]
    lines.append(
        row("CUDA graphs abandoned after ready", *(after(each, "graph_skips") for each in sides))
    )
    return "\n".join(lines)


def warm_calls() -> str:
    """Return the tables of warm calls, by model and by the change before each call."""
    found, changes = load("call"), load("changes")
    versions, sides = found["versions"], ("torch.compile µs", "serve_warm µs", "ratio")

    def compared_calls(of: Mapping[str, Any]) -> tuple[str, str, str]:
        us = of["us"]
        return f"{us['torch_compile']:.0f}", f"{us['serve_warm']:.0f}", f"{of['ratio']:.2f}"

    by_model = head("model", "kernels", *sides, "quartiles", "watch µs", "facts", "dicts", left=2)
    for of in found["models"]:
        low, _, high = of["quartiles"]
        watch = (f"{low:.2f}, {high:.2f}", f"{of['watch_us']:.1f}", of["facts"], of["dicts"])
        by_model.append(row(of["name"], of["kernels"], *compared_calls(of), *watch))
    by_change = head("change before each call", "level", *sides, "limit", "compiles")
    for of in changes["rows"]:
        cells = (*compared_calls(of), of["limit"], of["compiles"])
        by_change.append(row(of["name"], of["level"], *cells))
    return page(
        f"`python tests/benchmarks/bench_call.py`, medians of {found['rounds']} alternating "
        f"rounds of {found['calls_per_round']} calls, 1 thread, torch {versions['torch']}, Python "
        f"{versions['python']}; the ratio must be at most {found['limit']}.",
        by_model,
        f"`python tests/benchmarks/bench_changes.py`, a model of {changes['layers']} layers, "
        f"medians of {changes['rounds']} rounds of {changes['calls_per_round']} calls. The time "
        "includes the change. At level 1, `torch.compile` runs the calls.",
        by_change,
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
    names = ("RMSE ratio", "largest-error ratio", "compiles", "load to proof", "step")
    lines = head("level", "refused", *names)
    for of in found["half_precision"]:
        entries = of["entries"]
        ratios = (max(e[name] for e in entries) for name in ("rmse_ratio", "max_ratio"))
        cells = (f"{len(of['refused'])} of {len(entries)}", *(f"{each:.2f}" for each in ratios))
        times = (f"{of['to_proof_s']:.2f} s", f"{of['full_step_ms']:.1f} ms")
        lines.append(row(of["level"], *cells, of["compiles"], *times))
    return page(
        f"`python tests/gpu/models_gpu.py --models half_precision`, {machine['gpu']}, torch "
        f"{machine['torch']}: random weights of Qwen3-0.6B's size in bfloat16, 8 slots of 1,024 "
        "tokens, prompts of 128 and 512 tokens, CUDA graphs. The steps are medians with 8 rows. A "
        "step of a static cache of transformers with `torch.compile` took "
        f"{static['full_step_ms']:.1f} ms.",
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
        f"level {summary['level']}, on {found['gpus']} {found['machine']['gpu']} and "
        f"{found['machine']['cpus']} cores. {warm} starts were full hits. All starts together "
        f"caused {counted} compiles, kernel builds and autotuning runs, and one download of "
        f"{summary['downloaded_bytes'] / 1e6:.2f} MB. The median time from model construction to "
        f"proof was {statistics.median(took):.1f} s, and the longest was {max(took):.1f} s. A "
        f"replica that started alone took {summary['alone_s']:.1f} s."
    )


def images() -> str:
    """Return the measurements of `make images`: time and size of each step, and the start."""
    found = load("images")
    machine, versions, seconds = found["machine"], found["versions"], found["seconds"]
    names = {
        "base": "Debian 12 with Python, by debootstrap",
        "bare": "`bare`, including the stage that makes its Python environment",
        "compiler": "`compiler`",
        "level3": "`level3`",
        "app": "`app`, the default",
        "artifact": "`serve-warm build` in `app`, which makes the artifact",
        "volume": "`volume`, only the artifact",
        "baked": "`baked`",
        "start": "start of the baked image, until a replica is ready",
    }
    lines = head("step", "seconds", "size of the image", left=3)
    for step, name in names.items():
        took = f"{seconds[step]:.0f}" if seconds[step] >= 1 else "under 1"
        size = found["sizes_bytes"].get(step)
        lines.append(f"| {name} | {took} | {_size(size) if size else ''} |")
    build = found["build"]
    return page(
        lines,
        (
            f"One run of `{found['command']}` on {machine['cpus']} shared cores ({machine['cpu']}, "
            f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {machine['load']:.0f}), with buildah "
            f"{versions['buildah']}, runc {versions['runc']}, Debian {versions['debian']}, Python "
            f"{versions['python']}, torch {versions['torch']} and Ray {versions['ray']}. Sizes are "
            "uncompressed, and each image includes the layers that it shares with other images."
        ),
        (
            f"The build ran {build['compiler_processes']} compiler processes. In this build, the "
            f"proof ended after {build['to_proof_s']:.1f} s in the cold replica, and after "
            f"{build['round_trip_s']:.1f} s in the replica of the round trip. The verdict of the "
            f"baked image's replica was `{found['verdict']}`. This replica was ready in "
            f"{found['ready_s']:.1f} s, and ran {found['compiler_processes']} compiler processes. "
            f"The runbooks contain {len(found['commands'])} commands for a pod. All of them were "
            "run in this container and ended with exit code 0."
        ),
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
    lines = [
        row("", "level", text="level {}"),
        "|---|" + "---:|" * len(levels),
        row("build, s", "build_s"),
        row("artifact, MB", "artifact_megabytes", text="{:.1f}"),
        row("load to proof, s", "to_proof_s", text="{:.1f}"),
        f"| same tokens as eager execution | {equal} |",
        row("compiles during the start", "compiles"),
        row(
            "graph launches per prefill and per decode step",
            "launches_of_prefill",
            "launches_of_decode",
            text="{:.0f}, {:.0f}",
        ),
        row(
            f"captures and compiles in {levels[0]['steps']:,} steps",
            "captures_in_steps",
            "compiles_in_steps",
            text="{}, {}",
        ),
        row("time of a decode step with 8 slots, ms", "step_ms", text="{:.2f}"),
        row("CPU time of serve_warm in this step, µs", "dispatch_us", text="{:.0f}"),
        "",
        (
            "`python tests/gpu/models_gpu.py --models decode`: a Llama of 8 layers with random "
            f"weights in float32, on one {machine['gpu']} and {machine['cpus']} cores, one run; "
            f"torch {machine['torch']}, Python {machine['python']}."
        ),
        *(
            f"On another host with the same kind of GPU, a step at level {each['level']} took "
            f"{each['step_us'] / 1e3:.2f} ms, and serve_warm used "
            f"{each['dispatch_us']:.0f} µs of CPU time per step."
            for each in found.get("decode_on_another_host", ())
        ),
    ]
    return "\n".join(lines)


MODELS_ON_A_GPU = {
    "vit_large_gpu": "ViT-L, batch 32",
    "whisper_large_gpu": "Whisper model of Whisper-large's size, 30 s of audio",
}
STARTS_ON_A_GPU = {
    ("cold", None): "cold",
    ("torch_bytes", None): "torch's own cache",
    ("serve_warm", 2): "serve_warm, level 2",
    ("serve_warm", 3): "serve_warm, level 3",
}


def models_on_a_gpu() -> str:
    """Return how long large models take from construction to proof on a GPU."""
    found = load("models_gpu")
    machine = found["machine"]
    rows = {(row["workload"], row["system"], row["level"]): row for row in found["rows"]}
    lines = ["| model | system | to proof, s | vs. cold | compiler runs | a call, ms | verdict |"]
    lines.append("|---|---|---:|---:|---:|---:|---|")
    for model, title in MODELS_ON_A_GPU.items():
        cold_s = rows[model, "cold", None]["to_proof_s"]
        for system, name in STARTS_ON_A_GPU.items():
            row = rows[(model, *system)]
            (run,) = row["runs"]
            took_s, call_ms = row["to_proof_s"], row["steady_p50_s"] * 1e3
            lines.append(
                f"| {title} | {name} | {took_s:.2f} | {took_s / cold_s:.2f} "
                f"| {run['compiler_processes']} | {call_ms:.1f} | {run.get('verdict') or '–'} |"
            )
    return page(
        lines,
        "`python tests/gpu/models_gpu.py --models vit_large,whisper_large --turns 1`: models "
        f"in bfloat16 with CUDA graphs, on one {machine['gpu']} and {machine['cpus']} cores, "
        f"one run of each system; torch {machine['torch']}, Python {machine['python']}. "
        "`to proof` is measured from the end of model construction.",
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
