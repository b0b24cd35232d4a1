# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 3: what a start does without torch's compiler, and what falls to the levels below.

Where the library itself is not the property, `exported.make` is replaced by a stand-in, whose
"library" is eager code: nothing is compiled then.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

import serve_warm
from levels import build, eager_below, in_a_process, served, started
from levels import ramp as x
from serve_warm.builder.round_trips import accept, plan
from serve_warm.compiler.compiled_objects import compile_arguments
from serve_warm.errors import BuildFailed, ConfigError
from serve_warm.precompile.builders.pickle import make
from serve_warm.precompile.compiled import LightModule
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.table import EntryTable
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.trace.captured import CompiledCall
from serve_warm.replica.start.prepare import only_libraries


class Net(nn.Module):
    """A linear layer with things on it that a wrapper must let through."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.label = "net"
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.linear.weight

    def __len__(self) -> int:
        return 7


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    yield
    SESSION.unload()
    torch._dynamo.reset()


class EagerLibraries:
    """Eager code that stands for libraries, and the files that were opened, in order."""

    def __init__(self) -> None:
        self.opened: list[Path] = []

    def make(self, function: Any, callee: Any, tensors: Any, arguments: Any) -> CompiledCall:
        made = make(function, callee, tensors, arguments)
        data = b"library of " + str(tensors[0].shape).encode()
        plan = self.plan(callee)
        return dataclasses.replace(made, fn=function, data=data, plan=plan, references={})

    def plan(self, callee: Any) -> dict[str, Any]:
        return {"said": "plan"}

    def load(self, path: Path, plan: Any) -> Any:
        assert plan["said"] == "plan"
        self.opened.append(path)
        return lambda callee, *tensors: callee(*tensors)


@pytest.fixture
def stand_in() -> EagerLibraries:
    return EagerLibraries()


@pytest.fixture
def written(stand_in: EagerLibraries, tmp_path: Path) -> tuple[Path, Any]:
    """The files of one library, and its call."""
    model = serve_warm.compile(Net().eval(), level=3)
    build(tmp_path / "entries", lambda: model(x()), level=3, make_library=stand_in.make)
    return tmp_path / "entries", model


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


# --- a module as torch.compile gives it, without torch's compiler -----------------------------


def both(level: int) -> tuple[Any, Any]:
    return serve_warm.compile(Net().eval(), level=level), torch.compile(Net().eval())


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda m: list(m.state_dict()), id="state_dict"),
        pytest.param(lambda m: [name for name, _ in m.named_modules()], id="modules"),
        pytest.param(lambda m: (m.label, m.calls, len(m), bool(m)), id="attributes"),
        pytest.param(lambda m: (m.training, m.train().training, m._orig_mod.training), id="train"),
        pytest.param(lambda m: m.to(torch.float64).linear.weight.dtype, id="to"),
        pytest.param(lambda m: type(m._orig_mod).__name__, id="orig_mod"),
        pytest.param(lambda m: sorted({"label", "linear", "train"} & set(dir(m))), id="dir"),
        pytest.param(lambda m: (hasattr(m, "nothing"), isinstance(m, nn.Module)), id="absent"),
        pytest.param(lambda m: isinstance(m, torch._dynamo.OptimizedModule), id="class"),
        pytest.param(lambda m: isinstance(m, Net), id="class of the model"),
        pytest.param(lambda m: list(get_model_state_dict(m)), id="checkpoint"),
        pytest.param(lambda m: list(copy.deepcopy(m).state_dict()), id="deepcopy"),
        pytest.param(lambda m: copy.deepcopy(m).linear.weight is m.linear.weight, id="own"),
    ],
)
def test_a_module_is_as_torch_compile_gives_it(look: Any, level: int):
    """To code that looks at it there is no difference."""
    ours, theirs = both(level)
    assert look(ours) == look(theirs)


@pytest.mark.parametrize("level", [2, 3])
def test_what_is_set_is_set_on_the_module(level: int):
    model, _ = both(level)
    model.label = "other"
    model.extra = nn.Parameter(torch.ones(2))
    del model.calls
    inner = model._orig_mod
    assert (inner.label, "extra" in dict(inner.named_parameters())) == ("other", True)
    assert not hasattr(inner, "calls")
    assert "_orig_mod.extra" in model.state_dict()


def test_a_pickle_is_handed_over_again():
    model = serve_warm.compile(Net().eval(), level=3, dynamic=False)
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is LightModule
    function = serve_warm.compile(lambda x: x, level=3)
    owner = SimpleNamespace(again=again, model=model, function=function)
    named = {"again": "dynamic=False, level=3", "model": "dynamic=False, level=3"}
    assert compile_arguments(owner) == {**named, "function": "level=3"}


def test_torch_compile_traces_through_a_module():
    """Dynamo reads the actual class, so the reported class changes nothing for it."""
    model = serve_warm.compile(Net().eval(), level=3)

    def outer(given: torch.Tensor) -> torch.Tensor:
        return model(given) * (2 if isinstance(model, nn.Module) else 3)

    compiled = torch.compile(outer, backend="eager", fullgraph=True)

    with torch.inference_mode():
        torch.testing.assert_close(compiled(x()), model._orig_mod(x()) * 2)


@pytest.mark.slow
def test_the_class_of_a_module_imports_no_compiler():
    """Not `isinstance`, a look at all attributes, a copy or a pickle."""
    program = """if True:
        import copy, inspect, pickle, sys
        from torch import nn
        import serve_warm

        model = serve_warm.compile(nn.Sequential(nn.Linear(2, 2)), level=3)
        assert not isinstance(model, nn.Linear)
        inspect.getmembers(model), repr(model), pickle.loads(pickle.dumps(model))
        assert type(copy.deepcopy(model)) is type(model)
        assert "torch._dynamo" not in sys.modules
        import torch._dynamo
        assert isinstance(model, torch._dynamo.OptimizedModule)
        inspect.getmembers(model), repr(model), pickle.loads(pickle.dumps(model))
        assert type(copy.deepcopy(model)) is type(model)
        """

    ran = run_python(program)

    assert ran.returncode == 0, ran.stderr


def test_hooks_of_the_wrapper_fire(stand_in: EagerLibraries, written: tuple[Path, Any]):
    folder, model = written
    with started(folder, load_library=stand_in.load), torch.inference_mode():
        handle = model.register_forward_hook(lambda module, args, out: out + 1)
        hooked = served(lambda: model(x()))
        handle.remove()
        plain = model(x())
    assert hooked.level == 3
    assert torch.equal(hooked.value, plain + 1)


# --- levels -----------------------------------------------------------------------------------


def test_a_known_call_is_level_3(stand_in: EagerLibraries, tmp_path: Path):
    model = serve_warm.compile(Net().eval(), level=3)
    library = build(tmp_path, lambda: model(x()), level=3, make_library=stand_in.make)
    with started(tmp_path, load_library=stand_in.load), torch.inference_mode(), eager_below():
        known, other = served(lambda: model(x())), served(lambda: model(x(5)))

    assert [entry["level"] for entry in library.described()] == [3]
    assert (known.level, known.compiles) == (3, 0)
    assert (other.level, other.reason) == (1, "no entry for this call, but 1 for other calls")
    assert torch.equal(other.value, x(5) @ model.linear.weight)
    assert len(stand_in.opened) == 1


class Towers(nn.Module):
    """Two methods that are one piece of machine code, with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.d = nn.Linear(4, 4), nn.Linear(4, 4)

    def query(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.q.weight

    def document(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.d.weight


class OfMethods(EagerLibraries):
    def plan(self, callee: Any) -> dict[str, Any]:
        return {"name": callee.__name__}

    def load(self, path: Path, plan: Any) -> Any:
        return lambda callee, *tensors: getattr(callee.__self__, plan["name"])(*tensors)


def test_the_same_machine_code_with_other_weights_is_another_function(tmp_path: Path):
    """A library holds no names: whose weights go in stands in the plan, one for each entry."""
    towers, stand_in = Towers().eval(), OfMethods()
    query, document = (
        serve_warm.compile(method, level=3) for method in (towers.query, towers.document)
    )
    calls = [lambda: query(x()), lambda: document(x())]
    library = build(tmp_path, *calls, level=3, make_library=stand_in.make)
    with started(tmp_path, load_library=stand_in.load), torch.inference_mode(), eager_below():
        first, second = map(served, calls)

    assert len(library.files) == 1
    assert (first.level, second.level) == (3, 3)
    assert torch.equal(first.value, towers.query(x()))
    assert torch.equal(second.value, towers.document(x()))


@pytest.mark.parametrize("kind", ["function", "decorated", "method"])
def test_functions_and_methods_have_level_3(kind: str, stand_in: EagerLibraries, tmp_path: Path):
    class Owner:
        @serve_warm.compile(level=3)
        def decorated(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.T

    owner, net = Owner(), Net().eval()
    call: Any = {
        "function": serve_warm.compile(lambda x: x @ x.T, level=3),
        "decorated": owner.decorated,
        "method": serve_warm.compile(net.forward, level=3),
    }[kind]
    library = build(tmp_path, lambda: call(x()), level=3, make_library=stand_in.make)

    assert [entry["level"] for entry in library.described()] == [3]


def test_what_no_library_can_be_made_of_is_level_2(tmp_path: Path):
    def refuse(*_: Any) -> Any:
        raise NoEntry("it returns a memory map")

    model = serve_warm.compile(Net().eval(), level=3)
    library = build(tmp_path, lambda: model(x()), level=2, make_library=refuse)
    with started(tmp_path), torch.inference_mode():
        again = served(lambda: model(x()))

    [said] = library.described()
    assert (said["level"], said["reason"]) == (2, "it returns a memory map")
    assert (again.level, again.reason, again.compiles) == (2, "it returns a memory map", 0)
    assert not library.has_entries(3)


def test_a_library_is_not_an_entry_of_level_2(stand_in: EagerLibraries, written: tuple[Path, Any]):
    model = serve_warm.compile(Net().eval())
    with started(written[0], load_library=stand_in.load), torch.inference_mode(), eager_below():
        other = served(lambda: model(x()))
    assert (other.level, "level=3" in other.reason) == (1, True)


@pytest.mark.parametrize("level", [0, 1, 4, "3"])
def test_another_level_is_refused(level: Any):
    with pytest.raises(ConfigError, match="level="):
        serve_warm.compile(Net(), level=level)


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        # With torch, the result of a block becomes invalid when the next block reads it.
        ({"mode": "reduce-overhead"}, {}, "CUDA graphs"),
        ({"options": {"triton.cudagraphs": True}}, {}, "CUDA graphs"),
        ({}, {"triton.cudagraphs": True}, "CUDA graphs"),
        ({"level": 3}, {}, "compile the whole model"),
    ],
)
def test_regions_have_no_graphs_or_libraries(arguments, settings, says, monkeypatch):
    """The sentence says what to do instead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    blocks = nn.Sequential(Net(), Net())
    with torch._inductor.config.patch(settings), pytest.raises(ConfigError, match=says):
        serve_warm.compile_regions(blocks, **arguments)


def test_regions_have_every_mode_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU nothing is captured, and `max-autotune` only uses its templates."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    blocks = torch.nn.Sequential(*(Net() for _ in range(2)))
    assert serve_warm.compile_regions(blocks, mode="max-autotune") is blocks


# --- files ------------------------------------------------------------------------------------


def test_what_was_written_is_read(written: tuple[Path, Any]):
    library = EntryTable.read(written[0])
    [entry] = [entry for unit in library.units.values() for entry in unit.entries]
    assert (entry.level, entry.plan, entry.reason) == (3, {"said": "plan", "once": ""}, "")
    assert library.files == {}
    assert (written[0] / entry.file).is_file()


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_library_is_not_opened(damage, written, stand_in):
    """Opening executes the library, so its digest is checked first. Level 1 serves instead."""
    folder, model = written
    [file] = folder.glob("library_*")
    data = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(data[:-1] if damage == "cut" else b"!" + data[1:])
    with started(folder, load_library=stand_in.load), torch.inference_mode(), eager_below():
        answer = served(lambda: model(x()))

    word = "missing" if damage == "gone" else "damaged"
    assert (answer.level, word in answer.reason) == (1, True)
    assert stand_in.opened == []


def test_both_parts_are_loaded_together(stand_in, tmp_path, monkeypatch):
    """Entries of level 2 in one folder, libraries in the other: a bad one spares the other."""
    light, model = serve_warm.compile(Net().eval(), level=3), serve_warm.compile(Net().eval())
    build(tmp_path / "exported", lambda: light(x()), level=3, make_library=stand_in.make)
    build(tmp_path / "precompiled", lambda: model(x()))
    monkeypatch.setattr("serve_warm.precompile.libraries.run.load", stand_in.load)
    why = SESSION.load(tmp_path / "precompiled", tmp_path / "exported")
    with torch.inference_mode():
        levels = [level_of(called, x()) for called in (light, model)]
    (tmp_path / "precompiled" / "index.json").write_text("{")
    half = SESSION.load(tmp_path / "precompiled", tmp_path / "exported")
    with torch.inference_mode():
        left = level_of(light, x())

    assert (why, levels) == ("", [3, 2])
    assert half.startswith("its entries cannot be read")
    assert left == 3


def level_of(model: Any, *args: Any) -> int:
    dispatcher = model.__dict__["_serve_warm"]
    before = {(use.call, use.level): use.calls for use in dispatcher.uses()}
    model(*args)
    [level] = {u.level for u in dispatcher.uses() if u.calls > before.get((u.call, u.level), 0)}
    return level


# --- a build, and what it takes for good ------------------------------------------------------

ALL_3 = [{"level": 3}, {"level": 3}]
MIXED = [{"level": 3}, {"level": 1}]


@pytest.mark.parametrize(
    ("stored", "entries", "levels"),
    [
        (["cache"], [], [(1, False)]),
        (["cache", "precompiled"], [{"level": 2}], [(1, False), (2, False)]),
        (["cache", "exported"], ALL_3, [(1, False), (3, True)]),
        (["cache", "exported"], MIXED, [(1, False), (3, False)]),
    ],
)
def test_each_level_has_a_round_trip(stored: Any, entries: Any, levels: Any):
    """If every call has a library, one trip runs without torch's compiler."""
    trips = plan(dict.fromkeys(stored, b""), entries)
    assert [(trip.level, trip.without_compiler) for trip in trips] == levels


def report(**other: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "verdict": "full_hit",
        "artifact": {},
        "warmup": {"compiler_processes": 0},
        "covered": {"expected": 2, "proven": 2},
        "entries": [{"callable": "Net", "call": "(t0)", "level": 3, "reason": ""}],
        "compiler_imported": "",
        "compiler_imported_by": "app, line 3",
    }
    return {**good, **other}


BELOW = [{"callable": "Net", "call": "(t0)", "level": 1, "reason": "a graph break"}]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"entries": BELOW}, r"Net\(t0\) ran at level 1: a graph break"),
        ({"compiler_imported": "start"}, "torch's compiler was imported by app, line 3, although"),
    ],
)
def test_libraries_that_need_more_are_not_published(other: Any, says: str):
    """The last round trip detects this. The app's own imports are allowed."""
    accept(report(), without_compiler=True)
    accept(report(compiler_imported="app"), without_compiler=True)
    accept(report(**other))
    with pytest.raises(BuildFailed, match=says):
        accept(report(**other), without_compiler=True)


