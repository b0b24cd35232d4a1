# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What an interrupted build leaves is good, whole and its own, or it is not gone on from."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from compiled import compiled, double
from serve_warm import Input, unfinished, warmup
from serve_warm._private_folders import LOCK_NAME
from serve_warm.compiler import written_in_place
from serve_warm.deployment import ATTRIBUTE
from serve_warm.errors import ArtifactRefused
from serve_warm.fingerprint import Fingerprint
from serve_warm.unfinished import LIST_NAME, MAX_AGE_S, Resumed, Unfinished, discard, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = 32 * "a"
OTHER = 32 * "b"
LIBRARY = "inductor/ab/cabc.main.so"
ENTRY = "inductor/fxgraph/ab/fabc/entry"
CUBIN = "triton/ABC/kernel.cubin"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "builds"


@pytest.fixture
def begin(root: Path) -> Iterator[Callable[..., Unfinished]]:
    """Open the folder of a build like a replica does; closed after the test."""
    opened: list[Unfinished] = []

    def begin_one(key: str = KEY, **options: Any) -> Unfinished:
        options = {"begin": "resume", "root": root, **options}
        opened.append(Unfinished.open(key, written_in_place=written_in_place, **options))
        return opened[-1]

    yield begin_one
    for each in opened:
        each.close()


@pytest.fixture
def cache(tmp_path: Path) -> Callable[[], Path]:
    """Make the cache directory of one more process."""

    def new() -> Path:
        return Path(tempfile.mkdtemp(dir=tmp_path))

    return new


def write(cache: Path, name: str, data: bytes) -> Path:
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def contents(cache: Path) -> dict[str, bytes]:
    return {
        path.relative_to(cache).as_posix(): path.read_bytes()
        for path in cache.rglob("*")
        if path.is_file()
    }


def one_build(build: Unfinished, cache: Path) -> None:
    """Compile a library, cache an entry and a cubin, and end like a process that is killed."""
    build.resume(cache)
    build.keep_object(write(cache, LIBRARY, b"library"))
    write(cache, ENTRY, b"entry")
    write(cache, CUBIN, b"cubin")
    build.keep_all()
    build.close()


def set_age(folder: Path, age_s: float) -> None:
    then = time.time() - age_s
    os.utime(folder, (then, then))


# What is kept ---------------------------------------------------------------------------------


def test_what_was_kept_comes_back(begin, cache):
    """The next process finds the same bytes under the same names, private to its user."""
    one_build(begin(), cache())
    new = cache()

    resumed = begin().resume(new)

    assert contents(new) == {LIBRARY: b"library", ENTRY: b"entry", CUBIN: b"cubin"}
    assert {(new / name).stat().st_mode & 0o777 for name in contents(new)} == {0o600}
    assert resumed.kernels == 2


def test_a_first_build_goes_on_from_nothing(begin, cache):
    """Where nothing was kept nothing is said and nothing is there."""
    new = cache()

    assert begin().resume(new) is None
    assert contents(new) == {}


def test_the_line_says_how_much_and_when():
    """The line that a user sees has the count and the time in UTC."""
    assert str(Resumed(kernels=12, kept_unix=1_700_000_000.0)) == (
        "resuming: 12 kernels of an interrupted build of 2023-11-14 22:13 UTC"
    )
    assert str(Resumed(kernels=1, kept_unix=0.0)).startswith("resuming: 1 kernel of")


def test_a_library_is_kept_at_once(begin, cache):
    """One that a compiler has completed outlives its process in the middle of an input."""
    first, new = cache(), cache()
    build = begin()
    build.resume(first)
    build.keep_object(write(first, LIBRARY, b"library"))
    write(first, ENTRY, b"entry")
    build.close()

    begin().resume(new)

    assert contents(new) == {LIBRARY: b"library"}


def test_what_a_compiler_may_not_have_completed_is_not_kept(begin, cache):
    """A library that nobody said is complete, temporary files and locks stay behind."""
    first, new = cache(), cache()
    build = begin()
    build.resume(first)
    for name in (LIBRARY, "inductor/ab/.1.2.tmp", "inductor/locks/cabc.lock", ENTRY):
        write(first, name, b"some of it")
    build.keep_all()
    build.close()

    begin().resume(new)

    assert contents(new) == {ENTRY: b"some of it"}


