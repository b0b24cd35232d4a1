# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 2: which calls an entry serves, what falls to level 1, and that the numbers are right.

Most graphs here are matrix products and nothing else, for which no C++ is compiled; and where only
the fall is the property, level 1 runs eagerly.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import io
import itertools
import pickle
import re
import textwrap
import threading
import tracemalloc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import serve_warm
from levels import build, eager_below, in_a_process, served, started
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import ConfigError
from serve_warm.precompile.session import SESSION
from serve_warm.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCALE = 2.0
"""A global that a graph is built on."""


@pytest.fixture(autouse=True, scope="module")
def one_watch() -> Iterator[None]:
    watch_process()
    yield
    SESSION.unload()
    torch._dynamo.reset()


def flat(parts: Any) -> list[Any]:
    if isinstance(parts, torch.Tensor):
        return [parts]
    items = parts.values() if isinstance(parts, dict) else parts or ()
    return [tensor for item in items for tensor in flat(item)]


class Scaled(nn.Module):
    """A linear layer whose scale is built into the graph, from wherever it comes."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.config = SimpleNamespace(scale=scale, sizes=[1, 2])
        self.flag = False

    def forward(self, x: Any, scale: Any = 1.0, *, parts: Any = None, more: Any = None) -> Any:
        total = float(scale) * self.config.scale * SCALE
        if self.flag:
            total = -total
        for part in flat(parts):
            x = x @ part
        return torch.addmm(self.linear.bias, x, self.linear.weight, alpha=total)


def x(*shape: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(*(shape or (3, 4)))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Entries for two calls of `Scaled`."""
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    folder = tmp_path_factory.mktemp("scaled")
    parts = [torch.eye(4), {"a": torch.eye(4)}]
    library = build(folder, lambda: model(x(), 1.0), lambda: model(x(), parts=parts))
    assert library.refused == {}
    return folder, model


def close(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)


# --- what an entry serves ---------------------------------------------------------------------


@torch.inference_mode()
def test_a_call_that_an_entry_was_made_for_is_served_by_it(scaled: tuple[Path, Any]):
    """Level 2, nothing compiled although nothing was compiled before; and bit for bit the same."""
    folder, model = scaled
    stock = torch.compile(model._orig_mod, dynamic=False)(x(), 1.0)

    with started(folder), forbid():
        first, second = served(lambda: model(x(), 1.0)), served(lambda: model(x(), 1.0))

    assert [(s.level, s.reason, s.compiles) for s in (first, second)] == [(2, "", 0)] * 2
    assert torch.equal(first.value, stock)
    assert torch.equal(second.value, stock)
    close(first.value, model._orig_mod(x(), 1.0))


