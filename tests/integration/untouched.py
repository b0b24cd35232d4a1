# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""An application in all shapes of deployments, which does not know that something wraps it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from fastapi import FastAPI
from ray import serve

OPTIONS: dict[str, Any] = {"backend": "eager", "dynamic": False}
"""Dynamo runs, and no C++ compiler."""

FREE = {"num_cpus": 0}


@torch.compile(**OPTIONS)
def triple(given: torch.Tensor) -> torch.Tensor:
    return 3 * given


class Layer(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.scale * given


@serve.deployment(ray_actor_options=FREE)
class Plain:
    """Compiles in `__init__`, and calls a function that was compiled at the import."""

    def __init__(self, scale: float) -> None:
        self.model = torch.compile(Layer(scale), **OPTIONS)

    async def __call__(self, size: int) -> list[float]:
        with torch.inference_mode():
            return triple(self.model(torch.ones(size))).tolist()


@serve.deployment(ray_actor_options=FREE)
async def function(size: int) -> float:
    """Return a sum."""
    return float(triple(torch.ones(size)).sum())


@serve.deployment(ray_actor_options=FREE)
def generator(size: int) -> Iterator[float]:
    yield from triple(torch.ones(size)).tolist()


class Meta(type):
    pass


@serve.deployment(ray_actor_options=FREE)
class Strict(metaclass=Meta):
    """Has slots, a metaclass, a `__new__` and an async `__init__`."""

    __slots__ = ("model", "scale")

    def __new__(cls, scale: float = 0.0) -> Any:
        made = super().__new__(cls)
        made.scale = scale
        return made

    async def __init__(self, scale: float) -> None:
        self.model = Layer(scale)
        self.model.compile(**OPTIONS)

    def reconfigure(self, config: dict[str, Any]) -> None:
        self.scale = config["scale"]

    def __call__(self, size: int) -> list[float]:
        return (self.scale * self.model(torch.ones(size))).tolist()


@serve.deployment(ray_actor_options=FREE)
class Named:
    """Compiles nothing itself."""

    def __init__(self) -> None:
        self.pipe = SimpleNamespace(unet=Layer(7))

    async def __call__(self, size: int) -> list[float]:
        with torch.inference_mode():
            return self.pipe.unet(torch.ones(size)).tolist()


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    os.environ["LIFESPAN"] = "started"
    yield


api = FastAPI(lifespan=lifespan)


@serve.deployment(ray_actor_options=FREE)
@serve.ingress(api)
class Api:
    """Asks all others."""

    def __init__(self, others: dict[str, Any]) -> None:
        self.others = others

    @api.get("/")
    async def every(self, size: int) -> dict[str, Any]:
        """Return the answer of each deployment."""
        found: dict[str, Any] = {"lifespan": os.environ.get("LIFESPAN")}
        for name, handle in self.others.items():
            if name == "generator":
                found[name] = [each async for each in handle.options(stream=True).remote(size)]
            else:
                found[name] = await handle.remote(size)
        return found

    async def reports(self) -> dict[str, Any]:
        """Return the report of each deployment that has one."""
        return {name: await each.warmup_report.remote() for name, each in self.others.items()}

    async def recorded(self) -> dict[str, Any]:
        """Return what each deployment has recorded."""
        return {name: await each.warmup_recorded.remote() for name, each in self.others.items()}


def build(args: dict[str, Any]) -> Any:
    """Return the application for the `args` of a Serve configuration."""
    scale = args["scale"]
    return Api.bind(
        {
            "plain": Plain.bind(scale),
            "function": function.bind(),
            "generator": generator.bind(),
            "strict": Strict.options(user_config={"scale": 5.0}).bind(scale),
            "named": Named.bind(),
        }
    )