def test_what_is_elsewhere_is_not_kept(begin, cache):
    """Compilers write headers too, in a folder that all processes of the user share."""
    first = cache()
    build = begin()
    build.resume(first)

    build.keep_object(write(cache(), LIBRARY, b"library"))

    assert not (build.folder / LIST_NAME).exists()


def test_the_last_contents_of_a_name_are_kept(begin, cache):
    """A file that is written again, as torch's profile of sizes is, comes back as it was last."""
    first, new = cache(), cache()
    build = begin()
    build.resume(first)
    for data in (b"one", b"other"):
        write(first, ENTRY, data)
        build.keep_all()
    build.close()

    begin().resume(new)

    assert contents(new) == {ENTRY: b"other"}


def test_what_is_kept_grows_from_build_to_build(begin, cache):
    """A build that goes on and is interrupted too keeps both its own and what it began with."""
    one_build(begin(), cache())
    second, third = cache(), cache()
    build = begin()
    build.resume(second)
    build.keep_object(write(second, "inductor/cd/ccde.main.so", b"second"))
    build.close()

    resumed = begin().resume(third)

    assert contents(third).keys() == {LIBRARY, ENTRY, CUBIN, "inductor/cd/ccde.main.so"}
    assert resumed.kernels == 3


def test_what_is_there_already_stays(begin, cache):
    """What this process has compiled in `__init__` is not replaced."""
    one_build(begin(), cache())
    new = cache()
    write(new, ENTRY, b"of this process")

    begin().resume(new)

    assert contents(new)[ENTRY] == b"of this process"


def test_fresh_throws_away_what_is_there_and_keeps_what_comes(begin, cache):
    """A fresh build begins with nothing, and the one after it goes on from the fresh one."""
    one_build(begin(), cache())
    first, second = cache(), cache()
    build = begin(begin="fresh")
    assert build.resume(first) is None
    assert contents(first) == {}
    build.keep_object(write(first, "inductor/cd/ccde.main.so", b"fresh"))
    build.close()

    begin().resume(second)

    assert contents(second) == {"inductor/cd/ccde.main.so": b"fresh"}


@pytest.mark.parametrize(
    "other",
    [
        key_of("Other", Fingerprint(machine={"cpu": "a"}, app={"threads": "1"})),
        key_of("Model", Fingerprint(machine={"cpu": "b"}, app={"threads": "1"})),
        key_of("Model", Fingerprint(machine={"cpu": "a"}, app={"threads": "2"})),
    ],
)
def test_another_deployment_machine_or_setting_is_another_build(other: str):
    """Entries are gone on from only where they can be used."""
    key = key_of("Model", Fingerprint(machine={"cpu": "a"}, app={"threads": "1"}))

    assert key != other


def test_another_release_is_another_build(monkeypatch: pytest.MonkeyPatch):
    """What one release kept no other goes on from."""
    here = Fingerprint(machine={}, app={})
    key = key_of("Model", here)

    monkeypatch.setattr(unfinished, "__version__", "0.0.0")

    assert key_of("Model", here) != key


# What is damaged ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"librar", b"Library"], ids=["empty", "cut off", "other"])
def test_a_damaged_copy_is_compiled_again(begin, cache, damage: bytes):
    """Each copy is hashed: torch would load what is left of a library."""
    build = begin()
    one_build(build, cache())
    (copy,) = [p for p in build.folder.iterdir() if p.read_bytes() == b"library"]
    copy.write_bytes(damage)
    new = cache()

    resumed = begin().resume(new)

    assert contents(new).keys() == {ENTRY, CUBIN}
    assert resumed.kernels == 1
    assert not copy.exists()


def test_a_copy_that_was_not_listed_is_not_used(begin, cache):
    """A process that is killed between the copy and the list leaves nothing that is loaded."""
    build = begin()
    one_build(build, cache())
    stray = build.folder / (64 * "c")
    stray.write_bytes(b"half")
    new = cache()

    begin().resume(new)

    assert b"half" not in contents(new).values()
    assert not stray.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1, "files": 7, "kept_unix": 0}']
)
def test_a_damaged_list_is_nothing_to_go_on_from(begin, cache, text: str):
    """After a power cut anything may stand there: the build begins anew, in an empty folder."""
    build = begin()
    one_build(build, cache())
    (build.folder / LIST_NAME).write_text(text)
    new = cache()

    assert begin().resume(new) is None
    assert contents(new) == {}
    assert {path.name for path in build.folder.iterdir()} == {LOCK_NAME}


