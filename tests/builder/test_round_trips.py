# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Round trips of a build: beside each other where there is room, and never waiting for each other.

The cluster is a stand-in whose starts end when a test says so; integration/test_gang.py,
test_libraries.py and test_build_command.py have real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from serve_warm.builder import round_trips
from serve_warm.builder.app import App, load_app
from serve_warm.builder.cluster import ReplicaDied
from serve_warm.errors import BuildFailed

APP = "deployments.text_embedder.app:embedder"

TRIPS = [
    round_trips.RoundTrip(label="first", level=1),
    round_trips.RoundTrip(label="second", level=2),
    round_trips.RoundTrip(label="third", level=3),
]
LABELS = {trip.level: trip.label for trip in TRIPS}

GOOD = {
    "verdict": "full_hit",
    "artifact": {},
    "warmup": {"compiler_processes": 0},
    "covered": {"expected": 1, "proven": 1},
    "entries": [{"level": level, "reason": ""} for level in (2, 3)],
    "compiler_imported": "no",
    "compiler_imported_by": "",
}


class Polled:
    """A start that says for some polls that it is under way, and then how it ended."""

    def __init__(self, ends: Any, *, polls: int, places: bool) -> None:
        self.said = "replaying"
        self.is_placed = False
        self._ends, self._polls, self._places = ends, polls, places

    def poll(self) -> Any:
        self.is_placed = self._places
        self._polls -= 1
        if self._polls >= 0:
            return None
        if isinstance(self._ends, Exception):
            raise self._ends
        return self

    def ask(self, method: str, *, timeout_s: float) -> list[dict[str, Any]]:
        assert method == "warmup_report"
        return [self._ends]


class Room:
    """A cluster with room for some starts; notes which began and ended, in order."""

    place = "here"

    def __init__(self, room: int = 9, *, places: bool = True, **ends: list[Any]) -> None:
        self.noted: list[str] = []
        self.asked: list[Mapping[str, float]] = []
        self._room = room
        self._places = places
        self._ends = {label: list(reversed(each)) for label, each in ends.items()}
        self._open = 0

    @property
    def most(self) -> int:
        """How many were under way at once, at most."""
        counts, now = [0], 0
        for text in self.noted:
            now += 1 if text.startswith("+") else -1
            counts.append(now)
        assert now == 0, "an application was left"
        return max(counts)

    def has_room(self, resources: Mapping[str, float]) -> bool:
        self.asked.append(resources)
        return self._open < self._room

    @contextlib.contextmanager
    def starting(self, app: App, settings: Mapping[str, Any]) -> Iterator[Polled]:
        label = LABELS[settings["max_level"]]
        ends = self._ends.get(label) or [GOOD]
        # The first is the slowest, so that they do not end in the order of their beginning.
        polls = 9 - 4 * self._open
        self.noted.append(f"+{label}")
        self._open += 1
        try:
            yield Polled(ends.pop(), polls=polls, places=self._places)
        finally:
            self._open -= 1
            self.noted.append(f"-{label}")


def prove(on: Room, *, replicas: int = 1, told: list[str] | None = None) -> Any:
    """Return the reports and the seconds of the three trips on a cluster."""
    seconds: dict[str, float] = {}
    reports = round_trips.prove(
        TRIPS,
        dataclasses.replace(load_app(APP), replicas=replicas),
        {"artifact": "somewhere"},
        on=cast("Any", on),
        progress=([] if told is None else told).append,
        took=seconds.__setitem__,
    )
    return reports, seconds


@pytest.mark.slow
def test_trips_run_beside_each_other_where_there_is_room():
    """The reports are those of the last trip, whichever ended last; each has seconds of its own."""
    third = {**GOOD, "covered": {"expected": 3, "proven": 3}}
    on, told = Room(third=[third]), list[str]()
    reports, seconds = prove(on, told=told)
    assert on.most == 3
    assert on.noted[3] == "-third"
    assert reports == [third]
    assert seconds.keys() == {"first", "second", "third"}
    assert "first: replaying; second: replaying; third: replaying" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "on", [Room(1), Room(places=False)], ids=["no free resources", "one waits for its own"]
)
def test_trips_run_one_after_the_other_where_there_is_no_room(on: Room):
    """So no two trips each hold a part of the resources that both need."""
    prove(on)
    assert on.noted == ["+first", "-first", "+second", "-second", "+third", "-third"]


@pytest.mark.slow
def test_a_gang_has_the_cluster_for_itself():
    """Ranks of two gangs would meet at the same port."""
    on = Room()
    prove(on, replicas=2)
    assert on.most == 1
    assert on.asked == []


def test_the_first_trip_that_fails_is_named_and_the_others_are_ended():
    """Nobody waits for what cannot make the build good any more."""
    on = Room(second=[{**GOOD, "verdict": "partial_hit"}])
    with pytest.raises(BuildFailed, match=r"^second: a fresh replica .* partial_hit") as failure:
        prove(on)
    assert "nothing was published" in failure.value.hint
    assert on.most == 3


@pytest.mark.slow
def test_a_replica_that_dies_beside_another_is_started_again_alone():
    """Two models in memory may be too many for the machine, where one is not."""
    on = Room(second=[ReplicaDied("killed"), GOOD])
    reports, _ = prove(on)
    assert reports == [GOOD]
    assert on.noted[-2:] == ["+second", "-second"]
    assert on.noted.count("+second") == 2


@pytest.mark.slow
def test_a_replica_that_dies_alone_fails_the_build():
    """The build does not retry again, not even after an earlier retry."""
    alone, again = Room(1, first=[ReplicaDied("killed")]), Room(second=[ReplicaDied("killed")] * 2)
    for on in (alone, again):
        with pytest.raises(BuildFailed, match=r"^(first|second): killed"):
            prove(on)
    assert alone.noted == ["+first", "-first"]
    assert again.noted.count("+second") == 2


def test_what_an_application_takes_counts_all_of_its_replicas(tmp_path, monkeypatch):
    """Bundles of a placement group count instead of the options; a replica takes a CPU or more."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "takes_resources.py").write_text(
        "from ray import serve\n"
        "from serve_warm import WarmupMixin\n"
        "@serve.deployment(ray_actor_options={'num_cpus': 0.5, 'num_gpus': 0.5})\n"
        "class Small(WarmupMixin):\n"
        "    def warmup_inputs(self): return []\n"
        "@serve.deployment(ray_actor_options={'num_cpus': 1},\n"
        "    placement_group_bundles=[{'CPU': 1, 'GPU': 1}, {'CPU': 2, 'disk': 3}])\n"
        "class Large:\n"
        "    def __init__(self, small): ...\n"
        "app = Large.bind(Small.bind())\n"
    )
    assert load_app("takes_resources:app").resources() == {"CPU": 4, "GPU": 1.5, "disk": 3}
