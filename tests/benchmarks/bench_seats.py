# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The time from a replica's creation to RUNNING, on a seat and without one.

    python tests/benchmarks/bench_seats.py [--turns 10] [--json out.json] [--work build/seats]

The replicas run in real local Serve clusters, and all but `empty` run a text embedder at level 3.
Each turn has four starts:

    empty    a deployment that does nothing: the time that Serve and Ray take by themselves
    plain    the embedder on a worker that Ray has started in advance, without any imports
    seat     the embedder on a seat that another replica keeps
    preload  the embedder on a worker of a node with RAY_preload_python_modules, in another cluster

The order of the first three changes from turn to turn. Their cluster also measures:

    neighbour  requests to the replica that keeps seats, alone and while a seat imports beside it
    scale      from one replica to three under load, on plain workers and on seats: the time from
               the request for three replicas until the first new replica answers, and until both do

The seconds of a start come from the controller: from the creation of the replica to the line
"started successfully" in its log. The replica's report divides these seconds into parts. Each turn
is one line of `turns.jsonl` in the work folder, so an interrupted run continues. To begin a new
run, delete this file. The answers of all starts must be equal.

The exit status is 1 in these cases:

    - An answer differs.
    - A start on a seat is not a full hit.
    - A new replica of a scale-up finds no seat.
    - A start on a seat has a different fingerprint from the plain start.
    - A start on a seat takes over a third of the time of a plain start.
    - A start on a seat takes over 1.25 times as long as empty, weights and passes (with parity)
      together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from serve_warm.builder.bench import machine  # noqa: E402
from serve_warm.seats import preload  # noqa: E402 - found through the line above

APP = "benchmarks.seat_apps:embedder"
IMPORTS = ("benchmarks.seat_apps", "transformers.models.bert.modeling_bert")
LIMIT_S = 300.0
KINDS = ("seats", "node")
"""The clusters of each turn."""
ATTEMPTS = 10
"""Attempts to start a cluster."""

QUIET_S = 3.0
"""Quiet time before a start."""
SEATS = 2
"""The number of seats that a scale-up needs."""
REPLICAS = 3
CLIENTS = 4
"""Clients of an application during a scale-up. Each sends one request at a time."""
ALONE_S = 5.0
"""How long a neighbour is measured without imports: about as long as an import takes."""
PAIRED = ("plain", "seat")

MOST_OF_PLAIN = 1 / 3
MOST_OF_EMPTY = 1.25
PARTS = ("process", "ray", "imports", "cuda", "weights", "passes", "ours")
"""The parts of a start. `ray` is Serve and Ray, before the worker's first import and after
READY."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A deployment with methods `answer`, `cuda_s` and `pid`, and its artifact."""

    deployment: Any
    store: Path
    imports: tuple[str, ...]
    arguments: tuple[Any, ...] = ()
    actor: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 1})

    def bind(self, *, hook: bool, count: int) -> Any:
        """Return the application. It keeps `count` seats. With `hook`, its workers can be seats."""
        actor = dict(self.actor)
        if hook:
            actor["runtime_env"] = {"env_vars": preload.hook_environment()}
        seats = {"count": count, "imports": list(self.imports)}
        warmup = {"artifact": str(self.store), "on_missing": "fail", "seats": seats}
        return self.deployment.options(
            ray_actor_options=actor, user_config={"warmup": warmup}
        ).bind(*self.arguments)


def wait_until(what: str, holds: Any) -> Any:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.25)  # poll rarely, so that polling does not disturb the start
    message = f"{what}: not within {LIMIT_S:.0f} s"
    raise TimeoutError(message)


# One turn, in a process with its own cluster -----------------------------------------------------


