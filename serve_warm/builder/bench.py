# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of cold and warm starts, each in a fresh replica with a fresh cache directory.

A bench alternates between its modes (cold, torch_bytes, warm, cold, …) and compares them as ratios,
because the speed of a shared machine changes within minutes. The clocks:

    ready_s      creation of the replica's actor → RUNNING, as Serve reports it
    to_proof_s   end of the user's `__init__` → end of the proof and of the checks against eager
    parity_s     part of to_proof_s: the stage that checks entries against eager
    overhead_s   to_proof_s minus the steady compute of the passes
    cpu_s        CPU seconds of the replica and the compilers it waited for, process start → proof

`cold` and `torch_bytes` run stock torch, including torch's probe of the CPU's vector ISA, and load
no artifact. `torch_bytes` begins with torch's own cache, which a cold start has saved. The floor is
the part of a warm run that is not overhead: imports, weights and the passes themselves.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from serve_warm._package import __version__
from serve_warm._redaction import excerpt
from serve_warm.builder.app import App
from serve_warm.builder.cluster import Cluster, Progress, ReadyReplica
from serve_warm.builder.torch_cache import TorchCache
from serve_warm.errors import BuildFailed, ConfigError
from serve_warm.inputs import Input
from serve_warm.private_apis import module_names
from serve_warm.report import Stage

MODES = ("cold", "torch_bytes", "warm")

SCHEMA_FILE = Path(__file__).with_name("bench.schema.json")
"""The JSON Schema of the result of `run`, shipped with the package."""

REQUEST_LIMIT_S = 600.0
"""Maximum seconds to wait for the answer to a request; after that, the bench fails."""

AFTER_READY = ("compiles", "captures", "kernels", "tunings", "eager_falls")
"""Counts of work after READY that together are the `compiles_after_ready` of a start."""


