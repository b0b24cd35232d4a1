# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports in the background take turns with those of other threads, and hold up nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from serve_warm import importing
from serve_warm.importing import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HANG_S = 60.0
MOMENT_S = 0.2
"""Long enough for another thread to come to where it waits."""


@pytest.fixture
def turns() -> Iterator[Turns]:
    turns = Turns()
    yield turns
    turns.end()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What the modules of these tests wait for."""
    gate = threading.Event()
    monkeypatch.setattr(threading, "gate", gate, raising=False)
    return gate


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write modules that can be imported; `module(name, source)` returns the name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(f"import threading\n{source}\n")
        importlib.invalidate_caches()
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


def alone(turns: Turns, name: str) -> Any:
    with turns.alone(lambda: True, given_up=threading.Event()) as mine:
        assert mine
        return importlib.import_module(name)


def in_background(turns: Turns, threads: ThreadPoolExecutor, name: str) -> Future[Any]:
    """Begin to import a module that stops at the gate, and return once it is there."""
    importing_it = threads.submit(alone, turns, name)
    while name not in sys.modules:
        assert not importing_it.done()
    return importing_it


def test_modules_that_import_one_another_are_not_met_half_made(turns, threads, gate, module):
    """Who asks for one while the background makes it gets it whole."""
    left = module("left", "threading.gate.wait(60)\nimport right\nlater = right.later - 1")
    right = module("right", "import left\nlater = 2")

    background = in_background(turns, threads, left)
    threading.Timer(MOMENT_S, gate.set).start()
    other = threads.submit(importlib.import_module, right)

    assert other.result(HANG_S).left.later == 1
    assert background.result(HANG_S).right.later == 2


def test_what_is_loaded_is_not_waited_for(turns, threads, gate, module):
    """User code that needs no new module runs on."""
    background = in_background(turns, threads, module("slow", "threading.gate.wait(60)"))

    threads.submit(exec, "import json; from json import decoder").result(HANG_S)

    assert not background.done()
    gate.set()
    background.result(HANG_S)


def test_the_background_waits_for_an_import_under_way(turns, threads, gate, module):
    """A module of somebody else that is half-made is not entered."""
    other = threads.submit(importlib.import_module, module("others", "threading.gate.wait(60)"))
    while "others" not in sys.modules:
        assert not other.done()

    background = threads.submit(alone, turns, "json")

    with pytest.raises(TimeoutError):
        background.result(3 * importing.QUIET_S)
    gate.set()
    other.result(HANG_S)
    background.result(HANG_S)


def test_it_is_not_begun_before_it_is_ready(turns, threads):
    """Readiness may come late."""
    ready = threading.Event()
    order: list[str] = []

    def work() -> None:
        with turns.alone(ready.is_set, given_up=threading.Event()):
            order.append("begun")

    working = threads.submit(work)
    threading.Event().wait(3 * importing.QUIET_S)
    order.append("ready")
    ready.set()
    working.result(HANG_S)

    assert order == ["ready", "begun"]


def test_what_is_given_up_is_not_begun(turns):
    """Whoever gave it up imports by himself, and is not held up."""
    given_up = threading.Event()
    given_up.set()

    with turns.alone(lambda: True, given_up=given_up) as mine:
        assert not mine


def test_a_module_that_raises_holds_nobody_up(turns, threads, module):
    """The next import goes on, and meets the error for itself."""
    broken = module("broken", "raise KeyError('broken')")

    for _ in range(2):
        with pytest.raises(KeyError, match="broken"):
            threads.submit(alone, turns, broken).result(HANG_S)

    assert importlib.import_module(module("fine", "later = 1")).later == 1


FORKING = """
import os, sys, threading
from serve_warm.importing import Turns

sys.path.insert(0, sys.argv[1])
threading.gate = threading.Event()
turns = Turns()

def work():
    with turns.alone(lambda: True, given_up=threading.Event()):
        import slow

thread = threading.Thread(target=work)
thread.start()
while "slow" not in sys.modules:
    pass
threading.Timer(0.2, threading.gate.set).start()
child = os.fork()
if child == 0:
    import slow, colorsys
    os._exit(slow.later)
_, status = os.waitpid(child, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_process_that_is_forked_meanwhile_can_import(tmp_path, module):
    """It has whole modules, and no turns to wait for."""
    module("slow", "threading.gate.wait(60)\nlater = 7")

    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )

    assert (completed.stdout, completed.stderr) == ("7\n", "")


def test_nothing_is_left_behind(module):
    """Afterwards Python imports as it did before, also where somebody else wrapped it since."""
    bootstrap: Any = importlib._bootstrap
    before = bootstrap._find_and_load
    turns = Turns()

    turns.end()

    assert bootstrap._find_and_load is before
    turns = Turns()
    ours = bootstrap._find_and_load

    def theirs(*args: Any) -> Any:
        return ours(*args)

    bootstrap._find_and_load = theirs
    try:
        turns.end()
        assert bootstrap._find_and_load is theirs
        assert importlib.import_module(module("kept", "later = 1")).later == 1
    finally:
        bootstrap._find_and_load = before
