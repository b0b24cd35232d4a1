# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One number for the changes of all dicts, instead of a look at each dict."""

from __future__ import annotations

import itertools
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch._C._dynamo import guards

from serve_warm.precompile.call_checks import DictChanges, count_changes, number_of_changes
from serve_warm.precompile.change_checks import STEADY, _same_dicts

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_the_number_stays_until_a_dict_changes(versions: Versions):
    changes = DictChanges(versions.read)

    same = {changes.number() for _ in range(3)}
    versions.change()
    after = {changes.number() for _ in range(3)}

    assert len(same) == len(after) == 1
    assert not same & after


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


def test_a_change_is_seen_by_each_of_many_threads():
    """If a whole change lies between two questions of a thread, their numbers differ."""
    versions = itertools.count()
    changes = DictChanges(lambda _: next(versions))
    progress = SimpleNamespace(begun=0, done=0)
    wrong: list[int] = []
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            number, begun = changes.number(), progress.begun
            while progress.done <= begun and not has_ended.is_set():
                changes.number()
            if progress.done > begun and changes.number() == number:
                wrong.append(begun)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(20_000):
            progress.begun += 1
            next(versions)
            progress.done += 1
    finally:
        has_ended.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()

    assert wrong == []


@pytest.mark.parametrize("asked", [0, 1, STEADY + 1])
@pytest.mark.parametrize("number", [number_of_changes, None], ids=["by number", "by versions"])
def test_an_empty_dict_that_is_filled_from_another_has_changed(asked: int, number: Any):
    """Torch's watch from Python 3.12 on does not see that kind of change."""
    filled: dict[str, int] = {}
    same = _same_dicts([{"a": 1}, filled], number)

    steady = [same() for _ in range(asked)]
    filled.update({"b": 1})

    assert all(steady)
    assert not same()


def test_a_torch_that_numbers_otherwise_is_not_relied_on():
    """A new dict's number would not show the changes of others."""
    numbers = iter(range(1000))

    assert count_changes(lambda _: next(numbers), watches=True) is None


@pytest.mark.parametrize("asked", [1, STEADY + 1])
def test_dicts_are_looked_at_only_after_a_change(asked: int):
    """A change of any watched dict counts; then the versions decide."""
    numbers = iter([1] * (asked + 1) + [2, 3, 3])
    mine = {"a": 1}
    same = _same_dicts([mine], lambda: next(numbers))

    steady = [same() for _ in range(asked)]
    mine["a"] = 2
    unseen = same()  # the number is what it was: nothing is looked at
    seen = same()
    mine["a"] = 1
    restored = same()

    assert all(steady)
    assert (unseen, seen, restored) == (True, False, False)


@pytest.mark.skipif(number_of_changes is None, reason="torch numbers changes from Python 3.12 on")
def test_torch_numbers_the_changes_of_watched_dicts():
    """Not the changes of others, and no dict that is made and dropped."""
    assert number_of_changes is not None
    watched, other = {"a": 1}, {"b": 1}
    guards.dict_version(watched)

    before = number_of_changes()
    other["b"] = 2
    del other
    _ = [{"c": number} for number in range(100)]
    same = number_of_changes()
    watched["a"] = 2
    after = number_of_changes()

    assert before == same != after
