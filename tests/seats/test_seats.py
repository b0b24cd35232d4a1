# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How many seats a replica asks for, and when it asks for no more; and the raylet's answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from serve_warm._regular_files import read_regular
from serve_warm.config import Seats
from serve_warm.private_apis.ray_raylet import Address
from serve_warm.seats import keeper as seats
from serve_warm.seats import records
from serve_warm.seats.keeper import (
    LIMIT_OF_LOSSES,
    PAUSE_S,
    RECORD_S,
    SEAT_BYTES,
    SPARE,
    STARTING_LIMIT_S,
    STEADY_S,
    STOPPED_S,
    TAKEN_PAUSE_S,
    Raylet,
    SeatKeeper,
    SeatsDelayed,
    SeatsUnavailable,
    imports_of_seat,
)
from serve_warm.seats.records import (
    TICKET_S,
    Seat,
    SeatFolder,
    SeatRequest,
    SeatUse,
    free_memory_bytes,
    is_named_idle,
    is_one_starting,
    is_stopped,
    start_ticks,
)
from state_files import Clock, clock_fixture  # noqa: F401 - a fixture

MEGABYTE = 1_000_000


class Workers:
    """A raylet that starts real processes, which take tickets as the hook does."""

    def __init__(self, folder: SeatFolder) -> None:
        self.folder = folder
        self.asked: list[int] = []
        self.keep_alive_s: list[float] = []
        self.raises: Exception | None = None
        self.come = True
        self.processes: list[subprocess.Popen[bytes]] = []
        self.line = [sys.executable, "-c", "input()"]
        self.program: str | None = None

    def ask(self, many: int, *, keep_alive_s: float) -> None:
        self.asked.append(many)
        self.keep_alive_s.append(keep_alive_s)
        if self.raises is not None:
            raise self.raises
        for _ in range(many if self.come else 0):
            self.begin()

    def begin(self) -> None:
        process = subprocess.Popen(self.line, executable=self.program, stdin=subprocess.PIPE)
        self.processes.append(process)
        # exec closes the pipe that Popen waits for before the kernel sets the process's name.
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        found = self.folder.claim()
        assert found is not None
        ticket, self.wanted = found
        seat = Seat(
            pid=process.pid,
            start_ticks=start_ticks(process.pid),
            state="importing",
            deployment=self.wanted.deployment,
            ticket=ticket,
            is_named_idle=is_named_idle(process.pid),
            offered_boot_s=self.wanted.offered_boot_s,
            began_boot_s=seats.boot_s(),
            memory_bytes=100 * MEGABYTE,
        )
        self.folder.write(seat)

    def settle(self, state: Any = "waiting", note: str = "", import_s: float = 0.0) -> None:
        """Have all seats that import be through."""
        for seat in self.folder.seats():
            if seat.state == "importing":
                self.folder.write(replace(seat, state=state, note=note, import_s=import_s))

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    folder = SeatFolder(tmp_path / "seats")
    workers = Workers(folder)
    yield workers
    for process in workers.processes:
        workers.end(process)


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The free memory of the node, in bytes."""
    free = [10_000.0 * MEGABYTE]
    monkeypatch.setattr(seats, "free_memory_bytes", lambda: free[0])
    return free


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether Ray is starting a worker."""
    starting = [True]
    monkeypatch.setattr(seats, "is_one_starting", lambda _: starting[0])
    return starting


def keeper(workers: Workers, count: int = 2, **more: Any) -> SeatKeeper:
    options = {"settings": Seats(count=count), "deployment": "app#Embedder", **more}
    fixed = {"source": workers, "omp_threads": "1", "imports": ("torch",)}
    return SeatKeeper(**{"folder": workers.folder, **options, **fixed})


def with_seat(workers: Workers, count: int = 1) -> SeatKeeper:
    """Return a keeper that has seen its first seat wait."""
    kept = keeper(workers, count=count)
    kept.look()
    workers.settle()
    kept.look()
    return kept


def said(keeper: SeatKeeper) -> SeatUse:
    return keeper.describe(SeatUse())


