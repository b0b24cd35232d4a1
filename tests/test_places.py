# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where a user's own folders are when somebody is in the way: one answer of all processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from serve_warm import _private_folders, node
from serve_warm._private_folders import claim_place, state_folder, user_folder
from serve_warm._state_file import StateFile
from serve_warm.artifact.node_cache import default_root
from serve_warm.cli import serve_warm as group
from serve_warm.node import FolderCandidate, Settings, choose_place, judge

US, STRANGER = 11113, 22222
NO_CHECKS = ("--raylet", "none", "--proxy", "none")
OWN = f"serve_warm-{os.geteuid()}"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(name="among")
def among_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FolderCandidate, ...]:
    """A machine with three places that are the test's."""
    found = []
    for name in ("tmp", "home", "last"):
        base = tmp_path / name
        base.mkdir(mode=0o700)
        found.append(FolderCandidate(str(base / OWN), str(base / OWN / "state")))
    monkeypatch.setattr(node, "places", lambda: tuple(found))
    return tuple(found)


def base_of(place: FolderCandidate) -> Path:
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


def link_there(path: Path) -> None:
    path.symlink_to("/nowhere")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def open_base(path: Path) -> None:
    path.parent.chmod(0o777)


IN_THE_WAY = [
    pytest.param(stranger_folder, marks=root_only),
    Path.touch,
    link_there,
    open_to_all,
    open_base,
]


@pytest.mark.parametrize("spoil", IN_THE_WAY)
def test_what_is_in_the_way_moves_all_to_the_next_place(
    among: tuple[FolderCandidate, ...],
    spoil: Callable[[Path], None],
    lives: Callable[..., StateFile],
):
    """Folders, state and readers alike, before and after the first replica begins."""
    spoil(Path(among[0].folder))
    before = choose_place(among).place
    blobs, state = user_folder("blobs"), state_folder()
    lives(state)
    assert (before, choose_place(among).place) == (among[1], among[1])
    assert (str(blobs), str(state)) == (f"{among[1].folder}/blobs", among[1].state)
    assert judge(Settings("", urls=(), places=among)).ready


@pytest.mark.parametrize(
    ("mode", "is_used"), [(0o700, True), (0o755, False), (0o777, False), (None, False)]
)
def test_downloads_are_in_a_prepared_folder(
    among: tuple[FolderCandidate, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int | None,
    is_used: bool,
):
    """Only if the folder of an image or a volume is private to the user."""
    prepared = tmp_path / "prepared"
    monkeypatch.setattr("serve_warm.artifact.node_cache.PREPARED", prepared)
    if mode is not None:
        prepared.mkdir()
        prepared.chmod(mode)
    assert default_root() == (prepared if is_used else Path(among[0].folder)) / "blobs"


def test_looking_makes_nothing(among: tuple[FolderCandidate, ...]):
    """A probe on a fresh node leaves it so."""
    readiness = judge(Settings("", urls=(), places=among))
    assert not readiness.ready
    assert [list(base_of(place).iterdir()) for place in among] == [[], [], []]


@root_only
def test_replicas_stay_together_when_the_stranger_leaves(
    among: tuple[FolderCandidate, ...], lives: Callable[..., StateFile]
):
    """Another user in /tmp can neither hide a live replica nor split a group of replicas."""
    stranger_folder(Path(among[0].folder))
    first = lives(state_folder(), "first")
    Path(among[0].folder).rmdir()
    second = lives(state_folder(), "second", "PROVING")
    found = judge(Settings("", node.Policy(latch="off"), urls=(), places=among))
    assert [replica.names[2] for replica in found.replicas] == ["first", "second"]
    assert "second: PROVING" in found.reasons[0][1]
    first.close()
    second.close()
    assert state_folder() == Path(among[0].state)


def test_a_place_without_room_is_none(among: tuple[FolderCandidate, ...]):
    """If a folder cannot be made there, the next place is used, and readers find its replica."""
    full = FolderCandidate("/proc/serve_warm", "/proc/serve_warm/state")
    machine = (full, *among)
    choice = claim_place(machine)
    assert choice.place == among[0]
    assert choice.passed


def test_a_full_place_is_none_until_a_replica_lives_there(
    among: tuple[FolderCandidate, ...],
    lives: Callable[..., StateFile],
    monkeypatch: pytest.MonkeyPatch,
):
    """Before, the state could not be written, so no probe or command saw why a start failed."""
    free_bytes = {base_of(among[0]): 100 << 10}
    monkeypatch.setattr(
        _private_folders,
        "free_bytes",
        lambda folder: next(
            (free for base, free in free_bytes.items() if folder.is_relative_to(base)), 1 << 40
        ),
    )
    folder = state_folder()
    said = claim_place(among).passed
    lives(folder)
    free_bytes = {}
    after = state_folder()
    free_bytes = {base_of(among[1]): 0}
    assert folder == after == state_folder() == Path(among[1].state)
    assert said == (f"{among[0].folder} has room for 0.1 MB only",)


@root_only
def test_where_every_place_is_taken_the_owner_and_the_settings_are_named(
    among: tuple[FolderCandidate, ...], caplog: pytest.LogCaptureFixture
):
    """Once, however often it is asked; a probe says it too."""
    for place in among:
        stranger_folder(Path(place.folder))
    found = {user_folder("blobs") for _ in range(3)}
    (record,) = caplog.records
    (_, why), *_ = judge(Settings("", urls=(), places=among)).reasons
    assert found == {Path(among[0].folder) / "blobs"}
    for text in (record.message, why):
        assert f"{among[0].folder} belongs to user id {STRANGER}" in text
        assert f"ask its owner or root to remove {among[0].folder}" in text
        assert "SERVE_WARM_STATE_DIR" in text
    for setting in ("TMPDIR", among[2].folder):
        assert setting in record.message


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
    assert not file.path.is_relative_to(tmp_path)
    assert found == [(0, True), (0, True)]


def test_a_login_does_not_change_the_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A probe has neither the session nor the HOME of a replica."""
    before = node.places()
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert node.places() == before


# --- the places ----------------------------------------------------------------------------
@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP", "TMP"])
def test_the_first_place_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
):
    """As in Python's `tempfile`, missing folders are skipped."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv(variable, str(tmp_path))
    assert node.places()[0] == FolderCandidate(str(tmp_path / OWN), str(tmp_path / OWN / "state"))


def test_machines_that_share_a_home_have_a_state_each():
    """A replica of another machine says nothing of this one."""
    states = [place.state for place in node.places() if "/.cache/" in place.state]
    assert all(state.endswith(f"/state-{os.uname().nodename}") for state in states)
