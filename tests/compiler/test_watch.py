# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The watch over torch.compile, the proof's stance, and the attributes of compiled callables.

Compiler processes are counted in test_cold_warm.py, where some are run anyway.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config

import serve_warm
from compiled import compiled, double, fresh, stance
from processes import run_to_end
from serve_warm import _private_folders
from serve_warm import compile as serve_warm_compile
from serve_warm._after_import import AfterImport
from serve_warm.compiler import caches, evidence
from serve_warm.compiler.caches import (
    header_directory,
    keep_headers_private,
    private_directory,
)
from serve_warm.compiler.compiled_objects import (
    compile_arguments,
    how_to_raise_the_limit,
    reaches_compiled,
    uses_cuda_graphs,
)
from serve_warm.compiler.cpu_target import pin_portable_cpu, require_compiler
from serve_warm.compiler.cuda_graphs import clone_outputs
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import EVENTS_KEPT, CompileCounter, watch_process
from serve_warm.errors import CompilerMissing, ConfigError
from serve_warm.fingerprint import lacking, read_cpu_isa
from serve_warm.report import CompileEvent, Counts

RECOMPILE_LIMIT = 8
"""Variants of one code object that Dynamo compiles unless it is told otherwise."""


@pytest.fixture
def seen() -> Iterator[CompileCounter]:
    watch = watch_process()
    yield watch
    watch.forbidden = watch.on_event = None


def change(seen: CompileCounter, action: Callable[[], Any]) -> Counts:
    before = seen.counts()
    action()
    return seen.counts() - before


# --- counting ------------------------------------------------------------------------------


def test_a_first_call_is_a_compile_without_a_reason(seen: CompileCounter):
    model = compiled(double)
    counted = change(seen, lambda: model(torch.ones(2, 3)))
    event = seen.events()[-1]
    assert (counted.compiles, counted.recompiles, counted.eager_falls) == (1, 0, 0)
    assert (event.kind, event.reason, event.signature) == ("compile", "", "x=float32[2, 3]")
    assert event.function.startswith("double (compiled.py:")
    assert event.thread == threading.get_native_id()


def test_a_warm_call_counts_nothing(seen: CompileCounter):
    model = compiled(double)
    model(torch.ones(2))
    counted = change(seen, lambda: [model(torch.ones(2)) for _ in range(50)])
    assert counted == Counts(calls=50)
    assert counted.quiet


@pytest.mark.parametrize(
    ("first", "second", "signature", "reason"),
    [
        (torch.ones(2), torch.ones(5), "x=float32[5]", "expected 2, actual 5"),
        (torch.ones(2, 3), torch.ones(3, 2).T, "x=float32[2, 3] strides [1, 2]", "stride"),
    ],
    ids=["size", "strides"],
)
def test_a_recompile_names_the_guard_that_failed(seen, first, second, signature, reason):
    model = compiled(double)
    model(first)
    counted = change(seen, lambda: model(second))
    event = seen.events()[-1]
    assert (counted.compiles, counted.recompiles) == (1, 1)
    assert not counted.quiet
    assert (event.kind, event.signature) == ("recompile", signature)
    assert reason in event.reason


def named(x: torch.Tensor, user: str, opts: dict[str, str]) -> torch.Tensor:
    if opts and opts[next(iter(opts))] == "fast":
        return x + 1
    return x * len(user)


def test_a_guard_on_a_text_of_a_request_shows_its_length(seen: CompileCounter):
    """The attribute or argument and the line of code stay: they say what to change."""
    model = compiled(named)
    model(torch.ones(2), "a@b.c", {})
    model(torch.ones(2), "d@e.f.g", {})
    by_text = seen.events()[-1]
    model(torch.ones(2), "a@b.c", {"h@i.j": "fast"})
    model(torch.ones(2), "a@b.c", {"h@i.j": "slow"})
    by_key = seen.events()[-1]

    assert "user == str[5]" in by_text.reason
    assert "in named" in by_text.reason
    assert by_text.signature == "x=float32[2], user=str[7]"
    assert by_key.signature == "x=float32[2], user=str[5], opts.str[5]=str[4]"
    for event in (by_text, by_key):
        assert "@" not in str(event) + event.signature


