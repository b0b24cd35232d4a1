# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The calls that stay in a plan, given the code that each call reached in a build."""

from __future__ import annotations

import dataclasses

from serve_warm.learn.plan import InputPlan, make_plan
from serve_warm.learn.recorded import RecordedCall
from serve_warm.learn.recorded_requests import RecordedRequest
from serve_warm.learn.reduced import TOO_LONG, Reached, reduce_plan


def planned(*calls: int, within_s: float | None = None) -> InputPlan:
    """Return a plan of calls whose sizes fall by one, with these numbers of calls."""
    recorded = [
        RecordedCall(
            callable="app.Model",
            structure="t0",
            tensors=(f"Tensor int64[{1000 - place}] strides [1] on cpu",),
            calls=count,
        )
        for place, count in enumerate(calls)
    ]
    made = make_plan(recorded, {})
    return InputPlan(calls=made.calls, within_s=within_s)


def reached(*codes: str, seconds: float = 1.0) -> list[Reached]:
    return [Reached(codes=frozenset(each), seconds=seconds) for each in codes]


def counts(plan: InputPlan) -> list[int]:
    return [each.calls for each in plan.calls]


def test_calls_that_one_code_answers_become_one():
    plan = reduce_plan(planned(5, 3, 2), reached("a", "a", "b"))
    assert counts(plan) == [5, 2]
    assert (plan.covered, plan.recorded, plan.share) == (3, 10, 1.0)


def test_what_declared_inputs_reach_is_replayed_once():
    plan = reduce_plan(planned(5, 3), reached("a", "ab"), declared=frozenset("a"))
    assert counts(plan) == [3]
    assert plan.share == 1.0


def test_a_budget_keeps_what_answers_most_traffic_in_its_time():
    slow, fast, fast_too = (
        reached(each, seconds=s)[0] for each, s in (("a", 9), ("b", 1), ("c", 1))
    )
    plan = reduce_plan(planned(50, 30, 20, within_s=2.5), [slow, fast, fast_too])
    assert counts(plan) == [30, 20]
    assert plan.left_out == {TOO_LONG: 50}
    assert plan.share == 0.5


def test_a_budget_counts_the_traffic_of_calls_that_the_same_code_answers():
    plan = reduce_plan(planned(4, 3, 3, within_s=1.0), reached("a", "b", "b"))
    assert counts(plan) == [3]
    assert (plan.covered, plan.share) == (3, 0.6)


def test_a_reduced_plan_can_be_read_again():
    plan = reduce_plan(planned(4, 3, 3, within_s=1.5), reached("a", "b", "b"))
    assert InputPlan.from_json(plan.to_json(), source="x") == plan


def test_a_call_whose_code_others_load_is_not_covered_without_them():
    """At level 1: the second and third call compiled nothing."""
    worked = Reached(codes=frozenset("w"), needs=frozenset("w"), seconds=2.0)
    rest = Reached(codes=frozenset(), needs=frozenset("w"), seconds=1.0)
    whole = reduce_plan(planned(5, 3, 2), [worked, rest, rest])
    assert (counts(whole), whole.covered, whole.share) == ([5], 5, 1.0)
    none = reduce_plan(planned(5, 3, 2, within_s=1.0), [worked, rest, rest])
    assert (counts(none), none.covered, none.share) == ([], 0, 0.0)


def test_a_plan_that_is_reduced_again_knows_what_was_left_out_before():
    once = reduce_plan(planned(50, 2, 1, within_s=2.0), reached("a", "b", "c"))
    again = InputPlan(calls=once.calls, within_s=1.0, left_out={TOO_LONG: 50})
    assert reduce_plan(again, reached("a", "b")).left_out == {TOO_LONG: 52}
    assert reduce_plan(again, reached("a", "b", seconds=0.1)).left_out == {TOO_LONG: 50}


def test_the_seconds_of_requests_count():
    of_request = Reached(codes=frozenset("r"), seconds=2.0)
    plan = planned(50, 30, within_s=3.0)
    request = RecordedRequest(target="POST /a", arguments={}, calls=1)
    plan = dataclasses.replace(plan, requests=(request,))
    made = reduce_plan(plan, reached("a", "b"), requests=[of_request])
    assert (counts(made), len(made.requests)) == ([50], 1)