class Under(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return function(*args, **(kwargs or {}))


PART = torch.eye(4)

REQUESTS = {
    "text": lambda m, text: m(x(), more=text),
    "text in a list": lambda m, text: m(x(), parts=[PART, {"a": PART.clone()}], more=[text]),
    "key": lambda m, text: m(x(), more={text: 1}),
    "keyword": lambda m, text: m(x(), **{text: 1}),
}


class Taking(Scaled):
    """Takes any keyword, as models of libraries do."""

    def forward(self, x: Any, *, parts: Any = None, more: Any = None, **others: Any) -> Any:
        return super().forward(x, parts=parts, more=more)


@pytest.fixture(scope="module")
def taking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An entry for a call of `Taking` without any text."""
    model = serve_warm.compile(Taking().eval(), dynamic=False)
    folder = tmp_path_factory.mktemp("taking")
    library = build(folder, lambda: model(x()))
    assert library.refused == {}
    return folder, model


def calls_at_level_1() -> int:
    return sum(u.calls for u in SESSION.uses() if u.level == 1 and u.callable.endswith("Taking"))


@pytest.mark.parametrize("request_", [pytest.param(c, id=name) for name, c in REQUESTS.items()])
@torch.inference_mode()
def test_texts_of_requests_are_neither_kept_nor_shown(
    taking: tuple[Path, Any], request_: Any, caplog: pytest.LogCaptureFixture
):
    """600 requests with a megabyte each, all different: nothing grows, and nobody reads them."""
    folder, model = taking
    before = calls_at_level_1()

    with started(folder), eager_below():
        request_(model, "warm@b.c")
        gc.collect()
        tracemalloc.start()
        for number in range(600):
            request_(model, f"user{number}@b.c" * 90_000)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        used = [use for use in SESSION.uses() if use.callable.endswith("Taking")]
        text = Report(entries=tuple(used)).text()

    assert kept < 4_000_000
    assert calls_at_level_1() - before == 601
    assert all(len(use.call) <= 1000 and "@b.c" not in f"{use.call}{use.reason}" for use in used)
    assert "str[" in text
    assert "@b.c" not in text + caplog.text


OTHER_CALLS: dict[str, Any] = {
    "shape": lambda m: m(x(5, 4), 1.0),
    "fewer rows": lambda m: m(x()[:2], 1.0),
    "view of another": lambda m: m(x(4, 4)[:3].T.contiguous().T, 1.0),
    "transposed": lambda m: m(x(4, 3).T, 1.0),
    "sliced": lambda m: m(x(3, 8)[:, ::2], 1.0),
    "int": lambda m: m(x(), 1),
    "bool": lambda m: m(x(), True),
    "zero": lambda m: m(x(), 0.0),
    "minus zero": lambda m: m(x(), -0.0),
    "keyword": lambda m: m(x(), scale=1.0),
    "default": lambda m: m(x()),
    "one more": lambda m: m(x(), 1.0, more=None),
    "tuple": lambda m: m(x(), parts=(PART, {"a": PART.clone()})),
    "other key": lambda m: m(x(), parts=[PART, {"b": PART.clone()}]),
    "nested": lambda m: m(x(), parts=[[PART], {"a": PART.clone()}]),
    "parameter": lambda m: m(nn.Parameter(x()), 1.0),
    "requires grad": lambda m: m(x().requires_grad_(), 1.0),
    "twice": lambda m: m(x(), parts=[PART, {"a": PART}]),
    "tensor scalar": lambda m: m(x(), torch.tensor(1.0)),
    "object": lambda m: m(x(), 1.0, more=object()),
}


@pytest.mark.parametrize("call", [pytest.param(c, id=name) for name, c in OTHER_CALLS.items()])
@torch.no_grad()
def test_another_call_is_level_1_with_the_right_numbers(scaled: tuple[Path, Any], call: Any):
    """Anything that compiled code depends on and that is not as at the build: counted, named."""
    folder, model = scaled
    expected = call(model._orig_mod)

    with started(folder), eager_below():
        with torch.inference_mode():
            model(x(), 1.0)  # an entry is at hand
        result = served(lambda: call(model))

    assert result.level == 1
    assert result.reason
    assert torch.equal(result.value, expected)


@pytest.mark.parametrize(
    ("context", "why"),
    [
        pytest.param(torch.no_grad, "inference_mode is off, and was on", id="no_grad"),
        pytest.param(torch.enable_grad, "grad mode on", id="grad"),
        pytest.param(lambda: torch.inference_mode(False), "grad mode on", id="nothing"),
        pytest.param(
            lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast is", id="autocast"
        ),
        pytest.param(lambda: torch.device("cpu"), "stands between", id="default device"),
        pytest.param(Under, "stands between", id="function mode"),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["first call", "known call"])
def test_another_state_is_level_1(scaled: tuple[Path, Any], context: Any, why: str, known: bool):
    """What no argument shows is checked at each call, and the reason says what differs."""
    folder, model = scaled
    inference = contextless if "inference" in why or "grad" in why else torch.inference_mode

    with started(folder), eager_below():
        if known:
            with torch.inference_mode():
                model(x(), 1.0)
        with inference(), context():
            result = served(lambda: model(x(), 1.0))
        with torch.inference_mode():
            back = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert why in result.reason
    assert (back.level, back.reason) == (2, "")


def contextless() -> Any:
    return torch.inference_mode(False)


def set_back(setter: Any, value: Any, before: Any) -> Any:
    setter(value)
    return lambda: setter(before)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(
            lambda: set_back(torch.set_num_threads, 7, torch.get_num_threads()),
            "threads is 7",
            id="threads",
        ),
        pytest.param(
            lambda: set_back(torch.set_default_dtype, torch.float64, torch.float32),
            "default_dtype is float64, and was float32",
            id="default dtype",
        ),
        pytest.param(
            lambda: set_back(torch.use_deterministic_algorithms, True, False),
            "deterministic is",
            id="deterministic",
        ),
        pytest.param(
            lambda: set_back(torch.set_default_device, "cpu", None), "stands between", id="device"
        ),
    ],
)
@torch.inference_mode()
def test_another_setting_of_the_process_is_level_1(scaled: tuple[Path, Any], change: Any, why: str):
    """Set after the start, and seen at the next call."""
    folder, model = scaled
    given = x()

    with started(folder), eager_below():
        model(given, 1.0)
        undo = change()
        try:
            result = served(lambda: model(given, 1.0))
        finally:
            undo()
        back = served(lambda: model(given, 1.0))

    assert result.level == 1
    assert why in result.reason
    assert back.level == 2


@torch.no_grad()
def test_under_a_transform_a_call_is_level_1(scaled: tuple[Path, Any]):
    """What vmap passes looks like one tensor and stands for many: inputs or weights."""
    folder, model = scaled
    many = x(5, 3, 4)
    weights = {"linear.weight": torch.stack([torch.eye(4), 2 * torch.eye(4)])}

    one = x()

    def with_weight(given: Any) -> Any:
        return torch.func.functional_call(model, {"_orig_mod.linear.weight": given}, (one, 1.0))

    with started(folder), eager_below():
        with torch.inference_mode():
            model(x(), 1.0)
        inputs = served(lambda: torch.vmap(lambda given: model(given, 1.0))(many))
        ensemble = served(lambda: torch.vmap(with_weight)(weights["linear.weight"]))

    assert inputs.level == ensemble.level == 1
    close(inputs.value, model._orig_mod(many.reshape(15, 4)).reshape(5, 3, 4))
    close(
        ensemble.value[1] - model._orig_mod.linear.bias,
        2 * (ensemble.value[0] - model._orig_mod.linear.bias),
    )


@torch.inference_mode()
def test_inside_another_compiled_function_it_is_traced(scaled: tuple[Path, Any]):
    """An outer torch.compile sees the model, not the dispatcher: one graph, the right numbers."""
    folder, model = scaled

    @torch.compile(backend="eager", fullgraph=True)
    def outer(given: torch.Tensor) -> Any:
        return model(given, 1.0) @ given.T

    with started(folder):
        result = outer(x())

    close(result, model._orig_mod(x(), 1.0) @ x().T)


def test_a_compiled_module_is_as_true_as_the_module():
    """`if self.model:` works as it did, also where the module has no length."""
    assert serve_warm.compile(nn.Linear(2, 2))
    assert not serve_warm.compile(nn.Sequential())


# --- the module changed -----------------------------------------------------------------------


@pytest.fixture
def fresh(scaled: tuple[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """Another model of the kind that `scaled` was built from."""
    yield scaled[0], serve_warm.compile(Scaled().eval(), dynamic=False)
    SESSION.unload()


CHANGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dtype": (lambda m: m.double(), "float64"),
    "weight of another shape": (
        lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 5))),
        "[4, 5]",
    ),
    "weight of other strides": (
        lambda m: setattr(m.linear, "weight", nn.Parameter(x(4, 4).T)),
        "strides [1, 4]",
    ),
    "assigned": (
        lambda m: m.load_state_dict(
            {k: v.double() for k, v in m.state_dict().items()}, assign=True
        ),
        "float64",
    ),
    "tied": (lambda m: setattr(m.linear, "bias", m.linear.weight), "[4, 4]"),
    "other class": (lambda m: setattr(m, "linear", Twice(m.linear)), "Twice"),
    "own forward": (lambda m: setattr(m, "forward", lambda *a: m.linear(a[0])), "of its own"),
    "hook": (lambda m: m.register_forward_hook(lambda m, a, out: out * 2), "1 hooks"),
    "flag": (lambda m: setattr(m, "flag", True), "flag"),
    "config": (lambda m: setattr(m.config, "scale", 3.0), "config.scale is float 3.0, and was"),
    "config gone": (
        lambda m: setattr(m, "config", SimpleNamespace(scale=1)),
        "config.scale is int",
    ),
}


class Twice(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(linear.weight * 2), linear.bias


@pytest.mark.parametrize(
    ("change", "why"), [pytest.param(*case, id=name) for name, case in CHANGED.items()]
)
@torch.inference_mode()
def test_a_model_changed_before_the_start_is_level_1(
    fresh: tuple[Path, Any], change: Callable[[Any], Any], why: str
):
    """The reason names the change; what the model now computes is what is returned."""
    folder, model = fresh
    with torch.inference_mode(False):
        change(model._orig_mod)
    given = x().to(next(model.parameters()).dtype)

    with started(folder), eager_below():
        try:
            expected = model._orig_mod(given, 1.0)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:20]):
                model(given, 1.0)
            (use,) = [u for u in SESSION.uses() if u.calls and why in u.reason][:1]
            assert use.level == 1
            return
        result = served(lambda: model(given, 1.0))

    assert (result.level, why in result.reason) == (1, True), result.reason
    assert torch.equal(result.value, expected)


IN_BETWEEN = [
    *("dtype", "weight of another shape", "weight of other strides", "assigned", "tied"),
    *("other class", "own forward", "hook", "flag", "config", "config gone"),
]


@pytest.mark.parametrize(
    ("change", "why"), [pytest.param(*CHANGED[name], id=name) for name in IN_BETWEEN]
)
@torch.inference_mode()
def test_a_model_changed_after_it_was_served_is_level_1(
    fresh: tuple[Path, Any], change: Callable[[Any], Any], why: str
):
    """Whoever changes the model, and however: it is noticed at the next call."""
    folder, model = fresh
    # Of this one: those of earlier tests end at any time, and their counts with them.
    uses = model.__dict__["_serve_warm"].uses
    with started(folder), eager_below():
        before = served(lambda: model(x(), 1.0))
        with torch.inference_mode(False):
            change(model._orig_mod)
        seen = uses()
        try:
            result = served(lambda: model(x(), 1.0))
            assert torch.equal(result.value, model._orig_mod(x(), 1.0))
        except RuntimeError:
            with pytest.raises(RuntimeError):
                model._orig_mod(x(), 1.0)
        added = set(uses()) - set(seen)

    assert before.level == 2
    assert {u.level for u in added} == {1}
    assert any(why in u.reason for u in added)


def by_data(weight: torch.Tensor, new: torch.Tensor) -> None:
    weight.data = new


def by_set(weight: torch.Tensor, new: torch.Tensor) -> None:
    with torch.no_grad():
        weight.set_(new)


@pytest.mark.parametrize(
    ("exchange", "new"),
    [
        pytest.param(by_data, torch.full((4, 4), 2.0).double(), id="dtype"),
        pytest.param(by_data, torch.arange(16.0).reshape(4, 4).T, id="strides"),
        pytest.param(by_data, torch.ones(4, 5), id="shape"),
        pytest.param(by_set, torch.arange(16.0).reshape(4, 4).T, id="strides, set"),
        pytest.param(by_set, torch.ones(4, 5), id="shape, set"),
    ],
)
def test_weights_exchanged_without_a_trace_are_level_1(
    fresh: tuple[Path, Any], exchange: Any, new: torch.Tensor
):
    """`.data` tells nobody: compiled code would read what it gets as what it expects."""
    folder, model = fresh
    weight = model._orig_mod.linear.weight
    with started(folder), eager_below():
        with torch.inference_mode():
            model(x(), 1.0)
        exchange(weight, new)
        seen = SESSION.uses()
        with torch.inference_mode():
            try:
                result = served(lambda: model(x(), 1.0))
                assert torch.equal(result.value, model._orig_mod(x(), 1.0))
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    model._orig_mod(x(), 1.0)
        added = set(SESSION.uses()) - set(seen)

    assert any(u.level == 1 and "that its graph finds by itself" in u.reason for u in added)


@torch.inference_mode()
def test_new_values_are_seen_at_level_2(fresh: tuple[Path, Any]):
    """Weights are not in an entry: loaded, replaced or written in place, it computes with them."""
    folder, model = fresh
    inner = model._orig_mod
    state = {name: tensor * 2 for name, tensor in inner.state_dict().items()}

    def load() -> None:
        model.load_state_dict({f"_orig_mod.{k}": v for k, v in state.items()})

    def replace() -> None:
        inner.linear.weight = nn.Parameter(torch.eye(4))

    def write() -> None:
        inner.linear.bias.fill_(5.0)

    with started(folder), forbid():
        model(x(), 1.0)
        for change in (load, replace, write):
            with torch.inference_mode(False), torch.no_grad():
                change()
            result = served(lambda: model(x(), 1.0))

            assert (result.level, result.compiles) == (2, 0)
            close(result.value, inner(x(), 1.0))


@torch.inference_mode()
def test_back_and_forth_is_level_2_again(fresh: tuple[Path, Any]):
    """A flag is set and set back: the entry fits as before."""
    folder, model = fresh
    inner = model._orig_mod
    with started(folder), eager_below():
        inner.flag = True
        away = served(lambda: model(x(), 1.0))
        inner.flag = False
        back = served(lambda: model(x(), 1.0))

    assert (away.level, back.level) == (1, 2)
    close(back.value, inner(x(), 1.0))


@torch.inference_mode()
def test_a_changed_global_is_level_1(fresh: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch):
    """A value that the graph took from a Python module is looked up there at the start."""
    folder, model = fresh
    monkeypatch.setitem(globals(), "SCALE", 3.0)

    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert result.reason == f"{__name__}.SCALE is float 3.0, and was float 2.0"
    assert torch.equal(result.value, model._orig_mod(x(), 1.0))


@torch.inference_mode()
def test_a_patched_method_is_level_1(fresh: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch):
    """No source file changed, and another function stands in the class."""
    folder, model = fresh
    monkeypatch.setattr(Scaled, "forward", lambda self, given, scale: self.linear(given) * 7)

    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert "Scaled" in result.reason
    assert torch.equal(result.value, model._orig_mod(x(), 1.0))


# --- several modules --------------------------------------------------------------------------


@torch.inference_mode()
def test_modules_of_one_structure_share_entries(scaled: tuple[Path, Any]):
    """Each with its own weights; one that the graph differs for does not take part."""
    folder, _ = scaled
    models = [serve_warm.compile(Scaled().eval(), dynamic=False) for _ in range(3)]
    for number, model in enumerate(models):
        model._orig_mod.linear.weight.fill_(float(number))
    other = serve_warm.compile(Scaled(scale=5.0).eval(), dynamic=False)

    with started(folder), eager_below():
        results = [served(lambda m=m: m(x(), 1.0)) for m in models]
        apart = served(lambda: other(x(), 1.0))

    assert [r.level for r in results] == [2, 2, 2]
    for result, model in zip(results, models, strict=True):
        close(result.value, model._orig_mod(x(), 1.0))
    assert (apart.level, "config.scale" in apart.reason) == (1, True)
    close(apart.value, other._orig_mod(x(), 1.0))


@torch.inference_mode()
def test_other_arguments_of_torch_compile_do_not_share(scaled: tuple[Path, Any]):
    """What was compiled with another mode is other code."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False, options={"max_autotune": True})

    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert "compiled with dynamic=False, and here with" in result.reason


class Indexed(nn.Module):
    """A block that knows which one it is, as decoders' attention does."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.a, self.b, self.index = nn.Linear(4, 4), nn.Linear(4, 4), index

    def forward(self, given: torch.Tensor, caches: Any = None) -> torch.Tensor:
        return torch.addmm(self.b.bias, self.a(given), self.b.weight, alpha=self.index + 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(given))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = layer(given)
        return self.head(given)


@torch.inference_mode()
def test_an_index_in_the_graph_makes_an_entry_for_each_layer(tmp_path: Path):
    """The layers look alike and compute differently: none gets another one's entry."""
    eager = Stack(*[Indexed(i) for i in range(3)]).eval()
    model = serve_warm.compile_regions(copy.deepcopy(eager), dynamic=False)
    library = build(tmp_path, lambda: model(x()))

    with started(tmp_path), forbid():
        result = model(x())

    assert [len(unit.entries) for unit in library.units.values()] == [3]
    close(result, eager(x()))


@torch.inference_mode()
def test_one_entry_serves_all_layers(tmp_path: Path):
    """Blocks of one structure are compiled once, and each computes with its own weights."""
    eager = Stack(*[Block() for _ in range(4)]).eval()
    model = serve_warm.compile_regions(copy.deepcopy(eager), dynamic=False)
    library = build(tmp_path, lambda: model(x()))

    with started(tmp_path), forbid():
        result = model(x())

    (unit,) = library.units.values()
    assert (unit.name, len(unit.entries)) == (f"{__name__}.Block", 1)
    assert model.state_dict().keys() == eager.state_dict().keys()
    assert type(model) is Stack
    close(result, eager(x()))


@torch.inference_mode()
def test_blocks_are_compiled_by_torch_when_they_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With entries for all calls that is the first one alone, which shows wrong arguments."""
    by_torch = mock.Mock(side_effect=torch.compile)
    model = Stack(*[Block() for _ in range(4)]).eval()
    monkeypatch.setattr(torch, "compile", by_torch)

    serve_warm.compile_regions(model, dynamic=False)
    assert by_torch.call_count == 1
    build(tmp_path, lambda: model(x()))
    by_torch.reset_mock()
    with started(tmp_path), forbid():
        model(x())
    assert by_torch.call_count == 0
    with eager_below():
        model(x())

    assert by_torch.call_count == 3
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        serve_warm.compile_regions(Stack(Block(), Block()), mode="fast")


@torch.inference_mode()
def test_hooks_of_blocks_fire(tmp_path: Path):
    """A hook that was there at the build is part of the call."""
    model = Stack(Block(), Block()).eval()
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, out: out @ torch.full((4, 4), 2.0))
    expected = model(x())
    serve_warm.compile_regions(model, dynamic=False)
    build(tmp_path, lambda: model(x()))

    with started(tmp_path), eager_below():
        result = model(x())

    close(result, expected)


def test_named_blocks_are_compiled_and_no_others():
    """With names it is the caller who decides, also of what stands alone."""
    model = serve_warm.compile_regions(Stack(Block(), Block(), Indexed(0)), ["Indexed"])

    compiled_ = [m for m in model.modules() if m._compiled_call_impl is not None]

    assert [type(m) for m in compiled_] == [Indexed]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: serve_warm.compile_regions(nn.Linear(2, 2)), "no repeated block in Linear"),
        (lambda: serve_warm.compile_regions(Stack(Block()), ["Blok"]), r"no module of.*Blok"),
        (lambda: serve_warm.compile_regions(Stack(Block()), []), "was given no class"),
        (lambda: serve_warm.compile(5), "got a int, which cannot be called"),
    ],
    ids=["nothing repeats", "unknown name", "no name", "not callable"],
)
def test_what_cannot_be_compiled_is_said(call: Any, why: str):
    """An error at once, with a hint, and not at the first request."""
    with pytest.raises(ConfigError, match=why) as caught:
        call()

    assert caught.value.hint


# --- what can be handed over ------------------------------------------------------------------


class Named(nn.Module):
    """The pieces that real models are made of, each without a kernel of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if kind == "tied":
            self.b.weight = self.a.weight
        self.register_buffer("table", torch.eye(4))

    def forward(self, given: torch.Tensor) -> Any:
        out = self.b(self.a(given))
        if self.kind == "dict":
            return {"out": out, "n": 3}
        if self.kind == "dataclass":
            return Output(out, "x")
        if self.kind == "named tuple":
            return Point(out, None)
        if self.kind == "alias":
            return given, self.a.weight, given[1:], out
        return out


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    label: str


Point = collections.namedtuple("Point", "hidden more")  # noqa: PYI024


def logged(function: Any) -> Any:
    """A decorator that keeps what it is given in a closure, as transformers' do."""
    names = ["hidden"]

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = function(self, *args, **kwargs)
        return dict.fromkeys(names, out)

    return wrapper


class Decorated(Block):
    @logged
    @torch.no_grad()
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(given))


