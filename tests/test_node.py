# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state files of a node: whole, private, and of replicas that are alive; and what is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from serve_warm import _private_folders, _state_file, node
from serve_warm._state_file import Heartbeat, StateFile
from serve_warm.cli import observed
from serve_warm.node import (
    STATE_SCHEMA,
    Policy,
    Replica,
    boot_s,
    default_directory,
    look,
    read_states,
    warmth,
)
from state_files import Clock, clock_fixture, directory_fixture  # noqa: F401 - fixtures

REWRITES = 2_000

OPEN: list[StateFile] = []


@pytest.fixture(autouse=True)
def locks() -> Iterator[None]:
    """Keep the locks of a test's own replicas until it ends."""
    yield
    while OPEN:
        OPEN.pop().close()


def state_file(directory: Path, replica: str = "Embedder#1") -> StateFile:
    file = StateFile(directory, application="app", deployment="Embedder", replica=replica)
    OPEN.append(file)
    return file


def test_what_is_written_is_read(directory: Path):
    before = boot_s()
    file = state_file(directory)
    for stage in ("REPLAYING", "READY", "READY"):
        file.write({"stage": stage, "inputs_done": 3})
    (state,) = read_states(directory)

    times = [state.pop(f"{name}_boot_s") for name in ("began", "stage", "heartbeat")]
    in_order = [before, *times, boot_s()]
    assert in_order == sorted(in_order)
    assert state.pop("ready_boot_s") == times[1] < times[2]
    assert state.pop("updated_unix") > 0
    assert state == {
        "schema": STATE_SCHEMA,
        "application": "app",
        "deployment": "Embedder",
        "replica": "Embedder#1",
        "pid": os.getpid(),
        "stage": "READY",
        "inputs_done": 3,
    }


READER = """
import json, pathlib, sys
path, stop = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
print("ready", flush=True)
seen, backwards = set(), 0
last = -1
while not stop.exists():
    state = json.loads(path.read_text())
    assert state["text"] == str(state["number"]) * 4000, "half of a state"
    backwards += state["number"] < last
    last = state["number"]
    seen.add(last)
print(len(seen), backwards)
"""


@pytest.mark.slow
def test_a_reader_never_sees_half_a_state(tmp_path: Path, directory: Path):
    """During thousands of rewrites another process reads old states and new ones, no others."""
    file, stop = state_file(directory), tmp_path / "stop"
    file.write({"number": 0, "text": "0" * 4000})
    command = [sys.executable, "-c", READER, file.path, str(stop)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    reader = subprocess.Popen(command, **pipes, text=True)
    assert reader.stdout.readline() == "ready\n"
    for number in range(REWRITES):
        file.write({"number": number, "text": str(number) * 4000})
    stop.touch()
    output, errors = reader.communicate(timeout=400)
    assert reader.returncode == 0, errors
    seen, backwards = map(int, output.split())
    assert seen > 10  # it did read while there was writing
    assert backwards == 0


HOSTILE = "\ud800\u2028\"'\\" * 500_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "texts",
    [
        {"error": HOSTILE},
        {"event": HOSTILE, "note": HOSTILE, "degraded": [HOSTILE] * 3},
        {"metrics": [{"help": HOSTILE, "labels": ["a"], "samples": [[[HOSTILE], 1.0]]}]},
        {"degraded": ["a warning"] * 500_000},
        {"metrics": [{"labels": ["a"], "samples": [[[str(n)], 1.0] for n in range(200_000)]}]},
    ],
)
def test_no_text_makes_a_warm_replica_unready(directory: Path, texts: dict[str, object]):
    """A state is never larger than readers accept, and keeps what readiness needs."""
    facts = {"stage": "READY", "loop_boot_s": boot_s(), "inputs_done": 3, "inputs_expected": 3}
    state_file(directory).write({**facts, **texts})
    (replica,) = look(directory)
    assert (replica.condition, replica.why) == ("warm", "")
    assert warmth([replica], Policy())[0] == []
    assert replica.state is not None
    assert {name: replica.state[name] for name in facts} == facts


