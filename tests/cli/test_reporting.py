# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm report`: a start from its process on, as lines and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from serve_warm import cli
from serve_warm._state_file import StateFile
from serve_warm.builder.cluster import Answers
from serve_warm.cli import reporting
from serve_warm.errors import StoreError
from serve_warm.report import CompileEvent, EagerCalls, EagerReason, LearnedCalls, describe_eager
from serve_warm.seats.records import SeatUse

SPANS = [
    ["process", 100.0, 1.5, False],
    ["imports", 101.5, 4.0, False],
    ["__init__", 105.5, 2.0, False],
    ["pull", 105.6, 0.5, True],
    ["torch's compiler", 107.6, 1.0, False],
    ["pending", 107.5, 1.5, False],
    ["replaying", 109.0, 0.25, False],
]

FACTS: dict[str, Any] = {
    "stage": "READY",
    "verdict": "full_hit",
    "traced": "some",
    "levels": {"1": 1, "2": 3, "3": 0},
    "spans": SPANS,
    "doing": "",
    "reason": "",
    "degraded": ["uncovered: 1 of 4 inputs"],
    "warnings": [],
    "error": "",
}


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Path]:
    """Return the state directory of a ready replica and of a replica that failed and ended."""
    folder = tmp_path / "state"
    names = {"application": "shop", "deployment": "Ranker"}
    ready = StateFile(folder, **names, replica="a")
    ready.write(FACTS)
    failed = StateFile(folder, **names, replica="b")
    failed.write({**FACTS, "stage": "FAILED", "error": "no memory\nhint: less", "spans": SPANS[:2]})
    failed.close()
    yield folder
    ready.close()


