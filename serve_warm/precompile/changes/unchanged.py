# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The check that runs at each call: whether the sources of the recorded facts have changed.

Most sources are dicts. From Python 3.12 on, one number says whether any dict changed
(`DictChanges`). If this number changed, or before Python 3.12, the versions of dicts are compared.
Sources whose kind is in `SLOW_KINDS` are also compared during calls, but at most once a second
(`RELOOK_S`).
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from serve_warm._records import record
from serve_warm.precompile.calls.torch_state import RELOOK_S, tensor_check
from serve_warm.precompile.changes.dict_versions import (
    dict_versions,
    dicts_check,
    empty_ones,
    number_of_changes,
)
from serve_warm.precompile.changes.sources import ABSENT, Source, Sources, class_dicts, is_ordered
from serve_warm.precompile.facts.table import ANY_ERROR

if TYPE_CHECKING:
    import torch

SLOW_KINDS = ("type", "dict", "code")
"""Kinds of sources that are compared at most once every `RELOOK_S` seconds. Such sources show that
an object has a new class or `__dict__` (`module.__class__ = Other`), or that a function has new
code. Each object has about one source of these kinds, and such changes are rare. The bases of
classes are compared together with these sources."""

NOISE = 2
"""If a dict changes more than this many times without an effect on facts, its keys are compared
one by one from then on."""

clock = time.monotonic
"""The clock that determines when sources of `SLOW_KINDS` are compared."""


@record(kw_only=True)
class _Groups:
    """Sources grouped by how they are compared."""

    of_dict: dict[int, list[Source]] | None = None
    """The items and keys of each dict, by the dict's id. These sources are read only after the
    dict's version changes. None until a dict changes for the first time, because a starting
    replica does not need these groups."""
    of_class: set[int] = field(default_factory=set)
    """Ids of the dicts of classes. Only the version of such a dict is compared."""
    others: list[Source] = field(default_factory=list)
    """Sources that `find_changed` always reads: all except slow sources and sources that are
    covered by the version of a dict."""
    slow: list[Source] = field(default_factory=list)
    checks: list[Callable[[], bool]] = field(default_factory=list)
    """Checks that run at each call, for all sources except dicts and slow sources."""