@contextlib.contextmanager
def cluster(cpus: int = 6) -> Iterator[None]:
    import ray
    from ray import serve

    for attempt in range(ATTEMPTS):
        try:
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            break
        except Exception as error:
            # Ray waits 30 s for its processes, and a busy machine may take longer. It then raises
            # Exception itself (seen in 2.60). Retrying does not help against any other error.
            ray.shutdown()
            if type(error) is not Exception or attempt + 1 == ATTEMPTS:
                raise
    try:
        serve.start(proxy_location="Disabled")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def deploy(name: str, target: Any) -> None:
    from ray import serve

    serve.run_many(
        [serve.RunTarget(target, name=name, route_prefix=None, external_scaler_enabled=True)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def start(name: str, target: Any) -> dict[str, Any]:
    """Start an application. Return the times, the answer and the report of its replica."""
    import ray
    from ray import serve
    from ray.serve.context import _get_global_client

    deploy(name, target)

    def replica() -> Any:
        details = _get_global_client().get_serve_details()["applications"].get(name, {})
        if details.get("status") == "DEPLOY_FAILED":
            raise RuntimeError(details["message"])
        deployments = details.get("deployments", {}).values()
        running = [r for d in deployments for r in d["replicas"] if r["state"] == "RUNNING"]
        return running[0] if running else None

    found = wait_until(f"{name} runs", replica)
    handle = serve.get_app_handle(name)
    answer = handle.answer.remote().result(timeout_s=LIMIT_S)
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path()) / "serve"
    running_unix = wait_until("the controller's line", lambda: logged(logs, found["replica_id"]))
    return {
        "created_unix": found["start_time_s"],
        "running_unix": running_unix,
        "pid": found["pid"],
        "answer": answer,
        "cuda_s": handle.cuda_s.remote().result(timeout_s=LIMIT_S) if answer else 0.0,
        "report": None if not answer else handle.warmup_report.remote().result(timeout_s=LIMIT_S),
    }


def logged(logs: Path, replica: str) -> float | None:
    """Return when the controller logged that a replica started, in seconds since the epoch."""
    for path in logs.glob("controller_*.log"):
        for line in path.read_text().splitlines():
            if "started successfully" in line and replica in line:
                text = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+", line)
                if text is not None:
                    at = datetime.strptime(text[0], "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007 - local
                    return at.timestamp()
    return None


def embedder(store: Path) -> Subject:
    from benchmarks.seat_apps import SeatedEmbedder

    return Subject(deployment=SeatedEmbedder, store=store, imports=IMPORTS)


def turn_of_seats(number: int, subject: Subject, *, seats: int, extras: bool) -> dict[str, Any]:
    """Return the starts of a turn. With `extras`, also measure the neighbour and scale-ups."""
    from ray import serve

    from benchmarks.seat_empty import empty

    modes = ["empty", *PAIRED]
    targets = {
        "empty": empty,
        "plain": subject.bind(hook=False, count=0),
        "seat": subject.bind(hook=True, count=0),
    }
    found: dict[str, Any] = {"starts": {}, "scale": {}}
    with cluster():
        start("keeping", subject.bind(hook=True, count=seats))
        keeping = serve.get_app_handle("keeping")

        def wait_for_seats() -> None:
            wait_until("all seats wait", lambda: seats_waiting(keeping) == seats)
            time.sleep(QUIET_S)

        for mode in modes[number % 3 :] + modes[: number % 3]:
            wait_for_seats()
            found["starts"][mode] = start(mode, targets[mode])
            if extras and mode == "plain":
                wait_for_seats()
                found["scale"]["plain"] = scale_up(mode, subject.deployment.name)
            serve.delete(mode)
        wait_for_seats()
        files = [path for path in seat_files() if read_seat(path).get("state") == "waiting"]
        found["memory_bytes"] = [pss_bytes(read_seat(path)["pid"]) for path in files]
        if extras:
            found["neighbour"] = latencies(keeping, files[0], first=number % 2 == 0)
            wait_for_seats()
            found["scale"]["seat"] = scale_up("keeping", subject.deployment.name)
    return found


def scale_up(name: str, deployment: str) -> dict[str, Any]:
    """Scale up an application under load. Return the seconds until new replicas answered."""
    import ray
    from ray import serve
    from ray.serve._private.common import DeploymentID
    from ray.serve.context import _get_global_client

    handle = serve.get_app_handle(name)
    known = handle.pid.remote().result(timeout_s=LIMIT_S)
    answered: dict[int, float] = {}
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            pid = handle.pid.remote().result(timeout_s=LIMIT_S)
            answered.setdefault(pid, time.time())

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(QUIET_S)
    decided_unix = time.time()
    # An external autoscaler does the same over Serve's REST API. `serve.run` would restart
    # everything.
    controller = _get_global_client()._controller
    replica_set = DeploymentID(name=deployment, app_name=name)
    ray.get(controller.update_deployment_replicas.remote(replica_set, REPLICAS), timeout=LIMIT_S)
    wait_until(f"{REPLICAS} replicas of {name} answer", lambda: len(answered) >= REPLICAS)
    has_ended.set()
    for client in clients:
        client.join(LIMIT_S)
    new = sorted(unix - decided_unix for pid, unix in answered.items() if pid != known)
    reports: dict[int, Any] = {}

    def has_all_reports() -> bool:
        report = handle.warmup_report.remote().result(timeout_s=LIMIT_S)
        reports[report["pid"]] = report
        return len(reports) >= REPLICAS

    wait_until(f"reports of all replicas of {name}", has_all_reports)
    seats = [report["seat"] for pid, report in reports.items() if pid != known]
    return {
        "first_s": new[0],
        "all_s": new[-1],
        "hits": sum(bool(seat and seat["hit"]) for seat in seats),
    }


def latencies(handle: Any, seat: Path, *, first: bool) -> dict[str, list[float]]:
    """Return the latencies of requests without an import, and while a new seat imports.

    The process of `seat` is killed, so that the replica asks for a new seat. With `first`, the
    requests without an import come first.
    """
    found: dict[str, list[float]] = {}

    def ask_while(holds: Callable[[], bool]) -> list[float]:
        took = []
        while holds():
            began_s = time.perf_counter()
            handle.answer.remote().result(timeout_s=LIMIT_S)
            took.append(time.perf_counter() - began_s)
        return took

    def alone() -> None:
        time.sleep(QUIET_S)
        end_s = time.monotonic() + ALONE_S
        found["alone"] = ask_while(lambda: time.monotonic() < end_s)

    def importing() -> None:
        before = set(seat_files())
        os.kill(read_seat(seat)["pid"], signal.SIGKILL)

        def new_one() -> Path | None:
            return next((path for path in seat_files() if path not in before), None)

        path = wait_until("a new seat", new_one)
        # Reading this small file takes microseconds, and a request takes milliseconds.
        found["importing"] = ask_while(lambda: read_seat(path).get("state") == "importing")

    for measure in (alone, importing) if first else (importing, alone):
        measure()
    return found


def seats_waiting(handle: Any) -> int | None:
    seat = handle.warmup_report.remote().result(timeout_s=LIMIT_S)["seat"]
    if seat["problem"]:
        raise RuntimeError(seat["problem"])
    waiting: int | None = seat["waiting"]
    return waiting


def read_seat(path: Path) -> dict[str, Any]:
    """Return the content of a seat's file, or an empty dict if the seat was taken or has ended."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found


def seat_files() -> list[Path]:
    from serve_warm._private_folders import user_folder

    return list(user_folder("seats").glob("*/seat-*"))


def pss_bytes(pid: int) -> int:
    """Return the memory of a process in bytes, including its share of shared pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    message = f"/proc/{pid}/smaps_rollup has no Pss"
    raise ValueError(message)


def turn_of_node(subject: Subject) -> dict[str, Any]:
    through = Path(os.environ["SEATS_OF_NODE"])
    with cluster(cpus=2):  # Ray starts a worker for each CPU, and each worker imports everything

        def is_free(process: Path) -> bool:
            with contextlib.suppress(OSError):  # the process has ended
                idle = (process / "cmdline").read_bytes().startswith(b"ray::IDLE")
                return idle and (through / process.name).exists()
            return False

        wait_until(
            "a worker of the node has imported and is free",
            lambda: any(map(is_free, Path("/proc").glob("[0-9]*"))),
        )
        time.sleep(QUIET_S)
        found = {"preload": start("preload", subject.bind(hook=False, count=0))}
    return {"starts": found}


# All turns ---------------------------------------------------------------------------------------


def take_turn(number: int, command: Sequence[str], imports: Sequence[str]) -> dict[str, Any]:
    """Return one turn. `command` starts a process for each of the turn's clusters."""
    turn: dict[str, Any] = {"starts": {}, "load": os.getloadavg()[0]}
    for kind in KINDS:
        found = run_kind(kind, number, command, imports)
        turn["starts"].update(found.pop("starts"))
        turn.update(found)
    return turn


def run_kind(
    kind: str,
    number: int,
    command: Sequence[str],
    imports: Sequence[str],
    *,
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Return the results of one cluster of a turn. Raises TimeoutExpired after `limit_s`."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        through = Path(folder) / "through"
        through.mkdir()
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE.parent)]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": folder,
        }
        if kind == "node":
            environ["RAY_preload_python_modules"] = "benchmarks.seats_of_node"
            environ["SEATS_OF_NODE"] = str(through)
            environ["SEATS_IMPORTS"] = ",".join(imports)
        ended = subprocess.run(
            [*command, "--one", kind, "--number", str(number)],
            env=environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=limit_s,
        )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def seconds_of(start: Mapping[str, Any]) -> dict[str, float]:
    """Divide the seconds from creation to RUNNING into parts, by the replica's spans."""
    report = start["report"]
    # The report's clock counts from boot.
    offset_s = report["ready_unix"] - (report["created_boot_s"] + report["elapsed_s"])
    spans = {span["name"]: span for span in report["spans"]}
    stages = {stage["stage"]: stage["seconds"] for stage in report["stages"]}

    def began(name: str) -> float:
        return float(spans[name]["began_boot_s"]) + offset_s

    created = start["created_unix"]
    process = 0.0
    if "process" in spans and began("process") > created:
        process = spans["process"]["seconds"]
    passes = sum(stages.get(name, 0.0) for name in ("REPLAYING", "PROVING", "PARITY"))
    cuda = start.get("cuda_s", 0.0)
    imports, weights = spans["imports"]["seconds"], spans["__init__"]["seconds"] - cuda
    ours = sum(stages.values()) - passes
    total = start["running_unix"] - created
    ray_s = total - process - imports - cuda - weights - passes - ours
    found = (process, ray_s, imports, cuda, weights, passes, ours)
    return dict(zip(PARTS, found, strict=True))


