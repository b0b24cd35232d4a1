# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Files of recorded calls: for this user alone, bounded, removed in time, and safe to damage."""

from __future__ import annotations

import json
import os
import random
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from serve_warm._private_folders import CALL_FOLDER as FOLDER
from serve_warm.learn import call_files as module
from serve_warm.learn.call_files import MOST_BYTES, MOST_FILES, CallFiles, CallWriter
from serve_warm.learn.recorded_requests import OF_REQUESTS

CALL = {
    "callable": "app.Model",
    "structure": "t0",
    "tensors": ["Tensor int64[3] strides [1] on cpu"],
    "modes": {"inference_mode": True},
    "calls": 4,
}
REQUEST = {"target": "embed", "arguments": {"args": [1], "kwargs": {}}, "calls": 2}
RECORDED: dict[str, Any] = {
    "calls": [CALL],
    "requests": [REQUEST],
    "not_recorded": {"a reason": 2},
    "models": ["de"],
}


def of(
    folder: Path,
    *,
    application: str = "app",
    deployment: str = "Model",
    code: str = "one",
    days: float = 7,
) -> CallFiles:
    return CallFiles(folder, application=application, deployment=deployment, code=code, days=days)


def make_older(path: Path, *, days: float) -> None:
    os.utime(path, (time.time() - days * 86400,) * 2)


def test_another_replica_of_the_deployment_reads_what_one_wrote(tmp_path: Path):
    of(tmp_path).write("r1", RECORDED)
    assert of(tmp_path).read(but="r2") == [{"replica": "r1", **RECORDED}]
    assert of(tmp_path).read(but="r1") == []
    assert of(tmp_path, deployment="Other").read() == []
    assert of(tmp_path, application="other").read() == []
    assert of(tmp_path, code="two").read() == [], "its callables may be gone"


def test_nobody_else_can_read_it(tmp_path: Path):
    of(tmp_path / "state").write("r1", RECORDED)
    folder = tmp_path / "state" / FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()] == [0o600]


