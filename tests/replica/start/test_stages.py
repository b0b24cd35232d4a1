# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start, its policies and its verdicts, with real stores and signed artifacts.

The models are compiled with a backend that compiles nothing, so that a start takes no time; what
a real cache is worth is in test_cold_warm.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from compiled import compiled, double
from processes import answer_of
from serve_warm.compiler.imports import import_compiler
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import NotProven, WarmupTimeout
from serve_warm.inputs import Input
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import Counts, Report, Stage, Verdict, advise_on_narrow
from serve_warm.stores.local import LocalStore
from starts import (  # noqa: F401 - fixtures
    CAPTURE,
    Capturing,
    Refusal,
    StandIn,
    Stuck,
    failed,
    offer,
    process,
    stages_of,
    store_fixture,
    warm_up,
)

RECOMPILE_LIMIT = 8


# --- the order -----------------------------------------------------------------------------
def test_the_stages_without_an_artifact():
    """Nothing is pulled where nothing is configured; the verdict is off and the start clean."""
    told: list[Report] = []
    report = warm_up(StandIn(), told.append).report()
    assert stages_of(told) == ["PENDING", "REPLAYING", "PROVING", "READY"]
    assert [time.stage.value for time in report.stages] == ["PENDING", "REPLAYING", "PROVING"]
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.OFF)
    assert (report.degraded, report.warnings, report.error) == ((), (), "")
    assert (report.covered.proven, report.covered.expected) == (2, 2)
    assert report.artifact is None


def test_inputs_are_replayed_largest_first_and_counted():
    """Three passes over the inputs by size, and the counts of the warm-up are those of it."""
    compiled(double)(torch.ones(9))  # before the start: not its own
    replica = StandIn(2, 5, 3)
    report = warm_up(replica).report()
    declared = [name for name in replica.calls if "varied" not in name]
    assert declared[:9] == ["size 5", "size 3", "size 2"] * 3
    assert (report.passes, report.warmup.compiles, report.warmup.recompiles) == (3, 3, 2)
    compiles = {result.name: result.compiles for result in report.inputs}
    assert [*compiles.items()] == [("size 5", 1), ("size 3", 1), ("size 2", 1)]
    assert report.after_ready == Counts()


# --- deadlines and inputs ------------------------------------------------------------------
@pytest.mark.slow
def test_a_start_that_is_late_serves_by_policy():
    """The replica is marked as late and degraded, with its progress."""
    import_compiler()
    report = warm_up(Stuck(), deadline_s=1.5, on_deadline="serve").report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.LATE)
    assert len(report.degraded) == 1
    assert report.degraded[0].startswith("late: input 'size 2' did not finish")
    assert (report.covered.proven, report.covered.expected) == (0, 2)
    assert report.warmup.compiles >= 1  # size 3 at least: half a second is little on a busy machine


def test_uncovered_inputs_are_served_as_degraded_or_fail_by_policy():
    """`on_unproven: fail` is for those who declare what must be warm."""
    sizes = range(1, RECOMPILE_LIMIT + 3)
    report = warm_up(StandIn(*sizes)).report()
    error, failure, _ = failed(NotProven, StandIn(*sizes), on_unproven="fail")
    assert report.stage is Stage.READY
    assert report.covered.proven == RECOMPILE_LIMIT
    assert report.degraded[0].startswith("uncovered: 2 of 10 inputs are not proven warm; ")
    assert "recompile_limit=16" in report.degraded[0]
    assert "2 of 10 inputs are not proven warm" in error.message
    assert "on_unproven: serve" in error.hint
    assert (failure.stage, error.stage) == (Stage.FAILED, "PROVING")


def test_a_cancelled_start_has_failed():
    """The state of a replica that Serve stopped does not stay REPLAYING."""

    async def run() -> Report:
        replica = Stuck()
        start = Warmup(replica, WarmupConfig())
        task = asyncio.ensure_future(start.run())
        await replica.waits.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        return start.report()

    report = asyncio.run(run())

    assert (report.stage, report.error) == (Stage.FAILED, "CancelledError: ")


class Restless(StandIn):
    """Its largest input has another shape at each replay."""

    async def call(self, item: Input) -> None:
        size = 10 + len(self.calls) if item.size == 9 else item.size
        self.calls.append(item.name)
        self.owner.model(torch.ones(size))


