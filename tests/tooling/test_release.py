# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make release-check` finds broken releases, and finds no problem in this source tree."""

from __future__ import annotations

from pathlib import Path

import pytest

import release
from charts import INSTALL
from components import require
from serve_warm import __version__

RELEASED = """# Changelog

## Unreleased

## 1.2.0 - 2026-01-31

- A change.

## 1.1.0 - 2025-12-24
"""


@pytest.fixture(name="built", scope="module")
def built_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this source tree."""
    return release.build(tmp_path_factory.mktemp("release") / "dist")


def test_a_version_has_its_changelog():
    """The newest heading has the version and a date, and no change above it is unreleased."""
    assert list(release.version_problems("1.2.0", RELEASED)) == []


def test_the_chart_that_is_packaged_here_is_whole(tmp_path):
    """Helm's lint finds no problem, and the chart's version is that of the package."""
    helm = require("helm", INSTALL)

    packaged = release.package(tmp_path, helm)

    assert packaged.name == f"serve-warm-{release.chart_version(__version__)}.tgz"
    assert list(release.chart_problems(packaged, __version__)) == []
    assert list(release.lint_problems(helm)) == []


def test_what_is_built_here_is_whole(built):
    """The sdist has the files for building, tests and documents. The wheel has the same package."""
    sdist, wheel = built

    assert list(release.sdist_problems(sdist)) == []
    assert list(release.wheel_problems(wheel, sdist, __version__)) == []


def test_what_is_built_here_works_where_it_is_installed(built, tmp_path):
    """Commands, schema and `node.py` work outside the source, with this version."""
    installed = release.install(built[1], tmp_path)

    assert list(release.use_problems(installed, __version__)) == []
    assert next(release.use_problems(installed, "0.0.0"), None) is not None