def test_one_shows_that_the_imports_work_before_the_others_are_asked_for(workers: Workers):
    """So failing imports cost one worker, not all."""
    kept = keeper(workers, count=3)
    for asked in ([1], [1, 2]):
        for _ in range(3):
            kept.look()
        assert workers.asked == asked
        workers.settle()


def test_a_seat_that_was_taken_is_replaced(workers: Workers, clock: Clock):
    """Whatever took it, a replica of this deployment or of another with the same runtime_env."""
    kept = with_seat(workers)
    workers.folder.remove(workers.folder.seats()[0])
    kept.look()
    at_once = list(workers.asked)
    clock.move_on(TAKEN_PAUSE_S + 1)
    kept.look()
    assert at_once == [1]  # the replica that took it has the cores for itself
    assert workers.asked == [1, 1]
    assert said(kept).waiting == 0
    assert said(kept).problem == ""


def test_no_seat_is_asked_for_while_a_replica_s_worker_starts(
    workers: Workers, clock: Clock, starting: list[bool]
):
    """The replica would take the ticket, and its worker would wait without imports."""
    kept = keeper(workers, count=1)

    def asked() -> list[int]:
        kept.look()
        return list(workers.asked)

    during = asked()
    starting[0] = False
    after = asked()
    workers.settle()
    kept.look()
    workers.end(workers.processes[0])
    kept.look()
    starting[0] = True
    clock.move_on(PAUSE_S + 1)  # after the loss of the seat
    held_up = asked()
    clock.move_on(STARTING_LIMIT_S + 1)
    at_last = asked()

    assert (during, after, held_up, at_last) == ([], [1], [1], [1, 1])


def test_a_worker_counts_as_starting_until_ray_names_it():
    """A worker of another runtime_env does not count."""
    options = ["--session-name=s", "--node-id=n", "--runtime-env-hash=-7"]
    worker = [sys.executable, "-c", "print(flush=True); input()", "default_worker.py", *options]
    process = subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()  # while a program begins, /proc shows no command line
        found = [
            is_one_starting(["default_worker.py", *options]),
            is_one_starting(["default_worker.py", *options[:2], "--runtime-env-hash=8"]),
            is_one_starting(["not_a_worker.py"]),
        ]
    finally:
        process.kill()
        process.communicate()
    assert found == [True, False, False]
    assert not is_one_starting(["default_worker.py", *options])


def test_a_seat_that_a_deployment_without_serve_warm_took_is_replaced(
    workers: Workers, clock: Clock
):
    """Nothing removes its file. Ray gives its process another name."""
    workers.line = ["ray::IDLE", "-c", "read x; exec -a ray::ServeReplica:other sh -c 'read y'"]
    workers.program = "/bin/bash"
    kept = with_seat(workers)
    waiting = said(kept).waiting
    (process,) = workers.processes
    process.stdin.write(b"\n")
    process.stdin.flush()
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"ray::ServeReplica"):
        time.sleep(0.01)
    kept.look()
    clock.move_on(TAKEN_PAUSE_S + 1)
    kept.look()
    assert waiting == 1
    assert workers.asked == [1, 1]
    assert said(kept).waiting == 0


@pytest.mark.parametrize("state", ["failed", "hung", "cuda"])
def test_a_seat_of_no_use_is_the_last_one(workers: Workers, state: str):
    """The next one would be of no use either; the reason is in the report."""
    kept = keeper(workers)
    kept.look()
    workers.settle(state, note="importing app raised ValueError")
    for _ in range(3):
        kept.look()
    assert workers.asked == [1]
    assert said(kept).problem == f"a seat cannot be used ({state}): importing app raised ValueError"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_worker_that_ended_itself_is_the_last_one(workers: Workers, is_new: bool):
    """This happens if torch's import takes too long."""
    kept = keeper(workers, count=1)
    kept.look()
    workers.settle("hung", note="importing torch took more than 60 s; the worker ended")
    if not is_new:
        workers.folder.write(replace(workers.folder.seats()[0], offered_boot_s=0.0))
    workers.end(workers.processes[0])
    kept.look()
    assert said(kept).problem.startswith("a seat cannot be used (hung): importing torch") is is_new
    assert len(workers.asked) == (1 if is_new else 2)