def test_an_input_that_is_never_quiet_costs_its_proof_and_no_replica(
    monkeypatch: pytest.MonkeyPatch,
):
    """Under on_unproven: serve the others are proven, and the replica is marked as degraded."""
    monkeypatch.setattr("serve_warm.replica.replay.passes.MAX_PASSES", 2)
    report = warm_up(Restless(2, 3, 9)).report()
    error, _, _ = failed(NotProven, Restless(2, 9), on_unproven="fail")
    assert "still compiles" in error.message
    assert report.stage is Stage.READY
    assert [result.name for result in report.inputs if not result.proven] == ["size 9"]
    assert (report.covered.expected, report.covered.proven) == (3, 2)
    assert "size 9" in report.degraded[0]


class Skipping(StandIn):
    """A stand-in whose first replay gets torch's message that its graph is not captured."""

    async def call(self, item: Input) -> None:
        if not self.calls:
            why = {"kind": "skip", "reason": "skipping due to a CPU node"}
            watch_process().note(dataclasses.replace(CAPTURE, **why, function="CUDA graph"))
        await super().call(item)


def test_a_graph_that_is_not_captured_is_named():
    """The replica serves, and a user who wants CUDA graphs learns that one is missing."""
    report = warm_up(Skipping(2)).report()
    assert report.stage is Stage.READY
    [warning] = report.warnings
    assert "torch did not capture 1 CUDA graph" in warning
    assert "skipping due to a CPU node" in warning


