# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a build prints of the starts that it made: warnings, seconds, why a replica died."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from reports import FULL
from serve_warm import cli
from serve_warm._spans import Span
from serve_warm.builder.build import Built, _require_level, collect_warnings
from serve_warm.builder.cluster import refuse_missing_module
from serve_warm.cli import starts
from serve_warm.errors import BuildFailed, ConfigError
from serve_warm.learn.plan import InputPlan
from serve_warm.replica.serve.deployment import WarmupMixin


def report(*warnings: str, to_proof_s: float, waited_s: float = 0.0) -> dict[str, Any]:
    spans = [Span(name="replaying", began_boot_s=1.0, seconds=waited_s + 0.5)]
    if waited_s:
        spans.append(Span(name="waiting for Backbone", began_boot_s=1.0, seconds=waited_s))
    changed = {"warnings": warnings, "to_proof_s": to_proof_s, "spans": tuple(spans)}
    return dataclasses.replace(FULL, **changed, parity=None).to_json()


def built(cold: dict[str, Any], warm: dict[str, Any]) -> Built:
    statement = "statements/app/Head/147378e2d3f56607.dsse.json"
    what = {"published": "new", "store": "file:///srv/artifacts", "statement": statement}
    size = {"stored_bytes": 1, "raw_bytes": 1, "parts": {}, "portable_libraries": None}
    what |= {"application": "app", "deployment": "Head"}
    rest = {"ranks": (), "variant": "147378e2d3f56607", "trust": "", "seconds": {}}
    warnings = collect_warnings(cold, warm)
    return Built(**what, **size, **rest, warnings=warnings, cold=cold, round_trip=warm)


def shown(capsys: pytest.CaptureFixture[str], *made: Built, is_own: bool = False) -> str:
    for each in made:
        starts._show_built(each, unsigned=False, is_own=is_own)
    return capsys.readouterr().out


def test_a_build_says_what_is_left_to_do(capsys: pytest.CaptureFixture[str]):
    """Nothing, if it has published where the replicas read."""
    made = built(report(to_proof_s=9.0), report(to_proof_s=1.0))
    setting = "use it: user_config: {warmup: {artifact: file:///srv/artifacts}}"
    assert setting in shown(capsys, made)
    own = shown(capsys, made, is_own=True)
    assert "use it" not in own
    assert "replicas read this store, so their next start finds the artifact" in own


@pytest.mark.parametrize(
    ("phases", "seconds", "shorter"),
    [
        (
            {"compile": 20.0, "pack": 2.0, "sign": 0.01, "round trip": 4.0, "round trips": 5.0},
            "deploy 11.0, compile 9.0, pack 2.0, round trips 5.0",
            "keep slow imports and downloads out of",
        ),
        ({"compile": 10.0, "pack": 2.0}, "deploy 1.0, compile 9.0, pack 2.0", "declare fewer"),
        ({"compile": 9.5, "pack": 90.0}, "deploy 0.5, compile 9.0, pack 90.0", "more CPU cores"),
        ({"compile": 9.5, "publish": 60.0}, "deploy 0.5, compile 9.0, publish 60.0", ""),
    ],
)
def test_a_build_says_where_its_time_went(capsys, phases, seconds, shorter):
    """The first phase also deploys the replica, and imports and loads what it needs."""
    made = built(report(to_proof_s=9.0), report(to_proof_s=1.0))
    out = shown(capsys, dataclasses.replace(made, seconds=phases))
    assert f"  seconds     {seconds}\n" in out
    assert ("  shorter     " in out) == bool(shorter)
    assert shorter in out


def test_a_build_prints_each_warning_of_its_replicas_once(capsys: pytest.CaptureFixture[str]):
    """The number of threads in a warning about a sync handler differs from start to start."""
    cold = report("calls from 2 threads", "`cpu: portable` needs AVX2", to_proof_s=9.0)
    warm = report("calls from 3 threads", to_proof_s=1.0)
    made = built(cold, warm)
    told = [line for line in shown(capsys, made).splitlines() if "warning" in line]
    assert told == [
        "  warning     calls from 3 threads",
        "  warning     `cpu: portable` needs AVX2",
    ]
    assert dataclasses.asdict(made)["warnings"] == made.warnings


def test_a_build_says_what_its_inputs_do_not_cover(capsys: pytest.CaptureFixture[str]):
    cold = report(to_proof_s=9.0) | {
        "narrow": ["ids[1], always 16"],
        "unvaried": ["the body of 'POST /'"],
    }
    out = shown(capsys, built(cold, report(to_proof_s=1.0)))
    assert "  narrow      ids[1], always 16: another size compiles. Declare buckets" in out
    assert "  not varied  the body of 'POST /'\n" in out


def test_a_build_tells_its_own_seconds_from_those_of_others(capsys: pytest.CaptureFixture[str]):
    """A start in a composition waits for another deployment, which its own artifact cannot help."""
    cold = report(to_proof_s=12.0, waited_s=4.0)
    warm = report(to_proof_s=10.2, waited_s=9.8)
    out = shown(capsys, built(cold, warm))
    assert "compiled    8.0 s to proof and 4.0 s waiting for Backbone, " in out
    assert "round trip  0.4 s to proof and 9.8 s waiting for Backbone (5% of 8.0 s), " in out


GRAD = "called with grad mode on: use torch.inference_mode()"


