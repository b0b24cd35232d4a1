# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Faults around replicas of a real, local Ray Serve.

    python tests/benchmarks/faults_live.py --json tests/benchmarks/results/faults.json

Each fault has ten rounds, and each round is a line of `rounds.jsonl` in the work folder, so that an
interrupted run continues. To begin a new run, delete this file. A fault that needs a right or a
program that this machine does not give has a row with 0 tries, which names it.

A round fails if a replica does not become ready although it should, if the reason cannot be read,
if a client loses a request, or if the round leaves something behind: a process, a file of a state,
a ticket, a file of a seat, a held lock, a temporary folder or shared memory. Files that the next
start removes after some time are made that old, and are removed by such a start.

    full TMPDIR    the folder for temporary files has room for a few small files only, or for none
    seats          a seat is killed or stopped while it imports, waits or becomes a replica
    store          a bucket goes away, or stops sending, in the middle of a part
    drain          a deployment is deleted, changed or scaled down while clients send requests
    clock          the wall clock jumps during a start and after READY (see wall_clock.c)
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support")]

import requests  # noqa: E402

from benchmarks import fault_apps  # noqa: E402
from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402
from conftest import App, Cluster, running_cluster, wait_until  # noqa: E402
from integration import seat_apps  # noqa: E402
from s3_servers import FaultProxy, moto_server  # noqa: E402
from serve_warm import _private_folders, node  # noqa: E402
from serve_warm._state_file import StateFile  # noqa: E402
from serve_warm.builder import cluster as builders  # noqa: E402
from serve_warm.builder.app import load_app  # noqa: E402
from serve_warm.builder.build import build  # noqa: E402
from serve_warm.builder.publishing import Destination  # noqa: E402
from serve_warm.cli import observed  # noqa: E402
from serve_warm.seats.records import Seat, SeatFolder, is_named_idle, lives  # noqa: E402
from serve_warm.stores import open_store  # noqa: E402
from stress.app import Victim  # noqa: E402

ROUNDS = 10
CLIENTS = 4
DAY_S = 86400.0
CLOCK_PROGRAM = Path(__file__).with_name("wall_clock.c")

STOPPED_S = 5.0
"""Seconds for which a process is stopped for a while."""

PULL_S = 8.0
"""`pull_deadline_s` of starts whose store goes away."""

LATE_S = 60.0
"""Seconds after the pull's deadline within which a start must be over, on a busy machine."""

OLD_S = 3600.0
"""So much older are files made before a start must remove them."""


class NotPermitted(Exception):
    """This machine cannot make the fault; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What became of one round that did not fail."""

    outcome: str
    said: str


