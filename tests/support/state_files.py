# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""State files of a node, written as replicas write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serve_warm.node import StateFile, boot_s
from serve_warm.replica.in_serve import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from serve_warm.report import Report

STARTS = {"application": "app", "deployment": "Embedder"}
WHO = {**STARTS, "replica": "r1"}


class Clock:
    """The clock of a test's replicas and readers: the machine's clock, which a test can advance."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return boot_s() + self._ahead_s

    def move_on(self, seconds: float) -> None:
        self._ahead_s += seconds


@pytest.fixture(name="clock")
def clock_fixture() -> Clock:
    return Clock()


@pytest.fixture(name="directory")
def directory_fixture(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="replica")
def replica_fixture(directory: Path, clock: Clock) -> Iterator[Callable[..., StateFile]]:
    """Write a report as a replica does, and hold its lock until the test ends."""
    files: dict[str, StateFile] = {}

    def write(report: Report, name: str = "r1", **facts: object) -> StateFile:
        if name not in files:
            files[name] = StateFile(directory, **STARTS, replica=name, clock=clock)
        files[name].write({**facts_of(report), **facts})
        return files[name]

    yield write
    for file in files.values():
        file.close()
