# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts one replica alone, and then several on one node at the same moment, from one artifact.

    python tests/gpu/eight_replicas.py [--replicas 8] [--workload recipe64_gpu] [--level 2]
        [--json out.json]

Ray is not used: each replica is a process with its own cache directory, as in Serve. The replicas
share only the folder of the node's downloads. Each replica has its own GPU if there are enough;
otherwise several replicas share a GPU. A workload for the CPU needs no GPU.

Prints a line of JSON for each start, and a summary as the last line. `to_proof_s` begins when the
model is built. `processes` counts the running processes that the replica or its descendants have
started (Inductor's workers).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

COUNTS = ("compiles", "compiler_processes", "fx_misses", "kernels", "tunings", "captures")
LIMIT_S = 600.0


def start(said: dict[str, Any]) -> dict[str, Any]:
    """Start one replica in this process, once all others are as far."""
    import torch

    from benchmarks import start_process, workloads

    torch.set_num_threads(1)
    clock = start_process.Clock(time.monotonic())
    workload = workloads.ALL[said["workload"]]
    workload.import_libraries()
    options = start_process.Options(system="serve_warm", spawned_s=clock.spawned_s, **said)
    system = start_process.ServeWarm(options, workload)
    clock.end("imports")
    sys.stdout.write("here\n")
    sys.stdout.flush()
    sys.stdin.readline()
    system.begin()
    module = workload.place_module()
    inputs = [workload.place_example(example) for example in workload.inputs()]
    clock.end("weights")
    system.start(module, inputs, clock)
    report = system._warmup.report()
    if options.role == "produce":
        system.save()
    used = report.artifact
    return {
        "device": torch.cuda.get_device_name() if workload.device == "cuda" else workload.device,
        "to_proof_s": round(clock.to_proof_s, 3),
        "verdict": report.verdict.value,
        "proven": f"{report.covered.proven}/{report.covered.expected}",
        "passes": report.passes,
        **{name: getattr(report.warmup, name) for name in COUNTS},
        "stored_bytes": used.stored_bytes if used else 0,
        "downloaded_bytes": used.downloaded_bytes if used else 0,
        "processes": len(list(descendants(os.getpid()))),
    }


def descendants(ancestor: int) -> Iterator[int]:
    """Yield the ids of the running processes that `ancestor` or its descendants have started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {ancestor}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        yield from new
        found |= new


class Node:
    """Starts replicas on one node. Those of a run share a temporary folder, and so a node cache."""

    def __init__(self, folder: Path, *, gpus: Sequence[str], **said: Any) -> None:
        self._folder = folder
        self._gpus = gpus
        self._said = {"folder": str(folder), **said}

    def run(self, name: str, *, replicas: int, role: str = "start") -> list[dict[str, Any]]:
        """Return the output of each replica. All replicas start once the last one is ready to."""
        temporary = self._folder / f"tmp-{name}"
        temporary.mkdir()
        said = json.dumps({**self._said, "role": role})
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "--one", said],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environ(temporary, number),
            )
            for number in range(replicas)
        ]
        try:
            for process in running:
                assert process.stdout is not None
                assert process.stdout.readline() == "here\n", "a replica ended before its start"
            for process in running:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            outs = [process.communicate(timeout=LIMIT_S)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        failed = [process.returncode for process in running if process.returncode]
        assert not failed, f"{len(failed)} of {replicas} replicas failed: see above"
        return [json.loads(out.splitlines()[-1]) for out in outs]

    def _environ(self, temporary: Path, number: int) -> dict[str, str]:
        environ = {**os.environ, "TMPDIR": str(temporary)}
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            environ.pop(name, None)
        if self._gpus:
            environ["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
        return environ


def visible_gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [*filter(None, named.split(","))] or [str(n) for n in range(torch.cuda.device_count())]


def compare(folder: Path, *, replicas: int, workload: str, level: int) -> Iterator[dict[str, Any]]:
    """Build, start one replica, then several at once; yield each output, and then a summary."""
    node = Node(folder, gpus=visible_gpus(), workload=workload, level=level)
    node.run("build", replicas=1, role="produce")
    alone = node.run("alone", replicas=1)
    together = node.run("together", replicas=replicas)
    for run, starts in (("alone", alone), ("together", together)):
        for number, said in enumerate(starts):
            yield {"run": run, "replica": number, **said}
    took = [said["to_proof_s"] for said in together]
    yield {
        "run": "summary",
        "replicas": replicas,
        "workload": workload,
        "level": level,
        "alone_s": alone[0]["to_proof_s"],
        "together_median_s": round(statistics.median(took), 3),
        "together_slowest_s": max(took),
        "stored_bytes": alone[0]["stored_bytes"],
        "downloaded_bytes": sum(said["downloaded_bytes"] for said in together),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--workload", default="recipe64_gpu")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        sys.stdout.write(json.dumps(start(json.loads(chosen.one))) + "\n")
        return
    from serve_warm.builder.bench import machine

    runs = []
    with tempfile.TemporaryDirectory(prefix="serve_warm-replicas-") as folder:
        for line in compare(
            Path(folder), replicas=chosen.replicas, workload=chosen.workload, level=chosen.level
        ):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            runs.append(line)
    if chosen.json:
        found = {"machine": machine(), "gpus": len(visible_gpus()), "runs": runs}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