def test_a_raylet_that_refuses_is_asked_once(workers: Workers):
    """No ticket is left for a worker that comes later for another reason."""
    kept = keeper(workers)
    workers.raises = SeatsUnavailable("no such request")
    for _ in range(3):
        kept.look()
    assert workers.asked == [1]
    assert said(kept).problem == "no such request"
    assert workers.folder.claim() is None


def test_a_raylet_that_does_not_answer_is_asked_later_and_then_no_more(
    workers: Workers, clock: Clock
):
    """The pauses grow, so that requests end."""
    kept = keeper(workers)
    workers.raises = SeatsDelayed("no answer")
    kept.look()
    kept.look()
    at_once = len(workers.asked)
    clock.move_on(PAUSE_S + 0.1)
    kept.look()
    after_a_pause = len(workers.asked)
    for _ in range(10):
        clock.move_on(1000)
        kept.look()
    assert (at_once, after_a_pause) == (1, 2)
    assert len(workers.asked) == LIMIT_OF_LOSSES
    assert said(kept).problem == f"no answer, {LIMIT_OF_LOSSES} times in a row"


def test_an_unexpected_error_is_one_lost_seat(
    workers: Workers, clock: Clock, caplog: pytest.LogCaptureFixture
):
    """A bug, or a Ray of another release, costs a seat. Before, it ended the keeper's thread."""
    kept = keeper(workers, count=1)
    workers.raises = RuntimeError("a bug")
    kept.look()
    left = workers.folder.claim()
    workers.raises = None
    clock.move_on(PAUSE_S + 0.1)
    kept.look()
    workers.settle()
    kept.look()
    assert left is None
    assert workers.asked == [1, 1]
    assert (said(kept).waiting, said(kept).problem) == (1, "")
    assert "RuntimeError: a bug" in caplog.text
    assert "Traceback" in caplog.text


def test_unexpected_errors_end_the_requests_and_are_named(workers: Workers, clock: Clock):
    """The report says why there are no more seats, and another replica may keep some."""
    kept = keeper(workers, count=1)
    workers.raises = RuntimeError("a bug")
    for _ in range(2 * LIMIT_OF_LOSSES):
        kept.look()
        clock.move_on(1000)
    workers.raises = None
    keeper(workers, count=1).look()
    assert len(workers.asked) == LIMIT_OF_LOSSES + 1
    assert said(kept).problem == (
        f"looking for seats failed: RuntimeError: a bug, {LIMIT_OF_LOSSES} times in a row"
    )


def test_a_worker_that_never_comes_has_its_ticket_taken_back(workers: Workers, clock: Clock):
    """The worker may come for a replica, which must not wait for the imports of a seat."""
    kept = keeper(workers)
    workers.come = False
    kept.look()
    clock.move_on(TICKET_S + 1)
    kept.look()
    assert workers.folder.claim() is None
    assert said(kept).problem == ""


def test_a_seat_that_never_says_how_its_imports_ended_is_given_up(workers: Workers, clock: Clock):
    """As with a full disk. Before, no more seats were asked for, and nothing said so."""
    kept = keeper(workers, count=1)
    for _ in range(10):
        kept.look()
        clock.move_on(60 + RECORD_S + 70)  # the default limit, and more than a pause
        kept.look()
    assert len(workers.asked) == LIMIT_OF_LOSSES
    assert "did not record the end of its imports within 120 s" in said(kept).problem


def test_a_seat_that_stays_stopped_is_ended_and_replaced(workers: Workers, clock: Clock):
    """Ray would give it to a replica, whose start would wait for as long as the seat is stopped."""
    kept = with_seat(workers)
    [process] = workers.processes
    process.send_signal(signal.SIGSTOP)
    while not is_stopped(workers.folder.seats()[0]):
        time.sleep(0.001)
    for _ in range(2):
        kept.look()
    before = process.poll()
    clock.move_on(STOPPED_S + 0.1)
    kept.look()
    assert before is None
    assert process.wait() == -signal.SIGKILL
    kept.look()
    clock.move_on(PAUSE_S + 0.1)
    kept.look()
    assert workers.asked == [1, 1]
    assert said(kept).problem == ""


