# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models with entries of level 2, and fixtures with those entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.dispatch.session import SESSION

SCALE = 2.0
"""A global variable whose value is part of a graph."""


@pytest.fixture(autouse=True, scope="module")
def one_watch() -> Iterator[None]:
    watch_process()
    yield
    SESSION.unload()
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def in_inference_mode() -> Iterator[None]:
    """Each test of a module that imports this runs in inference mode, as replicas do."""
    with torch.inference_mode():
        yield


def flat(parts: Any) -> list[Any]:
    if isinstance(parts, torch.Tensor):
        return [parts]
    items = parts.values() if isinstance(parts, dict) else parts or ()
    return [tensor for item in items for tensor in flat(item)]


class Scaled(nn.Module):
    """A linear layer whose scale, from several sources, is a constant in the graph."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.config = SimpleNamespace(scale=scale, sizes=[1, 2])
        self.flag = False

    def forward(self, x: Any, scale: Any = 1.0, *, parts: Any = None, more: Any = None) -> Any:
        total = float(scale) * self.config.scale * SCALE
        if self.flag:
            total = -total
        for part in flat(parts):
            x = x @ part
        return torch.addmm(self.linear.bias, x, self.linear.weight, alpha=total)


def x(*shape: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(*(shape or (3, 4)))


@pytest.fixture(name="scaled", scope="module")
def scaled_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Entries for two calls of `Scaled`."""
    model = serve_warm.compile(Scaled().eval(), dynamic=False)
    folder = tmp_path_factory.mktemp("scaled")
    parts = [torch.eye(4), {"a": torch.eye(4)}]
    library = build(folder, lambda: model(x(), 1.0), lambda: model(x(), parts=parts))
    assert library.refused == {}
    return folder, model


def close(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)


@pytest.fixture(name="fresh")
def fresh_fixture(scaled: tuple[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """The entries of `scaled`, and another model like the one that they were built from."""
    yield scaled[0], serve_warm.compile(Scaled().eval(), dynamic=False)
    SESSION.unload()


class Indexed(nn.Module):
    """A block that knows its index, like the attention of decoders."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.a, self.b, self.index = nn.Linear(4, 4), nn.Linear(4, 4), index

    def forward(self, given: torch.Tensor, caches: Any = None) -> torch.Tensor:
        return torch.addmm(self.b.bias, self.a(given), self.b.weight, alpha=self.index + 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(given))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = layer(given)
        return self.head(given)


class Cache(nn.Module):
    """Adds to a given cache, and counts in a buffer that it replaces."""

    total: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, given: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(given)
        self.total.add_(given)
        self.count = self.count + 1
        return cache * self.total * self.count
