# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The lanes of the test suite: which tests `make unit`, `make test` and `make test-long` run.

`make test` runs every test that is marked neither `long` nor `stress`, and `make test-long` runs
the tests marked `long`. `make unit` runs some tests of `make test`, which this module marks `unit`:
tests of the package that need no Ray cluster, no server and no C++ compiler.
`tests/tooling/test_lanes.py` checks that the lanes leave nothing out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

NOT_UNIT = frozenset({"ray", "slow", "long", "stress", "gpu"})
"""Markers of tests that `make unit` leaves out."""
CLUSTER_FIXTURE = "cluster"
HEAVY_FIXTURES = frozenset({CLUSTER_FIXTURE, "_fault_proxy", "azurite", "ceph", "moto"})
"""Fixtures that start a Ray cluster or a server."""
OTHER_FOLDERS = frozenset({"benchmarks", "gpu", "integration", "stress", "tooling"})
"""Folders under `tests` that do not test modules of the package by themselves."""
COMPILERS = ("g++", "c++", "clang++")

STAND_IN = """\
#!/bin/sh
case "$1" in -v | -V | --version | -dumpversion | -dumpmachine) ;; *) echo "$0 $*" >> {ran} ;; esac
exec {compiler} "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A test that pytest found, before deselection."""

    name: str
    marks: frozenset[str]
    fixtures: frozenset[str]


COLLECTED = pytest.StashKey[list[Collected]]()


def is_unit(folder: str, marks: frozenset[str], fixtures: frozenset[str]) -> bool:
    """Return whether a test of `tests/<folder>` belongs to `make unit`."""
    return folder not in OTHER_FOLDERS and not marks & NOT_UNIT and not fixtures & HEAVY_FIXTURES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `make unit`, before pytest deselects tests by marker.

    Tests of Ray come first, because they take longest.
    """
    items.sort(key=lambda item: folder_of(item.path) != "integration")
    collected = []
    for item in items:
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        if CLUSTER_FIXTURE in fixtures:
            item.add_marker(pytest.mark.ray)
        marks = frozenset(mark.name for mark in item.iter_markers())
        if is_unit(folder_of(item.path), marks, fixtures):
            item.add_marker(pytest.mark.unit)
            marks |= {"unit"}
        collected.append(Collected(name=item.nodeid, marks=marks, fixtures=fixtures))
    config.stash[COLLECTED] = collected


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders without tests of `make unit`, because reading them takes seconds."""
    if config.option.markexpr != "unit" or not collection_path.is_dir():
        return None
    return folder_of(collection_path / "file") in OTHER_FOLDERS or None


def folder_of(path: Path) -> str:
    """Return the name of the folder under `tests` that contains a file, or an empty string."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 else ""


@pytest.fixture(scope="session")
def _compiler_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder of fake compilers that log how they are run, and the log file."""
    folder = tmp_path_factory.mktemp("compilers")
    ran = folder / "ran"
    for name in COMPILERS:
        compiler = shutil.which(name)
        if compiler:
            stand_in = folder / name
            stand_in.write_text(STAND_IN.format(ran=ran, compiler=compiler))
            stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    return str(folder), ran


@contextlib.contextmanager
def noted(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Log each run of a compiler in the block; yield the log file."""
    folder, ran = request.getfixturevalue("_compiler_runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", folder, prepend=os.pathsep)
        yield ran


@pytest.fixture(scope="session", autouse=True)
def _note_compilers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Log the compilers that `make unit` runs, also in fixtures that several tests share."""
    with noted(request) if request.config.option.markexpr == "unit" else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def light_if_unit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of `make unit` that runs a C++ compiler or asks for a cluster or a server."""
    if request.node.get_closest_marker("unit") is None:
        yield
        return
    with noted(request) as ran:
        yield
    # Private: pytest 9 does not name fixtures that a test asks for by `getfixturevalue`.
    heavy = sorted(request._fixture_defs.keys() & HEAVY_FIXTURES)
    if heavy:
        pytest.fail(f"a test of `make unit` uses {', '.join(heavy)}; mark it `slow`")
    if ran.exists():
        command = ran.read_text()
        ran.unlink()
        pytest.fail(f"a test of `make unit` ran a C++ compiler; mark it `slow`:\n{command}")
