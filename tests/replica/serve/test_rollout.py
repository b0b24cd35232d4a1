# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a replica without an artifact may run eagerly, by what Serve and other replicas answer.

`tests/integration/test_rollout.py` asks a real Serve.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve_warm.replica.serve import rollout
from serve_warm.replica.serve.rollout import KUBERAY, why_not_eager


def report(verdict: str = "full_hit", **other: Any) -> dict[str, Any]:
    known = {"stage": "READY", "uncompiled": False, "nothing_compiles": False}
    return {**known, "verdict": verdict, **other}


EAGER = report("late", uncompiled=True)
COMPILED = report()
UPDATING = report(stage="REPLAYING")
NO_TRAFFIC_YET = report("eager")
"""An eager replica that knows no inputs, and has had no call."""
COMPILES_NOTHING = report("off", nothing_compiles=True)
NOT_WARMED_UP = report(None, stage="PENDING")  # type: ignore[arg-type]


def asked(monkeypatch: pytest.MonkeyPatch, answer: Any, **options: Any) -> str:
    async def ask(application: str, deployment: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(rollout, "_ask", ask)
    options = {"first_install": False, "environ": {}, **options}
    return asyncio.run(why_not_eager("app", "Scorer", **options))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, ""),
        ([EAGER, EAGER], ""),
        ([NO_TRAFFIC_YET], ""),
        ([COMPILES_NOTHING, COMPILES_NOTHING], ""),
        ([NOT_WARMED_UP], "another replica of Scorer runs compiled code, or may"),
        ([EAGER, UPDATING], "1 of 2 other replicas of Scorer run compiled code"),
        ([COMPILED], "another replica of Scorer runs compiled code"),
        ([EAGER, COMPILED, COMPILED], "2 of 3 other replicas of Scorer run compiled code"),
        (AttributeError("no broadcast"), "it is not known whether"),
        ([None], "it is not known whether"),
        ([{}], "it is not known whether"),
    ],
)
def test_what_is_not_known_is_compiled(monkeypatch, answer: Any, why: str):
    found = asked(monkeypatch, answer)
    assert why in found
    assert bool(found) == bool(why)


def test_a_new_cluster_of_kuberay_does_not_know_the_old_one(monkeypatch):
    """An upgrade of a RayService starts a second cluster beside the first."""
    of_kuberay = {KUBERAY: "1"}
    assert "first_install: true" in asked(monkeypatch, None, environ=of_kuberay)
    assert asked(monkeypatch, None, environ=of_kuberay, first_install=True) == ""
    assert asked(monkeypatch, [EAGER], environ=of_kuberay) == ""


def test_replicas_that_do_not_answer_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(rollout, "ANSWER_LIMIT_S", 0.05)

    async def never(application: str, deployment: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rollout, "_ask", never)
    found = asyncio.run(why_not_eager("app", "Scorer", first_install=True, environ={}))
    assert "it is not known whether" in found
