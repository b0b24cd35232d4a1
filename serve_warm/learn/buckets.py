# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Bucket edges with the least padding for the sizes that traffic has."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from serve_warm._records import record
from serve_warm.learn.recorded import RecordedCall

MOST_SIZES = 1024
"""Maximum number of different sizes. With more, neighbours are taken together."""


@record(frozen=True, kw_only=True)
class BucketEdges:
    """The sizes to pad to, and what padding adds."""

    edges: tuple[int, ...]
    """The largest one is the largest size."""
    padding: float
    """The values that padding adds, as a share of those without padding."""


def best_edges(counts: Mapping[int, int], most: int) -> BucketEdges:
    """Return at most `most` edges so that padding each size to the next edge adds the least.

    `counts` has the number of requests by size.

    >>> best_edges({10: 5, 16: 1, 100: 2}, 2).edges
    (16, 100)

    Raises:
        ValueError: there are no sizes, or `most` is not positive.
    """
    sizes = sorted(size for size, count in counts.items() if count > 0)
    if not sizes or most < 1:
        raise ValueError("needs at least one size and one edge")
    ends = _thinned(sizes)
    # Numbers of requests and of their values up to each possible edge.
    calls = list(itertools.accumulate((counts[size] for size in sizes), initial=0))
    upto = [0, *(sum(size <= end for size in sizes) for end in ends)]
    totals = [calls[place] for place in upto]
    # least[j] is the least number of padded values of all sizes up to the j-th possible edge.
    least: list[float] = [0, *[float("inf")] * len(ends)]
    chosen: list[list[int]] = []
    for _ in range(min(most, len(ends))):
        best, came_from = list(least), list(range(len(least)))
        for last in range(1, len(least)):
            for first in range(last):
                padded = least[first] + (totals[last] - totals[first]) * ends[last - 1]
                if padded < best[last]:
                    best[last], came_from[last] = padded, first
        least = best
        chosen.append(came_from)
    edges, at = list[int](), len(ends)
    for came_from in reversed(chosen):
        if came_from[at] != at:
            edges.append(ends[at - 1])
            at = came_from[at]
    own = sum(size * counts[size] for size in sizes)
    return BucketEdges(edges=tuple(reversed(edges)), padding=least[-1] / own - 1 if own else 0.0)


def _thinned(sizes: Sequence[int]) -> list[int]:
    step = -(-len(sizes) // MOST_SIZES)
    return [sizes[-1 - place] for place in range(0, len(sizes), step)][::-1]


@record(frozen=True, kw_only=True)
class VaryingAxis:
    """An axis of a tensor on which calls of one callable have several sizes."""

    callable: str
    tensor: int
    axis: int
    counts: Mapping[int, int]
    """Number of calls by size."""

    def describe(self, most: int) -> str:
        """Return a line that suggests edges."""
        found = best_edges(self.counts, most)
        return (
            f"{self.callable}: axis {self.axis} of tensor {self.tensor} has {len(self.counts)} "
            f"sizes from {min(self.counts)} to {max(self.counts)}; padded to "
            f"{', '.join(map(str, found.edges))}, it has {found.padding:.0%} more values"
        )


def varying_axes(calls: Sequence[RecordedCall], *, more_than: int) -> Iterator[VaryingAxis]:
    """Yield the axes of tensors on which calls have more than this number of sizes."""
    counts: dict[tuple[str, int, int], Counter[int]] = {}
    for call in calls:
        for number, sizes in enumerate(call.sizes):
            for axis, size in enumerate(sizes):
                counts.setdefault((call.callable, number, axis), Counter())[size] += call.calls
    for (name, number, axis), by_size in counts.items():
        if len(by_size) > more_than:
            yield VaryingAxis(callable=name, tensor=number, axis=axis, counts=by_size)
