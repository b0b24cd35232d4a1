# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a start tells: its report at any time, its observers, and its log as text and data."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.serve._private.logging_utils import JSONFormatter, ServeFormatter

from compiled import compiled, double
from serve_warm import metrics
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import ConfigError, ReplayFailed, ServeWarmError
from serve_warm.inputs import Input, InputSignature
from serve_warm.precompile.facts.names import describe_tensor
from serve_warm.replica.record import journal as journal_module
from serve_warm.replica.record import traffic_log
from serve_warm.replica.record.journal import LOG_PREFIX
from serve_warm.replica.start.stages import Warmup
from serve_warm.report import CompileEvent, Counts, Report, Stage, Verdict
from serve_warm.stores.local import LocalStore
from starts import (  # noqa: F401 - fixtures
    CAPTURE,
    StandIn,
    Stuck,
    failed,
    offer,
    process,
    stages_of,
    store_fixture,
    warm_up,
)


# --- the order -----------------------------------------------------------------------------
def test_only_the_journal_writes_its_fields():
    """Stages call methods, which say what happened, and keep fields that belong together."""
    written = re.compile(r"(self\.)?_?journal\.\w+(\.\w+)*")
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(journal_module.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and written.fullmatch(ast.unparse(node))
    ]

    assert found == []


def test_the_report_says_who_and_what():
    """Identity, versions, times and threads of the start; as JSON it is plain data."""
    report = warm_up(StandIn()).report()
    who = (report.application, report.deployment, report.replica)
    assert who == ("app", "Embedder", "Embedder#1")
    assert report.versions["torch"] == torch.__version__
    assert report.threads == (threading.get_native_id(),)
    assert report.pid == os.getpid()
    assert report.to_proof_s >= report.overhead_s > 0
    assert report.cpu_s > 0
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


def test_the_report_says_how_long_it_took_since_the_replica_was_created():
    """The time grows until READY, and then stays."""
    told: list[Report] = []
    before_unix = time.time()
    created = time.clock_gettime(time.CLOCK_BOOTTIME) - 1000.0
    known = Report(application="app", created_boot_s=created, versions={"ray": "2.60.0"})
    start = Warmup(StandIn(), WarmupConfig(deadline_s=60.0), known=known)
    start.observe([told.append])
    asyncio.run(start.run())

    report = start.report()
    elapsed = [each.elapsed_s for each in told]
    assert 1000.0 < elapsed[0] < report.elapsed_s
    assert elapsed == sorted(elapsed)
    assert {each.elapsed_s for each in told if each.stage is Stage.READY} == {report.elapsed_s}
    assert {each.ready_unix for each in told if each.stage is not Stage.READY} == {None}
    assert before_unix <= report.ready_unix <= time.time()
    assert (report.deadline_s, report.artifact_configured) == (60.0, False)
    assert (report.application, report.versions["ray"]) == ("app", "2.60.0")
    assert report.versions["torch"] == torch.__version__


# --- deadlines and inputs ------------------------------------------------------------------
def test_a_start_has_no_verdict_before_it_is_decided(store: LocalStore):
    """Its report can be read at any time, and a hit is one when the replica is ready."""
    replica = StandIn()
    offer(store, replica)
    told: list[Report] = []
    start = Warmup(replica, WarmupConfig(artifact=store.uri))
    before = start.report()
    start.observe([told.append])
    ready = asyncio.run(start.run())
    assert (before.stage, before.covered.expected, before.verdict) == (Stage.PENDING, 0, None)
    proven = [report.covered.proven for report in told]
    assert (proven, proven[-1]) == (sorted(proven), 2)
    assert {r.verdict for r in told if r.stage is not Stage.READY} == {None}
    assert before.to_json()["verdict"] is None
    assert ready.verdict is Verdict.FULL_HIT
    (row,) = [row for row in metrics.as_data(before) if row["name"] == "serve_warm_verdict"]
    assert {value for _, value in row["samples"]} == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before its artifact", "on its artifact"])