class Method:
    """Not a module: an object with a compiled method."""

    def __init__(self, scale: float) -> None:
        torch.manual_seed(int(scale))
        self.linear = nn.Linear(4, 4).eval()
        self.scale = scale

    @serve_warm.compile(dynamic=False)
    def embed(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.linear.bias, given, self.linear.weight, alpha=self.scale)


def closing_over(module: nn.Module) -> Any:
    def function(given: torch.Tensor) -> torch.Tensor:
        return module(given)

    return function


@serve_warm.compile(dynamic=False)
def plain(given: torch.Tensor) -> torch.Tensor:
    return given @ given.T


CALLABLES: dict[str, Callable[[], Any]] = {
    "function": lambda: plain,
    "method": lambda: Method(2.0).embed,
    "bound method": lambda: serve_warm.compile(Block().eval().forward, dynamic=False),
    "closure": lambda: serve_warm.compile(closing_over(Block().eval()), dynamic=False),
    "decorated": lambda: serve_warm.compile(Decorated().eval(), dynamic=False),
    **{
        kind: lambda kind=kind: serve_warm.compile(Named(kind).eval(), dynamic=False)
        for kind in ("tied", "dict", "dataclass", "named tuple", "alias")
    },
}


@pytest.mark.parametrize("make", [pytest.param(m, id=name) for name, m in CALLABLES.items()])
@torch.inference_mode()
def test_it_is_level_2_and_as_torch_compile(make: Any, tmp_path: Path):
    """Methods, closures, decorators, outputs of all kinds: what stock returns is returned."""
    model = make()
    expected = model(x())
    library = build(tmp_path, lambda: model(x()))

    with started(tmp_path), forbid():
        result = served(lambda: model(x()))

    assert library.refused == {}
    assert (result.level, result.compiles) == (2, 0)
    assert type(result.value) is type(expected)
    for one, other in zip(leaves(result.value), leaves(expected), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def leaves(value: Any) -> list[Any]:
    return tree_leaves(vars(value) if isinstance(value, Output) else value)


@torch.inference_mode()
def test_aliases_stay_aliases(tmp_path: Path):
    """An output that is an input, a view of one or a weight is that and no copy."""
    model = serve_warm.compile(Named("alias").eval(), dynamic=False)
    build(tmp_path, lambda: model(x()))
    given = x()

    with started(tmp_path), forbid():
        same, weight, view, _ = model(given)

    assert same is given
    assert weight is model._orig_mod.a.weight
    assert view.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


@torch.inference_mode()
def test_each_instance_has_its_own_method(tmp_path: Path):
    """Two objects of one class: their weights and what the graph was built on are their own."""
    one, same, other = Method(2.0), Method(2.0), Method(3.0)
    same.linear = nn.Linear(4, 4).eval()
    build(tmp_path, lambda: one.embed(x()))

    with started(tmp_path), eager_below():
        results = [served(lambda m=m: m.embed(x())) for m in (one, same, other)]

    assert [r.level for r in results] == [2, 2, 1]
    assert "scale is float 3.0" in results[2].reason
    for result, method in zip(results, (one, same, other), strict=True):
        close(
            result.value,
            torch.addmm(method.linear.bias, x(), method.linear.weight, alpha=method.scale),
        )


@dataclasses.dataclass
class Equal:
    """Equal to others of its name, and so without a hash."""

    name: str
    scale: float = dataclasses.field(compare=False)

    @serve_warm.compile(dynamic=False, backend="eager")
    def embed(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale


def test_equal_objects_are_not_one():
    """A method is of its object, whatever that is equal to, or whether it has a hash."""
    one, other = Equal("a", 2.0), Equal("a", 3.0)

    assert one == other
    close(one.embed(x()), x() * 2)
    close(other.embed(x()), x() * 3)


class Doubling:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(Doubling(2.0), id="object"),
        pytest.param(functools.partial(torch.mul, other=2.0), id="partial"),
        pytest.param(lambda given: given * 2, id="lambda"),
    ],
)
def test_what_has_no_name_can_be_compiled_too(target: Any):
    """As by torch.compile: a partial, an object with a call."""
    close(serve_warm.compile(target, backend="eager")(x()), x() * 2)