def test_replicas_have_a_file_each(tmp_path: Path, directory: Path):
    """Names that are no file names are quoted, and no two replicas share a file."""
    names = ["Embedder#1", "Embedder/../../etc", "Embedder 1", ".."]
    for name in names:
        state_file(directory, name).write({})
    states = list(read_states(directory))
    assert sorted(state["replica"] for state in states) == sorted(names)
    assert len(list(directory.glob("*.json"))) == len(names)
    assert len(list(directory.iterdir())) == 2 * len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_directories_are_made_private(tmp_path: Path):
    directory = tmp_path / "serve_warm-0" / "state"
    state_file(directory)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)}
    assert modes == {0o700}


def linked(directory: Path, below: str = "") -> None:
    """Make a folder a link to another one, which has what lies `below` it."""
    target = directory.parent.parent / "elsewhere"
    (target / below).mkdir(parents=True)
    link = directory.parent if below else directory
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)


def open_to_all(directory: Path, above: int) -> None:
    directory.mkdir(parents=True)
    [directory, *directory.parents][above].chmod(0o777)


@pytest.mark.parametrize(
    "poison",
    [
        *(functools.partial(open_to_all, above=n) for n in range(3)),
        *(linked, functools.partial(linked, below="state")),
    ],
    ids=["mode", "parent", "above", "link", "parent link"],
)
def test_a_directory_that_others_prepared_is_refused(tmp_path: Path, poison):
    """Nothing is written there, and files of others are not read as the user's own."""
    directory = tmp_path / "above" / "serve_warm-0" / "state"
    directory.parent.parent.mkdir()
    poison(directory)
    with pytest.raises(PermissionError, match="is not a private directory of uid"):
        state_file(directory)
    with pytest.raises(PermissionError, match="is not a private directory of uid") as caught:
        list(read_states(directory))
    assert "to fix it: " in caught.value.strerror


def test_states_of_another_user_are_not_read(directory: Path):
    """Somebody who was first in /tmp can neither hang nor mislead those who look."""
    state_file(directory).write({})
    os.mkfifo(directory / "a.json")
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to user id 65534"):
        list(read_states(directory))
    with pytest.raises(PermissionError, match="is not a private directory"):
        state_file(directory)


def test_a_directory_may_lie_in_tmp(tmp_path: Path):
    """In a sticky directory, other users cannot replace files of this user."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    state_file(shared / "state").write({"stage": "READY"})
    assert [state["stage"] for state in read_states(shared / "state")] == ["READY"]


def test_a_directory_may_lie_on_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The root of a mount may be everybody's, as an emptyDir is: but not if it is ours to be."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    really = os.lstat

    def mounted(path: str) -> os.stat_result:
        status = really(path)
        if path != str(volume):
            return status
        fields = [*status]
        fields[stat.ST_DEV] += 1
        return os.stat_result(fields)

    with pytest.raises(PermissionError, match="can be written by group or others"):
        state_file(volume / "state")
    monkeypatch.setattr(os, "lstat", mounted)
    state_file(volume / "state").write({"stage": "READY"})

    assert [state["stage"] for state in read_states(volume / "state")] == ["READY"]
    with pytest.raises(PermissionError, match="can be written by group or others"):
        state_file(volume)


# --- who is alive --------------------------------------------------------------------------

REPLICA = """
import json, os, sys
from serve_warm._state_file import StateFile
directory, deployment, replica = sys.argv[1:]
file = StateFile(directory, application="app", deployment=deployment, replica=replica)
for line in sys.stdin:
    facts = json.loads(line)
    if "fork" in facts:
        if os.fork() == 0:
            print("forked", flush=True)
            while True:
                __import__("time").sleep(60)
        continue
    file.write(facts)
    print("written", flush=True)
"""


class Process:
    """A replica in a separate process, which writes the given states."""

    def __init__(self, directory: Path, replica: str, deployment: str = "Embedder") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", REPLICA, str(directory), deployment, replica],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def write(self, **facts: object) -> Process:
        self.process.stdin.write(json.dumps(facts) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() in {"written\n", "forked\n"}
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(name="process")
def process_fixture() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: object) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def conditions(directory: Path, **options: Any) -> dict[str, str]:
    return {replica.names[2]: replica.condition for replica in look(directory, **options)}


def test_a_killed_replica_is_dead_at_once(directory: Path, process):
    """The kernel frees its lock: nobody reads it as a start that hangs, or as warm."""
    process(directory, "alive").write(stage="READY")
    killed = process(directory, "killed").write(stage="READY")
    before = conditions(directory)
    killed.kill()
    assert before == {"alive": "warm", "killed": "warm"}
    assert conditions(directory) == {"alive": "warm", "killed": "dead"}
    assert [state["replica"] for state in read_states(directory)] == ["alive"]


@pytest.mark.slow
def test_children_do_not_keep_a_dead_replica_alive(directory: Path, process):
    """A forked worker has the replica's descriptors, and not its lock."""
    parent = process(directory, "parent").write(stage="READY").write(fork=True)
    before = conditions(directory)
    parent.kill()
    assert before == {"parent": "warm"}
    assert conditions(directory) == {"parent": "dead"}