def test_a_start_that_fails_has_no_verdict(store: LocalStore, when: str):
    """Without serving, the worth of the artifact is unknown."""
    replica = StandIn() if when == "before its artifact" else Stuck()
    offer(store, replica)
    if when == "before its artifact":
        replica.declared = []
    _, report, _ = failed(ServeWarmError, replica, artifact=store.uri, deadline_s=2.0)
    assert (report.stage, report.verdict) == (Stage.FAILED, None)
    assert "verdict=" not in report.text()


def after_ready(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log's lines about compiles after READY."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("after ready: kind")]


def signature_of(**values: Any) -> str:
    return str(InputSignature.of(values))


EARLIER = "earlier graphs were captured in 'serve_warm-model_0'"
ELSEWHERE = f"captured in thread 'my-pool_0', but {EARLIER}"
AGAIN = "captured again (earlier captures: 1): static input 3 moved"
RACE = "0/1: Unexpected recompilation: every guard holds. Please open an issue"
ON_MODEL_THREAD = "await self.on_model_thread(self.model, ...)"


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"reason": ELSEWHERE, "thread": -1}, ["my-pool_0", ON_MODEL_THREAD]),
        ({"reason": AGAIN, "thread": threading.get_native_id()}, ["in place"]),
        (  # torch has no reason for the first one: no guard failed
            {"kind": "compile", "signature": signature_of(x=torch.ones(3, 16))},
            ["reason=[first compile of this function]", "input=[x=float32[3, 16]]"],
        ),
        (  # whichever thread lost the race
            {"kind": "recompile", "reason": RACE, "signature": "x=float32[2]"},
            [f"`{ON_MODEL_THREAD}`, which keeps the model on one thread"],
        ),
    ],
    ids=["captured in another thread", "captured again", "first compile", "race"],
)
def test_an_event_in_traffic_is_advised_on(
    event: dict[str, Any], says: list[str], caplog: pytest.LogCaptureFixture
):
    """The advice is about its cause: the input of a capture is declared, and of a race as well."""
    start = warm_up(StandIn(2))
    watch_process().note(dataclasses.replace(CAPTURE, **event, at_unix=time.time()))
    [line] = after_ready(caplog)
    assert [text for text in says if text not in line] == []
    assert ("warmup_inputs()" in line) == (event.get("kind") == "compile")
    assert str(start.report().events[-1]).endswith(event.get("reason", ""))


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_wall_clock_that_jumps_hides_no_compile_and_invents_none(jump_s: float):
    """Before, Unix times decided which compiles belong to the start and which to traffic."""

    class Jumping(StandIn):
        async def call(self, item: Input) -> None:
            if not self.calls:
                watch_process().note(of_start)
            await super().call(item)

    of_start = dataclasses.replace(CAPTURE, function="early", at_unix=time.time() - jump_s)
    later = dataclasses.replace(CAPTURE, function="late", at_unix=time.time() + jump_s)
    start = warm_up(Jumping(2))
    watch_process().note(later)

    assert [event.function for event in start.report().events] == ["late"]


def test_sizes_of_compiles_read_as_those_of_entries():
    assert "float32[3, 16]" in signature_of(x=torch.ones(3, 16))
    assert "float32[3, 16]" in describe_tensor(torch.ones(3, 16))


class Suggesting(StandIn):
    """Knows the input of each request, as Serve's context does."""

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        return f"Input({event.signature})"


@pytest.mark.parametrize(
    ("size", "own_thread", "fix", "declares"),
    [
        (2, False, "concurrent calls on several threads can hit a race", False),
        (2, True, "a value changed after the proof", False),
        (7, False, "`async def`", True),
        (7, True, "declare this input", True),
    ],
    ids=["race", "changed", "undeclared, of a request", "undeclared"],
)
def test_a_compile_in_traffic_is_advised_on_by_its_cause(
    size: int, own_thread: bool, fix: str, declares: bool, caplog: pytest.LogCaptureFixture
):
    """Advice to declare an input that is declared and proven would be wrong."""
    warm_up(replica := Suggesting(2))
    [warmed] = [e for e in watch_process().events() if e.kind == "compile"][-1:]
    seen = dataclasses.replace(
        warmed,
        kind="recompile",
        signature=f"x=float32[{size}]",
        reason="0/1: a guard",
        thread=threading.get_native_id() if own_thread else -1,
        at_unix=time.time(),
    )
    watch_process().note(seen)

    [line] = after_ready(caplog)
    assert replica.calls
    assert fix in line
    assert (f"warmup_inputs(), or pad to a bucket: Input(x=float32[{size}])" in line) == declares
    assert ("on_model_thread" in line) == (not own_thread)