@torch.inference_mode()
def test_weights_tied_in_a_closure_must_stay_tied(tmp_path: Path):
    """No tree of modules shows it: the graph has one input for the two."""
    module = Named("tied").eval()
    function = serve_warm.compile(closing_over(module), dynamic=False)
    build(tmp_path, lambda: function(x()))

    with started(tmp_path), eager_below():
        tied = served(lambda: function(x()))
        with torch.inference_mode(False):
            module.b.weight = nn.Parameter(torch.eye(4))
        untied = served(lambda: function(x()))

    assert (tied.level, untied.level) == (2, 1)
    assert "no longer the same" in untied.reason
    close(untied.value, module(x()))


# --- state that is written --------------------------------------------------------------------


class Cache(nn.Module):
    """Adds to a cache that it is given, and counts in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, given: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(given)
        self.total.add_(given)
        self.count = self.count + 1
        return cache * self.total * self.count


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = serve_warm.compile(Cache(), dynamic=False)
    folder = tmp_path_factory.mktemp("cached")
    library = build(folder, lambda: model(torch.ones(4), torch.zeros(4)))
    assert library.refused == {}
    return folder, model


@torch.inference_mode()
def test_state_is_written_as_in_eager(cached: tuple[Path, Any]):
    """The caller's cache, a buffer in place, and a buffer that is replaced: three calls long."""
    folder, model = cached
    eager, ours = Cache(), torch.zeros(4)
    theirs = torch.zeros(4)
    model._orig_mod.load_state_dict(eager.state_dict())

    with started(folder), forbid():
        for number in range(1, 4):
            given = torch.full((4,), float(number))
            result = served(lambda given=given: model(given, ours))

            assert result.level == 2
            close(result.value, eager(given, theirs))
    close(ours, theirs)
    close(dict(model._orig_mod.named_buffers()), dict(eager.named_buffers()))


class Both(nn.Module):
    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        one.add_(1)
        other.mul_(2)
        return one + other


def views(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "numpy":  # two storages, one memory
        array = np.arange(6.0, dtype=np.float32)
        return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])
    whole = torch.arange(6.0)
    return whole[:4], whole[2:]


