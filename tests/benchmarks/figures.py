# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured figures and the metrics table into the documents, from their sources.

    python tests/benchmarks/figures.py

`make bench` ends with it, and tests/test_readme.py fails when a document says anything else.
"""

from __future__ import annotations

import collections
import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import limits
from serve_warm.cli import reference

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
LEVELS = ROOT / "docs" / "levels.md"
IMAGE = ROOT / "docs" / "image.md"
GPU = ROOT / "docs" / "gpu.md"
RESULTS = Path(__file__).parent / "results"

NAMES = {"cold": "cold", "torch_bytes": "torch's cache bytes alone", "warm": "serve_warm"}


def load(name: str) -> dict[str, Any]:
    """Return the committed results of one benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def figures() -> str:
    """Return the first table of the README: three ways to start, and how they compare."""
    result = load("text_embedder")
    medians, machine = result["medians"], result["machine"]
    repeats = sum(run["mode"] == "warm" for run in result["runs"])
    lines = [
        (
            "| MiniLM, six shapes, one replica | model built → proof | ready | compiler processes "
            "| compiles after ready |"
        ),
        "|---|---|---|---|---|",
    ]
    for mode, name in NAMES.items():
        row = medians[mode]
        lines.append(
            f"| {name} | {row['to_proof_s']:.1f} s | {row['ready_s']:.1f} s "
            f"| {row['compiler_processes']:.0f} | {row['compiles_after_ready']:.0f} |"
        )
    floor = result["floor"]
    lines.append(
        f"| floor: imports, weights, the passes | {floor['to_proof_s']:.1f} s "
        f"| {floor['ready_s']:.1f} s | 0 | 0 |"
    )
    lines += [
        "",
        (
            f"`make bench`: medians of {repeats} interleaved runs on {machine['cpus']} shared "
            f"cores ({machine['cpu']}), no GPU, torch {machine['torch']}, Ray {machine['ray']}, "
            f"Python {machine['python']}. [Other ways to start, other models, a GPU]"
            "(docs/benchmarks.md)."
        ),
    ]
    return "\n".join(lines)


def costs() -> str:
    """Return how the starts of the README's table compare, and what calls and a pull cost."""
    result = load("text_embedder")
    medians, ratios = result["medians"], result["ratios"]
    other = load("image_classifier")["ratios"]
    warm, cold = medians["warm"]["overhead_s"], medians["cold"]["overhead_s"]
    request = load("request")["added_us"]
    watch = load("overhead")["added_us"]
    transfer = load("transfer")
    return (
        f"Model built → proof takes {ratios['warm_to_cold']:.2f} of cold and "
        f"{ratios['warm_to_torch_bytes']:.2f} of torch's bytes (ResNet-152: "
        f"{other['warm_to_cold']:.2f} and {other['warm_to_torch_bytes']:.2f}). Without the "
        f"passes' own compute that is {warm:.2f} s against {cold:.1f} s. A warm call "
        f"costs {watch:.1f} µs more, a request through `on_model_thread` "
        f"{request['on_model_thread']:.0f} µs. A pull of 256 MiB, verified, takes "
        f"{transfer['pull_s']:.2f} s where one connection gives 85 MB/s: "
        f"{transfer['times_a_single_stream']:.1f} times as fast as one stream, in "
        f"{transfer['peak_mib']:.0f} MiB of memory. Calls and the pull are of programs of their "
        "own: [results](../tests/benchmarks/results)."
    )


# The comparison of starts ---------------------------------------------------------------------

START = (
    ("first to be ready", "ready_s", "{:.1f} s", 1),
    ("least overhead", "overhead_s", "{:.2f} s", 1),
    ("least CPU until then", "cpu_s", "{:.1f} s", 1),
    ("smallest artifact", "artifact_bytes", "{:.2f} MB", 1e-6),
    ("least memory", "peak_rss_bytes", "{:.0f} MB", 1e-6),
)
"""What whoever starts a compiled model can be best in: words, key, how the figure is written."""