def test_a_seat_that_goes_on_in_time_is_kept(workers: Workers, clock: Clock):
    """As one that a debugger stopped for a moment, twice."""
    kept = with_seat(workers)
    [process] = workers.processes
    for _ in range(2):
        for number, is_now in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            process.send_signal(number)
            while is_stopped(workers.folder.seats()[0]) is not is_now:
                time.sleep(0.001)
            kept.look()
            clock.move_on(0.8 * STOPPED_S)
    kept.look()
    assert process.poll() is None
    assert said(kept).waiting == 1


@pytest.mark.parametrize(
    ("settings", "imports_end"),
    [
        (Seats(count=1), False),  # as on a node where each import runs out of memory
        (Seats(count=1, keep_alive_s=60), False),  # however short the time for seats is
        (Seats(count=1), True),  # a success has waited for some time, or was taken
    ],
)
def test_seats_that_are_killed_are_not_asked_for_without_end(
    workers: Workers, settings: Seats, imports_end: bool, clock: Clock
):
    """Seats that are killed during their imports, or soon after, are losses in a row."""
    kept = keeper(workers, settings=settings)
    for _ in range(20):
        kept.look()
        if imports_end:
            workers.settle()
            kept.look()
        clock.move_on(41)
        while workers.processes:
            workers.end(workers.processes.pop())
        kept.look()
    assert workers.asked == [1] * LIMIT_OF_LOSSES
    state = "waiting" if imports_end else "importing"
    assert f"ended while the seat was {state}, 5 times in a row" in said(kept).problem
    assert workers.folder.seats() == []


def test_a_seat_is_renewed_before_its_time_is_up(workers: Workers, clock: Clock):
    """Ray may keep the old one on a large node, and then there are twice as many and no more."""
    kept = with_seat(workers)
    early = list(workers.asked)
    clock.move_on(880)
    kept.look()
    workers.settle()
    for _ in range(5):
        clock.move_on(2000)
        kept.look()
    assert early == [1]
    assert workers.asked == [1, 1]
    assert said(kept).waiting == 2


def test_nothing_is_asked_for_without_memory(workers: Workers, clock: Clock, free: list[float]):
    """A seat may not be what has a replica killed."""
    free[0] = 50 * MEGABYTE
    kept = keeper(workers, count=1)
    kept.look()
    before = list(workers.asked)
    free[0] = 10_000 * MEGABYTE
    clock.move_on(10)
    kept.look()
    assert before == []
    assert workers.asked == [1]


def test_no_more_is_asked_for_than_memory_is_free(
    workers: Workers, clock: Clock, free: list[float]
):
    """The size of the first seat is known, even if it was taken since."""
    free[0] = SPARE * SEAT_BYTES
    kept = keeper(workers, count=3)
    kept.look()
    workers.settle()
    free[0] = 0
    kept.look()
    workers.folder.remove(workers.folder.seats()[0])
    kept.look()
    free[0] = 2.5 * SPARE * 100 * MEGABYTE
    clock.move_on(10)
    kept.look()
    assert workers.asked == [1, 2]


def test_memory_that_seats_will_need_is_not_given_twice(workers: Workers, free: list[float]):
    """A worker that has just begun has taken little of it. Looks are a second apart."""
    free[0] = 100 * SPARE * 100 * MEGABYTE
    kept = keeper(workers, count=4)
    kept.look()
    workers.settle()
    free[0] = 2.2 * SPARE * 100 * MEGABYTE
    for _ in range(4):
        kept.look()
    assert workers.asked == [1, 2]
    assert said(kept).problem == ""