@torch.inference_mode()
def test_overlapping_tensors_are_not_written_by_an_entry(tmp_path: Path):
    """Apart at the build and overlapping now: compiled code would read before it wrote."""
    model, eager = serve_warm.compile(Both(), dynamic=False), Both()
    build(tmp_path, lambda: model(torch.ones(4), torch.ones(4)))

    with started(tmp_path), eager_below():
        apart = served(lambda: model(torch.ones(4), torch.ones(4)))
        for kind in ("torch", "numpy"):
            ours, theirs = views(kind), views(kind)
            overlap = served(lambda ours=ours: model(*ours))

            assert overlap.level == 1
            assert "overlaps another" in overlap.reason
            close(overlap.value, eager(*theirs))
            close(ours, theirs)

    assert apart.level == 2


@torch.inference_mode()
def test_a_buffer_that_is_passed_in_as_well_is_level_1(cached: tuple[Path, Any]):
    """Two inputs of the graph are one tensor now, and it writes into both."""
    folder, model = cached
    eager = Cache()
    model._orig_mod.load_state_dict(eager.state_dict())

    with started(folder), eager_below():
        result = served(lambda: model(torch.ones(4), model._orig_mod.total))

    assert result.level == 1
    assert "one and the same" in result.reason
    close(result.value, eager(torch.ones(4), eager.total))


