# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured figures and the metrics table into the documents, from their sources.

    python tests/benchmarks/figures.py

`make bench` ends with it, and tests/test_readme.py fails when a document says anything else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from serve_warm import metrics

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"
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
    ratios = result["ratios"]
    other = load("image_classifier")["ratios"]
    warm, cold = medians["warm"]["overhead_s"], medians["cold"]["overhead_s"]
    request = load("request")["added_us"]
    watch = load("overhead")["added_us"]
    transfer = load("transfer")
    lines += [
        "",
        (
            f"Model built → proof takes {ratios['warm_to_cold']:.2f} of cold and "
            f"{ratios['warm_to_torch_bytes']:.2f} of torch's bytes (ResNet-152: "
            f"{other['warm_to_cold']:.2f} and {other['warm_to_torch_bytes']:.2f}). Without the "
            f"passes' own compute that is {warm:.2f} s against {cold:.1f} s. A warm call "
            f"costs {watch:.1f} µs more, a request through `on_model_thread` "
            f"{request['on_model_thread']:.0f} µs. A pull of 256 MiB, verified, takes "
            f"{transfer['pull_s']:.2f} s where one connection gives 85 MB/s: "
            f"{transfer['times_a_single_stream']:.1f} times as fast as one stream, in "
            f"{transfer['peak_mib']:.0f} MiB of memory."
        ),
        (
            f"`make bench`, medians of {repeats} interleaved runs on {machine['cpus']} shared "
            f"cores ({machine['cpu']}), no GPU, torch {machine['torch']}, Ray {machine['ray']}, "
            f"Python {machine['python']}."
        ),
    ]
    return "\n".join(lines)


SECTIONS = {"figures": (README, figures), "metrics": (REFERENCE, metrics.markdown)}
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