def test_a_build_names_the_levels_of_calls_without_any_entry(capsys: pytest.CaptureFixture[str]):
    """The warm replica does not know why, because it has no entries to look at."""
    warm = {**report(to_proof_s=1.0), "entries": []}
    lost = {"callable": "Net", "call": "(t0)", "level": 1, "reason": GRAD}
    made = built(report(to_proof_s=9.0), warm)
    out = shown(capsys, dataclasses.replace(made, entries=(lost,)), made)
    assert f"level 1     Net(t0): {GRAD}" in out
    assert "level 1     all calls: the app compiles with torch.compile" in out


@pytest.mark.parametrize(
    ("level", "levels", "said"),
    [
        (1, [], ""),
        (2, [2, 3], ""),
        (2, [], "no call goes through serve_warm.compile"),
        (2, [2, 1], rf"1 of 2 kinds of calls are lower:\n  Net\(t0\) has level 1: {GRAD}"),
        (3, [2, 2], "2 of 2 kinds of calls are lower"),
    ],
)
def test_a_required_level_holds_for_all_calls(level: int, levels: list[int], said: str):
    app: Any = SimpleNamespace(deployment="Head")
    entries = [
        {"callable": "Net", "call": f"(t{number})", "level": each, "reason": GRAD}
        for number, each in enumerate(reversed(levels))
    ]
    with pytest.raises(BuildFailed, match=said) if said else contextlib.nullcontext() as caught:
        _require_level(app, level, entries)
    assert not said or "nothing was published" in caught.value.hint


@pytest.mark.parametrize(("given", "level"), [((), 1), (("--require-level", "3"), 3)])
def test_the_command_passes_the_required_level_on(
    given: tuple[str, ...], level: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    passed: list[int] = []

    def build(*_: Any, required_level: int, **__: Any) -> Any:
        passed.append(required_level)
        raise BuildFailed("stop here")

    application = SimpleNamespace(warming={"Head": WarmupMixin}, app=lambda *_, **__: None)
    monkeypatch.setattr(starts, "_import_to_build", lambda _: application)
    monkeypatch.setattr(starts, "_check_first", lambda *_, **__: None)
    monkeypatch.setattr(starts, "_build_each", build)

    CliRunner().invoke(
        cli.serve_warm, ["build", "a:b", "--store", str(tmp_path), "--unsigned", *given]
    )

    assert passed == [level]


DIED = "Traceback ...\nModuleNotFoundError: No module named 'app'\n"


def test_a_replica_without_a_module_names_it():
    """The advice has the command that brings the code to the nodes of a cluster."""
    with pytest.raises(BuildFailed) as caught:
        refuse_missing_module(DIED, "Head")

    assert caught.value.message == (
        "Head did not become ready: its replica cannot import the module 'app'"
    )
    assert caught.value.hint.startswith("install it where the replicas run")
    assert "ray job submit --working-dir . -- serve-warm build" in caught.value.hint


def test_a_replica_that_died_of_something_else_is_not_explained():
    """Serve's own text is all that is known then."""
    refuse_missing_module("Traceback ...\nValueError: no\n", "Head")


@pytest.mark.parametrize("warming", [["Scorer"], ["Scorer", "Ranker"]])
@pytest.mark.parametrize("asked", [None, "Scorer"])
def test_a_build_with_a_plan_is_of_the_deployment_whose_calls_it_has(warming, asked):
    imported: Any = SimpleNamespace(warming=dict.fromkeys(warming))
    mine, older = InputPlan(calls=(), deployment="Scorer"), InputPlan(calls=())
    another = InputPlan(calls=(), deployment="Another")
    found = starts._deployment_of(mine, "plan.yaml", imported, asked, every=False)
    assert (found or warming[0]) == "Scorer"
    assert (found is None) == (asked is None and len(warming) == 1), "no choice is needed"
    assert starts._deployment_of(older, "plan.yaml", imported, asked, every=False) == asked
    with pytest.raises(ConfigError, match="has the calls of Another, and not of Scorer"):
        starts._deployment_of(another, "plan.yaml", imported, "Scorer", every=False)


def test_a_plan_is_not_for_all_deployments():
    imported: Any = SimpleNamespace(warming={"Scorer": None, "Ranker": None})
    mine = InputPlan(calls=(), deployment="Scorer")
    with pytest.raises(ConfigError, match="not of Ranker") as refused:
        starts._deployment_of(mine, "plan.yaml", imported, None, every=True)
    assert "pass --deployment Scorer" in refused.value.hint


def test_a_build_with_a_plan_says_what_a_start_replays(capsys: pytest.CaptureFixture[str]):
    def learned(kinds: int, share: float) -> dict[str, Any]:
        axes = ["axis 0 of tensor 0 of app.Model"] if kinds < 100 else []
        counts = {"kinds": kinds, "proven": kinds, "calls": 5000}
        return {**counts, "share": share, "any_size": axes}

    cold = report(to_proof_s=9.0) | {"learned": learned(120, 1.0)}
    warm = report(to_proof_s=1.0) | {"learned": learned(7, 0.98)}
    text = shown(capsys, built(cold, warm))
    assert (
        "  plan        120 kinds of calls, of which a start replays 7; their code answers 98% of"
        in text
    )
    assert "  any size    axis 0 of tensor 0 of app.Model\n" in text
    longest = dataclasses.replace(built(cold, warm), seconds={"compile": 9.0, "sign": 0.1})
    assert "  shorter     plan fewer kinds of calls: serve-warm plan --most" in shown(
        capsys, longest
    )
    assert "  other       a size of 1, and sizes that this code cannot take, may compile" in text
    assert "  plan " not in shown(capsys, built(report(to_proof_s=9.0), report(to_proof_s=1.0)))