# --- observers -----------------------------------------------------------------------------
def test_an_observer_that_raises_is_dropped_and_the_start_goes_on(caplog: pytest.LogCaptureFixture):
    """A lost metric does not end the replica. The error is logged once, with the traceback."""
    calls = 0
    told: list[Report] = []

    def broken(report: Report) -> None:
        nonlocal calls
        calls += 1
        if report.stage is Stage.REPLAYING:
            raise OSError("no space left")

    report = warm_up(StandIn(), broken, told.append).report()

    raised = [record for record in caplog.records if record.exc_info]
    assert report.stage is Stage.READY
    assert calls == 2  # PENDING, and REPLAYING where it raised
    assert stages_of(told) == ["PENDING", "REPLAYING", "PROVING", "READY"]
    assert len(raised) == 1
    assert "no space left" in str(raised[0].exc_info[1])


# --- after ready ---------------------------------------------------------------------------
def test_a_compile_in_traffic_is_counted_and_named(caplog: pytest.LogCaptureFixture, log: JsonLog):
    """Counted apart from the warm-up, with input and reason, in the report and in the log."""
    replica = StandIn(2)
    start = warm_up(replica)
    quiet = start.report()
    replica.owner.model(torch.ones(2))
    replica.owner.model(torch.ones(7))
    report = start.report()
    (event,) = report.events
    (line,) = after_ready(caplog)
    assert quiet.after_ready == Counts()
    assert quiet.events == ()
    assert (report.after_ready.compiles, report.after_ready.recompiles) == (1, 1)
    assert report.warmup == quiet.warmup
    assert (event.kind, event.signature) == ("recompile", "x=float32[7]")
    assert "input=[x=float32[7]]" in line
    assert "warmup_inputs()" in line
    [logged] = (each for each in log.events() if each["event"] == "compile")
    assert (logged["kind"], logged["stage"], logged["events"]) == ("recompile", "ready", 1)
    assert (logged["signature"], logged["reason"]) == (event.signature, event.reason)
    assert logged["seconds"] > 0
    assert event.reason
    assert "double" in logged["function"]


@pytest.mark.slow
def test_observers_learn_of_a_compile_in_traffic_when_it_has_ended():
    """Else the state file says for seconds that a request still compiles."""
    told: list[Report] = []
    replica = StandIn(2)
    warm_up(replica, told.append)
    before = len(told)
    replica.owner.model(torch.ones(7))
    assert len(told) > before
    assert (len(told[-1].events), told[-1].doing) == (1, "")


def test_a_compile_in_traffic_is_told_while_it_runs():
    """Its line follows when it has ended, which can take minutes."""
    start = warm_up(StandIn(2))
    with watch_process().compile_running():
        assert start.report().doing == "torch's compiler, in a request"
    assert start.report().doing == ""


@pytest.mark.slow
def test_many_compiles_in_traffic_are_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A client with odd shapes does not fill the log; the counts miss none."""
    monkeypatch.setattr(traffic_log, "PERIOD_S", 600.0)  # a busy machine compiles for over 10 s
    replica = StandIn(2)
    replica.owner.model = compiled(double, recompile_limit=64)
    start = warm_up(replica)
    for size in range(3, 23):
        replica.owner.model(torch.ones(size))
    assert start.report().after_ready.compiles == 20
    assert len(after_ready(caplog)) == 1


def test_a_credential_that_user_code_repeats_is_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    """A server's echo of a variable's value is hidden in the report, its text, state and log."""
    echoed = "correct horse battery staple"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", echoed)
    replica = StandIn()

    async def call(_item: Input) -> None:
        raise RuntimeError(f"the server says: {echoed}")

    replica.call = call  # type: ignore[method-assign]
    error, report, _ = failed(ReplayFailed, replica)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(report.to_json()))

    for text in (str(error), report.text(), state.read_text(), caplog.text):
        assert echoed not in text
    assert "the server says: [hidden]" in report.error
    assert report.stage is Stage.FAILED


def test_loggers_say_each_stage_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "serve_warm")
    warm_up(StandIn())
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("stage=")]
    assert lines == [
        f"stage={stage} deployment=Embedder replica=Embedder#1"
        for stage in ("PENDING", "REPLAYING", "PROVING", "READY")
    ]


# --- the log as data -----------------------------------------------------------------------
class JsonLog(logging.Handler):
    """The output of Ray's own formatters, with `encoding: JSON` and as text."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())
        self._text = ServeFormatter("Embedder", "Embedder#1")
        self.records: list[dict[str, Any]] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(json.loads(self.format(record)))
        self.lines.append(self._text.format(record))

    def events(self) -> list[dict[str, Any]]:
        """Return our own fields of each record that has some, without the prefix."""
        return [
            {key.removeprefix(LOG_PREFIX): value for key, value in record.items()}
            for record in self.records
            if f"{LOG_PREFIX}event" in record
        ]