def run(
    app: App,
    store: str,
    *,
    on: Cluster,
    modes: Sequence[str] = MODES,
    repeats: int = 1,
    request_count: int = 60,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Start `app` in each of `modes`, `repeats` times per mode, and return the results.

    Raises:
        BuildFailed: a replica did not become ready, or a request failed.
        ConfigError: the app's replicas are a gang.
    """
    if app.replicas > 1:
        raise ConfigError(
            f"{app.deployment} is a gang of {app.replicas} replicas: bench sends a request to "
            "only one replica, and that replica would wait for the others",
            hint="the replicas' reports show how long each start took",
        )
    runs = []
    torch_cache = TorchCache() if "torch_bytes" in modes else None
    for repeat in range(repeats):
        for mode in modes:
            label = mode if repeats == 1 else f"{mode} {repeat + 1}/{repeats}"
            runs.append(
                one(
                    app,
                    store,
                    mode,
                    on=on,
                    request_count=request_count,
                    torch_cache=torch_cache,
                    progress=_say(progress, label),
                )
            )
    progress("floor: imports in a fresh process")
    return collect(app, store, runs, import_s=measure_imports())


def _say(progress: Progress, label: str) -> Progress:
    return lambda text: progress(f"{label}: {text}")


def one(
    app: App,
    store: str,
    mode: str,
    *,
    on: Cluster,
    request_count: int = 60,
    torch_cache: TorchCache | None = None,
    progress: Progress = lambda _: None,
    inspect: Callable[[ReadyReplica], None] = lambda _: None,
) -> dict[str, Any]:
    """Start `app` once, delete it, and return the record of the start.

    A cold start saves torch's own cache in `torch_cache`, if one is given, and `torch_bytes` loads
    that cache. If no start has saved the cache yet, `torch_bytes` first makes a cold start that is
    not measured. Before the app is deleted, `inspect` is called with the start.
    """
    settings: dict[str, Any] = {"enabled": True, "artifact": store, "max_level": 3}
    if mode != "warm":
        settings |= {"artifact": None, "on_missing": "compile"}
    if mode == "torch_bytes":
        app = (torch_cache or TorchCache()).loaded_by(app, settings, on=on, progress=progress)
    elif mode == "cold" and torch_cache is not None:
        app = torch_cache.saved_by(app)
    with on.running(app, settings, progress=progress) as start:
        progress("sending requests")
        latencies = _send(start, request_count)
        inspect(start)
        report = start.report()
        if mode == "cold" and torch_cache is not None:
            torch_cache.save(start)
    return {
        "mode": mode,
        "stages": _by_stage(report),
        "to_proof_s": report["to_proof_s"],
        "parity_s": _by_stage(report).get("parity", 0.0),
        "ready_s": start.ready_s,
        "overhead_s": report["overhead_s"],
        "cpu_s": report["cpu_s"],
        "first_request_s": latencies[0],
        "steady_p50_s": statistics.median(latencies[1:]),
        "compiles": report["warmup"]["compiles"],
        "compiler_processes": report["warmup"]["compiler_processes"],
        "compiles_after_ready": sum(report["after_ready"][each] for each in AFTER_READY),
        "verdict": report["verdict"],
        "traced": report["traced"],
        "levels": report["levels"],
        "covered": report["covered"],
        "passes": report["passes"],
        "requests": len(latencies),
    }


def _by_stage(report: Mapping[str, Any]) -> dict[str, float]:
    stages: dict[str, float] = {}
    for time_ in report["stages"]:
        name = time_["stage"].lower()
        stages[name] = stages.get(name, 0.0) + time_["seconds"]
    return stages


def _send(start: ReadyReplica, count: int) -> list[float]:
    """Send the declared inputs in turn, smallest first; return how long each one took."""
    inputs: list[Input] = start.handle.warmup_requests.remote().result(timeout_s=60)
    if not inputs:
        raise BuildFailed("the replica declares no inputs, so there is nothing to send")
    smallest_first = list(reversed(inputs))
    latencies = []
    with requests.Session() as session, ThreadPoolExecutor(max_workers=64) as pool:
        for index in range(max(count, len(inputs) + 1)):
            item = smallest_first[index % len(smallest_first)]
            send = _http(session, start.url, item) if item.http else _handle(start.handle, item)
            begin = time.perf_counter()
            for sent in [pool.submit(send) for _ in range(item.concurrency)]:
                sent.result()
            latencies.append(time.perf_counter() - begin)
    return latencies


def _http(session: requests.Session, url: str, item: Input) -> Callable[[], None]:
    verb, path = item.http or ("GET", "/")

    def send() -> None:
        answer = session.request(
            verb,
            url + path,
            json=item.json,
            data=item.body or None,
            headers=dict(item.headers),
            timeout=REQUEST_LIMIT_S,
        )
        if not answer.ok:
            raise BuildFailed(
                f"the request for input {item.name!r} ({verb} {path}) was answered with "
                f"{answer.status_code}: {excerpt(answer.text, 200)}"
            )

    return send


def _handle(handle: Any, item: Input) -> Callable[[], None]:
    options = {"multiplexed_model_id": item.model_id} if item.model_id else {}
    method = getattr(handle.options(**options), item.target_name)
    return lambda: method.remote(*item.args, **dict(item.kwargs)).result(timeout_s=REQUEST_LIMIT_S)


def collect(
    app: App, store: str, runs: Sequence[Mapping[str, Any]], *, import_s: float
) -> dict[str, Any]:
    """Return the results: facts about the machine, the runs, medians, ratios, and the floor."""
    medians = {
        mode: _median([run for run in runs if run["mode"] == mode])
        for mode in MODES
        if any(run["mode"] == mode for run in runs)
    }
    result: dict[str, Any] = {
        "schema": 1,
        "machine": machine(),
        "app": app.import_path,
        "deployment": app.deployment,
        "store": store,
        "runs": list(runs),
        "medians": medians,
        "ratios": {},
    }
    warm = medians.get("warm")
    if warm is not None:
        result["ratios"] = {
            f"warm_to_{mode}": warm["to_proof_s"] / medians[mode]["to_proof_s"]
            for mode in ("cold", "torch_bytes")
            if mode in medians
        }
        result["floor"] = {
            "to_proof_s": warm["to_proof_s"] - warm["overhead_s"],
            "ready_s": warm["ready_s"] - warm["overhead_s"],
            "imports_s": import_s,
        }
    return result


def _median(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    numbers = [key for key, value in runs[0].items() if isinstance(value, (int, float))]
    return {key: statistics.median(run[key] for run in runs) for key in numbers}


def measure_imports() -> float:
    """Return how many seconds a fresh process takes to import torch, its compiler and Serve."""
    code = (
        "import time; start = time.perf_counter(); "
        f"import torch, {module_names.DYNAMO}, {module_names.COMPILE_FX}; from ray import serve; "
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def machine() -> dict[str, Any]:
    """Return the hardware and the software versions, to publish with the figures."""
    import importlib.util
    import os
    from importlib.metadata import version

    import torch

    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor() or "unknown",
        "cpus": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        # Omit the kernel release, because it can identify the cloud and the owner of the machine.
        "platform": f"{platform.system()}-{platform.machine()}-with-{''.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        # Ray may be missing: starts are also measured without Ray.
        "ray": version("ray") if importlib.util.find_spec("ray") else "none",
        "serve_warm": __version__,
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the result of `run`."""
    loaded: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())
    return loaded