CALL = (
    ("fastest call, smallest input", "steady_p50_s", "{:.2f} ms", 1e3),
    ("fastest call, largest input", "steady_largest_p50_s", "{:.1f} ms", 1e3),
)
"""The same for what answers calls, the eager model included."""

WHY: Mapping[str, Mapping[str, str]] = {
    "eager": {
        "steady": "torch's own kernels for the large operations are as good on this CPU; what is "
        "compiled saves only what lies between them"
    },
    "aotinductor": {
        "": "it builds no model: the packages hold the weights, a copy in each, and its loader "
        "imports less than Dynamo and Inductor; it checks no shapes, and only warns of another CPU",
        "steady": "its call checks no argument: C++ with nothing of Dynamo or of ours before it",
    },
    "torch_bytes": {"artifact": "it holds sources: every start runs g++ again"},
    "redis": {"artifact": "it holds sources: every start runs g++ again"},
}
"""Why one that is not serve_warm can be best, by what the key begins with; the last that fits."""

FOR_ALL = {
    "steady": "its kernels are the same; the difference is chance",
    "peak_rss": "it has no library for stores, signatures and settings in memory",
}
"""As `WHY`, for all others."""

UNKNOWN = "no reason is known"


def comparison() -> str:
    """Return the comparison of starts: its tables, what is claimed of it, and who is best."""
    return compared(load("startup"))


def compared(found: Mapping[str, Any]) -> str:
    """Return the text of a document as bench_startup.py writes it."""
    machine = found["machine"]
    lines = [
        (
            f"`{found['command']}`, medians of {found['repeats']} turns on {machine['cpus']} "
            f"shared cores ({machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB), "
            f"{found['threads']} thread, no GPU; torch {machine['torch']}, Python "
            f"{machine['python']}, serve_warm {machine['serve_warm']}; "
            f"{found['took_s'] / 60:.0f} minutes."
        ),
    ]
    for workload, title in found["titles"].items():
        rows = [row for row in found["rows"] if row["workload"] == workload]
        lines += ["", f"### {title}", "", *starts(rows)]
    lines += ["", "### What each start rests on", "", "| system | needs |", "|---|---|"]
    lines += [f"| {system} | {words} |" for system, words in found["needs"].items()]
    lines += ["", "## What is asked of it", "", *asked(found)]
    lines += ["", "## Who is best in what, and why", "", *best(found)]
    return "\n".join(lines)


def label(row: Mapping[str, Any]) -> str:
    return row["system"] if row["level"] is None else f"{row['system']} level {row['level']}"


