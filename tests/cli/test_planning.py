# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm plan`, asked of replicas that answer at once."""

from __future__ import annotations

import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from serve_warm.builder import cluster
from serve_warm.cli.planning import choose, plan
from serve_warm.errors import ConfigError, StoreError
from serve_warm.learn.plan import read_plan
from serve_warm.learn.recorded_requests import OF_REQUESTS


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
        "replica": f"r{next(NUMBERS)}",
        "calls": calls,
        "requests": [],
        "not_recorded": not_recorded,
        "ended": [],
    }


NUMBERS = itertools.count()

OF_CLUSTER = "of the cluster at 10.0.0.1:6379"


def run(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[dict[str, Any]],
    *words: str,
    forgetful: list[dict[str, Any]] | None = None,
) -> Any:
    def ask(_address: str, method: str, **given: str) -> cluster.Answers:
        asked.append((method, given))
        found = answers if forgetful is None or not given else forgetful
        return cluster.Answers(cluster="10.0.0.1:6379", of_replicas=found)

    asked: list[Any] = []
    monkeypatch.setattr(cluster, "ask_replicas", ask)
    done = CliRunner().invoke(plan, list(words))
    done.asked = asked
    return done


def test_replicas_are_merged_and_written_to_a_file(monkeypatch, tmp_path: Path):
    file = tmp_path / "plan.yaml"
    answers = [answer("Model", 3, 5), answer("Model", 3, cache=2)]
    done = run(monkeypatch, answers, "-o", str(file))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"2 kinds of calls, 60% of 5 recorded calls: 2 replicas of app/Model, {OF_CLUSTER}",
        "left out: 2 calls: cache",
        f"next: serve-warm build APP --plan {file}",
    ]
    written = read_plan(str(file))
    assert ([each.calls for each in written.calls], written.deployment) == ([1, 2], "Model")


def test_requests_that_were_not_recorded_are_no_calls(monkeypatch):
    """Their calls are in the plan. A person who wants values reads why they are missing."""
    why = f"{OF_REQUESTS}a number is not finite"
    done = run(monkeypatch, [answer("Model", 3, **{why: 2}), answer("Model", 5, **{why: 1})])
    assert done.stderr.splitlines() == [
        f"2 kinds of calls, 100% of 2 recorded calls: 2 replicas of app/Model, {OF_CLUSTER}",
        "left out: 3 requests with their values: a number is not finite",
    ]


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
        ([], {}, StoreError, "no replica of the cluster at here uses serve_warm"),
        (
            [answer("A", 3), answer("B", 3)],
            {},
            ConfigError,
            "at here: app/A, app/B",
        ),
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
            *({"deployment": "A"}, ConfigError, "at here: app/A, other/A"),
        ),
    ],
)
def test_a_deployment_that_cannot_be_chosen_is_an_error(answers, names, error, message):
    with pytest.raises(error, match=message):
        choose(answers, cluster="here", **names)


def test_only_one_deployment_with_calls_needs_no_name():
    name, chosen = choose([answer("A"), answer("B", 3), answer("B", 4)], cluster="here")
    assert (name, len(chosen)) == ("app/B", 2)


def test_a_deployment_with_requests_alone_needs_no_name():
    recorded = answer("B", cache=3)
    assert choose([answer("A"), recorded], cluster="here")[0] == "app/B"
    recorded["requests"] = [REQUEST]
    assert choose([answer("A", other=1), recorded], cluster="here")[0] == "app/B"


def test_equal_names_of_two_applications_are_told_apart():
    """Their calls must not be merged."""
    other = {**answer("A", 5), "application": "other"}
    name, chosen = choose([answer("A", 3), other], cluster="here", application="other")
    assert (name, chosen) == ("other/A", [other])


def test_a_plan_of_nothing_names_the_reasons(monkeypatch):
    done = run(monkeypatch, [answer("A", cache=3)])
    assert isinstance(done.exception, StoreError)
    assert done.exception.hint == "cache"


def test_what_ended_replicas_recorded_counts_once(monkeypatch):
    """All replicas of a node know of them, and a living one is asked itself."""
    ended = {key: answer("Model", 7)[key] for key in ("calls", "requests", "not_recorded")}
    gone = {"replica": "gone", "models": [], **ended}
    one, other = (answer("Model", 3), answer("Model", 3))
    one["ended"] = [gone, {**gone, "replica": other["replica"]}]
    other["ended"] = [gone]
    done = run(monkeypatch, [one, other])
    assert [each.calls for each in read_plan(done.stdout).calls] == [1, 2]
    assert "2 replicas of app/Model and 1 that have ended" in done.stderr


