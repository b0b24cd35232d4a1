# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Warm starts of applications that name no serve_warm, from what their traffic taught.

    python tests/benchmarks/bench_learn.py [--json tests/benchmarks/results/learn.json] [--app NAME]

Each application of `zero_lines` runs under Ray Serve four times:

1. wrapped, without an artifact: one round of requests, and then `serve-warm plan`
2. without torch.compile and without serve_warm, for the right answers
3. in `serve-warm build --plan`
4. wrapped, with the artifact, in a new cluster: 1,000 requests of the same kinds

Several clients send the requests, because they decide the sizes of batches. Each application is
written to the JSON as soon as it is measured, `--app` measures one, and `--missing` all that have
no row. Other keys of the JSON stay.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import io
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml
from bench_eager import close
from zero_requests import APPS, App, send

from serve_warm.builder.bench import machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = os.pathsep.join((str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")))
"""Where replicas and builds find the applications."""

NAME = "zero"
"""Name of the application in Serve."""

CLIENTS = 8
ROUNDS = 4
"""How often each client sends each request while the traffic is recorded."""

REQUESTS = 1000
"""Number of requests after the start with the artifact."""

OVER_HTTP = "fastapi_ingress"
"""Application whose requests are timed with and without the recorder."""

WARM_UP = 100
"""Number of requests that are not timed, because they compile."""

SHADES = 3
"""Largest difference of a color of a pixel, of 255, that compiled code may make."""

PLAIN = {"TORCHDYNAMO_DISABLE": "1"}
"""Environment of an application without torch.compile."""

GRPC = ("ray.serve.generated.serve_pb2_grpc.add_UserDefinedServiceServicer_to_server",)

Answers = dict[int, bytes]
"""The right answer to each request of an application, by its number."""


@contextlib.contextmanager
def cluster(app: App) -> Iterator[Cluster]:
    """Yield a Ray cluster of its own for one application."""
    import ray
    from ray import serve
    from ray.serve.config import gRPCOptions

    environment = {"PYTHONPATH": PATHS}
    os.environ.update(environment)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": environment},
    )
    try:
        port = free_ports()
        grpc = gRPCOptions(port=port + 1, grpc_servicer_functions=list(GRPC))
        serve.start(http_options={"port": port}, grpc_options=grpc if app.over_grpc else None)
        yield Cluster(app, port)
    finally:
        ray.shutdown()  # ends the cluster, and all that runs on it


def free_ports() -> int:
    """Return a free port. The next one is free too, and is that of gRPC."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class Cluster:
    """A Ray cluster with one application."""

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        self.port = port

    def run(self, bound: Any) -> None:
        """Deploy the application."""
        from ray import serve

        serve.run(bound, name=NAME, route_prefix="/")

    def ask(self, number: int) -> bytes:
        """Return the answer to the request with this number."""
        return send(self._app, self._app.requests[number], port=self.port, name=NAME)

    def traffic(self, count: int) -> list[tuple[int, bytes | str]]:
        """Send requests of all kinds with several clients.

        Returns the number of each request, and its answer or error.
        """

        def try_one(number: int) -> tuple[int, bytes | str]:
            try:
                return number, self.ask(number)
            except Exception as error:  # noqa: BLE001 - a failed request is a result
                return number, f"{type(error).__name__}: {str(error)[:300]}"

        numbers = itertools.islice(itertools.cycle(range(len(self._app.requests))), count)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            return list(clients.map(try_one, numbers))

    def each(self, method: str) -> dict[str, dict[str, Any]]:
        """Return what a method of the mixin answers, for each deployment that has it."""
        from ray import serve

        found = {}
        for name in sorted(serve.status().applications[NAME].deployments):
            handle = serve.get_deployment_handle(name, app_name=NAME)
            found[name] = getattr(handle, method).remote().result(timeout_s=60)
        return found


def plain(name: str) -> Any:
    """Return the application as it is, without torch.compile."""
    import importlib

    from serve_warm.private_apis.ray_serve import map_deployments

    runtime_env = {"env_vars": {"PYTHONPATH": PATHS, **PLAIN}}
    return map_deployments(
        importlib.import_module(f"zero_lines.{name}").app,
        lambda each: each.options(ray_actor_options={"runtime_env": runtime_env}),
    )


def wrapped(name: str, settings: dict[str, Any]) -> Any:
    """Return the application as `import_path: serve_warm.app:wrap` makes it."""
    from serve_warm.app import wrap

    return wrap(arguments(name, settings))


def arguments(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the args of wrap."""
    named = {"compile": APPS[name].to_compile} if APPS[name].to_compile else {}
    return {"app": f"zero_lines.{name}:app", **named, **settings}


def record(name: str, store: str, folder: str) -> dict[str, Any]:
    """Record a round of traffic, and make the plan of each deployment that compiles."""
    import ray
    from ray import serve

    app = APPS[name]
    bound = wrapped(name, {"artifact": store, "on_missing": "eager", "after_ready": "eager"})
    with cluster(app) as on:
        on.run(bound)
        for number in range(len(app.requests)):  # alone, and then beside others
            on.ask(number)
        answers = on.traffic(ROUNDS * CLIENTS * len(app.requests))
        reports, recorded = on.each("warmup_report"), on.each("warmup_recorded")
        plans = {}
        for deployment, found in recorded.items():
            if not (found["calls"] or found["not_recorded"]):
                continue
            file = f"{folder}/{deployment}.yaml"
            address = ray.get_runtime_context().gcs_address
            done = call("plan", "--address", address, "--deployment", deployment, "-o", file)
            kinds = yaml.safe_load(Path(file).read_text())["calls"] if not done.returncode else []
            plans[deployment] = {
                "file": file if kinds else None,
                "kinds": len(kinds),
                "calls": sum(each["calls"] for each in kinds),
                "not_recorded": found["not_recorded"],
                **({"error": done.stderr[-1000:]} if done.returncode else {}),
            }
        serve.delete(NAME)
        on.run(plain(name))
        right = {number: on.ask(number) for number in range(len(app.requests))}
    compiled = [each for report in reports.values() for each in report["compiled_by_app"]]
    return {
        "plans": plans,
        "compiled": compiled,
        "right": right,
        "wrong": wrong_in(answers, right),
        "warnings": {each: report["warnings"] for each, report in reports.items()},
    }


def build(name: str, store: str, deployment: str, plan: str) -> dict[str, Any]:
    """Build the artifact of a deployment with its plan."""
    target = f"zero_lines.{name}:app"
    if APPS[name].to_compile:
        config = {"import_path": "serve_warm.app:wrap", "args": arguments(name, {})}
        target = f"{plan}.serve.yaml"
        Path(target).write_text(yaml.safe_dump({"applications": [config]}))
    began = time.monotonic()
    done = call("build", target, "--store", store, "--plan", plan, "--deployment", deployment)
    took = {"build_s": round(time.monotonic() - began, 1)}
    return {**took, "build_error": done.stderr[-2000:]} if done.returncode else took


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the serve-warm command."""
    command = [sys.executable, "-m", "serve_warm.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(
        command, env=environment, check=False, text=True, capture_output=True, cwd=HERE
    )
    sys.stderr.write(f"{arguments[0]}: {done.returncode} {done.stderr[-1500:]}\n")
    return done


def replay(name: str, store: str, right: Answers) -> dict[str, Any]:
    """Start with the artifact, and send requests of the same kinds."""
    bound = wrapped(name, {"artifact": store})
    with cluster(APPS[name]) as on:
        on.run(bound)
        before = on.each("warmup_report")
        began = time.monotonic()
        answers = on.traffic(REQUESTS)
        took = time.monotonic() - began
        after = on.each("warmup_report")
    return {
        "reports": {
            each: {
                "verdict": report["verdict"],
                "covered": report["covered"],
                "degraded": report["degraded"],
                "levels": sorted({entry["level"] for entry in report["entries"]}),
                "reasons": sorted({e["reason"] for e in report["entries"] if e["reason"]}),
                "compiles": after[each]["after_ready"]["compiles"],
                "fx_misses": after[each]["after_ready"]["fx_misses"],
                "events": after[each]["events"][:3],
                "warnings": report["warnings"],
            }
            for each, report in before.items()
        },
        "late": [
            each for report in after.values() for each in report["compiled_by_app"] if each["late"]
        ],
        "wrong": wrong_in(answers, right),
        "requests_s": round(took, 1),
    }


def wrong_in(answers: list[tuple[int, bytes | str]], right: Answers) -> int:
    """Return the number of answers that are errors, or differ from the right ones."""
    wrong = [
        (number, answer)
        for number, answer in answers
        if isinstance(answer, str) or differs(answer, right[number])
    ]
    for number, answer in wrong[:3]:
        sys.stderr.write(f"wrong: {number}: {answer[:300]!r}, not {right[number][:300]!r}\n")
    return len(wrong)


def differs(ours: bytes, theirs: bytes) -> bool:
    """Return whether two answers differ by more than compiled code may."""
    import torch

    if ours[:4] == b"\x89PNG":
        from PIL import Image

        ours, theirs = (
            Image.open(io.BytesIO(each)).convert("RGB").tobytes() for each in (ours, theirs)
        )
        if len(ours) != len(theirs):
            return True
        one, other = (
            torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (ours, theirs)
        )
        return bool((one.int() - other.int()).abs().max() > SHADES)
    try:
        return not close(json.loads(ours), json.loads(theirs))
    except ValueError:
        return ours != theirs


def measure(name: str) -> dict[str, Any]:
    """Return the row of one application."""
    app = APPS[name]
    with tempfile.TemporaryDirectory(prefix="bench-learn-") as folder:
        store = Path(folder, "artifacts").as_uri()
        learned = apart(record, name, store, folder)
        plans, right = learned["plans"], learned["right"]
        for deployment, plan in plans.items():
            file = plan.pop("file")
            if file is not None:
                plan.update(build(name, store, deployment, file))
                if "build_error" in plan:  # the start would only show that nothing was built
                    raise RuntimeError(f"{name}: {plan['build_error']}")
        replayed = apart(replay, name, store, right)
    reports = replayed["reports"]
    verdicts = {reports[each]["verdict"] for each in plans}
    compiled = learned["compiled"]
    return {
        "app": name,
        "of_10": app.of_10,
        "lines_changed": lines_that_name_serve_warm(name),
        "taken": sum(not each["left"] for each in compiled) + len(named(app)),
        "not_taken": [f"{each['name']}: {each['left']}" for each in compiled if each["left"]],
        "late": len(replayed["late"]),
        "verdict": ", ".join(sorted(str(each) for each in verdicts)) or "nothing learned",
        "kinds": sum(plan["kinds"] for plan in plans.values()),
        "replayed": sum(reports[each]["covered"]["expected"] for each in plans),
        "proven": sum(reports[each]["covered"]["proven"] for each in plans),
        "compiles_on_replay": sum(each["compiles"] for each in reports.values()),
        "wrong": learned["wrong"] + replayed["wrong"],
        "requests_s": replayed["requests_s"],
        "deployments": {each: {**plan, **reports[each]} for each, plan in plans.items()},
    }


def http_ratio() -> float:
    """Return the median seconds of a request with the recorder over those without it.

    Two deployments of one application get the same request in turns. Neither has an artifact, so
    the recorder counts each call itself.
    """
    import statistics

    from ray import serve

    app = APPS[OVER_HTTP]
    routes = {"signatures": "/recording", "off": "/plain"}
    seconds: dict[str, list[float]] = {record: [] for record in routes}
    with cluster(app) as on:
        for setting, route in routes.items():
            settings = {"artifact": None, "record": setting}
            serve.run(wrapped(OVER_HTTP, settings), name=setting, route_prefix=route)
        for number in range(WARM_UP + REQUESTS):
            for setting, route in routes.items():
                request = app.requests[number % len(app.requests)]
                began = time.perf_counter()
                send(
                    app,
                    dataclasses.replace(request, path=route + request.path),
                    port=on.port,
                    name=setting,
                )
                if number >= WARM_UP:
                    seconds[setting].append(time.perf_counter() - began)
    medians = {setting: statistics.median(each) for setting, each in seconds.items()}
    sys.stderr.write(f"medians over HTTP: {medians}\n")
    return medians["signatures"] / medians["off"]


def apart(function: Any, *args: Any) -> Any:
    """Call a function in a process of its own, which begins without torch and Ray."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args).result()


def named(app: App) -> list[str]:
    """Return the attributes that the argument `compile` names."""
    given = app.to_compile
    return (
        [name for names in given.values() for name in names] if isinstance(given, dict) else given
    )


def lines_that_name_serve_warm(name: str) -> int:
    """Return the number of lines of an application, besides its license, that name serve_warm."""
    lines = (HERE / "zero_lines" / f"{name}.py").read_text().splitlines()[2:]
    return sum("serve_warm" in line or "serve-warm" in line for line in lines)


def problems(row: dict[str, Any]) -> list[str]:
    """Return what is not as it should be in the row of an application."""
    found = [f"the verdict is {row['verdict']}"] if row["verdict"] != "full_hit" else []
    if row["proven"] != row.get("replayed", row["kinds"]) or not row["kinds"]:
        found.append(f"{row['proven']} of {row['replayed']} calls of the plan are proven")
    for key in ("lines_changed", "late", "compiles_on_replay", "wrong"):
        found += [f"{key} is {row[key]}"] if row[key] else []
    return [f"{row['app']}: {each}" for each in [*found, *row["not_taken"]]]


def read(file: Path | None) -> dict[str, Any]:
    """Return the results so far, with all keys that are there."""
    known: dict[str, Any] = {"machine": {}, "apps": []}
    if file is not None and file.exists():
        known.update(json.loads(file.read_text()))
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that gets the rows")
    parser.add_argument("--app", choices=APPS, action="append", help="may be repeated")
    parser.add_argument("--http", action="store_true", help="only time requests, see http_ratio")
    parser.add_argument("--missing", action="store_true", help="measure what has no row yet")
    options = parser.parse_args()
    if options.http:
        result = {"http_p50_ratio": round(apart(http_ratio), 3)}
        sys.stdout.write(json.dumps(result) + "\n")
        if options.json is not None:
            known = {**read(options.json), **result}
            options.json.write_text(json.dumps(known, indent=1) + "\n")
        return 0
    rows: dict[str, dict[str, Any]] = {row["app"]: row for row in read(options.json)["apps"]}
    for name in options.app or [each for each in APPS if not options.missing or each not in rows]:
        sys.stderr.write(f"{name}\n")
        rows[name] = measure(name)
        sys.stderr.write(json.dumps(rows[name]) + "\n")
        if options.json is not None:
            # Read again, because other programs write other keys.
            known = read(options.json)
            rows = {**{row["app"]: row for row in known["apps"]}, name: rows[name]}
            apps = [rows[each] for each in APPS if each in rows]
            result = {**known, "machine": machine(), "apps": apps}
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    found = [each for row in rows.values() for each in problems(row)]
    sys.stdout.write("\n".join([*found, json.dumps(list(rows.values()), indent=1), ""]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
