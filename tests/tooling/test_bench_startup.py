# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of starts: its measurements are consistent, and wrong numbers fail it."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

import jsonschema
import pytest
import torch
import torch._dynamo.utils

from benchmarks import bench_startup, picture, start_process, workloads
from benchmarks.bench_startup import Entrant, Plan, Row, compared, row_of, with_floor
from serve_warm.compiler.watch import _makes_object

SECONDS = {"type": ["number", "null"], "minimum": 0}
COUNT = {"type": ["integer", "null"], "minimum": 0}
ROW = {
    "type": "object",
    "required": [
        *("workload", "system", "level", "to_proof_s", "overhead_s", "cpu_s", "ready_s"),
        *("floor_s", "compiler_processes", "artifact_bytes", "steady_p50_s"),
        *("peak_rss_bytes", "stages", "cpu_stages", "max_error", "failure", "runs"),
    ],
    "properties": {
        "workload": {"enum": list(workloads.ALL)},
        "system": {"enum": list(bench_startup.SYSTEMS)},
        "level": {"type": ["integer", "null"]},
        **{name: SECONDS for name in bench_startup.MEDIANS if name.endswith("_s")},
        **dict.fromkeys(bench_startup.WHOLE, COUNT),
        "stages": {"type": "object", "additionalProperties": SECONDS},
        "cpu_stages": {"type": "object", "additionalProperties": SECONDS},
        "max_error": {"type": ["number", "null"]},
        "failure": {"type": "string"},
        "not_measured": {"type": "string"},
        "runs": {"type": "array", "items": {"type": "object"}},
    },
}
"""Schema of a row, for readers of the file. A row may have more keys."""


def run_of(*, turn: int = 1, system_s: float = 10.0, **others: Any) -> dict[str, Any]:
    """Return the output of a start: `system_s`, plus two seconds of imports and weights."""
    stages = {"imports": 1.5, "weights": 0.5, "compiler": 1.0, "load": 0.25}
    stages |= {"first_pass": system_s - 1.75, "quiet": 0.25, "proof": 0.25}
    return {
        "turn": turn,
        "to_proof_s": system_s,
        "overhead_s": system_s - 0.75,
        "past_import_s": system_s - 1.75,
        "import_left_s": 1.0,
        "cpu_s": system_s + 2,
        "ready_s": system_s + 2,
        "floor_s": 3.75,
        "compiler_processes": 0,
        "artifact_bytes": 100,
        "steady_p50_s": 0.001,
        "steady_largest_p50_s": 0.002,
        "peak_rss_bytes": 1000,
        "passes": 3,
        "compute_s": 0.75,
        "stages": stages,
        "cpu_stages": stages,
        "max_error": 1e-6,
        "note": "",
        **others,
    }


def rows_of(**systems: Any) -> list[Row]:
    return [row_of("tiny", Entrant(system=name), runs) for name, runs in systems.items()]


def a_document(rows: list[Row]) -> dict[str, Any]:
    return {
        "rows": [row.to_json() for row in rows],
        "titles": {row.workload: "<tiny> & small" for row in rows},
        "machine": {"cpu": "a CPU", "torch": "2.13.0"},
        "repeats": 3,
        "threads": 1,
    }


def a_run(*names: str, overhead_s: float = 1.0, **others: Any) -> dict[str, Any]:
    runs = [run_of()]
    rows = [row_of(name, Entrant(system="eager"), runs) for name in names]
    rows = [dataclasses.replace(row, overhead_s=overhead_s) for row in rows]
    settings = {"repeats": 3, "node": "fresh", "command": f"bench {' '.join(names)}"}
    return bench_startup.document(rows, **{**settings, "took_s": 60.0, **others})