def test_only_the_chosen_deployment_forgets_and_only_after_the_plan_is_written(
    monkeypatch, tmp_path: Path
):
    file = tmp_path / "plan.yaml"
    done = run(monkeypatch, [answer("A", 3)], "--forget", "-o", str(file))
    look = ("warmup_recorded", {})
    assert done.asked == [look, ("warmup_recorded", {"forget": "app/A"}), look]
    assert "the replicas of app/A have forgotten these calls" in done.stderr
    assert len(read_plan(str(file)).calls) == 1
    for words in ([], ["-o", str(tmp_path / "nowhere" / "plan.yaml")]):
        done = run(monkeypatch, [answer("A", 3)], "--forget", *words)
        assert done.exit_code != 0
        assert ("warmup_recorded", {"forget": "app/A"}) not in done.asked


def test_a_replica_that_does_not_answer_may_remember(monkeypatch, tmp_path: Path):
    one, other = answer("A", 3), answer("A", 3)
    words = ("--forget", "-o", str(tmp_path / "plan.yaml"))
    done = run(monkeypatch, [one, other], *words, forgetful=[one])
    assert isinstance(done.exception, StoreError)
    assert f"{other['replica']} of app/A has not answered" in str(done.exception)
    assert "forgotten" not in done.stderr
    done = run(monkeypatch, [one], *words, forgetful=[])
    assert f"{one['replica']} of app/A has not answered" in str(done.exception)


REQUEST = {"target": "GET /ask?text=hello", "arguments": {}, "calls": 2}


def test_requests_can_be_planned_and_forgotten_without_a_call(monkeypatch, tmp_path: Path):
    """Those are kept for calls that cannot be made again from their shapes."""
    file = tmp_path / "plan.yaml"
    only = answer("A", cache=3)
    only["requests"] = [REQUEST]
    done = run(monkeypatch, [only], "--values", "-o", str(file))
    assert [each.to_json() for each in read_plan(str(file)).requests] == [REQUEST]
    assert done.exit_code == 0
    done = run(monkeypatch, [only], "--forget", "-o", str(tmp_path / "none.yaml"))
    assert ("warmup_recorded", {"forget": "app/A"}) in done.asked
    assert "forgotten these calls, and 1 requests that are in no plan" in done.stderr


def test_only_this_user_can_read_a_plan_with_values(monkeypatch, tmp_path: Path):
    file = tmp_path / "plan.yaml"
    file.write_text("an older one, which all may read")
    given = answer("A", 3)
    given["requests"] = [REQUEST]
    run(monkeypatch, [given], "--values", "-o", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["plan.yaml"]
    assert len(read_plan(str(file)).requests) == 1


def test_only_this_user_can_read_json_with_values(monkeypatch, tmp_path: Path):
    file = tmp_path / "made" / "plan.json"
    given = answer("A", 3)
    given["requests"] = [REQUEST]
    done = run(monkeypatch, [given], "--values", "--json", str(file))
    assert done.exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_plan(str(file)).requests) == 1


@pytest.mark.parametrize("words", [("-o", "link.yaml"), ("--json", "link.json")])
def test_a_link_to_a_plan_stays_a_link(monkeypatch, tmp_path: Path, words):
    option, name = words
    link = tmp_path / name
    link.symlink_to("real")
    given = answer("A", 3)
    given["requests"] = [REQUEST]
    for more in ([], ["--values"]):
        run(monkeypatch, [given], *more, option, str(link))
        assert link.is_symlink()
        assert len(read_plan(str(tmp_path / "real")).requests) == len(more)
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o600


def test_a_plan_with_values_goes_to_a_pipe(monkeypatch):
    given = answer("A", 3)
    given["requests"] = [REQUEST]
    reads, writes = os.pipe()
    run(monkeypatch, [given], "--values", "-o", f"/dev/fd/{writes}")
    os.close(writes)
    with os.fdopen(reads) as pipe:
        assert len(read_plan(pipe.read()).requests) == 1