ROWS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("ready", "s", lambda r: r["ready_s"]),
    ("model built → proof", "s", lambda r: r["to_proof_s"]),
    ("  overhead", "s", lambda r: r["overhead_s"]),
    ("  compared with eager", "%", lambda r: 100 * r["parity_s"] / max(r["to_proof_s"], 1e-9)),
    ("CPU", "s", lambda r: r["cpu_s"]),
    ("first request", "ms", lambda r: r["first_request_s"] * 1e3),
    ("steady p50", "ms", lambda r: r["steady_p50_s"] * 1e3),
)
"""Rows of the table. Each row has a label, a unit, and a function that takes
the medians of a mode and returns the value."""

COUNTS = (
    ("frames compiled", "compiles"),
    ("compiler processes", "compiler_processes"),
    ("compiles after ready", "compiles_after_ready"),
)


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the comparison, as text cells."""
    medians = result["medians"]
    modes = [mode for mode in MODES if mode in medians]
    floor = result.get("floor", {})
    names = {"cold": "cold", "torch_bytes": "torch's bytes", "warm": "serve_warm"}
    header = ["", *(names[mode] for mode in modes), "floor"]
    rows = []
    present = {stage for run in result["runs"] for stage in run["stages"]}
    for stage in (s.value.lower() for s in Stage if s.value.lower() in present):
        cells = []
        for mode in modes:
            values = [r["stages"].get(stage) for r in result["runs"] if r["mode"] == mode]
            known = [value for value in values if value is not None]
            cells.append(f"{statistics.median(known):.2f} s" if known else "–")
        rows.append([f"stage {stage}", *cells, ""])
    at_floor = {
        "ready": f"{floor['ready_s']:.2f} s" if floor else "",
        "model built → proof": f"{floor['to_proof_s']:.2f} s" if floor else "",
    }
    for label, unit, value in ROWS:
        digits = {"s": 2, "ms": 1, "%": 0}[unit]
        cells = [f"{value(medians[mode]):.{digits}f} {unit}" for mode in modes]
        rows.append([label, *cells, at_floor.get(label, "")])
    for label, key in COUNTS:
        rows.append([label, *(f"{medians[mode][key]:.0f}" for mode in modes), "0"])
    covered = {r["mode"]: r["covered"] for r in result["runs"]}
    rows.append(
        ["inputs proven", *(f"{covered[m]['proven']}/{covered[m]['expected']}" for m in modes), ""]
    )
    return header, rows
