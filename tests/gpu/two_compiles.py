# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Splits a cold start into torch's one-time work in a process, and the compile of one input.

    python tests/gpu/two_compiles.py [recipe64_regions_gpu]

Compiles a model with torch.compile in fresh cache directories, and calls it with two inputs of
different sizes. Both calls compile equally much. So the extra time of the first call is the work
that torch does once: tables of patterns, keys of its own code and of Triton's, and a module for the
driver. Prints a line of JSON. Before the calls, the compiler is imported and the eager model is
called.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", nargs="?", default="recipe64_regions_gpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{caches}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{caches}/triton"
        sys.stdout.write(json.dumps(calls_of(chosen.workload)) + "\n")


def calls_of(name: str) -> dict[str, object]:
    import torch

    from benchmarks import start_process, workloads

    torch.set_num_threads(1)
    workload = workloads.ALL[name]
    workload.import_libraries()
    start_process.import_compiler()
    module = workload.place_module()
    inputs = [workload.place_example(example) for example in workload.inputs()]
    calls_s = []
    with torch.inference_mode():
        module(*inputs[0].args, **inputs[0].kwargs)
        workload.wait()
        compiled = workload.compiled_by_torch(module)
        for example in inputs:
            begin = time.perf_counter()
            compiled(*example.args, **example.kwargs)
            workload.wait()
            calls_s.append(round(time.perf_counter() - begin, 3))
    return {"workload": name, "calls_s": calls_s, "torch": torch.__version__}


if __name__ == "__main__":
    main()
