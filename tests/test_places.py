# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where a user's own folders are when somebody is in the way: one answer of all processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from serve_warm import node
from serve_warm._private_folders import state_folder, user_folder
from serve_warm.cli import serve_warm as group
from serve_warm.node import Place, Settings, StateFile, choose_place, claim_place, get, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

US, STRANGER = 11113, 22222
NO_CHECKS = ("--raylet", "none", "--proxy", "none")
OWN = f"serve_warm-{os.geteuid()}"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(name="among")
def among_fixture(tmp_path: Path) -> tuple[Place, ...]:
    """A machine with three places that are the test's."""
    found = []
    for name in ("tmp", "home", "last"):
        base = tmp_path / name
        base.mkdir(mode=0o700)
        found.append(Place(str(base / OWN), str(base / OWN / "state")))
    return tuple(found)


def base_of(place: Place) -> Path:
    return Path(place.folder).parent


@pytest.fixture(name="lives")
def lives_fixture() -> Iterator[Callable[..., StateFile]]:
    """Make a replica that lives until the test ends."""
    files: list[StateFile] = []

    def make(directory: str | os.PathLike[str], name: str = "r", stage: str = "READY") -> StateFile:
        files.append(StateFile(directory, application="app", deployment="D", replica=name))
        files[-1].write({"stage": stage, "verdict": "full_hit"})
        return files[-1]

    yield make
    for file in files:
        file.close()


def stranger_folder(path: Path) -> None:
    path.mkdir(mode=0o755)
    os.chown(path, STRANGER, STRANGER)


def file_there(path: Path) -> None:
    path.touch()


def link_there(path: Path) -> None:
    path.symlink_to("/nowhere")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def open_base(path: Path) -> None:
    path.parent.chmod(0o777)


IN_THE_WAY = [
    pytest.param(stranger_folder, marks=root_only),
    file_there,
    link_there,
    open_to_all,
    open_base,
]


@pytest.mark.parametrize("spoil", IN_THE_WAY)
def test_what_is_in_the_way_moves_all_to_the_next_place(
    among: tuple[Place, ...], spoil: Callable[[Path], None], lives: Callable[..., StateFile]
):
    """Folders, state and readers alike, before and after the first replica begins."""
    spoil(Path(among[0].folder))

    before = choose_place(among).place
    blobs, state = user_folder("blobs", among=among), state_folder(among=among)
    lives(state)

    assert (before, choose_place(among).place) == (among[1], among[1])
    assert (str(blobs), str(state)) == (f"{among[1].folder}/blobs", among[1].state)
    assert judge(Settings("", urls=(), places=among)).ready


def test_a_folder_that_was_made_is_nobody_elses_to_take(among: tuple[Place, ...]):
    """The folder exists and is private before its name is returned."""
    folder = user_folder("blobs", among=among).parent

    assert str(folder) == among[0].folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not (folder / "blobs").exists()


def test_looking_makes_nothing(among: tuple[Place, ...]):
    """A probe on a fresh node leaves it so."""
    readiness = judge(Settings("", urls=(), places=among))

    assert not readiness.ready
    assert [list(base_of(place).iterdir()) for place in among] == [[], [], []]


@root_only
def test_replicas_stay_together_when_the_stranger_leaves(
    among: tuple[Place, ...], lives: Callable[..., StateFile]
):
    """Another user in /tmp can neither hide a live replica nor split a group of replicas."""
    stranger_folder(Path(among[0].folder))
    first = lives(state_folder(among=among), "first")
    Path(among[0].folder).rmdir()

    second = lives(state_folder(among=among), "second", "PROVING")

    found = judge(Settings("", node.Policy(latch="off"), urls=(), places=among))
    assert [replica.names[2] for replica in found.replicas] == ["first", "second"]
    assert "second: PROVING" in found.reasons[0][1]
    first.close()
    second.close()
    assert state_folder(among=among) == Path(among[0].state)


def test_the_first_place_comes_before_what_was_left_in_a_later_one(
    among: tuple[Place, ...], lives: Callable[..., StateFile]
):
    """The state of the dead moves nobody: TMPDIR is where one says it is."""
    lives(among[1].state).close()

    assert choose_place(among).place == among[0]


