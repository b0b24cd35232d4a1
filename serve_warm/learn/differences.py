# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How two plans differ, for a person who reviews the newer one."""

from __future__ import annotations

from collections.abc import Iterator

from serve_warm.learn.plan import InputPlan

SHIFT = 0.01
"""Smallest change of a kind's share of the calls that is told."""


def describe_differences(old: InputPlan, new: InputPlan) -> Iterator[str]:
    """Yield a line for each kind of call that is new, gone, or more or less frequent.

    The first kinds are those whose share of the calls has changed most.
    """
    calls = {call.key: call.name for plan in (old, new) for call in plan.calls}
    before, after = ({call.key: call.calls for call in plan.calls} for plan in (old, new))

    def shares(key: tuple[object, ...]) -> tuple[float, float]:
        found = ((before, old), (after, new))
        first, second = (counts.get(key, 0) / (plan.recorded or 1) for counts, plan in found)
        return first, second

    def shift(key: tuple[object, ...]) -> float:
        first, second = shares(key)
        return abs(second - first)

    for key in sorted(calls, key=shift, reverse=True):
        was, now = shares(key)
        if key not in before:
            yield f"+ {calls[key]}: {now:.1%} of the calls"
        elif key not in after:
            yield f"- {calls[key]}: was {was:.1%} of the calls"
        elif shift(key) >= SHIFT:
            yield f"~ {calls[key]}: {was:.1%} -> {now:.1%} of the calls"
