# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of `make matrix` have the tests that depend on versions."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import matrix

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize("row", matrix.ROWS, ids=lambda row: row.name)
def test_the_tests_of_a_row_are_there(row: matrix.Row):
    """With one missing file, pytest runs no test."""
    assert [path for path in row.tests if not (matrix.ROOT / path).is_file()] == []


def test_the_newest_row_frees_what_users_install():
    """Each dependency of users has its newest version, apart from torch. Tools keep their pins."""
    project = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["generation"], *extras["examples"]]
    names = {Requirement(each).name for each in wanted}
    (row,) = (row for row in matrix.ROWS if row.name == "newest")
    pinned = {line.partition("==")[0] for line in matrix.constraints(row).splitlines()}

    assert set(matrix.runtime_dependencies()) == names
    assert len(names) > 12
    assert pinned & names == {"torch"}
    assert {"pytest", "mypy", "ruff", "moto"} <= pinned


def test_what_differs_from_the_lock_is_named(tmp_path, monkeypatch):
    """A failure of the newest versions begins with the packages that may be its cause."""
    (tmp_path / "locks").mkdir()
    lines = ("pytest==0.1 \\", f"pytest-timeout=={version('pytest-timeout')} \\")
    (tmp_path / "locks/ci.txt").write_text("\n".join(lines))
    monkeypatch.setattr(matrix, "ROOT", tmp_path)

    differing = matrix.differences(Path(sys.prefix))

    assert f"pytest {version('pytest')} (locked: 0.1)" in differing
    assert f"pytest-xdist {version('pytest-xdist')} (locked: none)" in differing
    assert not any(each.startswith("pytest-timeout ") for each in differing)


def test_what_asks_torch_for_names_is_in_its_rows():
    """If a version of torch lacks a name, the row of this version fails."""
    ask = {
        str(path.relative_to(matrix.ROOT))
        for path in (matrix.ROOT / "tests").rglob("test_*.py")
        if "def test_torch_has_" in path.read_text() and path != Path(__file__)
    }

    assert ask
    for row in matrix.ROWS:
        assert "torch" not in row.name or ask <= set(row.tests)
