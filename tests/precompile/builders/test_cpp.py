# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries that are begun by one call and finished by the next: C++ is compiled in between."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._inductor.cpp_builder import CppBuilder, CppOptions

import serve_warm
from levels import ramp as x
from serve_warm.precompile import building
from serve_warm.precompile.builders import cpp
from serve_warm.precompile.builders.builder import ATTEMPTS
from serve_warm.precompile.entries.table import EntryTable
from serve_warm.replica.start.pack import _Steps

pytestmark = pytest.mark.slow


class Scaled(nn.Module):
    """A linear layer and a number that its graph holds as a constant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.scale


class Looked(NamedTuple):
    """The state of a build after each of its passes."""

    table: EntryTable
    counts: list[tuple[int, int]]
    """Entries made, and libraries begun."""
    steps: list[str]
    runs: list[tuple[str, bool]]
    """Runs of the C++ compiler for the code of a library: the thread, whether it links."""
    answers: list[torch.Tensor]
    eager: list[torch.Tensor]


def look(*passes: Callable[[Scaled, Callable[..., Any]], Any]) -> Looked:
    """Begin libraries in the first pass and make them in the others."""
    module = Scaled().eval()
    model = serve_warm.compile(module, level=3, dynamic=False)
    counts, steps, answers, eager, runs = [], list[str](), [], [], []
    stock = subprocess.run

    def run(words: Any, *args: Any, **kwargs: Any) -> Any:
        links = [str(word) for word in words if str(word).endswith(".so")]
        if links or any(str(word).endswith((".wrapper.cpp", ".kernel.cpp")) for word in words):
            runs.append((threading.current_thread().name, bool(links)))
        return stock(words, *args, **kwargs)

    def call(batch: int) -> None:
        answers.append(model(x(batch)))
        eager.append(module(x(batch)))

    with (
        pytest.MonkeyPatch.context() as patch,
        torch.inference_mode(),
        building() as build,
    ):
        patch.setattr(subprocess, "run", run)
        build.tell = steps.append
        build.libraries = "begun"
        for each in passes:
            each(module, call)
            counts.append((build.table.made, len(build.pending)))
            build.libraries = "made"
        build.refuse_pending()
    return Looked(build.table, counts, steps, runs, answers, eager)


def calling(*batches: int) -> Callable[..., None]:
    """Return a pass with calls of these sizes."""

    def make_calls(_module: Scaled, call: Callable[[int], None]) -> None:
        for batch in batches:
            call(batch)

    return make_calls


@pytest.mark.long
def test_the_next_call_of_a_kind_finishes_its_library():
    """Each kind is traced once. torch.compile answers while code is compiled in the background."""
    two = look(*[calling(2, 3, 2)] * 2)
    described = two.table.described()
    in_background = [is_link for thread, is_link in two.runs if thread == cpp.THREAD]

    assert two.counts == [(0, 2), (2, 0)]
    assert two.steps == ["trace", "trace", "library", "library"]
    assert [entry["level"] for entry in described] == [3, 3]
    assert all(0 <= entry["error"] < 1e-5 for entry in described)
    assert len(two.table.to_files(3)) == 3  # and the index
    assert (len(in_background), sum(in_background)) == (6, 2)
    assert {thread for thread, is_link in two.runs if not is_link} == {cpp.THREAD}
    assert len(two.answers) == 6
    torch.testing.assert_close(two.answers, two.eager)


@pytest.mark.stress
@pytest.mark.long
def test_what_was_begun_for_another_state_is_not_finished():
    """A new state gets a new library. A kind of call that occurred once has none, with a reason."""

    def change(module: Scaled, call: Callable[[int], None]) -> None:
        module.scale = 3.0
        call(2)

    looked = look(calling(2, 5), change)

    assert looked.counts == [(0, 2), (1, 2)]
    torch.testing.assert_close(looked.answers[-1], looked.eager[-1])
    described = looked.table.described()
    assert [entry["level"] for entry in described] == [3, 1]
    assert "float32[5, 4]" in described[1]["call"]
    assert described[1]["reason"] == "it was called only once while entries were made"


@pytest.mark.stress
@pytest.mark.long
def test_a_state_that_never_comes_back_is_not_traced_again_and_again():
    """A few times for a kind of call, as when entries are made at once."""

    def count(module: Scaled, call: Callable[[int], None]) -> None:
        for number in range(ATTEMPTS + 2):
            module.scale = float(number)
            call(6)

    assert look(count).counts == [(0, ATTEMPTS)]


@pytest.mark.long
def test_a_compiler_that_fails_in_the_background_is_run_by_torch(monkeypatch: pytest.MonkeyPatch):
    """If torch also fails, its error is the reason. In this test torch succeeds."""
    stock, failed = subprocess.run, list[Any]()

    def run(words: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name == cpp.THREAD:
            failed.append(words)
            raise subprocess.CalledProcessError(1, words)
        return stock(words, *args, **kwargs)

    monkeypatch.setattr(subprocess, "run", run)

    looked = look(*[calling(7)] * 2)

    assert failed  # as many as run beside each other
    assert [entry["level"] for entry in looked.table.described()] == [3]
    torch.testing.assert_close(looked.answers[-1], looked.eager[-1])


def line(code: str, *words: str | Path) -> str:
    """Return a command line that runs Python code with these words as its arguments."""
    return shlex.join(
        [sys.executable, "-c", f"import sys, pathlib, time\n{code}", *map(str, words)]
    )


JOIN = """
*parts, whole = map(pathlib.Path, sys.argv[1:])
whole.write_bytes(b"".join(part.read_bytes() for part in parts))
"""
COUNT = """
import os
own = pathlib.Path(sys.argv[2]) / str(os.getpid())
own.touch()
time.sleep(0.3)
count = len(list(own.parent.iterdir()))
own.unlink()
pathlib.Path(sys.argv[1]).write_text(str(count))
"""
WRITE = "pathlib.Path(sys.argv[1]).write_bytes(b'object')"


def test_torch_is_told_that_a_library_is_made_before_it_is(tmp_path: Path):
    """By then torch removes the objects. Objects that torch made itself are kept for the linker."""
    go, mine, other, library = (tmp_path / n for n in ("go", "mine.o", "other.o", "library.so"))
    library.write_bytes(b"of an earlier build")
    other.write_bytes(b" and another")
    wait = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    commands = cpp.Commands()
    commands.note(line(wait + WRITE, mine), str(mine))
    commands.note(line(JOIN, mine, other, library), str(library))
    for each in (mine, other):
        each.unlink()

    made = commands.begin(str(library))
    was_done = made.done()
    go.touch()

    assert not was_done
    assert made.result(timeout=60) == b"object and another"
    assert not library.exists()


@pytest.mark.parametrize("target", ["/nowhere/b.o", "/nowhere/b.so"])
def test_a_command_line_that_is_not_understood_is_not_noted(target: str):
    """Torch then does everything itself: of another version, for example."""
    commands = cpp.Commands()
    with pytest.raises(RuntimeError, match="unexpected command line"):
        commands.note("g++ a.cpp -o b.o", target)
    commands.forget()


def test_what_torch_loads_at_once_is_made_at_once(tmp_path: Path):
    """On a GPU, torch tries only while it makes a library which instructions this CPU has."""
    (tmp_path / "probe.cpp").write_text('extern "C" int probe() { return 7; }')
    commands = cpp.Commands()
    with cpp._noting(commands):
        builder = CppBuilder(
            name="probe",
            sources=str(tmp_path / "probe.cpp"),
            BuildOption=CppOptions(),
            output_dir=str(tmp_path),
        )
        builder.build()
        assert ctypes.CDLL(builder.get_target_file_path()).probe() == 7
    assert commands._objects == []
    commands.forget()


def test_a_library_that_torch_made_itself_is_not_made_again(tmp_path: Path):
    """The path that torch reports must be recorded, and must not exist yet."""
    library = tmp_path / "library.so"
    commands = cpp.Commands()
    commands.note(line(WRITE, library), str(library))
    library.write_bytes(b"weights that torch appends")
    with pytest.raises(RuntimeError, match="with the recorded commands"):
        commands.begin(str(library))
    commands.forget()


def test_no_more_compilers_run_than_torch_would_run(tmp_path: Path):
    """As many compilers run at once as `compile_threads` allows, by default one for each core."""
    slots = torch._inductor.config.compile_threads
    running = tmp_path / "running"
    running.mkdir()
    begun = []
    for number in range(slots + 2):
        library = tmp_path / f"{number}.so"
        commands = cpp.Commands()
        commands.note(line(COUNT, library, running), str(library))
        begun.append(commands.begin(str(library)))
    counts = [int(each.result(timeout=120)) for each in begun]

    assert max(counts) <= slots


def test_a_build_says_which_entry_of_how_many_it_makes():
    """The total is the number of known kinds of calls, or of traced libraries."""
    told = list[str]()
    progress = _Steps(2, told.append)
    for step in ("entry", "trace", "trace", "trace", "library", "library"):
        progress.tell(step)
    traced = [f"tracing library {number}" for number in ("1 of 2", "2 of 2", "3 of 3")]
    assert told == ["entry 1 of 2", *traced, "library 1 of 3", "library 2 of 3"]


def is_there(path: Path) -> bool:
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return path.exists()


def test_objects_are_made_while_torch_goes_on(tmp_path: Path):
    """Also beside each other, and before torch says how to link them."""
    seen, parts = tmp_path / "seen", [tmp_path / "a.o", tmp_path / "b.o"]
    commands = cpp.Commands()
    # The first one waits for the second one.
    wait = f"while not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.01)\n"
    commands.note(line(wait + WRITE, parts[0]), str(parts[0]))
    commands.note(line(f"pathlib.Path({str(seen)!r}).touch()\n{WRITE}", parts[1]), str(parts[1]))
    assert is_there(seen)
    library = tmp_path / "library.so"
    commands.note(line(JOIN, *parts, library), str(library))
    assert commands.begin(str(library)).result(timeout=60) == b"objectobject"


def test_a_library_that_is_given_up_leaves_nothing(tmp_path: Path):
    """Its compilers may still run when torch fails at something else."""
    go, started, part = tmp_path / "go", tmp_path / "started", tmp_path / "a.o"
    commands = cpp.Commands()
    wait = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    commands.note(line(f"pathlib.Path({str(started)!r}).touch()\n{wait}{WRITE}", part), str(part))
    assert is_there(started)
    folder = Path(commands._places[str(part)]).parent
    commands.forget()
    was_there = folder.exists()
    go.touch()
    end = time.monotonic() + 60
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert (was_there, folder.exists()) == (True, False)


def test_an_object_that_cannot_be_made_is_the_error(tmp_path: Path):
    part, library = tmp_path / "a.o", tmp_path / "library.so"
    commands = cpp.Commands()
    commands.note(line("sys.exit(3)", part), str(part))
    commands.note(line(JOIN, part, library), str(library))
    with pytest.raises(subprocess.CalledProcessError):
        commands.begin(str(library)).result(timeout=60)
