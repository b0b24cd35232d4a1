# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a build knows the functions that it replaces."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from serve_warm.private_apis import digests
from serve_warm.private_apis.digests import (
    Judged,
    TorchSource,
    judge,
    package_of,
    unknown,
)
from serve_warm.private_apis.sources import PackageSources
from serve_warm.private_apis.table import TABLE, Patch, numbers

DICTS = "torch/_dynamo/variables/dicts.py"


def installed(changed: dict[str, tuple[str, str]]) -> PackageSources:
    """Return the installed torch, with words of some files replaced."""
    found = PackageSources.installed("torch")
    assert found is not None

    def read(name: str) -> str | None:
        text = found._read(name)
        before, after = changed.get(name, ("", ""))
        assert text is None or before in text
        return text and (text.replace(before, after) if before else text + after)

    return PackageSources(read, found._names)


def judged(changed: dict[str, tuple[str, str]], *, level: int = 1) -> dict[str, Judged]:
    found = judge("torch", torch.__version__, installed(changed), level=level)
    return {each.patch.name: each for each in found}


def test_all_functions_of_the_installed_torch_are_known() -> None:
    """CI runs with a tested version, and so does every build of this repository's tests."""
    sources = PackageSources.installed("torch")
    assert sources is not None

    found = judge("torch", torch.__version__, sources)

    assert unknown(found) == []
    assert {each.verdict for each in found} == {"known", "not in this version"}
    # By its functions, too, and not only by its files.
    assert unknown(list(judged({DICTS: ("", "# a vendor's build\n")}).values())) == []


def test_a_changed_function_is_unknown_and_no_other() -> None:
    name = "ConstDictVariable.getitem_const"
    change = ("def getitem_const(", "def getitem_const(self, *_): ...\n\n    def other(")

    found = judged({DICTS: change})

    changed = unknown(found.values())
    # `items` depends on the whole class, and so do methods that a class inherits.
    assert {name, "ConstDictVariable.items"} <= {each.patch.name for each in changed}
    assert all("variables.dicts:" in " ".join(each.patch.at) for each in changed)
    assert len(changed) <= 3
    assert "is another function" in str(found[name])


def test_a_function_that_is_gone_is_unknown() -> None:
    """If the table says that this version has it. Rows of other versions are left out."""
    file = "torch/_dynamo/variables/builder.py"
    guards = "torch/_dynamo/guards.py"

    found = judged({guards: ("def make_dupe_guard(", "def renamed("), file: ("", "#\n")})

    assert [str(each) for each in unknown(found.values())] == [
        "torch._dynamo.variables.builder:make_dupe_guard is gone"
    ]


@pytest.mark.parametrize(("row_level", "refused"), [(1, []), (2, [2, 3]), (3, [3])])
def test_an_unknown_function_refuses_the_levels_that_need_it(
    row_level: int, refused: list[int]
) -> None:
    """Level 1 always goes on, because it uses torch's own cache."""
    patch = next(each for each in TABLE if each.level == row_level)
    row = Judged(patch=patch, verdict="changed", digest="123")
    source = TorchSource(version="2.99.0", unknown=(row, row), is_accepted=False)

    why = {level: source.why_not(level) for level in (1, 2, 3)}

    needed = [level for level, text in why.items() if text]
    assert needed == [level for level in (1, 2, 3) if level in refused or row_level == 1]
    for text in filter(None, why.values()):
        assert text.startswith("torch 2.99.0 was not tested with serve_warm, and ")
        assert patch.at[0] in text
        assert "--accept-torch-source" in text
        assert ", and 1 more: " in text


def test_a_person_can_accept_a_torch() -> None:
    """Then the artifact says which functions were accepted."""
    patch = next(each for each in TABLE if each.level == 2)
    row = Judged(patch=patch, verdict="changed", digest="123")

    source = TorchSource(version="2.99.0", unknown=(row,), is_accepted=True)

    assert source.why_not(3) == ""
    assert source.accepted() == {patch.at[0]: "123"}
    assert TorchSource(version="2", unknown=(row,), is_accepted=False).accepted() == {}


def test_a_build_judges_only_what_entries_need() -> None:
    """A function that only counts compiles does not refuse an entry."""
    found = TorchSource.installed(torch.__version__)

    assert found.unknown == ()
    assert {each.patch.level for each in judged({}, level=2).values()} == {2, 3}


def test_each_row_is_in_a_tested_version() -> None:
    """A row that no tested version has is a mistake, or belongs to a version that is gone."""
    known = {
        name
        for versions in digests.tested().values()
        for version in versions.values()
        for name in version["functions"]
    }

    rows = [each.name for each in TABLE if package_of(each) in digests.tested()]
    assert [name for name in rows if name not in known] == []
    assert known <= set(rows)
    assert [name for name, count in Counter(each.name for each in TABLE).items() if count > 1] == []


def test_the_versions_of_a_row_are_those_in_which_it_was_seen() -> None:
    """`since` and `until` say what the digests say, for each tested version."""
    wrong = [
        f"{row.name}: {version}"
        for row in TABLE
        for version, known in digests.tested().get(package_of(row), {}).items()
        if (row.name in known["functions"]) != row.is_in(version)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("version", "since", "until", "is_in"),
    [
        ("2.13.0", "", "", True),
        ("2.13.1+nv25.10", "2.13", "", True),
        ("2.9.0", "2.13", "", False),
        ("2.15.0", "", "2.15", False),
        ("2.14.1", "2.12", "2.15", True),
        ("2.16.0a0+gitabc", "2.16", "", True),
    ],
)
def test_versions_are_compared_as_numbers(
    version: str, since: str, until: str, is_in: bool
) -> None:
    row = Patch(at=("m:f",), level=1, lifetime="process", why="", since=since, until=until)

    assert row.is_in(version) is is_in
    assert numbers("2.16.0a0+git12") == (2, 16)


def test_the_cli_is_told_which_torch_is_tested() -> None:
    assert {"2.11.0", "2.13.0", "2.15.0"} <= set(digests.tested()["torch"])
    assert digests.FILE.name == "digests.json"
