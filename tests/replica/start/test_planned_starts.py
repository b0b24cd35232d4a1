# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts that replay a plan: proven, partly wrong, without anything to replay, and packed."""

from __future__ import annotations

import asyncio
import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from compiled import double, fresh
from levels import forget_callables, served, started
from serve_warm.artifact.archive import unpack_directory
from serve_warm.errors import ConfigError, NotProven, WarmupFailed
from serve_warm.inputs import Input
from serve_warm.learn.plan import InputPlan
from serve_warm.learn.recorded import RecordedCall
from serve_warm.learn.recorder import Recorder
from serve_warm.precompile.builders.builder import OPENING_ATTEMPTS, EntryBuilder
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.replica.record.progress import HEALTH_CHECK
from serve_warm.report import LearnedCalls, Stage
from starts import WrappedStandIn, failed, offer, process, store_fixture, warm_up  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def callables() -> Iterator[None]:
    forget_callables()
    yield
    SESSION.recorder = None


class Wrapped(WrappedStandIn):
    """A replica of a wrapped application with a model at level 1."""

    def __init__(self, declared: Any = None) -> None:
        super().__init__(serve_warm.compile(fresh(double), backend="eager", dynamic=False))
        self.declared = declared


def call(*shape: int, of: str = "compiled.double", **fields: Any) -> RecordedCall:
    strides = list(torch.ones(shape).stride())
    text = f"Tensor float32[{', '.join(map(str, shape))}] strides {strides} on cpu"
    return RecordedCall(callable=of, structure="t0", tensors=(text,), calls=3, **fields)


def plan(*calls: RecordedCall) -> str:
    return json.dumps(InputPlan(calls=calls, left_out={"other": 2}).to_json())


def test_the_calls_of_a_plan_are_proven():
    replica = Wrapped()
    report = warm_up(replica, plan=plan(call(4), call(3))).report()
    assert (report.stage, report.covered.expected, report.covered.proven) == (Stage.READY, 2, 2)
    assert report.learned == LearnedCalls(kinds=2, proven=2, calls=8, share=0.75)
    assert "learned: 2 of 2 kinds of calls proven at their callables, 75% of 8" in report.text()
    assert report.degraded == report.narrow == report.unvaried == ()
    assert report.warmup.compiles == 2


def test_declared_inputs_come_first():
    replica = Wrapped(declared=[Input(target="embed", name="mine", args=(torch.ones(5),))])
    report = warm_up(replica, plan=plan(call(4))).report()
    assert report.inputs[0].name == "mine"
    assert report.covered.proven == 2
    assert report.learned is not None
    assert report.learned.kinds == 1


def test_equal_names_are_told_apart():
    """Strides are not part of a name."""
    replica = Wrapped()
    other = RecordedCall(
        callable="compiled.double",
        structure="t0",
        tensors=("Tensor float32[4] strides [2] on cpu",),
    )
    report = warm_up(replica, plan=plan(call(4), other)).report()
    assert len({each.name for each in report.inputs}) == 2
    assert report.covered.proven == 2