def test_process_ids_do_not_matter(directory: Path):
    """A sidecar has others: a living pid makes nobody alive, and an unknown one nobody dead."""
    for replica, pid in (("dead", os.getpid()), ("alive", 1 << 30)):
        file = state_file(directory, replica)
        file.write({"stage": "READY"})
        path = Path(file.path)
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid}))
        if replica == "dead":
            file.close()
    assert conditions(directory) == {"alive": "warm", "dead": "dead"}


@pytest.mark.parametrize("readers", [1, 4])
def test_readers_do_not_keep_a_replica_from_its_lock(directory: Path, readers: int):
    """A start among many probes is seen by all, because readers ignore each other."""
    stop = threading.Event()
    state_file(directory, "first").write({"stage": "READY"})
    seen: set[str] = set()

    def read() -> None:
        while not stop.is_set():
            seen.update(condition for condition in conditions(directory).values())

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for number in range(50):
        state_file(directory, f"replica {number}").write({"stage": "READY"})
    stop.set()
    for thread in threads:
        thread.join()

    assert set(conditions(directory).values()) == {"warm"}
    assert seen <= {"warm", "warming", "dead"}


def test_a_replica_that_has_only_begun_is_seen(directory: Path):
    """Between its lock and its first state it is there, by name, and not warm."""
    state_file(directory)
    (replica,) = look(directory)
    assert replica.names == ("app", "Embedder", "Embedder#1")
    assert (replica.condition, replica.state) == ("warming", None)
    assert 0.0 <= boot_s() - replica.began_s < 60.0


@pytest.mark.parametrize(
    ("silent_s", "blocked_s", "why"),
    [
        *((20.0, 0.0, ""), (31.0, 0.0, "no heartbeat for 3")),
        *((0.0, 29.0, ""), (0.0, 31.0, "event loop has not run for 31 s")),
    ],
)
def test_a_replica_without_heartbeat_or_with_a_blocked_loop_is_stale(
    directory: Path, clock: Clock, silent_s: float, blocked_s: float, why: str
):
    """After half a minute, though its process is there, or its heartbeat continues."""
    loop = {"loop_boot_s": node.boot_s() - blocked_s} if blocked_s else {}
    state_file(directory).write({"stage": "READY", **loop})
    clock.move_on(silent_s)
    (replica,) = look(directory)
    assert replica.condition == ("stale" if why else "warm")
    assert why in replica.why
    assert bool(replica.why) == bool(why)


def test_a_loop_that_compiles_before_ready_is_no_trouble(directory: Path):
    """Until then nobody is to be served: it is warming, and says how far."""
    state_file(directory).write({"stage": "REPLAYING", "loop_boot_s": 1.0})
    assert conditions(directory) == {"Embedder#1": "warming"}


def test_a_state_that_cannot_be_written_says_nothing_of_the_loop(directory: Path, clock: Clock):
    """On a full disk, only the heartbeat in the lock continues."""
    file = state_file(directory)
    file.write({"stage": "READY", "loop_boot_s": node.boot_s()})
    clock.move_on(3600.0)
    os.pwrite(file._lock, node.heartbeat_text(boot_s()), 0)
    assert conditions(directory) == {"Embedder#1": "warm"}


# --- what is none of ours ------------------------------------------------------------------
@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock as a replica does that has written nothing sensible."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


