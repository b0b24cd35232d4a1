# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One number for the changes of all dicts, instead of a look at each dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from serve_warm.precompile.changes import unchanged as change_checks
from serve_warm.precompile.changes.dict_versions import (
    DictChanges,
    count_changes,
    number_of_changes,
)
from serve_warm.precompile.changes.unchanged import STEADY, _same_dicts


class Versions:
    """torch's sequence of versions. `before` runs when a version is taken, but not yet returned."""

    def __init__(self) -> None:
        self.next = 0
        self.before: Callable[[], object] = lambda: None

    def read(self, _: dict[Any, Any]) -> int:
        version = self.next
        self.next += 1
        before, self.before = self.before, lambda: None
        before()
        return version

    def change(self) -> None:
        self.next += 1


@pytest.fixture
def versions() -> Versions:
    return Versions()


@pytest.mark.parametrize("changed", ["before", "after", "both"])
def test_a_change_is_seen_if_another_thread_asks_in_between(versions: Versions, changed: str):
    """Its question comes between this thread's version and its comparison."""
    changes = DictChanges(versions.read)
    known = changes.number()

    def ask() -> None:
        if changed != "after":
            versions.change()
        changes.number()
        if changed != "before":
            versions.change()

    versions.before = ask
    first, second = changes.number(), changes.number()

    assert second != known
    if changed == "both":
        assert first != known


@pytest.mark.parametrize("asked", [0, 1, STEADY + 1])
@pytest.mark.parametrize("number", [number_of_changes, None], ids=["by number", "by versions"])
def test_an_empty_dict_that_is_filled_from_another_has_changed(asked, number, monkeypatch):
    """Torch's watch from Python 3.12 on does not see that kind of change."""
    filled: dict[str, int] = {}
    monkeypatch.setattr(change_checks, "number_of_changes", number)
    same = _same_dicts([{"a": 1}, filled])
    steady = [same() for _ in range(asked)]
    filled.update({"b": 1})
    assert all(steady)
    assert not same()


def test_a_torch_that_numbers_otherwise_is_not_relied_on(monkeypatch: pytest.MonkeyPatch):
    """A new dict's number would not show the changes of others."""
    numbers = iter(range(1000))
    monkeypatch.setattr("serve_warm.precompile.changes.dict_versions.WATCHES_DICTS", True)
    assert count_changes(lambda _: next(numbers)) is None