class Live:
    """A cluster, and what the faults need on it."""

    def __init__(self, cluster: Cluster, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self.directory = cluster.state_dir.parent
        self._stack = stack
        self._store = ""
        self._bucket: tuple[FaultProxy, str, dict[str, str]] | None = None
        self._keeping: dict[str, App] = {}
        self._clock: tuple[Path, Path] | None = None

    # Applications -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, bound: Any) -> Iterator[App]:
        """Deploy an application, and delete it at the end of the block, with all its processes."""
        [app] = self.cluster.start({"fault": bound}).values()
        try:
            yield app
        finally:
            self.end(app)

    def end(self, app: App) -> None:
        """Delete an application, and wait until its processes have ended."""
        mine = self.replicas(app)
        self.cluster.delete({app.name: app})
        wait_until(f"{app.name} is gone", lambda: app.status()[0] == "NOT_STARTED")
        for replica in mine:
            stem = replica.stem
            wait_until(f"{replica} ends", lambda stem=stem: not self._is_held(stem))

    def _is_held(self, stem: str) -> bool:
        return stem in [each.stem for each in self._looked() if each.condition != "dead"]

    def replicas(self, app: App) -> list[node.Replica]:
        """Return the replicas of an application, dead ones too."""
        return [each for each in self._looked() if each.names[0] == app.name]

    def _looked(self) -> list[node.Replica]:
        return node.look(self.cluster.state_dir)

    def judge(self, app: App) -> node.Readiness:
        """Return what a probe of this node says about one application."""
        [name] = {f"{app.name}#{each.names[1]}" for each in self.replicas(app)}
        policy = node.Policy.of("all", deployments=[name])
        found = node.judge(node.Settings(str(self.cluster.state_dir), policy, urls=()))
        return found._replace(replicas=tuple(r for r in found.replicas if r.names[0] == app.name))

    # What faults need -------------------------------------------------------------------------

    def store(self) -> str:
        """Return a folder with an artifact of `stress.app`."""
        if not self._store:
            self._store = str(self.directory / "store")
            self._build(self._store)
        return self._store

    def _build(self, uri: str, environ: Mapping[str, str] | None = None) -> None:
        app = load_app("stress.app:app")
        if environ:
            app = dataclasses.replace(app, runtime_env={"env_vars": dict(environ)})
        on = builders.Cluster(int(self.cluster.url.rpartition(":")[2]))
        build(app, Destination.of(open_store(uri)), on=on)

    def bucket(self) -> tuple[FaultProxy, str, dict[str, str]]:
        """Return a proxy of a bucket with an artifact, the bucket, and the variables for it."""
        if self._bucket is None:
            folder = self.directory / "moto"
            folder.mkdir()
            server = self._stack.enter_context(moto_server(folder))
            proxy = FaultProxy(target_port=int(server.endpoint.rpartition(":")[2]))
            proxy.reset()
            self._stack.callback(proxy.close)
            environ = dataclasses.replace(server, endpoint=proxy.endpoint).environment()
            for name, value in environ.items():
                os.environ[name] = value
            uri = f"s3://{server.new_bucket()}/artifacts"
            self._build(uri, environ)
            self._bucket = proxy, uri, environ
        return self._bucket

    def keeping(self, case: str) -> App:
        """Return an application that keeps one seat, which waits when this returns."""
        if case not in self._keeping:
            for other in self._keeping.values():
                self.end(other)
            self._keeping.clear()
            [app] = self.cluster.start({"keeping": seat_apps.bound(case)}).values()
            self._keeping[case] = app.ready()
        app = self._keeping[case]
        wait_until("a seat waits", lambda: _waiting(app) == 1)
        return app

    def let_go(self) -> None:
        """End all applications that keep seats."""
        for app in self._keeping.values():
            self.end(app)
        self._keeping.clear()

    def seats(self) -> tuple[SeatFolder, list[Seat]]:
        """Return the folder of seats that was used last, and the seats in it."""
        with _environment(TMPDIR=str(self.directory)):
            folders = [*_private_folders.user_folder("seats").glob("*")]
        if not folders:
            return SeatFolder(self.directory / "none"), []
        folder = SeatFolder(max(folders, key=lambda each: each.stat().st_mtime))
        return folder, folder.seats()

    def clock(self) -> tuple[Path, Path]:
        """Return the library of a wall clock that jumps, and the file that sets it."""
        if self._clock is None:
            compiler = shutil.which("gcc")
            if compiler is None:
                raise NotPermitted("gcc is not installed, so the clock cannot be changed")
            library, setting = self.directory / "wall_clock.so", self.directory / "ahead_s"
            options = ["-shared", "-fPIC", "-O2", "-o", str(library)]
            subprocess.run([compiler, *options, str(CLOCK_PROGRAM)], check=True)
            self._clock = library, setting
        return self._clock

    @contextlib.contextmanager
    def small_volume(self, free_bytes: int) -> Iterator[Path]:
        """Mount a volume of 1 MiB, of which so many bytes are free."""
        folder = Path(tempfile.mkdtemp(prefix="full-", dir=self.directory))
        command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise NotPermitted(f"this user cannot mount a volume: {done.stderr.strip()}")
        try:
            filled = os.open(folder / "filled", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(filled, bytes(4096))
            os.ftruncate(filled, os.fstat(filled).st_size - free_bytes)
            os.close(filled)
            yield folder
        finally:
            # Ray may keep the worker of a deleted replica for a moment.
            command = ["umount", str(folder)]
            wait_until("no process uses the volume", lambda: not _returncode(command))
            folder.rmdir()

    # Leftovers --------------------------------------------------------------------------------

    def prepare(self, name: str) -> Mapping[str, set[str]]:
        """Prepare a round of the fault with this name, and return what is there before it."""
        if name.startswith("seat"):
            how, _, moment = name.removeprefix("seat, ").rpartition(" while ")
            self.keeping(f"{moment} {how}")
        else:
            self.let_go()
        return self.snapshot()

    def leftovers(self, before: Mapping[str, set[str]]) -> list[str]:
        """Return what is there that was not there before, after a start has removed old files."""
        for app in self._keeping.values():
            # Until then, its next seat may have a ticket, which `claim` below would take from it.
            wait_until("a seat waits", lambda app=app: _waiting(app) == 1)
        self._make_old()
        with _environment(TMPDIR=str(self.directory)):
            with contextlib.closing(
                StateFile(self.cluster.state_dir, application="", deployment="", replica="sweeper")
            ) as own:
                pass
            own.path.with_suffix(".lock").unlink()
            sweep = "from serve_warm import _private_folders as f; f.temporary_folder().__enter__()"
            subprocess.run([sys.executable, "-c", sweep], check=True)
            folder, _ = self.seats()
            if folder.path.is_dir():
                folder.make()
                while folder.claim() is not None:
                    pass
        end = time.monotonic() + 30
        while (found := self._new(before)) and time.monotonic() < end:
            time.sleep(0.5)
        return found

    def _new(self, before: Mapping[str, set[str]]) -> list[str]:
        now = self.snapshot()
        return [f"{kind}: {each}" for kind in now for each in sorted(now[kind] - before[kind])]

    def snapshot(self) -> dict[str, set[str]]:
        """Return what a round could leave behind."""
        folder, seats = self.seats()
        files = [each.name for each in folder.path.glob("*")] if folder.path.is_dir() else []
        dead = {f"seat-{seat.pid}" for seat in seats if not lives(seat)}
        states = [*self.cluster.state_dir.glob("*")] if self.cluster.state_dir.is_dir() else []
        stopped = self._stopped()
        replicas = {each.stem for each in self._looked() if each.condition != "dead"}
        return {
            "state": {each.name for each in states if each.stem not in replicas},
            "seat": dead | {name for name in files if name.startswith(("ticket", "claimed", "."))},
            "temporary": {each.name for each in self.directory.glob("serve_warm-*")}
            - self._owned_folders(),
            "process": self._replica_processes() | stopped,
            "shared memory": {each.name for each in Path("/dev/shm").glob("*") if _has_ended(each)},
        }

    def _owned_folders(self) -> set[str]:
        """Return the temporary folders whose processes live."""
        import fcntl

        owned = {f"serve_warm-{os.geteuid()}"}
        for lock in self.directory.glob("serve_warm-*/owner.lock"):
            with contextlib.suppress(FileNotFoundError), lock.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    owned.add(lock.parent.name)
        return owned

    def _replica_processes(self) -> set[str]:
        """Return the processes of this cluster that are replicas, or belong to a compile."""
        found = set()
        for process, line in self._processes():
            if b"ServeReplica" in line or b"cc1plus" in line or b"compile_worker" in line:
                # Not the whole name, which changes with the method that runs.
                found.add(f"{process} {line.decode(errors='replace').split(':')[2:3]}")
        return found

    def _stopped(self) -> set[str]:
        found = set()
        for process, line in self._processes():
            with contextlib.suppress(OSError, IndexError):
                state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state in (b"T", b"Z") and b"ray::" in line:
                    found.add(f"{process} stopped")
        return found

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        mark = f"TMPDIR={self.directory}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended
                if int(path.parent.name) != os.getpid() and mark in path.read_bytes():
                    yield int(path.parent.name), path.with_name("cmdline").read_bytes()

    def _make_old(self) -> None:
        """Make files of ended processes look as if some time had passed."""
        at = time.time() - OLD_S
        live = {each.stem for each in self._looked() if each.condition != "dead"}
        if self.cluster.state_dir.is_dir():
            for path in self.cluster.state_dir.iterdir():
                if path.stem not in live:
                    os.utime(path, (at, at))
        for lock in self.directory.glob("serve_warm-*/owner.lock"):
            os.utime(lock, (at, at))


def _returncode(command: list[str]) -> int:
    return subprocess.run(command, check=False, capture_output=True).returncode


def _has_ended(shared: Path) -> bool:
    """Return whether a name of shared memory has the id of a process that has ended."""
    found = re.search(r"_(\d+)_", shared.name)
    return found is not None and not Path("/proc", found[1]).exists()


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _waiting(app: App) -> int | None:
    said = app.report()["seat"]
    assert not said["problem"], said["problem"]
    waiting: int | None = said["waiting"]
    return waiting


def _victim(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    return Victim.options(
        user_config={"warmup": dict(settings)},
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": dict(environ)}},
    ).bind()


def _ended(app: App) -> tuple[str, str]:
    """Wait for the end of a start, and return Serve's status and messages."""

    def over() -> tuple[str, str] | None:
        status, text = app.status()
        return (status, text) if status in ("RUNNING", "DEPLOY_FAILED") else None

    found: tuple[str, str] = wait_until(f"{app.name} starts or fails", over)
    return found


def _line_of(text: str, part: str) -> str:
    """Return the last line of a text that has this part."""
    lines = [line.strip() for line in text.splitlines() if part in line]
    assert lines, f"{part!r} is not in {text!r}"
    return lines[-1]


# A full folder for temporary files -----------------------------------------------------------


def full(live: Live, free_bytes: int) -> Round:
    store = live.store()
    with live.small_volume(free_bytes) as folder, contextlib.ExitStack() as stack:
        # Python passes over a folder in which it cannot write one file.
        environ = {"TMPDIR": str(folder), "TEMP": str(live.directory)}
        app = stack.enter_context(live.running(_victim({"artifact": store}, environ)))
        status, text = _ended(app)
        if status == "RUNNING":
            report = app.report()
            reason = report["artifact"]["reason"]
            assert report["verdict"] == "full_hit" or "No space left" in reason, report
            return Round(outcome=f"ready, {report['verdict']}", said=reason or report["verdict"])
        said = _line_of(text, "no space left")
        [replica] = live.replicas(app)
        error = str((replica.state or {}).get("error"))
        assert "no space left" in error, replica
        assert str((replica.state or {}).get("reason")), replica
        shown = observed.of_directory(str(live.cluster.state_dir)).replicas
        assert [each for each in shown if each.application == app.name], shown
        return Round(outcome="failed, with the reason", said=said)


# Seats ---------------------------------------------------------------------------------------

Moment = Literal["importing", "waiting", "claimed"]
How = Literal["killed", "stopped for a while", "stopped for good"]


def seat(live: Live, moment: Moment, how: How) -> Round:
    case = f"{moment} {how}"
    keeping = live.keeping(case)

    def starting(tries: int = 5) -> contextlib.AbstractContextManager[App]:
        # A replica whose process is killed is one failed try for Serve.
        return live.running(seat_apps.bound(case, tries=tries, count=0))

    if moment == "importing":
        with starting() as taking:
            taking.ready()
            found = wait_until("the next seat imports", lambda: _seat(live, "importing"))
            _hit(found, how)
            with starting() as beside:
                used = _use(beside.ready())
    else:
        found = wait_until("a seat waits", lambda: _seat(live, "waiting"))
        if moment == "waiting":
            _hit(found, how)
        with starting() as claiming:
            if moment == "claimed":
                wait_until("Ray gives it to a replica", lambda: not is_named_idle(found.pid))
                _hit(found, how)
            used = _use(claiming.ready())
    wait_until("the next seat waits", lambda: _waiting(keeping) == 1)
    # A start on the next seat shows that seats still work.
    with starting(tries=1) as after:
        healed = _use(after.ready())
    return Round(outcome="ready", said=f"{used}; the next start: {healed}")


def _seat(live: Live, state: str) -> Seat | None:
    return next((each for each in live.seats()[1] if each.state == state and lives(each)), None)


def _hit(found: Seat, how: How) -> None:
    os.kill(found.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    if how == "stopped for a while":
        threading.Timer(STOPPED_S, _continue, (found,)).start()


def _continue(found: Seat) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGCONT)


def _use(app: App) -> str:
    used = app.report()["seat"]
    if used is None:
        return "not on a seat"
    return "on a seat" if used["hit"] else f"no seat ({used['miss']})"


# Stores --------------------------------------------------------------------------------------


def store(live: Live, fault: str, on_missing: str, *, is_down: bool) -> Round:
    proxy, uri, environ = live.bucket()
    settings = {"artifact": uri, "on_missing": on_missing, "pull_deadline_s": PULL_S}
    # Another node cache in each round, so that the parts are downloaded.
    with tempfile.TemporaryDirectory(dir=live.directory) as folder:
        proxy.reset()
        proxy.only = lambda request: request.startswith("GET") and "/blobs/" in request
        if is_down:
            # The connection under way gets half of the part. All later ones are refused.
            def gone(request: str) -> None:
                if "/blobs/" in request:
                    proxy.fault = "down"

            proxy.afterwards = gone
        proxy.fault = fault
        began_s = time.monotonic()
        with live.running(_victim(settings, {**environ, "TMPDIR": folder})) as app:
            seen = wait_until("the part is read", lambda: [r for r in proxy.seen if "/blobs/" in r])
            read_s = time.monotonic()
            status, text = _ended(app)
            took_s = time.monotonic() - read_s
            assert took_s < PULL_S + LATE_S, f"{took_s:.0f} s after {seen[0]} ({began_s:.0f})"
            if on_missing == "compile":
                report = app.report()
                said = str(report["artifact"]["reason"])
                assert (status, report["verdict"]) == ("RUNNING", "miss"), (status, text, report)
                [shown] = [
                    each
                    for each in observed.of_directory(str(live.cluster.state_dir)).replicas
                    if each.application == app.name
                ]
                assert shown.condition == "warm", shown
                outcome = "ready, miss"
            else:
                assert status == "DEPLOY_FAILED", (status, text)
                said = _line_of(text, "on_missing is 'fail'")
                [replica] = live.replicas(app)
                assert "on_missing is 'fail'" in str((replica.state or {}).get("error")), replica
                outcome = "failed, with the reason"
        proxy.reset()
        assert said, "no reason"
        return Round(outcome=outcome, said=" ".join(said.split()))


# Draining ------------------------------------------------------------------------------------


class Requests:
    """Clients of one application, which count the answers until they are stopped."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.answers: Counter[str] = Counter()
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                try:
                    answer = session.post(self._app.url, json=1, timeout=120)
                    kind = str(answer.status_code)
                    if answer.status_code == 200 and answer.json() != {"sum": 2.0}:
                        kind = answer.text
                except requests.RequestException as error:
                    kind = repr(error)
                with self._lock:
                    self.answers[kind] += 1
                if kind == "404":  # the route is gone, and a client could not go on
                    self._stop.wait(0.05)

    def answered(self) -> int:
        with self._lock:
            return self.answers["200"]

    def stop(self) -> dict[str, int]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return dict(self.answers)


def drain(live: Live, action: Literal["delete", "redeploy", "scale down"]) -> Round:
    bound = {"plain": fault_apps.Plain, "warmed": fault_apps.Warmed}
    many = 2 if action == "scale down" else 1
    apps = live.cluster.start({k: d.options(num_replicas=many).bind() for k, d in bound.items()})
    left = 0 if action == "delete" else 1
    with contextlib.ExitStack() as stack:
        for app in apps.values():
            app.ready()
        before = {each.stem for each in live.replicas(apps["warmed"]) if each.condition != "dead"}
        assert live.judge(apps["warmed"]).ready, live.judge(apps["warmed"]).lines()
        sending = {kind: Requests(app) for kind, app in apps.items()}
        for each in sending.values():
            stack.callback(each.stop)
        _wait_for_answers(sending, 2 * CLIENTS)
        if action == "delete":
            live.cluster.delete({app.name: app for app in apps.values()})
        else:
            _change(apps, bound, action)
        _watch_drain(live, apps["warmed"], before, left=left)
        if left:
            for app in apps.values():
                wait_until("Serve is done", lambda app=app: app.status()[0] == "RUNNING")
            _wait_for_answers(sending, 4 * CLIENTS)
    for app in apps.values():
        live.end(app)
    return _count_lost({kind: each.stop() for kind, each in sending.items()}, left=left)


def _change(apps: Mapping[str, App], bound: Mapping[str, Any], action: str) -> None:
    """Deploy applications again, with one replica, and perhaps with new code."""
    from ray import serve

    version = {"runtime_env": {"env_vars": {"VERSION": "2"}}} if action == "redeploy" else {}
    serve.run_many(
        [
            serve.RunTarget(
                bound[kind].options(ray_actor_options={"num_cpus": 0, **version}).bind(),
                name=app.name,
                route_prefix=f"/{app.name}",
            )
            for kind, app in apps.items()
        ],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def _count_lost(answers: Mapping[str, Mapping[str, int]], *, left: int) -> Round:
    # Serve answers 404 when it does not know the route of a deleted application any more.
    allowed = {"200"} if left else {"200", "404"}
    lost = {
        kind: {what: count for what, count in each.items() if what not in allowed}
        for kind, each in answers.items()
    }
    assert not lost["warmed"], f"lost: {lost}"
    said = f"{answers['warmed']['200']} answered, 0 lost; without the mixin "
    said += f"{answers['plain']['200']} answered, {sum(lost['plain'].values())} lost"
    return Round(outcome="0 lost requests", said=said)


def _wait_for_answers(sending: Mapping[str, Requests], more: int) -> None:
    enough = {kind: each.answered() + more for kind, each in sending.items()}
    wait_until(
        "clients are answered",
        lambda: all(each.answered() >= enough[kind] for kind, each in sending.items()),
    )


def _watch_drain(live: Live, app: App, before: set[str], *, left: int) -> None:
    """Compare each answer of a probe with the replicas, until this many live and others ended."""

    def is_over() -> bool:
        readiness = live.judge(app)
        alive = {each.stem for each in readiness.replicas if each.condition != "dead"}
        warm = {each.stem for each in readiness.replicas if each.condition == "warm"}
        assert readiness.ready is bool(warm), readiness.lines()
        return len(alive) == left and bool(before - alive) and (warm == alive)

    wait_until(f"{left} replicas are left", is_over)


# Clocks --------------------------------------------------------------------------------------


def clock(live: Live, ahead_s: float) -> Round:
    library, setting = live.clock()
    _set(setting, 0.0)
    environ = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(setting)}
    with live.running(_victim({"artifact": live.store()}, environ)) as app:
        wait_until(
            "it replays",
            lambda: [
                each
                for each in live.replicas(app)
                if (each.state or {}).get("stage") in ("REPLAYING", "PROVING", "READY")
            ],
        )
        _set(setting, ahead_s)
        app.ready()
        first = app.report()
        _check_times(first)
        for jump_s in (0.0, ahead_s):
            _set(setting, jump_s)
            time.sleep(node.HEARTBEAT_S + 1)
            _check_warm(live, app, library, setting)
            assert requests.post(app.url, json=4, timeout=60).status_code == 200
        last = app.report()
        _check_times(last)
        assert first["verdict"] == last["verdict"] == "full_hit", last
        assert last["after_ready"]["compiles"] == 0
        said = f"{last['verdict']}, ready in {last['elapsed_s']:.1f} s by all clocks; probe: warm"
        _set(setting, 0.0)
    return Round(outcome="warm throughout", said=said)


def _set(setting: Path, ahead_s: float) -> None:
    data = struct.pack("d", ahead_s)
    with setting.open("r+b" if setting.exists() else "wb") as file:
        file.write(data)


def _check_times(report: Mapping[str, Any]) -> None:
    """Check that no duration has a jump in it."""
    seconds = {
        **{name: report[name] for name in ("elapsed_s", "to_proof_s", "overhead_s", "cpu_s")},
        **{span["name"]: span["seconds"] for span in report["spans"]},
    }
    wrong = {name: value for name, value in seconds.items() if not 0 <= value < OLD_S}
    assert not wrong, wrong


READ = """
import sys
from serve_warm import node
from serve_warm._state_file import StateFile
from serve_warm.cli import observed
directory, application = sys.argv[1:]
StateFile(directory, application="jumped", deployment="reader", replica="r").close()
[replica] = [each for each in node.look(directory) if each.names[0] == application]
assert replica.condition == "warm", replica
[shown] = [each for each in observed.of_directory(directory).replicas
           if each.application == application]
assert shown.condition == "warm", shown
assert shown.heartbeat_s < 30, shown
"""


def _check_warm(live: Live, app: App, library: Path, setting: Path) -> None:
    """Read and sweep the state in a process with the same clock, and read it with another."""
    command = [sys.executable, "-c", READ, str(live.cluster.state_dir), app.name]
    jumped = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(setting)}
    done = subprocess.run(
        command, env={**os.environ, **jumped}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [replica] = live.replicas(app)
    assert replica.condition == "warm", replica


def wrong_clock(live: Live, ahead_s: float) -> Round:
    """Start with a clock that is so wrong that the artifact's age cannot be right."""
    library, setting = live.clock()
    _set(setting, ahead_s)
    environ = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(setting)}
    with live.running(_victim({"artifact": live.store()}, environ)) as app:
        app.ready()
        report = app.report()
        _check_times(report)
        _check_warm(live, app, library, setting)
        assert report["verdict"] == "refused", report
        assert report["artifact"]["refused"] == "expired", report
        said = " ".join(report["artifact"]["reason"].split())
    return Round(outcome="ready, refused", said=said)


# The program ---------------------------------------------------------------------------------

SEATS: dict[How, tuple[Moment, ...]] = {
    "killed": ("importing", "waiting", "claimed"),
    "stopped for a while": ("importing", "waiting", "claimed"),
    # Serve waits without a limit for a replica that is stopped, also for one without serve_warm.
    "stopped for good": ("importing", "waiting"),
}

FAULTS: dict[str, Callable[[Live], Round]] = {
    "full TMPDIR, 128 KiB free": lambda live: full(live, 128 << 10),
    "full TMPDIR, no byte free": lambda live: full(live, 0),
    **{
        f"seat, {how} while {moment}": lambda live, moment=moment, how=how: seat(live, moment, how)
        for how, moments in SEATS.items()
        for moment in moments
    },
    **{
        f"store, {text} in mid-pull, on_missing={policy}": (
            lambda live, fault=fault, policy=policy, is_down=is_down: store(
                live, fault, policy, is_down=is_down
            )
        )
        for text, fault, is_down in (
            ("killed", "reset_in_body", True),
            ("silent", "hang_in_body", False),
        )
        for policy in ("compile", "fail")
    },
    **{
        f"drain, {action} under traffic": (lambda live, action=action: drain(live, action))
        for action in ("delete", "redeploy", "scale down")
    },
    **{
        f"clock, {text}": (lambda live, ahead_s=ahead_s: clock(live, ahead_s))
        for text, ahead_s in (
            ("a day ahead", DAY_S),
            ("a day back", -DAY_S),
            ("ten years ahead", 3652 * DAY_S),
            ("ten years back", -3652 * DAY_S),
        )
    },
}


FAULTS |= {
    f"clock, {text} before the start": lambda live, ahead_s=ahead_s: wrong_clock(live, ahead_s)
    for text, ahead_s in (("ten years ahead", 3652 * DAY_S), ("ten years back", -3652 * DAY_S))
}


def run(work: Path, rounds: int, wanted: str) -> list[dict[str, Any]]:
    """Make the rounds that the work folder does not have yet, and return all of them."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "rounds.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    counted = Counter(row["name"] for row in done)
    # First one round of each fault. Then all rounds of a fault, because seats need preparation.
    left = [
        (name, number)
        for numbers in ((0,), range(1, rounds))
        for name in FAULTS
        for number in numbers
        if wanted in name and number >= counted[name]
    ]
    if not left:
        return done
    with contextlib.ExitStack() as stack:
        live = Live(stack.enter_context(running_cluster()), stack)
        live.store()
        not_run = set()
        for name, number in left:
            if name in not_run:
                continue
            row = _one(live, name)
            if row["outcome"] == "not run":
                not_run.add(name)
            done.append(row)
            with file.open("a") as rows:
                rows.write(f"{json.dumps(row)}\n")
            sys.stdout.write(f"{number + 1:3} {row['seconds']:6.1f} s {name}: {row['outcome']}\n")
            sys.stdout.write(f"      {row['said'][:600]}\n")
            sys.stdout.flush()
        live.let_go()
    return done


def _one(live: Live, name: str) -> dict[str, Any]:
    """Make one round, and return its row."""
    before, began_s = live.prepare(name), time.monotonic()
    try:
        found = FAULTS[name](live)
        outcome, said = found.outcome, found.said
        if left := live.leftovers(before):
            outcome, said = "failed: leftovers", "; ".join(left)
    except NotPermitted as error:
        outcome, said = "not run", str(error)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        outcome, said = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:2000]
        traceback.print_exc()
    return {
        "name": name,
        "outcome": outcome,
        "said": said,
        "seconds": round(time.monotonic() - began_s, 1),
    }


def rows_of(done: list[dict[str, Any]]) -> list[FaultRow]:
    """Return one row for each fault."""
    found: list[FaultRow] = []
    for name in FAULTS:
        mine = [row for row in done if row["name"] == name]
        tried = [row for row in mine if row["outcome"] != "not run"]
        if not mine:
            continue
        counted = Counter(row["outcome"] for row in mine)
        failed = [
            row
            for row in tried
            if row["outcome"].startswith("failed:") or row["outcome"] == "failed"
        ]
        outcome = ", ".join(f"{many} {what}" for what, many in sorted(counted.items()))
        found.append(
            {
                "name": name,
                "kind": "live",
                "tries": len(tried),
                "outcome": outcome if tried else "not run",
                "said": (failed or mine)[-1]["said"],
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="the file to add the rows to")
    parser.add_argument("--work", type=Path, default=ROOT / "build/faults_live")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="only faults whose names contain this text")
    asked = parser.parse_args()
    found = rows_of(run(asked.work, asked.rounds, asked.only))
    for row in found:
        sys.stdout.write(f"{row['tries']:4} {row['name']}: {row['outcome']} ({row['said']})\n")
    if asked.json is not None:
        add_rows(asked.json, found, whole=() if asked.only else ("live",))
    sys.exit(any("failed" in row["outcome"].replace("failed, with", "") for row in found))


if __name__ == "__main__":
    main()