def test_a_run_of_some_models_keeps_the_others_of_an_earlier_one():
    """The order is that of a full run, and new measurements replace old ones."""
    earlier = a_run("resnet152", "decoder24", overhead_s=1.0)

    both = bench_startup.added(earlier, a_run("minilm", "decoder24", overhead_s=2.0))

    assert [(row["workload"], row["overhead_s"]) for row in both["rows"]] == [
        ("minilm", 2.0),
        ("resnet152", 1.0),
        ("decoder24", 2.0),
    ]
    assert [*both["titles"]] == ["minilm", "resnet152", "decoder24"]
    assert both["command"] == "bench resnet152 decoder24 && bench minilm decoder24"
    assert both["took_s"] == 120.0


@pytest.mark.parametrize("other", [{"repeats": 2}, {"node": "used"}])
def test_runs_that_were_made_otherwise_are_not_put_together(other):
    """Medians of two and of three turns, for example, are not comparable."""
    with pytest.raises(bench_startup.Failed, match=f"another {next(iter(other))}: measure all"):
        bench_startup.added(a_run("minilm", **other), a_run("resnet152"))


def test_an_hour_is_not_spent_on_what_cannot_be_added(tmp_path, capsys):
    """The check comes before any measurement."""
    file = tmp_path / "startup.json"
    file.write_text(json.dumps(a_run("minilm", repeats=2)))

    with pytest.raises(SystemExit):
        bench_startup.main(["--workloads", "tiny", "--repeats", "3", "--add-to", str(file)])

    assert "nothing can be added" in capsys.readouterr().err


def bars_in(svg: str) -> list[ET.Element]:
    groups = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
    return [group for group in groups if group.get("class") == "bar"]


# Real starts ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return one turn on the tiny workload, with a level that does not exist."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--workloads", "tiny", "--systems", "eager,copied_dir,serve_warm,floor"]
    arguments += ["--levels", "1,99", "--repeats", "1", "--json", str(folder / "a.json")]
    arguments += ["--json", str(folder / "b.json"), "--picture", str(folder / "a.svg")]
    status = bench_startup.main(arguments)
    return {
        "status": status,
        "document": json.loads((folder / "a.json").read_text(), parse_constant=pytest.fail),
        "copy": json.loads((folder / "b.json").read_text()),
        "svg": (folder / "a.svg").read_text(),
    }


def row_in(found: dict[str, Any], system: str, level: int | None = None) -> dict[str, Any]:
    [row] = [
        row for row in found["document"]["rows"] if (row["system"], row["level"]) == (system, level)
    ]
    return row


@pytest.mark.stress
def test_rows_have_the_promised_keys(found):
    """Each row has the keys that readers of the file rely on, and every system is there once."""
    rows = found["document"]["rows"]

    for row in rows:
        jsonschema.validate(row, ROW)
    assert [(row["system"], row["level"]) for row in rows] == [
        *(("eager", None), ("copied_dir", None), ("serve_warm", 1), ("serve_warm", 99)),
        *(("floor", 1), ("floor", 99)),
    ]
    assert found["copy"] == found["document"]
    assert found["status"] == 0


@pytest.mark.stress
def test_a_level_that_is_not_there_is_no_failure(found):
    """The level has no figures and a reason, and the run of the benchmark succeeds."""
    row = row_in(found, "serve_warm", 99)

    assert row["not_measured"] == "serve_warm has no level 99"
    assert (row["failure"], row["to_proof_s"], row["runs"]) == ("", None, [])


@pytest.mark.stress
@pytest.mark.parametrize(
    ("system", "level"), [("eager", None), ("copied_dir", None), ("serve_warm", 1)]
)
def test_clocks_agree_with_the_stages(found, system, level):
    """All stages add up to `ready_s`, and the stages after the weights to `to_proof_s`."""
    [run] = row_in(found, system, level)["runs"]
    stages = run["stages"]
    before_s = stages["imports"] + stages["weights"]

    assert tuple(stages) == start_process.STAGES
    # The file has seven digits of each number.
    assert sum(stages.values()) == pytest.approx(run["ready_s"], abs=1e-4)
    assert run["ready_s"] - before_s == pytest.approx(run["to_proof_s"], abs=1e-4)
    overhead_s = max(0, run["to_proof_s"] - run["compute_s"])
    assert run["overhead_s"] == pytest.approx(overhead_s, abs=1e-4)
    past_import_s = max(0, overhead_s - run["import_left_s"])
    assert run["past_import_s"] == pytest.approx(past_import_s, abs=1e-4)
    assert run["passes"] == (2 if system == "eager" else 3)


