# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make matrix` names the failures of a row, and counts an incomplete row as failed."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

import matrix

PASSED = '<testcase classname="tests.test_a" name="test_one"/>'
SKIPPED = (
    '<testcase classname="tests.test_a" name="test_two"><skipped message="no GPU"/></testcase>'
)


def failed(message: str, kind: str = "failure") -> str:
    said = f"<{kind} message={quoteattr(message)}/>"
    return f'<testcase classname="tests.test_a" name="test_three">{said}</testcase>'


def ended(tmp_path: Path, *cases: str, code: int = 0) -> matrix.Outcome:
    """Return the result of a row whose pytest wrote these cases and ended with `code`."""
    results = tmp_path / "row.xml"
    results.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return matrix.outcome(matrix.ROWS[0], {"torch": "2.11.0"}, results, code=code)


def test_a_row_that_passed_has_no_failure(tmp_path: Path):
    """Passed and skipped tests are counted apart."""
    row = ended(tmp_path, PASSED, PASSED, SKIPPED)

    assert (row.passed, row.skipped, row.failures) == (2, 1, {})


@pytest.mark.parametrize("kind", ["failure", "error"])
def test_a_failure_is_named_with_its_first_line(tmp_path: Path, kind: str):
    """Errors while setting up a test or reading a file count too."""
    row = ended(tmp_path, PASSED, failed("NoEntry: it changes SWITCH\nand more", kind), code=1)

    assert row.failures == {"tests.test_a.test_three": "NoEntry: it changes SWITCH"}
    assert "test_three: NoEntry: it changes SWITCH" in matrix.table([row])


@pytest.mark.parametrize(
    ("cases", "code", "said"),
    [
        ((PASSED,), 2, "it ended with 2"),
        ((PASSED,), 3, "it ended with 3"),
        ((SKIPPED,), 0, "no test ran"),
        ((), 5, "no test ran"),
    ],
)
def test_a_row_that_is_not_whole_has_failed(tmp_path: Path, cases, code, said):
    """Passed tests do not make up for tests that did not run."""
    assert ended(tmp_path, *cases, code=code).failures == {"pytest": said}


def test_a_row_that_crashed_has_failed(tmp_path: Path):
    """A process that is killed writes nothing."""
    row = matrix.outcome(matrix.ROWS[0], {}, tmp_path / "absent.xml", code=-11)

    assert row.failures == {"pytest": "it ended with -11 and wrote no results"}


@pytest.mark.parametrize("row", matrix.ROWS, ids=lambda row: row.name)
def test_the_tests_of_a_row_are_there(row: matrix.Row):
    """With one missing file, pytest runs no test."""
    assert [path for path in row.tests if not (matrix.ROOT / path).is_file()] == []


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
