# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that compute together start together: on real process groups (gloo), a process a rank.

What they compile has a collective in it, so that a rank which makes a call more or less than the
others would hang, and the test with it.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from rank_groups import HANG_S, Group, compiled_anything, reports
from serve_warm.errors import RankFailed, WarmupFailed
from serve_warm.fingerprint import Fingerprint
from serve_warm.replica.replay.ranks import Ranks, join

TOLERANCE = 1e-5


# --- what they say to one another ----------------------------------------------------------
def group(size: int) -> list[Ranks]:
    store = HashStore()
    return [Ranks(rank, size, store) for rank in range(size)]


def together(*sayings: Coroutine[Any, Any, Any]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*sayings, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_all_ranks_know_what_each_of_them_says():
    """Answers come in the order of the ranks, turn by turn."""
    first, second, third = group(3)

    async def say(one: Ranks, *words: Any) -> list[Any]:
        return [await one.agree("a word", word, timeout_s=60) for word in words]

    answers = together(say(first, 1, "a"), say(second, 2, None), say(third, 3, {"c": 1}))
    assert answers == [[[1, 2, 3], ["a", None, {"c": 1}]]] * 3


def test_a_process_by_itself_agrees_with_itself():
    """Without a process group, no other process is asked."""
    with join() as alone:
        [answer] = together(alone.agree("a word", 1, timeout_s=0))
    assert (alone.size, answer) == (1, [1])


def test_ranks_that_are_out_of_step_fail():
    first, second = group(2)
    proof = second.agree("the proof", {}, timeout_s=60)
    errors = together(first.agree("pass 2", True, timeout_s=60), proof)
    assert all(isinstance(error, RankFailed) for error in errors)
    said = "rank 0 of 2 is at step 'pass 2', but rank 1 is at step 'the proof'"
    assert errors[0].message == said


def test_a_failure_is_told_with_the_rank_where_it_began():
    """A rank that fails because another rank failed repeats the first error."""
    first, second, third = group(3)
    second.say_failed(WarmupFailed("the store is empty"))
    [error] = together(first.agree("a word", 1, timeout_s=60))
    third_answer = third.agree("a word", 1, timeout_s=60)
    first.say_failed(error)
    [repeated] = together(third_answer)
    assert isinstance(error, RankFailed)
    assert error.message == repeated.message == "rank 1 of 3 has failed: the store is empty"


def test_a_rank_that_says_nothing_is_named():
    first, _ = group(2)
    [error] = together(first.agree("its artifact", 1, timeout_s=0.05))
    assert isinstance(error, RankFailed)
    assert "rank 1 of 2 did not answer at step 'its artifact'" in error.message


def test_a_rank_without_a_pulse_is_gone(monkeypatch: pytest.MonkeyPatch):
    """The other ranks do not wait until the deadline for a rank that stopped after a pulse."""
    monkeypatch.setattr("serve_warm.replica.replay.ranks.SILENT_S", 0.2)
    first, second = group(2)
    ended = threading.Event()
    ended.set()
    second.give_pulse(ended)
    [error] = together(first.agree("its artifact", 1, timeout_s=HANG_S))
    assert isinstance(error, RankFailed)
    assert "rank 1 of 2 has sent no pulse" in error.message


# --- starts of real process groups ---------------------------------------------------------
@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Starts of one pair of processes, one after the other."""
    plans = {
        "even": {},
        "uneven": {"steps": 8, "stepping": 1},
        "never quiet": {"do": "compile", "doing": 1, "max_passes": 3},
        "other inputs": {"declare": {"1": [6]}},
        "forbidding": {"config": {"after_ready": "forbid"}},
        "alone": {"model": "whole", "declare": {"1": [6]}, "config": {"ranks": "alone"}},
        "raising": {"do": "raise", "doing": 1, "declare": {"0": [], "1": []}},
    }
    folder = tmp_path_factory.mktemp("group")
    return dict(zip(plans, Group(folder=folder).run(*plans.values()), strict=True))


@pytest.mark.long
@pytest.mark.slow
def test_ranks_replay_and_prove_together(starts: dict[str, list[dict[str, Any]]]):
    """Equally warm ones need what one process needs: a compiling pass, a quiet one, the proof."""
    for said in starts["even"]:
        assert said["report"]["stage"] == "READY"
        assert said["report"]["passes"] == 3
        assert said["report"]["covered"] == {"expected": 2, "proven": 2}
        assert said["error"] == 0.0


@pytest.mark.slow
def test_all_go_on_until_all_are_quiet(starts: dict[str, list[dict[str, Any]]]):
    """If one rank needs five passes and another two, both make five."""
    first, second = starts["uneven"]
    assert [first["report"]["passes"], second["report"]["passes"]] == [6, 6]
    assert first["calls"] == second["calls"]
    assert first["report"]["warmup"]["compiles"] == 2
    assert second["report"]["warmup"]["compiles"] == 2 + 8
    assert all(said["report"]["covered"]["proven"] == 2 for said in starts["uneven"])


@pytest.mark.slow
def test_an_input_is_proven_on_all_ranks_or_on_none(starts: dict[str, list[dict[str, Any]]]):
    """If one rank compiles in each pass, no input is proven, and the others name this rank."""
    first, second = reports(starts["never quiet"])
    assert (first["passes"], second["passes"]) == (4, 4)
    assert first["covered"] == second["covered"] == {"expected": 2, "proven": 0}
    why = second["inputs"][0]["note"]
    assert why.startswith("still needed compile work: 1 compiles; double (compiled.py:")
    assert first["inputs"][0]["note"] == f"rank 1: {why}"
    assert first["degraded"]
    assert second["degraded"]


@pytest.mark.slow
def test_ranks_with_other_inputs_do_not_begin(starts: dict[str, list[dict[str, Any]]]):
    """Both ranks report the differing inputs before any call, instead of a wait in a collective."""
    first, second = starts["other inputs"]
    assert first["raised"] == second["raised"] == "ConfigError"
    assert "rank 1 has ['batch 6', 'batch 4', 'batch 2']" in first["report"]["error"]
    assert "rank 0 has ['batch 4', 'batch 2']" in second["report"]["error"]
    assert first["report"]["passes"] == 0


@pytest.mark.slow
def test_no_rank_refuses_requests_alone(starts: dict[str, list[dict[str, Any]]]):
    for said in starts["forbidding"]:
        assert said["raised"] == "ConfigError"
        assert "the other ranks wait for that rank" in said["report"]["error"]


@pytest.mark.slow
def test_ranks_may_start_alone(starts: dict[str, list[dict[str, Any]]]):
    """If the other ranks do not warm up, no rank is asked or waited for."""
    first, second = reports(starts["alone"])
    assert (first["covered"]["proven"], second["covered"]["proven"]) == (2, 3)
    assert first["fingerprint"]["app"]["rank"] == "0 of 2"


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(starts: dict[str, list[dict[str, Any]]]):
    """The failed rank names its input. The other rank ends at its message or its silence."""
    first, second = starts["raising"]
    assert second["raised"] == "ReplayFailed"
    assert "KeyError: 'no such weights'" in second["report"]["error"]
    assert first["raised"] == "ReplayFailed"
    assert first["report"]["stage"] == "FAILED"


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_that_dies_in_a_pass_is_not_waited_for(tmp_path: Path):
    """Its peer fails in the collective that it was to call, with the input."""
    [[first, second]] = Group(folder=tmp_path).run({"do": "die", "doing": 1})
    assert second == {}
    assert first["raised"] == "ReplayFailed"
    assert "'batch 2' raised" in first["report"]["error"]


@pytest.mark.stress
@pytest.mark.long
def test_a_rank_that_dies_between_passes_is_missed(tmp_path: Path):
    """Its peer, which waits for its word, ends with a sentence and not with its deadline."""
    [[first, second]] = Group(folder=tmp_path).run({"do": "leave", "doing": 1}, silent_s=2.0)
    assert second == {}
    assert first["raised"] == "RankFailed"
    assert "rank 1 of 2 has sent no pulse for 2 s" in first["report"]["error"]


# --- an artifact for each rank -------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Built:
    """The artifacts that a group compiled and published at one level, one for each rank."""

    group: Group
    level: int
    store: Path
    said: list[dict[str, Any]]

    def variant(self, rank: int) -> str:
        return Fingerprint.from_json(self.said[rank]["report"]["fingerprint"]).key

    def without_rank_1(self, folder: Path) -> Path:
        """Return a copy of the store, in which rank 1 has no artifact."""
        store = shutil.copytree(self.store, folder / "store")
        for path in store.rglob(f"*{self.variant(1)}*"):
            path.unlink()
        return store

    def started(self, store: Path, **options: Any) -> list[dict[str, Any]]:
        start = {"level": self.level, "store": str(store), "load": True, **options}
        [said] = self.group.run(start)
        return said


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.stress), 2])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    group, store = Group(folder=folder), folder / "store"
    [said] = group.run({"level": request.param, "store": str(store), "publish": True})
    return Built(group=group, level=request.param, store=store, said=said)


@pytest.mark.long
def test_each_rank_starts_from_its_own_artifact(built: Built):
    """All ranks are full hits, nothing compiles, and the common result is right."""
    warm = built.started(built.store)
    assert len({built.variant(0), built.variant(1)}) == 2
    for rank, said in enumerate(warm):
        report = said["report"]
        assert report["fingerprint"]["app"]["rank"] == f"{rank} of 2"
        assert built.variant(rank) in report["artifact"]["statement"]
        assert report["verdict"] == "full_hit"
        assert not compiled_anything(report)
        assert report["covered"] == {"expected": 2, "proven": 2}
        assert said["error"] < TOLERANCE
    assert len({said["calls"] for said in warm}) == 1
    if built.level == 2:
        assert [said["report"]["warmup"]["compiles"] for said in warm] == [0, 0]


@pytest.mark.long
def test_all_ranks_load_or_none_does(built: Built, tmp_path: Path):
    """If one rank has no artifact, all compile equally often, and name this rank."""
    first, second = built.started(built.without_rank_1(tmp_path))
    assert [said["report"]["verdict"] for said in (first, second)] == ["miss", "miss"]
    assert "because rank 1 of 2 has no artifact: " in first["report"]["artifact"]["reason"]
    assert "rank: artifact 0 of 2, here 1 of 2" in second["report"]["artifact"]["reason"]
    for said in (first, second):
        assert said["report"]["stage"] == "READY"
        assert compiled_anything(said["report"])
        assert said["report"]["covered"] == {"expected": 2, "proven": 2}
        assert said["error"] < TOLERANCE
    assert first["report"]["passes"] == second["report"]["passes"]


@pytest.mark.long
def test_a_policy_that_fails_fails_all_ranks(built: Built, tmp_path: Path):
    """With `on_missing: fail`, a rank with an artifact does not wait for a rank without one."""
    store = built.without_rank_1(tmp_path)
    first, second = built.started(store, config={"on_missing": "fail"})
    assert (first["raised"], second["raised"]) == ("RankFailed", "WarmupFailed")
    assert "rank 1 of 2 has failed: verdict miss" in first["report"]["error"]
