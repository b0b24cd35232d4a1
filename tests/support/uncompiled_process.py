# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start in a separate process, of an app that compiles nothing before its first call.

    python uncompiled_process.py '{"app": "router", "settings": {}, "prefetch": false}'

Prints the report, and which of the three parts of torch were imported, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from outside_serve import OutsideServe
from serve_warm.artifact.manifest import Place
from serve_warm.config import WarmupConfig
from serve_warm.errors import WarmupFailed
from serve_warm.inputs import Input
from serve_warm.replica.start.prefetch import Prefetch
from serve_warm.replica.start.stages import Warmup


class Router:
    """An app that answers without a model."""

    def __init__(self) -> None:
        self.routes = {"short": "small", "long": "large"}

    def route(self, text: str) -> str:
        return self.routes["long" if len(text) > 3 else "short"]


class Eager:
    """An app with a model, which compiles nothing."""

    def __init__(self) -> None:
        import torch

        self.model = torch.nn.Linear(4, 4).eval()

    def route(self, text: str) -> str:
        import torch

        with torch.inference_mode():
            return str(self.model(torch.ones(len(text), 4)).shape)


class Lazy(Eager):
    """An app that compiles on the first request."""

    def route(self, text: str) -> str:
        import torch

        if not hasattr(self, "compiled"):
            self.compiled = torch.compile(self.model, backend="eager", dynamic=False)
        with torch.inference_mode():
            return str(self.compiled(torch.ones(4, 4)).shape)


class Compiled(Eager):
    """An app whose model needs the C++ compiler."""

    def route(self, text: str) -> str:
        import torch

        model = torch.nn.Sequential(self.model, torch.nn.GELU())
        with torch.inference_mode():
            return str(torch.compile(model, dynamic=False)(torch.ones(4, 4)).shape)


class Replica(OutsideServe):
    """The parts of a deployment that a warm-up needs, for an app that answers texts."""

    deployment, replica = "Router", "Router#1"

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    async def warmup_inputs(self) -> Any:
        return [Input(target="route", name=text, args=(text,)) for text in ("abc", "abcdef")]

    async def call(self, item: Input) -> None:
        self.owner.route(*item.args)


APPS = {"router": Router, "eager": Eager, "lazy": Lazy, "compiled": Compiled}


def main(*, app: str, settings: dict[str, Any], prefetch: bool) -> dict[str, Any]:
    """Start the app, and return the result."""
    config = WarmupConfig(**settings)
    work = (
        Prefetch(config, place=Place(application="app", deployment="Router"), trust=None)
        if prefetch
        else None
    )
    if work is not None:
        work.begin()
    replica = Replica(APPS[app]())
    if work is not None:
        work._taken.result(100)  # like an `__init__` that takes as long as the store
    warmup = Warmup(replica, config, prefetched=work)
    with contextlib.suppress(WarmupFailed):
        asyncio.run(warmup.run())
    halves = ("torch", "torch._dynamo", "torch._inductor")
    return {
        "report": warmup.report().to_json(),
        "imported": [name for name in halves if name in sys.modules],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
