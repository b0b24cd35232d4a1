# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make release-check` finds broken releases, and finds no problem in this source tree."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

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


@pytest.fixture(name="archives")
def archives_fixture(tmp_path: Path):
    """Make a small sdist and wheel of a version, with and without some files."""

    def make(*, more: tuple[str, ...] = (), less: tuple[str, ...] = (), where: str = "both"):
        files = (release.NEEDED_IN_SDIST | {"serve_warm/__init__.py"}) - set(less)
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            for name in sorted(files | (set(more) if where in {"both", "sdist"} else set())):
                archive.addfile(tarfile.TarInfo(f"serve_warm-1.2.0/{name}"), io.BytesIO())
        package = {name for name in files if name.startswith("serve_warm/")}
        info = "serve_warm-1.2.0.dist-info"
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
            for name in sorted(package | (set(more) if where in {"both", "wheel"} else set())):
                archive.writestr(name, "")
            archive.writestr(
                f"{info}/METADATA", "Name: x\nVersion: 1.2.0\nLicense-Expression: Apache-2.0\n"
            )
            archive.writestr(f"{info}/licenses/LICENSE", "")
        return tmp_path / "x.tar.gz", tmp_path / "x.whl"

    return make


def test_a_version_has_its_changelog():
    """The newest heading has the version and a date, and no change above it is unreleased."""
    assert list(release.version_problems("1.2.0", RELEASED)) == []


@pytest.mark.parametrize(
    ("version", "changelog", "said"),
    [
        ("1.3.0", RELEASED, "'1.2.0 - 2026-01-31', not '1.3.0 - YYYY-MM-DD'"),
        (
            "1.2.0",
            RELEASED.replace("- A", "- A", 1).replace("\n\n## 1.2.0", "\n- B\n\n## 1.2.0"),
            "B",
        ),
        ("1.2.0", RELEASED.replace(" - 2026-01-31", ""), "not '1.2.0 - YYYY-MM-DD'"),
        ("1.2.0.dev0", RELEASED.replace("1.2.0", "1.2.0.dev0"), "which is no release"),
        ("1x2.0", RELEASED, "which is no release"),
        ("1.2.0", "# Changelog\n", "'nothing', not"),
    ],
)
def test_a_version_without_its_changelog_is_found(version, changelog, said):
    """An old, undated, missing or unfinished entry is reported."""
    said = "changes under Unreleased" if said == "B" else said

    assert said in " · ".join(release.version_problems(version, changelog))


def test_whole_archives_have_no_problem(archives):
    """The required files are enough."""
    sdist, wheel = archives()

    assert list(release.sdist_problems(sdist)) == []
    assert list(release.wheel_problems(wheel, sdist, "1.2.0")) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"less": ("serve_warm/py.typed",)}, "serve_warm/py.typed is missing"),
        ({"more": ("serve_warm/__pycache__/x.pyc",)}, "serve_warm/__pycache__/x.pyc is in it"),
        ({"more": ("tests/ci.key",), "where": "sdist"}, "tests/ci.key is in it"),
        ({"more": ("tests/test_x.py",), "where": "wheel"}, "tests/test_x.py is no part of the pac"),
        ({"more": ("serve_warm/x.py",), "where": "sdist"}, "serve_warm/x.py is in the sdist alone"),
    ],
)
def test_a_wrong_archive_is_found(archives, changed, said):
    """Missing files, superfluous files, and differences between wheel and sdist are reported."""
    sdist, wheel = archives(**changed)

    problems = [
        *release.sdist_problems(sdist),
        *release.wheel_problems(wheel, sdist, "1.2.0"),
    ]

    assert said in " · ".join(problems)


def test_a_wheel_of_another_version_is_found(archives):
    """The version in the wheel's metadata counts, not the name of its file."""
    sdist, wheel = archives()

    problems = list(release.wheel_problems(wheel, sdist, "1.2.1"))

    assert problems == ["its Version is 1.2.0, not 1.2.1"]