WRONG = {
    "gone": call(4, of="app.Gone"),
    "raises": RecordedCall(
        callable="compiled.double",
        structure="t0, t0, 1",
        tensors=("Tensor float32[2] strides [1] on cpu",),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_call_that_cannot_be_made_fails_no_start(name: str):
    """The plan may be that of an earlier version. The other calls are proven."""
    report = warm_up(Wrapped(), plan=plan(call(4), WRONG[name])).report()
    assert (report.stage, report.covered.proven) == (Stage.READY, 1)
    (left_out,) = [each for each in report.inputs if not each.proven]
    assert left_out.left_out
    assert "left out, because it cannot be repeated" in left_out.note
    assert any("1 of 2 inputs are not proven warm" in each for each in report.degraded)


def test_a_number_of_an_older_callable_means_the_last_one():
    """Where the plan was made, an update may have compiled the model again."""
    report = warm_up(Wrapped(), plan=plan(call(4), call(8, number=1))).report()
    assert (report.stage, report.covered.proven) == (Stage.READY, 2)
    assert report.degraded == ()


def test_a_method_that_is_compiled_in_the_body_of_its_class_is_replayed():
    """In a new replica nobody has read it from its object yet, so only the function is there."""

    class Decoder:
        @functools.partial(serve_warm.compile, backend="eager", dynamic=False)
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    (name,) = {each.name for each in SESSION.counts}
    replica = Wrapped()
    replica.owner.decoder = Decoder()
    report = warm_up(replica, plan=plan(call(4, of=name, number=1))).report()
    assert (report.stage, report.covered.proven) == (Stage.READY, 1)
    assert report.degraded == ()


@pytest.mark.parametrize("name", WRONG)
def test_a_build_refuses_such_a_plan(name: str):
    error, _, _ = failed(NotProven, Wrapped(), plan=plan(call(4), WRONG[name]), on_unproven="fail")
    assert "left out, because it cannot be repeated" in error.message


def test_a_plan_of_another_application_fails_a_build_with_a_short_sentence():
    gone = [call(size, of="app.Gone") for size in range(1, 21)]
    error, _, _ = failed(NotProven, Wrapped(), plan=plan(*gone), on_unproven="fail")
    assert "20 of 20 inputs are not proven warm" in error.message
    assert error.message.count("app.Gone(t0)") == 4
    assert " and 16 more left out, because it cannot be repeated: " in error.message
    assert "the application has compiled no app.Gone" in error.message


def test_a_health_check_is_no_declared_input():
    """It is replayed if it calls the model, and nobody declares it."""
    start = warm_up(Wrapped(), plan=plan(call(4)), record="signatures")
    check = Input(target=HEALTH_CHECK, name=HEALTH_CHECK)
    start.journal.note_inputs((*start.journal.inputs, check))
    assert start.journal.has_only_planned_inputs
    start.journal.note_inputs((*start.journal.inputs, *DECLARED))
    assert not start.journal.has_only_planned_inputs


DECLARED = [Input(target="embed", name="mine", args=(torch.ones(5),))]


@pytest.mark.parametrize(
    ("declared", "settings", "is_learned"),
    [
        (None, {"plan": True, "record": "signatures"}, True),
        (None, {"record": "signatures"}, True),
        (None, {"plan": True}, False),
        (DECLARED, {"record": "signatures"}, False),
    ],
    ids=["a plan", "no plan yet", "not recorded", "declared inputs"],
)
def test_a_compile_in_traffic_of_an_untouched_app_asks_for_a_plan(
    declared: Any, settings: dict[str, Any], is_learned: bool, caplog: pytest.LogCaptureFixture
):
    """Its author declares no inputs, and `warmup_inputs()` would be a change of code."""
    if "plan" in settings:
        settings = {**settings, "plan": plan(call(4))}
    replica = Wrapped(declared=declared)
    warm_up(replica, **settings)
    with torch.set_grad_enabled(declared is not None):  # as in the replays
        replica.owner.model(torch.ones(3, 3))
    (line,) = [each for each in caplog.messages if each.startswith("after ready: kind=")]
    assert ("serve-warm plan -o plan.yaml, then serve-warm build APP --plan" in line) == is_learned
    assert ("warmup_inputs()" in line) != is_learned


def test_a_plan_that_is_damaged_fails_a_build_with_a_sentence():
    error, _, _ = failed(ConfigError, Wrapped(), plan='{"format": 9, "calls": []}')
    assert "has format 9" in error.message


def test_without_anything_to_replay_a_start_says_so():
    """It serves as without serve_warm, and compiles at the first calls."""
    replica = Wrapped()
    report = warm_up(replica).report()
    assert (report.stage, report.covered.expected) == (Stage.READY, 0)
    assert not report.nothing_compiles
    (warning,) = report.warnings
    assert warning.startswith("nothing is replayed or proven")
    assert torch.equal(replica.owner.model(torch.ones(2)), double(torch.ones(2)))


def test_without_anything_to_replay_an_eager_start_answers_eagerly(store: Any):
    replica = Wrapped()
    start = warm_up(replica, artifact=store.uri, on_missing="eager")
    assert start.report().uncompiled, "a new replica would think that this one runs compiled code"
    replica.owner.model(torch.ones(2))
    report = start.report()
    assert report.uncompiled
    assert [each.reason.value for each in report.eager_calls] == ["no_artifact"]


def test_there_is_nothing_to_pack_without_inputs():
    start = warm_up(Wrapped())
    with pytest.raises(WarmupFailed, match="nothing was replayed"):
        asyncio.run(start.pack())


def test_an_artifact_carries_the_plan_of_its_build(store: Any):
    """A start finds it there, and not one line about it is in the settings."""
    replica = Wrapped()
    start = warm_up(replica, plan=plan(call(4), call(3)))
    _, facts = asyncio.run(start.pack())
    assert facts["plan"] == json.loads(plan(call(4), call(3)))
    offer(store, replica, facts={"plan": facts["plan"]})
    forget_callables()
    report = warm_up(Wrapped(), artifact=store.uri, on_missing="fail").report()
    assert report.covered.proven == 2
    assert report.learned == LearnedCalls(kinds=2, proven=2, calls=8, share=0.75)


def packed_plan(
    replica: Wrapped, *calls: RecordedCall, **settings: Any
) -> tuple[InputPlan, dict[str, Any]]:
    """Return the plan in the artifact of a build, and the artifact's facts."""
    start = warm_up(replica, plan=json.dumps(InputPlan(calls=calls).to_json()), **settings)
    _, facts = asyncio.run(start.pack())
    return InputPlan.from_json(facts["plan"], source="artifact"), dict(facts)


SIZES = (8, 7, 6, 5)


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def sizes_of(plan: InputPlan) -> list[str]:
    return [each.tensors[0].partition(" strides")[0] for each in plan.calls]


def test_calls_that_one_dynamic_graph_answers_are_replayed_once():
    """The first call compiles for its size and the second one for all, so a start needs both."""

    def wrapped() -> Wrapped:
        forget_callables()
        torch._dynamo.reset()
        replica = Wrapped()
        replica.owner.model = serve_warm.compile(fresh(double), backend="eager")  # level 1
        return replica

    plan, _ = packed_plan(wrapped(), *(call(size) for size in SIZES))
    assert sizes_of(plan) == ["Tensor float32[8]", "Tensor float32[7]"]
    assert (plan.covered, plan.share) == (6, 1.0)
    compiles = []
    for kept in (plan.calls, plan.calls[:1]):
        replica = wrapped()
        start = warm_up(replica, plan=json.dumps(InputPlan(calls=kept).to_json()))
        with torch.no_grad():
            for size in (*SIZES, 4):
                replica.owner.model(torch.ones(size))
        compiles.append(start.report().after_ready.compiles)
    assert compiles[0] == 0
    assert compiles[1] > 0


@pytest.mark.slow
def test_entries_of_another_callable_change_nothing():
    torch._dynamo.reset()  # which knows from other tests that the sizes of this code vary
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(double), backend="eager")  # level 1
    replica.owner.other = serve_warm.compile(fresh(triple), dynamic=False)
    calls = [call(size) for size in SIZES]
    others = [call(size, of=replica.owner.other._serve_warm.name) for size in SIZES]
    plan, _ = packed_plan(replica, *calls, *others)
    assert sizes_of(plan) == [f"Tensor float32[{size}]" for size in (8, 7, *SIZES)]


@pytest.mark.slow
def test_one_entry_for_all_sizes_needs_one_call():
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(double), dynamic=True)
    plan, facts = packed_plan(replica, *(call(size) for size in SIZES))
    assert {each["level"] for each in facts["entries"]} == {2}
    assert sizes_of(plan) == ["Tensor float32[8]"]
    assert (plan.covered, plan.share) == (9, 1.0)