@pytest.mark.parametrize("name", ["shared", "linked"])
def test_nothing_is_written_to_a_folder_that_others_can_write_to(tmp_path: Path, name: str):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if name == "shared":
        (tmp_path / FOLDER).mkdir()
        (tmp_path / FOLDER).chmod(0o777)
    else:
        (tmp_path / "elsewhere").chmod(0o777)
        (tmp_path / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        of(tmp_path).write("r1", RECORDED)


def test_old_files_are_removed_and_others_stay(tmp_path: Path):
    files = of(tmp_path)
    files.write("old", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    mine = tmp_path / FOLDER / "notes.json"
    mine.write_text("{}")
    for each in (path, mine):
        os.utime(each, (time.time() - 8 * 86400,) * 2)
    files.write("new", RECORDED)
    assert [each["replica"] for each in files.read()] == ["new"]
    assert mine.exists()


def test_each_deployment_keeps_its_files_for_its_own_days(tmp_path: Path):
    """Any replica of the node removes them, also of deployments that record no more."""
    of(tmp_path, deployment="Long", days=30).write("r1", RECORDED)
    of(tmp_path, deployment="Short", days=0.5).write("r1", RECORDED)
    for path in (tmp_path / FOLDER).iterdir():
        make_older(path, days=10)
    short = of(tmp_path, deployment="Short", days=0.5)
    assert short.read() == [], "too old, although nobody has removed it yet"
    of(tmp_path, days=1).remove_old()
    assert len(of(tmp_path, deployment="Long", days=30).read()) == 1
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "calls"', None])
def test_what_a_killed_write_has_left_is_removed(tmp_path: Path, content: bytes | None):
    """It may have the values of requests."""
    files = of(tmp_path)
    files.write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    left = path.with_name(f".{path.name}.{'a' * 16}")
    left.write_bytes(path.read_bytes() if content is None else content)
    assert [each["replica"] for each in files.read()] == ["r1"]
    other = of(tmp_path, deployment="Other")
    other.remove_old()
    assert left.exists(), "it may be written just now"
    make_older(left, days=0.01)
    files.forget()
    assert not left.exists()
    left.write_bytes(b"")
    make_older(left, days=0.01)
    other.remove_old()
    assert not left.exists()


def test_a_write_does_not_bring_back_what_is_forgotten(tmp_path: Path):
    """The writer's thread may have looked at the record just before."""
    looked, forgotten = threading.Event(), threading.Event()
    kept = {"recorded": RECORDED}

    def recorded() -> Any:
        found = kept["recorded"]
        looked.set()
        forgotten.wait(0.5)
        return found

    writer = CallWriter(of(tmp_path), "r1", recorded, new=threading.Event())
    thread = threading.Thread(target=writer.write)
    thread.start()
    looked.wait()
    writer.forget(lambda: kept.update(recorded={"calls": [], "requests": []}))
    forgotten.set()
    thread.join()
    writer.write()
    assert of(tmp_path).read() == []
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_forgetting_removes_the_files_of_one_deployment(tmp_path: Path):
    other = of(tmp_path, deployment="Other")
    for each in (of(tmp_path), other):
        each.write("r1", RECORDED)
    of(tmp_path, code="two").forget()
    assert of(tmp_path).read() == []
    assert len(other.read()) == 1


def as_of_today(path: Path) -> Path:
    """Rename a file as releases before named it, without its deployment."""
    old = path.with_name(path.name.split("-", 1)[1])
    return path.rename(old)


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "calls"', b"x" * (MOST_BYTES + 1)])
@pytest.mark.parametrize("named", ["now", "before"])
def test_forgetting_removes_files_that_cannot_be_read(tmp_path: Path, content: bytes, named: str):
    """They may have the values of requests."""
    of(tmp_path).write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(content)
    if named == "before":
        path = as_of_today(path)
    of(tmp_path, deployment="Other").write("r1", RECORDED)
    of(tmp_path).forget()
    assert not path.exists()
    assert len(of(tmp_path, deployment="Other").read()) == 1


def test_files_of_releases_before_are_read_and_forgotten(tmp_path: Path):
    of(tmp_path).write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    as_of_today(path)
    assert of(tmp_path).read() == [{"replica": "r1", **RECORDED}]
    assert of(tmp_path, deployment="Other").read() == []
    of(tmp_path, deployment="Other").forget()
    assert len(of(tmp_path).read()) == 1
    of(tmp_path).forget()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_what_is_kept_for_many_days_is_removed_in_time(tmp_path: Path):
    """A file of 10 years, or of a release that allowed more."""
    for days in (3650, 42_000):
        of(tmp_path, days=days).write("r1", RECORDED)
        (path,) = (tmp_path / FOLDER).iterdir()
        make_older(path, days=days + 1)
        of(tmp_path).remove_old()
        assert not path.exists()


def test_a_file_that_was_written_can_be_read(tmp_path: Path):
    """With the most of everything, and texts that JSON makes longer."""
    calls = [{**CALL, "structure": f"t0, {'1, ' * 300}{n}", "calls": 9} for n in range(1024)]
    text = "x" * (63 << 10)
    requests = [
        {"target": "ask", "arguments": {"args": [text, n], "kwargs": {}}, "calls": n + 1}
        for n in range(32)
    ]
    long = "\U0001f600" * 80
    reasons = {f"reason {n} {long}": n + 1 for n in range(500)}
    requests_left = {f"{OF_REQUESTS}{why}": 1 for why in reasons}
    models = [f"{n}{'x' * 1000}" for n in range(500)]
    of(tmp_path).write(
        "r1",
        {
            "calls": calls,
            "requests": requests,
            "not_recorded": {**reasons, **requests_left},
            "models": models,
        },
    )
    (path,) = (tmp_path / FOLDER).iterdir()
    assert path.stat().st_size <= MOST_BYTES
    (found,) = of(tmp_path).read()
    assert found["requests"] == requests[-len(found["requests"]) :], "the most frequent ones"
    lost = 9 * (1024 - len(found["calls"])) + sum(range(1, 33 - len(found["requests"])))
    counted = sum(found["not_recorded"].values())
    assert counted == lost + sum(reasons.values()) + len(requests_left)


def test_forgetting_without_files_is_no_error(tmp_path: Path):
    of(tmp_path / "never made").forget()


def test_only_the_latest_files_are_kept(tmp_path: Path):
    other = of(tmp_path, deployment="Other")
    other.write("r1", RECORDED)
    for number in range(MOST_FILES + 5):
        of(tmp_path).write(f"r{number}", RECORDED)
    assert len(of(tmp_path).read()) == MOST_FILES
    assert len(list((tmp_path / FOLDER).iterdir())) == MOST_FILES + 1
    assert len(other.read()) == 1


def test_files_of_other_deployments_are_not_read(tmp_path: Path, monkeypatch):
    for number in range(3):
        of(tmp_path, deployment=f"Other{number}").write("r1", RECORDED)
    of(tmp_path).write("r1", RECORDED)
    opened: list[Path] = []
    read = module.read_regular
    monkeypatch.setattr(
        module, "read_regular", lambda path, **more: (opened.append(path), read(path, **more))[1]
    )
    assert len(of(tmp_path).read()) == 1
    assert len(opened) == 1


def test_too_much_is_cut_at_the_rarest_calls(tmp_path: Path):
    long = {**CALL, "structure": ", ".join(["t0"] * 4000)}
    calls = [{**long, "calls": 1000 - number} for number in range(200)]
    of(tmp_path).write("r1", {**RECORDED, "calls": calls})
    (found,) = of(tmp_path).read()
    assert [each["calls"] for each in found["calls"]] == [
        each["calls"] for each in calls[: len(found["calls"])]
    ]
    lost = sum(each["calls"] for each in calls[len(found["calls"]) :])
    assert found["not_recorded"] == {"a reason": 2, "too much was recorded": lost}
    (path,) = (tmp_path / FOLDER).iterdir()
    assert path.stat().st_size <= MOST_BYTES


def test_a_damaged_file_is_left_out(tmp_path: Path):
    """Cut at each byte, and with 2,000 random changes: never an error, never a wrong number."""
    files = of(tmp_path)
    files.write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    right = path.read_bytes()
    random_ = random.Random(8)
    damaged = [right[:end] for end in range(len(right))]
    for _ in range(2000):
        changed = bytearray(right)
        changed[random_.randrange(len(right))] = random_.randrange(256)
        damaged.append(bytes(changed))
    for data in damaged:
        path.write_bytes(data)
        for found in files.read():
            json.dumps(found)
            assert all(each["calls"] >= 0 for each in found["calls"])


@pytest.mark.parametrize(
    "wrong", [{"calls": 1}, {"requests": 1}, {"models": [1]}, {"not_recorded": {"a": "b"}}]
)
def test_a_file_of_another_kind_is_left_out(tmp_path: Path, wrong: dict[str, Any]):
    of(tmp_path).write("r1", {"not_recorded": {}, **RECORDED})
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    assert of(tmp_path).read() == []


def test_a_pipe_in_its_place_hangs_nothing(tmp_path: Path):
    of(tmp_path).write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.unlink()
    os.mkfifo(path)
    assert of(tmp_path).read() == []


def test_a_writer_writes_what_is_new(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 3600.0)
    recorded = {**RECORDED, "calls": [], "requests": []}
    writer = CallWriter(of(tmp_path), "r1", lambda: recorded, new=threading.Event())
    writer.write()
    assert not (tmp_path / FOLDER).exists()
    recorded = RECORDED
    writer.write()
    (path,) = (tmp_path / FOLDER).iterdir()
    first = path.stat().st_ino
    writer.write()
    assert path.stat().st_ino == first


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(module, "PERIOD_S", 3600.0)
    (tmp_path / FOLDER).write_text("a file")
    writer = CallWriter(of(tmp_path), "r1", lambda: RECORDED, new=threading.Event())
    for _ in range(3):
        writer.write()
    (warning,) = [each for each in caplog.messages if "cannot write the recorded calls" in each]
    assert "serve-warm plan still asks this replica" in warning


def test_a_call_that_cannot_be_read_spoils_no_other(tmp_path: Path):
    of(tmp_path).write("r1", RECORDED)
    (path,) = (tmp_path / FOLDER).iterdir()
    found = json.loads(path.read_text())
    found["calls"].insert(0, {"callable": 7})
    found["requests"].append({"target": "PROPFIND /"})
    path.write_text(json.dumps(found))
    assert of(tmp_path).read() == [{"replica": "r1", **RECORDED}]


def test_a_recorder_that_fails_ends_no_thread(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 0.01)
    new, asked = threading.Event(), [threading.Event() for _ in range(3)]

    def recorded() -> Any:
        left = [each for each in asked if not each.is_set()]
        if not left:
            threading.Event().wait()  # or the thread would log errors in tests of others
        left[0].set()
        raise RecursionError("deep")

    CallWriter(of(tmp_path), "r1", recorded, new=new)
    for each in asked:
        new.set()
        assert each.wait(10)


def test_files_of_releases_before_stay_until_they_are_old(tmp_path: Path):
    """Whose they are is not in their names, so they are counted for no deployment."""
    for number in range(MOST_FILES + 5):
        of(tmp_path).write(f"r{number}", RECORDED)
        (path,) = (tmp_path / FOLDER).glob("*-*-*h.json")
        as_of_today(path)
    of(tmp_path, deployment="Other").write("r1", RECORDED)
    assert len(list((tmp_path / FOLDER).iterdir())) == MOST_FILES + 6
