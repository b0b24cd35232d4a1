# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What another user of the machine can change, and where our own folders are made."""

from __future__ import annotations

import json
import os
import pwd
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve_warm import _private_folders
from serve_warm._private_folders import (
    LOCK_NAME,
    file_problems,
    folder_problems,
    make_private,
    private_base,
    problems,
    process_folder,
    temporary_folder,
    user_folder,
)
from serve_warm.errors import ArtifactRefused

US, STRANGER = 11111, 22222
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def whats(found: tuple[_private_folders.Problem, ...]) -> list[str]:
    return [problem.what for problem in found]


def mended(folder: Path) -> str:
    """Return the only problem of a folder, after the command that is named put it right."""
    (problem,) = problems(folder)
    subprocess.run(problem.fix.split(), check=True)
    assert problems(folder) == ()
    return problem.what


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Give a folder that other users can reach, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# --- what is safe --------------------------------------------------------------------------

# Becomes another user, in the group of all that is group-writable, and tries to change each tree.
ATTACK = """
import json, os, pathlib, sys
user, group, trees = json.load(sys.stdin)
os.setgroups([group]); os.setgid(group); os.setuid(user)

def renamed(path):
    os.rename(path, path + "~")
    os.rename(path + "~", path)

def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError:
        return False
    return True

def exposed(steps, file):
    leaf = steps[-1]
    return (
        any(tried(renamed, step) for step in steps)
        or any(tried(os.chmod, step, os.stat(step).st_mode & 0o7777) for step in steps if tried(os.stat, step))
        or tried(os.listdir, leaf)
        or tried(os.stat, file)
        or tried(pathlib.Path(leaf, "new").touch)
    )

print(json.dumps([exposed(steps, file) for steps, file in trees]))
"""  # noqa: E501


def attacked(trees: list[tuple[list[str], str]], *, user: int, group: int) -> list[bool]:
    asked = json.dumps([user, group, trees])
    command = [sys.executable, "-I", "-c", ATTACK]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def grown(folder: Path, chance: random.Random) -> tuple[list[str], str]:
    """Make a way of folders of random owners and modes; mostly good, or hardly any would pass."""
    steps = []
    for depth in range(chance.choice([1, 2, 3, 4])):
        folder = folder / f"{depth}"
        folder.mkdir()
        steps.append(str(folder))
    file = folder / "file"
    file.write_bytes(b"")
    modes = [0o755] * 6 + [0o700, 0o711, 0o751, 0o1777, 0o777, 0o775, 0o757, 0o1775, 0o770]
    for step in steps:
        leaf = step == steps[-1]
        owner = chance.choice([US] * 9 + [STRANGER, 0] if leaf else [0, 0, US, US, STRANGER])
        os.chown(step, owner, owner)
        Path(step).chmod(chance.choice([0o700] * 12 + modes if leaf else modes))
    return steps, str(file)


@root_only
def test_what_is_found_safe_nobody_else_can_change(reachable: Path):
    """Another user neither enters, renames nor opens up what has no problem; it is tried."""
    chance = random.Random(3)
    trees = [grown(private_to_all(reachable / str(number)), chance) for number in range(300)]
    safe = []
    for steps, _ in trees:
        with acting_as(US):
            try:
                safe.append(not problems(Path(steps[-1])))
            except OSError:  # closed to us
                safe.append(False)
    exposed = [attacked(trees, user=STRANGER, group=group) for group in (STRANGER, 0, US)]
    for number, one in enumerate(safe):
        assert not (one and any(each[number] for each in exposed)), trees[number]
    # Both did happen, often.
    assert safe.count(True) > 30
    assert sum(any(each) for each in zip(*exposed, strict=True)) > 100


def private_to_all(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("above", "mode"),
    # Nobody else can rename files in a folder above that is sticky.
    [
        *((False, mode) for mode in (0o700, 0o500, 0o1700)),
        *((True, mode) for mode in (0o755, 0o711, 0o1777, 0o1775)),
    ],
)
def test_a_private_folder_has_no_problem(tmp_path: Path, *, above: bool, mode: int):
    """Below folders of root and of this user, which may be read or be sticky."""
    folder = private(private(tmp_path / "above") / "folder")
    (folder.parent if above else folder).chmod(mode)
    assert problems(folder) == ()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o720, 0o702])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_any_folder_above_that_others_can_write_is_a_problem(tmp_path: Path, mode: int, depth: int):
    """However far above; the command that is named puts it right."""
    folder = tmp_path / "a" / "b" / "c" / "folder"
    make_private(folder)
    above = folder.parents[depth - 1]
    above.chmod(mode)
    assert mended(folder) == f"{above} can be written by group or others (mode {mode:o})"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o755, 0o770, 0o701, 0o704, 0o710, 0o740])
