# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Damaged files of one replica, beside a healthy one, for the probe, the server and workers."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from benchmarks.fault_rows import FaultRow, add_rows
from benchmarks.faults_node import PYTHONS, interpreter, read_with, serve
from conftest import wait_until
from processes import run_to_end
from reports import FULL
from serve_warm import node
from serve_warm._state_file import StateFile
from serve_warm.cli import observed, reporting
from serve_warm.node_server import server as node_server
from serve_warm.node_server.ledger import Ledger
from serve_warm.node_server.server import Server
from state_files import directory_fixture, replica_fixture  # noqa: F401 - fixtures

NO_CHECKS = ("--raylet", "none", "--proxy", "none")


@pytest.fixture(name="python", params=PYTHONS)
def python_fixture(request: pytest.FixtureRequest) -> str:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"python{request.param} is not installed")
    return found


def cut(path: Path, keep_bytes: int) -> None:
    """Leave a file as a crash might, during a write that is not atomic."""
    path.write_bytes(path.read_bytes()[:keep_bytes])


@pytest.fixture(name="damaged_dead")
def damaged_dead_fixture(directory: Path, replica) -> StateFile:
    """Files of two dead replicas, one with half a state and one with half a lock."""
    for name in ("half-state", "half-lock"):
        replica(name=name).close()
    [state] = directory.glob("*half-state.json")
    [lock] = directory.glob("*half-lock.lock")
    cut(state, 40)
    cut(lock, node.HEARTBEAT_BYTES + 20)
    [unread] = directory.glob("*half-lock.json")
    unread.unlink()  # so that the names come from the lock
    return replica()


@pytest.mark.usefixtures("damaged_dead")
def test_a_cut_off_file_of_a_dead_replica_leaves_a_warm_node_ready(directory: Path, python: str):
    """The probe answers as without that file, with each Python that serve_warm supports."""
    command = [python, "-I", "-S", node.__file__, "probe", "--state-dir", directory, *NO_CHECKS]

    ended = run_to_end([*command, "--verbose"])

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "[+] warm\n    app#Embedder r1: warm\n"


@pytest.mark.usefixtures("damaged_dead")
def test_a_server_beside_cut_off_files_follows_the_healthy_replica(directory: Path, replica):
    """`/readyz` and `/metrics` answer, and the watching thread sees what comes later."""
    command = [sys.executable, "-m", "serve_warm.node_server", "--state-dir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", "0", *NO_CHECKS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = int(re.search(r"answers on port (\d+)", process.stderr.readline())[1])
            answers = [_get(port, path) for path in ("/readyz", "/metrics")]
            first = process.stderr.readline()
            replica(name="r1", stage="FAILED")
            second = process.stderr.readline()
        finally:
            process.kill()

    assert answers[0] == (200, "ok\n")
    assert answers[1][0] == 200
    assert 'serve_warm_node_replicas{condition="dead"} 2.0' in answers[1][1]
    assert 'serve_warm_node_replicas{condition="warm"} 1.0' in answers[1][1]
    assert first.endswith("serve_warm node: ready\n")
    assert "not ready: warm: app#Embedder r1: FAILED" in second


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_damage_of_a_live_replica_is_counted_as_its_own(directory: Path, replica):
    """It is unreadable, so the node is not ready, and the reason names its file."""
    replica()
    replica(name="r2")
    [state] = directory.glob("*r2.json")
    cut(state, 40)

    found = {each.stem: each.condition for each in node.look(directory)}
    reasons, _ = node.warmth(node.look(directory), node.Policy())

    assert found == {"app#Embedder#r1": "warm", "app#Embedder#r2": "unreadable"}
    assert reasons == ["app#Embedder r2: app#Embedder#r2.json is not JSON, or is incomplete"]


def test_an_error_nobody_thought_of_is_that_replica_s(directory: Path, replica, monkeypatch):
    """Whatever reading one state raises, the others are read."""
    replica()
    replica(name="r2")
    read = node._state

    def fail(stem: str, folder: int) -> object:
        if stem.endswith("r2"):
            raise MemoryError
        return read(stem, folder)

    monkeypatch.setattr(node, "_state", fail)
    alive = [str(each) for each in node.look(directory)]
    replica(name="r2").close()
    dead = [each.condition for each in node.look(directory)]

    assert alive == [
        "app#Embedder r1: warm",
        "app#Embedder#r2: its files are damaged (MemoryError)",
    ]
    assert dead == ["warm", "dead"]


@pytest.mark.parametrize("text", [b"nan", b"inf", b"-inf", b"1e999"])
def test_a_heartbeat_that_is_no_time_is_none(directory: Path, replica, text: bytes):
    """A replica whose lock was damaged is stale if its state is old, because NaN compares false."""
    file = replica(loop_boot_s=None)
    os.pwrite(file._lock, text.ljust(node.HEARTBEAT_BYTES - 1) + b"\n", 0)

    fresh, stale = (node.look(directory, stale_s=stale_s)[0] for stale_s in (30.0, -1.0))

    assert (fresh.condition, stale.condition) == ("warm", "stale")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 400, '"x"'])
