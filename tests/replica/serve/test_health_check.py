# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A health check that runs the model is warmed up too: Serve calls it as soon as READY."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from compiled import compiled, double
from serve_warm import Input, WarmupMixin
from starts import process  # noqa: F401 - a fixture


class Scorer(WarmupMixin):
    def __init__(self) -> None:
        self.model = compiled(double)
        self.checks = 0

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.score, args=(torch.ones(2),))]

    async def score(self, x: torch.Tensor) -> float:
        return float(self.model(x).sum())


class Checked(Scorer):
    async def check_health(self) -> None:
        self.checks += 1
        await self.score(torch.ones(7))


class Plain(Scorer):
    def check_health(self) -> None:
        self.checks += 1


class Broken(Scorer):
    def check_health(self) -> None:
        raise RuntimeError("the disk is full")


def warm(scorer: Scorer) -> Any:
    return asyncio.run(scorer.warm_up())


def test_a_health_check_that_runs_the_model_is_proven():
    scorer = Checked()
    report = warm(scorer)
    asyncio.run(scorer.check_health())
    assert [each["name"] for each in report["inputs"]] == ["score", "check_health"]
    assert report["covered"] == {"expected": 2, "proven": 2}
    assert scorer.warmup_report()["after_ready"]["compiles"] == 0


@pytest.mark.parametrize("kind", [Plain, Broken, Scorer])
def test_other_health_checks_are_no_inputs(kind: type[Scorer]):
    """They run once, and may fail: Serve decides what to do then."""
    scorer = kind()
    report = warm(scorer)
    assert report["covered"] == {"expected": 1, "proven": 1}
    assert scorer.checks == (kind is Plain)
    assert report["stage"] == "READY"


def test_a_health_check_that_runs_the_model_only_when_idle_costs_nothing():
    """It did so once, at the start. Nobody declared it, and the proof says nothing about it."""

    class Idle(Scorer):
        async def check_health(self) -> None:
            self.checks += 1
            if self.checks == 1:
                await self.score(torch.ones(2))

    report = warm(Idle())
    assert (report["degraded"], report["covered"]) == ([], {"expected": 1, "proven": 1})
    assert report["unvaried"] == ["check_health(), which ran compiled code, but not in the proof"]


def test_a_declared_health_check_is_an_input_once():
    class Declared(Checked):
        def warmup_inputs(self) -> list[Input]:
            return [*super().warmup_inputs(), Input(target=self.check_health)]

    assert warm(Declared())["covered"] == {"expected": 2, "proven": 2}
