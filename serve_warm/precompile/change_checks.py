# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The question at each call: did any place change that facts were read from?

Most places are dicts, whose versions are compared in C++. Some are compared once a second only
(`RELOOK_S`), by the call that comes then: see `SLOW_KINDS`.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_warm.precompile.call_checks import (
    backend_flags,
    dict_versions,
    dicts_check,
    tensor_check,
)
from serve_warm.precompile.fact_sources import ABSENT, Source, Sources, class_dicts, is_ordered
from serve_warm.precompile.facts import UNREADABLE

RELOOK_S = 1.0
"""How long a change of what `SLOW_KINDS` names may go unnoticed, while calls come."""

SLOW_KINDS = ("type", "dict", "code")
"""Sources that are compared once in `RELOOK_S`, as the flags of torch's backends are: a class or a
`__dict__` that is assigned to an object (`module.__class__ = Other`) and code that is assigned to a
function (`f.__code__ = ...`). There are as many as objects, and hardly anybody does any of them."""

NOISE = 2
"""After so many changes of a dict that no fact was about, its keys are compared one by one."""


@dataclass(kw_only=True)
class _Groups:
    """Sources by how they are compared."""

    of_dict: dict[int, list[Source]] = field(default_factory=dict)
    """Items and keys, by the id of their dict: read only once its version moves."""
    of_class: set[int] = field(default_factory=set)
    """Ids of the dicts of classes, whose versions are all that is known of them."""
    others: list[Source] = field(default_factory=list)
    """Read at each look: all but the slow ones, and what a dict's version speaks for."""
    slow: list[Source] = field(default_factory=list)
    checks: list[Callable[[], bool]] = field(default_factory=list)
    """Of all but dicts and slow ones, asked at each call."""


class ChangeChecks:
    """Comparisons of all sources of one watch with what is there now."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._noise: dict[int, int] = {}
        self._groups = _Groups()
        self._hot: set[int] = set()
        """Ids of dicts that changed before. They are compared apart from the others, so that the
        next change costs a new comparison of these alone."""
        self._cold: tuple[list[tuple[int, int]], Callable[[], bool]] = ([], lambda: True)
        """Ids and versions of the other dicts, and their comparison."""
        self._timer = _Timer()
        self._turn = _Turn()

    def find_changed(self) -> list[Source]:
        """Return the sources that changed since the last look, and remember what is there now.

        The question of the last look is answered with no from here on.
        """
        # Before anything is remembered, which the last question would compare with.
        self._turn.is_over = True
        self._turn = _Turn()
        slow: Sequence[Source] = ()
        # Here too: where something changes before each call, the question never comes to it.
        if time.monotonic() > self._timer.due:
            backend_flags()
            self._timer.restart()
            slow = self._groups.slow
        moved = self._find_moved()
        self._hot |= moved
        quiet = set(moved)
        changed = []
        in_moved = [each for key in moved for each in self._groups.of_dict.get(key, ())]
        for source in (*self._groups.others, *slow, *in_moved):
            now = source.read()
            if source.is_still(now):
                continue
            source.remember(now)
            changed.append(source)
            self._sources.is_stale |= source.is_built_in()
            quiet.discard(id(source.base))
            if source.kind == "class":
                quiet.difference_update(map(id, class_dicts(source.base)))
        for key in quiet - self._groups.of_class:
            self._noise[key] = self._noise.get(key, 0) + 1
            self._sources.is_stale |= self._noise[key] == NOISE + 1
        return changed

    def _find_moved(self) -> set[int]:
        """Return the ids of the dicts that have another version, and remember it."""
        moved: set[int] = set()
        held = self._sources.versions
        # Before anything is read from a dict: a change from here on is seen at the next call.
        versions = dict_versions([place for place, _ in held.values()])
        for (key, (place, version)), now in zip(list(held.items()), versions, strict=True):
            if now != version:
                moved.add(key)
                held[key] = (place, now)
        return moved

    def build_question(self) -> Callable[[], bool]:
        """Return a function that says whether all is as it is known now.

        It is `never` if something changed already.
        """
        if self._sources.is_stale:
            self._group()
        hot: list[Any] = []
        cold: list[Any] = []
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
            self._cold = ([], lambda: True)  # it compares with now
            return never
        if not all(check() for check in self._groups.checks):
            return never
        return _all_of(checks, self._groups.slow, self._timer, self._turn)

    def _group(self) -> None:
        """Sort the sources by how they are compared."""
        self._sources.is_stale = False
        dicts: dict[int, tuple[Any, int]] = {}
        kinds: dict[str, list[Source]] = {}
        found = self._groups = _Groups()
        for source in self._sources.by_key.values():
            if source.kind == "class":
                found.others.append(source)
                places = class_dicts(source.base)
                found.of_class.update(map(id, places))
            elif source.kind in ("item", "keys"):
                places = [source.base]
                if self._is_noisy(source.base):
                    found.others.append(source)
                    kinds.setdefault(source.kind, []).append(source)
                else:
                    if source.kind == "keys" and is_ordered(source.base) and len(source.value) > 1:
                        found.others.append(source)
                        kinds.setdefault("keys", []).append(source)
                    found.of_dict.setdefault(id(source.base), []).append(source)
            elif source.kind in SLOW_KINDS:
                found.slow.append(source)
                continue
            else:
                found.others.append(source)
                kinds.setdefault(source.kind, []).append(source)
                continue
            dicts.update({id(place): self._sources.versions[id(place)] for place in places})
        self._sources.versions = dicts
        # Another dict may come to stand at the address of one that is gone.
        self._noise = {key: count for key, count in self._noise.items() if key in dicts}
        self._hot &= dicts.keys()
        if "attribute" in kinds:
            found.checks.append(_same_attributes(kinds.pop("attribute")))
        if "tensor" in kinds:
            found.checks.append(_same_tensors([source.base for source in kinds.pop("tensor")]))
        found.checks += [_same_source(source) for sources in kinds.values() for source in sources]

    def _is_noisy(self, place: Any) -> bool:
        return id(place) not in self._groups.of_class and self._noise.get(id(place), 0) > NOISE


def never() -> bool:
    """Say no: what is known is not what is there."""
    return False


class _Turn:
    """The time from one look to the next."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class _Timer:
    """When to look at what is looked at once in `RELOOK_S`; one for all questions of a watch."""

    def __init__(self) -> None:
        self.due = 0.0
        self.restart()

    def restart(self) -> None:
        self.due = time.monotonic() + RELOOK_S


