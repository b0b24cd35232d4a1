# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Imports in the background take turns with those of other threads, and hold up nothing else."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from serve_warm.compiler import background_import
from serve_warm.compiler.background_import import Turns, when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HANG_S = 300.0
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
    """The event that the modules of these tests wait for."""
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
    """A thread that imports a module during its background import gets the complete module."""
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


def test_imports_of_user_code_are_told_with_what_lies_within_them(module):
    """Seconds of torch's compiler are in `__init__`, and not the model's: someone has to count."""
    told: list[str] = []
    watching = Turns(tell=lambda name, began, ended: told.append(name) if ended > began else None)
    try:
        importlib.import_module(module("outer", f"import {module('inner', '')}"))
    finally:
        watching.end()

    assert told == ["outer"]


@pytest.mark.slow
def test_the_background_waits_for_an_import_under_way(turns, threads, gate, module):
    """A module of somebody else that is half-made is not entered."""
    other = threads.submit(importlib.import_module, module("others", "threading.gate.wait(60)"))
    while "others" not in sys.modules:
        assert not other.done()

    background = threads.submit(alone, turns, "json")

    with pytest.raises(TimeoutError):
        background.result(3 * background_import.QUIET_S)
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
    threading.Event().wait(3 * background_import.QUIET_S)
    order.append("ready")
    ready.set()
    working.result(HANG_S)

    assert order == ["ready", "begun"]


def test_what_is_given_up_is_not_begun(turns):
    """After giving up, the caller imports itself and does not wait."""
    given_up = threading.Event()
    given_up.set()

    with turns.alone(lambda: True, given_up=given_up) as mine:
        assert not mine


def test_a_module_that_raises_holds_nobody_up(turns, threads, module):
    """The next import continues, and gets the error itself."""
    broken = module("broken", "raise KeyError('broken')")

    for _ in range(2):
        with pytest.raises(KeyError, match="broken"):
            threads.submit(alone, turns, broken).result(HANG_S)

    assert importlib.import_module(module("fine", "later = 1")).later == 1


def test_what_waits_lets_go_of_a_background_that_needs_its_lock(threads, gate, module, monkeypatch):
    """Neither thread waits forever, whatever lock it is: the import continues in parallel."""
    turns = Turns(stuck_s=MOMENT_S)
    lock = threading.Lock()
    monkeypatch.setattr(threading, "lock", lock, raising=False)
    name = module("locking", "threading.gate.wait(60)\nwith threading.lock: later = 1")
    try:
        background = in_background(turns, threads, name)
        with lock:
            gate.set()
            other = importlib.import_module(module("beside", "later = 2"))
            again = importlib.import_module(module("beside_too", "later = 3"))
            assert not background.done()

        assert (background.result(HANG_S).later, other.later, again.later) == (1, 2, 3)
    finally:
        turns.end()


@pytest.mark.slow
def test_a_background_that_gets_on_is_waited_for(threads, module):
    """However long it takes in all."""
    turns = Turns(stuck_s=MOMENT_S)
    steps = "import threading\nthreading.Event().wait(0.1)"
    names = [module(f"step_{number}", steps) for number in range(10)]
    lines = "\n".join(f"import {name}" for name in names)
    try:
        background = in_background(turns, threads, module("long_way", f"{lines}\nlater = 1"))

        importlib.import_module(module("patient", "later = 2"))

        assert sys.modules["long_way"].later == 1
        background.result(HANG_S)
    finally:
        turns.end()


IN_THE_BACKGROUND = """
import importlib, logging.config, multiprocessing, os, sys, threading
from serve_warm.compiler.background_import import Turns

sys.path.insert(0, sys.argv[1])
threading.gate = threading.Event()
turns = Turns(stuck_s=1e6)

def work():
    with turns.alone(lambda: True, given_up=threading.Event()):
        import slow

def child():
    import slow, colorsys
    raise SystemExit(slow.later)

thread = threading.Thread(target=work)
thread.start()
while "slow" not in sys.modules:
    pass
threading.Timer(0.2, threading.gate.set).start()
"""

DICT_CONFIG = """
handler = {"class": "theirs.Handler"}
logging.config.dictConfig({"version": 1, "handlers": {"theirs": handler}})
thread.join()
print(sys.modules["slow"].later)
"""

OS_FORK = """
number = os.fork()
if number == 0:
    try:
        child()
    except SystemExit as end:
        os._exit(end.code)
_, status = os.waitpid(number, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""

MULTIPROCESSING = """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
thread.join()
print(process.exitcode)
"""

FORK_AND_LOGGING = """
logging._lock.acquire()
number = os.fork()
if number == 0:
    logging.getLogger("child")
    import colorsys
    os._exit(7)
logging._lock.release()
_, status = os.waitpid(number, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(DICT_CONFIG, id="dictConfig"),
        pytest.param(OS_FORK, id="os.fork"),
        pytest.param(MULTIPROCESSING, id="multiprocessing"),
        pytest.param(FORK_AND_LOGGING, id="fork with logging's lock"),
    ],
)
def test_user_code_does_as_ever_meanwhile(program, tmp_path, module):
    """Logging can be set up, and a forked child has complete modules and no waits."""
    module("slow", "import logging\nthreading.gate.wait(60)\nlogging.getLogger('s')\nlater = 7")
    module("theirs", "import logging\nclass Handler(logging.StreamHandler): pass")

    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_THE_BACKGROUND + program, str(tmp_path)],
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


# --- when a module comes ------------------------------------------------------------------


@pytest.fixture
def told() -> list[Any]:
    """The states of the modules at each callback, in order."""
    return []