@pytest.mark.parametrize("name", ["../outside", "inductor/../../outside", "{tmp}/outside"])
def test_a_name_never_leads_out_of_the_cache_directory(begin, cache, tmp_path, name: str):
    """Whatever the list says, files are written below the directory only."""
    build = begin()
    one_build(build, cache())
    path = build.folder / LIST_NAME
    listed = json.loads(path.read_text())
    listed["files"] = {name.format(tmp=tmp_path): next(iter(listed["files"].values()))}
    path.write_text(json.dumps(listed))
    new = cache()

    assert begin().resume(new) is None
    assert not list(tmp_path.rglob("outside"))


def test_what_ends_two_builds_in_a_row_is_not_tried_again(begin, cache, caplog):
    """Where each build that goes on from it dies at once, the third one begins anew and says so."""
    one_build(begin(), cache())
    found = []
    for _ in range(3):
        build, new = begin(), cache()
        build.resume(new)
        build.close()
        found.append(len(contents(new)))

    assert found == [3, 3, 0]
    assert "2 builds in a row went on from it" in caplog.text


def test_a_build_that_gets_as_far_as_an_input_shows_that_it_is_good(begin, cache):
    """However often a build is interrupted in its round trip, nothing is lost by it."""
    one_build(begin(), cache())
    for _ in range(4):
        build, new = begin(), cache()
        build.resume(new)
        build.keep_all()
        build.close()

        assert len(contents(new)) == 3


def test_a_folder_that_cannot_be_written_costs_no_build(begin, cache, caplog):
    """A full or lost disk is said once, and the build goes on."""
    new = cache()
    build = begin()
    build.resume(new)
    shutil.rmtree(build.folder)

    for name in (LIBRARY, "inductor/cd/ccde.main.so"):
        build.keep_object(write(new, name, b"library"))
    build.keep_all()

    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "this build keeps nothing" in record.getMessage()


# Who uses it ----------------------------------------------------------------------------------

BUILDING = """
import sys, time
from pathlib import Path
from serve_warm.compiler import written_in_place
from serve_warm.unfinished import Unfinished

root, cache = map(Path, sys.argv[1:])
build = Unfinished.open(32 * "a", begin="resume", written_in_place=written_in_place, root=root)
build.resume(cache)
library = cache / "inductor" / "ab" / "cabc.main.so"
library.parent.mkdir(parents=True)
library.write_bytes(b"library")
build.keep_object(library)
print("kept", flush=True)
time.sleep(600)
"""


def test_one_build_at_a_time_and_a_killed_one_is_gone_on_from(begin, cache, root):
    """While a process builds the folder is its own; killed by SIGKILL it leaves what it kept."""
    arguments = [sys.executable, "-c", BUILDING, str(root), str(cache())]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as building:
        said = building.stdout.readline()
        with pytest.raises(BlockingIOError, match="another build of the same is under way"):
            begin()
        building.send_signal(signal.SIGKILL)
    new = cache()

    resumed = begin().resume(new)

    assert said == "kept\n"
    assert resumed.kernels == 1
    assert contents(new) == {LIBRARY: b"library"}


def test_builds_of_different_things_do_not_wait(begin):
    """Each build has a lock of its own."""
    assert begin(KEY).folder != begin(OTHER).folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_change_is_refused(begin, root, mode: int):
    """What is loaded from is private from the root down, here as everywhere."""
    begin().close()
    root.chmod(mode)

    with pytest.raises(ArtifactRefused) as refused:
        begin()

    assert refused.value.reason == "unsafe_directory"
    assert str(root) in refused.value.message


def test_a_link_in_place_of_the_lock_is_not_followed(begin, root, tmp_path):
    """A file elsewhere is neither made nor locked."""
    begin().close()
    (root / KEY / LOCK_NAME).unlink()
    (root / KEY / LOCK_NAME).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="symbolic link"):
        begin()

    assert not (tmp_path / "elsewhere").exists()


