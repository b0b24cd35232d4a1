# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The wait of users for calls that no input foresaw, by policy, and starts without an artifact.

    python tests/benchmarks/bench_eager.py [--json tests/benchmarks/results/eager.json] [--app NAME]

Each application of `deployments` runs under Ray Serve, with all of its inputs but some, in three
ways: with `after_ready: eager`, with `count`, and without torch.compile. Requests like the inputs
that are left out are unforeseen. All answers are compared with those of the last way. Foreseen
requests are timed with several clients, all of which or all but one send such requests. The starts
are `on_missing: eager` and `compile` without an artifact, and the last way, in turns.

Each application is written to the JSON as soon as it is measured, and `--app` measures one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eager_apps import APPS, App, deployment_of

from serve_warm.builder.bench import machine

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join((str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
"""Where replicas and builds find the applications."""

PORT = 8787
REQUESTS = 20
"""Number of unforeseen requests, after the first one."""

CLIENTS = 8
"""Number of clients that send requests at the same time."""

FORESEEN = 60
"""Number of foreseen requests of each client."""

TURNS = 5
"""Number of starts of each kind."""

SHADES = 3
"""Largest difference of a color of a pixel, of 255, that compiled code may make."""

LIMIT = 1.3
"""Largest allowed time of an unforeseen call, as a multiple of its time without torch.compile."""

START_LIMIT = 1.15
"""The same for a start without an artifact."""


PLAIN = {"TORCHDYNAMO_DISABLE": "1", "SERVE_WARM_ENABLED": "false"}
"""Environment of a replica without torch.compile and without serve_warm."""


def deploy(name: str, settings: dict[str, Any], environment: dict[str, str]) -> tuple[Any, float]:
    """Deploy an application. Return its handle, and the seconds until it is RUNNING."""
    from ray import serve

    options = deployment_of(name).options(
        user_config={"warmup": settings},
        ray_actor_options={
            "num_cpus": 1,
            "runtime_env": {"env_vars": {"PYTHONPATH": PATHS, **environment}},
        },
    )
    began, running = time.monotonic(), threading.Event()
    ends: list[float] = []

    def watch() -> None:  # serve.run looks only once a second
        while not running.wait(0.02):
            found = serve.status().applications.get("bench")
            if found is not None and found.status == "RUNNING":
                ends.append(time.monotonic())
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        handle = serve.run(options.bind(), name="bench", route_prefix="/")
    finally:
        ended = time.monotonic()
        running.set()
        watching.join()
    return handle, (ends or [ended])[0] - began


def ask(app: App, request: tuple[bytes, int]) -> tuple[float, list[bytes]]:
    """Send a request, as often as it says at once. Return milliseconds, and the answers."""
    body, many = request

    def send(_: int) -> bytes:
        url = f"http://127.0.0.1:{PORT}{app.path}"
        posted = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(posted, timeout=600) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:  # another process cannot get it
            raise RuntimeError(f"{error}: {error.read()[:500]!r}") from None

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(many) as threads:
        answers = list(threads.map(send, range(many)))
    return 1000 * (time.monotonic() - began), answers


def differs(ours: bytes, theirs: bytes) -> bool:
    """Return whether two answers differ by more than compiled code may."""
    import torch

    if ours[:4] == b"\x89PNG":
        from PIL import Image

        ours, theirs = (
            Image.open(io.BytesIO(each)).convert("RGB").tobytes() for each in (ours, theirs)
        )
        one, other = (
            torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (ours, theirs)
        )
        return bool((one.int() - other.int()).abs().max() > SHADES)
    try:
        one, other = json.loads(ours), json.loads(theirs)
    except ValueError:
        return ours != theirs
    return not close(one, other)


def close(one: Any, other: Any) -> bool:
    """Return whether two decoded answers differ by no more than compiled code may."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return abs(one - other) <= 1e-3 * max(1.0, abs(other))
    return bool(one == other)


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[-1]


def wrong_in(answers: list[bytes], right: bytes) -> int:
    return sum(differs(answer, right) for answer in answers)


def measure_calls(name: str, store: str) -> dict[str, Any]:
    """Measure unforeseen and foreseen requests with each policy."""
    app = APPS[name]
    deploy(name, {}, PLAIN)
    right = {kind: ask(app, kind)[1][0] for kind in (app.foreseen, app.unforeseen)}
    eager_ms = [ask(app, app.unforeseen)[0] for _ in range(REQUESTS)]

    handle, _ = deploy(name, {"artifact": store, "after_ready": "eager"}, {})
    wrong = wrong_in(ask(app, app.foreseen)[1], right[app.foreseen])
    first, answers = ask(app, app.unforeseen)
    wrong += wrong_in(answers, right[app.unforeseen])
    times = [first]
    for _ in range(REQUESTS):
        took, answers = ask(app, app.unforeseen)
        wrong += wrong_in(answers, right[app.unforeseen])
        times.append(took)
    crowds: dict[str, Any] = {}
    if not app.batch_decides:
        alone, alone_wrong = crowd(app, right, app.foreseen)
        beside, beside_wrong = crowd(app, right, app.unforeseen)
        wrong += alone_wrong + beside_wrong
        crowds = {
            "foreseen_p50_ms": [round(statistics.median(each), 1) for each in (alone, beside)],
            "foreseen_p99_ms": [round(p99(each), 1) for each in (alone, beside)],
            "foreseen_p99_ratio": round(p99(beside) / p99(alone), 2),
        }
    report = handle.warmup_report.remote().result()

    deploy(name, {"artifact": store, "after_ready": "count"}, {})
    count_ms, answers = ask(app, app.unforeseen)
    wrong += wrong_in(answers, right[app.unforeseen])
    return {
        "app": name,
        "policy": "eager",
        "verdict": report["verdict"],
        "unforeseen_p50_ms": round(statistics.median(times), 1),
        "unforeseen_max_ms": round(max(times), 1),
        "unforeseen_first_ms": round(first, 1),
        "eager_ms": round(statistics.median(eager_ms), 1),
        "eager_max_ms": round(max(eager_ms), 1),
        "count_policy_ms": round(count_ms, 1),
        **crowds,
        "eager_calls": sum(each["calls"] for each in report["eager_calls"]),
        "compiles": report["after_ready"]["compiles"],
        "wrong": wrong,
    }


def crowd(app: App, right: dict[Any, bytes], last: tuple[bytes, int]) -> tuple[list[float], int]:
    """Return the times of foreseen requests, and the number of wrong answers.

    All clients send them but the last one, which sends requests of the kind `last` meanwhile.
    """
    stop = threading.Event()

    def foreseen(_: int) -> tuple[list[float], int]:
        times, wrong = [], 0
        for _ in range(FORESEEN):
            took, answers = ask(app, app.foreseen)
            wrong += wrong_in(answers, right[app.foreseen])
            times.append(took)
        return times, wrong

    def beside() -> int:
        wrong = 0
        while not stop.is_set():
            wrong += wrong_in(ask(app, last)[1], right[last])
        return wrong

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        other = clients.submit(beside)
        try:
            each = list(clients.map(foreseen, range(CLIENTS - 1)))
        finally:
            stop.set()
    return [took for times, _ in each for took in times], other.result() + sum(n for _, n in each)


def measure_starts(name: str, store: str) -> dict[str, Any]:
    """Start without an artifact, eagerly and without torch.compile in turns, and once compiled."""
    from ray import serve

    ways: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "eager": ({"artifact": store, "on_missing": "eager"}, {}),
        "floor": ({}, PLAIN),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS):
        for way, (settings, environment) in sorted(ways.items(), reverse=bool(turn % 2)):
            serve.delete("bench")
            took[way].append(deploy(name, settings, environment)[1])
    serve.delete("bench")
    compiled = deploy(name, {"artifact": store, "on_missing": "compile"}, {})[1]
    serve.delete("bench")
    median = {way: statistics.median(each) for way, each in took.items()}
    return {
        "eager_ready_s": round(median["eager"], 2),
        "floor_s": round(median["floor"], 2),
        "ratio": round(median["eager"] / median["floor"], 3),
        "compile_ready_s": round(compiled, 2),
        "each_s": {way: [round(each, 2) for each in times] for way, times in took.items()},
    }


def build(name: str, store: str) -> None:
    """Build an artifact for the inputs that are not left out."""
    command = [Path(sys.executable).with_name("serve-warm"), "build"]
    target = f"eager_apps:{name.replace(' ', '_')}"
    subprocess.run(
        [*command, target, "--store", store],
        env={**os.environ, "PYTHONPATH": PATHS},
        check=True,
        stdout=sys.stderr,
    )


def measure(name: str) -> dict[str, Any]:
    """Return the figures of one application."""
    import ray
    from ray import serve

    with tempfile.TemporaryDirectory(prefix="bench-eager-") as folder:
        build(name, f"{folder}/artifacts")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            serve.start(http_options={"port": PORT})
            calls = measure_calls(name, f"{folder}/artifacts")
            return {**calls, "start": measure_starts(name, f"{folder}/nothing")}
        finally:
            serve.shutdown()
            ray.shutdown()


def problems(row: dict[str, Any]) -> list[str]:
    """Return what is not as it should be in the figures of an application."""
    found = [f"{row['compiles']} compiles"] if row["compiles"] else []
    found += [f"{row['wrong']} wrong answers"] if row["wrong"] else []
    if row["unforeseen_p50_ms"] > LIMIT * row["eager_ms"]:
        found.append(
            f"an unforeseen call takes {row['unforeseen_p50_ms']} ms, not {row['eager_ms']}"
        )
    if row["start"]["ratio"] > START_LIMIT:
        found.append(f"an eager start takes {row['start']['ratio']} times the floor")
    return [f"{row['app']}: {each}" for each in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that gets the rows")
    parser.add_argument("--app", choices=APPS, action="append", help="may be repeated")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if options.json is not None and options.json.exists():
        rows = {row["app"]: row for row in json.loads(options.json.read_text())["apps"]}
    for name in options.app or APPS:
        sys.stderr.write(f"{name}\n")
        # In a process of its own, which begins without torch and Ray.
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            rows[name] = process.submit(measure, name).result()
        sys.stderr.write(json.dumps(rows[name]) + "\n")
        if options.json is not None:
            result = {"machine": machine(), "apps": [rows[each] for each in APPS if each in rows]}
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    found = [each for row in rows.values() for each in problems(row)]
    sys.stdout.write("\n".join([*found, json.dumps(list(rows.values()), indent=1), ""]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