NAMES = b'"application": "a", "deployment": "d", "replica": "odd"'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"schema": 2, "pid": 1}', b"{}"),
        *(b"[" * 100_000, b'{"schema": 1, %s, "pid": 1' % NAMES),
        b'{"schema": 2, "pid": 1, %s}' % NAMES,
        b'{"schema": "1", "pid": 1, %s}' % NAMES,
        b'{"schema": 1, "pid": 1}',
        b'{"schema": 1, "pid": 1, %s}' % NAMES + b" " * (1 << 20) + b"x",
    ],
    ids=lambda content: repr(content[:99]),
)
def test_a_file_that_is_no_state_is_not_warm(directory: Path, content: bytes):
    """Half a file or an odd one does not hide the others, and does not make a node ready."""
    state_file(directory).write({"stage": "READY"})
    (directory / "a#d#odd.json").write_bytes(content)
    with held(directory / "a#d#odd.lock"):
        found = look(directory)
        states = list(read_states(directory))
    assert sorted(replica.condition for replica in found) == ["unreadable", "warm"]
    assert [state["replica"] for state in states] == ["Embedder#1"]
    assert "a#d#odd.json " in warmth(found, Policy())[0][0]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -2.5e3, true, false, null, "x\\n\\ud83d\\ude00"]}',
        *(" [ ] \n", '"é"', "7", "NaN", "1e999", '{"a": 1, "a": 2}', "123456789012345678901"),
        *("", "{", "[1,]", "01", "tru", "1 2", "{} x", '"\n"', "\ufeff{}", "\x0b1"),
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_json_is_read_as_json_reads_it(text: str):
    """Though without it: its import takes longer than a probe's look at a node."""

    def outcome(read: Callable[..., object]) -> str:
        try:
            return repr(read(text.encode()))
        except (ValueError, RecursionError) as error:
            return "too deep" if isinstance(error, RecursionError) else "no JSON"

    expected = "no JSON" if text.startswith("\ufeff") else outcome(json.loads)
    assert outcome(node._decoded) == expected


def test_bytes_that_are_no_text_are_no_json():
    """UTF-8 is all that is written."""
    with pytest.raises(ValueError, match="utf-8"):
        node._decoded('"é"'.encode("latin-1"))


def test_a_record_is_made_of_its_fields():
    """Only the fields count. A replaced record is another record."""
    made = Policy("min", 2, latch="off")
    assert made == Policy(expect="min", at_least=2, deployments=(), latch="off")
    assert made._replace(at_least=3) == Policy("min", 3, (), "off")
    assert made.at_least == 2
    with pytest.raises(KeyError):
        Replica()
    with pytest.raises(AttributeError):
        made.latch = "on"


@pytest.mark.parametrize(
    "stage", [None, 7, "", "ready", "READYISH", ["READY"], {"READY": 1}], ids=repr
)
def test_only_ready_is_warm(directory: Path, stage: object):
    """No other word for a stage is taken for it, and none breaks the reader."""
    state_file(directory).write({"stage": stage})
    assert conditions(directory) == {"Embedder#1": "warming"}


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "another user's"])
@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_what_is_no_file_of_ours_is_refused(directory: Path, kind: str, suffix: str):
    """A pipe is not waited for, a link not followed, and a stranger's file not trusted."""
    file = state_file(directory)
    file.write({"stage": "READY"})
    odd = directory / f"z#d#odd{suffix}"
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        odd.write_text(Path(file.path).read_text())
        os.chown(odd, 65534, 65534)
    else:
        {
            "pipe": os.mkfifo,
            "link": lambda path: path.symlink_to(file.path),
            "directory": Path.mkdir,
        }[kind](odd)

    with held(directory / "z#d#odd.lock") if suffix == ".json" else contextlib.nullcontext():
        warm, refused = look(directory)

    assert (warm.condition, refused.condition) == ("warm", "unreadable")
    assert refused.state is None
    assert str(refused).startswith(f"z#d#odd: z#d#odd{suffix}")


# --- what cannot be written ----------------------------------------------------------------
def test_a_replica_goes_on_when_its_files_are_removed(directory: Path):
    """The next write makes the files again, with the directory and a held lock."""
    file = state_file(directory)
    for remove, but in (("*.lock", "none"), ("*.lock", "others"), ("*.json", ""), ("*", "")):
        file.write({"stage": "READY"})
        for path in directory.glob(remove):
            path.unlink()
            if but == "others":
                path.touch()
        if remove == "*":
            directory.rmdir()
        with contextlib.suppress(FileNotFoundError):
            file.write({"stage": "READY"})
        file.write({"stage": "READY"})
        assert conditions(directory) == {"Embedder#1": "warm"}


