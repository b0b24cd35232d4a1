# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats of an application whose driver has ended, as after a script that calls `serve.run`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_S, wait_until
from processes import run_to_end, search_path
from serve_warm.seats.records import is_named_idle

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


class Cluster:
    """A Ray cluster of processes that outlast each driver. The head has no CPU for replicas."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        here = Path(__file__).parent
        (folder / "seats").mkdir(mode=0o700)
        self._folder = folder
        self._environ = {
            **os.environ,
            "PYTHONPATH": search_path(str(here.parents[1]), str(here.parent)),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(folder / "seats"),
        }
        # Ray's sockets do not fit below a long path.
        self._temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._processes: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        options = ["--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self._temp}"]
        self._begin("--head", f"--port={port}", *options)
        self.start_node()

    def start_node(self) -> None:
        """Start a raylet with CPUs."""
        self._begin(f"--address={self.address}", "--num-cpus=4")

    def kill_node(self) -> None:
        """Kill the newest raylet. Its workers notice this by themselves."""
        [*_, node] = self._processes
        [raylet] = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if _session(path) == node.pid and b"raylet/raylet" in path.read_bytes()
        ]
        os.kill(raylet, signal.SIGKILL)
        node.wait(HANG_S)

    def idle_workers(self) -> set[int]:
        """Return the workers of this cluster that run no replica. Seats are such workers."""
        found, mark = set(), str(self._folder).encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended
                if is_named_idle(int(path.parent.name)) and mark in path.read_bytes():
                    found.add(int(path.parent.name))
        return found

    def drive(self, task: str, name: str) -> dict[str, Any]:
        """Run a driver in a process of its own."""
        program = Path(__file__).with_name("seat_driver.py")
        command = [sys.executable, program, self.address, task, name]
        ended = run_to_end(command, env=self._environ, timeout=HANG_S)
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return answer

    def close(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _begin(self, *options: str) -> None:
        output = self._folder / f"node-{len(self._processes)}"
        ray = str(Path(sys.executable).with_name("ray"))
        with output.open("wb") as said:
            process = subprocess.Popen(
                [ray, "start", "--block", *options],
                env=self._environ,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._processes.append(process)
        wait_until("the node runs", lambda: b"Ray runtime started" in output.read_bytes())


def _session(path: Path) -> int:
    """Return the session of a process, or 0 if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(int(path.parent.name))
    return 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.stress  # a minute; test_seats.py has the seats of one driver
def test_seats_outlast_the_driver_that_deployed(cluster: Cluster):
    """Ray ends the idle workers of a finished driver, but its replicas continue."""
    cluster.drive("deploy", "first")

    wait_until("a seat waits", lambda: cluster.drive("ask", "first")["waiting"] == 1)
    second = cluster.drive("deploy", "second")

    assert second["hit"], second


@pytest.mark.stress
def test_a_raylet_that_restarts_gets_new_seats(cluster: Cluster):
    """Its workers end with it, seats included. The replica starts again as without seats."""
    first = cluster.drive("deploy", "first")
    wait_until("a seat waits", lambda: cluster.drive("ask", "first")["waiting"] == 1)
    seats = cluster.idle_workers()

    cluster.kill_node()
    wait_until("its workers end", lambda: not seats & cluster.idle_workers())
    cluster.start_node()

    def restarted() -> Any:
        with contextlib.suppress(AssertionError):
            found = cluster.drive("ask", "first")
            return found if found["waiting"] == 1 else None

    again = wait_until("a seat waits on the new raylet", restarted)
    second = cluster.drive("deploy", "second")

    assert seats
    assert again["pid"] != first["pid"]
    assert (again["hit"], again["miss"], again["problem"]) == (False, "none", "")
    assert second["hit"], second