def test_losses_with_a_steady_seat_between_them_are_not_in_a_row(workers: Workers, clock: Clock):
    """A node may kill a seat now and then."""
    kept = keeper(workers, count=1)
    for _ in range(2 * LIMIT_OF_LOSSES):
        kept.look()
        workers.settle()
        kept.look()
        clock.move_on(STEADY_S + 1)
        kept.look()
        workers.end(workers.processes.pop())
        kept.look()
        clock.move_on(PAUSE_S + 0.1)
    assert len(workers.asked) == 2 * LIMIT_OF_LOSSES
    assert said(kept).problem == ""


def test_open_tickets_are_taken_back_when_a_keeper_stops(workers: Workers):
    """Before, a plain start could take one, and repeat the import that fails."""
    kept = keeper(workers, count=3)
    kept.look()
    workers.settle()
    workers.come = False
    kept.look()
    workers.folder.write(replace(workers.folder.seats()[0], state="failed", note="no licence"))
    kept.look()
    assert "no licence" in said(kept).problem
    assert workers.asked == [1, 2]
    assert not list(workers.folder.path.glob("ticket-*"))


KIB, GIB = 1024, 1024**3


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 8 * GIB),
        ({"max": "max", "current": str(GIB), "stat": "anon 1\n"}, 8 * GIB),
        ({"max": str(4 * GIB), "current": str(3 * GIB), "stat": "anon 1\n"}, GIB),
        ({"max": str(4 * GIB), "current": str(3 * GIB), "stat": f"inactive_file {GIB}\n"}, 2 * GIB),
        ({"max": str(64 * GIB), "current": "0", "stat": ""}, 8 * GIB),
        ({"max": "lots", "current": "0", "stat": ""}, 8 * GIB),
        ({"max": str(GIB), "current": "0"}, 8 * GIB),
    ],
)
def test_free_memory_is_that_of_the_node_or_of_the_container(
    tmp_path: Path, group: dict[str, str], free: int
):
    """Whichever is less. A limit that cannot be read counts as none."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    lines = f"MemTotal: {16 * GIB // KIB} kB\nMemAvailable: {8 * GIB // KIB} kB\n"
    (tmp_path / "proc/meminfo").write_text(lines)
    for name, text in group.items():
        (tmp_path / "sys/fs/cgroup" / f"memory.{name}").write_text(text)
    assert free_memory_bytes(tmp_path) == free


def test_a_keeper_that_stopped_lets_another_one_try(workers: Workers):
    """The stopped keeper no longer counts seats either."""
    second, first = keeper(workers, count=1), with_seat(workers)
    before = said(first).waiting
    workers.folder.write(replace(workers.folder.seats()[0], state="failed", note="no licence"))
    first.look()
    workers.folder.remove(workers.folder.seats()[0])
    second.look()
    assert (before, said(first).waiting) == (1, None)
    assert "no licence" in said(first).problem
    assert said(second).waiting == 0
    assert workers.asked == [1, 1]


def test_one_replica_of_a_deployment_keeps_seats_on_a_node(workers: Workers):
    """Others wait until it ends; other deployments have seats of their own."""
    first, second = keeper(workers, count=1), keeper(workers, count=1)
    other = keeper(workers, count=1, deployment="app#Router")
    for each in (first, second, other):
        each.look()
    assert workers.asked == [1, 1]
    assert said(second).waiting is None


def with_ticket(tmp_path: Path) -> SeatFolder:
    folder = SeatFolder(tmp_path / "seats")
    folder.make()
    folder.offer(SeatRequest(deployment="a", imports=("torch",)))
    return folder


def test_a_ticket_is_for_one_worker(tmp_path: Path):
    """However many begin at a time."""
    folder = with_ticket(tmp_path)
    assert folder.claim() is not None
    assert folder.claim() is None


def test_a_claimed_ticket_that_another_worker_removed_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After the clock is set back, a ticket that was claimed just now looks old."""
    folder = with_ticket(tmp_path)
    [ticket] = folder.path.iterdir()
    os.utime(ticket, (time.time() + 1e8,) * 2)

    def read(path: Path) -> bytes:
        data = read_regular(path)
        folder.make()
        assert not path.exists()
        return data

    monkeypatch.setattr(records, "read_regular", read)

    assert folder.claim() is not None


