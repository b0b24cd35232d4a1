# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm plan`, asked of replicas that answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from serve_warm.builder import cluster
from serve_warm.cli.planning import choose, plan
from serve_warm.errors import ConfigError, StoreError
from serve_warm.learn.plan import read_plan


def answer(deployment: str, *sizes: int, **not_recorded: int) -> dict[str, Any]:
    """Return what a replica has recorded: a call of each size."""
    calls = [
        {
            "callable": "app.Model",
            "structure": "t0",
            "tensors": [f"Tensor int64[{size}] strides [1] on cpu"],
            "modes": {"inference_mode": True, "grad_mode": False},
            "calls": 1,
        }
        for size in sizes
    ]
    return {
        "application": "app",
        "deployment": deployment,
        "calls": calls,
        "not_recorded": not_recorded,
    }


def run(monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], *words: str) -> Any:
    monkeypatch.setattr(cluster, "ask_replicas", lambda *_: answers)
    return CliRunner().invoke(plan, list(words))


def test_replicas_are_merged_and_written_to_a_file(monkeypatch, tmp_path: Path):
    file = tmp_path / "plan.yaml"
    answers = [answer("Model", 3, 5), answer("Model", 3, cache=2)]
    done = run(monkeypatch, answers, "-o", str(file))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "2 kinds of calls of app/Model, 60% of 5 recorded calls of 2 replicas",
        "left out: 2 calls: cache",
    ]
    assert [each.calls for each in read_plan(str(file)).calls] == [1, 2]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_plan_goes_to_stdout_and_can_be_read_again(monkeypatch, words):
    done = run(monkeypatch, [answer("Model", 3)], *words)
    assert len(read_plan(done.stdout).calls) == 1


def test_many_sizes_get_a_suggestion(monkeypatch):
    done = run(monkeypatch, [answer("Model", *range(1, 11))], "--buckets", "2", "--most", "3")
    assert "axis 0 of tensor 0 has 10 sizes from 1 to 10; padded to 5, 10" in done.stderr
    assert len(read_plan(done.stdout).calls) == 3


@pytest.mark.parametrize(
    ("answers", "names", "error", "message"),
    [
        ([], {}, StoreError, "no replica of this cluster uses serve_warm"),
        ([answer("A", 3), answer("B", 3)], {}, ConfigError, "calls: app/A, app/B"),
        (
            [answer("A", 3)],
            {"deployment": "B"},
            ConfigError,
            "of any application/B answers",
        ),
        (
            [answer("A", 3)],
            {"application": "x"},
            ConfigError,
            "of x/any deployment answers",
        ),
        (
            [answer("A", 3), {**answer("A", 3), "application": "other"}],
            *({"deployment": "A"}, ConfigError, "calls: app/A, other/A"),
        ),
    ],
)
def test_a_deployment_that_cannot_be_chosen_is_an_error(answers, names, error, message):
    with pytest.raises(error, match=message):
        choose(answers, **names)


def test_only_one_deployment_with_calls_needs_no_name():
    name, chosen = choose([answer("A"), answer("B", 3), answer("B", 4)])
    assert (name, len(chosen)) == ("app/B", 2)


def test_equal_names_of_two_applications_are_told_apart():
    """Their calls must not be merged."""
    other = {**answer("A", 5), "application": "other"}
    name, chosen = choose([answer("A", 3), other], application="other")
    assert (name, chosen) == ("other/A", [other])


def test_a_plan_of_nothing_names_the_reasons(monkeypatch):
    done = run(monkeypatch, [answer("A", cache=3)])
    assert isinstance(done.exception, StoreError)
    assert done.exception.hint == "cache"
