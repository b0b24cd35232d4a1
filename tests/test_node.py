# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state files of a node: whole, private, and of replicas that are alive."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from serve_warm.node import STATE_SCHEMA, StateFile, default_directory, read_states

REWRITES = 2_000


def state_file(directory: Path, replica: str = "Embedder#1") -> StateFile:
    return StateFile(directory, application="app", deployment="Embedder", replica=replica)


def test_what_is_written_is_read(tmp_path: Path):
    """Identity, facts and time of a living replica."""
    state_file(tmp_path / "state").write({"stage": "REPLAYING", "inputs_done": 3})

    (state,) = read_states(tmp_path / "state")

    assert state.pop("updated_unix") > 0
    assert state == {
        "schema": STATE_SCHEMA,
        "application": "app",
        "deployment": "Embedder",
        "replica": "Embedder#1",
        "pid": os.getpid(),
        "stage": "REPLAYING",
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


def test_a_reader_never_sees_half_a_state(tmp_path: Path):
    """During thousands of rewrites another process reads old states and new ones, no others."""
    file, stop = state_file(tmp_path / "state"), tmp_path / "stop"
    file.write({"number": 0, "text": "0" * 4000})
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(file.path), str(stop)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout.readline() == "ready\n"

    for number in range(REWRITES):
        file.write({"number": number, "text": str(number) * 4000})
    stop.touch()
    output, errors = reader.communicate(timeout=60)

    assert reader.returncode == 0, errors
    seen, backwards = map(int, output.split())
    assert seen > 10  # it did read while there was writing
    assert backwards == 0


def test_replicas_have_a_file_each(tmp_path: Path):
    """Names that are no file names are quoted, and no two replicas share a file."""
    names = ["Embedder#1", "Embedder/../../etc", "Embedder 1", ".."]
    for name in names:
        state_file(tmp_path / "state", name).write({})

    states = list(read_states(tmp_path / "state"))

    assert sorted(state["replica"] for state in states) == sorted(names)
    assert len(list((tmp_path / "state").iterdir())) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_directories_are_made_private(tmp_path: Path):
    """Both the directory and its parent, when they are not there yet."""
    directory = tmp_path / "serve_warm-0" / "state"

    state_file(directory)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)}
    assert modes == {0o700}


def poison_mode(directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o777)


def poison_parent(directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.parent.chmod(0o777)


def poison_link(directory: Path) -> None:
    target = directory.parent.parent / "elsewhere"
    target.mkdir()
    directory.parent.mkdir()
    directory.symlink_to(target)


def poison_parent_link(directory: Path) -> None:
    target = directory.parent.parent / "elsewhere"
    (target / "state").mkdir(parents=True)
    directory.parent.symlink_to(target)


def poison_above(directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.parent.parent.chmod(0o777)


@pytest.mark.parametrize(
    "poison", [poison_mode, poison_parent, poison_link, poison_parent_link, poison_above]
)
def test_a_directory_that_others_prepared_is_refused(tmp_path: Path, poison):
    """What others could put there would be shown as ours."""
    directory = tmp_path / "above" / "serve_warm-0" / "state"
    directory.parent.parent.mkdir()
    poison(directory)

    with pytest.raises(PermissionError, match="is not a private directory of uid"):
        state_file(directory)


def test_a_directory_of_another_user_is_refused(tmp_path: Path):
    """Also where its mode looks private."""
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 65534, 65534)

    with pytest.raises(PermissionError, match="is not a private directory"):
        state_file(directory)


@pytest.mark.parametrize(
    "poison", [poison_mode, poison_parent, poison_link, poison_parent_link, poison_above]
)
def test_states_that_others_may_have_written_are_not_read(tmp_path: Path, poison):
    """Nor taken for none: whoever asks what is in use must not hear "nothing"."""
    directory = tmp_path / "above" / "serve_warm-0" / "state"
    directory.parent.parent.mkdir()
    poison(directory)

    with pytest.raises(PermissionError, match="is not a private directory of uid") as caught:
        list(read_states(directory))

    assert "to mend it: " in caught.value.strerror


def test_states_of_another_user_are_not_read(tmp_path: Path):
    """Somebody who was first in /tmp can neither hang nor mislead those who look."""
    directory = tmp_path / "state"
    state_file(directory).write({})
    os.mkfifo(directory / "a.json")
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 65534, 65534)

    with pytest.raises(PermissionError, match="belongs to user id 65534"):
        list(read_states(directory))


def test_reading_states_leaves_no_file_open(tmp_path: Path):
    """Neither of the states nor of the directory, also when it is refused."""
    state_file(tmp_path / "state").write({})
    before = len(list(Path("/proc/self/fd").iterdir()))

    for mode in (0o700, 0o777):
        (tmp_path / "state").chmod(mode)
        with contextlib.suppress(PermissionError):
            list(read_states(tmp_path / "state"))

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_may_lie_in_tmp(tmp_path: Path):
    """A sticky directory is everybody's, and does not let others replace what is ours."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)

    state_file(shared / "state").write({"stage": "READY"})

    assert [state["stage"] for state in read_states(shared / "state")] == ["READY"]


def test_dead_replicas_are_skipped(tmp_path: Path):
    """A replica that was killed left its file: nobody reads it as a start that hangs."""
    alive = state_file(tmp_path / "state", "alive")
    alive.write({})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = {**json.loads(alive.path.read_text()), "replica": "dead", "pid": ended.pid}
    (tmp_path / "state" / "dead.json").write_text(json.dumps(dead))

    states = list(read_states(tmp_path / "state"))

    assert [state["replica"] for state in states] == ["alive"]


NAMES = b'"application": "a", "deployment": "d", "replica": "odd"'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"schema": 2, "pid": 1}', b"{}"),
        b'{"schema": 1, %s}' % NAMES,
        b'{"schema": 1, "pid": "self", %s}' % NAMES,
        b'{"schema": 1, "pid": true, %s}' % NAMES,
        b'{"schema": 1, "pid": null, %s}' % NAMES,
        b'{"schema": 1, "pid": 1}',
        b'{"schema": 1, "pid": 1, "application": "a", "deployment": 7, "replica": "odd"}',
        b'{"schema": 1, "pid": 1, %s}' % NAMES + b" " * (1 << 20) + b"x",
    ],
    ids=lambda content: repr(content[:60]),
)
def test_files_that_are_none_of_ours_are_skipped(tmp_path: Path, content: bytes):
    """One odd file does not hide the others."""
    state_file(tmp_path / "state").write({})
    (tmp_path / "state" / "a.json").write_bytes(content)

    states = list(read_states(tmp_path / "state"))

    assert [state["replica"] for state in states] == ["Embedder#1"]


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_no_file_is_skipped(tmp_path: Path, kind: str):
    """A pipe is not waited for, and a link not followed, wherever it leads."""
    file = state_file(tmp_path / "state")
    file.write({})
    odd = tmp_path / "state" / "a.json"
    {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(file.path),
        "directory": Path.mkdir,
    }[kind](odd)

    states = list(read_states(tmp_path / "state"))

    assert [state["replica"] for state in states] == ["Embedder#1"]


def test_a_node_without_states_has_none(tmp_path: Path):
    """Looking where nothing was ever written is no error."""
    assert list(read_states(tmp_path / "nowhere")) == []


def test_the_default_directory_is_the_users_own():
    """It has the user's id in its name, so that users do not meet."""
    assert default_directory().parts[-2:] == (f"serve_warm-{os.geteuid()}", "state")