class Blocking(StandIn):
    """Blocks the event loop in its first replay, until released or for a set time."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        super().__init__(2)
        self.seconds = seconds
        self.go_on = threading.Event()
        self.threads: set[str] = set()

    async def call(self, item: Input) -> None:
        await super().call(item)
        self.threads |= {thread.name for thread in threading.enumerate()}
        if len(self.calls) == 1:
            self.go_on.wait(self.seconds)


@pytest.mark.slow
def test_a_blocked_loop_past_its_deadline_ends_the_process_with_the_reason(
    caplog: pytest.LogCaptureFixture,
):
    """In Serve with `fail`, the report says FAILED and what blocks, before the process ends."""
    import_compiler()  # seconds, which are not to be part of the deadline
    replica = Blocking()
    told: list[Report] = []
    ended: list[Report] = []

    def end_process() -> None:
        ended.append(start.report())
        replica.go_on.set()  # where a process really ends, nothing comes back

    start = Warmup(replica, WarmupConfig(deadline_s=3), end_process=end_process)
    start.observe([told.append])
    with pytest.raises(WarmupTimeout):
        asyncio.run(start.run())

    [report] = ended
    assert report.stage is Stage.FAILED
    assert "input 'size 2' did not finish within" in report.error
    assert "the event loop is blocked in wait (threading.py:" in report.error
    assert "on_model_thread" in report.error
    assert told[-1].stage is Stage.FAILED
    assert "warm-up failed: input" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["deadline_s", "input_deadline_s"])
def test_a_blocked_loop_is_late_meanwhile_and_when_it_returns(limit: str):
    """Under `serve`: whoever looks sees it within the block; nothing ends, and it serves late."""
    import_compiler()
    replica = Blocking()
    seen: list[Report] = []

    def look(report: Report) -> None:
        if report.verdict is Verdict.LATE and not replica.go_on.is_set():
            seen.append(report)
            replica.go_on.set()

    def end_process() -> None:
        raise AssertionError

    settings = {limit: 3, "on_deadline": "serve"}
    start = Warmup(replica, WarmupConfig(**settings), end_process=end_process)
    start.observe([look])
    report = asyncio.run(start.run())
    assert [(each.stage, each.verdict) for each in seen] == [(Stage.REPLAYING, Verdict.LATE)]
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.LATE)
    [degraded] = report.degraded
    assert degraded.startswith("late: input 'size 2' did not finish within")
    assert replica.calls == ["size 2"]


class Composed(StandIn):
    """Calls another deployment, which has no replica while its first input is replayed."""

    def __init__(self) -> None:
        super().__init__(2)
        self.absent = ["Encoder"]

    async def call(self, item: Input) -> None:
        await asyncio.sleep(0.3 if self.absent else 0)
        self.absent = []
        await super().call(item)

    def waits_for(self) -> Sequence[str]:
        return ["Encoder"]

    def list_absent(self) -> Sequence[str]:
        return self.absent


def test_a_wait_for_another_deployment_is_named():
    """The wait does not count as replay time, and is visible while it lasts."""
    told: list[str] = []
    report = warm_up(Composed(), lambda report: told.append(report.doing)).report()
    [wait] = [span for span in report.spans if span.name == "waiting for Encoder"]
    replaying = report.stage_seconds["replaying"]
    assert 0.1 < wait.seconds < replaying
    assert "a replica of Encoder" in told
    assert report.doing == ""
    assert "waiting for Encoder 0." in report.text()


class Batched(StandIn):
    """Stacks the calls that are made at once, as `@serve.batch` does up to 4."""

    def __init__(self, *sizes: int, pads: bool) -> None:
        super().__init__()
        self.pads = pads
        self.declared = [
            Input(target="embed", name=f"batch of {size}", concurrency=size, size=size)
            for size in sizes
        ]

    async def call(self, item: Input) -> None:
        self.calls.append(item.name)
        self.owner.model(torch.ones(max(self.sizes) if self.pads else item.concurrency))

    @property
    def sizes(self) -> list[int]:
        return [item.concurrency for item in self.declared]

    def largest_batch(self) -> int:
        return 4


def test_batches_that_nobody_declared_are_named_before_ready():
    """Traffic forms them, and each would compile for its users; nothing is compiled for it."""
    replica = Batched(4, 2, 1, pads=False)
    report = warm_up(replica).report()
    assert report.narrow == ("batches of requests to embed, always 1, 2 or 4 of at most 4",)
    assert "Declare each size with Input(..., concurrency=size)" in advise_on_narrow(*report.narrow)
    assert (report.covered.proven, report.warmup.compiles) == (3, 3)


class Tripping(Batched):
    """Refuses all calls after one that failed, as a circuit breaker does."""

    is_open = False

    async def call(self, item: Input) -> None:
        if self.is_open:
            raise RuntimeError("the circuit is open")
        try:
            await super().call(item)
        except Exception:
            self.is_open = True
            raise


def test_an_undeclared_batch_that_breaks_the_application_costs_the_proof():
    report = warm_up(Tripping(4, 2, 1, pads=False), on_unproven="serve").report()
    assert report.covered.proven < 3
    assert "the circuit is open" in report.degraded[0]


def test_a_start_with_an_artifact_tries_no_undeclared_batch(store: LocalStore):
    replica = Tripping(4, 2, 1, pads=False)
    offer(store, replica)
    report = warm_up(replica, artifact=store.uri).report()
    assert (report.verdict, report.covered.proven) == (Verdict.FULL_HIT, 3)
    assert {*replica.calls} == {"batch of 4", "batch of 2", "batch of 1"}


@pytest.mark.slow
def test_a_slow_model_is_not_called_with_every_batch_size():
    """A start must not take longer for sizes that nobody declared than for those of traffic."""
    replica = Batched(4, pads=True)
    fast = replica.owner.model

    def model(x: torch.Tensor) -> torch.Tensor:
        if replica.calls[-1] != "batch of 4":
            time.sleep(1.2)  # longer than all of these calls together may take
        return fast(x)

    replica.owner.model = model
    replica.owner.fast = fast  # where the start finds what is compiled
    report = warm_up(replica).report()
    assert [name for name in replica.calls if name != "batch of 4"] == ["embed x1"]
    assert (report.narrow, report.covered.proven) == ((), 1)
    assert "2 of 3 sizes of batches, to save time" in report.unvaried


def test_a_batch_that_is_padded_has_no_gaps():
    """The check is whether a size would compile, not whether it was declared."""
    report = warm_up(Batched(4, pads=True)).report()
    assert (report.narrow, report.warnings) == ((), ())


def test_an_object_that_cannot_be_searched_ends_no_start(monkeypatch, caplog):
    """The search for compiled objects that no input calls only advises."""
    secret = "abc123" * 2  # the traceback shows the line that raises

    def fail(*_: object) -> None:
        raise RuntimeError(f"odd object with token={secret}")

    monkeypatch.setattr("serve_warm.replica.start.proof.find_compiled", fail)
    report = warm_up(StandIn()).report()
    assert (report.stage, report.covered.proven) == (Stage.READY, 2)
    assert "cannot look for compiled objects that no input calls" in caplog.text
    assert "odd object" in caplog.text
    assert secret not in caplog.text


class Small(StandIn):
    """Never has memory for its largest input."""

    async def call(self, item: Input) -> None:
        if item.name == "size 9":
            message = "CUDA out of memory. Tried to allocate 9 GiB."
            raise torch.OutOfMemoryError(message)
        await super().call(item)


def test_an_input_that_lacks_memory_costs_its_proof_and_no_replica(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    """Fewer sizes are warm; verdict, report and log say so, and which is missing."""
    replica = Small(2, 9, 3)
    offer(store, replica)
    report = warm_up(replica, artifact=store.uri).report()
    assert (report.stage, report.verdict) == (Stage.READY, Verdict.PARTIAL)
    assert (report.covered.expected, report.covered.proven) == (3, 2)
    [why] = report.degraded
    assert why.startswith("uncovered: 1 of 3 inputs are not proven warm; 'size 9' left out because")
    assert [each.name for each in report.inputs if each.left_out] == ["size 9"]
    assert "skipped input='size 9'" in caplog.text
    assert "not proven: size 9: left out" in report.text()


class Growing(StandIn):
    """Captures one graph for more and more sizes, as the watch hears of it."""

    async def call(self, item: Input) -> None:
        if item.name not in self.calls:
            graph = {"function": "CUDA graph of compile 3/0", "signature": item.name}
            watch_process().note(dataclasses.replace(CAPTURE, **graph, at_unix=time.time()))
        await super().call(item)


@pytest.mark.parametrize("many", [8, 9])
def test_a_graph_of_many_sizes_is_named(many: int):
    """From as many on as torch warns of; each has memory of its own."""
    replica = Growing(*range(2, 2 + many))
    replica.owner.model = compiled(double, recompile_limit=64)
    report = warm_up(replica).report()
    said = [line for line in report.warnings if "for 9 sizes, and each size costs" in line]
    assert len(said) == (many > 8)
    assert all("cudagraph_capture_sizes" in line for line in said)


class Pooled(StandIn):
    """Calls its model in a worker thread that Serve may end, as sync handlers are called."""

    async def call(self, item: Input) -> None:
        with ThreadPoolExecutor(1) as worker:
            await asyncio.get_running_loop().run_in_executor(worker, self.owner.model, *item.args)


def test_compiled_calls_on_passing_threads_are_warned_about():
    """The warning has the one line that keeps the model on one thread."""
    report = warm_up(Pooled(2)).report()
    assert report.stage is Stage.READY
    [warning] = report.warnings
    assert "compiled calls ran on 1 thread outside the replica's own" in warning
    assert "in an `async def` handler itself and not through asyncio.to_thread" in warning
    assert "await self.on_model_thread(self.model, ...)" in warning
    assert threading.get_native_id() not in report.threads


def test_a_compile_in_traffic_is_refused_by_policy():
    """`after_ready: forbid`: the request gets the refusal, warm inputs work, nothing compiles."""
    replica = StandIn(2)
    start = warm_up(replica, after_ready="forbid")
    with pytest.raises(Refusal, match=r"x=float32\[7\]"):
        replica.owner.model(torch.ones(7))
    result = replica.owner.model(torch.ones(2))
    report = start.report()
    assert result.tolist() == [3.0, 3.0]
    assert report.after_ready.compiles == 0
    assert [event.kind for event in report.events] == ["forbidden"]


@pytest.mark.slow
@pytest.mark.parametrize("imports_first", [False, True])
def test_collections_during_a_start_skip_what_was_imported(imports_first: bool):
    """Each full collection would visit all of torch's objects."""
    frozen = answer_of("frozen_process.py", {"imports_first": imports_first})
    assert min(frozen["before_loading"], frozen["during"]) > 100_000
    # A start does not undo the freeze of an app.
    assert (frozen["after"] > 100_000) is imports_first
