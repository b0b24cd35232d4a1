# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of a plan that a start needs to replay, as a build has found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from serve_warm._records import record
from serve_warm.learn.cover import Code, smallest_cover
from serve_warm.learn.plan import InputPlan

TOO_LONG = "its replay does not fit into within_s"
"""Why a build leaves out a call."""


@record(frozen=True, kw_only=True)
class Reached:
    """What a build found out about one call of a plan."""

    codes: frozenset[Code]
    """The code that answered it, and which its replay loads."""
    needs: frozenset[Code] = frozenset()
    """The code that answered it, but which other calls must load."""
    seconds: float
    """How long its last replay took."""


def reduce_plan(
    plan: InputPlan,
    found: Sequence[Reached],
    *,
    requests: Sequence[Reached] = (),
    declared: frozenset[Code] = frozenset(),
) -> InputPlan:
    """Return the plan with the fewest calls that reach the same code, within its seconds.

    `found` and `requests` have what is known of each call and request of the plan, and `declared`
    the code that the declared inputs reach. Requests are kept before calls, because their replay
    proves more, and their seconds count, too.
    """
    kept_requests = smallest_cover([each.codes for each in requests], given=declared)
    declared = declared.union(*(requests[place].codes for place in kept_requests))
    kept = smallest_cover([each.codes for each in found], given=declared)
    if plan.within_s is not None:
        of_requests = sum(requests[place].seconds for place in kept_requests)
        kept = _within(plan.within_s - of_requests, kept, plan, found)
    answered = declared.union(*(found[place].codes for place in kept))
    others = [place for place in range(len(found)) if place not in kept]
    covered = [place for place in others if found[place].codes | found[place].needs <= answered]
    left = sum(plan.calls[place].calls for place in others if place not in covered)
    left += plan.left_out.get(TOO_LONG, 0)
    return dataclasses.replace(
        plan,
        calls=tuple(plan.calls[place] for place in kept),
        requests=tuple(plan.requests[place] for place in kept_requests),
        covered=plan.covered + sum(plan.calls[place].calls for place in covered),
        left_out={**plan.left_out, **({TOO_LONG: left} if left else {})},
    )


def _within(
    limit_s: float, places: Sequence[int], plan: InputPlan, found: Sequence[Reached]
) -> list[int]:
    """Return the calls that answer the most traffic in this time, in their order."""

    def gain(place: int) -> float:
        codes = found[place].codes
        answered = (
            call.calls
            for call, each in zip(plan.calls, found, strict=True)
            if each.codes | each.needs <= codes
        )
        return sum(answered) / max(found[place].seconds, 1e-6)

    chosen, left_s = list[int](), limit_s
    for place in sorted(places, key=gain, reverse=True):
        if found[place].seconds <= left_s:
            chosen.append(place)
            left_s -= found[place].seconds
    return sorted(chosen)
