# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Varied calls of a process that uses a GPU, where an index that is out of range is final.

These tests only say that a GPU is in use. tests/gpu/test_variations_on_a_gpu.py has one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from compiled import compiled
from serve_warm import Input, WarmupMixin
from serve_warm.compiler import gpus
from serve_warm.errors import WarmupFailed
from serve_warm.replica.replay import passes as replay
from serve_warm.replica.start import proof
from starts import process  # noqa: F401 - a fixture


class Tokens(WarmupMixin):
    """Takes a list of token ids, of any length."""

    seen: list[int]

    def __init__(self) -> None:
        self.table, self.seen = torch.nn.Embedding(30, 8), []
        self.model = compiled(lambda ids: self.table(ids).sum(), dynamic=True)

    def warmup_inputs(self) -> list[Input]:
        return [Input(target="embed", args=([1] * length,)) for length in (1, 4, 6)]

    async def embed(self, ids: list[int]) -> Any:
        self.seen.append(len(ids))
        with torch.no_grad():
            return self.model(torch.tensor(ids))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Say that a GPU is in use; `error` of the returned dict is what it answers."""
    answers = {"error": ""}
    for module in (proof, replay):
        monkeypatch.setattr(module, "is_gpu_in_use", lambda: True)
    monkeypatch.setattr(replay, "find_gpu_error", lambda: answers["error"])
    return answers


@pytest.fixture
def _is_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "makes_artifact", lambda *_: True)


@pytest.mark.usefixtures("gpu")
def test_a_replica_varies_nothing_on_a_gpu():
    app = Tokens()

    report = asyncio.run(app.warm_up())

    assert {*app.seen} == {1, 4, 6}
    assert report["covered"] == {"expected": 3, "proven": 3}
    assert report["unvaried"] == [proof.NOT_ON_A_GPU]


@pytest.mark.usefixtures("gpu", "_is_build")
def test_a_build_on_a_gpu_tries_no_longer_list():
    app = Tokens()

    report = asyncio.run(app.warm_up())

    assert {*app.seen} - {1, 4, 6}
    assert max(app.seen) == 6
    assert report["unvaried"] == [proof.NOT_LARGER]


@pytest.mark.parametrize(
    ("reserved", "is_cached", "expected"),
    [((0, 0), True, False), ((0, 8), True, True), ((0, 0), False, True)],
)
def test_a_process_with_data_on_a_gpu_uses_it(
    reserved: tuple[int, ...], is_cached: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    """One that has only read the name of a GPU does not."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(reserved))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved[device])
    if not is_cached:
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert gpus.is_gpu_in_use() is expected


def test_without_a_gpu_longer_lists_are_tried(monkeypatch: pytest.MonkeyPatch):
    for module in (proof, replay):  # other tests of a process with a GPU may use it
        monkeypatch.setattr(module, "is_gpu_in_use", lambda: False)
    app = Tokens()

    report = asyncio.run(app.warm_up())

    assert max(app.seen) == 48
    assert report["unvaried"] == []


@pytest.mark.usefixtures("_is_build")
def test_a_varied_call_that_ends_the_gpu_names_itself(gpu: dict[str, str]):
    """Otherwise the build would fail in the next step, which has nothing to do with it."""
    gpu["error"] = "CUDA error: device-side assert triggered"

    with pytest.raises(WarmupFailed) as raised:
        asyncio.run(Tokens().warm_up())

    text = str(raised.value)
    assert "a call with another value (ids[0], only 3 lengths) ended all work" in text
    assert "device-side assert triggered" in text
    assert "let the handler refuse such values" in text


class Ruined(Tokens):
    is_ruined = False

    async def embed(self, ids: list[int]) -> Any:
        self.is_ruined |= len(ids) not in (1, 4, 6)
        if self.is_ruined:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return await super().embed(ids)


@pytest.mark.usefixtures("_is_build")
def test_a_ruined_gpu_is_no_refused_input(gpu: dict[str, str]):
    """The declared inputs fail too, but the varied call is what to name."""
    gpu["error"] = "CUDA error: device-side assert triggered"
    with pytest.raises(WarmupFailed, match="ended all work of this process on the GPU"):
        asyncio.run(Ruined().warm_up())