@pytest.fixture(name="small")
def small_fixture(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_directory_keeps_the_heartbeat(small: Path):
    """A warm replica stays warm on a full disk, and no partial file is left."""
    file = state_file(small)
    file.write({"stage": "READY"})
    (first,) = look(small)
    with contextlib.suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(OSError, match="No space left") as caught:
        file.write({"stage": "READY"})
    (second,) = look(small)
    assert caught.value.errno == errno.ENOSPC
    assert second.condition == "warm"
    assert second.heartbeat_s > first.heartbeat_s
    assert list(small.glob("*.tmp")) == []


def test_a_replica_on_a_disk_that_became_read_only_is_not_dead(directory: Path, monkeypatch):
    """It cannot report that it lives, so it becomes stale. Later it continues."""
    file = state_file(directory)
    file.write({"stage": "READY"})

    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="Read-only file system"):
            file.write({"stage": "READY"})
    seen = [conditions(directory, stale_s=stale_s) for stale_s in (30.0, 0.0)]
    file.write({"stage": "READY"})

    assert seen == [{"Embedder#1": "warm"}, {"Embedder#1": "stale"}]
    assert conditions(directory) == {"Embedder#1": "warm"}


def test_a_read_only_directory_is_said_once(small: Path, caplog: pytest.LogCaptureFixture):
    """The replica continues without a state, and writes the state when it can."""
    caplog.set_level(logging.INFO, logger="serve_warm.node")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    turns: list[int] = []
    beat = heartbeat(small, lambda: turns.append(1) or {"stage": "READY"})
    for count in (2, 3, 4):
        wait_until("it tries", lambda count=count: len(turns) >= count - 1)
        beat.changed()
    said, meanwhile = caplog.text.count("cannot write this replica's state"), conditions(small)
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    beat.changed()
    wait_until("it says so", lambda: "can write its state again" in caplog.text)
    after = conditions(small)
    beat.stop()
    assert said == 1
    assert (meanwhile, after) == ({}, {"Embedder#1": "warm"})


@pytest.fixture
def _writes_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state_file, "HEARTBEAT_S", 0.01)


def heartbeat(
    directory: Path, facts: Callable[[], dict[str, object]], **options: float
) -> Heartbeat:
    who = {"application": "app", "deployment": "Embedder", "replica": "Embedder#1"}
    return Heartbeat(directory, **who, facts=facts, **options)


@pytest.mark.usefixtures("_writes_often")
def test_a_heartbeat_goes_on_without_changes(directory: Path):
    """By itself, from the first moment on, until it is stopped; then the replica is dead."""
    turns: list[int] = []
    beat = heartbeat(directory, lambda: turns.append(1) or {"stage": "READY"})
    wait_until("it goes on", lambda: len(turns) > 5)
    alive = conditions(directory)
    beat.stop()
    assert alive == {"Embedder#1": "warm"}
    assert conditions(directory) == {"Embedder#1": "dead"}


@pytest.mark.usefixtures("_writes_often")
def test_a_heartbeat_survives_whatever_a_report_raises(directory: Path, caplog):
    """A report that changes while it is read fails once, not permanently."""
    errors = (RuntimeError("changed size"), TypeError("x"), ValueError("y"), KeyError("z"))
    raising = iter([*errors, MemoryError(), OSError("x"), SystemError("w")])

    def facts() -> dict[str, object]:
        for error in raising:
            raise error
        return {"stage": "READY"}

    beat = heartbeat(directory, facts)
    wait_until("it writes", lambda: conditions(directory) == {"Embedder#1": "warm"})
    beat.stop()

    said = "could not describe this replica's state, and will try again: RuntimeError: changed size"
    assert caplog.text.count(said) == 1


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path, caplog):
    """The message has the folder, the system's error, the effect, and the setting to change."""
    (tmp_path / "file").touch()
    beat = heartbeat(tmp_path / "file" / "state", lambda: {"stage": "READY"})
    wait_until("it is said", lambda: "cannot write" in caplog.text)
    beat.stop()
    (record,) = caplog.records
    assert record.message == (
        f"cannot write this replica's state to {tmp_path / 'file' / 'state'}: Not a directory. "
        "Probes, status and metrics of this node do not include the replica, but it serves "
        "requests as usual. Set state_dir or SERVE_WARM_STATE_DIR to a writable folder with free "
        "space"
    )