def test_a_place_without_room_is_none(among: tuple[Place, ...]):
    """If a folder cannot be made there, the next place is used, and readers find its replica."""
    full = Place("/proc/serve_warm", "/proc/serve_warm/state")
    machine = (full, *among)

    choice = claim_place(machine)

    assert choice.place == among[0]
    assert choice.passed


@root_only
def test_where_every_place_is_taken_the_owner_and_the_settings_are_named(
    among: tuple[Place, ...], caplog: pytest.LogCaptureFixture
):
    """Once, however often it is asked; a probe says it too."""
    for place in among:
        stranger_folder(Path(place.folder))

    found = {user_folder("blobs", among=among) for _ in range(3)}

    (record,) = caplog.records
    (_, why), *_ = judge(Settings("", urls=(), places=among)).reasons
    assert found == {Path(among[0].folder) / "blobs"}
    for text in (record.message, why):
        assert f"{among[0].folder} belongs to user id {STRANGER}" in text
        assert f"ask its owner or root to remove {among[0].folder}" in text
        assert "SERVE_WARM_STATE_DIR" in text
    for setting in ("TMPDIR", "SERVE_WARM_NODE_CACHE_DIR", among[2].folder):
        assert setting in record.message


@root_only
def test_the_name_of_an_owner_is_said(among: tuple[Place, ...]):
    """A number does not tell a reader whom to ask."""
    Path(among[0].folder).mkdir()
    os.chown(among[0].folder, 65534, 65534)

    assert "belongs to user id 65534 (nobody)" in choose_place(among[:1]).passed[0]


