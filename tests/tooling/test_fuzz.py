# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The fuzzer repeats its programs, finds planted errors, and makes failures smaller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from soundness import fuzz, grammar, programs, shrink
from soundness.grammar import FORMS, Change, Read
from soundness.operations import VALUES
from soundness.places import PLACES, ROOTS
from soundness.programs import Program
from soundness.rows import READY, START
from soundness.shrink import Failure
from soundness.states import STATES

KNOWN: Mapping[tuple[str, str], str] = {}
"""Pairs of a read and a change that are wrong, with the reason why they stay so."""

PROGRAMS = 900
"""Programs of the run in CI: about a minute, with over 200 pairs."""


def read_of(place: str = "attribute", value: str = "int", get: int = 0, **parts: Any) -> Read:
    """Return a read with at most one step, by default of the number that is an attribute."""
    path = (place,) if place in ROOTS else ("attribute", place)
    ops = VALUES[value].ops
    parts = {"op": "number" if "number" in ops else next(iter(ops)), **parts}
    gets = (*(0 for _ in path[1:]), get)
    return Read(root=path[0], steps=path[1:], value=value, gets=gets, **parts)


READS = {
    **{
        f"from {name}": [read_of(name, get=n) for n in range(len(PLACES[name].get))]
        for name in PLACES
    },
    **{f"by {form}": [read_of(form=form)] for form in FORMS},
    **{f"in {state}": [Read(state=state)] for state in STATES},
    **{f"of {name}": [read_of(value=name, op=op) for op in VALUES[name].ops] for name in VALUES},
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
def test_each_read_is_right_in_eager(reads: list[Read]):
    """One that raises there would never be tried; each expression of a place reads one value."""
    assert [read.kind for read in reads if not programs.is_valid(read)] == []


@pytest.mark.parametrize("value", VALUES)
def test_changes_of_a_value_are_statements(value: str):
    """A change with a syntax error would never be tried."""
    found = [*grammar.changes_of(read_of(value=value), 0)]

    for change in found:
        compile(f"def change(m, M):\n{grammar.indented(change.text, 4)}", change.kind, "exec")
    assert len({change.kind for change in found}) >= 3


def without(kind: str, folder: Path) -> None:
    """Remove all facts of a kind from the entries in a folder."""
    for path in folder.rglob("index.json"):
        index = json.loads(path.read_text())
        for table in index["facts"].values():
            table["facts"] = [fact for fact in table["facts"] if fact[1] != kind]
        path.write_text(json.dumps(index))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
@pytest.mark.parametrize("moment", [START, READY])
def test_a_missing_kind_of_fact_is_found(tmp_path: Path, moment: str):
    """Without facts about values, an entry still answers after the value has changed."""
    change = Change(kind="other", text="m.a0 = 5")
    subject = programs.settled("planted", {0: read_of()}, {0: (change,)})
    programs.built(subject, 2, tmp_path)
    program = Program(subject=subject, n=0, change=change, moment=moment, level=2)

    sound = programs.verdict(program, tmp_path)
    without("value", tmp_path)
    unsound = programs.verdict(program, tmp_path)

    assert sound.value == "level1"
    assert unsound.value == "wrong"


def test_a_failure_is_made_as_small_as_possible():
    """The shrinker keeps only the parts without which the failure disappears."""
    read = Read(
        root="closure",
        steps=("dict", "property", "list"),
        value="dict",
        op="length",
        form="generator",
        gets=(0, 2, 1, 1),
    )
    change = next(each for each in grammar.changes_of(read, 0) if each.kind == "add key")
    failure = Failure(read=read, change=change, moment=START, level=3)

    small = shrink.shrunk(failure, lambda each: "wrong" if "property" in each.read.steps else "")

    assert (small.level, small.read.root, small.read.form) == (2, "attribute", "method")
    assert small.read.steps == ("property",)
    assert small.change.text == "m.a0.v['z'] = 7"
    assert small.reason == "wrong"


@pytest.mark.long
def test_random_programs_are_right(tmp_path: Path):
    """Each run of CI makes the same programs. `make soundness` makes many more."""
    result = fuzz.run(tmp_path / "run", 1, programs=PROGRAMS)

    lines, _ = fuzz.read_state(tmp_path / "run")
    found = {tuple(each["kinds"]): each for line in lines for each in line["failures"]}
    assert [failure for pair, failure in found.items() if pair not in KNOWN] == []
    assert result["programs"] >= PROGRAMS
    assert result["pairs"] >= 200
    assert result["answered_by_entry"] > 0
