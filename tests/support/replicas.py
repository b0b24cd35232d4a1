# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica without Serve for starts with entries, and artifacts signed for that replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import serve_warm
from artifacts import build, new_key, trusting
from outside_serve import OutsideServe
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.push import push
from serve_warm.compiler.compiled_objects import compile_arguments
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import environment
from serve_warm.fingerprint import Fingerprint, read_app, read_machine
from serve_warm.inputs import Input
from serve_warm.stores.local import LocalStore
from serve_warm.trust.policy import Trust

KEY = new_key()


class StandIn(OutsideServe):
    """A stand-in for a deployment whose inputs are tensors for methods of `owner`."""

    deployment, replica = "Embedder", "Embedder#1"

    def __init__(self, owner: SimpleNamespace, inputs: Sequence[Input]) -> None:
        self.unwatched_compiles_before = unwatched_compiles()
        self.owner = owner
        self.declared = list(inputs)
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {}

    async def warmup_inputs(self) -> Any:
        return self.declared

    async def call(self, item: Input) -> None:
        assert isinstance(item.target, str)
        self.calls.append(item.name)
        with torch.inference_mode():
            self.answers[item.name] = getattr(self.owner, item.target)(*item.args)

    def trust(self) -> Trust | None:
        return trusting(KEY)


class Scaled(torch.nn.Module):
    """A product whose scale is compiled into the code, unlike its weights."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor, label: str = "") -> torch.Tensor:
        # Inductor generates no kernel for this, so level 2 needs no C++ compiler.
        return torch.addmm(self.linear.bias, x, self.linear.weight, alpha=self.scale)


def x(batch: int) -> torch.Tensor:
    return torch.linspace(-1, 1, batch * 4).view(batch, 4)


def replica(sizes: Sequence[int], *, level: int = 2) -> StandIn:
    """Return a replica of `Scaled`, with an input for each size."""
    model = serve_warm.compile(Scaled(2.0).eval(), dynamic=False, level=level)
    inputs = [
        Input(target="embed", name=f"size {size}", args=(x(size), "secret"), size=size)
        for size in sizes
    ]
    return StandIn(SimpleNamespace(model=model, embed=model), inputs)


def publish(store: LocalStore, replica: StandIn, parts: Mapping[str, Path], **machine: str) -> str:
    """Publish folders as parts of an artifact that fits this process and the replica."""
    arguments = compile_arguments(replica.owner)
    built_for = Fingerprint(
        machine={**read_machine(environment()), **machine},
        app=read_app(environment(), compile_arguments=arguments),
    )
    raw = {name: pack_directory(folder) for name, folder in parts.items()}
    manifest, stored = build(deployment=replica.deployment, built_for=built_for, raw=raw)
    return push(store, manifest, stored, [KEY])