@root_only
@pytest.mark.parametrize("command", [["status"], ["report"], ["probe", *NO_CHECKS]])
def test_each_command_finds_a_replica_that_had_to_go_elsewhere(
    lives: Callable[..., StateFile],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
):
    """This holds even while another user's folder appears and disappears at the usual place."""
    monkeypatch.delenv("SERVE_WARM_STATE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stranger_folder(tmp_path / OWN)
    file = lives(state_folder())
    found = []
    for _ in ("beside it", "after it"):
        ended = CliRunner().invoke(group, [*command, *(["--verbose"] * (command[0] == "probe"))])
        found.append((ended.exit_code, "app#D" in ended.output))
        shutil.rmtree(tmp_path / OWN, ignore_errors=True)
    for name in (".json", ".lock"):
        Path(file.path).with_suffix(name).unlink()

    assert not file.path.startswith(str(tmp_path))
    assert found == [(0, True), (0, True)]


# --- the places ----------------------------------------------------------------------------


def test_a_login_does_not_change_the_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A probe has neither the session nor the HOME of a replica."""
    before = node.places()

    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    assert node.places() == before


@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP", "TMP"])
def test_the_first_place_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
):
    """As in Python's `tempfile`, missing folders are skipped."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv(variable, str(tmp_path))

    assert node.places()[0] == Place(str(tmp_path / OWN), str(tmp_path / OWN / "state"))


def test_machines_that_share_a_home_have_a_state_each():
    """A replica of another machine says nothing of this one."""
    states = [place.state for place in node.places() if "/.cache/" in place.state]

    assert all(state.endswith(f"/state-{os.uname().nodename}") for state in states)


# --- with several users and processes ------------------------------------------------------

# Reads its program and imports what that will, since another user may not be able to.
AS_USER = """
import os, sys
import argparse, http, json, pwd, queue, re, signal, socket, socketserver, threading, urllib.parse
import serve_warm._private_folders, serve_warm.artifact.node_cache, serve_warm.cli.probing
user, file, *arguments = sys.argv[1:]
code = compile(open(file).read(), file, "exec")
os.setgroups([]); os.setresgid(*3 * [int(user)]); os.setresuid(*3 * [int(user)])
sys.argv = [file, *arguments]
exec(code, {"__name__": "__main__"})
"""

REPLICA = """
import sys, time
from serve_warm import node
from serve_warm._private_folders import state_folder
from serve_warm.artifact.node_cache import default_root
facts = {"stage": sys.argv[2], "verdict": "full_hit"}
names = {"application": "app", "deployment": "D", "replica": sys.argv[1]}
beat = node.Heartbeat(state_folder(), facts=lambda: facts, **names)
beat.flush(60.0)
print(beat.directory, default_root(), flush=True)
time.sleep(600)
"""

COMMAND_LINE = """
import sys
from serve_warm.cli.probing import probe
probe()
"""


class Machine:
    """A folder for temporary files that all users share, and processes of its users."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.own = self.temporary / f"serve_warm-{US}"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, program: str | Path, *arguments: str) -> subprocess.Popen[str]:
        if isinstance(program, str):
            file = self.root / "program.py"
            file.write_text(program)
            program = file
        without = ("SERVE_WARM_STATE_DIR", "SERVE_WARM_NODE_CACHE_DIR")
        environment = {k: v for k, v in os.environ.items() if k not in without}
        self.running.append(
            subprocess.Popen(
                [sys.executable, "-c", AS_USER, str(US), str(program), *arguments],
                env={**environment, "TMPDIR": str(self.temporary)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.running[-1]

    def replica(self, name: str, stage: str = "READY") -> list[Path]:
        """Start one and return its state directory and its node cache."""
        out = self.start(REPLICA, name, stage).stdout
        assert out is not None
        return [Path(each) for each in out.readline().split()]

    def probe(self, program: str | Path, *options: str) -> tuple[int, str]:
        arguments = ("probe",) if isinstance(program, Path) else ()
        ended = self.start(program, *arguments, *NO_CHECKS, *options)
        out, error = ended.communicate()
        assert "Traceback" not in error
        return ended.returncode, out

    def stranger(self, command: str) -> None:
        subprocess.run([command, str(self.own)], user=STRANGER, group=STRANGER, check=True)

    def end(self) -> None:
        for each in self.running:
            each.kill()
            each.communicate()
        self.running.clear()


@pytest.fixture(name="machine")
def machine_fixture() -> Iterator[Machine]:
    # Not pytest's own folder, which other users cannot enter.
    root = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    root.chmod(0o755)
    machine = Machine(root)
    yield machine
    machine.end()
    shutil.rmtree(root)
    shutil.rmtree(f"/var/tmp/serve_warm-{US}", ignore_errors=True)


@pytest.mark.long
@root_only
def test_probe_server_and_replicas_agree_whoever_comes_and_goes(machine: Machine):
    """The server began before there was anything; a stranger's mkdir and rmdir change no answer."""
    alone = Path(node.__file__)
    serving = machine.start(alone, "serve", "--host", "127.0.0.1", "--port", "0", *NO_CHECKS)
    assert serving.stderr is not None
    port = re.search(r"answers on port (\d+)", serving.stderr.readline())[1]

    def answers(*options: str) -> tuple[int, int, bool]:
        served = get(f"http://127.0.0.1:{port}/readyz", limit_s=60.0) == ""
        codes = [machine.probe(each, *options)[0] for each in (alone, COMMAND_LINE)]
        return codes[0], codes[1], served

    before = answers()
    machine.stranger("mkdir")
    begun = machine.replica("first")
    beside = answers()
    machine.stranger("rmdir")
    after = answers()
    joined = machine.replica("second", "PROVING")
    code, said = machine.probe(alone, "--no-latch")

    last = Path(f"/var/tmp/serve_warm-{US}")
    assert before == (1, 1, False)
    assert begun == joined == [last / "state", last / "blobs"]
    assert (beside, after) == ((0, 0, True), (0, 0, True))
    assert (code, said.count("\n")) == (1, 1)
    assert "app#D second: PROVING" in said


@pytest.mark.slow
@root_only
def test_without_a_stranger_they_agree_on_the_temporary_folder(machine: Machine):
    """A user who comes later cannot take the place."""
    begun = machine.replica("first")

    with pytest.raises(subprocess.CalledProcessError):
        machine.stranger("mkdir")

    assert begun == [machine.own / "state", machine.own / "blobs"]
    assert [machine.probe(each)[0] for each in (Path(node.__file__), COMMAND_LINE)] == [0, 0]


@pytest.mark.slow
@root_only
def test_a_probe_says_why_a_replica_is_not_seen(machine: Machine):
    """The message names the place that was read, and the owner of the usual place."""
    machine.stranger("mkdir")

    code, said = machine.probe(Path(node.__file__))

    assert code == 1
    assert f"/var/tmp/serve_warm-{US}/state has no state file" in said
    assert f"{machine.own} belongs to user id {STRANGER}" in said
