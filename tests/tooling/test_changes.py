# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Each change has a file, and a release joins the files into the changelog."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("changes.py")
spec = importlib.util.spec_from_file_location("changes", PROGRAM)
assert spec is not None
assert spec.loader is not None
changes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(changes)


def test_each_file_is_one_entry() -> None:
    """The entry has a kind and one line. The folder has its own explanation."""
    paths = changes.fragments(changes.ROOT / "changes")

    assert (changes.ROOT / "changes" / "README.md").is_file()
    assert [problem for p in paths for problem in changes.problems(p.name, p.read_text())] == []


@pytest.mark.parametrize(
    ("text", "said"), [("A new option.\n", "does not begin"), ("Added: a\nb\n", "several lines")]
)
def test_a_file_that_is_no_entry_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Nothing is written or removed."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "a.md").write_text(text)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")

    with pytest.raises(SystemExit, match=said):
        changes.main("1.2.0", root=tmp_path)

    assert (tmp_path / "CHANGELOG.md").read_text() == "# Changelog\n"
    assert (tmp_path / "changes" / "a.md").exists()


def test_a_release_has_the_files_as_entries_and_removes_them(tmp_path: Path) -> None:
    """Entries are sorted by kind, above the previous release. The folder's README stays."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("about\n")
    (tmp_path / "changes" / "a.md").write_text("Fixed: a crash.\n")
    (tmp_path / "changes" / "b.md").write_text("Added: an option.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.1.0 - 2026-01-31\n\n- Old.\n")

    changes.main("1.2.0", root=tmp_path)

    text = (tmp_path / "CHANGELOG.md").read_text()
    head, _, rest = text.partition("## 1.2.0 - ")
    assert head == "# Changelog\n\n"
    assert rest.partition("\n")[2] == (
        "\n- Added: an option.\n- Fixed: a crash.\n\n## 1.1.0 - 2026-01-31\n\n- Old.\n"
    )
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]


def test_a_section_that_was_begun_gets_its_date() -> None:
    """Its own entries come first."""
    begun = "# Changelog\n\n## 0.1.0 (Unreleased)\n\n- First.\n"

    text = changes.join(begun, "0.1.0", "2026-12-01", ["Added: more.\n"])

    assert text == "# Changelog\n\n## 0.1.0 - 2026-12-01\n\n- First.\n- Added: more.\n"
