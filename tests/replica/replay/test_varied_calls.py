# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls with other values that hang, or that change the application: the proof comes after them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from compiled import compiled, double
from serve_warm import Input, WarmupConfig, WarmupMixin
from starts import process  # noqa: F401 - a fixture


class Batches(WarmupMixin):
    """Takes one row or four."""

    def __init__(self) -> None:
        self.model = self.fast = compiled(double, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="score", args=(torch.ones(n, 2),), name=str(n)) for n in (1, 4)]

    async def score(self, x: torch.Tensor) -> Any:
        if len(x) not in (1, 4):
            raise ValueError("pad to 1 or 4 rows")
        return self.fast(x)


class FallingBack(Batches):
    """Stays eager after an error of compiled code."""

    async def score(self, x: torch.Tensor) -> Any:
        try:
            return await super().score(x)
        except RuntimeError:
            self.fast = double
            return self.fast(x)


class Breaking(Batches):
    """Refuses all calls after an error."""

    errors = 0

    async def score(self, x: torch.Tensor) -> Any:
        if self.errors:
            raise RuntimeError("the circuit is open")
        try:
            return await super().score(x)
        except RuntimeError:
            self.errors += 1
            raise


class Growing(WarmupMixin):
    """Has a table that another text replaces, as rotary embeddings do with a longer one."""

    warmup_config = WarmupConfig(after_ready="forbid")

    def __init__(self) -> None:
        self.table = torch.ones(16)
        self.model = compiled(lambda table, x: table[: len(x)] + x, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="score", args=("a" * n,), name=str(n)) for n in (8, 16)]

    async def score(self, text: str) -> Any:
        if len(text) not in (8, 16):
            self.table = torch.ones(16 + len(text))
        return self.model(self.table, torch.ones(len(text)))


@pytest.mark.parametrize(
    ("kind", "why"), [(FallingBack, "not in the proof"), (Breaking, "the circuit is open")]
)
def test_inputs_that_varied_calls_broke_are_not_proven(kind: type[Batches], why: str):
    """They were proven before these calls."""
    report = asyncio.run(kind().warm_up())

    assert report["covered"]["proven"] < 2
    assert why in report["degraded"][0]
    assert "with other values" in report["warnings"][0]


def test_what_varied_calls_have_changed_is_warmed_up_again():
    app = Growing()
    report = asyncio.run(app.warm_up())

    asyncio.run(app.score("a" * 8))  # would raise CompileForbidden

    assert report["covered"] == {"expected": 2, "proven": 2}
    assert "calls with other values changed the application" in report["warnings"][0]
    assert app.warmup_report()["after_ready"]["compiles"] == 0


def test_varied_calls_that_change_nothing_leave_no_trace():
    report = asyncio.run(Batches().warm_up())

    assert report["warnings"] == []
    assert (report["passes"], report["covered"]["proven"]) == (3, 2)


class Cutting(WarmupMixin):
    """Cuts texts into pieces, and never ends if the pieces overlap as much as they are long."""

    def __init__(self) -> None:
        self.model = compiled(double, dynamic=True)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="cut", args=("a long text",), kwargs={"size": 8, "overlap": 7})]

    async def cut(self, text: str, size: int = 8, overlap: int = 4) -> Any:
        start = 0
        while start < len(text):
            start += size - overlap
        with torch.no_grad():
            return self.model(torch.ones(1, 8))


def test_a_varied_call_that_blocks_the_event_loop_is_the_last_one():
    report = asyncio.run(Cutting().warm_up())

    assert report["covered"] == {"expected": 1, "proven": 1}
    [line] = [line for line in report["unvaried"] if "did not end" in line]
    assert "variations, because the call with another value (size, always 8)" in line


class Serving(WarmupMixin):
    """Takes whatever it gets."""

    def __init__(self) -> None:
        self.model = compiled(double, dynamic=True)

    def warmup_inputs(self) -> list[Input]:
        mask = torch.tensor([[1.0, 1.0, 0.0]])
        return [Input(target="draw", kwargs={"mask": mask, "size": "small"}, fixed=("mask",))]

    async def draw(self, mask: torch.Tensor, size: str) -> Any:
        return self.model(mask if size == "small" else [mask])


def test_a_text_that_seems_to_choose_is_named():
    assert "size of 'draw', always small" in asyncio.run(Serving().warm_up())["unvaried"]


class Masking(WarmupMixin):
    """Passes no mask to the model if the mask hides nothing, as `transformers` does."""

    def __init__(self) -> None:
        self.model = compiled(lambda x, mask: x * 2 if mask is None else x * mask, dynamic=True)

    async def embed(self, mask: torch.Tensor) -> Any:
        return self.model(torch.ones(mask.shape), None if mask.all() else mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(("last", "line"), [(1, "always a mask of"), (0, "never a mask of")])
def test_a_mask_that_never_hides_or_always_does_is_narrow(
    dtype: torch.dtype, last: int, line: str, monkeypatch: pytest.MonkeyPatch
):
    rows = [[1] * length + [last] for length in (1, 3, 5)]
    masks = [torch.tensor([row] * n).to(dtype) for row in rows for n in (2, 3)]
    declared = [Input(target="embed", kwargs={"mask": mask}) for mask in masks]
    monkeypatch.setattr(Masking, "warmup_inputs", lambda _: declared)

    assert f"mask, {line} ones" in asyncio.run(Masking().warm_up())["narrow"]
