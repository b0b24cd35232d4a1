# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How `make seats` evaluates its turns: the owner of each second, and exceeded limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import bench_seats
from gpu import seats_gpu

if TYPE_CHECKING:
    from pathlib import Path


def started(spans: list[tuple[str, float, float]], **seat: Any) -> dict[str, Any]:
    """Return a start that was created at 1000 s, on a machine that booted at 900 s."""
    return {
        "created_unix": 1000.0,
        "running_unix": 1010.0,
        "answer": [1.0],
        "report": {
            "verdict": "full_hit",
            "fingerprint": {"app": {"threads": "1"}},
            "seat": seat or None,
            "created_boot_s": 106.0,
            "elapsed_s": 3.0,
            "ready_unix": 1009.0,
            "spans": [
                {"name": name, "began_boot_s": began, "seconds": seconds, "beside": False}
                for name, began, seconds in spans
            ],
            "stages": [
                {"stage": "LOADING", "seconds": 0.25},
                {"stage": "REPLAYING", "seconds": 0.5},
                {"stage": "PROVING", "seconds": 0.25},
            ],
        },
    }


PLAIN = [("process", 101.0, 2.0), ("imports", 103.0, 3.0), ("__init__", 106.0, 2.0)]
SEATED = [("imports", 100.5, 0.5), ("__init__", 106.0, 2.0)]


def test_all_seconds_have_an_owner():
    """Time outside the parts of the report belongs to Ray, before and after the replica."""
    plain = bench_seats.seconds_of(started(PLAIN))
    seated = bench_seats.seconds_of(started(SEATED))

    assert plain == {
        "process": 2.0,
        "ray": 2.0,
        "imports": 3.0,
        "cuda": 0.0,
        "weights": 2.0,
        "passes": 0.75,
        "ours": 0.25,
    }
    assert seated["process"] == 0.0
    assert sum(seated.values()) == 10.0


def test_a_cuda_context_that_the_app_measured_is_no_weight():
    """The app creates the context in `__init__`, before it loads weights."""
    found = bench_seats.seconds_of({**started(PLAIN), "cuda_s": 0.5})

    assert (found["cuda"], found["weights"]) == (0.5, 1.5)
    assert sum(found.values()) == 10.0


def test_a_process_that_was_there_before_costs_nothing():
    """Ray had started the worker long before the replica was created."""
    early = [("process", 50.0, 53.0), *PLAIN[1:]]

    assert bench_seats.seconds_of(started(early))["process"] == 0.0


def test_a_controllers_line_is_read_by_the_replica(tmp_path: Path):
    """The line has milliseconds. Lines of other replicas do not count."""
    line = "INFO 2026-11-24 12:54:1{},640 controller 8 -- Replica(id='{}') started successfully on"
    lines = [line.format(digit, name) for digit, name in enumerate(("aaaa", "bbbb"))]
    (tmp_path / "controller_8.log").write_text("\n".join(lines))

    moments = [bench_seats.logged(tmp_path, name) for name in ("aaaa", "bbbb", "cccc")]

    assert moments[0] is not None
    assert moments[1] == pytest.approx(moments[0] + 1)
    assert moments[2] is None


GOOD = {
    "answers": 1,
    "starts": 2,
    "full_hits": 2,
    "thread_drift": 0,
    "scale_hits": 4,
    "scale_starts": 4,
    "seat_s": [2.0, 2.0],
    "plain_s": [9.0, 9.0],
    "empty_s": [1.0, 1.0],
    "seconds": {"seat": {"weights": 0.5, "passes": 0.5}},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answers": 2}, "2 different answers"),
        ({"full_hits": 1}, "1 full hits in 2 starts on seats"),
        ({"scale_hits": 3}, "3 seats in 4 starts of scale-ups"),
        ({"thread_drift": 1}, "1 starts on seats had another fingerprint"),
        ({"plain_s": [5.0, 5.0]}, "a seat takes 0.40 of plain"),
        ({"empty_s": [0.5, 0.5]}, "a seat takes 1.33 of empty, weights and passes"),
    ],
    ids=str,
)
def test_what_is_not_as_it_has_to_be_is_named(change: dict[str, Any], says: str):
    """Each exceeded limit gives one sentence. A run within all limits gives none."""
    assert bench_seats.failures(GOOD) == []
    assert bench_seats.failures({**GOOD, **change}) == [says]