@pytest.mark.slow
def test_calls_with_an_entry_each_are_all_replayed():
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(double), dynamic=False)
    plan, facts = packed_plan(replica, *(call(size) for size in SIZES))
    assert {each["level"] for each in facts["entries"]} == {2}
    assert len(plan.calls) == len(SIZES)


def mixed(x: torch.Tensor) -> torch.Tensor:
    return x * 3 if x.shape[0] < 16 else x.sum(dim=0, keepdim=True)


IN_INFERENCE = {"inference_mode": True}


def built(function: Any, folder: Path, *sizes: int) -> tuple[InputPlan, dict[str, Any], Wrapped]:
    """Build with the sizes, and load the entries as a fresh process does."""
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(function)
    name = replica.owner.model._serve_warm.name
    calls = [call(size, of=name, modes=IN_INFERENCE) for size in sizes]
    start = warm_up(replica, plan=json.dumps(InputPlan(calls=tuple(calls)).to_json()))
    parts, facts = asyncio.run(start.pack())
    (folder / "entries").mkdir(mode=0o700)
    unpack_directory(io.BytesIO(parts["precompiled"]), folder / "entries")
    return InputPlan.from_json(facts["plan"], source="artifact"), dict(facts), replica


@pytest.mark.slow
def test_sizes_that_no_traffic_had_are_warm(tmp_path: Path):
    """Torch's own default: code for the sizes that came first, and code for any other."""
    plan, facts, replica = built(fresh(double), tmp_path, *range(40, 1, -1))
    assert len(facts["entries"]) == 5
    assert len(plan.calls) == 5
    assert plan.open_axes() == [f"axis 0 of tensor 0 of {plan.calls[0].callable}(t0)"]
    assert plan.share == 1.0
    with torch.inference_mode(), started(tmp_path / "entries"):
        for size in (2, 39, 41, 100, 4096):
            given = torch.ones(size)
            result = served(lambda given=given: replica.owner.model(given))
            assert (result.level, torch.equal(result.value, double(given))) == (2, True)
        assert served(lambda: replica.owner.model(torch.ones(1))).level == 1, "1 is another code"