@pytest.fixture(name="log")
def log_fixture() -> Iterator[JsonLog]:
    handler = JsonLog()
    logger = logging.getLogger("serve_warm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_stages_and_verdict_are_fields_of_json_logs(store: LocalStore, log: JsonLog):
    replica = StandIn()
    key = offer(store, replica)
    report = warm_up(replica, artifact=store.uri).report()

    *stages, last = log.events()
    took = [time.stage.value.lower() for time in report.stages]
    order = ["pending", "pulling", "verifying", "loading", "replaying", "proving", "ready"]
    assert [(each["event"], each["stage"]) for each in stages] == [("stage", s) for s in order]
    assert [each.get("previous") for each in stages] == [None, *took] == [None, *order[:-1]]
    assert all(each["seconds"] > 0 for each in stages[1:])
    elapsed = [each["elapsed_s"] for each in stages]
    assert elapsed == sorted(elapsed)
    assert [each["statement"] for each in stages[3:]] == [key] * 4
    assert [each["inputs_expected"] for each in stages] == [0, *[2] * 6]
    assert (last["event"], last["stage"], last["verdict"]) == ("verdict", "ready", "full_hit")
    assert (last["elapsed_s"], last["inputs_done"]) == (report.elapsed_s, 2)
    assert last["reason"] == ""
    assert {each["application"] for each in log.events()} == {"app"}


def test_a_miss_and_its_reason_are_fields(store: LocalStore, log: JsonLog):
    """The reason appears when the artifact is discarded, and again with the verdict."""
    warm_up(StandIn(), artifact=store.uri)
    (put_aside,) = (each for each in log.events() if each["event"] == "artifact")
    last = log.events()[-1]
    assert put_aside["verdict"] == last["verdict"] == "miss"
    assert put_aside["stage"] == "pulling"
    assert put_aside["reason"] == last["reason"]
    assert "has no artifact for 'Embedder'" in last["reason"]


def test_a_failed_start_and_its_reason_are_fields(log: JsonLog):
    replica = StandIn()
    replica.declared = []
    failed(ConfigError, replica)
    *_, stage, last = log.events()
    assert (stage["event"], stage["stage"], stage["previous"]) == ("stage", "failed", "pending")
    assert (last["event"], last["stage"], last["verdict"]) == ("verdict", "failed", "failed")
    assert "returned no inputs" in last["reason"]


def test_fields_are_documented_and_clash_with_none(store: LocalStore, log: JsonLog):
    """Each has our prefix: `logging` raises where a record has such a field already."""
    replica = StandIn(2, 3)
    warm_up(replica, artifact=store.uri)
    replica.owner.model(torch.ones(7))
    document = (Path(__file__).parents[3] / "docs" / "reference" / "messages.md").read_text()
    plain = {"asctime", "levelname", "message", "filename", "lineno", "process", "timestamp_ns"}
    found = {key for record in log.records for key in record} - plain
    assert {key for key in found if not key.startswith(LOG_PREFIX)} == set()
    assert [key for key in found if f"`{key}`" not in document] == []
    assert len(log.lines) == len(log.records) > 5
    for line, record in zip(log.lines, log.records, strict=True):
        assert line.endswith(f" -- {record['message']}")
