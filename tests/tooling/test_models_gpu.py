# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of models on a GPU continues a stopped run, and reports wrong results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu import models_gpu
from gpu.pieces import Pieces

DECODED: dict[str, Any] = {
    "level": 2,
    "refused": [],
    "why": "",
    "tokens_equal": True,
    "uses": [[2, ""]],
    "dispatch_us": 30.0,
    "launches_of_decode": 1.0,
    **dict.fromkeys(("compiles", "compiler_processes", "graph_skips", "captures_in_steps"), 0),
}


def document(**decoded: Any) -> dict[str, Any]:
    return {"decode": [{**DECODED, **decoded}], "rows": [], "made": {}, "is_tiny": False}


class Told(models_gpu.Run):
    """A run without processes, which records the requested pieces."""

    def __init__(self, work: Path, *, limit_s: float = 1e9, known: Any = None) -> None:
        super().__init__(Pieces(work, limit_s=limit_s, known=known), work, turns=2, tiny=True)
        self.ran: list[str] = []

    def _decode(self, level: int, limit_s: float) -> dict[str, Any]:
        self.ran.append(f"decode/{level}")
        return {**DECODED, "level": level, "uses": [[level, ""]]}

    def _make(self, model: str, limit_s: float) -> dict[str, Any]:
        self.ran.append(f"{model}/make")
        return {"failures": {}, "took_s": {}}

    def _turn(self, model: str, turn: int, limit_s: float) -> dict[str, Any]:
        self.ran.append(f"{model}/turn-{turn}")
        return {str(one): {"turn": turn, "failure": "told to"} for one in models_gpu.ENTRANTS}


def test_each_piece_runs_once_and_figures_of_every_model_come_first(tmp_path: Path):
    """No model has a second turn before all have a first one, and no run repeats a piece."""
    one_piece, rest = Told(tmp_path, limit_s=0.0), Told(tmp_path)
    names = rest.names_of(models_gpu.NAMES)

    done = [one_piece.do(name) for name in names]

    assert done == [True, *[False] * (len(names) - 1)]
    assert all(rest.do(name) for name in names)
    assert [*one_piece.ran, *rest.ran] == names
    assert names[-2:] == ["vit_large/turn-2", "whisper_large/turn-2"]


def test_another_machine_goes_on_from_the_document(tmp_path: Path):
    """Its work folder is empty, so the earlier results are only in the JSON."""
    first = Told(tmp_path / "first")
    first.do("decode/2")
    first.do("vit_large/make")
    found = json.loads(json.dumps(first.document(models_gpu.NAMES)))

    second = Told(tmp_path / "second", known=models_gpu.pieces_of(found))
    second.pieces.forget("vit_large/make")
    for name in ("decode/2", "decode/3", "vit_large/make"):
        second.do(name)

    assert second.ran == ["decode/3", "vit_large/make"]


def test_a_run_goes_on_from_the_json_that_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With `--json`, pieces in the file do not run again, except those that `--again` names."""
    path = tmp_path / "models.json"
    path.write_text(json.dumps(document() | {"is_tiny": True}))
    arguments = ["--tiny", "--models", "decode", "--limit-s", "1e9", "--json", str(path)]

    def run(work: str, *more: str) -> list[str]:
        told: list[Told] = []

        def make_run(pieces: Pieces, at: Path, *, turns: int, tiny: bool) -> Told:
            told.append(Told(at))
            told[-1].pieces = pieces
            return told[-1]

        line = [*arguments, "--work", str(tmp_path / work), *more]
        assert models_gpu.main(line, make_run=make_run) == 0, capsys.readouterr().err
        return told[0].ran

    assert run("one") == ["decode/3"]
    assert run("two") == []
    assert run("three", "--again", "decode/2") == ["decode/2"]
    with pytest.raises(SystemExit):
        run("four", "--again", "decode/9")
    assert "--again: unknown: decode/9; known: decode/2" in capsys.readouterr().err


def test_turns_of_a_model_that_failed_run_again():
    """The document keeps the reason of a failed start, but not in which turn it failed."""
    entrants = [{"system": "cold", "level": None}, {"system": "serve_warm", "level": 2}]
    rows = [
        {**each, "workload": workload, "runs": [{"turn": 1}], "failure": failure}
        for workload, failure in (("vit_tiny", ""), ("whisper_tiny", "killed"))
        for each in entrants
    ]

    known = models_gpu.pieces_of({**document(), "rows": rows})

    assert [name for name in known if "turn" in name] == ["vit_large/turn-1"]


@pytest.mark.parametrize(
    ("decoded", "said"),
    [
        ({}, []),
        ({"failure": "start: killed"}, ["start: killed"]),
        ({"tokens_equal": False}, ["other tokens than eager's"]),
        ({"uses": [[1, "it draws"]]}, ["level 1: it draws"]),
        ({"captures_in_steps": 3}, ["3 captures_in_steps"]),
        ({"dispatch_us": 51.0}, ["dispatch takes 51.0 µs"]),
        ({"launches_of_decode": 2.0}, ["2.0 launches_of_decode, and one is asked"]),
    ],
)
def test_what_of_decoding_is_not_as_it_has_to_be(decoded: dict[str, Any], said: list[str]):
    """Each wrong figure is reported in one sentence."""
    found = models_gpu.failures_of(document(**decoded))

    assert found == [f"decode, level 2: {text}" for text in said]


def test_a_start_that_is_no_full_hit_is_named_with_its_entries():
    """The start keeps its figures, and the entries explain why it was partial."""
    run = {"turn": 1, "not_as_built": ["verdict partial: 1 withdrawn"]}
    row = {"workload": "vit_tiny", "system": "serve_warm", "level": 2, "failure": "", "runs": [run]}

    found = models_gpu.failures_of({**document(), "rows": [row]})

    assert found == ["vit_tiny, serve_warm 2, turn 1: verdict partial: 1 withdrawn"]
