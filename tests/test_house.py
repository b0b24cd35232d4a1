# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The measures of the structure see what they are to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

import house

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
    """Modules by folder, what is too long, imports between packages, and names of functions."""
    measured = house.measure(package)

    assert measured["modules"] == {".": 2, "trust": 3}
    assert measured["largest_class"] == {"name": "trust.keys.Key", "lines": 5}
    assert measured["attributes_of_largest_class"] == 2
    assert measured["over_limit"] == {"module": {}, "class": {}, "function": {"report.weighed": 71}}
    assert measured["imports"] == {"trust -> root": 2}
    assert measured["past_participles"] == {"share": 0.25, "functions": 4, "names": ["weighed"]}


def test_both_layouts_are_measured():
    """The wheel of the flat layout, which is the older one, and today's sources."""
    before, after = house.before(), house.measure(house.ROOT / house.PACKAGE)

    assert before["modules"]["."] == 55
    assert {"trust", "artifact"} <= after["modules"].keys()


def test_what_is_over_a_limit_is_named_with_a_reason():
    """No module, class or function grows past its limit unnoticed, and no exception is kept."""
    over = house.measure(house.ROOT / house.PACKAGE)["over_limit"]

    assert {name for kind in over.values() for name in kind} == set(house.EXCEPTIONS)
