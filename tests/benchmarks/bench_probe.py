# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The latency of a node's exec probe and of `/readyz`, on an idle machine and during a compile.

    python tests/benchmarks/bench_probe.py [--probes 100] [--questions 1000]

The node has four warm replicas with all their metrics, and two health addresses that answer
immediately. In turns with the probes, the benchmark measures the lowest possible cost on the same
machine: a Python process that does nothing, and a server that answers without checks. During the
compile, torch compiles one model after another without caches, with its default number of compiler
processes.

The JSON on stdout has milliseconds, and the machine's load for each figure. For processes it also
has the median CPU time, which depends less on the load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_warm import __version__, metrics, node
from serve_warm._state_file import Heartbeat
from serve_warm.report import Report, Stage, Verdict

LIMITS_MS = {"exec": 60.0, "http": 2.0}
"""Limits for the 95th percentile."""

REPLICAS = 4

PAUSE_S = 0.01
"""Pause between requests. Real clients do not ask in a loop, so each request must wake up the
server."""

COMPILE = """
import os, sys, tempfile
import torch
sys.stdout.write("begun\\n")
sys.stdout.flush()
while True:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        torch._dynamo.reset()
        layer = torch.nn.TransformerEncoderLayer(128, 4, batch_first=True).eval()
        model = torch.compile(layer, dynamic=False)
        with torch.no_grad():
            model(torch.ones(2, 32, 128))
"""

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


def answer_at_once(listening: socket.socket) -> None:
    """Answer every request of every connection with the same bytes, without parsing it."""

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(OSError):
            while connection.recv(4096):
                connection.sendall(ANSWER)

    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


@contextlib.contextmanager
def least_server() -> Iterator[int]:
    """Run `answer_at_once` in a child process, and yield its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        child = os.fork()
        if child == 0:
            answer_at_once(listening)
        try:
            yield listening.getsockname()[1]
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


@contextlib.contextmanager
def replicas(directory: Path) -> Iterator[None]:
    report = Report(stage=Stage.READY, verdict=Verdict.FULL_HIT)
    facts = {"stage": "READY", "verdict": "full_hit", "metrics": metrics.as_data(report)}
    beats = [
        Heartbeat(
            directory,
            application="bench",
            deployment="Model",
            replica=f"Model#{number}",
            facts=lambda: facts,
        )
        for number in range(REPLICAS)
    ]
    while sum(each.condition == "warm" for each in node.look(directory)) < REPLICAS:
        time.sleep(0.01)
    yield
    for beat in beats:
        beat.stop()


@contextlib.contextmanager
def process(*command: str, until: str) -> Iterator[str]:
    """Run a command, and yield its first line of output that contains `until`."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as running:
        try:
            yield next(line for line in running.stdout if until in line)
        finally:
            os.killpg(running.pid, 9)


def run(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def ask(port: int, connection: socket.socket | None = None) -> float:
    """Send one request, on a new connection unless one is given. Return its seconds."""
    began = time.perf_counter()
    own = connection or socket.create_connection(("127.0.0.1", port))
    own.sendall(b"GET /readyz HTTP/1.1\r\nHost: node\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        received = own.recv(4096)
        if not received:
            raise ConnectionError(answer)
        answer += received
    took = time.perf_counter() - began
    if connection is None:
        own.close()
    if b" 200 " not in answer:
        raise ValueError(answer)
    return took


def in_turns(sides: Mapping[str, Callable[[], float]], count: int) -> dict[str, dict[str, float]]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_s: dict[str, list[float]] = {name: [] for name in sides}
    load = os.getloadavg()[0]
    for number in range(count + 1):
        for name, side in sides.items():
            before = _cpu_of_children_s()
            took = side()
            used = _cpu_of_children_s() - before
            time.sleep(PAUSE_S)
            if number:  # the first round warms caches
                seconds[name].append(took)
                cpu_s[name].append(used)
    return {
        name: {
            **{f"p{p}": round(_percentile(values, p) * 1e3, 2) for p in (50, 95, 99)},
            "max": round(max(values) * 1e3, 2),
            **({"cpu": round(statistics.median(cpu_s[name]) * 1e3, 2)} if any(cpu_s[name]) else {}),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
        }
        for name, values in seconds.items()
    }


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def measure(probes: int, questions: int) -> dict[str, Any]:
    alone = (sys.executable, "-I", "-S")
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        least = stack.enter_context(least_server())  # forks, so it precedes the replicas' threads
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "state"
        stack.enter_context(replicas(directory))
        health = f"http://127.0.0.1:{least}/health"
        options = ("--state-dir", str(directory), "--raylet", health, "--proxy", health)
        serving = ("-m", "serve_warm.node_server", *options, "--host", "127.0.0.1", "--port", "0")
        said = stack.enter_context(process(sys.executable, *serving, until="answers on port"))
        port = int(re.search(r"port (\d+)", said)[1])
        compiled = directory.parent / "node.pyc"
        run(
            *alone, "-c", f"import py_compile as c; c.compile({node.__file__!r}, {str(compiled)!r})"
        )
        execs = {
            "exec": lambda: run(*alone, node.__file__, "probe", *options),
            "exec_compiled_file": lambda: run(*alone, str(compiled), "probe", *options),
            "exec_least": lambda: run(*alone, "-c", "pass"),
        }

        for name in ("idle", "beside_a_compile"):
            with contextlib.ExitStack() as beside:
                if name != "idle":
                    command = (sys.executable, "-c", COMPILE)
                    beside.enter_context(process(*command, until="begun"))
                    time.sleep(5.0)  # until the first compile is running
                found[name] = in_turns(execs, probes)
                kept, kept_least = (beside.enter_context(connected(p)) for p in (port, least))
                https = {
                    "http": lambda: ask(port),
                    "http_kept": lambda kept=kept: ask(port, kept),
                    "http_least": lambda: ask(least),
                    "http_kept_least": lambda kept=kept_least: ask(least, kept),
                }
                found[name] |= in_turns(https, questions)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probes", type=int, default=100, help="probes of each kind (default 100)")
    parser.add_argument(
        "--questions", type=int, default=1000, help="requests of each kind (default 1000)"
    )
    options = parser.parse_args()
    found = measure(options.probes, options.questions)
    result = {
        "benchmark": "a question about a node, in milliseconds",
        "ms": found,
        "limits_p95_ms": LIMITS_MS,
        "replicas": REPLICAS,
        "probes": options.probes,
        "questions": options.questions,
        "cpus": os.cpu_count(),
        "versions": {"serve_warm": __version__, "python": platform.python_version()},
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    over = [
        f"{name} {when}"
        for when, sides in found.items()
        for name, limit in LIMITS_MS.items()
        if sides[name]["p95"] > limit
    ]
    sys.stderr.write("".join(f"over its limit: {each}\n" for each in over))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