def _all_of(
    checks: Sequence[Callable[[], bool]], slow: Sequence[Source], timer: _Timer, turn: _Turn
) -> Callable[[], bool]:
    first, *others = checks
    clock = time.monotonic

    def unchanged() -> bool:
        if not first():
            return False
        for check in others:
            if not check():
                return False
        if clock() > timer.due:
            backend_flags()  # which each kind of call is compared with
            if not all(source.is_still(source.read()) for source in slow):
                return False  # also when asked again, until all is looked at anew
            timer.restart()
        # Last: another thread that looks anew remembers values that those above compared with.
        return not turn.is_over

    return unchanged


STEADY = 32
"""After so many questions with one answer the versions of dicts are compared in C++. A comparison
takes 8 µs a dict to build, and a start has thousands of dicts and asks a few times."""


def _same_dicts(dicts: Sequence[Any]) -> Callable[[], bool]:
    """Return a question whether none of these dicts was changed since now."""
    versions = dict_versions(dicts)
    in_cpp: Callable[[], bool] | None = None
    asked = 0

    def check() -> bool:
        nonlocal in_cpp, asked
        if in_cpp is not None:
            return in_cpp()
        if dict_versions(dicts) != versions:
            return False
        asked += 1
        if asked == STEADY:
            built = dicts_check(dicts)
            # It compares with now, which another thread may have changed meanwhile.
            if dict_versions(dicts) == versions:
                in_cpp = built
        return True

    return check


def _same_attributes(sources: Sequence[Source]) -> Callable[[], bool]:
    # In C, one after the other, where the very same object comes back each time. An attribute that
    # is not there is ABSENT each time; a config with a `__getattribute__` of its own has many.
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
        except UNREADABLE:
            return False
        return not others or all(source.is_still(source.read()) for source in others)

    return check


def _read_in_c(source: Source) -> Any:
    """Return what `getattr` finds, ABSENT if there is none, the source itself if it raises."""
    with contextlib.suppress(*UNREADABLE):
        return getattr(source.base, source.name, ABSENT)
    return source  # as an empty cell: no source holds itself


def _same_tensors(tensors: Sequence[Any]) -> Callable[[], bool]:
    same = tensor_check(tensors)
    return lambda: same(*tensors)


def _same_source(source: Source) -> Callable[[], bool]:
    return lambda: source.is_still(source.read())