def test_a_private_folder_is_closed_to_all_others(tmp_path: Path, mode: int):
    """Any bit of group or others is a problem of the folder itself; the command mends it."""
    folder = private(tmp_path / "folder")
    folder.chmod(mode)
    assert mended(folder) == f"{folder} is open to other users (mode {mode & 0o777:o})"


@pytest.mark.parametrize(
    ("mode", "safe"),
    [(0o755, True), (0o711, True), (0o775, False), (0o1777, False), (0o702, False)],
)
def test_an_unwritable_folder_may_be_read(tmp_path: Path, mode: int, *, safe: bool):
    """Others can see its files, but change nothing. The sticky bit would let them add files."""
    folder = private(tmp_path / "folder")
    folder.chmod(mode)
    assert (problems(folder, leaf="unwritable") == ()) == safe


@root_only
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_of_somebody_else_is_a_problem(tmp_path: Path, depth: int):
    """Whatever its mode: its owner can change that."""
    folder = tmp_path / "a" / "b" / "folder"
    make_private(folder)
    theirs = [folder, *folder.parents][depth]
    os.chown(theirs, STRANGER, -1)
    assert mended(folder) == f"{theirs} belongs to user id {STRANGER}"


@root_only
def test_the_folder_itself_must_not_be_roots(reachable: Path):
    """Files that root left there are not the user's, although root may own parent folders."""
    folder = private(reachable / "folder")
    os.chown(reachable, US, -1)
    with acting_as(US):
        found = problems(folder, leaf="unwritable")
    assert whats(found) == [f"{folder} belongs to user id 0"]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_link_on_the_way_is_a_problem(tmp_path: Path, depth: int):
    """The link may lead to a safe folder. The message names the real path, which has no problem."""
    folder = tmp_path / "a" / "b" / "folder"
    make_private(folder)
    step = [folder, *folder.parents][depth]
    step.rename(tmp_path / "moved")
    step.symlink_to(tmp_path / "moved")
    (problem,) = problems(folder)
    assert problem.what == f"{step} is a symbolic link"
    assert problem.fix == f"use {tmp_path / 'moved'} instead"
    assert problems(folder.resolve()) == ()


def test_all_problems_are_said_at_once(tmp_path: Path):
    """Nobody mends one to be told of the next, from the top down."""
    folder = tmp_path / "a" / "b" / "folder"
    make_private(folder)
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o777)
    steps = [tmp_path / "a", tmp_path / "a" / "b", folder]
    assert [what.split()[0] for what in whats(problems(folder))] == [*map(str, steps)]


def test_dots_are_not_resolved(tmp_path: Path):
    """After a link, `..` is not the folder that the path suggests."""
    folder = private(tmp_path / "folder")
    (problem,) = problems(tmp_path / "folder" / ".." / "folder")
    assert "contains '..'" in problem.what
    assert str(folder) in problem.fix


def test_what_was_opened_is_what_is_looked_at(tmp_path: Path):
    """A folder that has taken the name since does not replace the opened folder."""
    folder = private(tmp_path / "folder")
    opened = os.open(folder, os.O_RDONLY)
    folder.chmod(0o777)
    folder.rename(tmp_path / "moved")
    private(folder)
    try:
        found = problems(folder, opened=opened)
    finally:
        os.close(opened)
    assert len(found) == 1
    assert problems(folder) == ()


def test_the_refusal_says_everything(tmp_path: Path):
    folder = private(tmp_path / "folder")
    folder.chmod(0o750)
    with pytest.raises(ArtifactRefused) as caught:
        _private_folders.check_private(folder, "the shelf", advice="or buy another")
    assert caught.value.reason == "unsafe_directory"
    assert caught.value.message.startswith(f"the shelf is not private: {folder} is open")
    assert caught.value.hint == f"chmod 700 {folder}; or buy another"


# --- files and links -----------------------------------------------------------------------
def of_file(path: Path) -> list[str]:
    with open(path, "rb") as file:
        return whats(file_problems(path, opened=file.fileno()))


def linked_twice(tmp_path: Path) -> Path:
    """Return a link to a link to a file, each in a folder of its own, two levels deep."""
    for name in ("first", "second", "third"):
        (tmp_path / name / "in").mkdir(parents=True, mode=0o755)
    (tmp_path / "third" / "in" / "file").write_text("x")
    (tmp_path / "second" / "in" / "link").symlink_to("../../third/in/file")
    (tmp_path / "first" / "in" / "link").symlink_to(tmp_path / "second" / "in" / "link")
    return tmp_path / "first" / "in" / "link"