DAMAGED: list[tuple[str, object]] = [
    ("imports", "torch"),
    ("imports", [7]),
    ("deployment", None),
    ("limit_s", "60"),
    ("limit_s", 10**400),
    ("limit_s", float("nan")),
    ("limit_s", 1e308),
    ("offered_boot_s", float("inf")),
    ("omp_threads", ["4"]),
    ("paths", {"/p": 1}),
]


@pytest.mark.parametrize(("name", "value"), DAMAGED, ids=lambda value: str(value)[:20])
def test_a_damaged_ticket_is_refused_and_the_next_one_is_taken(
    tmp_path: Path, name: str, value: object
):
    """The worker says which value is impossible, instead of ending somewhere else."""
    folder = with_ticket(tmp_path)
    [whole] = folder.path.glob("ticket-*")
    damaged = folder.path / "ticket-0"
    damaged.write_text(json.dumps({**json.loads(whole.read_text()), name: value}))

    with pytest.raises(ValueError, match=f"ticket-0 is damaged: its {name} has an impossible"):
        folder.claim()

    assert not damaged.exists()
    assert folder.claim() is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"{", b"{}", b"[" * 100_000, b"\0" * 99, b'{"pid": "x"}'],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_seat_hides_no_other_seat(tmp_path: Path, content: bytes):
    """Of half a file, a list, or one that is nested too deeply, nothing is read."""
    folder = with_ticket(tmp_path)
    seat = Seat(pid=7, start_ticks=1, state="waiting", deployment="a", ticket="t")
    folder.write(seat)
    (folder.path / "seat-8").write_bytes(content)
    whole = json.loads((folder.path / "seat-7").read_text())
    for number, (name, value) in enumerate(
        [("pid", None), ("state", []), ("began_boot_s", "x"), ("note", 7), ("memory_bytes", 1.5)],
        10,
    ):
        (folder.path / f"seat-{number}").write_text(json.dumps({**whole, name: value}))

    assert folder.seats() == [seat]


def test_an_old_ticket_is_taken_by_nobody(tmp_path: Path, clock: Clock):
    """Its replica is gone, and a start that takes it would import at a low priority."""
    folder = with_ticket(tmp_path)
    clock.move_on(TICKET_S + 1)
    assert folder.claim() is None
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("age", [0.0, time.time() + 1e8], ids=["old", "the clock was set back"])
def test_folders_of_clusters_that_are_gone_are_removed(tmp_path: Path, age: float):
    """After a day without a change, unless a seat of theirs lives."""
    me = Seat(pid=1, start_ticks=start_ticks(1), state="waiting", deployment="a", ticket="t")
    old, lives, new, mine = ("0123456789ab" * 2, "1" * 24, "2" * 24, "3" * 24)
    others = "of a user"
    folders = {name: SeatFolder(tmp_path / "seats" / name) for name in (old, lives, new, others)}
    for name, folder in folders.items():
        folder.make()
        folder.write(replace(me, start_ticks=me.start_ticks + (name != lives)))
    for name in (old, lives, others):
        os.utime(folders[name].path, (age, age))
    (tmp_path / "seats" / ("a" * 24)).symlink_to("nowhere")
    SeatFolder(tmp_path / "seats" / mine).make()
    left = {path.name for path in (tmp_path / "seats").iterdir()}
    assert left == {"a" * 24, lives, mine, new, others}


@pytest.mark.parametrize("age", [0.0, time.time() + 1e8], ids=["old", "the clock was set back"])
def test_files_that_a_killed_worker_left_are_removed(tmp_path: Path, age: float):
    folder = with_ticket(tmp_path)
    [ticket] = folder.path.iterdir()
    ticket.rename(folder.path / "claimed-1")
    (folder.path / ".seat-1.0123").touch()
    for path in folder.path.iterdir():
        os.utime(path, (age, age))
    (folder.path / ".seat-2.0123").touch()
    folder.make()
    assert [path.name for path in folder.path.iterdir()] == [".seat-2.0123"]


