# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts in which torch runs the model eagerly: nothing is proven, and the reason is named."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import serve_warm
from compiled import compiled, double, fresh
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import NotProven, WarmupFailed
from serve_warm.inputs import Input
from serve_warm.precompile.compiled import _warn_once
from serve_warm.stores.local import LocalStore
from starts import StandIn, offer, process, store_fixture, warm_up  # noqa: F401 - fixtures


class Switches:
    """Switches that are set until the test ends."""

    def __init__(self, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack, self._monkeypatch = stack, monkeypatch

    def set(self, **settings: bool) -> None:
        """Set settings of Dynamo."""
        self._stack.enter_context(torch._dynamo.config.patch(**settings))

    def set_variable(self, name: str) -> None:
        self._monkeypatch.setenv(name, "1")


@pytest.fixture(name="switches")
def switches_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switches]:
    with contextlib.ExitStack() as stack:
        yield Switches(stack, monkeypatch)


class Counting(TorchDispatchMode):
    """A mode as that of a FLOP counter."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class InMode(StandIn):
    """A replica whose handler calls the model in a dispatch mode."""

    async def call(self, item: Input) -> None:
        with Counting():
            await super().call(item)


def with_model(model: Callable[..., Any], kind: type[StandIn] = StandIn) -> StandIn:
    replica = kind()
    replica.owner.model = model
    return replica


def marked() -> Callable[..., Any]:
    """Return a compiled module whose whole `forward` is marked to run eagerly."""
    model: Any = nn.Linear(1, 1)
    model.forward = torch.compiler.disable(fresh(double))
    return torch.compile(model, backend="eager")


def setting(switches: Switches) -> Callable[[], StandIn]:
    switches.set(disable=True)
    return lambda: with_model(compiled(double))


def variable(switches: Switches) -> Callable[[], StandIn]:
    switches.set_variable("TORCH_COMPILE_DISABLE")  # torch reads it once, into the setting
    return setting(switches)


def other_variable(switches: Switches) -> Callable[[], StandIn]:
    switches.set_variable("TORCHDYNAMO_DISABLE")
    return lambda: with_model(compiled(double))


def mark(_: Switches) -> Callable[[], StandIn]:
    return lambda: with_model(marked())


def mark_inside(_: Switches) -> Callable[[], StandIn]:
    inner = torch.compiler.disable(fresh(double))
    return lambda: with_model(compiled(lambda x: [inner(x)]))


def mode(_: Switches) -> Callable[[], StandIn]:
    return lambda: with_model(compiled(double), InMode)


def failed_compile(switches: Switches) -> Callable[[], StandIn]:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("this backend compiles nothing")

    switches.set(suppress_errors=True)
    return lambda: with_model(compiled(double, backend=backend))


SWITCHES = {
    "setting": (setting, r"torch\._dynamo\.config\.disable = True turns torch\.compile off"),
    "variable": (variable, r"TORCH_COMPILE_DISABLE=1 .* remove the variable"),
    "other variable": (other_variable, r"TORCHDYNAMO_DISABLE=1 .* remove the variable"),
    "marked": (mark, r"marked with @torch\.compiler\.disable"),
    "marked inside": (mark_inside, r"runs it eagerly"),
    "mode": (mode, r"double \(compiled\.py:\d+\): a torch dispatch mode is active"),
    "failed compile": (failed_compile, r"double \(compiled\.py:\d+\): compiling it failed"),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_what_torch_runs_eagerly_is_not_proven(switch: str, switches: Switches):
    """The reason names the switch and what to change; `on_unproven: fail` ends the start."""
    make, named = SWITCHES[switch]
    make_replica = make(switches)
    watch_process().given_up.clear()  # of other tests
    report = warm_up(make_replica()).report()
    assert (report.covered.expected, report.covered.proven) == (2, 0)
    assert re.search(named, " ".join(report.degraded)), report.degraded
    with pytest.raises(NotProven, match=named):
        warm_up(make_replica(), on_unproven="fail")


@pytest.mark.parametrize("name", ["force_eager", "eager_on_recompile"])
@pytest.mark.parametrize("where", ["application", "handler"])
def test_a_stance_of_the_application_is_named(name: str, where: str):
    """Under such a stance, the first call of each kind runs eagerly, and so do all others."""

    class Inside(StandIn):
        async def call(self, item: Input) -> None:
            with torch.compiler.set_stance(name):
                await super().call(item)

    kind = Inside if where == "handler" else StandIn
    with torch.compiler.set_stance(name) if where == "application" else contextlib.nullcontext():
        report = warm_up(with_model(compiled(double), kind)).report()

    assert report.covered.proven == 0
    assert f"the application set torch's stance to '{name}'" in report.degraded[0]


def test_partly_eager_code_is_proven():
    """One function of a model may be marked; the rest of the model is compiled."""
    inner = torch.compiler.disable(fresh(double))
    report = warm_up(with_model(compiled(lambda x: inner(x * 3) + 1))).report()
    assert report.covered.proven == 2
    assert not report.degraded


def test_with_the_compiler_off_no_artifact_is_loaded(store: LocalStore, switches: Switches):
    """Entries would answer, although the operator turned compiled code off."""
    replica = with_model(compiled(double))
    offer(store, replica)
    switches.set(disable=True)
    report = warm_up(replica, artifact=str(store.root)).report()
    assert report.verdict == "off"
    assert "not loaded: torch._dynamo.config.disable" in report.artifact.reason


def test_an_artifact_does_not_hit_fully_if_an_input_is_not_proven(store: LocalStore):
    replica = with_model(marked())
    offer(store, replica)
    report = warm_up(replica, artifact=str(store.root)).report()
    assert report.verdict == "partial"
    with pytest.raises(WarmupFailed, match="on_partial is 'fail': an input is not proven"):
        warm_up(with_model(marked()), artifact=str(store.root), on_partial="fail")


def test_code_that_torch_gives_up_after_ready_is_an_event(switches: Switches):
    """Its first request waits for a compile that fails, and all others run eagerly."""
    model = compiled(double)
    start = warm_up(with_model(model))
    switches.set(disable=True)
    model(torch.ones(7))
    after = start.report()
    assert after.after_ready.eager_falls == 1
    assert "torch._dynamo.config.disable" in after.events[-1].reason


def test_a_stance_after_ready_is_one_event():
    model = compiled(double)
    start = warm_up(with_model(model))
    watch_process().given_up.clear()
    with torch.compiler.set_stance("force_eager"):
        for _ in range(3):
            model(torch.ones(2))
    after = start.report()
    assert after.after_ready.eager_falls == 1
    assert after.events[-1].function == "all compiled functions"


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(4, 1) for _ in range(2))


TARGETS: dict[str, Callable[..., Any]] = {
    "level 2": lambda **more: (net := nn.Linear(4, 4), serve_warm.compile(net, **more)),
    "level 3": lambda **more: (net := nn.Linear(4, 4), serve_warm.compile(net, level=3, **more)),
    "function": lambda **more: (double, serve_warm.compile(double, **more)),
    "decorator": lambda **more: (double, serve_warm.compile(**more)(double)),
    "regions": lambda **more: (net := Blocks(), serve_warm.compile_regions(net, **more)),
}


@pytest.mark.parametrize("how", ["argument", "variable"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_disabled_compile_returns_its_target(
    target: str, how: str, switches: Switches, caplog: pytest.LogCaptureFixture
):
    """As torch.compile does; the class of a module stays, too."""
    if how == "variable":
        switches.set_variable("TORCHDYNAMO_DISABLE")
    _warn_once.cache_clear()  # of other tests
    for _ in range(2):
        given, found = TARGETS[target](**({"disable": True} if how == "argument" else {}))
    assert found is given
    assert type(found) in (nn.Linear, Blocks, type(double))
    if isinstance(found, Blocks):
        assert all(layer._compiled_call_impl is None for layer in found.layers)
    said = [each for each in caplog.messages if "returns its target as it is" in each]
    assert len(said) == 1