def starts(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the table of one workload, and a line for each system without figures."""
    head = (
        *("system", "to proof s", "overhead s", "of cold", "of bytes", "import left s", "CPU s"),
        *("ready s", "floor s", "ready / floor", "compiler runs", "artifact MB", "peak MB"),
        *("call ms, smallest", "largest", "error"),
    )
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    without = []
    for row in rows:
        if row["ready_s"] is None:
            said = row["failure"].replace("`", "'")
            why_not = f"fails: `{said}`" if said else f"not measured: {row['not_measured']}"
            without.append(f"- {label(row)} {why_not}")
            lines.append(f"| {label(row)} |{' – |' * (len(head) - 1)}")
            continue
        ratios = row["ratios"]
        ready_to_floor = "" if row["system"] == "floor" else f"{ratios['ready_to_floor']:.2f}"
        cells = (
            *(f"{row['to_proof_s']:.2f}", f"{row['overhead_s']:.2f}"),
            *(part(ratios.get("overhead_to_cold")), part(ratios.get("overhead_to_torch_bytes"))),
            *(f"{row['import_left_s']:.2f}", f"{row['cpu_s']:.1f}", f"{row['ready_s']:.2f}"),
            *(f"{row['floor_s']:.2f}", ready_to_floor, str(row["compiler_processes"])),
            *(f"{row['artifact_bytes'] * 1e-6:.2f}", f"{row['peak_rss_bytes'] * 1e-6:.0f}"),
            *(f"{row['steady_p50_s'] * 1e3:.2f}", f"{row['steady_largest_p50_s'] * 1e3:.1f}"),
            f"{row['max_error']:.0e}",
        )
        lines.append(f"| {label(row)} | {' | '.join(cells)} |")
    return [*lines, "", *without] if without else lines


def part(value: float | None) -> str:
    """Write a ratio the way limits are: `1/40` where it is a small part."""
    if value is None:
        return ""
    if value < 1 / 1000:
        return "< 1/1000"  # of what has none: eager, or the floor itself
    return f"{value:.2f}" if value > 0.5 else f"1/{1 / value:.3g}"


def asked(found: Mapping[str, Any]) -> Sequence[str]:
    """Return the limits and what was found, and each claim that does not hold with its reason."""
    lines = [
        "| | claim | limit | found | without the import that was left | |",
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
            f"Sooner ready than each alternative, and with less overhead: "
            f"{sum(check.held for check in faster)} of {len(faster)} comparisons of levels "
            f"{' and '.join(map(str, limits.FASTER))} with {', '.join(limits.ALTERNATIVES)}, where "
            "these did not fail; only what does not hold is in the table. The overhead of "
            f"aotinductor is not compared: it includes the weights. {_not_compared(found)}"
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
    """Return how many comparisons with alternatives there are none of, and whose start lacks."""
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
        f"{count} more did not take place, as the alternative has no start on the model ({words}): "
        "why stands below the model's table."
    )


def best(found: Mapping[str, Any]) -> Sequence[str]:
    """Return who is best in what on each workload, and the reason where it is not serve_warm."""
    titles = found["titles"]
    lines = [f"| | {' | '.join(titles.values())} |", "|---|" + "---|" * len(titles)]
    won: dict[tuple[str, str], dict[str, None]] = {}
    eager = {row["workload"]: row for row in found["rows"] if row["system"] == "eager"}
    for words, key, form, scale in (*START, *CALL):
        cells = []
        for workload in titles:
            # Who serves eager pays nothing for compiling, and gets nothing: that is said below.
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
        calls = " and ".join(f"{other[key] / row[key]:.2f}" for _, key, _, _ in CALL)
        lines.append(
            f"- eager, which compiles nothing, is ready after {other['ready_s']:.1f} s on {title}, "
            f"{label(row)} after {row['ready_s']:.1f} s; its calls take {calls} times as long "
            "(smallest and largest input)."
        )
    return lines


def why(system: str, key: str) -> str:
    known = [*FOR_ALL.items(), *WHY.get(system, {}).items()]
    return ([reason for start, reason in known if key.startswith(start)] or [UNKNOWN])[-1]


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def side_by_side(found: Mapping[str, Any]) -> str:
    """Return the comparison in a few sentences."""
    rows = {
        (row["workload"], row["system"], row["level"]): row
        for row in found["rows"]
        if row["ready_s"] is not None
    }
    words, past_import = [], []
    for workload, title in found["titles"].items():
        level_2 = rows.get((workload, "serve_warm", 2))
        if level_2 is not None:
            past_import.append(f"{level_2['past_import_s']:.2f}")
        named = [
            *[(f"{n}", rows.get((workload, "serve_warm", n))) for n in (1, 2, 3)],
            ("cold", rows.get((workload, "cold", None))),
            ("torch's bytes", rows.get((workload, "torch_bytes", None))),
        ]
        levels = [
            f"{row['overhead_s']:.2f}" for name, row in named if row is not None and name.isdigit()
        ]
        others = [
            f"{row['overhead_s']:.0f} s {name}"
            for name, row in named
            if row is not None and not name.isdigit()
        ]
        words.append(f"{title.split(',')[0]} {' / '.join(levels)} s ({', '.join(others)})")
    systems = {row["system"] for row in found["rows"]} - {"floor", "serve_warm"}
    machine = found["machine"]
    return (
        f"Side by side with {len(systems)} other ways to start, overhead at levels 1 / 2 / 3: "
        f"{'; '.join(words)}. Level 2 without what was left of the import of torch's compiler when "
        f"the model was built, in the same order: {' / '.join(past_import)} s; level 3 does not "
        "import it. This line and the picture are medians of "
        f"{found['repeats']} turns on {machine['cpus']} shared cores ({machine['cpu']}), "
        f"{found['threads']} thread, no Ray, no GPU, torch {machine['torch']}, Python "
        f"{machine['python']}. Compare ratios with the table of the README, not seconds."
    )


def loading() -> str:
    """Return what loading the entries of an artifact takes, and why it is done one by one."""
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
    return (
        f"Entries are loaded one after the other. With the artifact's checks and what is left of "
        f"its pull that takes {low:.2f} to {high:.2f} s at level 2 and {low_3:.2f} to {high_3:.2f} "
        f"s at level 3 ([{len(by_level[2])} models](benchmarks.md)). On {title}, the slowest, it "
        f"is {slowest['cpu_stages']['load']:.2f} s of CPU in {slowest['stages']['load']:.2f} s: "
        "nothing is waited for that another thread could fill. Unpickling, and looking at each "
        "fact, is Python's work, and Python's lock lets one thread do that at a time. How much of "
        "the rest would run beside it was not measured."
    )


def extremes(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the largest."""
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def architectures() -> str:
    """Return the architectures that were taken to level 2, and what stopped the others."""
    from architectures import ARCHITECTURES  # imports torch, which no other section needs

    found = load("architectures")
    versions, rows = found["versions"], found["rows"]
    reached = sum(row["level"] == 2 for row in rows.values())
    lines = [
        (
            f"{reached} of {len(rows)} calls of tiny models with random weights, in "
            "`inference_mode`, with `dynamic=False` and one thread, by `python "
            "tests/architectures.py`: transformers "
            f"{versions['transformers']}, torch {versions['torch']}, Python {versions['python']}, "
            f"{versions['machine']}. Entries were made in one process and loaded in another. The "
            "error is the largest difference from eager there, as a part of the largest value. "
            "What has no entry goes to `torch.compile`, which was not run here."
        ),
        "",
        "| architecture | class | level | error | entry kB | what stops it |",
        "|---|---|---:|---:|---:|---|",
    ]
    for name, row in rows.items():
        kind, suffix, _, _ = ARCHITECTURES[name]
        entry = f"{row['error']:.0e} | {row['bytes'] / 1e3:.0f}" if row["level"] == 2 else "– | –"
        lines.append(f"| {name} | `{kind}{suffix}` | {row['level']} | {entry} | {row['reason']} |")
    return "\n".join(lines)


def probe_cost() -> str:
    """Return what a question about a node costs, beside the least that it could."""
    result = load("probe")
    words = {
        "exec": "`node.py probe`",
        "exec_compiled_file": "the same, compiled (`node.pyc`)",
        "exec_least": "*a Python that does nothing*",
        "http": "`/readyz`",
        "http_kept": "`/readyz`, connection kept",
        "http_least": "*an answer without a look*",
        "http_kept_least": "*the same, connection kept*",
    }
    lines = [
        "| 95 of 100 take at most, in ms (median) | idle | beside a compile |",
        "|---|---:|---:|",
    ]
    for key, name in words.items():
        cells = [f"{when[key]['p95']:.1f} ({when[key]['p50']:.1f})" for when in _times(result)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    loads = [[each["load_before"] for each in when.values()] for when in _times(result)]
    return "\n".join(
        [
            *lines,
            "",
            (
                f"`tests/benchmarks/bench_probe.py`: {result['replicas']} replicas, "
                f"{result['probes']} probes and {result['questions']} questions of each kind, on "
                f"{result['cpus']} shared cores with a load average of {max(loads[0]):.1f} and "
                f"{max(loads[1]):.1f}, Python {result['versions']['python']}."
            ),
        ]
    )


def _times(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [result["ms"][when] for when in ("idle", "beside_a_compile")]


def comparison_line() -> str:
    """Return the comparison in a few sentences, and starts and requests on a GPU."""
    return f"{side_by_side(load('startup'))}\n{gpu_line()}"


def gpu_line() -> str:
    """Return the sentences on a GPU: starts of the reference case, and requests after one."""
    found, asked = load("startup_gpu"), load("requests_gpu")
    machine, ours, naive = found["machine"], asked["serve_warm"], asked["naive"]

    def to_proof(system: str, level: int | None = None) -> str:
        [row] = [
            row
            for row in found["rows"]
            if (row["workload"], row["system"], row["level"]) == ("resnet152_gpu", system, level)
        ]
        return f"{row['to_proof_s']:.1f}"

    grown = {key: ours["after_ready"][key] for key in ("compiles", "captures", "tunings")}
    counts = ", ".join(f"{count} {key}" for key, count in grown.items())
    others = [to_proof(system) for system in ("cold", "torch_bytes")]
    warm = [to_proof("serve_warm", level) for level in (1, 2, 3)]
    return (
        f"On an {machine['gpu']}, torch {machine['torch']}, ResNet-152 at batch 32 with CUDA "
        f"graphs takes from the built model to the proof {others[0]} s cold, {others[1]} by "
        f"torch's bytes, {warm[0]}, {warm[1]} and {warm[2]} at levels 1, 2 and 3 (medians of "
        f"{found['repeats']} turns). "
        f"{ours['together']['requests']:,} requests from {ours['together']['clients']} "
        f"clients to the image classifier under Ray Serve met {counts}, and "
        f"{ours['together']['wrong']} wrong answers; a naive warm-up in `__init__` with a sync "
        f"route gave {naive['together']['wrong']} wrong ones of "
        f"{naive['together']['requests']:,}. Commands, and what has not run: "
        f"[gpu.md](gpu.md)."
    )


def on_a_gpu() -> str:
    """Return the starts that were measured on a GPU, and what is asked of them."""
    found = load("startup_gpu")
    machine = found["machine"]
    lines = [
        (
            f"`{found['command']}`, medians of {found['repeats']} turns on one {machine['gpu']} "
            f"and {machine['cpus']} cores ({machine['cpu']}), {found['threads']} thread; torch "
            f"{machine['torch']}, Python {machine['python']}, serve_warm "
            f"{machine['serve_warm']}; {found['took_s'] / 60:.0f} minutes."
        ),
    ]
    for workload, title in found["titles"].items():
        rows = [row for row in found["rows"] if row["workload"] == workload]
        lines += ["", f"**{title}**", "", *starts(rows)]
    lines += ["", "| claim | limit | found | |", "|---|---:|---:|---|"]
    for check in limits.checks_on_a_gpu(found):
        verdict = "held" if check.held else "**missed**"
        lines.append(f"| {check.claim} | {part(check.limit)} | {part(check.value)} | {verdict} |")
    return "\n".join(lines)


def requests_on_a_gpu() -> str:
    """Return what clients saw of a replica on a GPU, and of a naive one beside it."""
    found = load("requests_gpu")
    machine, ours, naive = found["machine"], found["serve_warm"], found["naive"]
    sides = (ours, naive)

    def row(name: str, *cells: str) -> str:
        return f"| {name} | {' | '.join(cells)} |"

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
            f"`python tests/gpu/serve_requests.py`, `{found['config']}`: {len(ours['alone'])} "
            f"replicas of serve_warm and one that is naive, on an {machine['gpu']} and "
            f"{machine['cpus']} cores; torch {machine['torch']}, Ray {machine['ray']}, Python "
            f"{machine['python']}."
        ),
        "",
        "| | serve_warm | naive |",
        "|---|---:|---:|",
        row("ready, s", *map(ready, sides)),
        row("first request, ms", *(alone(side, "first_ms", 1) for side in sides)),
        row("median of the 100 after it, ms", *(alone(side, "p50_ms", 1) for side in sides)),
        row("first / median", *(alone(side, "first_to_p50", 2) for side in sides)),
        row(
            f"answers to {together[0]['clients']} clients",
            *(f"{each['requests']:,} in {each['seconds']:.0f} s" for each in together),
        ),
        row("median and p99, ms", *(f"{e['p50_ms']:.0f}, {e['p99_ms']:.0f}" for e in together)),
        row("other answers than eager's", *(str(each["wrong"]) for each in together)),
    ]
    counted = ("compiles", "captures", "kernels", "tunings")
    lines += [row(f"{key} after ready", *(after(side, key) for side in sides)) for key in counted]
    lines.append(
        row("graphs given up after ready", *(after(each, "graph_skips") for each in sides))
    )
    return "\n".join(lines)


def warm_calls() -> str:
    """Return the tables of warm calls, by model and by what changes before each of them."""
    found, changes = load("call"), load("changes")
    versions = found["versions"]
    lines = [
        (
            f"`python tests/benchmarks/bench_call.py`, medians of {found['rounds']} rounds of "
            f"{found['calls_per_round']} calls in turns, 1 thread, torch {versions['torch']}, "
            f"Python {versions['python']}; the limit of the ratio is {found['limit']}."
        ),
        "",
        (
            "| model | kernels | torch.compile µs | serve_warm µs | ratio | quartiles "
            "| watch µs | facts | dicts |"
        ),
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["models"]:
        low, _, high = row["quartiles"]
        lines.append(
            f"| {row['name']} | {row['kernels']} | {row['us']['torch_compile']:.0f} "
            f"| {row['us']['serve_warm']:.0f} | {row['ratio']:.2f} | {low:.2f}, {high:.2f} "
            f"| {row['watch_us']:.1f} | {row['facts']} | {row['dicts']} |"
        )
    lines += [
        "",
        (
            f"`python tests/benchmarks/bench_changes.py`, a model of {changes['layers']} layers, "
            f"medians of {changes['rounds']} rounds of {changes['calls_per_round']} calls; the "
            "time includes the change. Calls of level 1 go to torch.compile."
        ),
        "",
        (
            "| before each call | level | torch.compile µs | serve_warm µs | ratio | limit "
            "| compiles |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['level']} | {row['us']['torch_compile']:.0f} "
        f"| {row['us']['serve_warm']:.0f} | {row['ratio']:.2f} | {row['limit']} "
        f"| {row['compiles']} |"
        for row in changes["rows"]
    ]
    return "\n".join(lines)


def soundness() -> str:
    """Return what became of calls after something changed, by torch and system."""
    found = load("soundness")
    values = ("right", "level1", "refused", "raises", "wrong")
    lines = [
        (
            f"`make soundness`, {len(found['rows'])} rows on {found['machine']['cpu']}, "
            f"Python {found['versions']['python']}. At torch 2.11 and 2.15 the rows of guards."
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
    ready = collections.Counter(shape["ready"] for shape in found["false_ready"])
    said = ", ".join(f"{count} `{name}`" for name, count in sorted(ready.items()))
    lines += ["", f"{len(found['false_ready'])} shapes of applications: {said}."]
    return "\n".join(lines)


def at_once_on_gpus() -> str:
    """Return how replicas that start at the same moment compare with one that starts alone."""
    found = load("replicas_gpu")
    *runs, summary = found["runs"]
    together = [run for run in runs if run["run"] == "together"]
    took = [run["to_proof_s"] for run in together]
    warm = sum(run["verdict"] == "full_hit" for run in together)
    counted = sum(run[key] for run in together for key in ("compiles", "kernels", "tunings"))
    return (
        f"{summary['replicas']} replicas of `{summary['workload']}` at level {summary['level']} on "
        f"{found['gpus']} {found['machine']['gpu']} and {found['machine']['cpus']} cores: "
        f"{warm} full hits, {counted} compiles, kernels and tunings, one download of "
        f"{summary['downloaded_bytes'] / 1e6:.2f} MB. From the built model to the proof one alone "
        f"took {summary['alone_s']:.1f} s, and of all at once the median "
        f"{statistics.median(took):.1f} s, the slowest {max(took):.1f} s."
    )


def images() -> str:
    """Return what `make images` measured: seconds and size of each step, and the start."""
    found = load("images")
    machine, versions, seconds = found["machine"], found["versions"], found["seconds"]
    names = {
        "base": "Debian 12 with Python, by debootstrap",
        "bare": "`bare`, with the environment that it copies",
        "compiler": "`compiler`",
        "level3": "`level3`",
        "app": "`app`, the default",
        "artifact": "the artifact, by `serve-warm build` in `app`",
        "volume": "`volume`, the artifact alone",
        "baked": "`baked`",
        "start": "the baked image, from its first process to a replica that is ready",
    }
    lines = ["| step | seconds | size of the image |", "|---|---|---|"]
    for step, name in names.items():
        took = f"{seconds[step]:.0f}" if seconds[step] >= 1 else "under 1"
        size = found["sizes_bytes"].get(step)
        lines.append(f"| {name} | {took} | {_size(size) if size else ''} |")
    build = found["build"]
    lines += [
        "",
        (
            f"One run of `{found['command']}` on {machine['cpus']} shared cores ({machine['cpu']}, "
            f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {machine['load']:.0f}), with buildah "
            f"{versions['buildah']}, runc {versions['runc']}, Debian {versions['debian']}, Python "
            f"{versions['python']}, torch {versions['torch']} and Ray {versions['ray']}. Sizes are "
            "uncompressed, and layers that images share count in each. The build "
            f"ran {build['compiler_processes']} compiler processes and took "
            f"{build['to_proof_s']:.1f} s to its proof, and its round trip "
            f"{build['round_trip_s']:.1f} s. The replica of the baked image was "
            f"`{found['verdict']}`, ready in {found['ready_s']:.1f} s and ran "
            f"{found['compiler_processes']} compiler processes. All {len(found['commands'])} "
            "commands that the runbooks run in a pod ended with 0 there."
        ),
    ]
    return "\n".join(lines)


def _size(size_bytes: int) -> str:
    if size_bytes < 2e6:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:.2f} GB"


SECTIONS = {
    "figures": (README, figures),
    "costs": (BENCHMARKS, costs),
    "comparison line": (BENCHMARKS, comparison_line),
    "comparison": (BENCHMARKS, comparison),
    "warm calls": (BENCHMARKS, warm_calls),
    "starts on a GPU": (GPU, on_a_gpu),
    "requests on a GPU": (GPU, requests_on_a_gpu),
    "replicas at once on GPUs": (GPU, at_once_on_gpus),
    "loading": (LEVELS, loading),
    "soundness": (LEVELS, soundness),
    "architectures": (LEVELS, architectures),
    "images": (IMAGE, images),
    "probe cost": (REFERENCE, probe_cost),
    "metrics": (REFERENCE, lambda: reference.markdown(reference.of_replicas())),
    "node metrics": (REFERENCE, lambda: reference.markdown(reference.of_nodes())),
}
"""File and text, by section."""


def section(file: Path, name: str) -> re.Match[str]:
    """Return what stands between the markers of a section, as the only group of a match."""
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
