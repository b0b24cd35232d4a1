# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Plans: merged from replicas, written as YAML, read again, and refused if they are damaged."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from serve_warm.errors import ConfigError
from serve_warm.learn.plan import MOST_BYTES, InputPlan, make_plan, merge_plans, read_plan
from serve_warm.learn.recorded import RecordedCall
from serve_warm.learn.recorded_requests import OF_REQUESTS, RecordedRequest


def call(size: int, calls: int = 1, structure: str = "t0") -> RecordedCall:
    tensor = f"Tensor int64[{size}] strides [1] on cpu"
    return RecordedCall(callable="app.Model", structure=structure, tensors=(tensor,), calls=calls)


def test_kinds_of_several_replicas_are_added_up_largest_first():
    plan = make_plan([call(3, 5), call(64, 1), call(3, 2)], {})
    assert [(each.tensors, each.calls) for each in plan.calls] == [
        (call(64).tensors, 1),
        (call(3).tensors, 7),
    ]
    assert (plan.recorded, plan.share) == (8, 1.0)


def test_what_cannot_be_replayed_is_left_out_and_counted():
    plan = make_plan([call(3, 6), call(3, 1, "t0, text=str[9]")], {"an argument is a Cache": 3})
    assert [each.calls for each in plan.calls] == [6]
    assert sorted(plan.left_out.values()) == [1, 3]
    assert (plan.recorded, plan.share) == (10, 0.6)


def test_a_plan_of_the_most_frequent_kinds_says_what_it_leaves_out():
    plan = make_plan([call(3, 90), call(64, 2), call(5, 8)], {}).most_frequent(2)
    assert [each.calls for each in plan.calls] == [8, 90]
    assert plan.left_out == {"its kind is rarer than those in the plan": 2}
    assert plan.share == 0.98


def test_a_plan_of_the_most_frequent_of_many_kinds_takes_no_time():
    plan = make_plan([call(size, size) for size in range(1, 3001)], {})
    begun = time.process_time()
    kept = plan.most_frequent(1000)
    assert [each.calls for each in kept.calls] == list(range(3000, 2000, -1))
    assert time.process_time() - begun < 1


def test_equal_kinds_in_a_plan_are_kept_one_by_one():
    """A person may have copied one."""
    assert len(InputPlan(calls=(call(3, 2),) * 4).most_frequent(3).calls) == 3


def test_a_plan_of_nothing_covers_everything():
    assert make_plan([], {}).share == 1.0


@pytest.mark.parametrize("form", ["file", "yaml", "json"])
def test_a_plan_can_be_read_again(form: str, tmp_path: Path):
    made = make_plan([call(3, 5), call(64)], {"a reason": 2}, ["de", "fr"])
    plan = dataclasses.replace(made, deployment="Ranker")
    given = plan.to_yaml()
    if form == "file":
        (tmp_path / "plan.yaml").write_text(given)
        given = str(tmp_path / "plan.yaml")
    elif form == "json":
        given = json.dumps(plan.to_json())
    assert read_plan(given) == plan


HUGE = f"Tensor int64[{'9' * 5000}] strides [1] on cpu"