@pytest.mark.stress
def test_a_start_from_built_kernels_runs_no_compiler(found):
    """This holds for the copied directory and the artifact. Both have a size."""
    for system, level in [("copied_dir", None), ("serve_warm", 1)]:
        row = row_in(found, system, level)

        assert row["compiler_processes"] == 0
        assert row["artifact_bytes"] > 0
        assert row["max_error"] < 1e-5


@pytest.mark.stress
def test_the_floor_is_that_of_serve_warm(found):
    """Its imports and weights were measured separately. Its passes are those of serve_warm."""
    floor, ours = row_in(found, "floor", 1), row_in(found, "serve_warm", 1)

    assert floor["ready_s"] == floor["floor_s"] == ours["floor_s"]
    assert floor["compute_s"] == ours["compute_s"] > 0
    assert floor["stages"]["compiler"] > 0
    assert ours["ratios"]["ready_to_floor"] > 0


@pytest.mark.stress
def test_the_picture_of_real_rows_has_a_bar_for_each(found):
    """Each row with figures has a bar, and other rows have a text."""
    assert len(bars_in(found["svg"])) == 4
    assert "not measured" in found["svg"]


@pytest.mark.stress
def test_wrong_numbers_fail_the_run(tmp_path):
    """If a system's results differ from eager's, it has no figures, and the run fails."""
    path = tmp_path / "found.json"

    status = bench_startup.main(
        ["--workloads", "skewed", "--systems", "eager,cold", "--repeats", "1", "--json", str(path)]
    )

    eager, cold = json.loads(path.read_text())["rows"]
    assert status == 1
    assert eager["failure"] == ""
    assert cold["failure"] == "wrong numbers: 1.0e-02 from the eager model"
    assert cold["to_proof_s"] is None
    assert cold["runs"][0]["compiler_processes"] > 0


# Results from starts --------------------------------------------------------------------------


def test_ratios_are_taken_within_a_turn():
    """The median of ratios, not the ratio of medians: a slow turn is slow for both sides."""
    cold = [run_of(turn=turn, system_s=s) for turn, s in [(1, 10.0), (2, 100.0), (3, 12.0)]]
    bytes_ = [run_of(turn=turn, system_s=s) for turn, s in [(1, 4.0), (2, 50.0), (3, 9.0)]]

    _, row = compared(rows_of(cold=cold, torch_bytes=bytes_))

    assert row.ratios["to_proof_to_cold"] == pytest.approx(0.5)
    assert row.to_proof_s == 9.0


def test_nothing_is_compared_with_what_failed():
    """No system is compared with a cold start that has wrong numbers."""
    cold = [run_of(max_error=1.0)]

    failed, row = compared(rows_of(cold=cold, torch_bytes=[run_of()]))

    assert failed.ratios == {}
    assert "to_proof_to_cold" not in row.ratios
    assert row.ratios["to_proof_to_torch_bytes"] == 1.0