def test_a_refused_directory_keeps_no_replica_from_starting(directory: Path, caplog):
    """It is said, with what to do, by the thread: nobody waits for it and nothing raises."""
    directory.mkdir()
    directory.chmod(0o777)
    beat = heartbeat(directory, lambda: {"stage": "READY"})
    wait_until("it is said", lambda: "is not a private directory" in caplog.text)
    beat.stop()
    assert "chmod go-w" in caplog.text
    assert "cannot write this replica's state: " in caplog.text
    assert caplog.text.count("SERVE_WARM_STATE_DIR") == 1


def test_what_dead_replicas_left_is_swept_by_a_later_start(directory: Path):
    """Only old files are removed, because the last figures of a dead replica are still exported."""
    for replica, age_s in (("old", 3600.0), ("new", 1.0)):
        state_file(directory, replica).write({"stage": "READY"})
        OPEN.pop().close()
        for path in directory.glob(f"*{replica}*"):
            os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    left = directory / "app#Embedder#half.4711.tmp"
    left.touch()
    os.utime(left, (0, 0))
    state_file(directory, "later").write({"stage": "READY"})
    assert conditions(directory) == {"later": "warm", "new": "dead"}
    assert len(list(directory.iterdir())) == 4


def test_files_from_a_clock_that_was_set_back_are_swept(directory: Path):
    """Before, the files stayed until the clock had reached their time again."""
    state_file(directory, "old").write({"stage": "READY"})
    OPEN.pop().close()
    state_file(directory, "alive").write({"stage": "READY"})
    for path in directory.iterdir():
        os.utime(path, (time.time() + 1e8,) * 2)
    state_file(directory, "later").write({"stage": "READY"})
    assert conditions(directory) == {"alive": "warm", "later": "warm"}


LONG = "r" * 300
"""A name that is too long for a file, so that a digest stands for it."""


@pytest.mark.parametrize("replica", ["old", "Ä b/c%", LONG], ids=["plain", "quoted", "long"])
@pytest.mark.parametrize("left", [b"", bytes(300), None], ids=["empty", "zeros", "half"])
def test_what_a_power_failure_left_is_swept(directory: Path, replica: str, left: bytes | None):
    """State files are not synced, so a file system may show them empty, zeroed or cut off."""
    state_file(directory, replica).write({"stage": "READY"})
    OPEN.pop().close()
    for path in directory.iterdir():
        path.write_bytes(path.read_bytes()[:60] if left is None else left)
        os.utime(path, (0, 0))
    state_file(directory, "later").write({"stage": "READY"})
    assert conditions(directory) == {"later": "warm"}
    assert len(list(directory.iterdir())) == 2


def test_a_damaged_state_is_swept_with_its_lock(directory: Path):
    """The lock shows that serve_warm wrote both."""
    state_file(directory, "old").write({"stage": "READY"})
    OPEN.pop().close()
    for path in directory.iterdir():
        if path.suffix == ".json":
            path.write_bytes(b"damaged")
        os.utime(path, (0, 0))
    state_file(directory, "later").write({"stage": "READY"})
    assert len(list(directory.iterdir())) == 2


OF_OTHERS = {
    "package.json": b'{"name": "site"}',
    "package-lock.json": b"{}",
    "weights.index.json": b'{"weight_map": {}}',
    "empty.json": b"",
    "uv.lock": b"version = 1\n",
    "yarn.lock": b"",
    "notes.tmp": b"to do",
    "half.4711.tmp": b"",
    "#notes#.json": b"{}",
    "a#b#c.json": b'{"a": 1}',
    "a#b#c.4711.tmp": b"text",
    "a#b#d.lock": b"locked by 4711\n",
    "a#b#e.json": b'{"schema": "https://json-schema.org/draft/2020-12/schema"}',
    "model.safetensors": b"weights",
}


def test_files_of_others_are_never_swept(directory: Path, caplog: pytest.LogCaptureFixture):
    """A user may set a folder of his own. Nothing in it is lost, and he is told once."""
    directory.mkdir(mode=0o700)
    for name, content in OF_OTHERS.items():
        (directory / name).write_bytes(content)
        os.utime(directory / name, (0, 0))
    (directory / "src").mkdir()

    for replica in ("first", "second"):
        state_file(directory, replica).write({"stage": "READY"})

    assert {name: (directory / name).read_bytes() for name in OF_OTHERS} == OF_OTHERS
    assert conditions(directory) == {"first": "warm", "second": "warm"}
    [record] = caplog.records
    assert record.message == (
        f"the state directory {directory} has files that serve_warm did not write (#notes#.json, "
        "a#b#c.4711.tmp, a#b#c.json and 11 more). They stay as they are. Set state_dir or "
        "SERVE_WARM_STATE_DIR to a folder that is only for state files"
    )