@torch.inference_mode()
def test_parts_of_one_storage_that_do_not_overlap_are_level_2(cached: tuple[Path, Any]):
    """Slices of one big cache, as serving loops make them."""
    folder, model = cached
    storage = torch.zeros(8)

    with started(folder), forbid():
        result = served(lambda: model(storage[:4], storage[4:]))

    assert result.level == 2


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(4))

    def forward(self, given: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return given @ table @ self.table


@torch.inference_mode()
def test_an_input_that_is_a_weight_at_the_build_has_no_entry(tmp_path: Path):
    """The graph would have one input for both, and another table would not be looked at."""
    model = serve_warm.compile(Looked(), dynamic=False)
    library = build(tmp_path, lambda: model(x(), model._orig_mod.table))

    with started(tmp_path), eager_below():
        result = served(lambda: model(x(), 2 * torch.eye(4)))

    assert "one and the same" in next(iter(library.refused.values()))
    assert result.level == 1
    close(result.value, x() * 2)


# --- what has no entry ------------------------------------------------------------------------


class Breaks(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return given @ given.T


class Depends(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given.T if given.sum() > 0 else given


class Raises(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        pytest.param(Breaks(), "graph_break", id="graph break"),
        pytest.param(Depends(), "ata-dependent", id="control flow"),
        pytest.param(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "differs", id="random"),
    ],
)
@torch.inference_mode()
def test_what_has_no_entry_says_so_at_the_build_and_at_the_start(
    model: nn.Module, why: str, tmp_path: Path
):
    """Level 1 serves it, and a report says in words why."""
    compiled_ = serve_warm.compile(model, dynamic=False)
    library = build(tmp_path, lambda: compiled_(x()))

    with started(tmp_path), eager_below():
        result = served(lambda: compiled_(x()))

    (refused,) = library.refused.values()
    assert why in refused
    assert "\n" not in refused
    assert (result.level, result.reason) == (1, refused)
    assert result.value.shape == model(x()).shape


class Counts(nn.Module):
    """What its call changes is what its graph is built on; `step` changes it and returns it."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.step = step() if step is a_cell else step
        self.n = 0
        self.ratio = 0.5
        self.seen: list[int] = []
        self.table = {"n": 0}
        self.part = nn.Identity()
        self.part.n = 0
        self.left, self.right = [1.0], [2.0]
        self.colour = Colour.RED
        self.sort: Callable[..., Any] = torch.neg
        self.ticket = itertools.count()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.step(self))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def an_attribute(model: Any) -> Any:
    model.n += 1
    return model.n


def a_float(model: Any) -> Any:
    model.ratio += 0.5
    return model.ratio


def a_length(model: Any) -> Any:
    model.seen.append(1)
    return len(model.seen)


def a_dictionary(model: Any) -> Any:
    model.table["n"] += 1
    return model.table["n"]


def a_key(model: Any) -> Any:
    model.table[str(len(model.table))] = 1
    return len(model.table)


def an_attribute_of_a_part(model: Any) -> Any:
    model.part.n += 1
    return model.part.n


def a_swap(model: Any) -> Any:
    model.left, model.right = model.right, model.left
    return model.left[0]


def a_first_time(model: Any) -> Any:
    if hasattr(model, "known"):
        return 3
    model.known = True
    return 2


def a_member_of_an_enum(model: Any) -> Any:
    was, model.colour = model.colour, Colour.BLUE
    return 1 if was is Colour.RED else 2


def a_function_of_torch(model: Any) -> Any:
    was, model.sort = model.sort, torch.abs
    return 1 if was is torch.neg else 2


def a_global(_: Any) -> Any:
    global STEPS  # noqa: PLW0603
    STEPS += 1
    return STEPS


STEPS = 0


def a_cell() -> Callable[[Any], Any]:
    n = 0

    def step(_: Any) -> Any:
        nonlocal n
        n += 1
        return n

    return step


def a_ticket(model: Any) -> Any:
    return next(model.ticket)


BEFORE_2_12 = Version(torch.__version__).release < (2, 12)

CHANGING: dict[str, tuple[Callable[..., Any], str]] = {
    "attribute": (an_attribute, "callee.n is int 1, and was int 0"),
    "float": (a_float, "callee.ratio is float 1.0, and was float 0.5"),
    "length of a list": (a_length, "callee.seen is a builtins.list of 1, and was a builtins.list"),
    "entry of a dict": (a_dictionary, "callee.table['n'] is int 1, and was int 0"),
    "key of a dict": (a_key, "callee.table has the keys"),
    "attribute of a part": (an_attribute_of_a_part, "['part'].n is int 1, and was int 0"),
    "there and back": (a_swap, "t[0] is float "),
    "once": (a_first_time, "'known'"),
    "enum": (a_member_of_an_enum, "Colour BLUE int 2, and was test_precompile.Colour RED int 1"),
    "function of torch": (a_function_of_torch, ".abs, and was torch"),
    "global": (a_global, ".STEPS is int 1, and was int 0"),
    "closure": (a_cell, "cell_contents is int 1, and was int 0"),
    # 2.11 does not trace what it is made of.
    "iterator": (
        a_ticket,
        "Unsupported" if BEFORE_2_12 else "a count, not a plain value",
    ),
}


@pytest.mark.parametrize(
    ("step", "why"), [pytest.param(*case, id=name) for name, case in CHANGING.items()]
)
@torch.inference_mode()
def test_a_call_that_changes_what_its_graph_is_built_on_has_no_entry(
    step: Callable[..., Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second call would be answered as the first; the report says what the call changes."""
    model = serve_warm.compile(Counts(step), dynamic=False)
    library = build(tmp_path, lambda: model(x(3, 3)))
    eager, ours = Counts(step), serve_warm.compile(Counts(step), dynamic=False)

    monkeypatch.setitem(globals(), "STEPS", 0)
    expected = [eager(x(3, 3)) for _ in range(3)]
    monkeypatch.setitem(globals(), "STEPS", 0)
    with started(tmp_path), eager_below():
        results = [served(lambda: ours(x(3, 3))) for _ in range(3)]

    (refused,) = library.refused.values()
    assert why in refused
    assert [(r.level, r.reason) for r in results] == [(1, refused)] * 3
    assert all(torch.equal(r.value, e) for r, e in zip(results, expected, strict=True))


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.last: Any = None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return given @ given.T


class Totals(Counted):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.total += 1
        return super().forward(given) * self.total


class Noted(Counted):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.last = given.shape[0]
        return given @ given.T


def appends(rows: list[Any], given: torch.Tensor) -> torch.Tensor:
    rows.append(given + 1)
    return given * 2


def removes(rows: dict[str, Any], given: torch.Tensor) -> torch.Tensor:
    return rows.pop("first") + given


@pytest.mark.parametrize(
    ("forward", "rows"), [(appends, [x()]), (removes, {"first": x(), "second": x()})]
)
@torch.inference_mode()
def test_a_call_that_changes_what_it_is_given_has_no_entry(forward: Any, rows: Any, tmp_path: Path):
    """An entry is given lists and dicts of its own: the caller's would stay as they are."""
    function = serve_warm.compile(forward, dynamic=False)
    library = build(tmp_path, lambda: function(copy.copy(rows), x()))
    ours, eager = copy.copy(rows), copy.copy(rows)

    with started(tmp_path), eager_below():
        function(ours, x())
    forward(eager, x())

    assert list(library.refused.values()) == ["its call changes a list or dict that it is given"]
    assert len(ours) == len(eager) != len(rows)


@torch.inference_mode()
def test_a_count_of_calls_goes_on(tmp_path: Path):
    """Compiled code would write the count of the build: it has no entry, and counts."""
    model = serve_warm.compile(Counted(), dynamic=False)
    library = build(tmp_path, lambda: model(x()))
    model._orig_mod.calls = 0

    with started(tmp_path), eager_below():
        results = [served(lambda: model(x())) for _ in range(3)]

    assert "callee.calls is int 1, and was int 0" in next(iter(library.refused.values()))
    assert [r.level for r in results] == [1, 1, 1]
    assert model._orig_mod.calls == 3
    assert torch.equal(results[-1].value, x() @ x().T)


@torch.inference_mode()
def test_what_is_written_and_never_read_is_no_obstacle(tmp_path: Path):
    """An entry writes it as eager does, the same at each call."""
    model = serve_warm.compile(Noted(), dynamic=False)
    library = build(tmp_path, lambda: model(x()))
    model._orig_mod.last = None

    with started(tmp_path), forbid():
        result = served(lambda: model(x()))

    assert (library.refused, result.level, model._orig_mod.last) == ({}, 2, 3)


class Phases(nn.Module):
    """Two calls of it that share what one writes and the other is built on."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 1

    def forward(self, given: torch.Tensor, *, first: bool) -> torch.Tensor:
        if first:
            self.length = given.shape[0]
            return given @ given.T
        return torch.addmm(given, given, given, alpha=self.length)


@torch.inference_mode()
def test_what_another_call_changes_is_withdrawn_at_the_end_of_a_build(tmp_path: Path):
    """The entry fitted when it was made and does not any more; the other one is kept."""
    model = serve_warm.compile(Phases(), dynamic=False)
    library = build(
        tmp_path, lambda: model(x(3, 3), first=False), lambda: model(x(5, 3), first=True)
    )
    model._orig_mod.length = 1

    with started(tmp_path), eager_below():
        first = served(lambda: model(x(5, 3), first=True))
        second = served(lambda: model(x(3, 3), first=False))

    (why,) = library.refused.values()
    assert "from call to call: callee.length is int 5, and was int 1" in why
    assert (first.level, second.level, second.reason) == (2, 1, why)
    assert torch.equal(second.value, torch.addmm(x(3, 3), x(3, 3), x(3, 3), alpha=5))
    assert [name for name in library.to_files() if name.startswith("entry")] == [
        entry.file for unit in library.units.values() for entry in unit.entries
    ]


@torch.inference_mode()
def test_a_build_withdraws_nothing_of_an_earlier_one(tmp_path: Path):
    """What was changed since then is found by whoever loads that one."""
    first, second = (serve_warm.compile(Phases(), dynamic=False) for _ in range(2))
    before = build(tmp_path / "first", lambda: first(x(3, 3), first=False))
    first._orig_mod.length = 5

    after = build(tmp_path / "second", lambda: second(x(3, 3), first=False))

    assert (before.refused, after.refused) == ({}, {})
    assert before.has_entries()
    assert after.has_entries()


@pytest.mark.parametrize(
    "change",
    [lambda model: model.train(model.training), lambda model: model.eval()],
    ids=["the same unit", "another unit"],
)
@torch.inference_mode()
def test_what_was_looked_at_anew_is_withdrawn_too(change: Any, tmp_path: Path):
    """An entry that did not fit any more when the callable was looked at again is not published."""
    model = serve_warm.compile(Phases(), dynamic=False)

    def handler() -> None:
        model._orig_mod.length = 5
        change(model._orig_mod)
        model(x(2, 3), first=True)

    library = build(tmp_path, lambda: model(x(3, 3), first=False), handler)

    assert len(library.refused) == 1
    assert "callee.length is int " in next(iter(library.refused.values()))


@torch.inference_mode()
def test_a_refused_call_leaves_the_buffers_of_the_build_as_they_were(tmp_path: Path):
    """Comparing an entry with eager is a rehearsal: the call itself is what is seen."""
    model = serve_warm.compile(Totals(), dynamic=False)
    library = build(tmp_path, lambda: model(x()))

    assert "its call changes" in next(iter(library.refused.values()))
    assert model._orig_mod.total == 1


@torch.inference_mode()
def test_a_model_that_raises_raises(tmp_path: Path):
    """Its own error comes out, at the build and afterwards."""
    model = serve_warm.compile(Raises(), dynamic=False)

    with pytest.raises(ValueError, match="not today"):
        build(tmp_path, lambda: model(x()))
    SESSION.unload()
    with eager_below(), pytest.raises(ValueError, match="not today"):
        model(x())


@torch.inference_mode()
def test_another_backend_is_level_1(tmp_path: Path):
    """Entries are Inductor's: with another backend the model works as ever."""
    model = serve_warm.compile(Block().eval(), backend="eager")
    library = build(tmp_path, lambda: model(x()))

    assert list(library.refused.values()) == ["the backend is eager, and entries are Inductor's"]
    close(model(x()), model._orig_mod(x()))


def test_with_gradients_nothing_is_made(tmp_path: Path):
    """A build in grad mode says what to use instead."""
    model = serve_warm.compile(Block().eval(), backend="aot_eager", dynamic=False)
    with SESSION.building() as library:
        out = model(x())

    assert "torch.inference_mode()" in next(iter(library.refused.values()))
    assert out.requires_grad


# --- as torch.compile's result ----------------------------------------------------------------


def test_a_compiled_module_behaves_as_torch_s():
    """State, attributes, modes: what works on one works on the other."""
    ours = serve_warm.compile(Scaled(), backend="eager")
    theirs = torch.compile(Scaled(), backend="eager")

    ours.flag = True
    ours.eval()

    assert isinstance(ours, nn.Module)
    assert isinstance(ours, type(theirs))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert ours._orig_mod.flag is True
    assert ours.config.sizes == [1, 2]
    assert (ours.training, ours._orig_mod.training) == (False, False)
    assert ours.train()._orig_mod.training
    with pytest.raises(AttributeError):
        _ = ours.no_such_thing


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda m: pickle.loads(pickle.dumps(m)), id="pickle"),
        pytest.param(
            lambda m: torch.load(saved(m), weights_only=False),
            id="torch.save",
        ),
    ],
)
def test_a_copy_is_compiled_too(again: Any):
    """What comes back is the same kind of thing, with weights of its own."""
    model = serve_warm.compile(Scaled(), backend="eager", dynamic=False)

    other = again(model)
    with torch.no_grad():
        other._orig_mod.linear.weight.zero_()

    assert type(other) is type(model)
    assert other.__dict__["_serve_warm"].arguments == {"backend": "eager", "dynamic": False}
    close(other(x()), other._orig_mod(x()))
    assert model._orig_mod.linear.weight.abs().sum() > 0