WRONG: dict[str, Any] = {
    "no YAML": "calls: [",
    "a list": [1],
    "no calls": {"format": 1},
    "newer": {"format": 2, "calls": []},
    "a truth": {"format": True, "calls": []},
    "half a call": {"format": 1, "calls": [{"callable": "x"}]},
    "code": {"format": 1, "calls": [{**call(3).to_json(), "structure": "open('x')"}]},
    "a string": {"format": 1, "calls": [call(3, 1, "str[3]").to_json()]},
    "no models": {"format": 1, "calls": [], "models": "de"},
    "a model without an id": {"format": 1, "calls": [], "models": [""]},
    "a deployment without a name": {"format": 1, "calls": [], "deployment": ["Ranker"]},
    "left out": {"format": 1, "calls": [], "left_out": [1]},
    "a huge size": {"format": 1, "calls": [{**call(3).to_json(), "tensors": [HUGE]}]},
    "too many calls": {"format": 1, "calls": [{**call(3).to_json(), "calls": 1 << 63}]},
    "too many covered": {"format": 1, "calls": [], "covered": 1 << 63},
    "large": "# " + "x" * MOST_BYTES + "\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_plan_is_refused_with_one_sentence(name: str, tmp_path: Path):
    given = WRONG[name]
    file = tmp_path / "plan.yaml"
    file.write_text(given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(ConfigError) as caught:
        read_plan(str(file))
    assert caught.value.message.startswith(f"plan {file}")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        read_plan(str(tmp_path / name))


def test_plans_of_one_deployment_are_merged_and_others_refused():
    mine = InputPlan(calls=(call(3),), deployment="Ranker")
    older = InputPlan(calls=(call(4),))
    assert merge_plans([mine, mine]).deployment == "Ranker"
    assert merge_plans([older, mine]).deployment == "", "it may be of another deployment"
    assert len(merge_plans([older, mine]).calls) == 2
    with pytest.raises(ConfigError, match="several deployments: Other, Ranker"):
        merge_plans([mine, dataclasses.replace(mine, deployment="Other")])


def test_an_empty_plan_is_valid():
    """A reviewer may have removed all calls."""
    assert read_plan("format: 1\ncalls: []\n") == InputPlan(calls=())


@pytest.mark.parametrize("number", [1e-07, 1e20, 2.5])
def test_a_plan_as_json_keeps_its_values(number: float):
    """The build gives it to the replicas so; YAML would read some numbers as texts."""
    request = RecordedRequest(
        target="ask", arguments={"args": [number, "\U0001f600"], "kwargs": {}}, calls=1
    )
    plan = InputPlan(calls=(call(3),), requests=(request,), within_s=1e-05)
    assert read_plan(json.dumps(plan.to_json())) == plan
    assert read_plan(plan.to_yaml()) == plan


@pytest.mark.parametrize(
    "text",
    [
        "format: 1\ncalls: []\nrequests: [{target: a, arguments: {args: [2026-01-02]}}]",
        "format: 1\ncalls: []\nmodels: [2026-02-31]",
        "format: 1\ncalls: [!!bool maybe]",
        "format: 1\ncalls: [!!int '']",
        "format: 1\ncalls: [!!timestamp foo]",
        "format: 1\ncalls: []\nrequests: [{target: a, arguments: {args: [!!binary aGk=]}}]",
    ],
    ids=["date", "no date", "no truth", "no number", "no time", "binary"],
)
def test_a_plan_that_a_person_has_edited_is_refused_with_one_sentence(text: str):
    with pytest.raises(ConfigError):
        read_plan(text)


def test_requests_beyond_the_size_of_a_plan_are_counted():
    """They would be missing from a start, and nobody would know."""
    requests = [
        RecordedRequest(
            target="ask", arguments={"args": ["x" * 60_000, n], "kwargs": {}}, calls=n + 1
        )
        for n in range(10)
    ]
    made = make_plan([call(3, 8)], {"a reason": 2}, requests=requests)
    assert [each.calls for each in made.requests] == [10, 9, 8, 7]
    why = f"{OF_REQUESTS}a plan takes at most 256 KiB of them"
    assert made.left_out == {"a reason": 2, why: 1 + 2 + 3 + 4 + 5 + 6}
    assert (made.recorded, made.share) == (10, 0.8)  # the calls of these requests are in the plan


def test_the_most_frequent_calls_of_the_most_frequent_calls_know_all_traffic():
    recorded = [
        RecordedCall(
            callable="app.Model",
            structure="t0",
            tensors=(f"Tensor int64[{size}] strides [1] on cpu",),
            calls=1,
        )
        for size in range(1, 31)
    ]
    plan = make_plan(recorded, {}).most_frequent(20).most_frequent(10)
    assert (plan.recorded, round(plan.share, 2)) == (30, 0.33)