def test_files_of_others_are_no_replicas(directory: Path):
    """A folder that an application shares with its replicas lists the replicas alone."""
    directory.mkdir(mode=0o700)
    for name, content in OF_OTHERS.items():
        (directory / name).write_bytes(content)
    with held(directory / "uv.lock"):
        found = look(directory)
        status = observed.of_directory(str(directory))
    state_file(directory, "ended").write({"stage": "READY"})
    OPEN.pop().close()

    assert found == []
    assert status.replicas == ()
    assert conditions(directory) == {"ended": "dead"}


def test_a_folder_of_its_own_is_no_trouble(directory: Path, caplog: pytest.LogCaptureFixture):
    """Neither files of others' replicas nor unfinished ones cause a warning."""
    for replica in ("first", LONG, "Ä b/c%"):
        state_file(directory, replica).write({"stage": "READY"})
    (directory / "app#Embedder#half.4711.tmp").touch()
    state_file(directory, "later").write({"stage": "READY"})
    assert caplog.text == ""


def test_a_living_replica_is_never_swept(directory: Path):
    """However old its files look: a clock may have been set."""
    alive = state_file(directory, "alive")
    alive.write({"stage": "READY"})
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    state_file(directory, "later").write({"stage": "READY"})
    assert conditions(directory) == {"alive": "warm", "later": "warm"}


# --- where it is ---------------------------------------------------------------------------
def test_a_node_without_states_has_none(tmp_path: Path):
    assert list(read_states(tmp_path / "nowhere")) == []


def test_the_default_directory_is_where_replicas_write(monkeypatch: pytest.MonkeyPatch):
    """`node.py` finds replicas too, even if /tmp is not safe and they use another place."""
    temporary = Path(tempfile.gettempdir())
    monkeypatch.delenv("SERVE_WARM_STATE_DIR", raising=False)
    found = []
    for mode in (0o1777, 0o777):
        temporary.chmod(mode)
        found.append((default_directory(), str(_private_folders.state_folder())))
    assert [mine for mine, _ in found] == [theirs for _, theirs in found]
    assert found[0] != found[1]


# --- the policy ----------------------------------------------------------------------------
def replica(
    name: str,
    condition: str,
    *,
    began: float = 0.0,
    ready: float | None = None,
    of: str = "D",
    uncompiled: bool = False,
) -> Replica:
    state = {"ready_boot_s": ready and 1.0 + ready, "uncompiled": uncompiled}
    what = {"condition": condition, "why": "" if condition == "warm" else "why", "state": state}
    return Replica(stem=name, names=("app", of, name), **what, began_s=1.0 + began)


WARM = replica("w", "warm", began=0, ready=10)
ADDED = replica("a", "warming", began=20)
WITH_IT = replica("b", "warming", began=5)
DEAD = replica("d", "dead", ready=3)
EAGER = replica("e", "warm", began=0, ready=9, uncompiled=True)
OTHER = replica("o", "warm", began=0, ready=11, of="Other")