def test_a_run_without_scale_ups_is_judged_without_them():
    """Runs on a GPU have no scale-ups."""
    found = {name: value for name, value in GOOD.items() if not name.startswith("scale")}

    assert bench_seats.failures(found) == []
    assert bench_seats.scale_ups([{"scale": {}}]) == {}
    assert bench_seats.neighbours([{"scale": {}}]) == {}


def test_scale_ups_and_latencies_are_paired_by_turn():
    """Each list has one number for each turn, in the order of turns."""
    turns = [
        {
            "scale": {
                mode: {"first_s": first + n, "all_s": first + n + 1, "hits": 2 * (mode == "seat")}
                for mode, first in (("plain", 8.0), ("seat", 2.0))
            },
            "neighbour": {
                "alone": [0.001 * (n + 1)] * 99 + [0.5],
                "importing": [0.002] * 50,
            },
        }
        for n in range(2)
    ]

    scaled, neighbours = bench_seats.scale_ups(turns), bench_seats.neighbours(turns)

    assert scaled == {
        "scale_s": {
            "plain": {"first": [8.0, 9.0], "all": [9.0, 10.0]},
            "seat": {"first": [2.0, 3.0], "all": [3.0, 4.0]},
        },
        "scale_hits": 4,
        "scale_starts": 4,
    }
    assert neighbours["neighbour_s"]["alone"] == {
        "requests": [100, 100],
        "p50": [0.001, 0.002],
        "p99": [0.001, 0.002],
    }
    assert neighbours["neighbour_s"]["importing"]["p99"] == [0.002, 0.002]


def test_the_file_of_a_seat_that_was_taken_is_empty(tmp_path: Path):
    """A replica may remove the file while the benchmark reads the folder."""
    (tmp_path / "seat-7").write_text('{"state": "waiting"}')

    assert bench_seats.read_seat(tmp_path / "seat-7") == {"state": "waiting"}
    assert bench_seats.read_seat(tmp_path / "seat-8") == {}


class Stopped(seats_gpu.Pieces):
    """Pieces without processes. Each piece has a given result and uses nearly the whole limit."""

    def __init__(self, work: Path, *, most: int) -> None:
        super().__init__(work, limit_s=1e9 if most else 0.0, cpu=True)
        self.most = most
        self.ran: list[tuple[str, int, str]] = []

    def _do(self, name: str, number: int, kind: str, limit_s: float) -> dict[str, Any]:
        self.ran.append((name, number, kind))
        if len(self.ran) == self.most:
            self._end_s = 0.0
        starts = dict.fromkeys(("plain", "seat", "empty"), started(PLAIN, hit=True))
        found = {"starts": starts, "scale": {}, "memory_bytes": [4], "load": 1.0}
        return {"seats": found, "node": {"starts": {"preload": started(PLAIN)}}, "build": {}}[kind]


def test_a_run_on_a_gpu_goes_on_where_it_stopped(tmp_path: Path):
    """A finished piece does not run again, and a document has only complete turns."""
    written: list[dict[str, Any]] = []
    models = ("resnet152", "text_generator")
    runs = [Stopped(tmp_path, most=most) for most in (2, 3, 100)]

    results = [
        seats_gpu.run_all(run, models, 1, lambda found: written.append(dict(found))) for run in runs
    ]

    assert [is_done for _, is_done in results] == [False, False, True]
    pieces = [piece for run in runs for piece in run.ran]
    kinds = ("build", *bench_seats.KINDS)
    assert pieces == [(model, 0, kind) for model in models for kind in kinds]
    assert [len(found) for found, _ in results] == [0, 1, 2]
    assert [sorted(found) for found in written] == [["resnet152"], ["resnet152"], [*models]]
    assert written[-1]["resnet152"]["seat_s"] == [10.0]


def test_what_is_neither_weights_nor_passes_has_a_limit_on_a_gpu():
    """All other seconds of a start on a seat belong to Ray and serve_warm."""
    seat = {"process": 0.0, "ray": 0.2, "imports": 0.1, "ours": 0.1, "weights": 9.0}
    slow = {**seat, "ray": 0.5}

    found = [
        seats_gpu.failures("resnet152", {**GOOD, "seconds": {"seat": each}})
        for each in (seat, slow)
    ]

    assert found == [
        [],
        ["resnet152: 0.70 s of a start on a seat are of process, ray, imports, ours"],
    ]