@pytest.mark.parametrize(
    ("first", "forbids", "says"),
    [
        # A megabyte in a request is no megabyte in the log.
        ("a@b.c" * 300_000, False, ["user == str[1500000]"]),
        # In the proof, torch quotes its guards in the error.
        ("a@b.c", True, ["user == str[5]", "function name: 'named'"]),
    ],
    ids=["long", "in the proof"],
)
def test_no_event_shows_a_text(seen: CompileCounter, first: str, forbids: bool, says: list[str]):
    model = compiled(named)
    model(torch.ones(2), first, {})
    with contextlib.ExitStack() as stack:
        if forbids:
            for context in (evidence.note_calls(), forbid(), pytest.raises(RuntimeError)):
                stack.enter_context(context)
        model(torch.ones(2), "d@e.f", {})

    event = seen.events()[-1]
    assert event.kind == ("forbidden" if forbids else "recompile")
    assert all(text in event.reason for text in says)
    assert "@" not in event.reason
    assert len(event.reason) <= 1000


def test_the_recompile_limit_is_an_event(seen: CompileCounter):
    model = compiled(double)
    counted = change(seen, lambda: [model(torch.ones(n)) for n in range(1, RECOMPILE_LIMIT + 4)])
    event = seen.events()[-1]
    assert (counted.compiles, counted.eager_falls) == (RECOMPILE_LIMIT, 1)
    assert (event.kind, event.signature) == ("eager", f"x=float32[{RECOMPILE_LIMIT + 1}]")
    assert event.reason.startswith("recompile limit reached; ")


def limit_in_settings(limit: int) -> Any:
    return torch._dynamo.config.patch(recompile_limit=limit)


def test_a_raised_recompile_limit_is_no_event(seen: CompileCounter):
    """The fix that is recommended is one."""
    by_argument = "torch.compile" in how_to_raise_the_limit(16)
    model = compiled(double, **({"recompile_limit": 16} if by_argument else {}))
    sizes = range(1, RECOMPILE_LIMIT + 4)
    with contextlib.nullcontext() if by_argument else limit_in_settings(16):
        counted = change(seen, lambda: [model(torch.ones(n)) for n in sizes])
    assert (counted.compiles, counted.eager_falls) == (RECOMPILE_LIMIT + 3, 0)


def test_every_frame_is_counted_once(seen: CompileCounter):
    """Graph breaks and compiled functions within others count as often as torch itself says."""
    inner = torch.compiler.disable(compiled(double))

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return inner(y) * 2

    model = torch.compile(outer, backend="eager", dynamic=False)
    frames = torch._dynamo.utils.counters["frames"]
    before = frames["ok"]

    counted = change(seen, lambda: [model(torch.ones(n)) for n in (2, 3, 2)])

    assert counted.compiles == frames["ok"] - before
    assert counted.compiles >= 6  # two shapes of two parts of `outer` and of `inner`


def test_compiles_of_all_threads_are_counted(seen: CompileCounter):
    """There is one watch for the process, whoever asks for it and whichever thread compiles."""
    models = [compiled(double) for _ in range(8)]
    with ThreadPoolExecutor(4) as threads:
        counted = change(seen, lambda: list(threads.map(lambda m: m(torch.ones(2)), models)))
    assert watch_process() is seen
    assert counted.compiles == 8


@pytest.mark.slow
def test_events_are_bounded_and_counts_are_not(seen: CompileCounter):
    total = EVENTS_KEPT + 6
    counted = change(seen, lambda: [compiled(double)(torch.ones(2)) for _ in range(total)])
    assert len(seen.events()) == EVENTS_KEPT
    assert counted.compiles == total


def test_an_observer_is_told_by_the_thread_that_compiled(seen: CompileCounter):
    told: list[tuple[str, int]] = []
    seen.on_event = lambda event: told.append((event.kind, threading.get_native_id()))
    model = compiled(double)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(model, torch.ones(2)).result()
        native_id = thread.submit(threading.get_native_id).result()
    assert told == [("compile", native_id)]
    assert seen.events()[-1].thread == native_id


# --- forbidding ----------------------------------------------------------------------------


def test_forbid_raises_on_what_is_not_compiled(seen: CompileCounter):
    """In the proof, compiled shapes work; a first or another compile is an error and not made."""
    model, never_called = compiled(double), compiled(double)
    model(torch.ones(2))
    before = seen.counts()
    with forbid():
        result = model(torch.ones(2))
        with pytest.raises(RuntimeError, match="expected 2, actual 3"):
            model(torch.ones(3))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            never_called(torch.ones(3))

    assert (seen.counts() - before).compiles == 0
    assert torch.equal(result, torch.full((2,), 3.0))


