# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of one call with eager execution in a replica, which may have its own weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from serve_warm._records import record
from serve_warm.precompile.eager_check import (
    NEVER_REFUSED,
    Different,
    Kept,
    NotComparable,
    OtherStructure,
    Outcome,
    TooFar,
    are_alike,
    check_same_kind,
    check_structure,
    find_difference,
)
from serve_warm.precompile.facts import NoEntry


@record(frozen=True, kw_only=True)
class Passed:
    """A comparison in service that found no wrong result."""

    difference: float
    """Largest difference from eager, relative to the largest value."""
    near_ties: int = 0
    """Count of integers and bools that differ, because two candidates were almost equal."""
    fixed: str = ""
    """Why the fixed limit decided; empty if it did not."""


def compare_in_service(
    callee: Any,
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    tensors: Sequence[Any],
    *,
    restore: bool,
    built: Sequence[float],
) -> Passed:
    """Compare one call with eager execution in a replica; errors do not quote request values.

    A difference of each tensor of at most the one in `built`, which the build measured, passes at
    once. A replica may have other weights than the build, so a larger difference is judged by a
    full-precision run with the replica's weights.

    With `restore`, also compares buffers, and restores the buffers and the random number state.
    Without `restore`, leaves buffers and random state alone, because other threads might be using
    both. So pass `restore=False` only for calls that change neither buffers nor random state.

    Raises:
        Different: the results differ by more than rounding, and two eager runs agree.
        NotComparable: two eager runs differ, or the call cannot be compared, for example because
            right code may choose another expert than eager in a near-tie.
    """
    kept = Kept(callee, restore=restore)
    try:
        eager = kept.run(function, tensors)
    except NoEntry as error:
        raise NotComparable(str(error)) from error
    try:
        ours = _run_compiled(kept, compiled, tensors)
        difference = _difference(eager, ours)
        if difference == 0.0 or (difference is not None and _is_as_built(eager, ours, built)):
            return Passed(difference=difference)
        from serve_warm.precompile.distance_check import compare_once  # most starts do not need it

        found = compare_once(callee, function, compiled, tensors, restore=restore)
        verdict = found.verdict
        if verdict.reason and found.unsure:
            raise NotComparable(verdict.reason)
        if verdict.reason:
            raise TooFar(verdict.reason)
    except Different as wrong:
        if not are_alike(eager, kept.run(function, tensors)):
            raise NotComparable("two eager runs of the same call differ") from wrong
        if isinstance(wrong, OtherStructure):
            raise Different(
                "its result has a different structure or value than the eager result"
            ) from None
        raise
    return Passed(difference=verdict.difference, near_ties=verdict.near_ties, fixed=verdict.fixed)


def _run_compiled(kept: Kept, compiled: Callable[..., Any], tensors: Sequence[Any]) -> Outcome:
    try:
        return kept.run(compiled, tensors)
    except Different:
        raise
    except NoEntry as refusal:  # the entry computed nothing, and other code will run its calls
        raise NotComparable(f"the entry does not accept this call: {refusal}") from refusal


def _is_as_built(eager: Outcome, ours: Outcome, built: Sequence[float]) -> bool:
    """Return whether each tensor differs from eager by no more than in the build.

    Float32 results vary from input to input, far below what is never refused.
    """
    if len(built) < len(eager.tensors):
        return False
    return all(
        find_difference(one, other) <= min(4 * most, NEVER_REFUSED.get(one.dtype, most))
        for one, other, most in zip(eager.tensors, ours.tensors, built, strict=False)
        if one.is_floating_point() or one.is_complex()
    )


def _difference(eager: Outcome, ours: Outcome) -> float | None:
    """Return the largest difference; None if other values than floats differ."""
    check_structure(eager, ours)
    worst = 0.0
    for one, other in zip(eager.tensors, ours.tensors, strict=True):
        check_same_kind(one, other)
        if one.is_floating_point() or one.is_complex():
            worst = max(worst, find_difference(one, other))
        elif not torch.equal(one, other):
            return None
    return worst