def test_a_module_is_told_of_when_it_is_imported(module, told):
    """Once, whole, in the import itself; it looks as if nobody had waited for it."""
    name = module("comes", "later = 1")
    when_imported(name, lambda comes: told.append((comes, comes.later)))
    assert told == []

    comes = importlib.import_module(name)
    importlib.import_module(name)

    assert told == [(comes, 1)]
    assert type(comes.__loader__).__name__ == type(comes.__spec__.loader).__name__
    assert type(comes.__loader__).__name__ == "SourceFileLoader"


def test_a_module_that_is_there_is_told_of_at_once(module, told):
    """The caller need not know whether the module is loaded. Equal calls run once."""
    there = importlib.import_module(module("there", "later = 1"))

    for _ in range(2):
        when_imported("there", told.append)

    assert told == [there]


def test_the_importer_of_a_module_is_named_with_its_line(module, threads):
    """Nobody is named if the module was there before."""
    found: list[str] = []
    of_app, by_thread = module("found_of_app", ""), module("found_by_thread", "")
    app = module("app_that_finds", f"\nimport {of_app}")
    for name in (of_app, by_thread, "json"):
        when_imported(name, lambda _: found.append(background_import.find_importer()))

    importlib.import_module(app)
    threads.submit(importlib.import_module, by_thread).result(HANG_S)

    assert found[:2] == ["", "app_that_finds, line 3"]
    assert found[2].startswith("concurrent.futures.thread, line ")


IMPORTS_DYNAMO = """
import torch
from serve_warm import WarmupMixin
from serve_warm.compiler.background_import import IMPORTER
class App(WarmupMixin):
    def __init__(self):
        self.compiled = torch.compile(lambda x: x, backend="eager")
before = IMPORTER.place
App()
print(repr(before), repr(IMPORTER.place))
"""


@pytest.mark.slow
def test_the_importer_of_the_compiler_is_the_code_outside_torch():
    """`torch.compile` imports Dynamo in `__init__`: the caller's line is named."""
    command = [sys.executable, "-c", IMPORTS_DYNAMO]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ended.stdout == "'' '__main__, line 7'\n"


def test_who_only_looks_for_a_module_is_no_import(module, told):
    """`find_spec` finds it as ever, and the call is made when it is imported."""
    name = module("looked_for", "later = 1")
    when_imported(name, told.append)

    spec = importlib.util.find_spec(name)

    assert spec.loader.get_source(name).endswith("later = 1\n")
    assert importlib.util.find_spec("looked_for_in_vain") is None
    assert told == []
    assert importlib.import_module(name) is told[0]


def test_an_import_that_fails_is_not_told_of(module, told, gate):
    """The callback runs after the next successful import."""
    name = module("fails_first", "if not threading.gate.is_set(): raise KeyError('not yet')")
    when_imported(name, told.append)

    for _ in range(2):
        with pytest.raises(KeyError, match="not yet"):
            importlib.import_module(name)
    assert told == []
    gate.set()

    assert importlib.import_module(name) is told[0]
    assert len(told) == 1


def test_a_module_that_is_not_there_stays_missing(module, told):
    """Waiting for it changes no error, and it may come later."""
    when_imported("comes_late", told.append)
    with pytest.raises(ModuleNotFoundError, match="No module named 'comes_late'"):
        importlib.import_module("comes_late")

    late = importlib.import_module(module("comes_late", "later = 1"))

    assert told == [late]


def test_what_a_call_raises_fails_the_import(module, told):
    """A module that could not be prepared is not there; all calls are made for the next one."""
    name = module("prepared", "later = 1")

    def prepare(prepared: Any) -> None:
        if len(told) == 1:
            raise ValueError("cannot be prepared")
        prepared.later = 2

    when_imported(name, told.append)
    when_imported(name, prepare)

    with pytest.raises(ValueError, match="cannot be prepared"):
        importlib.import_module(name)
    assert importlib.import_module(name).later == 2
    assert len(told) == 2


def test_who_asks_in_the_middle_of_an_import_waits_for_it(threads, module, gate, told):
    """No callback gets a half-loaded module, however the import began."""
    name = module("half", "threading.gate.wait(60)\nlater = 1")
    importing_it = threads.submit(importlib.import_module, name)
    while name not in sys.modules:
        assert not importing_it.done()

    asking = threads.submit(when_imported, name, lambda half: told.append(half.later))
    with pytest.raises(TimeoutError):
        asking.result(MOMENT_S)
    gate.set()

    asking.result(HANG_S)
    assert told == [1]


def test_who_asks_from_inside_of_a_module_is_told_later(threads, module, told):
    """A callback from inside the module's own import runs later, without a deadlock."""
    source = "threading.ask('inside')\nlater = 1"
    came = threading.Event()

    def ask(name: str) -> None:
        when_imported(name, lambda inside: (told.append(inside.later), came.set()))

    threading.ask = ask
    try:
        threads.submit(importlib.import_module, module("inside", source)).result(HANG_S)
    finally:
        del threading.ask

    assert came.wait(HANG_S)
    assert told == [1]


def test_of_many_that_ask_and_import_at_once_none_is_forgotten(threads, module):
    """Whatever the order, each is called once with the whole module."""
    names = [module(f"raced_{number}", "later = 1") for number in range(50)]
    told: list[tuple[str, int, int]] = []

    def ask(asker: int) -> None:
        for name in names:
            when_imported(name, lambda it: told.append((it.__name__, asker, it.later)))

    def bring() -> None:
        for name in names:
            importlib.import_module(name)

    for work in [threads.submit(ask, 1), threads.submit(bring), threads.submit(ask, 2)]:
        work.result(HANG_S)

    assert sorted(told) == sorted((name, asker, 1) for name in names for asker in (1, 2))