def test_forbid_ends_with_its_block(seen: CompileCounter):
    model = compiled(double)
    with pytest.raises(ZeroDivisionError), forbid():
        _ = 1 / 0
    counted = change(seen, lambda: model(torch.ones(3)))
    assert counted.compiles == 1
    assert stance() == "default"


def test_forbid_raises_on_what_dynamo_has_given_up_on(seen: CompileCounter):
    """The proof detects code that runs eagerly, and leaves it unchanged."""
    model = compiled(double)
    for n in range(1, RECOMPILE_LIMIT + 2):
        model(torch.ones(n))
    with forbid():
        model(torch.ones(RECOMPILE_LIMIT))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            model(torch.ones(RECOMPILE_LIMIT + 1))
    after = change(seen, lambda: model(torch.ones(RECOMPILE_LIMIT + 1)))

    assert after == Counts(calls=1)


def test_a_compile_that_is_swallowed_in_the_proof_is_counted(seen: CompileCounter):
    """If a handler catches the error of the proof and answers, the input is not proven."""
    model, met = compiled(double), seen.counts().forbidden
    with evidence.note_calls(), forbid(), pytest.raises(RuntimeError):
        model(torch.ones(7))

    event = seen.events()[-1]
    assert seen.counts().forbidden - met == 1
    assert (event.kind, event.signature) == ("forbidden", "x=float32[7]")


def test_after_ready_a_compile_raises_what_it_is_told(seen: CompileCounter):
    """Nothing that is warm is refused, and a refused compile works once it is allowed again."""
    asked: list[CompileEvent] = []

    def refuse(event: CompileEvent) -> LookupError:
        asked.append(event)
        return LookupError(event.signature)

    model = compiled(double)
    model(torch.ones(2))
    before = seen.counts()
    seen.forbidden = refuse

    results = [model(torch.ones(2))]
    with pytest.raises(LookupError, match="3"):
        model(torch.ones(3))
    results.append(model(torch.ones(2)))
    refused = seen.counts() - before
    seen.forbidden = None
    allowed = change(seen, lambda: model(torch.ones(3)))

    assert [(event.kind, event.signature) for event in asked] == [("forbidden", "x=float32[3]")]
    assert refused == Counts(forbidden=1, calls=3)
    assert [result.tolist() for result in results] == [[3.0, 3.0]] * 2
    assert allowed.compiles == 1


# --- threads -------------------------------------------------------------------------------


def test_calling_threads_are_collected(seen: CompileCounter):
    model = compiled(double)
    model(torch.ones(2))
    with ThreadPoolExecutor(1) as caller, ThreadPoolExecutor(1) as bystander:
        calling = caller.submit(threading.get_native_id).result()
        bystander.submit(double, torch.ones(2)).result()
        with evidence.note_calls() as calls:
            caller.submit(model, torch.ones(2)).result()
            bystander.submit(double, torch.ones(2)).result()
        bystander.submit(model, torch.ones(2)).result()

    assert calls.threads == {calling}


def test_a_function_that_is_not_compiled_on_purpose_is_no_call(seen: CompileCounter):
    """`torch.compiler.disable` takes the same way through torch, and calls nothing compiled."""
    plain = torch.compiler.disable(fresh(double))
    with evidence.note_calls() as calls:
        plain(torch.ones(2))
    assert calls.threads == set()


def test_a_wrapper_of_a_compiled_function_is_not_taken_for_it():
    """`functools.wraps` copies all attributes, but the wrapper's own calls are not compiled."""
    ours = serve_warm.compile(fresh(double), level=3)
    wrapper = functools.wraps(ours)(lambda x: x)
    assert wrapper._serve_warm is ours._serve_warm
    assert compile_arguments(Empty(function=wrapper)) == {}
    assert list(compile_arguments(Empty(function=ours))) == ["function"]


# --- whether anything is compiled ----------------------------------------------------------


def module_level(x: torch.Tensor) -> torch.Tensor:
    return at_module_level(x)


at_module_level = compiled(double)


