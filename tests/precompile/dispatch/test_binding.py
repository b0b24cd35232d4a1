# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which entries fit a module as it is now: changed, exchanged, or one of several."""

from __future__ import annotations

import copy
import functools
import gc
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, forget_callables, rebuilt, served, started
from models import Block, Indexed, Scaled, Stack, close, fresh_fixture, one_watch, scaled_fixture, x  # noqa: F401
from serve_warm import report
from serve_warm.compiler.proof import forbid
from serve_warm.precompile.changes.gc_pause import _Pause
from serve_warm.precompile.entries.model_tree import describe_model_change
from serve_warm.replica.record.journal import _build_again
from serve_warm.report import ArtifactUse

CHANGE = "the model changed since the build: "
CHANGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dtype": (lambda m: m.double(), "float64"),
    "weight of other strides": (
        lambda m: setattr(m.linear, "weight", nn.Parameter(x(4, 4).T)),
        "strides [1, 4]",
    ),
    "tied": (lambda m: setattr(m.linear, "bias", m.linear.weight), "[4, 4]"),
    "other class": (lambda m: setattr(m, "linear", Twice(m.linear)), "Twice"),
    "own forward": (
        lambda m: setattr(m, "forward", lambda *a: m.linear(a[0])),
        "instance attribute",
    ),
    "hook": (lambda m: m.register_forward_hook(lambda m, a, out: out * 2), "hooks"),
    "flag": (lambda m: setattr(m, "flag", True), "flag"),
    "config": (lambda m: setattr(m.config, "scale", 3.0), "config.scale is float 3.0, but was"),
}


class Twice(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(linear.weight * 2), linear.bias


def by_data(new: torch.Tensor) -> Callable[[Any], None]:
    return lambda m: setattr(m.linear.weight, "data", new)


def by_set(new: torch.Tensor) -> Callable[[Any], Any]:
    return lambda m: m.linear.weight.requires_grad_(False).set_(new)


READS = "a tensor that its graph reads"
EXCHANGED = {
    "data of another dtype": (by_data(torch.full((4, 4), 2.0).double()), READS),
    "data of other strides": (by_data(torch.arange(16.0).reshape(4, 4).T), READS),
    "another shape, set": (by_set(torch.ones(4, 5)), READS),
}
"""Changes without a trace: compiled code would read the new weights as the old kind."""


@pytest.mark.parametrize(
    ("when", "change", "why"),
    [
        *(pytest.param("start", *case, id=f"{n}, at the start") for n, case in CHANGED.items()),
        *(pytest.param("ready", *case, id=n) for n, case in {**CHANGED, **EXCHANGED}.items()),
    ],
)
@torch.inference_mode()
def test_a_changed_model_is_level_1(fresh, when, change, why):
    folder, model = fresh
    # Of this one: those of earlier tests end at any time, and their counts with them.
    uses = model.__dict__["_serve_warm"].uses

    def change_it() -> None:
        with torch.inference_mode(False):
            change(model._orig_mod)

    if when == "start":
        change_it()
    with started(folder), eager_below():
        if when == "ready":
            assert served(lambda: model(x(), 1.0)).level == 2
            change_it()
        seen = uses()
        given = x().to(next(model.parameters()).dtype) if when == "start" else x()
        try:
            expected = model._orig_mod(given, 1.0)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error)[:20])):
                model(given, 1.0)
        else:
            assert torch.equal(model(given, 1.0), expected)
        added = set(uses()) - set(seen)

    assert {u.level for u in added} == {1}
    assert any(why in u.reason for u in added)


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


@torch.inference_mode()
def test_other_arguments_of_torch_compile_do_not_share(scaled: tuple[Path, Any]):
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False, options={"max_autotune": True})
    with started(folder), eager_below():
        result = served(lambda: model(x(), 1.0))
    assert result.level == 1
    assert "the build compiled with dynamic=False, but this process compiles" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
@torch.inference_mode()
def test_blocks_of_one_structure_share_an_entry_unless_they_differ(number: int, tmp_path: Path):
    """Each computes with its own weights; an index in the graph makes an entry for each layer."""
    blocks = [Block() for _ in range(3)] if number == 1 else [Indexed(i) for i in range(3)]
    eager = Stack(*blocks).eval()
    model = serve_warm.compile_regions(copy.deepcopy(eager), dynamic=False)
    library = build(tmp_path, lambda: model(x()))
    with started(tmp_path), forbid():
        result = model(x())

    (unit,) = library.units.values()
    assert (unit.name, len(unit.entries)) == (f"models.{type(blocks[0]).__name__}", number)
    assert model.state_dict().keys() == eager.state_dict().keys()
    assert type(model) is Stack
    close(result, eager(x()))


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
@pytest.mark.parametrize(
    ("writes", "change"),
    [
        pytest.param(False, lambda m: m.__delitem__(-1), id="last deleted"),
        pytest.param(False, lambda m: m.__delitem__(0), id="first deleted"),
        pytest.param(False, lambda m: m[0].register_forward_hook(lambda *a: a[2] * 2), id="hook"),
        pytest.param(False, lambda m: m._modules.pop("2"), id="taken out of the dict"),
        pytest.param(True, lambda m: m._modules.pop("2"), id="taken out, and the input is written"),
    ],
)
@torch.inference_mode()
def test_a_part_that_goes_or_gets_a_hook_is_seen_while_it_runs(writes, change, tmp_path):
    """The next call equals eager. Nothing is raised, no call is made half, no result is wrong."""
    make = functools.partial(Chain, writes=writes)
    eager, ours = rebuilt(make, tmp_path, lambda model: model(x(3, 4)))
    with started(tmp_path), eager_below():
        first = served(lambda: ours(x(3, 4)))
        change(eager.layers)
        second = served(lambda: ours(x(3, 4)))
        wanted = eager(x(3, 4))

    assert (first.level, second.level) == (2, 1)
    torch.testing.assert_close(second.value, wanted)


@pytest.mark.slow
@torch.inference_mode()
def test_a_part_that_changed_is_named_once_for_all_calls(tmp_path, caplog):
    forget_callables()

    def made(last: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), last).eval()

    model = serve_warm.compile(made(nn.GELU()), dynamic=False)
    build(tmp_path, lambda: [model(x(n, 4)) for n in (2, 3, 5)])
    ours = serve_warm.compile(made(nn.Linear(4, 4)), dynamic=False)
    caplog.clear()

    with started(tmp_path), eager_below():
        results = [served(lambda n=n: ours(x(n, 4))) for n in (2, 3, 5)]
        again = _build_again(ArtifactUse(store="s3://bucket"), report.Counts(fx_misses=3), "")

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
        (  # after `importlib.reload` the code is the same, so another build would not help
            [".: app.Scorer 0123456789abcdef elsewhere"],
            [".: app.Scorer 0123456789abcdef"],
            "the model itself is an object of an earlier definition of app.Scorer: make it again",
        ),
        (  # without the digests
            [".: app.Scorer 0123456789abcdef"],
            [".: app.Scorer 89abcdef01234567"],
            "the code or a default argument of app.Scorer changed since the build: build again",
        ),
    ],
)
def test_each_change_of_a_model_reads_as_one(now: list[str], built: list[str], says: str):
    """Parts that came, that went, and a class of the same name from another package."""
    assert describe_model_change(now, built).removeprefix(CHANGE) == says