def test_the_floor_takes_the_passes_of_its_level():
    """Each turn has its floor. A level without its own floor takes the floor of its imports."""
    floor, light = (Entrant(system="floor", level=level) for level in (2, 3))
    one, two, three = (Entrant(system="serve_warm", level=level) for level in (1, 2, 3))
    runs = {
        one: [run_of(compute_s=0.9), run_of(turn=2, compute_s=0.3)],
        two: [run_of(compute_s=0.6, passes=2), run_of(turn=3)],
        three: [run_of(compute_s=0.4, passes=2)],
        floor: [run_of(), run_of(turn=2)],
        light: [run_of(stages={**run_of()["stages"], "compiler": 0.0})],
    }

    with_floor(runs)

    assert [run["floor_s"] for run in runs[one]] == pytest.approx([3.9, 3.3])
    assert [run["floor_s"] for run in runs[two]] == pytest.approx([3.6, 3.75])
    assert [run["floor_s"] for run in runs[three]] == pytest.approx([2.4])
    assert [run["ready_s"] for run in runs[floor]] == pytest.approx([3.6, 12.0])
    assert sum(runs[floor][0]["stages"].values()) == pytest.approx(3.6)
    assert runs[floor][0]["overhead_s"] == runs[floor][0]["import_left_s"] == 1.0
    assert [run["ready_s"] for run in runs[light]] == pytest.approx([2.4])
    assert sum(runs[light][0]["stages"].values()) == pytest.approx(2.4)
    assert runs[light][0]["overhead_s"] == 0.0


def test_there_is_a_floor_for_each_set_of_imports():
    """A floor has the passes of the highest level that needs its imports."""
    entrants = bench_startup.entrants_of(["floor", "serve_warm", "eager"], (1, 2, 3))

    assert [str(entrant) for entrant in entrants if entrant.system != "serve_warm"] == [
        *("eager", "floor level 2", "floor level 3")
    ]


def proven_by(call: Any, seen: list[str]) -> start_process.Proven:
    clock = start_process.Clock(0.0)
    inputs = workloads.ALL["tiny"].inputs()
    proven = start_process.until_proven(call, inputs, clock, workloads.ALL["tiny"])
    seen += list(clock.seconds)
    return proven


def test_a_first_pass_that_compiles_nothing_is_quiet():
    """The proof then follows at once, for every system."""
    calls: list[str] = []
    stages: list[str] = []

    proven = proven_by(lambda example: calls.append(example.name), stages)

    assert (proven.passes, calls) == (2, ["batch 8", "batch 1"] * 2)
    assert stages == ["first_pass", "quiet", "proof"]


@pytest.mark.parametrize(("compiling_calls", "passes"), [(1, 3), (2, 3), (3, 4), (4, 4)])
def test_passes_go_on_while_frames_are_compiled(monkeypatch, compiling_calls, passes):
    """A quiet pass and the proof follow the last pass in which one of two inputs compiled."""
    frames = Counter()
    monkeypatch.setitem(torch._dynamo.utils.counters, "frames", frames)
    left = iter(range(compiling_calls))

    def call(_: Any) -> None:
        frames["total"] += next(left, None) is not None

    assert proven_by(call, []).passes == passes


def test_passes_do_not_go_on_for_ever(monkeypatch):
    """A model that compiles in every pass is a failure."""
    frames = Counter()
    monkeypatch.setitem(torch._dynamo.utils.counters, "frames", frames)

    with pytest.raises(RuntimeError, match="still compiles after 8 passes"):
        proven_by(lambda _: frames.update(total=1), [])


def test_what_is_left_is_estimated_by_what_was_like_it():
    """The estimate uses the same start in another turn or on another model."""
    cold, redis = Entrant(system="cold"), Entrant(system="redis")
    plan = Plan(["a", "b"], [cold, redis], 2)
    assert plan.left_s() == 0.0

    plan.took = {("a", cold, 1): 10.0, ("a", redis, 1): 4.0, ("a", redis, 0): 6.0}
    plan.left = {("a", cold, 2), ("b", redis, 0), ("b", redis, 1), ("b", cold, 1)}

    assert plan.left_s() == pytest.approx(10.0 + 6.0 / 2 + 4.0 + 10.0)

    plan.drop("b", {redis})

    assert plan.left_s() == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("system", "failure", "max_error", "wrong"),
    [
        ("caching_precompile", "AssertionError in load: no", None, False),
        ("caching_precompile", "wrong numbers", 0.5, True),
        ("serve_warm", "RuntimeError in load: verdict partial", None, True),
        ("cold", "", 1e-6, False),
    ],
)
def test_what_fails_the_run(system, failure, max_error, wrong):
    """Wrong numbers of any system fail the run, and so do failures of systems that must work."""
    row = Row(workload="tiny", system=system, level=None, failure=failure, max_error=max_error)

    assert row.wrong is wrong


