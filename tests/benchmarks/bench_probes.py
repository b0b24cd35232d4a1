# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a build spends on inputs that nobody declared, and what it finds in right applications.

    python tests/benchmarks/bench_probes.py > tests/benchmarks/results/probes.json

Each deployment of `deployments/` is built once, from empty caches. `probes_s` are the seconds of
the calls that differ from all declared inputs, and of the last proof after them. `build_s` is the
wall time of the whole command.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = (
    *("text_embedder", "image_classifier", "image_generator", "speech_to_text", "text_generator"),
)
PROBES = "other sizes"
"""The span of a start in which undeclared calls are made."""


def build(name: str) -> dict[str, Any]:
    """Build one deployment, and return its row."""
    with tempfile.TemporaryDirectory(prefix="probes-") as store:
        began_s = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "serve_warm.cli", "build"),
                *(str(ROOT / "deployments" / name / "serve.yaml"), "--store", store, "--json"),
            ],
            cwd=store,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        took_s = time.perf_counter() - began_s
    cold = json.loads(done.stdout)["cold"]
    probes_s = sum(span["seconds"] for span in cold["spans"] if span["name"] == PROBES)
    return {
        "app": name,
        "build_s": round(took_s, 1),
        "probes_s": round(probes_s, 2),
        "share": round(probes_s / took_s, 4),
        "narrow": cold["narrow"],
        "unvaried": cold["unvaried"],
    }


def main() -> None:
    """Write the figures to stdout as JSON."""
    import ray
    import torch

    rows = []
    for name in sys.argv[1:] or DEPLOYMENTS:
        rows.append(build(name))
        sys.stderr.write(f"{rows[-1]}\n")
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
    }
    sys.stdout.write(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
