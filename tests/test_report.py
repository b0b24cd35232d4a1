# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The report as JSON and as text, and the arithmetic of counts."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from reports import FULL
from serve_warm._spans import Span, describe
from serve_warm.report import (
    SCHEMA,
    ArtifactUse,
    CompileEvent,
    Counts,
    Coverage,
    EntryUse,
    InputResult,
    Parity,
    Report,
    Stage,
    StageTime,
    Verdict,
    advise_on_narrow,
)

REPORTS = [pytest.param(Report(), id="default"), pytest.param(FULL, id="full")]


def result(**fields: Any) -> InputResult:
    return InputResult(first_s=1.0, steady_s=0.1, compiles=1, **fields)


def spans_of(*spans: tuple[Any, ...], beside: tuple[tuple[Any, ...], ...] = ()) -> list[Span]:
    """Return parts of a start from names, beginnings and seconds; those beside it come last."""
    parts = [*((*each, False) for each in spans), *((*each, True) for each in beside)]
    return [Span(name=n, began_boot_s=at, seconds=s, beside=b) for n, at, s, b in parts]


def kinds(value: Any) -> set[type]:
    """Return the types of a value and of all that is in it."""
    if type(value) is dict:
        return {dict}.union(*map(kinds, value.values()), *map(kinds, value))
    if type(value) is list:
        return {list}.union(*map(kinds, value))
    return {type(value)}


@pytest.mark.parametrize("report", REPORTS)
def test_json_is_plain_and_round_trips(report: Report):
    """No tuple, enum or record is left, so reading gives what was written."""
    data = report.to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert kinds(data) <= {dict, list, str, int, float, bool, type(None)}


@pytest.mark.parametrize("report", REPORTS)
def test_json_has_every_field(report: Report):
    data = report.to_json()
    fields = {f.name for f in dataclasses.fields(Report)}
    assert data.keys() == {"schema", "traced", "levels", "seconds_by_owner"} | fields
    assert data["schema"] == SCHEMA


def test_the_text_says_what_a_person_looks_for():
    """First the whole start; then where it stands; then each thing that is not as it should be."""
    lines = FULL.text().splitlines()

    assert lines[0] == (
        "app#Embedder READY 9.0 s after its process began: process 2.0, imports 4.0, pending 0.5, "
        "torch's compiler 1.0, replaying 1.5; in other threads: pull 0.5"
    )
    assert lines[1].startswith("  verdict=partial proven=1/2 ")
    assert lines[1].endswith(" traced=some")
    assert "  not proven: embed batch=1: would compile: size mismatch" in lines
    assert "  degraded: uncovered: 1 of 2 inputs" in lines
    assert "  warning: compiled calls ran on 2 threads" in lines
    assert f"  artifact: file:///srv/artifacts {FULL.artifact.statement}" in lines
    assert "    2 files of 3" in lines
    assert "  error: none" in lines
    assert any("3 compiler runs" in line for line in lines)
    assert (
        "  on the GPU: 9 captures in 0.75 s, 10 graphs skipped, 11 kernels built, "
        "12 autotuned in 1.50 s"
    ) in lines
    assert (
        "  after ready: 1 compiles, 2 captures, 6 graphs skipped, 7 kernels built, 8 autotuned, "
        "4 fallbacks to eager, 5 refused, 6 of 90 calls eager"
    ) in lines


def test_the_text_says_what_graphs_hold():
    """By device, with what each pool has of it; a device without graphs is there as well."""
    lines = [line for line in FULL.text().splitlines() if line.startswith("  memory: ")]
    graphs = "32.5 MB by graphs: 30.0 MB in 0.1, 2.5 MB in 0.3"
    assert lines == [
        f"  memory: 60.0 MB held on cuda:0, 80.0 MB at the peak; {graphs}",
        "  memory: 4.0 MB held on cuda:1, 5.0 MB at the peak",
    ]


@pytest.mark.long
def test_no_text_of_a_report_is_without_end():
    """User code may raise megabytes of text, which goes to logs and files."""
    endless = "x" * 1_500_000
    event = dict.fromkeys(("kind", "function", "signature", "reason"), endless)
    report = Report(
        degraded=(endless, "late: by 3 s"),
        warnings=(endless,),
        error=endless,
        inputs=(result(name=endless, proven=False, note=endless),),
        events=(CompileEvent(**event, seconds=0.0, thread=1, at_unix=0.0),),
        entries=(EntryUse(callable=endless, call=endless, level=1, reason=endless),),
        parity=Parity(failures=(endless,)),
        artifact=ArtifactUse(store=endless, reason=endless, trace=(endless, endless)),
    )
    assert len(report.text()) < 100_000
    assert len(str(report.to_json())) < 100_000
    assert report.degraded[1] == "late: by 3 s"
    assert len(str(report.events[0])) < 3_100


def test_the_text_of_a_clean_start_has_no_complaints():
    clean = Report(
        stage=Stage.READY,
        verdict=Verdict.FULL_HIT,
        covered=Coverage(expected=1, proven=1),
        inputs=(result(name="a", proven=True),),
    )
    text = clean.text()
    assert "verdict=full_hit proven=1/1" in text
    absent = ("not proven", "degraded", "warning", "error:", "on the GPU", "memory", "tunings")
    assert not any(word in text for word in absent)