def test_links_to_what_is_safe_are_followed(tmp_path: Path):
    """Links of a ConfigMap are followed too."""
    link = linked_twice(tmp_path)
    assert of_file(link) == []
    assert folder_problems(link.parent) == ()


@pytest.mark.parametrize("name", ["first", "second", "third", "first/in", "second/in", "third/in"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_every_folder_that_a_link_leads_over_counts(tmp_path: Path, name: str, mode: int):
    """This includes folders of a middle link, which neither the first nor the real path shows."""
    link = linked_twice(tmp_path)
    (tmp_path / name).chmod(mode)
    assert of_file(link) == [f"{tmp_path / name} can be written by group or others (mode {mode:o})"]


@pytest.mark.parametrize(
    ("name", "safe"), [("first", True), ("first/in", False), ("third", True), ("third/in", False)]
)
def test_a_sticky_folder_is_enough_above_but_not_for_names(
    tmp_path: Path, name: str, *, safe: bool
):
    """Others can put hard links to files and links, but not folders, into a writable folder."""
    link = linked_twice(tmp_path)
    (tmp_path / name).chmod(0o1777)
    assert (of_file(link) == []) == safe


@root_only
@pytest.mark.parametrize("name", ["first/in/link", "second/in/link", "third/in/file", "second"])
def test_every_owner_that_a_link_leads_over_counts(tmp_path: Path, name: str):
    """A link is its owner's."""
    link = linked_twice(tmp_path)
    os.chown(tmp_path / name, STRANGER, -1, follow_symlinks=False)
    (what,) = of_file(link)
    assert what.endswith(f"belongs to user id {STRANGER}")


# --- where folders are made ----------------------------------------------------------------
class AccountAt:
    """An account as the password database has it, but for its home."""

    def __init__(self, uid: int, home: Path, look_up: Callable[[int], pwd.struct_passwd]) -> None:
        self._uid, self._look_up = uid, look_up
        self.pw_dir = str(home)

    @property
    def pw_name(self) -> str:
        return self._look_up(self._uid).pw_name  # `node` remembers names of users


def account_at(home: Path) -> Callable[[int], AccountAt]:
    """Return a stand-in for `pwd.getpwuid` that gives every account one home."""
    look_up = pwd.getpwuid
    return lambda uid: AccountAt(uid, home, look_up)


@pytest.fixture
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give a machine of which all three places are the test's."""
    names = {"temporary": "tmp", "home": "home", "last": "last"}
    made = SimpleNamespace(**{place: private(tmp_path / name) for place, name in names.items()})
    monkeypatch.setattr(_private_folders, "LAST_BASE", made.last)
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary))
    monkeypatch.setenv("TMPDIR", str(made.temporary))
    monkeypatch.setattr(pwd, "getpwuid", account_at(made.home))
    return made


def opened(path: Path) -> None:
    path.chmod(0o777)


def given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(path, STRANGER, -1)


SPOILT = [opened, given_away, Path.rmdir]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_the_folder_for_temporary_files_comes_first(bases: SimpleNamespace, mode: int):
    """If it is safe, no other place is touched."""
    bases.temporary.chmod(mode)
    assert private_base() == bases.temporary
    assert user_folder("x") == bases.temporary / f"serve_warm-{os.geteuid()}" / "x"
    assert list(bases.home.iterdir()) == []


@pytest.mark.parametrize("spoil", SPOILT)
def test_the_home_comes_second(
    bases: SimpleNamespace, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
):
    """An emptyDir at /tmp has mode 0777 and is not sticky. A line names the place used instead."""
    spoil(bases.temporary)
    found = [private_base() for _ in range(3)]
    assert found == 3 * [bases.home / ".cache" / "serve_warm"]
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
    (record,) = caplog.records
    assert (record.levelname, str(bases.temporary) in record.message) == ("INFO", True)


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_all_machines_have_comes_last(bases: SimpleNamespace, spoil: Callable[[Path], None]):
    """A home need not be there, nor be safe."""
    opened(bases.temporary)
    spoil(bases.home)
    assert private_base() == bases.last


