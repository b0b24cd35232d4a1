# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The fewest calls that reach all code that many calls reach."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

MOST_STEPS = 5_000
"""Number of choices after which the search ends with the best cover so far: half a second for a
thousand calls."""

Code = Hashable
"""What stands for one piece of compiled code."""


def smallest_cover(reached: Sequence[Iterable[Code]], *, given: Iterable[Code] = ()) -> list[int]:
    """Return the places of the fewest calls that together reach all code, in order.

    `reached` has the code that each call reaches, and `given` the code that is reached anyway. Of
    calls that reach the same code, the first one is taken. Exact, unless the search would take
    more than `MOST_STEPS`.

    >>> smallest_cover([{"a"}, {"a", "b"}, {"b", "c"}, {"c"}])
    [1, 2]
    """
    known = frozenset(given)
    places: dict[frozenset[Code], int] = {}
    for place, codes in enumerate(reached):
        places.setdefault(frozenset(codes) - known, place)
    sets = [each for each in places if each and not any(each < other for other in places)]
    return sorted(places[each] for each in _Search(sets).best)


class _Search:
    """A search by branch and bound, which begins with the cover that greedy choices give."""

    def __init__(self, sets: Sequence[frozenset[Code]]) -> None:
        self._having: dict[Code, list[frozenset[Code]]] = {}
        """For each code, the sets that have it."""
        for each in sets:
            for code in each:
                self._having.setdefault(code, []).append(each)
        self._steps = 0
        self.best = self._greedy(sets)
        self._branch((), frozenset(self._having))

    def _greedy(self, sets: Sequence[frozenset[Code]]) -> tuple[frozenset[Code], ...]:
        chosen: list[frozenset[Code]] = []
        left = set(self._having)
        while left:
            chosen.append(max(sets, key=lambda each: len(each & left)))
            left -= chosen[-1]
        return tuple(chosen)

    def _branch(self, chosen: tuple[frozenset[Code], ...], left: frozenset[Code]) -> None:
        if not left:
            if len(chosen) < len(self.best):
                self.best = chosen
            return
        self._steps += 1
        rarest = min(left, key=lambda code: len(self._having[code]))
        gains = {each: len(each & left) for code in left for each in self._having[code]}
        needed = -(-len(left) // max(gains.values()))
        if len(chosen) + needed >= len(self.best):
            return
        for each in sorted(self._having[rarest], key=lambda each: -gains[each]):
            if self._steps > MOST_STEPS:
                return
            self._branch((*chosen, each), left - each)