class ChangeChecks:
    """Compares the current value of each source of a watch with the source's known value."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._noise: dict[int, int] = {}
        self._groups = _Groups()
        self._hot: set[int] = set()
        """Ids of dicts that have changed at least once. These dicts are compared separately, so
        that their next change does not rebuild the comparison of all other dicts."""
        self._cold: tuple[list[tuple[int, int]], Callable[[], bool]] = ([], lambda: True)
        """Ids and versions of the other dicts, and the function that compares them."""
        self._timer = _Timer()
        self._turn = _Turn()

    def find_changed(self) -> list[Source]:
        """Return the sources that changed since the last call, and remember their new values.

        The previous check always returns False after this call.
        """
        # This comes first, because the last check would compare with the values stored below.
        self._turn.is_over = True
        self._turn = _Turn()
        slow: Sequence[Source] = ()
        # Also here, because if something changes before each call, the check never reaches the
        # timer.
        if clock() > self._timer.due:
            self._timer.restart()
            slow = self._groups.slow
        moved = self._find_moved()
        self._hot |= moved
        quiet = set(moved)
        changed = []
        in_moved = self._sources_in(moved) if moved else []
        for source in (*self._groups.others, *slow, *in_moved):
            if not self._sources.reread(source):
                continue
            changed.append(source)
            quiet.discard(id(source.base))
            if source.kind == "class":
                quiet.difference_update(map(id, class_dicts(source.base)))
        for key in quiet - self._groups.of_class:
            self._noise[key] = self._noise.get(key, 0) + 1
            self._sources.is_stale |= self._noise[key] == NOISE + 1
        return changed

    def covers(self, mapping: object) -> bool:
        """Return whether changes to all keys of this dict are noticed."""
        key = id(mapping)
        held = self._sources.versions.get(key)
        return held is not None and held[0] is mapping and not self._is_noisy(mapping)

    def _find_moved(self) -> set[int]:
        """Return the ids of the dicts whose version changed, and remember the new version."""
        moved: set[int] = set()
        held = self._sources.versions
        # This comes before any dict is read, so that the next call sees all later changes.
        versions = dict_versions([place for place, _ in held.values()])
        for (key, (place, version)), now in zip(list(held.items()), versions, strict=True):
            if now != version:
                moved.add(key)
                held[key] = (place, now)
        return moved

    def _sources_in(self, places: set[int]) -> list[Source]:
        """Return the items and keys of the dicts with these ids."""
        found = self._groups.of_dict
        if found is None:
            found = self._groups.of_dict = {}
            for source in self._sources.by_key.values():
                if source.kind in ("item", "keys"):
                    found.setdefault(source.base_id, []).append(source)
        return [each for place in places for each in found.get(place, ())]

    def build_question(self) -> Callable[[], bool]:
        """Return a function that checks whether all sources still have their known values.

        Returns the function `never` if a source has already changed.
        """
        if self._sources.is_stale:
            self._group()
        hot: list[dict[object, object]] = []
        cold: list[dict[object, object]] = []
        cold_versions: list[tuple[int, int]] = []
        noisy = {key for key, count in self._noise.items() if count > NOISE}
        noisy -= self._groups.of_class
        versions = self._sources.versions
        for key, (place, version) in versions.items():
            if key in noisy:
                continue
            if key in self._hot:
                hot.append(place)
            else:
                cold.append(place)
                cold_versions.append((key, version))
        if self._cold[0] != cold_versions:
            self._cold = (cold_versions, _same_dicts(cold))
        of_hot = [_same_dicts(hot)] if hot else []
        checks = [self._cold[1], *of_hot, *self._groups.checks]
        held = [place for place, _ in versions.values()]
        if [version for _, version in versions.values()] != dict_versions(held):
            self._cold = ([], lambda: True)  # its comparison would use the new values
            return never
        if self._sources.is_stale or not all(check() for check in self._groups.checks):
            return never
        return _all_of(checks, self._groups.slow, self._timer, self._turn)

    def _group(self) -> None:
        kinds: dict[str, list[Source]] = {}
        found = self._groups = _Groups()
        noise = self._noise
        for source in self._sources.by_key.values():
            kind, base = source.kind, source.base
            if kind == "item" or kind == "keys":  # noqa: PLR1714 - takes half the time
                if (noise and self._is_noisy(base)) or (
                    kind == "keys" and is_ordered(base) and len(source.value) > 1
                ):
                    found.others.append(source)
                    kinds.setdefault(kind, []).append(source)
            elif kind == "class":
                found.others.append(source)
                found.slow.append(source)  # no dict changes if the class gets another base
                found.of_class.update(map(id, class_dicts(base)))
            elif kind in SLOW_KINDS:
                found.slow.append(source)
            else:
                found.others.append(source)
                kinds.setdefault(kind, []).append(source)
        if self._sources.has_dropped:
            self._forget_dicts()
        if "attribute" in kinds:
            found.checks.append(_same_attributes(kinds.pop("attribute")))
        tensors = kinds.pop("tensor", [])
        if tensors:
            found.checks.append(_same_tensors([source.base for source in tensors]))
        # The check compares with the tensors of now, which another thread may have changed.
        self._sources.is_stale = not all(source.is_still(source.read()) for source in tensors)
        found.checks += [_same_source(source) for sources in kinds.values() for source in sources]

    def _forget_dicts(self) -> None:
        """Forget the dicts that no longer contain a source."""
        self._sources.has_dropped = False
        used = set(self._groups.of_class)
        used |= {s.base_id for s in self._sources.by_key.values() if s.kind in ("item", "keys")}
        versions = self._sources.versions
        self._sources.versions = {key: held for key, held in versions.items() if key in used}
        # A new dict may have the address of a deleted one.
        self._noise = {key: count for key, count in self._noise.items() if key in used}
        self._hot &= used

    def _is_noisy(self, place: object) -> bool:
        return id(place) not in self._groups.of_class and self._noise.get(id(place), 0) > NOISE


def never() -> bool:
    """Return False; this is the check of a callable whose known values are out of date."""
    return False


class _Turn:
    """The period from one comparison of slow sources to the next."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class _Timer:
    """The time of the next comparison of slow sources, shared by all checks of a watch."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.due = clock() + RELOOK_S


def _all_of(
    checks: Sequence[Callable[[], bool]], slow: Sequence[Source], timer: _Timer, turn: _Turn
) -> Callable[[], bool]:
    first, *others = checks
    seconds = clock  # a local name, because this runs at each call

    def is_unchanged() -> bool:
        if not first():
            return False
        for check in others:
            if not check():
                return False
        if seconds() > timer.due:
            if not all(source.is_still(source.read()) for source in slow):
                return False  # and stays False until the next look reads all of them
            timer.restart()
        # This comes last, because a look by another thread may have replaced the values compared
        # above.
        return not turn.is_over

    return is_unchanged


STEADY = 32
"""After this many checks without a change, dict versions are compared in C++. Building the C++
check takes 8 µs per dict, and a starting replica has thousands of dicts but makes few calls."""


def _same_dicts(dicts: Sequence[dict[object, object]]) -> Callable[[], bool]:
    """Return a function that checks whether all these dicts are still unchanged.

    While `number_of_changes()` returns the same value, no dict has to be compared.
    """
    versions = dict_versions(dicts)
    empty = empty_ones(dicts, versions)
    in_cpp: Callable[[], bool] | None = None
    asked = 0

    def compare() -> bool:
        nonlocal in_cpp, asked
        if in_cpp is not None:
            return in_cpp()
        if dict_versions(dicts) != versions:
            return False
        asked += 1
        if asked == STEADY:
            built = dicts_check(dicts)
            # It compares with the current values, which another thread may just have changed.
            if dict_versions(dicts) == versions:
                in_cpp = built
        return True

    number = number_of_changes
    if number is None:
        return compare
    known: int | None = None

    def check() -> bool:
        nonlocal known
        now = number()  # before the comparison, which may miss changes that come during it
        if now == known:
            return not any(empty)
        if not compare():
            return False
        known = now
        return True

    return check


def _same_attributes(sources: Sequence[Source]) -> Callable[[], bool]:
    # A fast loop in C for attributes that return the same object each time. A missing attribute is
    # ABSENT each time, and a config class with its own `__getattribute__` has many missing ones.
    steady = [source for source in sources if _read_in_c(source) is source.value]
    others = [source for source in sources if source not in steady]
    bases = [source.base for source in steady]
    names = [source.name for source in steady]
    values = [source.value for source in steady]
    absent = [ABSENT] * len(steady)

    def check() -> bool:
        try:
            if not all(map(operator.is_, map(getattr, bases, names, absent), values)):
                return False
        except ANY_ERROR:
            return False
        return not others or all(source.is_still(source.read()) for source in others)

    return check


def _read_in_c(source: Source) -> object:
    """Return the attribute, `ABSENT` if it is missing, or `source` if reading it fails."""
    with contextlib.suppress(*ANY_ERROR):
        return getattr(source.base, source.name, ABSENT)
    return source  # marks it as unreadable: no source has itself as a value


def _same_tensors(tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    same = tensor_check(tensors)
    return lambda: same(*tensors)


def _same_source(source: Source) -> Callable[[], bool]:
    return lambda: source.is_still(source.read())