def test_a_user_without_a_name_has_no_home(bases: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    """Containers run under user ids that the password database does not know."""

    def unknown(uid: int) -> Any:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    opened(bases.temporary)
    assert private_base() == bases.last


@root_only
def test_a_home_that_is_closed_to_its_user_is_none(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
):
    """The password database of an image may name root's for everybody."""
    temporary, last = private_to_all(reachable / "tmp"), private_to_all(reachable / "last")
    os.chown(last, US, US)
    monkeypatch.setattr(_private_folders, "LAST_BASE", last)
    home = private(reachable / "closed") / "home"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(pwd, "getpwuid", account_at(home))
    with acting_as(US):
        assert private_base() == last


def test_a_machine_without_a_safe_place_goes_on_with_a_warning(
    bases: SimpleNamespace, caplog: pytest.LogCaptureFixture
):
    """Compiled code needs a place. The warning comes once, with the command."""
    for each in vars(bases).values():
        opened(each)
    found = [private_base() for _ in range(3)]
    assert found == 3 * [bases.temporary]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"chmod +t {bases.temporary}" in record.message
    assert "no artifact can be loaded" in record.message
    bases.temporary.chmod(0o1777)
    assert problems(private_base(), leaf="above") == ()


def test_folders_are_made_private(tmp_path: Path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    folder = tmp_path / "there" / "a" / "b"
    before = os.umask(0)
    try:
        make_private(folder)
        make_private(folder)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.parents[:2])]
    assert modes == [0o700, 0o700, 0o755]


def test_nothing_is_made_where_a_link_says(tmp_path: Path):
    """A link to nowhere stays one."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    make_private(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        make_private(tmp_path / "link" / "x")
    assert not (tmp_path / "nowhere").exists()


# --- folders that end with their process ---------------------------------------------------

KILLED = """
import os, pathlib, signal, sys
from serve_warm import _private_folders
_private_folders.private_base = lambda: pathlib.Path(sys.argv[2])
if sys.argv[1] == "process":
    print(_private_folders.process_folder(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
with _private_folders.temporary_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_behind(base: Path, kind: str = "process") -> Path:
    command = [sys.executable, "-c", KILLED, kind, str(base)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    folder = Path(ended.stdout.strip())
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "kernel.so").write_bytes(b"x")
    (folder / "file").write_bytes(b"x")
    return folder


def aged(folder: Path) -> Path:
    long_ago = time.time() - 10 * _private_folders.ABANDONED_S
    os.utime(folder / LOCK_NAME, (long_ago, long_ago))
    return folder


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = private(tmp_path / "base")
    monkeypatch.setattr(_private_folders, "private_base", lambda: folder)
    return folder


def test_a_temporary_folder_is_private_and_goes(base: Path):
    """Nobody else enters it, and nothing of it stays, whatever was written."""
    with temporary_folder() as folder:
        found = problems(folder)
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "link").symlink_to(base)
        (folder / "link").symlink_to(base)
        (folder / "file").write_bytes(b"x")
    assert found == ()
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("kind", ["process", "temporary"])
@pytest.mark.parametrize("next_one", ["process", "temporary"])
def test_folders_of_killed_processes_are_swept(base: Path, kind: str, next_one: str):
    """By the next one of either kind; those of living processes stay, however old."""
    dead, alive = aged(left_behind(base, kind)), aged(process_folder())
    with temporary_folder() as current:
        aged(current)
        if next_one == "process":
            process_folder()
        assert current.is_dir()
    assert not dead.exists()
    assert alive.is_dir()


def test_what_was_just_made_is_not_swept(base: Path):
    """Between making a folder and locking it there is a moment: its owner gets a minute."""
    young = left_behind(base)
    process_folder()
    assert (young / "file").exists()


@pytest.mark.parametrize("unsafe", ["itself", "the base"])
def test_nothing_is_swept_that_others_can_exchange_or_may_have_made(base: Path, unsafe: str):
    """By the time of the removal, the name could be another folder of this user."""
    dead = aged(left_behind(base))
    target = dead if unsafe == "itself" else base
    target.chmod(0o770)
    process_folder()
    assert (dead / "file").exists()
    target.chmod(0o700)
    process_folder()
    assert not dead.exists()


def test_a_folder_from_a_clock_that_was_set_back_is_removed(base: Path):
    """Before, the folder stayed until the clock had reached its time again."""
    dead = left_behind(base)
    ahead = time.time() + 10 * _private_folders.ABANDONED_S
    os.utime(dead / LOCK_NAME, (ahead, ahead))
    process_folder()
    assert not dead.exists()


def test_a_link_in_the_place_of_a_lock_is_not_followed(base: Path):
    """The check does not wait for a pipe either."""
    for number, make in enumerate((lambda lock: lock.symlink_to(base / "old"), os.mkfifo)):
        folder = private(base / f"serve_warm-{number}")
        make(folder / LOCK_NAME)
        (folder / "file").write_bytes(b"x")
    (base / "old").write_bytes(b"")
    long_ago = time.time() - 10 * _private_folders.ABANDONED_S
    os.utime(base / "old", (long_ago, long_ago))
    process_folder()
    assert (base / "serve_warm-0" / "file").exists()
