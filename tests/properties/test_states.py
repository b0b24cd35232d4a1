# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 2 while a model changes between states, other threads work, and flags of torch change.

Most graphs here are matrix products, for which no C++ is compiled; level 1 runs eagerly.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import serve_warm
from levels import build, eager_below, entries_of, rebuilt, served, started
from levels import ramp as x
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from searched_environment import Searched
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.changes import unchanged as change_checks
from serve_warm.precompile.dispatch.session import SESSION

SWITCHES = 1000
WAIT_S = 60.0


def linear(seed: int, size: int = 4, out: int = 4) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(size, out, bias=False)


class Adapter(nn.Module):
    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = linear(seed, 4, rank), linear(seed + 1, rank, 4)


class Adapted(nn.Module):
    """A layer with one of two adapters, each with a scale of its own."""

    def __init__(self, ranks: tuple[int, int]) -> None:
        super().__init__()
        self.base = linear(0)
        self.adapters = nn.ModuleDict()
        self.scales = {"one": 2.0, "two": -3.0}
        # In a list, so that nn.Module does not register what is not active.
        self.kept = [{"one": Adapter(1, ranks[0]).eval(), "two": Adapter(3, ranks[1]).eval()}]
        self.set_adapter("two")

    def set_adapter(self, name: str) -> None:
        self.active = name
        self.adapters["active"] = self.kept[0][name]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        adapter = self.adapters["active"]
        change = adapter.up(adapter.down(given))
        return torch.addmm(self.base(given), change, torch.eye(4), alpha=self.scales[self.active])


class Switched(nn.Module):
    """Has no graph without breaks until `ready` is called."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.linear, self.part, self.is_ready = linear(0), nn.Identity(), False
        self.kept = [part]

    def ready(self) -> None:
        self.part, self.is_ready = self.kept[0], True

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            torch._dynamo.graph_break()
        return self.part(self.linear(given))


@pytest.mark.parametrize("part", [nn.Identity(), linear(1)], ids=["one structure", "two"])
def test_a_state_that_can_have_no_entry_costs_the_next_one_nothing(part: nn.Module, tmp_path: Path):
    """The refused state comes first in the build, with the same arguments."""
    model = serve_warm.compile(Switched(part).eval(), dynamic=False)
    library = build(tmp_path, lambda: model(x()), model._orig_mod.ready, *[lambda: model(x())] * 2)
    fresh = serve_warm.compile(Switched(part).eval(), dynamic=False)
    with started(tmp_path):
        fresh._orig_mod.ready()
        found = served(lambda: fresh(x()))

    assert len(entries_of(library)) == 1
    assert (found.level, found.compiles) == (2, 0)
    torch.testing.assert_close(found.value, fresh._orig_mod(x()))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(2, 2), (2, 3)], ids=["one structure", "two structures"])
def test_each_declared_adapter_has_an_entry(ranks, tmp_path, monkeypatch):
    """Two states in turn; no text says at each change why the other's entry does not fit."""
    model = serve_warm.compile(Adapted(ranks).eval(), dynamic=False)

    def call_with(name: str) -> Any:
        model._orig_mod.set_adapter(name)
        return model(x())

    # Twice, as a build replays its inputs: an entry that answers again is of a state that returns.
    calls = [lambda name=name: call_with(name) for name in ("one", "two", "one", "two")]
    library = build(tmp_path, *calls)
    eager = Adapted(ranks).eval()
    expected = {}
    for name in ("one", "two"):
        eager.set_adapter(name)
        expected[name] = eager(x())
    wrong = []
    searched = Searched(os.environ)

    with started(tmp_path), forbid():
        before = watch_process().counts()
        monkeypatch.setattr(os, "environ", searched)
        for number in range(SWITCHES):
            name = ("one", "two")[number % 2]
            if not torch.allclose(call_with(name), expected[name], rtol=1e-5, atol=1e-6):
                wrong.append((number, name))
        texts = searched.times
        counts = watch_process().counts() - before
        levels = {use.level for use in model.__dict__["_serve_warm"].uses()}

    assert library.refused == {}
    assert texts == 0
    assert len(entries_of(library)) == 2
    assert not torch.allclose(expected["one"], expected["two"])
    assert wrong == []
    assert (counts.compiles, counts.forbidden) == (0, 0)
    assert levels == {2}


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Plain(1), Plain(2)])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = layer(given)
        return given