def test_nothing_of_a_plan_moves_the_cursor(monkeypatch, tmp_path: Path):
    """A plan may come from somebody else."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    made = {key: answer("A", *range(1, 7))[key] for key in ("calls",)}
    for each in made["calls"]:
        each["callable"] = "\x1b[2Jx\nerror: y"
    new.write_text(json.dumps({"format": 1, **made, "left_out": {"\x1b]0;x\x07why\nerror: y": 3}}))
    old.write_text('{"format": 1, "calls": []}')
    done = run(monkeypatch, [], str(new), "--diff", str(old))
    for text in (done.stdout, done.stderr):
        assert all(line.isprintable() for line in text.splitlines())
        assert not any(line.startswith("error") for line in text.splitlines())
    assert "why" in done.stderr
    assert "has 6 sizes" in done.stderr


def test_a_plan_that_no_build_could_read_is_not_written(monkeypatch, tmp_path: Path):
    file = tmp_path / "plan.yaml"
    large = answer("A", *range(1, 1001))
    for each in large["calls"]:
        each["tensors"] = [*each["tensors"], *["Tensor int64[1, 1] strides [1, 1] on cpu"] * 99]
    done = run(monkeypatch, [large], "-o", str(file))
    assert isinstance(done.exception, ConfigError)
    assert "at most 4 MiB can be read" in str(done.exception)
    assert "--most 500" in done.exception.hint
    assert not file.exists()


@pytest.fixture
def two_plans(monkeypatch, tmp_path: Path) -> list[str]:
    files = []
    for number, sizes in enumerate([(3, 5), (3, 9)]):
        files.append(str(tmp_path / f"{number}.yaml"))
        run(monkeypatch, [answer("Model", *sizes)], "-o", files[-1])
    return files


def test_plans_of_two_clusters_are_merged_without_asking(monkeypatch, two_plans):
    done = run(monkeypatch, [], *two_plans)
    assert not done.asked
    assert [each.calls for each in read_plan(done.stdout).calls] == [1, 1, 2]


def test_a_person_sees_how_a_plan_differs(monkeypatch, two_plans):
    old, new = two_plans
    done = run(monkeypatch, [], new, "--diff", old)
    assert done.stdout.splitlines() == [
        "- app.Model(t0) with Tensor int64[5]: was 50.0% of the calls",
        "+ app.Model(t0) with Tensor int64[9]: 50.0% of the calls",
    ]


def test_a_call_that_became_less_frequent_is_told(monkeypatch, two_plans, tmp_path: Path):
    merged = str(tmp_path / "merged.yaml")
    run(monkeypatch, [], *two_plans, "-o", merged)
    done = run(monkeypatch, [], *two_plans, merged, "--diff", two_plans[0])
    assert done.stdout.splitlines() == [
        "~ app.Model(t0) with Tensor int64[5]: 50.0% -> 25.0% of the calls",
        "+ app.Model(t0) with Tensor int64[9]: 25.0% of the calls",
    ]


def test_seconds_are_kept_for_the_build(monkeypatch, two_plans):
    done = run(monkeypatch, [], two_plans[0], "--seconds", "2.5")
    assert read_plan(done.stdout).within_s == 2.5


def test_plans_forget_nothing(monkeypatch, two_plans):
    done = run(monkeypatch, [], two_plans[0], "--forget")
    assert isinstance(done.exception, ConfigError)


def test_values_are_in_a_plan_only_if_asked_for(monkeypatch):
    request = {"target": "GET /ask?text=hello", "arguments": {}, "calls": 2}
    one, other = answer("Model", 3), answer("Model", 3)
    one["requests"] = other["requests"] = [request]
    assert not read_plan(run(monkeypatch, [one, other]).stdout).requests
    done = run(monkeypatch, [one, other], "--values")
    assert "with the values of 1 recorded requests" in done.stderr
    assert [each.to_json() for each in read_plan(done.stdout).requests] == [{**request, "calls": 4}]


def test_a_plan_has_room_for_some_requests(monkeypatch):
    """The most frequent ones: an artifact's statement contains them."""
    full = answer("Model", 3)
    full["requests"] = [
        {"target": "POST /", "arguments": {"json": f"{number}{'x' * 60_000}"}, "calls": number}
        for number in range(10)
    ]
    kept = read_plan(run(monkeypatch, [full], "--values").stdout).requests
    assert [each.calls for each in kept] == [9, 8, 7, 6]
