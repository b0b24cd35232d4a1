# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Reasons for calls that torch cannot trace: each names a line of the user, and an action."""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.exc import SpeculationRestartAnalysis, TensorifyScalarRestartAnalysis

import serve_warm
from levels import build, eager_below, refusal, served, started
from levels import ramp as x
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.torch_errors import as_reasons
from serve_warm.precompile.trace.capture import RESTARTS, capture
from serve_warm.precompile.trace.guards import path_of
from serve_warm.precompile.trace.side_effects import callable_once


def on_tensor(given: torch.Tensor) -> torch.Tensor:
    if given.sum() > 0:
        return given + 1
    return given


def on_number(given: torch.Tensor) -> torch.Tensor:
    if int(given.abs().max().item()) == 3:
        return given + 1
    return given


def on_size(given: torch.Tensor) -> torch.Tensor:
    rows = torch.nonzero(given > 0)
    if rows.shape[0] == 0:
        return given
    return given[rows[:, 0]]


def broken(given: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return given + 1


def from_numpy(given: torch.Tensor) -> torch.Tensor:
    return given * np.random.uniform(0, 1)  # noqa: NPY002 - as in VITS


def from_python(given: torch.Tensor) -> torch.Tensor:
    return given * random.gauss(0, 1)


class FromGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.random.default_rng(0)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given * self.numbers.random()


def quantised() -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


def restarting(times: int) -> Any:
    """Return a backend that asks for another trace some times, as a pass of Inductor may."""
    left = [TensorifyScalarRestartAnalysis(), SpeculationRestartAnalysis("for a reason")] * times

    def take(graph: Any, _: Any, **_settings: Any) -> Any:
        if left:
            raise left.pop()
        return callable_once(graph)

    return take


def entry(callee: Any, t0: torch.Tensor) -> Any:
    return callee(t0)


def test_a_trace_that_its_backend_restarts_goes_on():
    """torch.compile does so for each kind of restart, its ahead-of-time compile for none."""
    model, given = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    captured = capture(entry, model, [given], {"backend": restarting(2), "dynamic": False})
    torch.testing.assert_close(captured.entry.fn(model, given), model(given))
    assert not captured.facts.broken(model)


def test_a_trace_that_never_ends_is_a_reason():
    """The number of traces is limited, as torch limits it."""
    given = {"backend": restarting(RESTARTS), "dynamic": False}
    with pytest.raises(NoEntry, match=r"restarted its trace.*Compile only a part"):  # noqa: SIM117
        with as_reasons():
            capture(entry, nn.Linear(4, 4).eval(), [torch.ones(2, 4)], given)


BRANCH = (
    r"data-dependent branching at test_torch_errors.py:\d+: `if {}.*`. Compile the parts before"
)


@pytest.mark.parametrize(
    ("callee", "reason"),
    [
        (on_tensor, BRANCH.format(r"given.sum\(\) > 0:")),
        (on_number, BRANCH.format(r"int\(given.abs\(\).max\(\).item\(\)\) == 3:")),
        (on_size, BRANCH.format(r"rows.shape\[0\] == 0:")),
        (broken, r"\(test_torch_errors.py:\d+\): Remove the"),
        (
            from_numpy,
            r"random numbers from NumPy.*test_torch_errors.*Pass the numbers as an argument",
        ),
        (FromGenerator(), "random numbers from NumPy.*Pass the numbers as an argument"),
        (from_python, "a function of Python's random module.*Use random.uniform"),
        (quantised, "packed weights are a TorchScript object.*with torchao's quantize_"),
    ],
)
def test_a_call_that_torch_cannot_trace_says_where_and_what_to_do(callee, reason, tmp_path):
    """The line is the user's, in whatever file of torch the trace ended."""
    model = serve_warm.compile(quantised() if callee is quantised else callee, dynamic=False)
    with eager_below():
        refused = refusal(tmp_path, lambda: model(torch.linspace(-1, 1, 12).view(3, 4)))
    assert re.search(reason, refused)


def test_a_call_that_torch_cannot_trace_is_traced_once(tmp_path: Path, monkeypatch: Any):
    """Level 2 does not try again what level 3 could not trace."""
    from torch._dynamo import convert_frame

    stock = mock.Mock(side_effect=convert_frame.fullgraph_capture)
    monkeypatch.setattr(convert_frame, "fullgraph_capture", stock)
    model = serve_warm.compile(on_tensor, dynamic=False, level=3)
    with eager_below():
        refused = refusal(tmp_path, lambda: model(torch.ones(3, 4)), level=3)
    assert "data-dependent branching" in refused
    assert stock.call_count == 1


def test_a_source_without_an_expression_has_no_path():
    """Dynamo's bare `Source` stands for an object that the trace has created (2.13)."""
    from torch._guards import Source

    assert path_of(Source()) is None


# The advice: parts that have a graph ------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, given: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        return self.two(self.one(given)) if not twice else self.two(self.two(given))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.inner(given, twice=True)


class Breaking(nn.Module):
    """Has a part that contains no break."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.inner(given)


class Model(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.calls = nn.ModuleList(parts), 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            given = part(given)
        return given * 2 if given.sum() > 1e9 else given


def reason_of(model: nn.Module, folder: Path) -> str:
    compiled: Any = serve_warm.compile(model.eval(), dynamic=False)
    with torch.inference_mode(), eager_below():
        return refusal(folder, lambda: compiled(x()))


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([Block(), Block()], ["Block"]),
        ([Block(), Breaking()], ["Block"]),
        ([Breaking(), Breaking()], ["Inner"]),
        ([Inner(), Breaking()], ["Inner"]),
    ],
    ids=["two blocks", "one breaks", "below a break", "beside a break"],
)
def test_the_reason_names_the_parts_that_have_a_graph(parts, names, tmp_path):
    """The reason names the outermost parts, because inner classes are compiled with them."""
    reason = reason_of(Model(*parts), tmp_path)
    assert "test_torch_errors.py:" in reason
    assert re.search(r"compile_regions\(model, (.*)\)", reason)[1] == repr(names)  # type: ignore[index]


@torch.inference_mode()
def test_the_advice_can_be_followed(tmp_path: Path):
    model, fresh = (
        serve_warm.compile_regions(Model(Block(), Block()).eval(), ["Block"], dynamic=False)
        for _ in range(2)
    )
    build(tmp_path, lambda: model(x()))
    with started(tmp_path), eager_below():
        found = served(lambda: fresh(x()))
    assert (found.level, found.compiles) == (2, 0)


@pytest.mark.parametrize("model", [Breaking(), Model(nn.Linear(4, 4))], ids=["inside", "small"])
def test_hooks_of_the_look_are_gone(model: nn.Module, tmp_path: Path):
    """A hook that stays would be a fact, and a cost of each call."""
    reason = reason_of(model, tmp_path)
    assert reason
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_a_model_without_such_parts_gets_no_advice(tmp_path: Path):
    """A single layer is not worth a compiled call."""
    assert "compile_regions" not in reason_of(Model(nn.Linear(4, 4)), tmp_path)