@pytest.mark.slow
def test_each_branch_of_a_model_takes_any_of_its_sizes(tmp_path: Path):
    plan, _, replica = built(fresh(mixed), tmp_path, *range(30, 1, -1))
    assert len(plan.open_axes()) == 1
    assert sum(bool(each.any_size) for each in plan.calls) == 2
    with torch.inference_mode(), started(tmp_path / "entries"):
        for size in (2, 15, 16, 99):
            assert served(lambda size=size: replica.owner.model(torch.ones(size))).level == 2


@pytest.mark.slow
def test_where_code_for_any_size_cannot_be_made_each_size_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is tried twice: each attempt takes as long as an entry."""
    tried, compile_ = [], EntryBuilder._compile_as_is

    def refuse(self: EntryBuilder, call: Any, pending: Any) -> Any:
        if call.open_axes:
            tried.append(call)
            raise NoEntry("its results differ")
        return compile_(self, call, pending)

    monkeypatch.setattr(EntryBuilder, "_compile_as_is", refuse)
    plan, facts, _ = built(fresh(double), tmp_path, 9, 8, 7, 6, 5, 4)
    assert [each["level"] for each in facts["entries"]] == [2] * 6
    assert (len(plan.calls), plan.open_axes(), len(tried)) == (6, [], OPENING_ATTEMPTS)


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@pytest.mark.slow
def test_torch_compile_never_sees_which_axes_are_open():
    """Its guards look at the marks of tensors, and a call without an entry goes to it."""
    torch._dynamo.reset()
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(broken))
    name = replica.owner.model._serve_warm.name
    calls = [call(size, of=name, modes=IN_INFERENCE) for size in (9, 8, 7, 6, 5, 4)]
    plan, facts = packed_plan(replica, *calls)
    assert {each["level"] for each in facts["entries"]} == {1}
    assert (plan.open_axes(), plan.share) == ([], 1.0)


def numbers(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * 2, x.shape[0]


@pytest.mark.long
def test_code_for_any_size_takes_no_call_of_a_library():
    """Where a library cannot take any size, each size keeps its own library."""
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(numbers), level=3)
    name = replica.owner.model._serve_warm.name
    calls = [call(size, of=name, modes=IN_INFERENCE) for size in (6, 5)]
    plan, facts = packed_plan(replica, *calls)
    assert [each["level"] for each in facts["entries"]] == [3, 3]
    assert (len(plan.calls), plan.open_axes()) == (2, [])


@torch.library.custom_op("serve_warm_planned::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.slow
def test_a_model_that_cannot_be_a_library_has_code_for_any_size_at_level_2():
    """No library's calls could be taken."""
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(lambda x: tripled(x) + 1), level=3)
    name = replica.owner.model._serve_warm.name
    calls = [call(size, of=name, modes=IN_INFERENCE) for size in (6, 5)]
    plan, facts = packed_plan(replica, *calls)
    assert [each["level"] for each in facts["entries"]] == [2, 2]
    assert plan.open_axes() == [f"axis 0 of tensor 0 of {name}(t0)"]


