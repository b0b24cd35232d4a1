# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the first request to a replica, and the compiles, captures and tuning in 10,000.

    python tests/gpu/serve_requests.py [--json out.json]

Run it from the repository's root, on a machine with a GPU and Ray. `serve-warm build` makes the
artifact, replicas start from it, and clients send requests over HTTP. Then a naive deployment gets
the same requests: torch.compile, a warm-up loop in `__init__` and a `def` route. It does not use
serve_warm, except for the counters. Prints JSON. Exits with 1 if a replica of serve_warm was not a
full hit, gave a wrong answer, or compiled, captured, built, tuned or ran anything eagerly after it
was ready.

For the first request to a replica, Serve itself must set things up. So the program first sends a
request whose body is refused, and which the model never sees (`refused_ms`). The measured request
(`first_ms`) follows it.
"""

# No `from __future__ import annotations`: FastAPI looks up annotations that are strings in the
# module of the route, but Ray sends these classes to replicas without their module.

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import requests  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from fastapi import Body, FastAPI  # noqa: E402
from ray import serve  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

from deployments.image_classifier import app as image_classifier  # noqa: E402
from serve_warm.builder import bench  # noqa: E402
from serve_warm.builder.app import App, load_app  # noqa: E402
from serve_warm.builder.cluster import open_cluster  # noqa: E402
from serve_warm.compiler.watch import watch_process  # noqa: E402
from serve_warm.config import point_torch_caches_at  # noqa: E402
from serve_warm.report import Counts  # noqa: E402

CONFIG = "deployments/image_classifier/serve_gpu.yaml"
WARM_CALLS = 3
"""Calls of an input in the naive warm-up loop: one before the capture, the capture, a launch."""
SOLO = 100
"""Requests of a single client. The first request is compared with their median."""
SHOWN = ("compiles", "eager_runs", "captures", "graph_skips", "kernels", "tunings", "eager_falls")
GROWN = ("compiles", "eager_runs", "captures", "kernels", "tunings", "eager_falls")
"""Counters that must not grow after a replica is ready."""
REQUEST_LIMIT_S = 60.0
BEGIN_S = time.perf_counter()


# Requests, and their right answers --------------------------------------------------------------


class Images:
    """Requests to the image classifier. An answer is right if its scores are near eager's."""

    refused = b"no image"

    def __init__(self, args: Mapping[str, Any]) -> None:
        settings = image_classifier.Settings(**args)
        side, steps = image_classifier.SIDE, (0, 128, 255)
        colours = [bytes((r, g, b)) for r in steps for g in steps for b in steps]
        self.bodies = [colour * side * side for colour in colours]
        model = image_classifier.load_model(settings.depths).to(settings.device)
        with torch.inference_mode():
            pixels = image_classifier.pixel_values(self.bodies, batch=len(self.bodies))
            logits = [model(pixel_values=one[None].to(settings.device)).logits for one in pixels]
            self.scores = [row[0].softmax(0).tolist() for row in logits]

    def body(self, index: int) -> bytes:
        return self.bodies[index % len(self.bodies)]

    def right(self, index: int, answer: bytes) -> bool:
        """Return whether all scores are near eager's: TF32 passes, and another image fails."""
        scores = self.scores[index % len(self.bodies)]
        best = json.loads(answer)["classes"]
        return all(abs(scores[one["class"]] - one["score"]) < 0.05 for one in best)


# The naive deployment ---------------------------------------------------------------------------


def shown(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in SHOWN}


images = FastAPI()