class Empty:
    """An app that compiles nothing itself, but its module does."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)
        self.buckets = {"batch": [1, 2], "text": ("a", "b")}

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Naming(Empty):
    """Names a compiled function at the top of its module, through a function."""

    async def embed(self, x: torch.Tensor) -> torch.Tensor:
        return module_level(x)


def in_closure() -> Any:
    model = compiled(double)

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    return run


def block_compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].compile(backend="eager")
    return model


REACHABLE = {
    "attribute": lambda: Empty(model=compiled(double)),
    "inside an object": lambda: Empty(engine=Empty(model=compiled(double))),
    "in a namespace": lambda: Empty(engine=SimpleNamespace(model=compiled(double))),
    "in containers": lambda: Empty(models={"a": [(compiled(double),)]}),
    "a module": lambda: Empty(model=torch.compile(nn.Linear(2, 2), backend="eager")),
    "a block of a module": lambda: Empty(model=block_compiled_in_place()),
    "in a closure": lambda: Empty(run=in_closure()),
    "a partial": lambda: Empty(run=functools.partial(compiled(double), torch.ones(2))),
    "named by a method": Naming,
    "a library to be": lambda: Empty(model=serve_warm.compile(nn.Linear(2, 2), level=3)),
    "handed over": lambda: Empty(model=serve_warm.compile(fresh(double), backend="eager")),
}


@pytest.mark.parametrize("where", REACHABLE)
def test_something_compiled_is_found_from_the_owner(where: str):
    """Wherever an app keeps it: an input that does not call it proves nothing about it."""
    assert reaches_compiled(REACHABLE[where]())


def test_an_app_that_compiles_nothing_reaches_nothing():
    """Neither other compiled code of the module nor an object with every attribute counts."""
    owner = Empty(handle=Everything(), model=nn.Linear(2, 2), double=double, itself=None)
    owner.itself = owner
    assert not reaches_compiled(owner)


# --- what is compiled how ------------------------------------------------------------------


class Everything:
    """Has every attribute, like Serve's DeploymentHandle."""

    def __getattr__(self, name: str) -> Everything:
        return self


def test_compile_arguments_are_named_by_attribute():
    """Modules, functions and modules compiled in place, with mode, dynamic and options."""
    owner = SimpleNamespace(
        module=torch.compile(nn.Linear(2, 2), dynamic=False),
        function=torch.compile(fresh(double), options={"max_autotune": True}),
        mode=torch.compile(fresh(double), mode="reduce-overhead"),
        in_place=nn.Linear(2, 2),
        eager=torch.compile(fresh(double), backend="eager"),
        plain=nn.Linear(2, 2),
        sizes=[1, 2],
        other=Everything(),
    )
    owner.in_place.compile(dynamic=True, backend="inductor")

    found = compile_arguments(owner)

    assert found.keys() == {"module", "function", "mode", "in_place", "eager"}
    assert "dynamic=False" in found["module"]
    assert "max_autotune=True" in found["function"]
    assert "triton.cudagraphs=True" in found["mode"]
    assert "dynamic=True" in found["in_place"]
    assert "eager" in found["eager"]
    assert all("inductor" in found[name] for name in found.keys() - {"eager"})


@pytest.mark.parametrize("compile_", [torch.compile, serve_warm_compile], ids=["torch", "ours"])
def test_a_compiled_method_that_stands_in_its_module_is_seen(compile_):
    model = nn.Linear(2, 2)
    model.forward = compile_(model.forward, mode="reduce-overhead")
    assert "triton.cudagraphs=True" in compile_arguments(SimpleNamespace(model=model))["model"]


class Codec(nn.Module):
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


@pytest.mark.parametrize(
    "first",
    [torch.compiler.disable, functools.partial(torch.compile, dynamic=True)],
    ids=["disabled", "compiled"],
)
def test_a_method_hides_no_compiled_one(first, monkeypatch: pytest.MonkeyPatch):
    """One method with CUDA graphs among several is found, because its outputs must be copied."""
    owner = SimpleNamespace(model=Codec())
    owner.model.encode = first(owner.model.encode)
    owner.model.decode = torch.compile(owner.model.decode, mode="reduce-overhead")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert uses_cuda_graphs(owner)
    assert "triton.cudagraphs=True" in compile_arguments(owner)["model"]


# --- the rest ------------------------------------------------------------------------------

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs no C++ compiler")


@NO_GPU
def test_the_missing_compiler_is_named(tmp_path: Path):
    with pytest.raises(CompilerMissing, match=r"looked for g\+\+[\s\S]*apt-get install g\+\+"):
        require_compiler({"PATH": str(tmp_path)})