def test_a_number_in_a_state_that_is_no_time_is_none(directory: Path, replica, number: str):
    """The lock's heartbeat counts instead, and no number is too large for a float."""
    replica()
    [path] = directory.glob("*.json")
    path.write_text(re.sub(r'("\w+_boot_s": )[^,}]+', rf"\g<1>{number}", path.read_text()))

    [found] = node.look(directory)

    assert (found.condition, found.ready_s) == ("warm", None)


@pytest.mark.parametrize("number", ["NaN", "1e999", "9" * 400, '"x"', "[" * 500 + "]" * 500])
def test_status_and_report_show_the_others_beside_a_damaged_state(
    directory: Path, replica, number: str
):
    """Whatever stands in place of each number of a state."""
    replica(FULL)
    # Without texts that have numbers, which the replacement would damage as well.
    replica(FULL, name="r2", spans=[["pull", 1.0, 2.0, False]], eager=[], event="").close()
    [path] = directory.glob("*r2.json")
    path.write_text(re.sub(r"(?<=[ \[])-?\d[\d.e+-]*(?=[,}\]])", number, path.read_text()))
    path.write_text(re.sub(r'"schema": [^,]+', '"schema": 1', path.read_text()))

    shown = observed.of_directory(str(directory)).replicas
    starts = reporting.of_node(str(directory))
    json.dumps([*map(reporting.as_data, starts)], allow_nan=False)

    assert [(each.replica, each.condition) for each in shown] == [("r1", "warm"), ("r2", "dead")]
    assert [each.replica for each in starts] == ["r1", "r2"]
    assert starts[1].spans == []


def test_a_copy_of_a_state_hides_no_live_replica(directory: Path, replica):
    """A backup of a state file names the same replica, but holds no lock."""
    replica()
    [path] = directory.glob("*.json")
    (directory / "z-backup.json").write_bytes(path.read_bytes())
    settings = node.Settings(str(directory), node.Policy(), 30.0, ())
    ledger = Ledger()

    ledger.note(node.judge(settings, health={}))
    page = generate_latest(ledger).decode()

    [alive] = [line for line in page.splitlines() if line.startswith("serve_warm_replica_alive{")]
    assert alive.endswith(" 1.0")


def test_a_server_s_threads_outlive_errors_nobody_thought_of(
    directory: Path, replica, monkeypatch, capsys
):
    """The error is logged once, and the next turn that works says that the node is ready."""
    replica(stage="PROVING")
    settings = node.Settings(str(directory), node.Policy(), 30.0, ())
    server = Server(settings, host="127.0.0.1", port=0, drain_s=0.0)
    running = threading.Thread(target=server.run)
    running.start()
    said: list[str] = []

    def has_said(text: str) -> bool:
        said.append(capsys.readouterr().err)
        return text in "".join(said)

    wait_until("it begins", lambda: has_said("not ready: warm"))
    turns: list[int] = []

    def fail(*_: object, **__: object) -> object:
        turns.append(1)
        raise SystemError("no token=abcdefgh12345678")

    with monkeypatch.context() as broken:
        broken.setattr(node_server, "judge", fail)
        wait_until("it tries again", lambda: len(turns) > 1)
    replica()
    wait_until("it goes on", lambda: has_said("serve_warm node: ready"))
    server.drain()
    running.join()

    text = "".join(said)
    assert text.count("a check failed, and will be tried again: SystemError: no token=") == 1
    assert "abcdefgh12345678" not in text


@pytest.mark.slow
def test_damaged_files_change_no_answer_about_others(python: str):
    """The short form of `tests/benchmarks/faults_node.py`."""
    found = read_with(python, 120, first=50_000)

    assert found["first"] == []
    assert sum(found["outcomes"].values()) == 120


@pytest.mark.slow
def test_damaged_files_change_no_answer_of_a_server():
    """Neither `/readyz` and `/metrics`, nor `serve-warm status`."""
    found = serve(60, first=50_000)

    assert found["first"] == []
    assert sum(found["outcomes"].values()) == 60


@pytest.mark.stress
def test_ten_thousand_damaged_files_change_no_answer_about_others(python: str):
    """As above, with many more files."""
    assert read_with(python, 10_000)["first"] == []


@pytest.mark.stress
def test_thousands_of_damaged_files_change_no_answer_of_a_server():
    """As above, with many more files."""
    assert serve(2_000)["first"] == []


def test_rows_of_other_programs_stay(tmp_path: Path):
    """`--json` replaces the rows with the same names, and nothing else in the file."""
    file = tmp_path / "faults.json"
    old, new, other = (
        FaultRow(name="a", kind=kind, tries=tries, outcome="", said="")
        for kind, tries in (("node", 1), ("node", 2), ("store", 1))
    )
    add_rows(file, [other, old])
    add_rows(file, [new])
    assert json.loads(file.read_text()) == {"rows": [new, other]}
    add_rows(file, [new], whole=["store"])
    assert json.loads(file.read_text()) == {"rows": [new]}