# When it goes ---------------------------------------------------------------------------------


def test_a_build_that_is_over_is_discarded(begin, cache, root):
    """After it is published nothing is left, and the next build begins with nothing."""
    one_build(begin(), cache())

    discard(KEY, root=root)

    assert list(root.iterdir()) == []
    assert begin().resume(cache()) is None


def test_what_another_build_uses_is_not_discarded(begin, cache, root):
    """Somebody who has begun in the meantime keeps what is there."""
    one_build(begin(), cache())
    begin()

    discard(KEY, root=root)

    assert (root / KEY / LIST_NAME).exists()


def test_discarding_what_is_not_there_makes_nothing(root):
    """On another node than the replica's there is no folder, and none is made."""
    discard(KEY, root=root)

    assert not root.exists()


def test_old_builds_are_swept(begin, cache, root):
    """After seven days without use a folder goes; those in use, younger or foreign stay."""
    keys = {name: 32 * name for name in "bcd"}
    for key in keys.values():
        build = begin(key)
        one_build(build, cache())
    in_use = begin(keys["c"])
    (root / "something").mkdir()
    for name in (keys["b"], keys["c"], "something"):
        set_age(root / name, MAX_AGE_S + 60)
    set_age(root / keys["d"], MAX_AGE_S - 60)

    begin(KEY)

    assert {path.name for path in root.iterdir()} == {KEY, keys["c"], keys["d"], "something"}
    assert in_use.folder.exists()


# In a start -----------------------------------------------------------------------------------


class Model:
    def __init__(self) -> None:
        self.model = compiled(double)

    async def run(self) -> Any:
        return self.model(torch.ones(2))

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.run)]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the base of all folders of this user, and give back what a start sets."""
    base = tmp_path / "tmp"
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(base))
    return base


def started(unfinished: str) -> Any:
    instance = warmup(Model, unfinished=unfinished)()
    asyncio.run(instance.warm_up())
    return instance.__dict__[ATTRIBUTE]._warmup


@pytest.fixture
def build_key(temporary: Path) -> str:
    return key_of("Model", started("ignore").fingerprint)


def test_only_a_build_keeps_anything(temporary: Path):
    """A replica in traffic neither reads nor makes the folder."""
    start = started("ignore")

    assert start.note == ""
    assert not list(temporary.rglob("builds"))


def test_a_build_says_what_it_goes_on_from(build_key: str, cache):
    """The note is the line, the entry is in torch's directory, and the manifest has the count."""
    build = Unfinished.open(build_key, begin="resume", written_in_place=written_in_place)
    one_build(build, cache())

    start = started("resume")

    _, facts = asyncio.run(start.pack())
    start._unfinished.close()
    assert start.note.startswith("resuming: 2 kernels of an interrupted build of ")
    assert (start.cache_directory / LIBRARY).read_bytes() == b"library"
    assert facts["resumed_kernels"] == 2


def test_a_second_build_at_the_same_time_keeps_nothing_and_says_so(build_key: str):
    """It builds in its own directory as ever, and warns."""
    first = Unfinished.open(build_key, begin="resume", written_in_place=written_in_place)

    start = started("resume")

    first.close()
    assert start.note == (
        "what this build compiles is not kept, should it be interrupted: "
        "another build of the same is under way"
    )
    assert start.note in start.report().warnings
    assert start.report().covered.proven == 1


def test_a_build_finds_the_kernels_that_it_goes_on_from(build_key: str, cache):
    """Triton lists a kernel's files by the paths that they had in the interrupted build."""
    before = cache()
    group = json.dumps({"child_paths": {"kernel.cubin": str(before / CUBIN)}}).encode()
    build = Unfinished.open(build_key, begin="resume", written_in_place=written_in_place)
    build.resume(before)
    write(before, CUBIN, b"cubin")
    listed = write(before, "triton/ABC/__grp__kernel.json", group).relative_to(before)
    build.keep_all()
    build.close()

    start = started("resume")

    start._unfinished.close()
    said = json.loads((start.cache_directory / listed).read_text())
    assert said == {"child_paths": {"kernel.cubin": str(start.cache_directory / CUBIN)}}