@NO_GPU
@pytest.mark.parametrize(
    ("named", "trouble"),
    [
        ("/nonexistent", "does not exist"),
        ("other-cc", "is not on PATH"),
        ("{}/text", "cannot be executed"),
    ],
)
def test_a_wrong_cxx_is_named_and_to_be_corrected(tmp_path: Path, named: str, trouble: str):
    """The advice does not say to install a compiler, or to set a variable that is set."""
    (tmp_path / "text").touch(mode=0o600)
    named = named.format(tmp_path)
    with pytest.raises(CompilerMissing) as raised:
        require_compiler({"PATH": os.environ["PATH"], "CXX": named})
    assert raised.value.message == f"no C++ compiler: CXX={named} {trouble}"
    assert raised.value.hint.startswith("correct CXX, or unset it to use g++")
    assert "install" not in raised.value.hint


def test_a_compiler_that_is_there_is_enough(tmp_path: Path):
    """CXX is looked for on the PATH that is given, as one word."""
    (tmp_path / "other-cc").write_text("#!/bin/sh\n")
    (tmp_path / "other-cc").chmod(0o755)
    require_compiler({"PATH": str(tmp_path), "CXX": "other-cc"})


def test_cache_directories_are_private():
    first, second = private_directory(), private_directory()
    assert first != second
    assert {stat.S_IMODE(path.stat().st_mode) for path in (first, second)} == {0o700}
    assert list(first.iterdir()) == list(second.iterdir()) == []


# --- precompiled headers ------------------------------------------------------------------


CODECACHE = "torch._inductor.codecache"


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    user = tmp_path / f"serve_warm-{os.geteuid()}"
    monkeypatch.setattr(_private_folders, "user_folder", lambda name: user / name)
    return user / "headers"


def test_headers_are_kept_for_the_user(headers: Path):
    first = header_directory()
    assert first == headers
    assert [stat.S_IMODE(path.stat().st_mode) for path in (first, first.parent)] == [0o700] * 2
    assert header_directory() == first


def test_headers_that_others_could_have_made_are_not_used(headers, caplog):
    usual = header_directory()
    headers.parent.chmod(0o777)
    found = header_directory()
    assert found.resolve() != usual.resolve()
    assert list(found.iterdir()) == []
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert "this process compiles its own C++ headers" in caplog.text
    assert str(headers.parent) in caplog.text


@pytest.mark.parametrize(
    ("asked", "is_shared"),
    [(["own", "own"], False), (["shared", "own"], False), (["shared", "shared"], True)],
)
def test_headers_move_once_however_often_it_is_asked_for(
    asked: list[Any], is_shared: bool, headers: Path, monkeypatch: pytest.MonkeyPatch
):
    """The hook asks before `__init__`, and the start after it: headers are compiled only once."""
    after_import = AfterImport([CODECACHE])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(caches, "when_imported", after_import.make)
    monkeypatch.setattr(caches, "_asked", set())
    monkeypatch.delitem(sys.modules, CODECACHE, raising=False)
    codecache = ModuleType(CODECACHE)
    vars(codecache).update(_HEADER_DIR="/tmp/known", _HEADER_LOCK_DIR="/tmp/known/locks")
    for whose in asked:
        keep_headers_private(whose)

    monkeypatch.setitem(sys.modules, CODECACHE, codecache)
    after_import.make_waiting(CODECACHE)
    keep_headers_private(asked[-1])

    folder = Path(vars(codecache)["_HEADER_DIR"])
    assert (folder == headers) == is_shared
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert vars(codecache)["_HEADER_LOCK_DIR"] == str(folder / "locks")


def test_a_build_that_asks_too_late_fails(monkeypatch):
    """Another process of this user can have written the headers that Inductor already uses."""
    monkeypatch.setattr(caches, "when_imported", lambda name, call: None)
    monkeypatch.setattr(caches, "_asked", set())
    monkeypatch.setitem(sys.modules, CODECACHE, ModuleType(CODECACHE))
    keep_headers_private("shared")
    with pytest.raises(ConfigError, match="processes of this user can write to"):
        keep_headers_private("own")


# --- a portable CPU -----------------------------------------------------------------------

