# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which entries fit a module as it is now: changed, exchanged, or one of several."""

from __future__ import annotations

import copy
import enum
import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import models
import serve_warm
from levels import build, eager_below, forget_callables, served, started
from models import (  # noqa: F401 - fixtures
    Block,
    Indexed,
    Scaled,
    Stack,
    close,
    fresh_fixture,
    one_watch,
    scaled_fixture,
    x,
)
from serve_warm import report
from serve_warm.compiler.proof import forbid
from serve_warm.precompile.binding import _Pause
from serve_warm.precompile.entries import describe_model_change
from serve_warm.precompile.session import SESSION
from serve_warm.replica.journal import _build_again
from serve_warm.report import ArtifactUse

if TYPE_CHECKING:
    from collections.abc import Callable


# --- the module changed -----------------------------------------------------------------------


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
    "own forward": (
        lambda m: setattr(m, "forward", lambda *a: m.linear(a[0])),
        "instance attribute",
    ),
    "hook": (lambda m: m.register_forward_hook(lambda m, a, out: out * 2), "1 hooks"),
    "flag": (lambda m: setattr(m, "flag", True), "flag"),
    "config": (lambda m: setattr(m.config, "scale", 3.0), "config.scale is float 3.0, but was"),
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
    """The reason names the change, and the result is that of the changed model."""
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
    """The next call notices every change of the model."""
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
    """`.data` leaves no trace, so compiled code would read the new weights as the old kind."""
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

    assert any(u.level == 1 and "a tensor that its graph reads" in u.reason for u in added)


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


def test_collections_pause_until_the_last_thread_is_done():
    """Two models bind at one time. The first one that is ready does not end the other's pause."""
    pause, before = _Pause(), gc.get_threshold()
    inside, ready = threading.Event(), threading.Event()

    def bind() -> None:
        with pause:
            inside.set()
            ready.wait(60)

    other = threading.Thread(target=bind)
    other.start()
    assert inside.wait(60)
    with pause:
        both = gc.get_threshold()[0]
    one = gc.get_threshold()[0]
    ready.set()
    other.join()

    assert (both, one) == (0, 0)
    assert gc.get_threshold() == before


def test_a_pause_of_collections_keeps_what_the_app_sets():
    """An app may set its thresholds while a model binds in another thread."""
    before = gc.get_threshold()
    try:
        with _Pause():
            gc.set_threshold(500, 5, 5)

        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


@torch.inference_mode()
def test_a_changed_global_is_level_1(fresh: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch):
    """A value that the graph took from a Python module is looked up there at the start."""
    folder, model = fresh
    monkeypatch.setattr(models, "SCALE", 3.0)

    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert result.reason == "models.SCALE is float 3.0, but was float 2.0"
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


@pytest.mark.slow
@torch.inference_mode()
def test_modules_of_one_structure_share_entries(scaled: tuple[Path, Any]):
    """Each module has its own weights. A module with another graph does not share."""
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
    """Code compiled with another mode is other code."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False, options={"max_autotune": True})

    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))

    assert result.level == 1
    assert "the build compiled with dynamic=False, but this process compiles" in result.reason


@pytest.mark.slow
@torch.inference_mode()
def test_an_index_in_the_graph_makes_an_entry_for_each_layer(tmp_path: Path):
    """The layers look alike but compute differently, so no layer gets another layer's entry."""
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
    assert (unit.name, len(unit.entries)) == ("models.Block", 1)
    assert model.state_dict().keys() == eager.state_dict().keys()
    assert type(model) is Stack
    close(result, eager(x()))


# --- fresh processes --------------------------------------------------------------------------


class ByMember(nn.Module):
    """Multiplies with a member of an enumeration, which is a number to compiled code."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


@pytest.mark.slow
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
    assert "OUT int 3, but was" in result.reason
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
    """The next call equals eager. Nothing is raised, and no result is wrong."""

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


@pytest.mark.slow
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


@pytest.mark.slow
@torch.inference_mode()
def test_a_part_that_changed_is_named_once_for_all_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """One line names the part, not one line for each shape of its calls."""
    forget_callables()

    def made(last: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), last).eval()

    model = serve_warm.compile(made(nn.GELU()), dynamic=False)
    build(tmp_path, lambda: [model(x(n, 4)) for n in (2, 3, 5)])
    ours = serve_warm.compile(made(nn.Linear(4, 4)), dynamic=False)
    caplog.clear()

    with started(tmp_path), eager_below():
        results = [served(lambda n=n: ours(x(n, 4))) for n in (2, 3, 5)]
        again = _build_again(ArtifactUse(store="s3://bucket"), report.Counts(fx_misses=3))

    why = "the model changed since the build: part 2 is Linear, was GELU"
    assert [(result.level, result.reason) for result in results] == [(1, why)] * 3
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        f"level 1 for all calls of torch.nn.modules.container.Sequential: {why}"
    ]
    assert f": {why}. Build again: serve-warm build APP --store s3://bucket " in again


@pytest.mark.parametrize(
    ("now", "built", "says"),
    [
        (["0: a.A", "1: b.B"], ["0: a.A"], "part 1 (B) is new"),
        (["0: a.A"], ["0: a.A", "1: b.B", "2: b.B"], "part 1 (B) is gone, and 1 more part differs"),
        ([".: c.A 0123456789abcdef"], [".: d.A"], "the model itself is c.A, was d.A"),
    ],
)
def test_each_change_of_a_model_reads_as_one(now: list[str], built: list[str], says: str):
    """Parts that came, that went, and a class of the same name from another package."""
    assert describe_model_change(now, built) == f"the model changed since the build: {says}"


@pytest.mark.slow
@torch.inference_mode()
def test_code_that_changed_is_named_as_code(tmp_path: Path):
    """The text names the class with changed methods, and what to do, without digests."""

    def made(forward: Callable[..., Any]) -> nn.Module:
        kind = type("Changing", (nn.Module,), {"forward": forward, "__module__": __name__})
        return kind().eval()

    model = serve_warm.compile(made(lambda self, x: x + 1), dynamic=False)
    build(tmp_path, lambda: model(x(3, 4)))
    ours = serve_warm.compile(made(lambda self, x: x + 2), dynamic=False)

    with started(tmp_path), eager_below():
        result = served(lambda: ours(x(3, 4)))

    assert result.level == 1
    assert "the code of test_binding.Changing changed since the build" in result.reason
    torch.testing.assert_close(result.value, x(3, 4) + 2)
