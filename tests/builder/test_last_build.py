# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How long the last build took."""

from __future__ import annotations

import pytest

from artifacts import PLACE
from serve_warm.artifact.manifest import Place
from serve_warm.builder import last_build
from serve_warm.builder.last_build import note_seconds, read_seconds

PHASES = {"compile": 10.0, "pack": 2.0, "round trip": 3.0, "round trip, libraries": 4.0}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(last_build._private_folders, "user_folder", lambda name: tmp_path / name)


def test_round_trips_count_once_and_each_deployment_has_its_own():
    note_seconds(PLACE, {**PHASES, "round trips": 5.0})
    assert read_seconds(PLACE) == 17.0
    assert read_seconds(Place(application="other", deployment=PLACE.deployment)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": "x"}', '{"seconds": -1}'])
def test_a_damaged_file_says_nothing(text):
    note_seconds(PLACE, PHASES)
    last_build._file(PLACE).write_text(text)
    assert read_seconds(PLACE) is None
    note_seconds(PLACE, PHASES)
    assert read_seconds(PLACE) == 12.0


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "builds").write_text("")
    note_seconds(PLACE, PHASES)
    assert read_seconds(PLACE) is None
