# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The lanes of the suite run each test once, and `make unit` stays light."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import conftest
import lanes
import s3_servers

if TYPE_CHECKING:
    from pathlib import Path

ROOT = lanes.TESTS.parent


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> list[lanes.Collected]:
    """All tests, as pytest found them for this run."""
    config = request.config
    given = {(config.invocation_params.dir / each).resolve() for each in config.args}
    if given != {lanes.TESTS}:
        pytest.skip("needs a run that collects all tests: make test")
    return config.stash[lanes.COLLECTED]


def expressions(config: pytest.Config) -> dict[str, str]:
    """Return the marker expression with which each target of the Makefile selects tests."""
    makefile = (ROOT / "Makefile").read_text()
    chosen = re.findall(
        r"^([\w-]+): .*\n\t\$\((?:PYTEST|BIN)\).*? -m (\w+|\"[^\"]+\") \$", makefile, re.MULTILINE
    )
    options = config.getini("addopts")
    by_default = options[options.index("-m") + 1]
    return {"test": by_default, **{target: text.strip('"') for target, text in chosen}}


def selects(expression: str, marks: frozenset[str]) -> bool:
    """Return whether `pytest -m` with the expression selects a test with the markers."""
    names = set(re.findall(r"\w+", expression)) - {"not", "and", "or"}
    return bool(eval(expression, {}, {name: name in marks for name in names}))


def test_each_test_is_in_one_lane(suite: list[lanes.Collected], pytestconfig: pytest.Config):
    """`make test`, `make test-long` and `make stress` have all tests, and none of them twice."""
    by_target = expressions(pytestconfig)
    targets = ("test", "test-long", "stress")

    wrong = {
        each.name: found
        for each in suite
        if len(found := [t for t in targets if selects(by_target[t], each.marks)]) != 1
    }

    assert by_target.keys() == {*targets, "unit"}
    assert wrong == {}
    assert len(suite) > 7000


def test_unit_tests_are_tests_of_make_test(
    suite: list[lanes.Collected], pytestconfig: pytest.Config
):
    """`.ci/run` does not run `make unit`. It runs these tests as tests of `make test`."""
    by_target = expressions(pytestconfig)
    unit = [each for each in suite if selects(by_target["unit"], each.marks)]

    assert len(unit) > 1000
    assert [each.name for each in unit if not selects(by_target["test"], each.marks)] == []


def test_no_unit_test_has_a_cluster_or_a_server(suite: list[lanes.Collected]):
    """The names of fixtures and folders that exclude a test from `make unit` exist."""
    heavy = lanes.HEAVY_FIXTURES
    modules = (conftest, s3_servers)

    assert all(any(hasattr(module, name) for module in modules) for name in heavy)
    assert [e.name for e in suite if "unit" in e.marks and e.fixtures & heavy] == []
    assert [
        e.name for e in suite if lanes.CLUSTER_FIXTURE in e.fixtures and "ray" not in e.marks
    ] == []
    assert all((lanes.TESTS / folder).is_dir() for folder in lanes.OTHER_FOLDERS)


def test_ci_runs_the_lanes(suite: list[lanes.Collected], pytestconfig: pytest.Config):
    """`.ci/run` runs `make test` and `make test-long` in one run, and leaves out `make stress`."""
    script = (ROOT / ".ci" / "run").read_text()
    by_target = expressions(pytestconfig)

    ran = re.findall(r"^make test(.*)$", script, re.MULTILINE)
    (found,) = [re.fullmatch(r" ARGS='-m \"(.*)\"'", arguments) for arguments in ran]

    assert found is not None
    for each in suite:
        in_a_lane = any(selects(by_target[name], each.marks) for name in ("test", "test-long"))
        assert selects(found[1], each.marks) is in_a_lane, each.name


@pytest.mark.parametrize(
    ("folder", "marks", "fixtures", "unit"),
    [
        ("trust", (), (), True),
        ("", ("parametrize",), ("tmp_path",), True),
        ("trust", ("slow",), (), False),
        ("stores", (), ("ceph",), False),
        ("builder", (), ("cluster",), False),
        ("tooling", (), (), False),
    ],
)
def test_what_needs_more_is_no_unit_test(
    folder: str, marks: tuple[str, ...], fixtures: tuple[str, ...], unit: bool
):
    """Markers, fixtures and folders decide."""
    assert lanes.is_unit(folder, frozenset(marks), frozenset(fixtures)) is unit


PROGRAM = """
import subprocess, pytest

def run_compiler(folder):
    (folder / "x.cc").write_text("int x;")
    subprocess.run(["g++", "-c", "x.cc"], cwd=folder, check=False)

@pytest.fixture(scope="module")
def built(tmp_path_factory):
    run_compiler(tmp_path_factory.mktemp("built"))

def test_uses_what_the_module_built(built):
    pass

def test_compiles(tmp_path):
    run_compiler(tmp_path)

def test_asks_for_the_version():
    subprocess.run(["g++", "--version"], check=True)

@pytest.mark.slow
def test_may_compile(tmp_path):
    run_compiler(tmp_path)
"""


PYTEST = [sys.executable, "-m", "pytest", "-p", "lanes", "-p", "no:cacheprovider", "-rA"]


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize(
    ("arguments", "failing", "passing"),
    [
        ((), {"compiles"}, {"may_compile", "uses_what_the_module_built"}),
        (("-m", "unit"), {"compiles", "uses_what_the_module_built"}, set()),
    ],
    ids=["all", "unit"],
)
def test_a_unit_test_that_runs_a_compiler_fails(
    tmp_path: Path, arguments: tuple[str, ...], failing: set[str], passing: set[str]
):
    """The test fails even if it ignores the compiler's result. `make unit` watches modules too."""
    (tmp_path / "test_program.py").write_text(PROGRAM)

    ended = subprocess.run(
        [*PYTEST, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(lanes.TESTS / "support")},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )

    outcomes = re.findall(
        r"^(PASSED|ERROR) test_program.py::test_(\w+)", ended.stdout, re.MULTILINE
    )
    passed = {"asks_for_the_version", *failing, *passing}
    assert sorted(outcomes) == sorted(
        [*(("ERROR", name) for name in failing), *(("PASSED", name) for name in passed)]
    )
    assert "mark it `slow`" in ended.stdout
