# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`on_missing: eager` and `on_refused: eager`: a start without an artifact compiles nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
import torch

import serve_warm
from compiled import compiled, double
from levels import forget_callables
from serve_warm.compiler import eager_calls
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import ReplayFailed
from serve_warm.inputs import Input
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.report import Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from starts import (  # noqa: F401 - fixtures
    StandIn,
    failed,
    offer,
    process,
    stages_of,
    store_fixture,
    tampered,
    warm_up,
)


class Making:
    """Makes its model at the first call."""

    def model(self, given: torch.Tensor) -> torch.Tensor:
        return compiled(double)(given)


def test_a_start_that_misses_is_ready_without_compiling(store: LocalStore, caplog):
    """The inputs are replayed once, and traffic runs eagerly and is counted."""
    told: list[Report] = []
    replica, before = StandIn(), watch_process().counts()
    with caplog.at_level(logging.WARNING):
        warmup = warm_up(replica, told.append, artifact=store.uri, on_missing="eager")
    report = warmup.report()

    assert (watch_process().counts() - before).quiet
    assert (report.verdict, report.degraded, report.uncompiled) == (Verdict.EAGER, (), True)
    assert stages_of(told)[-2:] == ["REPLAYING", "READY"]
    assert replica.calls == ["size 3", "size 2"]
    assert "no artifact for" in report.artifact.reason
    assert all("ran eagerly" in each.note and not each.proven for each in report.inputs)
    assert report.eager_calls == ()
    assert [r.message.partition(":")[0] for r in caplog.records] == [
        "verdict=miss, running eagerly"
    ]

    with caplog.at_level(logging.WARNING):
        for size in (9, 3):
            replica.owner.model(torch.ones(size))
    other, _ = warmup.report().eager_calls
    assert (other.reason.value, other.calls) == ("no_artifact", 1)
    assert [r.message.partition(":")[0] for r in caplog.records][1:] == ["after ready"]
    assert (watch_process().counts() - before).quiet


def test_a_refused_artifact_has_a_policy_of_its_own(store: LocalStore):
    replica = StandIn()
    offer(store, replica)
    tampered(store)
    before = watch_process().counts()
    report = warm_up(replica, artifact=store.uri, on_refused="eager").report()
    assert (watch_process().counts() - before).quiet
    assert report.verdict is Verdict.EAGER
    assert report.artifact.refused
    again = warm_up(StandIn(), artifact=store.uri, on_missing="eager").report()
    assert again.verdict is Verdict.REFUSED
    assert again.warmup.compiles


def test_an_input_that_fails_eagerly_fails_the_start(store: LocalStore):
    """Before traffic, as in any start."""
    replica = StandIn()
    replica.declared = [Input(target="embed", args=("no tensor",))]
    error, report, _ = failed(ReplayFailed, replica, artifact=store.uri, on_missing="eager")
    assert "can only concatenate str" in error.message
    assert report.stage is Stage.FAILED


def test_a_model_that_a_request_makes_is_not_compiled_either(store: LocalStore):
    """As of a multiplexed deployment: nothing compiled is there when the start looks for it."""
    replica, before = StandIn(), watch_process().counts()
    replica.owner = Making()
    report = warm_up(replica, artifact=store.uri, on_missing="eager").report()
    assert (report.verdict, report.uncompiled) == (Verdict.EAGER, True)
    replica.owner.model(torch.ones(7))
    assert (watch_process().counts() - before).quiet


def test_an_app_that_compiles_nothing_needs_no_artifact(store: LocalStore):
    replica = StandIn()
    replica.owner.model = lambda given: given
    report = warm_up(replica, artifact=store.uri, on_missing="eager").report()
    assert (report.verdict, report.nothing_compiles) == (Verdict.OFF, True)
    assert not report.uncompiled


def test_forbid_has_nothing_to_forbid_in_an_eager_replica(store: LocalStore):
    replica = StandIn()
    warm_up(replica, artifact=store.uri, on_missing="eager", after_ready="forbid")
    assert torch.equal(replica.owner.model(torch.ones(7)), 2 * torch.ones(7) + 1)


