# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that run as soon as a module is imported, and the line that imported the compiler."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serve_warm._after_import import AfterImport
from serve_warm.compiler.imports import find_importer

HANG_S = 300.0
NAMES = (
    *("comes", "there", "found_of_app", "found_by_thread", "json", "looked_for"),
    *("fails_first", "prepared", "half", "inside"),
)
"""The modules of these tests."""


@pytest.fixture
def when_imported() -> Iterator[Callable[[str, Callable[[Any], object]], None]]:
    finder = AfterImport(NAMES)
    yield finder.make
    sys.meta_path.remove(finder)


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


@pytest.fixture
def told() -> list[Any]:
    """The states of the modules at each callback, in order."""
    return []


def test_a_module_is_told_of_when_it_is_imported(when_imported, module, told):
    """Once, whole, in the import itself; it looks as if nobody had waited for it."""
    name = module("comes", "later = 1")
    when_imported(name, lambda comes: told.append((comes, comes.later)))
    assert told == []
    comes = importlib.import_module(name)
    importlib.import_module(name)
    assert told == [(comes, 1)]
    assert type(comes.__loader__).__name__ == type(comes.__spec__.loader).__name__
    assert type(comes.__loader__).__name__ == "SourceFileLoader"


def test_a_module_that_is_there_is_told_of_at_once(when_imported, module, told):
    """The caller need not know whether the module is loaded. Equal calls run once."""
    there = importlib.import_module(module("there", "later = 1"))
    for _ in range(2):
        when_imported("there", told.append)
    assert told == [there]


def test_the_importer_of_a_module_is_named_with_its_line(when_imported, module, threads):
    """Nobody is named if the module was there before."""
    found: list[str] = []
    of_app, by_thread = module("found_of_app", ""), module("found_by_thread", "")
    app = module("app_that_finds", f"\nimport {of_app}")
    for name in (of_app, by_thread, "json"):
        when_imported(name, lambda _: found.append(find_importer()))
    importlib.import_module(app)
    threads.submit(importlib.import_module, by_thread).result(HANG_S)

    assert found[:2] == ["", "app_that_finds, line 3"]
    assert found[2].startswith("concurrent.futures.thread, line ")


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


IMPORTS_DYNAMO = """
import torch
from serve_warm import WarmupMixin
from serve_warm.compiler.imports import IMPORTER
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
    assert output_of(IMPORTS_DYNAMO) == "'' '__main__, line 7'\n"


STARTS = """
import asyncio, contextlib, torch, serve_warm
from serve_warm.compiler.imports import IMPORTER, is_imported
class App(serve_warm.WarmupMixin):
    def __init__(self):
        self.model = serve_warm.compile(torch.nn.Linear(2, 2), level=3)
    def warmup_inputs(self):
        return [serve_warm.Input(target=self.run)]
    def run(self):
        print(is_imported(), IMPORTER.place.partition(",")[0])
        raise KeyError
app = App()
print(is_imported())
with contextlib.suppress(serve_warm.errors.WarmupFailed):
    asyncio.run(app.warm_up())
"""


@pytest.mark.slow
def test_a_start_imports_the_compiler_itself_after_init():
    """On the thread of the start. From a thread of a pool, the line would be one of that pool."""
    assert output_of(STARTS).split() == ["False", "True", "serve_warm.replica.start.prepare"]


def test_who_only_looks_for_a_module_is_no_import(when_imported, module, told):
    """`find_spec` finds it as ever, and the call is made when it is imported."""
    name = module("looked_for", "later = 1")
    when_imported(name, told.append)
    spec = importlib.util.find_spec(name)
    assert spec.loader.get_source(name).endswith("later = 1\n")
    assert importlib.util.find_spec("looked_for_in_vain") is None
    assert told == []
    assert importlib.import_module(name) is told[0]


def test_an_import_that_fails_is_not_told_of(when_imported, module, told, gate):
    name = module("fails_first", "if not threading.gate.is_set(): raise KeyError('not yet')")
    when_imported(name, told.append)
    for _ in range(2):
        with pytest.raises(KeyError, match="not yet"):
            importlib.import_module(name)
    assert told == []
    gate.set()

    assert importlib.import_module(name) is told[0]
    assert len(told) == 1


def test_what_a_call_raises_fails_the_import(when_imported, module, told):
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


def test_who_asks_in_the_middle_of_an_import_is_told_at_its_end(
    when_imported, threads, module, gate, told
):
    """The importing thread makes the call. No call gets a half-loaded module, and nobody waits."""
    name = module("half", "threading.gate.wait(60)\nlater = 1")
    when_imported("comes", print)  # the finder is there before the import
    importing_it = threads.submit(importlib.import_module, name)
    while name not in sys.modules:
        assert not importing_it.done()
    when_imported(name, lambda half: told.append((half.later, threading.get_ident())))
    assert told == []
    gate.set()

    importing_it.result(HANG_S)
    assert [later for later, _ in told] == [1]
    assert told[0][1] != threading.get_ident()


def test_who_asks_from_inside_of_a_module_is_told_later(when_imported, module, told):
    """A callback from inside the module's own import runs at its end, without a deadlock."""
    when_imported("comes", print)  # the finder is there before the import
    threading.ask = lambda name: when_imported(name, lambda inside: told.append(inside.later))
    try:
        importlib.import_module(module("inside", "threading.ask('inside')\nlater = 1"))
    finally:
        del threading.ask
    assert told == [1]