def test_an_artifact_with_an_entry_that_differs_is_not_published():
    """A fresh replica of the round trip finds it, as any other would."""
    with pytest.raises(BuildFailed, match=r"it withdrew an entry: Net\(float32\[2\]\): it differs"):
        accept(report(parity={"failures": ["Net(float32[2]): it differs"]}))


# --- a start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "arguments", "only"),
    [
        (3, {}, True),
        (3, {"model": "dynamic=False, level=3"}, True),
        (3, {"other": "inductor,dynamic=None"}, False),
        (2, {}, False),
    ],
)
def test_a_start_knows_whether_it_needs_the_compiler(level: int, arguments: Any, only: bool):
    """Not if everything that is compiled requests libraries."""
    SESSION.dispatchers.clear()
    model = serve_warm.compile(Net().eval(), level=level)
    assert only_libraries(arguments) == only
    del model


# --- fresh processes --------------------------------------------------------------------------

# Dynamo traces `reduce`, `accumulate` and `iter` through its own Python versions of them.
APP = """
import functools
import itertools
import os

import torch
import serve_warm

BATCH = int(os.environ["BATCH"])
FORBID = BATCH == 3

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList([torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)])

    def forward(self, x, scale=1.0):
        for number, part in zip(itertools.accumulate([0, 1]), iter(self.parts)):
            x = part(torch.nn.functional.gelu(x) if number else x)
        return {"out": functools.reduce(torch.mul, [x, 1.0, scale]), "scale": scale}

def make():
    model = serve_warm.compile(Net().eval(), level=3, dynamic=False)
    return lambda *args: model(*args)["out"]

def calls():
    return [(torch.ones(2, 4),), (torch.ones(BATCH, 4), 2.0)]
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "app.py").write_text(APP)
    return folder, in_a_process(folder, "build", level=3, BATCH="3")


@pytest.mark.long
def test_a_fresh_process_starts_without_any_compiler(program: tuple[Path, dict[str, Any]]):
    folder, built = program
    start = in_a_process(folder, "start", BATCH="3", PATH="/nowhere", CXX="/nowhere/g++")
    assert built["refused"] == {}
    assert (start["why"], start["levels"], start["reasons"]) == ("", [3, 3], [""])
    assert (start["compiles"], start["compiler_processes"]) == (0, 0)
    assert start["imported"] is False
    assert start["outputs"] == built["outputs"]


@pytest.mark.long
def test_another_call_imports_the_compiler_and_is_compiled(program: tuple[Path, Any]):
    """The watch is there before Dynamo is used: what level 1 compiles is counted."""
    folder, _ = program
    start = in_a_process(folder, "start", BATCH="5")
    assert sorted(start["levels"]) == [1, 3]
    assert "no entry for this call, but 2 for other calls" in start["reasons"]
    assert (start["imported"], start["compiles"]) == (True, 1)


FORBIDDEN = """
import sys, torch
from serve_warm.compiler import evidence
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
watch = watch_process()
before = watch.counts()
with forbid():
    assert "torch._dynamo" not in sys.modules
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    try:
        compiled(torch.ones(2))
    except RuntimeError as error:
        with evidence.note_calls():
            pass
        print("forbidden", "fail_on_recompile" in str(error))