def test_a_failed_process_is_known_by_its_sentence():
    """The sentence is a special line, or else the last line with text."""
    assert bench_startup.last_words("a\nfailure=KeyError in load: 'x'\n\nwarning\n") == (
        "KeyError in load: 'x'"
    )
    assert bench_startup.last_words("Segmentation fault\n\n") == "Segmentation fault"


@pytest.mark.parametrize(
    "command",
    [
        "g++ a.cpp -o a.so",
        "g++ --version",
        "g++ -E header.h -o header.i",
        "g++ -c a.cpp -o a.o",
        "g++ header.h -o header.h.gch",
        "ar rcs -o lib.a a.o",
    ],
)
def test_compiler_runs_are_counted_by_the_rule_of_the_package(command):
    """Processes of other systems do not import the package, so the benchmark repeats the rule."""
    assert start_process.makes_object(command) == _makes_object(command)
    assert start_process.makes_object(command.split()) == _makes_object(command)


def test_nan_is_an_error():
    """All comparisons with NaN are false, but NaN must not count as a small difference."""
    workload = workloads.ALL["tiny"]
    module = workload.build(0)

    error = start_process.max_error(
        workload, lambda _: torch.full((8, 4), torch.nan), module, workload.inputs()[:1]
    )

    assert error > bench_startup.TOLERANCE


def test_the_picture_is_xml_whatever_is_in_it():
    """A bar per row with figures; titles and failures are text, not markup."""
    rows = [
        *rows_of(cold=[run_of()], torch_bytes=[run_of(system_s=5.0)]),
        Row(workload="tiny", system="redis", level=None, failure="<class 'x'> & more " * 20),
    ]

    svg = picture.svg(a_document(rows))

    texts = [element.text for element in ET.fromstring(svg).iter()]
    assert len(bars_in(svg)) == 2
    assert "<tiny> & small" in texts
    assert any(text and text.startswith("failed: <class 'x'>") for text in texts)
    assert "prefers-color-scheme: dark" in svg


def test_the_pieces_of_a_bar_make_its_length():
    """A bar for twice the seconds has twice the length, and bars stay within the picture."""
    rows = rows_of(cold=[run_of(system_s=18.0)], torch_bytes=[run_of(system_s=8.0)])

    bars = bars_in(picture.svg(a_document(rows)))

    lengths = [sum(float(piece.get("width", 0)) for piece in bar) for bar in bars]
    ends = [max(float(p.get("x", 0)) + float(p.get("width", 0)) for p in bar) for bar in bars]
    assert lengths[0] == pytest.approx(2 * lengths[1], rel=0.01)
    assert max(ends) < picture.WIDTH


@pytest.mark.parametrize("name", ["recipe64", "decoder24", "tiny"])
def test_workloads_are_the_same_in_every_process_and_not_trivial(name):
    """Two builds return the same result, and another input returns another result."""
    workload = workloads.ALL[name]
    first, second = workload.build(workloads.SEED), workload.build(workloads.SEED)
    example = workload.inputs()[0]
    [x] = example.args

    with torch.inference_mode():
        out, same = first(x), second(x)
        other = first(torch.flip(x, dims=(-1,)))

    assert torch.equal(out, same)
    assert (out - other).abs().max() > 10 * bench_startup.TOLERANCE
