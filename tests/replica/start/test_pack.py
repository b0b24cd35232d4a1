# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Packing a proven replica: the facts, and a second pack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import serve_warm
from compiled import compiled
from levels import forget_callables
from serve_warm.compiler import eager_calls
from serve_warm.compiler.cpu_target import isa_checks
from serve_warm.errors import WarmupFailed
from serve_warm.inputs import Input
from serve_warm.private_apis import inductor
from serve_warm.replica.start.pack import ISA_FACT, build_facts, pack
from starts import StandIn, process, warm_up  # noqa: F401 - fixtures


def test_facts_of_a_build_are_json():
    """The facts are part of a signed statement."""
    start = warm_up(StandIn())
    facts = build_facts(start.report())
    assert json.loads(json.dumps(facts)) == facts
    assert facts["inputs"] == ["size 3", "size 2"]
    assert facts["passes"] == 3


def test_a_pack_waits_for_the_answers_of_a_probe_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without them a start would run a compiler. The probe may go on when all else is made."""
    start, checks = warm_up(StandIn()), isa_checks()
    forget_callables()

    def probe() -> None:
        time.sleep(0.3)
        checks.answers["asked in the background"] = True

    monkeypatch.setattr(checks, "answers", {})
    monkeypatch.setattr(checks, "_ahead", None)
    monkeypatch.setattr(inductor, "isa_picker", lambda: probe)
    checks.probe_ahead()
    packed = asyncio.run(pack(start.report(), tmp_path, cast("Any", None)))
    assert packed.facts[ISA_FACT] == {"asked in the background": True}


ITEM = Input(target="embed", name="mine")


@pytest.mark.slow
def test_a_second_pack_has_the_same_entries(tmp_path: Path):
    """A replica can be packed more than once."""
    start = warm_up(StandIn())
    forget_callables()
    model = serve_warm.compile(torch.nn.Linear(4, 4), dynamic=False)

    class Replay:
        async def once(self, around: Any = None) -> None:
            around = around or (lambda _: contextlib.nullcontext())
            with torch.inference_mode(), around(ITEM):
                model(torch.ones(2, 4))

    new_replay: Any = Replay
    asyncio.run(Replay().once())
    first = asyncio.run(pack(start.report(), tmp_path, new_replay))
    second = asyncio.run(pack(start.report(), tmp_path, new_replay))

    assert [entry["level"] for entry in first.facts["entries"]] == [2]
    assert len(first.answered_by[ITEM.name].entries) == 1
    assert second.facts == first.facts
    assert sorted(second.parts) == sorted(first.parts) == ["cache", "precompiled"]


def test_a_build_compiles_what_after_ready_would_run_eagerly():
    """And afterwards the replica answers requests eagerly again."""
    replica = StandIn()
    start = warm_up(replica, after_ready="eager")
    policies = [eager_calls.answers]

    async def call(item: Input) -> None:
        policies.append(eager_calls.answers)
        replica.owner.model(*item.args)

    replica.call = call  # type: ignore[method-assign]
    asyncio.run(start.pack())
    policies.append(eager_calls.answers)
    assert len(policies) > 2
    assert policies[0] is policies[-1] is not None
    assert set(policies[1:-1]) == {None}


def only_compiled(given: torch.Tensor) -> torch.Tensor:
    """Double and add 1, as a custom operator does that has no uncompiled kernel."""
    if not torch.compiler.is_compiling():
        raise NotImplementedError("no kernel for eager")
    return 2 * given + 1


def test_a_build_refuses_after_ready_eager_if_the_model_works_only_compiled():
    """It would otherwise fail in a user's request."""
    replica = StandIn()
    replica.owner.model = compiled(only_compiled)
    start = warm_up(replica, after_ready="eager")
    with pytest.raises(WarmupFailed) as caught:
        asyncio.run(start.pack())
    assert "`after_ready: eager` does not work for this model" in caught.value.message
    assert "input 'size 3' raised NotImplementedError: no kernel for eager" in caught.value.message
    assert caught.value.hint.startswith("use `after_ready: forbid`")


def test_a_build_packs_a_model_that_works_only_compiled():
    """With the other policies, no request runs it uncompiled."""
    replica = StandIn()
    replica.owner.model = compiled(only_compiled)
    parts, _ = asyncio.run(warm_up(replica).pack())
    assert "cache" in parts