compiled(torch.ones(2))
print("compiles", (watch.counts() - before).compiles)
"""


@pytest.mark.slow
def test_a_proof_holds_for_a_compiler_that_is_imported_in_it():
    process = run_python(FORBIDDEN)
    assert process.stdout.splitlines() == ["forbidden True", "compiles 1"], process.stderr[-2000:]


@pytest.mark.parametrize("module", [nn.Identity(), nn.Sequential()])
def test_what_has_no_library_is_compiled_by_torch_once(module: nn.Module):
    """This includes a module with length 0, which is false, and one whose length raises."""
    model = serve_warm.compile(module, level=3)
    with torch.inference_mode(), eager_below():
        results = [model(torch.ones(2)).tolist() for _ in range(3)]
    assert results == [[1.0, 1.0]] * 3
    assert model._serve_warm.torch_compiled() is model._serve_warm.torch_compiled()


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(8, 4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.table[rows]


@pytest.mark.long
@torch.inference_mode()
def test_a_library_that_fails_raises_what_eager_raises(tmp_path: Path, capfd: Any):
    """An index out of range is the user's mistake, and has the user's exception."""
    model = serve_warm.compile(Looks().eval(), level=3, dynamic=False)
    build(tmp_path, lambda: model(torch.zeros(2, dtype=torch.long)), level=3)
    capfd.readouterr()
    with started(tmp_path):
        model(torch.ones(2, dtype=torch.long))
        for _ in range(3):
            with pytest.raises(IndexError):
                model(torch.full((2,), 9))
        after = served(lambda: model(torch.ones(2, dtype=torch.long)))

    assert torch.equal(after.value, torch.ones(2, 4))
    assert capfd.readouterr().err == ""
    assert {use.level for use in SESSION.uses() if "Looks" in use.callable and use.calls} == {3}