def saved(model: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return buffer


@torch.inference_mode()
def test_as_part_of_another_module_it_is_level_2(scaled: tuple[Path, Any]):
    """A pipeline holds compiled parts, and moving the whole moves them."""

    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = serve_warm.compile(Scaled().eval(), dynamic=False)

        def forward(self, given: torch.Tensor) -> Any:
            return self.part(given, 1.0)

    pipeline = Pipeline()
    with started(scaled[0]), eager_below():
        before = served(lambda: pipeline(x()))
        pipeline.double()
        after = served(lambda: pipeline(x().double()))

    assert (before.level, after.level) == (2, 1)
    assert "float64" in after.call


@torch.inference_mode()
def test_hooks_of_the_compiled_module_fire(fresh: tuple[Path, Any]):
    """torch.compile's module is a module of its own, with hooks of its own."""
    folder, model = fresh
    seen = []

    with started(folder), eager_below():
        model(x(), 1.0)
        handle = model.register_forward_hook(lambda *_: seen.append("after"))
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model(x(), 1.0)
        handle.remove()

    assert seen == ["before", "after"]


@torch.inference_mode()
def test_forward_is_served_like_the_call(scaled: tuple[Path, Any]):
    """Libraries call `model.forward(x)`, and no hook of the compiled module is fired by it."""
    folder, model = scaled

    with started(folder), forbid():
        found = served(lambda: model.forward(x(), 1.0))

    assert (found.level, found.reason, found.compiles) == (2, "", 0)
    close(found.value, model._orig_mod(x(), 1.0))


@pytest.mark.parametrize("level", [2, 3])
@torch.inference_mode()
def test_a_forward_that_the_user_sets_on_the_compiled_module_runs(level: int, tmp_path: Path):
    """As on torch.compile's module, whatever entries there are."""
    model = serve_warm.compile(Scaled().eval(), level=level, dynamic=False)
    build(tmp_path, lambda: model(x(), 1.0), level=level)

    with started(tmp_path), eager_below():
        before = model(x(), 1.0)
        model.forward = lambda given, scale: given * 0
        after = model(x(), 1.0)

    assert before.abs().sum() > 0
    assert torch.equal(after, x() * 0)


def test_a_decorated_function_keeps_its_name():
    """And a method of a class is found on the class."""
    assert plain.__name__ == "plain"
    assert Method.embed.__doc__ == Method.embed.__wrapped__.__doc__


@torch.inference_mode()
def test_without_an_artifact_it_is_torch_compile():
    """Nothing is counted and nothing is looked up."""
    model = serve_warm.compile(Scaled().eval(), backend="eager", dynamic=False)

    result = model(x(), 1.0)

    assert model.__dict__["_serve_warm"].uses() == []
    close(result, model._orig_mod(x(), 1.0))


def test_a_buffer_set_in_a_forward_does_not_recompile():
    """What we watch modules with is nothing that Dynamo can stumble over."""
    model = serve_warm.compile(Cache(), backend="eager", dynamic=False)
    model(torch.ones(4), torch.zeros(4))

    counts = watch_process().counts()
    for _ in range(12):
        model(torch.ones(4), torch.zeros(4))

    assert (watch_process().counts() - counts).quiet


# --- dynamic shapes ---------------------------------------------------------------------------


@torch.inference_mode()
def test_a_dynamic_entry_serves_other_sizes_and_not_all(tmp_path: Path):
    """One entry for a range of batches; a batch of one was not in it when it was compiled."""
    model = serve_warm.compile(Block().eval(), dynamic=True)
    build(tmp_path, lambda: model(x(3, 4)))

    with started(tmp_path), eager_below():
        several = [served(lambda n=n: model(x(n, 4))) for n in (2, 3, 17)]
        one = served(lambda: model(x(1, 4)))
        strided = served(lambda: model(x(4, 3).T))

    assert [s.level for s in several] == [2, 2, 2]
    assert (one.level, strided.level) == (1, 1)
    for n, result in zip((2, 3, 17), several, strict=True):
        close(result.value, model._orig_mod(x(n, 4)))


# --- threads ----------------------------------------------------------------------------------


@torch.inference_mode()
def test_eight_threads_get_their_own_answers(tmp_path: Path):
    """Several shapes from eight threads, and a rebinding in the middle: no compile, no mix-up."""
    model = serve_warm.compile(Block().eval(), dynamic=False)
    shapes = [(n, 4) for n in (1, 2, 3, 5)]
    build(tmp_path, *[lambda s=s: model(x(*s)) for s in shapes])
    wrong: list[Any] = []

    def serve(thread: int) -> None:
        torch.manual_seed(thread)
        with torch.inference_mode():
            for number in range(500):
                given = torch.full(shapes[number % 4], float(thread))
                if not torch.equal(model(given), expected[thread][number % 4]):
                    wrong.append((thread, number))
                if number == 250:
                    model.eval()

    with started(tmp_path), forbid():
        expected = [[model(torch.full(s, float(t))) for s in shapes] for t in range(8)]
        before = watch_process().counts()
        threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = watch_process().counts() - before
        levels = {use.level for use in model.__dict__["_serve_warm"].uses()}

    assert wrong == []
    assert counts.quiet
    assert counts.forbidden == 0
    assert levels == {2}


# --- fresh processes --------------------------------------------------------------------------

APP = """
import torch
import serve_warm
from helper import activate

FORBID = {forbid}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Linear(4, 8)
        self.b = torch.nn.Linear(8, 4)

    def forward(self, x, scale=1.0):
        return {{"out": self.b(activate(self.a(x))) * scale, "scale": scale}}

def make():
    model = serve_warm.compile(Net().eval(), dynamic=False)
    return lambda *args: model(*args)["out"]

def calls():
    return [(torch.ones(2, 4),), (torch.ones(3, 4), 2.0)]
"""

HELPER = """
import torch

def activate(x):
    return torch.nn.functional.{function}(x)
"""


NESTED = """
import torch
import serve_warm

FORBID = True

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = serve_warm.compile(Inner().eval(), level=LEVEL, dynamic=False)
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.inner(x))

class Service(serve_warm.WarmupMixin):
    rate = 0.5

    def __init__(self):
        self.shift = serve_warm.compile(lambda x: x + 1, level=LEVEL, dynamic=False)

    @serve_warm.compile(level=LEVEL, dynamic=False)
    def scaled(self, x):
        return torch.mm(x, x.T) * self.rate

    @serve_warm.compile(level=LEVEL, dynamic=False)
    def both(self, x):
        return self.scaled(self.shift(x))

def make():
    torch.manual_seed(0)
    outer = serve_warm.compile(Outer().eval(), level=LEVEL, dynamic=False)
    service = Service()
    return lambda name, x: {"outer": outer, "both": service.both}[name](x)

def calls():
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    # Dynamo 2.11 looks for an attribute with `__get__`, which `shift` is, in classes alone.
    both = [] if torch.__version__.startswith("2.11.") else [("both", x)]
    return [("outer", x), *both]
"""

OUR_NAMES = {"CompiledModule", "LightModule", "Dispatcher", "_CompiledFunction"}
"""Classes whose names artifacts store. Renaming one invalidates entries of earlier releases."""


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_one_callable_inside_another_starts_in_a_fresh_process(level: int, tmp_path: Path):
    """No fact names a module of serve_warm or digests its code: artifacts outlive releases."""
    (tmp_path / "app.py").write_text(NESTED.replace("LEVEL", str(level)))

    built = in_a_process(tmp_path, "build", level=level)
    start = in_a_process(tmp_path, "start")

    assert built["refused"] == {}
    assert set(start["levels"]) == {level}
    assert (start["why"], start["reasons"]) == ("", [""])
    assert (start["compiles"], start["compiler_processes"]) == (0, 0)
    assert start["outputs"] == built["outputs"]
    index = (tmp_path / "entries" / "index.json").read_text()
    ours = set(re.findall(r"\bserve_warm\.[^\"]*", index))
    assert ours
    assert ours <= {f"serve_warm.{n}{end}" for n in OUR_NAMES for end in ("", ".__call__")}


@dataclasses.dataclass(frozen=True)
class Program:
    folder: Path

    def write(self, *, function: str = "gelu", forbid: bool = True) -> None:
        (self.folder / "app.py").write_text(textwrap.dedent(APP.format(forbid=forbid)))
        (self.folder / "helper.py").write_text(textwrap.dedent(HELPER.format(function=function)))

    def run(self, do: str) -> dict[str, Any]:
        return in_a_process(self.folder, do)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[str, Any]]:
    program = Program(tmp_path_factory.mktemp("program"))
    program.write()
    return program, program.run("build")