PINNED = """
import os, sys, threading
from serve_warm.compiler.cpu_target import pin_portable_cpu
if "late" in sys.argv:
    import torch._inductor.config, torch._inductor.cpu_vec_isa
    torch._inductor.config.cpp.simdlen = 512
    torch._inductor.cpu_vec_isa.valid_vec_isa_list()
assert list(pin_portable_cpu()) == []
assert "late" in sys.argv or "torch" not in sys.modules
import torch
from torch._inductor import config, cpp_builder, cpu_vec_isa

def show():
    isas = [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list()]
    key = config.save_config_portable()
    flags = [f for f in cpp_builder._get_optimization_cflags("g++")[0] if "march" in f]
    print(cpu_vec_isa.pick_vec_isa(), isas, key["cpp.simdlen"], key["cpp.march"], flags)

show()
config.cpp.simdlen = 512
with config.patch({"cpp.simdlen": 512, "cpp.march": "native"}):
    show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


CAN_PIN = "cpp.march" in config._config


def has_portable_isa() -> bool:
    return platform.machine() == "x86_64" and not lacking(read_cpu_isa())


def pinned(order: str) -> subprocess.CompletedProcess[str]:
    target = {"ATEN_CPU_CAPABILITY": "avx512", "TORCHINDUCTOR_CPP_MARCH": "native"}
    target["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # no probes: they take five seconds a run
    return run_to_end([sys.executable, "-c", PINNED, order], env={**os.environ, **target})


@pytest.mark.long
@pytest.mark.skipif(not has_portable_isa(), reason="this CPU is below x86-64-v3")
@pytest.mark.skipif(not CAN_PIN, reason="this torch has no setting cpp.march")
@pytest.mark.parametrize("order", ["early", "late"])
def test_the_preset_holds_in_every_thread_and_over_every_option(order: str):
    """AVX2 is chosen, compiled for and in the key, if pinned before or after importing torch."""
    completed = pinned(order)
    shown = "avx2 ['avx2'] 256 x86-64-v3 ['march=x86-64-v3']"
    assert completed.stdout.splitlines() == [shown] * 3, completed.stderr


@pytest.mark.skipif(not has_portable_isa(), reason="this CPU is below x86-64-v3")
@pytest.mark.skipif(CAN_PIN, reason="this torch has the setting cpp.march")
@pytest.mark.parametrize("order", ["early", "late"])
def test_a_torch_that_cannot_be_pinned_is_not_used_as_if_it_were(order: str):
    """2.11 has no setting for the compiler's own instructions: it says so and ends."""
    completed = pinned(order)
    assert completed.stdout == ""
    assert f"torch {torch.__version__} cannot pin its setting cpp.march" in completed.stderr


def test_the_preset_is_for_one_architecture(monkeypatch: pytest.MonkeyPatch):
    """Elsewhere it is a mistake in the configuration, said in one sentence."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match="works only on Linux x86_64, but this is Linux aarch64"):
        pin_portable_cpu()


def test_a_cpu_without_avx2_is_not_pinned_to_it(monkeypatch: pytest.MonkeyPatch):
    """The result lists the missing features, and torch uses this CPU."""
    before = list(sys.meta_path)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags\t: sse sse2 avx cx16\n")
    missing = pin_portable_cpu()
    assert {"avx2", "fma", "bmi2"} <= set(missing)
    assert sys.meta_path == before
    assert config.cpp.simdlen is None


def test_what_captures_below_a_library_is_seen(monkeypatch: pytest.MonkeyPatch):
    """A call without a library goes to torch.compile, whose graph overwrites earlier results."""
    owner = SimpleNamespace(model=serve_warm.compile(Codec(), mode="reduce-overhead", level=3))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert uses_cuda_graphs(owner)


def test_outputs_of_the_cpu_are_not_copied():
    """Cloning is for what CUDA graphs own: other tensors and values stay the same objects."""
    outputs = {"scores": torch.ones(2), "names": ["a"]}
    assert clone_outputs(outputs)["scores"] is outputs["scores"]


def test_a_module_of_torch_is_named_and_not_torchs_wrapper():
    """Dynamo traces modules of torch.nn through a function of its own, whose name says nothing."""
    watch = watch_process()  # sees nothing of what was compiled before the first call of it
    model = torch.compile(nn.Sequential(nn.Linear(4, 4)).eval(), backend="eager", dynamic=False)
    with torch.inference_mode():
        model(torch.ones(2, 4))
    event = watch.events()[-1]
    assert event.function.startswith("Sequential.forward (container.py:")