@serve.deployment(max_ongoing_requests=64)
@serve.ingress(images)
class NaiveClassifier:
    """Counts what it compiles. serve_warm does nothing else in it."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        caches = Path(tempfile.mkdtemp())
        point_torch_caches_at(caches)
        self.watch = watch_process()
        self.watch.count_kernels_in(caches)
        self.threads: set[int] = set()
        settings = image_classifier.Settings(**args)
        self.device = settings.device
        model = image_classifier.load_model(settings.depths).to(settings.device)
        self.model = torch.compile(model, mode=settings.mode, fullgraph=True, dynamic=False)
        for _ in range(WARM_CALLS):
            self.classified(bytes(image_classifier.IMAGE_BYTES))
        self.at_start = self.watch.counts()

    def classified(self, image: bytes) -> list[dict[str, Any]]:
        pixels = image_classifier.pixel_values([image], batch=1).to(self.device)
        with torch.inference_mode():
            logits = self.model(pixel_values=pixels).logits
            scores, classes = logits.softmax(1).topk(image_classifier.BEST)
        found = zip(classes[0].tolist(), scores[0].tolist(), strict=True)
        return [{"class": name, "score": score} for name, score in found]

    @images.post("/")
    def classify(
        self, image: Annotated[bytes, Body(media_type="application/octet-stream")]
    ) -> dict[str, Any]:
        self.threads.add(threading.get_native_id())
        return {"classes": self.classified(image)}

    def counted(self) -> dict[str, Any]:
        now = self.watch.counts()
        return {
            "in_init": shown(self.at_start),
            "after_init": shown(now - self.at_start),
            "threads": len(self.threads),
            "said": sorted({str(event) for event in self.watch.events()[-20:]})[:5],
        }


# Sending ----------------------------------------------------------------------------------------


class Client:
    """One connection to a replica, which sends requests and records their durations."""

    def __init__(self, asked: Images, url: str) -> None:
        self.asked = asked
        self.url = f"{url}/"
        self.session = requests.Session()
        self.session.headers["Content-Type"] = "application/octet-stream"
        self.latencies_s: list[float] = []
        self.wrong: list[str] = []

    def post(self, body: bytes) -> tuple[float, requests.Response]:
        begin = time.perf_counter()
        answer = self.session.post(self.url, data=body, timeout=REQUEST_LIMIT_S)
        return time.perf_counter() - begin, answer

    def ask(self, index: int) -> float:
        try:
            seconds, answer = self.post(self.asked.body(index))
        except requests.RequestException as error:
            self.wrong.append(type(error).__name__)
            return REQUEST_LIMIT_S
        self.latencies_s.append(seconds)
        if not answer.ok:
            self.wrong.append(f"HTTP {answer.status_code}: {answer.text[:80]}")
        elif not self.asked.right(index, answer.content):
            self.wrong.append("another answer than eager's")
        return seconds


def solo(asked: Images, url: str) -> dict[str, Any]:
    """Return the latencies of the only client of a new replica, from the first request on."""
    client = Client(asked, url)
    refused_s, _ = client.post(asked.refused)
    first_s = client.ask(0)
    p50_s = statistics.median(client.ask(0) for _ in range(SOLO))
    return {
        "refused_ms": milliseconds(refused_s),
        "first_ms": milliseconds(first_s),
        "p50_ms": milliseconds(p50_s),
        "first_to_p50": round(first_s / p50_s, 3),
        "wrong": client.wrong[:3],
    }


def together(
    asked: Images, url: str, *, count: int, clients: int, limit_s: float
) -> dict[str, Any]:
    """Return the latencies of several clients at once. They stop after `limit_s` seconds."""
    all_of_them = [Client(asked, url) for _ in range(clients)]
    begin = time.perf_counter()

    def send(number: int) -> None:
        for index in range(number, count, clients):
            if time.perf_counter() - begin > limit_s:
                return
            all_of_them[number].ask(index)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, range(clients)))
    seconds = time.perf_counter() - begin
    latencies_s = sorted(one for client in all_of_them for one in client.latencies_s)
    wrong = [reason for client in all_of_them for reason in client.wrong]
    return {
        "requests": len(latencies_s),
        "clients": clients,
        "seconds": round(seconds, 1),
        "p50_ms": milliseconds(statistics.median(latencies_s)) if latencies_s else None,
        "p99_ms": milliseconds(latencies_s[len(latencies_s) * 99 // 100]) if latencies_s else None,
        "wrong": len(wrong),
        "why": sorted(set(wrong))[:5],
    }


def say(what: str) -> None:
    sys.stderr.write(f"[{time.perf_counter() - BEGIN_S:6.1f} s] {what}\n")


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)


# Both deployments -------------------------------------------------------------------------------


def of_serve_warm(app: App, store: str, asked: Images, options: Any) -> dict[str, Any]:
    """Start a replica from the artifact several times, and send the last one all requests."""
    settings = {"artifact": store, "on_missing": "fail", "on_refused": "fail"}
    firsts, all_requests, ready_s, reports = [], {}, [], []
    # A replica that loads an artifact builds nothing, so it needs no compile workers.
    alone = mock.patch.dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1")
    with alone, open_cluster(num_cpus=app.num_cpus) as on:
        for turn in range(1, options.starts + 1):
            with on.running(app, settings) as started:
                say(f"replica {turn} of {options.starts}: ready in {started.ready_s:.1f} s")
                firsts.append(solo(asked, started.url))
                say(f"replica {turn} of {options.starts}: first {firsts[-1]['first_ms']:.1f} ms")
                if turn == options.starts:
                    all_requests = together(
                        asked,
                        started.url,
                        count=options.requests,
                        clients=options.clients,
                        limit_s=options.limit_s,
                    )
                reports.append(started.report())
            ready_s.append(round(started.ready_s, 2))
    say(f"{all_requests['requests']} requests in {all_requests['seconds']:.1f} s")
    events = [event for report in reports for event in report["events"]]
    return {
        "verdict": ", ".join(sorted({report["verdict"] for report in reports})),
        "ready_s": ready_s,
        "to_proof_s": round(statistics.median(report["to_proof_s"] for report in reports), 2),
        "start": {name: sum(report["warmup"][name] for report in reports) for name in SHOWN},
        "after_ready": {
            name: sum(report["after_ready"][name] for report in reports) for name in SHOWN
        },
        "said": [f"{event['kind']}: {event['reason']}" for event in events][:5],
        "warnings": sorted({warning for report in reports for warning in report["warnings"]}),
        "first_to_p50": statistics.median(one["first_to_p50"] for one in firsts),
        "alone": firsts,
        "together": all_requests,
    }


def of_naive(app: App, args: Mapping[str, Any], asked: Images, options: Any) -> dict[str, Any]:
    """Start the naive deployment of the same model, and send it the same requests."""
    actor = app.overrides[app.deployment]["ray_actor_options"]
    found: dict[str, Any] = {}
    with open_cluster(num_cpus=app.num_cpus) as on:
        url = f"http://127.0.0.1:{on.port}/naive"
        begin = time.perf_counter()
        try:
            handle = serve.run(
                NaiveClassifier.options(ray_actor_options=actor).bind(args),
                name="naive",
                route_prefix="/naive",
            )
            found["ready_s"] = round(time.perf_counter() - begin, 2)
            say(f"naive: ready in {found['ready_s']:.1f} s")
            found["alone"] = [solo(asked, url)]
            found["together"] = together(
                asked, url, count=options.requests, clients=options.clients, limit_s=options.limit_s
            )
            found.update(handle.counted.remote().result(timeout_s=REQUEST_LIMIT_S))
        except (RuntimeError, TimeoutError, requests.RequestException, RayError) as error:
            # A replica that does not start, or that ends, is a result too.
            found["failed"] = f"{type(error).__name__}: {error}"[-600:]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--starts", type=int, default=3, help="replicas with a measured first request"
    )
    parser.add_argument(
        "--limit-s", type=float, default=60.0, help="seconds of requests to a deployment"
    )
    parser.add_argument("--json", type=Path, help="a file for the result")
    options = parser.parse_args(arguments)
    app = load_app(CONFIG)
    args = yaml.safe_load(Path(CONFIG).read_text())["applications"][0].get("args", {})
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
        built = subprocess.run(
            [sys.executable, "-m", "serve_warm.cli", "build", CONFIG, "--store", store],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        build_s = time.perf_counter() - begin
        asked = Images(args)
        found = {
            "machine": bench.machine(),
            "config": CONFIG,
            "build_s": round(build_s, 1),
            "build": built.stdout.replace(store, "STORE").splitlines()[:12],
            "serve_warm": of_serve_warm(app, store, asked, options),
        }
        found["naive"] = of_naive(app, args, asked, options)
    found["took_s"] = round(time.perf_counter() - begin, 1)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(text)
    warm = found["serve_warm"]
    grew = any(warm["after_ready"][name] for name in GROWN)
    wrong = warm["together"]["wrong"] or any(one["wrong"] for one in warm["alone"])
    return int(grew or bool(wrong) or warm["verdict"] != "full_hit")


if __name__ == "__main__":
    sys.exit(main())