def run(*options: str) -> str:
    ended = CliRunner().invoke(cli.serve_warm, ["report", *options], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_the_first_line_splits_the_whole_start(replicas: Path):
    """A part inside another part counts once, and parallel work counts no time."""
    lines = run("--state-dir", str(replicas)).splitlines()
    assert lines[0] == (
        "shop#Ranker a: READY 9.2 s after its process began: process 1.5, imports 4.0, "
        "__init__ 2.0, pending 0.5, torch's compiler 1.0, replaying 0.2; "
        "in other threads: pull 0.5 (0.5 during __init__)"
    )
    assert lines[1] == "  verdict=full_hit traced=some calls: 1 at level 1, 3 at level 2"
    assert lines[2] == "  degraded: uncovered: 1 of 4 inputs"


EVENT = CompileEvent(
    kind="recompile", function="forward (app.py:7)", signature="x=float32[3]", reason="0/0: size"
)


def test_the_last_compile_in_traffic_is_told_with_its_call(replicas: Path, tmp_path: Path):
    """`why` leads here. A report of a cluster has all events, and a state file the last one."""
    said = "  after ready, last: recompile of forward (app.py:7) with x=float32[3]: 0/0: size"
    state = StateFile(tmp_path / "other", application="a", deployment="D", replica="r")
    state.write({**FACTS, "event": str(EVENT)})
    assert said in run("--state-dir", str(tmp_path / "other")).splitlines()
    state.close()
    events = [{"kind": "compile"}, dataclasses.asdict(EVENT)]
    of_report = reporting.start_of(("a", "D", "r"), {"events": events})
    assert said in of_report.lines(is_whole=True)
    assert "last:" not in run("--state-dir", str(replicas))


@pytest.mark.parametrize("events", [[1], [{}], [{"kind": 3}], {"kind": "compile"}])
def test_events_that_nobody_can_read_are_no_event(events: Any):
    assert not reporting.start_of(("a", "D", "r"), {"events": events}).event


def test_what_came_of_a_plan_is_told(tmp_path: Path):
    learned = LearnedCalls(kinds=3, proven=2, requests=1, requests_proven=1, calls=80, share=0.5)
    state = StateFile(tmp_path, application="a", deployment="D", replica="r")
    state.write({**FACTS, "learned": learned.text()})
    line = (
        "  learned: 2 of 3 kinds of calls proven at their callables, 50% of 80 recorded calls; "
        "1 of 1 recorded requests proven"
    )
    assert line in run("--state-dir", str(tmp_path)).splitlines()
    state.close()
    of_report = reporting.start_of(("a", "D", "r"), {"learned": {**vars(learned), "later": 1}})
    assert of_report.learned == learned.text()


def test_what_came_of_a_seat_is_told(tmp_path: Path):
    """The line about a seat comes from a state file, or from a record of a newer release."""
    use = SeatUse(count=1, miss="hung", note="importing app took more than 60 s", waiting=0)
    state = StateFile(tmp_path / "s", application="a", deployment="D", replica="r")
    state.write({**FACTS, "seat": use.text()})
    lines = run("--state-dir", str(tmp_path / "s")).splitlines()
    state.close()
    of_report = reporting.start_of(("a", "D", "r"), {"seat": {**vars(use), "later": 1}})
    line = "  seat: no (hung): importing app took more than 60 s; 0 waiting for the next start"
    assert line in lines
    assert of_report.seat == use.text()


def test_the_starts_of_a_person_s_question_are_chosen(tmp_path: Path):
    """Running ones first, and then those that began last."""
    names = {"application": "shop", "deployment": "Ranker"}
    ended = [StateFile(tmp_path, **names, replica=f"gone{n}", began_s=10.0 * n) for n in (1, 2, 3)]
    for each in ended:
        each.write(FACTS)
        each.close()
    running = StateFile(tmp_path, **names, replica="runs")
    other = StateFile(tmp_path, application="shop", deployment="Other", replica="o")
    for each in (running, other):
        each.write(FACTS)

    def shown(*options: str) -> list[str]:
        lines = run("--state-dir", str(tmp_path), *options).splitlines()
        return [line.split(":")[0].split()[1] for line in lines if line.startswith("shop#")]

    assert shown() == ["o", "runs", "gone3", "gone2", "gone1"]
    assert shown("--last", "2") == ["o", "runs", "gone3"]
    assert shown("--deployment", "Other") == shown("--deployment", "shop#Other") == ["o"]
    assert shown("--since", "1min", "--app", "shop") == ["o", "runs"]
    missing = CliRunner().invoke(
        cli.serve_warm, ["report", "--state-dir", str(tmp_path), "--app", "none"]
    )
    assert isinstance(missing.exception, StoreError)
    assert missing.exception.hint == "there are starts of shop#Other, shop#Ranker"
    for each in (running, other):
        each.close()


def test_a_replica_that_has_ended_is_told_too(replicas: Path):
    """An ended replica has its error in its line, because nobody can ask it any more."""
    last = run("--state-dir", str(replicas)).splitlines()[-1]
    assert last.startswith("shop#Ranker b: FAILED 5.5 s after")
    assert last.endswith("and its process has ended: no memory")
    lines = run("--state-dir", str(replicas), "--all").splitlines()
    first = next(line for line in lines if line.startswith("shop#Ranker b"))
    assert first.startswith("shop#Ranker b: FAILED 5.5 s after")
    assert first.endswith("and its process has ended")
    assert "  error: no memory" in lines
    assert "  hint: less" in lines


def test_json_is_written(replicas: Path, tmp_path: Path):
    """Seconds count from the process on."""
    data = tmp_path / "starts.json"
    run("--state-dir", str(replicas), "--json", str(data))
    first, second = json.loads(data.read_text())["starts"]
    assert (first["replica"], second["replica"], second["ended"]) == ("a", "b", True)
    pull = {"name": "pull", "began_s": pytest.approx(5.6), "seconds": 0.5, "beside": True}
    assert first["spans"][3] == pull


def test_what_another_release_wrote_is_no_error(tmp_path: Path):
    """Fields that are not there or of another kind are left out."""
    state = StateFile(tmp_path / "s", application="a", deployment="D", replica="r")
    state.write({"stage": "READY", "spans": [["x"], None, 3, ["y", "z", 1, 2]], "levels": 7})
    lines = run("--state-dir", str(tmp_path / "s")).splitlines()
    state.close()
    assert lines[0] == "a#D r: READY"


def test_a_directory_without_replicas_is_said(tmp_path: Path):
    with pytest.raises(StoreError, match="no replica has written to") as caught:
        run("--state-dir", str(tmp_path))
    assert "--address" in caught.value.hint


EAGER = {
    "callable": "app.Net",
    "call": "x=float32[5, 256]",
    "reason": "unforeseen",
    "calls": 2,
    "median_s": 0.0009,
    "why": "no entry for this call",
    "declare": "Input(target='GET /')",
}
CALL = "eager (unforeseen): app.Net x=float32[5, 256]: 2 calls, median 0.9 ms; the first: no entry"
LINES = [f"  {CALL} for this call", "  declare Input(target='GET /')"]


def test_eager_calls_have_lines_with_inputs_to_declare(tmp_path: Path):
    """The runbook of their alert reads them."""
    calls = [EagerCalls(**{**EAGER, "reason": EagerReason.UNFORESEEN})]
    names = {"application": "shop", "deployment": "Ranker", "replica": "a"}
    state = StateFile(tmp_path / "state", **names)
    state.write({**FACTS, "eager": describe_eager(calls)})
    shown = run("--state-dir", str(tmp_path / "state"))
    state.close()
    assert [line for line in shown.splitlines() if line in LINES] == LINES


@pytest.mark.parametrize("wrong", [None, [1], [{"reason": "none"}], [{**EAGER, "calls": "x"}]])
def test_a_report_of_a_cluster_has_them_as_well(monkeypatch: pytest.MonkeyPatch, wrong: Any):
    named = {"application": "shop", "deployment": "Ranker", "replica": "a"}
    asked = Answers(
        cluster="here", of_replicas=[{**FACTS, **named, "eager_calls": [*(wrong or []), EAGER]}]
    )
    monkeypatch.setattr("serve_warm.builder.cluster.ask_replicas", lambda _: asked)
    (start,) = reporting.of_cluster("here")
    assert [f"  {line}" for line in start.eager] == LINES