class Partial(StandIn):
    """Has a compiled layer, whose calls of `sizes` rows are declared."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        forget_callables()
        torch.manual_seed(0)
        layer = serve_warm.compile(torch.nn.Linear(4, 4).eval(), dynamic=False)
        self.owner.layer = layer  # type: ignore[attr-defined]

        def model(given: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                return layer(given.view(-1, 1).expand(-1, 4).contiguous())

        self.owner.model = model


@pytest.fixture
def no_entries() -> Iterator[None]:
    """Forget the entries that a start of this test loads."""
    yield
    SESSION.unload()
    forget_callables()


@pytest.mark.slow
@pytest.mark.usefixtures("no_entries")
def test_a_partial_artifact_answers_what_it_has_and_the_rest_runs_eagerly(store: LocalStore):
    """Nothing is compiled, neither before READY nor after it."""
    built = Partial(3)
    parts, _ = asyncio.run(warm_up(built).pack())
    offer(store, built, {"precompiled": parts["precompiled"]})
    replica, before = Partial(3, 5), watch_process().counts()
    start = warm_up(replica, artifact=store.uri, on_missing="eager")
    report = start.report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.PARTIAL)
    assert {each.name: each.proven for each in report.inputs} == {"size 3": True, "size 5": False}
    assert report.inputs[0].note == (
        "runs eagerly: the artifact has no entry for a call, and on_missing is 'eager'"
    )
    assert (report.uncompiled, report.eager_calls) == (False, ())

    results = [replica.owner.model(torch.ones(size)) for size in (3, 5, 7)]
    expected = built.owner.layer._orig_mod(torch.ones(7, 4))  # type: ignore[attr-defined]
    for result in results:
        assert torch.allclose(result, expected[: len(result)])
    assert (watch_process().counts() - before).quiet
    found = start.report().eager_calls
    assert sorted((each.reason.value, each.calls) for each in found) == [("no_entry", 1)] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("no_entries")
def test_other_policies_compile_what_a_partial_artifact_lacks(store: LocalStore):
    built = Partial(3)
    parts, _ = asyncio.run(warm_up(built).pack())
    offer(store, built, {"precompiled": parts["precompiled"]})
    report = warm_up(Partial(3, 5), artifact=store.uri).report()
    assert (report.verdict, report.covered.proven) == (Verdict.PARTIAL, 2)
    assert report.warmup.compiles == 1


def test_an_artifact_without_entries_goes_on_compiling(store: LocalStore):
    """Dynamo runs in any case then, and torch's cache has the code."""
    replica = StandIn()
    offer(store, replica)
    report = warm_up(replica, artifact=store.uri, on_missing="eager").report()
    assert report.verdict in (Verdict.FULL_HIT, Verdict.PARTIAL)
    assert report.covered.proven == 2
    assert eager_calls.answers is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_entries")
def test_an_update_of_such_a_replica_compiles_nothing_either(store: LocalStore):
    """There may be no compiler, and what torch compiled now would let it compile later."""
    built = Partial(3)
    parts, _ = asyncio.run(warm_up(built).pack())
    offer(store, built, {"precompiled": parts["precompiled"]})
    replica, before = Partial(3, 5), watch_process().counts()
    start = warm_up(replica, artifact=store.uri, on_missing="eager")

    async def change() -> None: ...

    asyncio.run(start.update(change, is_request=lambda: False))
    for size in (3, 5, 9):
        replica.owner.model(torch.ones(size))
    assert (watch_process().counts() - before).quiet
    assert {each.call.count("[5, 4]") for each in start.report().eager_calls} == {0, 1}
    assert start.report().stage is Stage.READY


@pytest.mark.usefixtures("process")
def test_a_late_replica_that_has_compiled_nothing_is_uncompiled(store: LocalStore):
    """Its calls run eagerly for want of an artifact, and not because no input foresaw them."""

    class Slow(StandIn):
        async def call(self, item: Input) -> None:
            await asyncio.sleep(0.2)
            await super().call(item)

    replica = Slow()
    start = warm_up(
        replica,
        artifact=store.uri,
        deadline_s=0.05,
        on_deadline="serve",
        after_ready="eager",
    )
    replica.owner.model(torch.ones(3))
    report = start.report()
    assert (report.verdict, report.warmup.compiles) == (Verdict.LATE, 0)
    assert report.uncompiled
    assert [each.reason.value for each in report.eager_calls] == ["no_artifact"]


def test_without_an_artifact_the_log_says_what_to_build(store: LocalStore, caplog):
    replica = StandIn()
    warm_up(replica, artifact=store.uri, on_missing="eager")
    replica.owner.model(torch.ones(7))
    (line,) = [each for each in caplog.messages if "eager_call" in each]
    assert "reason=[the start had no artifact] kinds=1; uncompiled code has answered it" in line
    assert "serve-warm build" in line


def test_calls_at_the_recompile_limit_are_counted_after_an_update_too(store: LocalStore):
    """Torch itself runs them eagerly, and would not tell anybody."""
    replica = StandIn(*range(2, 14))
    start = warm_up(replica, after_ready="eager")

    async def change() -> None: ...

    def ask(size: int) -> int:
        replica.owner.model(torch.ones(size))
        return sum(each.calls for each in start.report().eager_calls)

    before = ask(20)
    asyncio.run(start.update(change, is_request=lambda: False))
    assert [before, ask(21), ask(22)] == [1, 2, 3]
