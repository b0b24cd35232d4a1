# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models that make state at their first call: their entries run after the start made it, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of, in_a_process, rebuilt, served, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm.precompile.changes.model_state import state_of
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.plan import SETTLES, SETTLING_CALLS


def x(seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.rand(3, 4)


class Base(nn.Module):
    """A layer, and what a model has before its first call."""

    has: tuple[tuple[str, Any], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        for name, value in self.has:
            setattr(self, name, value)


class Table(Base):
    """Makes a table that it keeps."""

    has = (("table", None),)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(4, dtype=given.dtype)
        return self.linear(given) @ torch.outer(self.table, self.table)


class Buffer(Base):
    """Replaces a buffer by one of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.table.shape[0] < 4:
            self.register_buffer("table", torch.linspace(0, 1, 4), persistent=False)
        return self.linear(given) @ torch.outer(self.table, self.table)


class Locked(Base):
    """Installs a hook under a lock, which torch does not trace."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.has_hooks = threading.Lock(), False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if not self.has_hooks:
            with self.lock:
                self.linear.register_forward_hook(lambda _module, _given, out: out @ out.T)
                self.has_hooks = True
        return self.linear(given)


class Rescaled(Base):
    """Changes its weights in place, once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_rescaled = False
        self.register_buffer("scale", torch.ones(4, 4))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if not self.is_rescaled:
            with torch.no_grad():
                self.linear.weight.div_(2)
                self.scale.mul_(3)
            self.is_rescaled = True
        return self.linear(given) @ self.scale


class Noise(Base):
    """Draws random numbers, once."""

    has = (("noise", None),)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.noise is None:
            self.noise = torch.randn(4, 4)
        return self.linear(given) @ self.noise


class OtherAnswer(Base):
    """Answers its first call as no other call."""

    has = (("is_known", False),)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        alpha = 3 if self.is_known else 2
        self.is_known = True
        return torch.addmm(self.linear(given), given, self.linear.weight, alpha=alpha)


class TwoCalls(Base):
    """Has its final state after its second call."""

    has = (("stage", 0),)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.stage = min(self.stage + 1, 2)
        return torch.addmm(self.linear(given), given, self.linear.weight, alpha=self.stage)


class Lazy(nn.Module):
    """Has parts of other classes after its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(given)


_LENGTHS: dict[str, int] = {}


class InModule(Base):
    """Keeps its state in a global."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if "length" not in _LENGTHS:
            _LENGTHS["length"] = 3
        return torch.addmm(self.linear(given), given, given.T @ given, alpha=_LENGTHS["length"])


MODELS = [Table, Buffer, Locked, Rescaled, Noise, OtherAnswer, TwoCalls, InModule]


def answers(model: Any, times: int = SETTLING_CALLS + 3) -> list[Any]:
    """Return the answers to some calls, and random numbers drawn after them."""
    given = x()
    torch.manual_seed(5)
    return [*(model(given) for _ in range(times)), torch.rand(4)]


@pytest.mark.slow
@pytest.mark.parametrize("has_run", [False, True], ids=["new", "has run"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_settles_has_an_entry(kind: Callable[[], Any], has_run: bool, tmp_path: Path):
    _LENGTHS.clear()
    model = serve_warm.compile(kind().eval(), dynamic=False)
    if has_run:  # as in a replica, whose build comes after its own start
        with eager_below():
            answers(model)
    library = build(tmp_path, lambda: model(x()))
    _LENGTHS.clear()
    expected = answers(kind().eval())

    _LENGTHS.clear()
    fresh = serve_warm.compile(kind().eval(), dynamic=False)
    with started(tmp_path), eager_below():
        found = answers(fresh)
        last = served(lambda: fresh(x()))

    assert library.refused == {}
    assert (last.level, last.compiles) == (2, 0)
    assert {use.level for use in fresh.__dict__["_serve_warm"].uses()} == {2}
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_model_whose_parts_change_their_class_has_an_entry(tmp_path: Path):
    """The start finds the entries of another structure."""
    model = serve_warm.compile(Lazy().eval(), dynamic=False)
    with eager_below():
        answers(model)
    build(tmp_path, lambda: model(x()))
    fresh = serve_warm.compile(Lazy().eval(), dynamic=False)
    with started(tmp_path), eager_below():
        found = answers(fresh)
        last = served(lambda: fresh(x()))

    assert (last.level, last.compiles) == (2, 0)
    torch.testing.assert_close(found[-2], fresh._orig_mod(x()))


class Base2(Base):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(given) @ given.T


@pytest.mark.slow
def test_only_entries_of_models_that_make_state_are_marked(tmp_path: Path):
    """A start of other models has no eager calls."""
    plain, table = (serve_warm.compile(kind().eval(), dynamic=False) for kind in (Base2, Table))
    with eager_below():
        answers(plain)
        answers(table)
    library = build(tmp_path, lambda: plain(x()), lambda: table(x()))
    assert [entry.plan.get(SETTLES) for entry in entries_of(library)] == [None, True]


@pytest.mark.slow
def test_a_model_that_differs_in_another_way_is_not_called_for_ever(tmp_path: Path):
    other, fresh = rebuilt(Table, tmp_path, lambda model: model(x()))
    other.linear.register_forward_hook(lambda _module, _given, out: out * 2)
    before = SESSION.settling_calls
    with started(tmp_path), eager_below():
        found = answers(fresh)
        last = served(lambda: fresh(x()))

    assert SESSION.settling_calls - before == SETTLING_CALLS
    assert last.level == 1
    assert "hooks" in last.reason
    torch.testing.assert_close(found[-2], other(x()))


class Fails(Table):
    """Fails after it has made its table, if told so."""

    is_bad = False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = super().forward(given)
        if self.is_bad:
            raise AttributeError("not today")
        return out


@pytest.mark.slow
def test_an_error_of_a_settling_call_is_the_answer(tmp_path: Path):
    eager, fresh = rebuilt(Fails, tmp_path, lambda model: model(x()))
    eager.is_bad = True
    calls = []
    eager.register_forward_pre_hook(lambda _module, _given: calls.append(1))
    with started(tmp_path), pytest.raises(AttributeError, match="not today"):
        fresh(x())
    assert calls == [1]


def test_the_state_of_a_callable_runs_no_code_of_it():
    """Properties and lazy attributes may do anything."""

    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        @property
        def value(self) -> Any:
            raise RuntimeError("read")

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.lock = Odd(), threading.Lock()
            self.loop: list[Any] = []
            self.loop.append(self.loop)
            self.names = {"b", "a"}

    state = state_of(Holder().forward)

    assert state["callee.__self__.loop[length]"] == (int, 1)
    assert state["callee.__self__.names[0]"] == (str, "'a'")


APP = """
import threading
import torch
import serve_warm

FORBID = True
LOCK = threading.Lock()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.table, self.has_hooks = torch.nn.Linear(4, 4), None, False

    def forward(self, x):
        if self.table is None:
            self.table = torch.randn(4, 4)
        if not self.has_hooks:
            with LOCK:
                self.layer.register_forward_hook(lambda module, given, out: out * 2)
                self.has_hooks = True
        return self.layer(x) @ self.table

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = serve_warm.compile(Net().eval(), level=LEVEL, dynamic=False)

    def forward(self, x):
        return self.inner(x) + 1

def make():
    torch.manual_seed(3)
    net = serve_warm.compile(Net().eval(), level=LEVEL, dynamic=False)
    outer = serve_warm.compile(Outer().eval(), level=LEVEL, dynamic=False)
    return lambda which, x: {"net": net, "outer": outer}[which](x)

def calls():
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [("net", x), ("net", x), ("outer", x), ("outer", x), ("outer", x)]
"""


@pytest.mark.long
@pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.stress)])
def test_a_fresh_process_makes_the_settling_calls(level: int, tmp_path: Path):
    (tmp_path / "app.py").write_text(APP.replace("LEVEL", str(level)))
    built = in_a_process(tmp_path, "build", level=level)
    start = in_a_process(tmp_path, "start", level=level)
    stock = in_a_process(tmp_path, "stock", level=level)
    assert built["refused"] == {}
    assert (start["why"], start["compiles"], start["levels"]) == ("", 0, [level, level])
    assert start["outputs"] == stock["outputs"]
    assert start["imported"] is (level == 2)