@pytest.mark.parametrize(
    ("policy", "replicas", "ready", "excused"),
    [
        # all: there is one, and each is warm
        (Policy(), [], False, ""),
        (Policy(), [DEAD], False, ""),
        (Policy(), [WARM], True, ""),
        (Policy(), [WARM, DEAD], True, ""),
        (Policy(), [WITH_IT], False, ""),
        (Policy(), [WARM, WITH_IT], False, ""),
        (Policy(), [WARM, ADDED], True, "a"),
        (Policy(), [ADDED], False, ""),
        (Policy(), [ADDED, DEAD], False, ""),
        (Policy(latch="off"), [WARM, ADDED], False, ""),
        (Policy(), [WARM, WITH_IT, ADDED], False, ""),
        # a moment at which all were ready is not when the first of them was
        (Policy(), [replica("x", "warm", began=8, ready=30), WARM, ADDED], False, ""),
        (Policy(), [replica("x", "warm", began=8, ready=15), WARM, ADDED], True, "a"),
        # what has not been ready yet is excused, whatever becomes of it; what has been is not
        (Policy(), [WARM, replica("f", "failed", began=20)], True, "f"),
        (Policy(), [WARM, replica("f", "stale", began=20)], True, "f"),
        (Policy(), [WARM, replica("f", "unreadable", began=20)], False, ""),
        (Policy(), [WARM, replica("f", "stale", began=20, ready=25)], False, ""),
        (Policy(), [WARM, replica("f", "warming", began=0, ready=9)], False, ""),
        # allow-idle: nothing is fine, and what is here is warm or came later
        (Policy("allow-idle"), [], True, ""),
        (Policy("allow-idle"), [DEAD], True, ""),
        (Policy("allow-idle"), [WARM], True, ""),
        (Policy("allow-idle"), [WITH_IT], False, ""),
        (Policy("allow-idle"), [WITH_IT, DEAD], False, ""),
        (Policy("allow-idle"), [replica("f", "failed", began=5)], False, ""),
        (Policy("allow-idle"), [WARM, ADDED], True, "a"),
        (Policy("allow-idle", latch="off"), [WARM, ADDED], False, ""),
        (Policy("allow-idle"), [replica("s", "stale", ready=3)], False, ""),
        # min=N counts
        (Policy("min", 1), [], False, ""),
        (Policy("min", 1), [WARM, WITH_IT, ADDED], True, ""),
        (Policy("min", 2), [WARM, ADDED], False, ""),
        (Policy("min", 2), [WARM, OTHER], True, ""),
        # compiled code is required
        (Policy(require="compiled"), [WARM], True, ""),
        (Policy(require="compiled"), [EAGER], False, ""),
        (Policy(), [EAGER], True, ""),
        (Policy("min", 1, require="compiled"), [WARM, EAGER], True, ""),
        # named ones: each of them, and no other counts
        (Policy(deployments=("D",)), [WARM], True, ""),
        (Policy(deployments=("app#D",)), [WARM], True, ""),
        (Policy(deployments=("other#D",)), [WARM], False, ""),
        (Policy(deployments=("D",)), [WARM, replica("o", "warming", of="Other")], True, ""),
        (Policy(deployments=("D", "Other")), [WARM], False, ""),
        (Policy(deployments=("D", "Other")), [WARM, OTHER], True, ""),
        (Policy(deployments=("D", "Other")), [WARM, OTHER, ADDED], True, "a"),
        (Policy(deployments=("D", "Other")), [OTHER, ADDED], False, ""),
        (Policy("min", 2, ("D", "Other")), [WARM, OTHER], False, ""),
        (Policy("allow-idle", deployments=("D", "Other")), [WARM], True, ""),
        (Policy("allow-idle", deployments=("D", "Other")), [WARM, ADDED], True, "a"),
    ],
)
def test_policies(policy: Policy, replicas: list[Replica], ready: bool, excused: str):
    reasons, without = warmth(replicas, policy)
    assert (not reasons) == ready
    assert "".join(r.stem for r in without) == excused


def test_only_compiled_code_can_be_required():
    with pytest.raises(ValueError, match="'warm' cannot be required: use 'compiled'"):
        Policy.of("all", require="warm")


@pytest.mark.parametrize(
    "text", ["", "any", "min", "min=", "min=0", "min=-1", "min=x", "min=1.5", "all=2", "min=²"]
)
def test_other_policies_are_refused(text: str):
    """A typing error is not a policy, and the message lists the policies."""
    with pytest.raises(ValueError, match="is not valid: use 'all', 'allow-idle' or 'min=N'"):
        Policy.of(text)


# --- a last word -------------------------------------------------------------------------------
def test_a_flush_writes_what_is_so_now(directory: Path) -> None:
    """Code that ends the process writes the reason first, without waiting for the next beat."""
    said = {"stage": "REPLAYING"}
    beat = heartbeat(directory, lambda: said)
    beat.flush(60.0)
    said = {"stage": "FAILED"}
    in_time = beat.flush(60.0)
    (state,) = node.read_states(directory)
    beat.stop()
    assert in_time
    assert state["stage"] == "FAILED"


def test_a_late_replica_says_so_before_it_is_ready(directory: Path) -> None:
    """While a handler blocks the loop, the probe names the deadline as well as the stage."""
    late = {"stage": "REPLAYING", "verdict": "late", "inputs_done": 0, "inputs_expected": 1}
    state_file(directory).write(late)
    (replica,) = node.look(directory)
    assert replica.condition == "warming"
    assert replica.why.endswith("0/1 inputs, late: its deadline has passed")
