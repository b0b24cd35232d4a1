# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`compile` and `compile_regions`: what can be handed over, and how the result behaves."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import inspect
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import serve_warm
from levels import build, eager_below, served, started
from models import (  # noqa: F401 - fixtures
    Block,
    Cache,
    Indexed,
    Scaled,
    Stack,
    close,
    fresh_fixture,
    in_inference_mode,
    one_watch,
    scaled_fixture,
    x,
)
from serve_warm.compiler.compiled_objects import compile_arguments
from serve_warm.compiler.proof import forbid
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import ConfigError
from serve_warm.precompile.dispatch.session import SESSION

# --- several modules --------------------------------------------------------------------------


def test_blocks_are_compiled_by_torch_when_they_need_it(tmp_path, monkeypatch):
    """With entries for all calls, no block is compiled."""
    by_torch = mock.Mock(side_effect=torch.compile)
    model = Stack(*[Block() for _ in range(4)]).eval()
    monkeypatch.setattr(torch, "compile", by_torch)

    serve_warm.compile_regions(model, dynamic=False)
    build(tmp_path, lambda: model(x()))
    by_torch.reset_mock()
    with started(tmp_path), forbid():
        model(x())
    assert by_torch.call_count == 0
    with eager_below():
        model(x())

    assert by_torch.call_count == 4
    wrong = serve_warm.compile_regions(Stack(Block(), Block()), mode="fast")
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        wrong(x())


def test_named_blocks_are_compiled_and_no_others():
    """With names, the caller decides, also about single modules."""
    model = serve_warm.compile_regions(Stack(Block(), Block(), Indexed(0)), ["Indexed"])
    assert [type(m) for m in model.modules() if m._compiled_call_impl is not None] == [Indexed]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: serve_warm.compile_regions(nn.Linear(2, 2)), "no repeated block in Linear"),
        (lambda: serve_warm.compile_regions(Stack(Block()), ["Blok"]), r"no module of.*Blok"),
        (lambda: serve_warm.compile_regions(Stack(Block()), []), "was given no class"),
        (lambda: serve_warm.compile(5), "got a int, which is not callable"),
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
    """A decorator with its arguments in a closure, like a decorator of transformers."""
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
    """An object with a compiled method, which is not a module."""

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


@dataclasses.dataclass
class Equal:
    """Equal to others of its name, and so without a hash."""

    name: str
    scale: float = dataclasses.field(compare=False)

    @serve_warm.compile(dynamic=False, backend="eager")
    def embed(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale


def test_a_class_method_can_be_compiled():
    """A class cannot store a compiled method either."""

    class Held:
        scale = 2.0

        @classmethod
        @serve_warm.compile(dynamic=False, backend="eager")
        def embed(cls, given: torch.Tensor) -> torch.Tensor:
            return given * cls.scale

    close(Held.embed(x()), x() * 2)


def test_objects_of_a_class_share_the_counts_and_warnings(tmp_path, caplog):
    """The report still has the calls of freed objects, and a log does not grow by each object."""
    build(tmp_path, lambda: Equal("a", 2.0).embed(x()))
    with started(tmp_path), eager_below():
        for _ in range(5):
            Equal("a", 3.0).embed(x())
        gc.collect()
        found = [use for use in SESSION.uses() if use.callable.endswith("Equal.embed")]
    assert sum(use.calls for use in found if use.level == 1) >= 5
    assert caplog.text.count("Equal.embed") == 1


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
    [Doubling(2.0), functools.partial(torch.mul, other=2.0), lambda given: given * 2],
    ids=["object", "partial", "lambda"],
)
def test_what_has_no_name_can_be_compiled_too(target: Any):
    """As with torch.compile: a partial, or an object with `__call__`."""
    close(serve_warm.compile(target, backend="eager")(x()), x() * 2)


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


# --- as torch.compile's result ----------------------------------------------------------------


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "torch.save": lambda each: torch.load(saved(each), weights_only=False),
}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_a_copy_is_compiled_too(again: Any):
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


def test_forward_is_served_like_the_call(scaled: tuple[Path, Any]):
    """Libraries call `model.forward(x)`, and no hook of the compiled module is fired by it."""
    folder, model = scaled
    with started(folder), forbid():
        found = served(lambda: model.forward(x(), 1.0))
    assert (found.level, found.reason, found.compiles) == (2, "", 0)
    close(found.value, model._orig_mod(x(), 1.0))