@pytest.fixture(name="chart")
def chart_fixture(tmp_path: Path):
    """Make a small packaged chart of a version, with and without some files."""

    def make(*, more: tuple[str, ...] = (), less: tuple[str, ...] = (), **fields: str) -> Path:
        said = {"name": "serve-warm", "version": "1.2.0", "appVersion": "1.2.0", **fields}
        with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
            for name in sorted(release.NEEDED_IN_CHART - set(less) | set(more)):
                text = yaml.safe_dump(said).encode() if name == "Chart.yaml" else b""
                member = tarfile.TarInfo(f"serve-warm/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
        return tmp_path / "x.tgz"

    return make


@pytest.mark.parametrize(("version", "of_chart"), [("1.2.0", "1.2.0"), ("1.2.0rc1", "1.2.0-rc.1")])
def test_a_whole_chart_has_no_problem(chart, version, of_chart):
    """Its version is that of the package, as Helm writes versions."""
    made = chart(version=of_chart, appVersion=version)

    assert list(release.chart_problems(made, version)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": "1.1.0"}, "the version in Chart.yaml is 1.1.0, not 1.2.0"),
        ({"appVersion": "1.1.0"}, "the appVersion in Chart.yaml is 1.1.0, not 1.2.0"),
        ({"less": ("values.schema.json",)}, "values.schema.json is missing"),
        ({"more": ("signing.key",)}, "signing.key is in it"),
    ],
)
def test_a_wrong_chart_is_found(chart, changed, said):
    """Another version, a missing schema, and a secret are reported."""
    assert list(release.chart_problems(chart(**changed), "1.2.0")) == [said]


def test_the_chart_that_is_packaged_here_is_whole(tmp_path):
    """Helm's lint finds no problem, and the chart's version is that of the package."""
    helm = require("helm", INSTALL)

    packaged = release.package(tmp_path, helm)

    assert packaged.name == f"serve-warm-{release.chart_version(__version__)}.tgz"
    assert list(release.chart_problems(packaged, __version__)) == []
    assert list(release.lint_problems(helm)) == []


def test_a_chart_that_does_not_render_is_found(tmp_path):
    """Helm's error is passed on."""
    broken = tmp_path / "serve-warm"
    shutil.copytree(release.CHART, broken)
    (broken / "templates" / "ray.yaml").write_text("{{ include")

    problems = list(release.lint_problems(require("helm", INSTALL), broken))

    assert len(problems) == 1
    assert "templates/ray.yaml" in problems[0]


def test_what_is_built_here_is_whole(built):
    """The sdist has the files for building, tests and documents. The wheel has the same package."""
    sdist, wheel = built

    assert list(release.sdist_problems(sdist)) == []
    assert list(release.wheel_problems(wheel, sdist, __version__)) == []


def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    """Every file in the source tree is in the wheel, with the licence and one command."""
    package = release.ROOT / "serve_warm"
    in_the_source = {
        str(path.relative_to(release.ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(built[1]) as archive:
        in_the_wheel = {name for name in archive.namelist() if not name.endswith("/")}
        [scripts] = [name for name in in_the_wheel if name.endswith(".dist-info/entry_points.txt")]
        commands = archive.read(scripts).decode()

    metadata = {name for name in in_the_wheel if ".dist-info/" in name}
    assert in_the_wheel - metadata == in_the_source
    assert commands.splitlines() == ["[console_scripts]", "serve-warm = serve_warm.cli:main"]


def test_what_is_built_here_works_where_it_is_installed(built, tmp_path):
    """Commands, schema and `node.py` work outside the source, with this version."""
    installed = release.install(built[1], tmp_path)

    assert list(release.use_problems(installed, __version__)) == []
    assert next(release.use_problems(installed, "0.0.0"), None) is not None


def test_a_wheel_that_is_installed_in_part_is_found(built, tmp_path):
    """Using the wheel shows that a data file or a module is missing."""
    installed = release.install(built[1], tmp_path)
    (installed.package / "builder" / "bench.schema.json").unlink()
    (installed.package / "cli" / "watching.py").unlink()

    problems = list(release.use_problems(installed, __version__))

    assert [problem.split()[0] for problem in problems] == ["python", "serve-warm", "python"]
    assert [problem.rpartition("'")[0].rpartition("'")[2] for problem in problems][1:] == [
        *("serve_warm.cli.watching", "serve_warm.cli.watching"),
    ]
