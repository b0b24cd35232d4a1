# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group, which starts with the other ranks and prints reports as JSON.

Ranks use gloo on the CPU, or, with RANKS_ON=cuda, NCCL with a GPU for each rank.

    python rank_process.py '{"rank": 0, "size": 2, "meet": "/a/file", "starts": [{...}, ...]}'

The process makes the starts one after the other, each with a fresh model. Keys of a start:

- `store`, `load`, `publish`: as in warm_process.py, for the artifact of this rank
- `level`: 0 compiles with a backend that builds nothing, 1 and 2 with Inductor
- `model`: `whole` for a model without a collective
- `steps`: number of callables that compile; the rank `stepping` uses up one in each call
- `do`: what the rank `doing` does: `raise` an error, `die` before the model of its second call,
  `leave` after it, or `compile` something new in each call
- `config`: settings of this start
- `max_passes`: the largest number of passes
- `declare`: sizes of further inputs, by rank
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from torch.distributed import _functional_collectives as collectives

import serve_warm
from compiled import compiled, double
from serve_warm.config import WarmupConfig
from serve_warm.errors import ServeWarmError
from serve_warm.inputs import Input
from serve_warm.replica.replay import passes as replay
from serve_warm.replica.replay import ranks
from serve_warm.replica.start.stages import Warmup
from serve_warm.stores.local import LocalStore
from warm_process import Replica as Alone
from warm_process import publish

DEVICE = os.environ.get("RANKS_ON", "cpu")


def ones(batch: int) -> torch.Tensor:
    return torch.ones(batch, 16, device=DEVICE)


class Sharded(torch.nn.Module):
    """A layer that is split over two ranks. Each rank scales the sum in its own kernel."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 8, device=DEVICE)
        self.rank = rank
        # The name, because an entry of level 2 cannot hold a process group.
        world: Any = torch.distributed.group.WORLD
        self.group = world.group_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.nn.functional.gelu(self.layer(x)) * (1 + self.rank)
        whole = collectives.all_reduce(part, "sum", self.group)
        return collectives.wait_tensor(whole) * (2 + self.rank)  # type: ignore[no-untyped-call]


class Owner:
    def __init__(self, rank: int, options: dict[str, Any]) -> None:
        self.rank, self.options = rank, options
        self.eager: Any = Sharded(rank).eval()
        level = options.get("level", 0)
        if options.get("model") == "whole":
            self.eager, self.model = double, compiled(double)
        elif level == 2:
            self.model = serve_warm.compile(self.eager, dynamic=False)
        else:
            backend = "inductor" if level else "eager"
            self.model = torch.compile(self.eager, dynamic=False, backend=backend)
        self.steps = [compiled(double) for _ in range(options.get("steps", 0))]
        self.calls = 0

    async def predict(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.steps and self.rank == self.options["stepping"]:
            self.steps.pop()(torch.ones(2))
        does = self.options["do"] if self.rank == self.options.get("doing") else ""
        if does == "raise":
            raise KeyError("no such weights")
        if does == "compile":
            compiled(double)(torch.ones(2))
        if does == "die" and self.calls == 2:
            os._exit(0)
        with torch.inference_mode():
            out = self.model(x)
        if does == "leave" and self.calls == 2:
            os._exit(0)
        return out

    def warmup_inputs(self) -> list[Input]:
        sizes = [2, 4, *self.options.get("declare", {}).get(str(self.rank), [])]
        return [
            Input(target=self.predict, name=f"batch {n}", args=(ones(n),), size=n) for n in sizes
        ]


class Replica(Alone):
    """The parts of a deployment that a warm-up needs, for one rank."""

    async def call(self, item: Input) -> None:
        await self.owner.predict(*item.args)


def start(rank: int, options: dict[str, Any], key: Any) -> dict[str, Any]:
    store = LocalStore(root=Path(options.get("store", "/nowhere")))
    replica = Replica(key, Owner(rank, options))
    config = {"artifact": store.uri if options.get("load") else None, **options.get("config", {})}
    replay.MAX_PASSES = options.get("max_passes", 8)
    warmup = Warmup(replica, WarmupConfig.model_validate(config), in_gang=True)
    try:
        asyncio.run(warmup.run())
    except ServeWarmError as error:
        return {"report": warmup.report().to_json(), "raised": type(error).__name__}
    x = ones(4)
    difference = asyncio.run(replica.owner.predict(x)) - replica.owner.eager(x)
    said = {
        "report": warmup.report().to_json(),
        "raised": "",
        "calls": replica.owner.calls,
        "error": difference.abs().max().item(),
    }
    if options.get("publish"):
        parts, facts = asyncio.run(warmup.pack())
        publish(warmup, parts, facts, store, key)
        said["parts"] = sorted(parts)
        said["entries"] = facts.get("entries")
    return said


def main(options: dict[str, Any]) -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(options["rank"])
    torch.distributed.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo",
        init_method=f"file://{options['meet']}",
        rank=options["rank"],
        world_size=options["size"],
    )
    key = load_pem_private_key(Path(options["key"]).read_bytes(), password=None)
    ranks.PULSE_S, ranks.SILENT_S = 0.2, options.get("silent_s", 60.0)
    for each in options["starts"]:
        torch._dynamo.reset()
        said = start(options["rank"], each, key)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    os._exit(0)  # gloo's threads keep running after a peer is gone


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