@pytest.mark.long
@pytest.mark.parametrize("level", [2, 3])
def test_a_forward_that_the_user_sets_on_the_compiled_module_runs(level: int, tmp_path: Path):
    """It runs as on torch.compile's module, whatever entries exist."""
    model = serve_warm.compile(Scaled().eval(), level=level, dynamic=False)
    build(tmp_path, lambda: model(x(), 1.0), level=level)
    with started(tmp_path), eager_below():
        before = model(x(), 1.0)
        model.forward = lambda given, scale: given * 0
        after = model(x(), 1.0)
    assert before.abs().sum() > 0
    assert torch.equal(after, x() * 0)


def test_a_decorated_function_keeps_its_name():
    """A method of a class also stays an attribute of the class, and keeps its parameters."""
    one = Method(2.0)
    assert plain.__name__ == "plain"
    assert Method.embed.__doc__ == Method.embed.__wrapped__.__doc__
    assert one.embed is one.embed
    assert list(inspect.signature(one.embed).parameters) == ["given"]


def test_without_an_artifact_it_is_torch_compile():
    model = serve_warm.compile(Scaled().eval(), backend="eager", dynamic=False)
    result = model(x(), 1.0)
    assert model.__dict__["_serve_warm"].uses() == []
    close(result, model._orig_mod(x(), 1.0))


def test_a_buffer_set_in_a_forward_does_not_recompile():
    """serve_warm's watch on modules does not disturb Dynamo."""
    model = serve_warm.compile(Cache(), backend="eager", dynamic=False)
    model(torch.ones(4), torch.zeros(4))
    counts = watch_process().counts()
    for _ in range(12):
        model(torch.ones(4), torch.zeros(4))
    assert (watch_process().counts() - counts).quiet


@serve_warm.compile(dynamic=False, backend="eager")
def doubled(given: torch.Tensor) -> torch.Tensor:
    return given * 2


def tripled(given: torch.Tensor) -> torch.Tensor:
    return given * 3


class Holder:
    """An object with each kind of compiled function and method."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.function = doubled
        self.other = serve_warm.compile(tripled, dynamic=False, backend="eager")
        self.method = self.scaled
        self.of_method = serve_warm.compile(self.eager, dynamic=False, backend="eager")
        self.object = serve_warm.compile(Doubling(2.0), dynamic=False, backend="eager")

    @serve_warm.compile(dynamic=False, backend="eager")
    def scaled(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale

    def eager(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.scale


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_an_object_with_compiled_functions_can_be_copied(again: Any):
    first = Holder()
    first.scaled(x())
    other = again(first)
    other.scale = 5.0

    assert other.function is doubled
    close(other.other(x()), x() * 3)
    close(other.object(x()), x() * 2)
    for ours in (other.method, other.scaled, other.of_method):
        close(ours(x()), x() * 5)
    for ours in (first.method, first.scaled, first.of_method):
        close(ours(x()), x() * 2)


@pytest.mark.parametrize(
    "call", [lambda m, x: m(x), lambda m, x: m.forward(x)], ids=["()", "forward"]
)
@pytest.mark.parametrize("level", [2, 3])
def test_a_compiled_module_is_traced_inside_another_function(level: int, call: Any):
    """By its call and by its `forward`, which some libraries call."""
    plain = Block().eval()
    model = serve_warm.compile(plain, level=level)
    outer = torch.compile(lambda given: call(model, given) * 2, backend="eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(outer(x(3, 4)), plain(x(3, 4)) * 2)


def test_a_forward_of_the_user_replaces_that_of_a_compiled_module():
    model = serve_warm.compile(Block().eval())
    model.forward = lambda given: given + 1
    assert torch.equal(model(x(3, 4)), x(3, 4) + 1)
    del model.forward
    with eager_below(), torch.inference_mode():
        assert torch.equal(model(x(3, 4)), model._orig_mod(x(3, 4)))


def test_compile_arguments_have_no_addresses():
    """They are part of the fingerprint, which is the same in each process."""

    def own_backend(graph: Any, _: Any) -> Any:
        return graph

    owner = SimpleNamespace(
        module=serve_warm.compile(Block(), backend=own_backend),
        function=serve_warm.compile(torch.sin, options={"post_grad_custom_pre_pass": own_backend}),
        regions=serve_warm.compile_regions(Stack(Block(), Block()), dynamic=False),
    )
    found = compile_arguments(owner)
    assert found.keys() == {"module", "function", "regions"}
    assert not any(" at 0x" in words for words in found.values())
    assert "own_backend" in found["module"]
    assert "own_backend" in found["function"]
    assert found["regions"] == "inductor: dynamic=False"
