# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications whose artifacts two releases exchange, with one application for each level.

The applications use only the public API, so that every release can run them. `layout_app:level1`
compiles its models with torch, `layout_app:level2` and `layout_app:level3` with `serve_warm`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ray import serve
from torch import nn

import serve_warm

PUBLIC_KEY = os.environ.get("LAYOUT_PUBLIC_KEY", "")
"""Path of a PEM file. The processes of a cluster inherit the variable."""

ROWS = 4
WAYS = ("regions", "method", "nested")


class Block(nn.Module):
    """A block that the model repeats, so that `compile_regions` finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + self.down(torch.relu(self.up(given)))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.blocks(given)


class Outer(nn.Module):
    """Calls a callable that was compiled separately."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(8, 8)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(self.inner(given)))


class Served(serve_warm.WarmupMixin):
    """A deployment that runs a model of repeated blocks, a method, and nested callables."""

    if PUBLIC_KEY:
        warmup_trust = serve_warm.signed_by(Path(PUBLIC_KEY).read_text())

    scale = 0.5

    compiled: Callable[[nn.Module], Any]
    """Returns the compiled model. Each level defines this method."""
    scaled: Callable[[torch.Tensor], torch.Tensor]
    """Returns the scaled sigmoid. Each level compiles this method with a decorator."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.deep = self.compiled_deep(Deep().eval())
        self.outer = self.compiled(Outer(self.compiled(Block().eval())).eval())

    def compiled_deep(self, model: nn.Module) -> Any:
        """Return the model of blocks as this level compiles it."""
        return self.compiled(model)

    def warmup_inputs(self) -> list[serve_warm.Input]:
        """Return one input for each way to compile a callable."""
        return [serve_warm.Input(target=self.answer, args=(way,), name=way) for way in WAYS]

    def package(self) -> str:
        """Return the folder of the release that this replica runs."""
        return str(Path(serve_warm.__file__).parent)

    def answer(self, way: str) -> list[float]:
        """Return the result of one of the models."""
        given = torch.linspace(-1, 1, ROWS * 8).reshape(ROWS, 8)
        ways = {"regions": self.deep, "method": self.scaled, "nested": self.outer}
        with torch.inference_mode():
            out: list[float] = ways[way](given).flatten().tolist()
        return out


class Level1(Served):
    def compiled(self, model: nn.Module) -> Any:
        return torch.compile(model, dynamic=False)

    @torch.compile(dynamic=False)
    def scaled(self, given: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(given) * self.scale


class Level2(Served):
    def compiled(self, model: nn.Module) -> Any:
        return serve_warm.compile(model, dynamic=False)

    def compiled_deep(self, model: nn.Module) -> Any:
        return serve_warm.compile_regions(model, dynamic=False)

    @serve_warm.compile(dynamic=False)
    def scaled(self, given: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(given) * self.scale


class Level3(Served):
    """The deployment of level 3, where the whole model, not each block, has a library."""

    def compiled(self, model: nn.Module) -> Any:
        return serve_warm.compile(model, level=3, dynamic=False)

    @serve_warm.compile(level=3, dynamic=False)
    def scaled(self, given: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(given) * self.scale


# Not as a decorator: compiled methods cannot be pickled, so Ray must find the class by its name.
deployment = serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=0)
level1, level2, level3 = (deployment(served).bind() for served in (Level1, Level2, Level3))