class Plain(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.linear = linear(seed)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(given)


def twice(self: Any, given: torch.Tensor) -> torch.Tensor:
    return self.linear(self.linear(given))


@contextlib.contextmanager
def inserted(model: Any) -> Iterator[None]:
    before = list(model.layers)
    model.layers.insert(0, Plain(3).eval())
    yield
    # Not `del`, which leaves torch's list with an OrderedDict in place of a dict.
    model.layers = nn.ModuleList(before).eval()


@contextlib.contextmanager
def replaced_in_the_class(_model: Any) -> Iterator[None]:
    before, Plain.forward = Plain.forward, twice
    yield
    Plain.forward = before


@contextlib.contextmanager
def of_another_class(model: Any) -> Iterator[None]:
    before, model.layers[1] = model.layers[1], linear(4)
    yield
    model.layers[1] = before


@pytest.mark.parametrize("at_the_start", [False, True], ids=["after a call", "at the start"])
@pytest.mark.parametrize("change", [inserted, replaced_in_the_class, of_another_class])
def test_a_structure_that_comes_back_is_level_2_again(change, at_the_start, tmp_path):
    model = serve_warm.compile(Layered().eval(), dynamic=False)
    build(tmp_path, lambda: model(x()))
    inner = model._orig_mod
    results, expected = [], []

    def call() -> None:
        results.append(served(lambda: model(x())))
        expected.append(inner(x()))

    with contextlib.ExitStack() as stack:
        if not at_the_start:
            stack.enter_context(started(tmp_path))
            stack.enter_context(eager_below())
            call()
        for _ in range(2):
            with change(inner):
                if at_the_start and not results:
                    stack.enter_context(started(tmp_path))
                    stack.enter_context(eager_below())
                call()
            call()

    assert [r.level for r in results] == [2, 1, 2, 1, 2][at_the_start:]
    torch.testing.assert_close([result.value for result in results], expected)


@contextlib.contextmanager
def in_training(model: Any) -> Iterator[None]:
    model.train()
    yield
    model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("change", [contextlib.nullcontext, in_training, inserted])
def test_no_call_compiles_after_a_withdrawal_without_a_compiler(change, tmp_path):
    """Also if the withdrawn entry did not match the model at that moment."""
    layered = Layered()
    layered.layers[0] = Doubled()
    model = serve_warm.compile(layered.eval(), dynamic=False)
    (entry,) = entries_of(build(tmp_path, lambda: model(x())))

    with started(tmp_path):
        warm = served(lambda: model(x()))
        with change(model._orig_mod):
            model(x())
            SESSION.withdraw(entry, "withdrawn: it is wrong", eagerly=True)
        found = served(lambda: model(x()))
        longer = served(lambda: model(x(5)))

    assert warm.level == 2
    assert (found.level, found.reason) == (1, "withdrawn: it is wrong")
    assert (found.compiles, longer.compiles) == (0, 0)
    torch.testing.assert_close(found.value, warm.value)


class Doubled(nn.Module):
    """A layer whose answer is doubled in training, by a shared or an own layer."""

    def __init__(self, layer: nn.Linear | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.linear: nn.Module = linear(0) if layer is None else layer
        self.scale = scale

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        factor = self.scale * (2.0 if self.training else 1.0)
        return torch.addmm(given, self.linear(given), torch.eye(4), alpha=factor)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The entry of one call of `Doubled`."""
    folder = tmp_path_factory.mktemp("doubled")
    model = serve_warm.compile(Doubled().eval(), dynamic=False)
    library = build(folder, lambda: model(x()))
    assert library.refused == {}
    return folder


@contextlib.contextmanager
def compile_under_way() -> Iterator[threading.Thread]:
    """A thread that is in the middle of a compile of its own."""
    began, go_on = threading.Event(), threading.Event()

    def backend(graph: Any, _inputs: Any) -> Any:
        began.set()
        assert go_on.wait(WAIT_S)
        return graph.forward

    other = torch.compile(lambda given: given + 1, backend=backend)
    thread = threading.Thread(target=other, args=(torch.ones(2),))
    thread.start()
    assert began.wait(WAIT_S)
    try:
        yield thread
    finally:
        go_on.set()
        thread.join()


@pytest.mark.slow
def test_a_compile_in_another_thread_switches_no_entry_off(doubled: Path):
    """Torch's flag for it is the process': calls are served as ever, and a change is seen."""
    model = serve_warm.compile(Doubled().eval(), dynamic=False)
    eager, states = Doubled(), (False, False, True, False)
    with started(doubled), compile_under_way() as thread, eager_below():
        results = [served(lambda mode=mode: model.train(mode)(x())) for mode in states]
        under_way = thread.is_alive()
    expected = [eager.train(mode)(x()) for mode in states]

    assert under_way
    assert [r.level for r in results] == [2, 2, 1, 2]
    assert "training is bool True" in results[2].reason
    torch.testing.assert_close([result.value for result in results], expected)


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at once, each in a thread, and return the results."""
    together = threading.Barrier(len(calls))

    def begin(call: Callable[[], Any]) -> Any:
        together.wait(WAIT_S)
        with torch.inference_mode():
            return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


@pytest.mark.slow
def test_one_callable_is_built_from_two_threads(tmp_path: Path):
    model = serve_warm.compile(Doubled().eval(), dynamic=False)
    answers: list[Any] = []

    def handler(order: tuple[int, ...]) -> list[torch.Tensor]:
        return [model(x(rows)) for rows in order]

    library = build(
        tmp_path,
        lambda: answers.extend(in_threads(lambda: handler((2, 3, 4)), lambda: handler((2, 4, 3)))),
    )
    with started(tmp_path), forbid():
        after = handler((2, 3, 4))

    (unit,) = library.units.values()
    assert library.refused == {}
    assert len(unit.entries) == 3
    expected = [model._orig_mod(x(rows)) for rows in (2, 3, 4)]
    torch.testing.assert_close(after, expected)
    torch.testing.assert_close(answers, [expected, [expected[n] for n in (0, 2, 1)]])


class Asking(nn.Module):
    """Multiplies by a number that depends on whether its weight is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(0)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        factor = 2.0 if self.linear.weight.requires_grad else 5.0
        return torch.addmm(given, self.linear(given), torch.eye(4), alpha=factor)


@pytest.mark.slow
def test_a_forward_that_asks_whether_a_weight_is_frozen_is_told(tmp_path: Path):
    model, compiled = rebuilt(Asking, tmp_path, lambda model: model(x()))
    results, expected = [], []
    with started(tmp_path), eager_below():
        for on in (True, False, True):
            results.append(served(lambda on=on: compiled.requires_grad_(on)(x())))
            expected.append(model(x()))

    assert [r.level for r in results] == [2, 1, 2]
    assert "requires_grad" in results[1].reason
    torch.testing.assert_close([r.value for r in results], expected)


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_a_hook_of_all_modules_runs_once_for_each(tmp_path: Path, level: int):
    """At level 1, torch's own module around the model would run the hook twice."""
    _, model = rebuilt(Layered, tmp_path, lambda model: model(x()), level=level)
    with started(tmp_path), eager_below():
        before = served(lambda: model(x()))
        handle = register_module_forward_hook(lambda module, args, out: out * 2)
        try:
            hooked, wanted = served(lambda: model(x())), model._orig_mod(x())
        finally:
            handle.remove()
        after = served(lambda: model(x()))

    assert [before.level, hooked.level] == [level, 1]
    assert after.level > 1
    assert "_global_forward_hooks" in hooked.reason
    torch.testing.assert_close(hooked.value, wanted)


Flag = tuple[Callable[[], Any], Callable[[Any], Any], Any]
"""How it is read and set, and a value that it does not have."""


def attribute(of: Any, name: str, other: Any) -> Flag:
    return lambda: getattr(of, name), lambda value: setattr(of, name, value), other


def sdp(name: str) -> Flag:
    cuda: Any = torch.backends.cuda
    return getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp"), False


MHA = torch.backends.mha

FLAGS: dict[str, Flag] = {
    "cudnn.enabled": attribute(torch.backends.cudnn, "enabled", False),
    "cudnn.benchmark": attribute(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": attribute(torch.backends.cudnn, "deterministic", True),
    "mkldnn.enabled": attribute(torch.backends.mkldnn, "enabled", False),
    **{f"{name}_sdp": sdp(name) for name in ("flash", "mem_efficient", "math", "cudnn")},
    "mha.fastpath": (MHA.get_fastpath_enabled, MHA.set_fastpath_enabled, False),
    "fp32 precision": attribute(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "TF32 of cuDNN": attribute(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}


@pytest.mark.slow
@pytest.mark.parametrize("flag", [pytest.param(flag, id=name) for name, flag in FLAGS.items()])
def test_a_flag_that_is_set_after_the_start_is_seen_within_a_second(doubled: Path, flag: Flag):
    get, put, other = flag
    now = 0.0
    model = serve_warm.compile(Doubled().eval(), dynamic=False)
    before, results = get(), []
    expected = Doubled().eval()(x())

    with started(doubled, clock=lambda: now), eager_below():
        model(x())
        try:
            for value in (other, before) * 2:
                put(value)
                now += change_checks.RELOOK_S + 0.1
                results.append(served(lambda: model(x())))
        finally:
            put(before)

    assert before != other
    assert [r.level for r in results] == [1, 2] * 2
    torch.testing.assert_close([result.value for result in results], [expected] * 4)
