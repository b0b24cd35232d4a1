# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""State files of a node, written as replicas write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_warm._state_file import StateFile
from serve_warm.replica.serve.shown_state import facts_of
from serve_warm.report import Report, Stage, Verdict

WARM = Report(stage=Stage.READY, verdict=Verdict.FULL_HIT)
STARTS: dict[str, Any] = {"application": "app", "deployment": "Embedder"}
WHO = {**STARTS, "replica": "r1"}


class Clock:
    """The machine's clock, as all readers and writers of this process see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        really = time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda which: really(which) + self._ahead_s)

    def move_on(self, seconds: float) -> None:
        self._ahead_s += seconds


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(name="directory")
def directory_fixture(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="replica")
def replica_fixture(directory: Path) -> Iterator[Callable[..., StateFile]]:
    """Write a report as a replica does, and hold its lock until the test ends."""
    files: dict[str, StateFile] = {}

    def write(
        report: Report = WARM,
        name: str = "r1",
        *,
        app: str = "app",
        of: str = "Embedder",
        **facts: object,
    ) -> StateFile:
        if name not in files:
            files[name] = StateFile(directory, application=app, deployment=of, replica=name)
        files[name].write({**facts_of(report), **facts})
        return files[name]

    yield write
    for file in files.values():
        file.close()
