# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The lanes of the suite run each test once, and `make unit` stays light."""

from __future__ import annotations

import re

import pytest

import conftest
import lanes
import s3_servers

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
    assert len(suite) > 6500


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
    files = (lanes.TESTS / "integration" / f"{name}.py" for name in conftest.APPLICATIONS)
    assert all(file.is_file() for file in files)


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
