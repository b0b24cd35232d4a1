# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats of an application whose driver has ended, as after a script that calls `serve.run`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_S, wait_until
from processes import search_path

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

Driver = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Run a driver in a process of its own, on a cluster that outlasts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    (tmp_path / "seats").mkdir(mode=0o700)
    environ = {
        **os.environ,
        "PYTHONPATH": search_path(str(here.parents[1]), str(here.parent)),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(tmp_path / "seats"),
    }
    # Ray's sockets do not fit below a long path.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    begin = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    options = ["--num-cpus=4", "--include-dashboard=false", f"--temp-dir={folder}"]
    with (tmp_path / "head").open("wb") as said:
        head = subprocess.Popen(
            [*begin, f"--port={port}", *options],
            env=environ,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )

    def run(task: str, name: str) -> dict[str, Any]:
        command = [sys.executable, str(here / "seat_driver.py"), f"127.0.0.1:{port}", task, name]
        ended = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return answer

    try:
        wait_until(
            "the cluster runs", lambda: b"Ray runtime started" in (tmp_path / "head").read_bytes()
        )
        yield run
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_seats_outlast_the_driver_that_deployed(driver: Driver):
    """Ray ends the idle workers of a finished driver, but its replicas continue."""
    driver("deploy", "first")

    wait_until("a seat waits", lambda: driver("ask", "first")["waiting"] == 1)
    second = driver("deploy", "second")

    assert second["hit"], second