def test_workers_that_ray_does_not_exchange_share_no_tickets():
    """Another node, cluster or runtime_env has another folder."""
    line = ["--session-name=s", "--node-id=n", "--runtime-env-hash=1"]
    names = ("session-name", "node-id", "runtime-env-hash")
    lines = [line, *([*line, f"--{name}=other"] for name in names)]
    assert len({SeatFolder.of_worker(arguments).path for arguments in lines}) == 4
    assert SeatFolder.of_worker(["python", "app.py"]) is None


def test_a_seat_imports_what_a_replica_has_loaded():
    """The app's first; no compiler where the replica has none, and no torch for a router."""
    of_ray = ("ray.serve._private.replica", "ray.serve._private.controller")
    loaded = ("serve_warm.report", "torch", *of_ray, "numpy")
    names = imports_of_seat(Seats(imports=("app.model", "torch")), loaded)
    assert names[:4] == ("app.model", "torch", *of_ray)
    assert "numpy" not in names
    assert imports_of_seat(Seats(), ("serve_warm.report",))[-1] == "serve_warm.report"
    # transformers imports Dynamo in a replica that compiles nothing.
    assert imports_of_seat(Seats(), ("torch", "torch._dynamo")) == ("torch", "torch._dynamo")


# The raylet --------------------------------------------------------------------------------------
class Answers(grpc.GenericRpcHandler):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda _, call: call.abort(self.code, "no"))


class Hangs(grpc.GenericRpcHandler):
    """Takes a request and does not answer it until the client gives up."""

    def service(self, details: Any) -> Any:
        def wait(_request: Any, context: grpc.ServicerContext) -> None:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()

        return grpc.unary_unary_rpc_method_handler(wait)


@pytest.fixture
def raylet() -> Iterator[Any]:
    """Start servers that answer each request with a status, or not at all; give the port."""
    with ThreadPoolExecutor(1) as pool:
        servers = []

        def start(code: grpc.StatusCode | None, address: str = "127.0.0.1", port: int = 0) -> int:
            server = grpc.server(pool)
            server.add_generic_rpc_handlers((Hangs() if code is None else Answers(code),))
            port = server.add_insecure_port(f"{address}:{port}")
            server.start()
            servers.append(server)
            return port

        def stop() -> None:
            for server in servers:
                server.stop(None).wait()

        start.stop = stop
        yield start
        stop()


def ask(port: int, host: str = "127.0.0.1") -> None:
    Raylet(Address(host, port, "{}")).ask(1, keep_alive_s=60)


has_ipv6 = Path("/proc/net/if_inet6").exists()
IPV6 = pytest.mark.skipif(not has_ipv6, reason="this machine has no IPv6")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=IPV6)])
@pytest.mark.parametrize("name", ["UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_a_raylet_that_has_no_such_request_or_refuses_it_is_named(
    raylet: Any, name: str, host: str
):
    """An older Ray, or one whose token is not here. IPv6 needs brackets before the port."""
    port = raylet(grpc.StatusCode[name], f"[{host}]" if ":" in host else host)
    with pytest.raises(SeatsUnavailable, match=f"answered PrestartWorkers with {name}"):
        ask(port, host=host)


@pytest.mark.long
def test_a_raylet_that_does_not_answer_is_given_up(raylet: Any):
    """The keeper's thread is free again, and asks later."""
    port = raylet(None)
    with pytest.raises(SeatsDelayed, match="DEADLINE_EXCEEDED"):
        ask(port)


def test_a_raylet_that_was_restarted_is_asked_again(raylet: Any):
    """By the same object: it keeps no channel to the one before."""
    port = raylet(grpc.StatusCode.UNAVAILABLE)
    source = Raylet(Address("127.0.0.1", port, "{}"))
    with pytest.raises(SeatsDelayed):
        source.ask(1, keep_alive_s=60)
    raylet.stop()
    with pytest.raises(SeatsDelayed):
        source.ask(1, keep_alive_s=60)
    raylet(grpc.StatusCode.PERMISSION_DENIED, port=port)
    with pytest.raises(SeatsUnavailable, match="PERMISSION_DENIED"):
        source.ask(1, keep_alive_s=60)