@pytest.mark.slow
def test_a_fresh_process_starts_at_level_2(program: tuple[Program, dict[str, Any]]):
    """Nothing is traced and no compiler runs; every bit is torch.compile's."""
    written, build_ = program

    start, stock = written.run("start"), written.run("stock")

    assert build_["refused"] == {}
    assert (start["why"], start["levels"], start["reasons"]) == ("", [2, 2], [""])
    assert (start["compiles"], start["compiler_processes"]) == (0, 0)
    assert start["outputs"] == stock["outputs"] == build_["outputs"]


@pytest.mark.slow
def test_a_changed_source_is_level_1(program: tuple[Program, dict[str, Any]]):
    """Another function in a module that the model only calls: its file is named, and it is run."""
    written, build_ = program
    written.write(function="silu", forbid=False)
    try:
        start = written.run("start")
    finally:
        written.write()

    assert start["levels"] == [1, 1]
    assert all("helper" in reason for reason in start["reasons"])
    assert start["outputs"] != build_["outputs"]


class ByMember(nn.Module):
    """Multiplies with a member of an enumeration, which is a number to compiled code."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("kind", [enum.IntEnum, enum.IntFlag])
@torch.inference_mode()
def test_the_value_of_a_member_is_a_fact(kind: Any, tmp_path: Path):
    """A number that was changed where the class is defined is another number."""
    built, now = kind("Scale", {"OUT": 2}), kind("Scale", {"OUT": 3})
    model = serve_warm.compile(ByMember(built.OUT).eval(), dynamic=False)
    build(tmp_path, lambda: model(x(3, 4)))
    eager = ByMember(now.OUT).eval()
    ours = serve_warm.compile(eager, dynamic=False)

    with started(tmp_path), eager_below():
        result = served(lambda: ours(x(3, 4)))

    assert result.level == 1
    assert "OUT int 3, and was" in result.reason
    torch.testing.assert_close(result.value, eager(x(3, 4)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: m.__delitem__(-1), id="last deleted"),
        pytest.param(lambda m: m.__delitem__(0), id="first deleted"),
        pytest.param(lambda m: m[0].register_forward_hook(lambda m, a, out: out * 2), id="hook"),
    ],
)
@torch.inference_mode()
def test_a_part_that_goes_or_gets_a_hook_is_seen_while_it_runs(
    change: Callable[[Any], Any], tmp_path: Path
):
    """The next call is as eager's; nothing is raised, and nothing is wrong."""

    class Layered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model = serve_warm.compile(Layered().eval(), dynamic=False)
    build(tmp_path, lambda: model(x(3, 4)))
    eager = Layered().eval()
    ours = serve_warm.compile(eager, dynamic=False)
    with started(tmp_path), eager_below():
        first = served(lambda: ours(x(3, 4)))
        change(eager.layers)
        second = served(lambda: ours(x(3, 4)))
        wanted = eager(x(3, 4))

    assert (first.level, second.level) == (2, 1)
    torch.testing.assert_close(second.value, wanted)


class Chain(nn.Module):
    """Its compiled code finds each layer by its key; the last one may write into the input."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.layers:
            y = layer(y)
        if self.writes:
            x.add_(1)
        return y


@pytest.mark.parametrize("writes", [False, True])
@torch.inference_mode()
def test_a_part_that_is_taken_away_costs_a_level(writes: bool, tmp_path: Path):
    """Past every method of a module: out of its dict. No call is made half."""
    model = serve_warm.compile(Chain(writes=writes).eval(), dynamic=False)
    build(tmp_path, lambda: model(x(3, 4)))
    eager = Chain(writes=writes).eval()
    ours = serve_warm.compile(eager, dynamic=False)
    with started(tmp_path), eager_below():
        first = served(lambda: ours(x(3, 4)))
        eager.layers._modules.pop("2")
        second = served(lambda: ours(x(3, 4)))
        wanted = eager(x(3, 4))

    assert (first.level, second.level) == (2, 1)
    torch.testing.assert_close(second.value, wanted)


@torch.inference_mode()
def test_code_that_changed_is_named_as_code(tmp_path: Path):
    """Not by digests: the class whose methods are others now, and what to do."""

    def made(forward: Callable[..., Any]) -> nn.Module:
        kind = type("Changing", (nn.Module,), {"forward": forward, "__module__": __name__})
        return kind().eval()

    model = serve_warm.compile(made(lambda self, x: x + 1), dynamic=False)
    build(tmp_path, lambda: model(x(3, 4)))
    ours = serve_warm.compile(made(lambda self, x: x + 2), dynamic=False)

    with started(tmp_path), eager_below():
        result = served(lambda: ours(x(3, 4)))

    assert result.level == 1
    assert "the code of test_precompile.Changing changed since the build" in result.reason
    torch.testing.assert_close(result.value, x(3, 4) + 2)


@torch.inference_mode()
def test_a_graph_break_is_named_with_its_line(tmp_path: Path):
    """What torch says of it first names neither the call nor the place."""

    def breaking(x: torch.Tensor) -> torch.Tensor:
        print("here")  # noqa: T201 - a graph break
        return x + 1

    model = serve_warm.compile(breaking, dynamic=False)
    library = build(tmp_path, lambda: model(x(3, 4)))

    (reason,) = library.refused.values()

    assert "print" in reason
    line = breaking.__code__.co_firstlineno + 1
    assert f"(test_precompile.py:{line})" in reason


def test_an_instance_ends_with_its_compiled_methods():
    """Models that are evicted are freed; a copy has methods of its own."""

    class Held:
        def __init__(self) -> None:
            self.weight = torch.ones(2)

        @serve_warm.compile
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    first = Held()
    twin = copy.copy(first)
    deep = copy.deepcopy(first)
    methods = {id(each.run) for each in (first, twin, deep)}
    gone = weakref.ref(first)

    assert len(methods) == 3
    assert first.run is first.run
    assert list(inspect.signature(first.run).parameters) == ["x"]
    del first
    gc.collect()
    assert gone() is None


def test_built_ins_that_compiled_code_uses_are_found(tmp_path: Path):
    """Code around a graph may call `type`, which torch before 2.12 takes for a global."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        depths=[1, 1], hidden_sizes=[16, 32], embedding_size=8, layer_type="basic", num_labels=4
    )
    eager = transformers.ResNetForImageClassification(config).eval()
    model = serve_warm.compile(eager, dynamic=False)
    pixels = torch.rand(2, 3, 32, 32)
    library = build(tmp_path, lambda: model(pixel_values=pixels))

    with started(tmp_path), eager_below(), torch.inference_mode():
        result = served(lambda: model(pixel_values=pixels))
        expected = eager(pixel_values=pixels).logits

    assert not library.refused
    assert result.level == 2
    torch.testing.assert_close(result.value.logits, expected)