def summary(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def took(mode: str) -> list[float]:
        starts = [turn["starts"][mode] for turn in turns]
        return [round(each["running_unix"] - each["created_unix"], 3) for each in starts]

    def median_parts(mode: str) -> dict[str, float]:
        each = [seconds_of(turn["starts"][mode]) for turn in turns]
        return {name: round(statistics.median(e[name] for e in each), 3) for name in PARTS}

    seats = [turn["starts"]["seat"]["report"] for turn in turns]
    plains = [turn["starts"]["plain"]["report"] for turn in turns]
    about = machine()
    starts = [turn["starts"][mode] for turn in turns for mode in ("plain", "seat", "preload")]
    return {
        "machine": {k: v for k, v in about.items() if k not in ("torch", "ray", "serve_warm")},
        "versions": {name: about[name] for name in ("torch", "ray", "serve_warm")},
        **{f"{mode}_s": took(mode) for mode in ("plain", "preload", "seat", "empty")},
        "starts": len(seats),
        "full_hits": sum(r["verdict"] == "full_hit" and r["seat"]["hit"] for r in seats),
        "thread_drift": sum(
            a["fingerprint"] != b["fingerprint"] for a, b in zip(seats, plains, strict=True)
        ),
        "memory_bytes_per_seat": int(
            statistics.median(each for turn in turns for each in turn["memory_bytes"])
        ),
        "seconds": {mode: median_parts(mode) for mode in ("plain", "seat", "preload")},
        **scale_ups(turns),
        **neighbours(turns),
        "load": [round(turn["load"], 1) for turn in turns],
        "answers": len({json.dumps(each["answer"]) for each in starts}),
        "gpu": None,
    }


def scale_ups(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the seconds from a scale-up's decision to the answers of new replicas, by turn."""
    scaled = [turn["scale"] for turn in turns if turn["scale"]]
    if not scaled:
        return {}
    return {
        "scale_s": {
            mode: {
                name: [round(each[mode][f"{name}_s"], 3) for each in scaled]
                for name in ("first", "all")
            }
            for mode in PAIRED
        },
        "scale_hits": sum(each["seat"]["hits"] for each in scaled),
        "scale_starts": (REPLICAS - 1) * len(scaled),
    }


def neighbours(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return percentiles of a neighbour's latencies by turn, alone and while a seat imports."""
    found = [turn["neighbour"] for turn in turns if "neighbour" in turn]
    if not found:
        return {}
    return {
        "neighbour_s": {
            kind: {
                "requests": [len(each[kind]) for each in found],
                **{
                    f"p{percent}": [round(percentile(each[kind], percent), 5) for each in found]
                    for percent in (50, 99)
                },
            }
            for kind in ("alone", "importing")
        }
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least `percent` percent of the values do not exceed.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 50), percentile([3.0, 1.0, 2.0, 4.0], 99)
    (2.0, 4.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def failures_of_answers(found: Mapping[str, Any]) -> list[str]:
    """Return the problems of a run, regardless of its durations."""
    said = []
    if found["answers"] != 1:
        said.append(f"{found['answers']} different answers")
    if found["full_hits"] != found["starts"]:
        said.append(f"{found['full_hits']} full hits in {found['starts']} starts on seats")
    if found.get("scale_hits") != found.get("scale_starts"):
        hits, starts = found["scale_hits"], found["scale_starts"]
        said.append(f"{hits} seats in {starts} starts of scale-ups")
    if found["thread_drift"]:
        said.append(f"{found['thread_drift']} starts on seats had another fingerprint")
    return said


def failures(found: Mapping[str, Any]) -> list[str]:
    """Return everything that differs from the expected results."""
    said = failures_of_answers(found)
    ratio = statistics.median(s / p for s, p in zip(found["seat_s"], found["plain_s"], strict=True))
    if ratio > MOST_OF_PLAIN:
        said.append(f"a seat takes {ratio:.2f} of plain")
    parts = found["seconds"]["seat"]
    floor = statistics.median(found["empty_s"]) + parts["weights"] + parts["passes"]
    over = statistics.median(found["seat_s"]) / floor
    if over > MOST_OF_EMPTY:
        said.append(f"a seat takes {over:.2f} of empty, weights and passes")
    return said


def build(store: Path, app: str = APP) -> None:
    if store.is_dir():
        return
    path = os.pathsep.join([str(ROOT), str(HERE.parent)])
    environ = {**os.environ, "PYTHONPATH": path}
    subprocess.run(
        [sys.executable, "-m", "serve_warm.cli", "build", app, "--store", store],
        env=environ,
        cwd=ROOT,
        check=True,
        stdout=sys.stderr,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "seats")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.resolve()
    store = work / "store"
    if options.one is not None:
        subject = embedder(store)
        if options.one == "node":
            one = turn_of_node(subject)
        else:
            one = turn_of_seats(options.number, subject, seats=SEATS, extras=True)
        sys.stdout.write(f"{json.dumps(one)}\n")
        return 0
    work.mkdir(parents=True, exist_ok=True)
    build(store)
    done = work / "turns.jsonl"
    lines = done.read_text().splitlines() if done.exists() else []
    turns = [turn for turn in map(json.loads, lines) if "scale" in turn]
    command = [sys.executable, __file__, "--work", str(work)]
    while len(turns) < options.turns:
        began_s = time.perf_counter()
        turns.append(take_turn(len(turns), command, IMPORTS))
        with done.open("a") as file:
            file.write(f"{json.dumps(turns[-1])}\n")
        took_s = time.perf_counter() - began_s
        sys.stderr.write(f"turn {len(turns)} of {options.turns}: {took_s:.0f} s\n")
    found = summary(turns)
    if options.json is not None and options.json.exists():
        found["gpu"] = json.loads(options.json.read_text())["gpu"]  # tests/gpu/seats_gpu.py
    text = json.dumps(found, indent=1)
    if options.json is not None:
        options.json.write_text(f"{text}\n")
    sys.stdout.write(f"{text}\n")
    wrong = failures(found)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
