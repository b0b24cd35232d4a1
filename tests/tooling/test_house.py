# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The measures of the structure in house.py are right, and the structure keeps its limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import house

RESULTS = house.ROOT / "tests" / "benchmarks" / "results" / "house.json"
LONG = "\n".join(f"    x{number} = {number}" for number in range(70))

SOURCES = {
    "__init__.py": "from serve_warm.trust import keys",
    "report.py": f"def weighed():\n{LONG}\n\ndef weigh(): ...\n",
    "trust/__init__.py": "",
    "trust/keys.py": (
        "from serve_warm import report\n"
        "class Key:\n"
        "    def __init__(self):\n"
        "        self.raw = self.name = ''\n"
        "    @property\n"
        "    def hashed(self): ...\n"
    ),
    "trust/files.py": "def f():\n    from serve_warm.report import weigh\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, source in SOURCES.items():
        path = tmp_path / "serve_warm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "serve_warm"


def test_a_package_is_measured(package: Path):
    """The measures are modules by folder, long parts, imports between packages, and names."""
    measured = house.measure(package)

    assert measured["modules"] == {".": 2, "trust": 3}
    assert measured["largest_class"] == {"name": "trust.keys.Key", "lines": 5}
    assert measured["attributes_of_largest_class"] == 2
    assert measured["over_limit"] == {"module": {}, "class": {}, "function": {"report.weighed": 71}}
    assert measured["imports"] == {"trust -> root": 2}
    assert measured["past_participles"] == {"share": 0.25, "functions": 4, "names": ["weighed"]}


def test_both_layouts_are_measured():
    """The older, flat layout is a wheel. The other one is today's sources."""
    before, after = house.before(), house.measure(house.ROOT / house.PACKAGE)

    assert before["modules"]["."] == 55
    assert {"trust", "artifact"} <= after["modules"].keys()


def test_what_is_over_a_limit_is_named_with_a_reason():
    """Each part over a limit is an exception with a reason, and there are no other exceptions."""
    over = house.measure(house.ROOT / house.PACKAGE)["over_limit"]

    assert {name for kind in over.values() for name in kind} == set(house.EXCEPTIONS)


def test_no_more_modules_stand_in_the_root():
    """A new module belongs to a package, or to an existing module with its subject."""
    package = house.ROOT / house.PACKAGE
    assert all((package / f"{name}.py").exists() for name in house.ROOT_EXCEPTIONS)

    count = house.measure(package)["modules"]["."] - len(house.ROOT_EXCEPTIONS)

    assert count <= house.ROOT_MODULES


def report(folder: Path, lane: str, **counts: object) -> Path:
    path = folder / f"{lane}.xml"
    attributes = " ".join(f'{name}="{value}"' for name, value in counts.items())
    path.write_text(f"<testsuites><testsuite {attributes} /></testsuites>")
    return path


def test_seconds_and_tests_come_from_reports_of_runs(tmp_path: Path):
    """`tests` is known when both lanes that make up the suite have run."""
    unit = report(tmp_path, "unit", tests=5, failures=0, errors=0, time=61.04)
    test = report(tmp_path, "test", tests=70, failures=0, errors=0, time=500)
    long = report(tmp_path, "test-long", tests=7, failures=0, errors=0, time=900.96)

    some, all_of_them = house.measure_runs([unit, test]), house.measure_runs([test, long])

    assert some == {"unit_s": 61.0, "test_s": 500.0}
    assert all_of_them == {"test_s": 500.0, "test_long_s": 901.0, "tests": 77}


@pytest.mark.parametrize(
    ("lane", "failures", "errors"), [("test", 1, 0), ("test", 0, 1), ("stress", 0, 0)]
)
def test_a_run_that_failed_is_no_measure(tmp_path: Path, lane: str, failures: int, errors: int):
    """Reports of other lanes are refused too."""
    path = report(tmp_path, lane, tests=1, failures=failures, errors=errors, time=1)

    with pytest.raises(ValueError, match="report"):
        house.measure_runs([path])


def test_what_a_run_measured_is_kept(tmp_path: Path):
    """A later call without reports keeps these values, and only measures the structure again."""
    written = tmp_path / "house.json"
    written.write_text(json.dumps({"before": {}, "after": {"unit_s": 61.0, "lines": 1}}))

    recorded = house.read_recorded(written)

    assert recorded == {**dict.fromkeys(house.RECORDED), "unit_s": 61.0}
    assert house.read_recorded(tmp_path / "absent.json") == dict.fromkeys(house.RECORDED)


def test_the_committed_measures_can_be_compared():
    """`before` and `after` have the same measures, including those of texts."""
    committed = json.loads(RESULTS.read_text())
    texts = house.measure_texts(house.ROOT)

    assert committed["before"].keys() == committed["after"].keys() >= texts.keys()
    assert texts["patches_of_own_modules"] == 0
    assert texts["readme_lines"] <= 150 < committed["before"]["readme_lines"]
