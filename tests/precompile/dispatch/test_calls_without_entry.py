# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The dispatcher runs a call without an entry eagerly, if `after_ready` is `eager`."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from test_dispatcher import IN_INFERENCE_MODE, OTHER_CALLS, STATES
from torch import nn

import serve_warm
from levels import answered_eagerly, build, started
from models import Cache, Scaled, one_watch, scaled_fixture, x  # noqa: F401 - fixtures
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.report import EagerReason


@pytest.mark.parametrize("call", [pytest.param(c, id=name) for name, c in OTHER_CALLS.items()])
@torch.inference_mode()
def test_a_call_without_an_entry_runs_eagerly(scaled: tuple[Path, Any], call: Any):
    """Without entering Dynamo, as often as it comes; the entries answer the other calls."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder), answered_eagerly() as record:
        declared = model(x(), 1.0)
        results = [call(model) for _ in range(3)]
        assert torch.equal(model(x(), 1.0), declared)

    assert all(torch.equal(result, call(model._orig_mod)) for result in results)
    assert sum(seen.calls for seen in record.calls()) == 3
    assert all(seen.why and seen.median_s and seen.seconds for seen in record.calls())


@pytest.mark.parametrize("name", STATES | IN_INFERENCE_MODE)
def test_a_call_in_another_state_runs_eagerly(scaled: tuple[Path, Any], name: str):
    """Autocast, grad mode, default dtype: the answer is that of eager code in this state."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    context, why = (STATES | IN_INFERENCE_MODE)[name]
    given = x()
    with started(folder), answered_eagerly() as record:
        mode = torch.inference_mode() if name in IN_INFERENCE_MODE else contextlib.nullcontext()
        with mode, context():
            result, expected = model(given, 1.0), model._orig_mod(given, 1.0)
    assert torch.equal(result, expected)
    assert (result.dtype, result.requires_grad) == (expected.dtype, expected.requires_grad)
    assert why in record.calls()[0].why


@torch.inference_mode()
def test_a_changed_model_is_recorded_as_such(scaled: tuple[Path, Any]):
    """Another input in the build would not help, so the operator looks at the application."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder), answered_eagerly() as record:
        model(x(), 1.0)
        model._orig_mod.flag = True
        result = model(x(), 1.0)
    assert torch.equal(result, model._orig_mod(x(), 1.0))
    assert [seen.reason for seen in record.calls()] == [EagerReason.CHANGED]


class Dropping(nn.Module):
    """Draws random numbers, writes its buffer, and returns views."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen.add_(given.sum(0))
        given.mul_(2)
        return nn.functional.dropout(given, 0.5), given.T, given[:, :2]


@pytest.mark.slow
@torch.inference_mode()
def test_effects_and_outputs_are_those_of_eager_code(tmp_path: Path):
    """Random numbers, changes of inputs and buffers, strides, and what shares memory with what."""
    build(tmp_path, lambda: serve_warm.compile(Dropping(), dynamic=False)(torch.ones(3, 4)))
    module, plain = Dropping(), Dropping()
    model = serve_warm.compile(module, dynamic=False)
    ours, theirs = torch.ones(5, 4), torch.ones(5, 4)
    with started(tmp_path), answered_eagerly() as record:
        torch.manual_seed(3)
        results = model(ours)
        after = torch.rand(1)
    torch.manual_seed(3)
    expected = plain(theirs)
    assert sum(seen.calls for seen in record.calls()) == 1
    assert torch.equal(after, torch.rand(1))
    assert torch.equal(ours, theirs)
    assert torch.equal(module.seen, plain.seen)
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)
        assert (result.stride(), result.storage_offset()) == (
            wanted.stride(),
            wanted.storage_offset(),
        )
    assert results[1].data_ptr() == results[2].data_ptr() == ours.data_ptr()


@pytest.mark.slow
@torch.inference_mode()
def test_an_error_of_the_code_is_raised_and_the_next_call_is_served(cached_model):
    model, folder = cached_model
    with started(folder), answered_eagerly() as record:
        with pytest.raises(RuntimeError, match="must match the size"):
            model(torch.ones(3), torch.zeros(4))
        model(torch.ones(4), torch.zeros(4))
    assert [seen.calls for seen in record.calls()] == [1]


@torch.inference_mode()
def test_a_storm_of_calls_without_an_entry_is_not_remembered(scaled: tuple[Path, Any]):
    """A scanner sends 10,000 sizes; the table of calls stays as it was."""
    folder, _ = scaled
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    with started(folder), answered_eagerly() as record:
        declared = model(x(), 1.0)
        uses = len(SESSION.uses())
        for size in range(100, 10_100):
            model(torch.ones(size, 4), 1.0)
        assert torch.equal(model(x(), 1.0), declared)
        assert len(SESSION.uses()) == uses
    assert sum(seen.calls for seen in record.calls()) == 10_000


class Waiting(nn.Module):
    """Waits in calls of four rows that are not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.ended = threading.Event(), threading.Event()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if len(given) == 4 and not torch.compiler.is_compiling():
            self.began.set()
            assert self.ended.wait(60)
        return given * 2


@pytest.mark.slow
@torch.inference_mode()
def test_a_call_with_an_entry_does_not_wait_for_an_eager_one(tmp_path: Path):
    build(tmp_path, lambda: serve_warm.compile(Waiting(), dynamic=False)(torch.ones(3)))
    module = Waiting()
    model = serve_warm.compile(module, dynamic=False)

    def unforeseen() -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.ones(4))

    with started(tmp_path), answered_eagerly() as record, ThreadPoolExecutor(1) as other:
        result = other.submit(unforeseen)
        assert module.began.wait(60)
        for _ in range(100):
            assert torch.equal(model(torch.ones(3)), torch.full((3,), 2.0))
        module.ended.set()
        assert torch.equal(result.result(), torch.full((4,), 2.0))
    assert [seen.calls for seen in record.calls()] == [1]


class Stack(nn.Module):
    """Two equal blocks, which `compile_regions` compiles, and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            given = block(given)
        return given

    @serve_warm.compile(backend="eager")
    def doubled(self, given: torch.Tensor) -> torch.Tensor:
        return 2 * given


@torch.inference_mode()
def test_regions_and_methods_run_eagerly_under_their_own_names():
    """Also without any entries."""
    model = Stack().eval()
    expected = model(torch.ones(2, 4))
    serve_warm.compile_regions(model, ["Linear"], backend="eager")
    with answered_eagerly() as record:
        assert torch.equal(model(torch.ones(2, 4)), expected)
        assert torch.equal(model.doubled(torch.ones(3)), torch.full((3,), 2.0))
    found = {each.callable: each.calls for each in record.calls()}
    assert found == {
        "torch.nn.modules.linear.Linear": 2,
        f"{__name__}.Stack.doubled": 1,
    }


@pytest.fixture
def cached_model(tmp_path: Path) -> tuple[Any, Path]:
    model = serve_warm.compile(Cache(), dynamic=False)
    build(tmp_path, lambda: model(torch.ones(4), torch.zeros(4)))
    return model, tmp_path