def test_the_parts_of_a_start_add_up_to_it():
    """A part inside another, such as an import within loading, counts once."""
    spans = spans_of(
        *(("process", 0.0, 5.0), ("pending", 5.0, 1.0), ("loading", 6.0, 7.0)),
        *(("torch's compiler", 10.0, 3.0), ("proving", 13.0, 1.0)),
        beside=(("prefetch", 1.0, 9.0),),
    )
    assert describe(spans) == (
        " 14.0 s after its process began: process 5.0, pending 1.0, loading 4.0, "
        "torch's compiler 3.0, proving 1.0; in other threads: prefetch 9.0"
    )


def test_each_second_of_a_start_has_an_owner():
    """With a seat, the process existed before. Time in no part belongs to Ray."""
    took = ((Stage.LOADING, 0.25), (Stage.REPLAYING, 0.5), (Stage.PROVING, 0.25))
    stages = tuple(StageTime(stage=stage, seconds=seconds) for stage, seconds in took)
    start = Report(created_boot_s=105.0, elapsed_s=4.0, stages=stages)
    inits, ahead = (("imports", 102.0, 3.0), ("__init__", 105.0, 2.0)), ("reading", 105.5, 9.0)
    seated = spans_of(*inits, beside=(ahead,))
    plain = [*spans_of(("process", 100.0, 2.0)), *seated]
    reports = [dataclasses.replace(start, spans=tuple(spans)) for spans in (plain, seated)]
    found = [report.seconds_by_owner for report in reports]
    same = {"ray": 1.0, "imports": 3.0, "weights": 2.0, "passes": 0.75, "ours": 0.25}
    assert found == [{"process": 2.0, **same}, {"process": 0.0, **same}]
    assert sum(found[0].values()) == 9.0
    assert Report().seconds_by_owner == {}


def test_a_report_tells_how_much_of_an_import_init_hid():
    """Torch's compiler is imported in a thread beside `__init__`, and may take longer than it."""
    spans = spans_of(
        *(("process", 0.0, 2.0), ("__init__", 2.0, 3.0), ("pending", 5.0, 1.0)),
        beside=(("torch's compiler", 3.0, 2.5), ("pull", 2.0, 0.01)),
    )
    said = "pending 1.0; in other threads: torch's compiler 2.5 (2.0 during __init__)"
    assert describe(spans).endswith(said)


def test_a_reason_of_several_lines_stays_below_its_artifact():
    """A miss says which folder was looked into on a line of its own."""
    used = ArtifactUse(store="./artifacts", reason="nothing is there\nit is a relative path")
    lines = Report(artifact=used).text().splitlines()
    below = ["    nothing is there", "    it is a relative path"]
    assert lines[-3:] == ["  artifact: ./artifacts", *below]


def test_entries_of_several_objects_are_counted_in_one_way():
    """Models of one structure share kinds of calls, and each is checked on weights of its own."""
    one = EntryUse(callable="app.Net", call="(t0)", level=2, calls=2)
    shared = Report(entries=(one,), parity=Parity(entries=2, checked=2, results={"same": 2}))
    alone = Report(entries=(one,), parity=Parity(entries=1, checked=1, results={"same": 1}))
    said = "  parity: 2 of 2 entries checked, counted for each compiled object (2 same)"
    assert said in shared.text().splitlines()
    assert "  parity: 1 of 1 entries checked (1 same)" in alone.text().splitlines()


def test_each_clock_says_from_where_it_counts():
    """Process to READY, and the end of `__init__` to the proof: two figures, two names."""
    first, second = FULL.text().splitlines()[:2]
    assert "s after its process began" in first
    assert f"init_end_to_proof={FULL.to_proof_s:.2f} s" in second


def test_counts_are_subtracted_field_by_field():
    names = [f.name for f in dataclasses.fields(Counts)]
    earlier, later = (Counts(**{m: k * n for n, m in enumerate(names)}) for k in (1, 2))
    assert dataclasses.astuple(later - earlier) == tuple(range(len(names)))
    assert later - later == Counts()


LOUD = {
    *("compiles", "captures", "eager_runs", "eager_falls"),
    *("compiler_processes", "kernels", "tunings"),
}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Counts)])
def test_quiet_is_no_compile_capture_or_fall(name: str):
    """Cache hits and seconds are no noise; what makes code is."""
    assert Counts(**{name: 1}).quiet is (name not in LOUD)


def test_a_report_is_read_with_the_standard_library_alone():
    """A program that shows a report needs only this package."""
    program = (
        "import sys; before = set(sys.modules); import serve_warm.report\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'serve_warm'}))"
    )
    command = [sys.executable, "-c", program]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("ids[1], always 8", "Declare buckets"),
        ("texts[0] and a[0] and b[0] and c[0] and 1 more, always 1", "Declare buckets"),
        ("texts[1], at most 9", "Declare buckets"),
        ("size, always 8", "as a tensor"),
        ("user, only 1001 or 1002", "as a tensor"),
        ("mask, always given", "Declare an input like it"),
        ("one side of the branch at app.py:3, in forward", "whose values lead there"),
        ("self.other is compiled, and no input calls it", "Declare an input that does"),
    ],
)
def test_each_kind_of_narrow_line_has_its_advice(place: str, advice: str):
    assert advice in advise_on_narrow(place)