@pytest.mark.slow
def test_sizes_that_an_application_fixed_are_not_opened(tmp_path: Path):
    replica = Wrapped()
    replica.owner.model = serve_warm.compile(fresh(double), dynamic=False)
    plan, facts = packed_plan(
        replica, *(call(size, modes=IN_INFERENCE) for size in range(9, 2, -1))
    )
    assert len(facts["entries"]) == 7
    assert plan.open_axes() == []


@pytest.mark.slow
def test_what_a_declared_input_reaches_leaves_the_plan():
    class Declares(Wrapped):
        async def call(self, item: Input) -> None:
            with torch.inference_mode():
                await super().call(item)

    mine = Input(target="embed", name="mine", args=(torch.ones(8),))
    replica = Declares(declared=[mine])
    replica.owner.model = serve_warm.compile(fresh(double), dynamic=False)
    modes = {"inference_mode": True}
    plan, _ = packed_plan(replica, *(call(size, modes=modes) for size in SIZES))
    assert sizes_of(plan) == [f"Tensor float32[{size}]" for size in SIZES[1:]]
    assert plan.covered == 3


@pytest.mark.parametrize("fact", [{"format": 9, "calls": []}, "text", [1], {"format": 1}])
def test_a_plan_that_a_newer_build_wrote_fails_no_start(store: Any, fact: Any):
    replica = Wrapped([Input(target="embed", name="mine", args=(torch.ones(5),))])
    offer(store, replica, facts={"plan": fact})
    report = warm_up(replica, artifact=store.uri, on_missing="fail").report()
    assert (report.stage, report.covered.proven) == (Stage.READY, 1)
    assert any("the plan in the artifact" in each for each in report.warnings)


def test_a_replica_records_the_traffic_after_ready(tmp_path: Path):
    replica = Wrapped()
    warm_up(replica, plan=plan(call(4)), record="signatures")
    for size in (4, 4, 6):
        replica.owner.model(torch.ones(size))
    recorder = SESSION.recorder
    assert isinstance(recorder, Recorder)
    assert sorted(each.calls for each in recorder.calls()[0]) == [1, 2]


def test_an_update_proves_the_calls_of_the_plan_again():
    replica = Wrapped()
    start = warm_up(replica, plan=plan(call(4), call(3)))
    replica.calls.clear()

    async def change() -> None:
        torch._dynamo.reset()

    asyncio.run(start.update(change, is_request=lambda: False))
    assert len(set(replica.calls)) == 2
    assert start.report().covered.proven == 2
