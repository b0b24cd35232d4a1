# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a line after READY advises, by the guard that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from compiled import compiled
from levels import build, started
from serve_warm import Input, WarmupMixin
from serve_warm.compiler.watch import ANOTHER, watch_process
from serve_warm.inputs import suggest_input
from serve_warm.replica.record.traffic_log import NO_ARTIFACT, TrafficLog
from serve_warm.report import CompileEvent

X = torch.ones(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), 2.0

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) * self.scale
        return out if y is None else out + y


class Layer(nn.Linear):
    """Its guards name a line of torch with `self` in it."""

    def __init__(self) -> None:
        super().__init__(4, 4)


def count(x: torch.Tensor) -> torch.Tensor:
    n = int((x + 1).sum())
    return x * n


class Serving(WarmupMixin):
    """A compiled module and a compiled function."""

    def __init__(self) -> None:
        self.net = Net().eval()
        self.model = torch.compile(self.net, backend="eager", dynamic=False)
        self.add = compiled(lambda x, y: x + y)
        self.layer = torch.compile(Layer(), backend="eager", dynamic=True)
        self.times = compiled(lambda x, n: x * n, dynamic=False)
        self.count = compiled(count, dynamic=False)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(x)

    def grow(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(x)

    def pair(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.add(x, y)

    def scale(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return self.times(x, n)

    def counted(self, x: torch.Tensor) -> torch.Tensor:
        return self.count(x)

    def warmup_inputs(self) -> list[Input]:
        return [
            Input(target=self.scale, args=(X, 3), name="scale"),
            Input(target=self.counted, args=(X,), name="counted"),
            Input(target=self.score, args=(X,), name="score"),
            Input(target=self.score, args=(torch.ones(5, 4),), name="score of 5"),
            Input(target=self.pair, args=(X, X.clone()), name="pair"),
            Input(target=self.grow, args=(X,), name="grow"),
        ]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    torch._dynamo.reset()
    watch_process().on_event = None  # of an application of another file
    yield
    watch_process().on_event = None


def rescaled(app: Serving) -> Any:
    app.net.scale = 3.0
    return app.score(X)


def with_grad_mode(app: Serving) -> Any:
    return app.model(X)


def reset(app: Serving) -> Any:
    torch.compiler.reset()
    return app.score(X)


def of_inference(app: Serving) -> Any:
    with torch.inference_mode():
        x, y = torch.ones(3, 4), torch.ones(3, 4)
    return app.pair(x, y)


CASES: dict[str, tuple[Callable[[Serving], Any], str]] = {
    "an undeclared size": (lambda app: app.score(torch.ones(7, 4)), "declare this input"),
    "the size 1": (lambda app: app.score(torch.ones(1, 4)), "declare this input"),
    "the size 1 of a dynamic size": (lambda app: app.grow(torch.ones(1, 4)), "declare this input"),
    "another number": (
        lambda app: app.scale(X, 5),
        "declare this input in warmup_inputs(), or give the model this number as a tensor",
    ),
    "a value of a tensor": (lambda app: app.counted(X * 2), "reads a Python value from a tensor"),
    "another dtype": (lambda app: app.pair(X.double(), X.double()), "another dtype"),
    "strides": (lambda app: app.score(torch.ones(4, 3).t()), "tensor.contiguous()"),
    "a Parameter": (lambda app: app.pair(nn.Parameter(X), X.clone()), "a Parameter"),
    "gradients": (lambda app: app.pair(X.clone().requires_grad_(), X.clone()), "needs gradients"),
    "an inference tensor": (of_inference, "torch.inference_mode() or not"),
    "one tensor twice": (lambda app: app.pair(X, X), "the same object is passed twice"),
    "a changed attribute": (rescaled, "do not change it after ready"),
    "another grad mode": (with_grad_mode, "another setting of torch"),
    "a reset": (reset, "torch has dropped the compiled code"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_line_advises_by_the_guard_that_failed(case: str, caplog: pytest.LogCaptureFixture):
    """Sizes can be declared; other kinds of calls, changed values and lost code are named."""
    app = Serving()
    asyncio.run(app.warm_up())
    change, advice = CASES[case]
    with caplog.at_level(logging.WARNING, "serve_warm"):
        change(app)
    [line] = [line for line in caplog.messages if line.startswith("after ready")]
    assert advice in line
    assert ("declare this input" in line) == ("declare this input" in advice)
    assert "\n" not in line
    assert app.warmup_report()["after_ready"]["compiles"] == 1


GUARDS = (
    "",
    "0/0: tensor 'x' size mismatch at index 0. expected 3, actual 7",
    "0/0: tensor 'x' dtype mismatch. expected Float, actual Double",
    "0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1",
    "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0",
    "0/0: tensor 'x' dispatch key set mismatch. expected A, actual B",
    "0/0: expected type of 'x' to be a tensor type, ' but found Parameter",
    "0/0: Duplicate tensors found",
    ANOTHER,
    NO_ARTIFACT,
)


@pytest.mark.parametrize("reason", GUARDS)
def test_an_application_whose_calls_are_recorded_is_told_to_plan(
    reason: str, caplog: pytest.LogCaptureFixture
):
    """It declares nothing, its code need not change, and its own threads are right."""
    log = TrafficLog()
    log.is_learned, log.lasting = True, {-1}
    event = CompileEvent(kind="recompile", function="f (app.py:1)", signature="x", reason=reason)
    log.log(event, proven_on=(), suggest=lambda _: "Input(...)", fields=lambda *_, **__: {})
    [line] = caplog.messages
    assert "serve-warm plan -o plan.yaml, then serve-warm build APP --plan plan.yaml" in line
    assert not any(word in line for word in ("declare", "warmup_inputs", "to_thread", "{"))


def test_advice_for_declared_inputs_names_no_plan(caplog: pytest.LogCaptureFixture):
    for reason in GUARDS:
        log = TrafficLog()
        event = CompileEvent(kind="recompile", function="f (app.py:1)", reason=reason)
        log.log(event, proven_on=(), suggest=lambda _: "Input(...)", fields=lambda *_, **__: {})
    assert len(caplog.messages) == len(GUARDS)
    assert not any("plan.yaml" in line or "{" in line for line in caplog.messages)


def test_a_request_is_answered_if_torch_names_no_guard(monkeypatch: pytest.MonkeyPatch):
    """The names are private, and another torch may have others."""
    app = Serving()
    asyncio.run(app.warm_up())
    eval_frame = torch._C._dynamo.eval_frame
    monkeypatch.setattr(eval_frame, "_debug_get_cache_entry_list", lambda _: [object()])

    answer = app.scale(X, 5)

    assert torch.equal(answer, X * 5)
    assert app.warmup_report()["after_ready"]["compiles"] == 1


@pytest.mark.slow
def test_a_call_without_an_entry_is_advised_on_by_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """After a warm start, torch has compiled nothing and knows no guard, but entries do."""

    class Loaded(Serving):
        def __init__(self) -> None:
            super().__init__()
            self.model = serve_warm.compile(self.net, level=2, dynamic=False)

        @torch.inference_mode()
        def score(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x)

    app = Loaded()
    build(tmp_path, lambda: app.score(X))
    torch._dynamo.reset()

    with started(tmp_path):
        asyncio.run(app.warm_up())
        with caplog.at_level(logging.WARNING, "serve_warm"):
            rescaled(app)

    [line] = [line for line in caplog.messages if line.startswith("after ready")]
    assert "callee.scale is float 3.0, but was float 2.0" in line
    assert "declare this input" not in line


def test_a_hint_for_a_multiplexed_call_names_the_model_id():
    """Requests are not shown, so that the id is not either."""
    declared = [Input(target="embed", concurrency=4)]
    call = {"function": "f", "signature": "x=float32[3, 16]", "largest": 4}
    assert "model_id=..." in suggest_input(declared, **call, is_multiplexed=True)
