# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One start of a tiny real model in a separate process, which prints the result as JSON.

    python warm_process.py '{"store": "/a/folder", "load": true, ...}'

`load` pulls and loads the artifact in `store`. `publish` pushes the caches of this process to
`store` afterwards. `traffic` is the batch size of a last call of the model, declared or not.
`batches` has the declared batch sizes, and `dynamic` is an argument of torch.compile. With a `mode`
of `torch.compile`, the model contains a product for which Inductor has templates. `builds`
starts like a replica of a build.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from outside_serve import OutsideServe
from serve_warm.artifact.blobs import pack_part
from serve_warm.artifact.manifest import Manifest, Place, utc_now
from serve_warm.artifact.push import push
from serve_warm.builder.cluster import build_name
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import WarmupConfig
from serve_warm.inputs import Buckets, Field, Input, shape_grid
from serve_warm.replica.start.pack import ISA_FACT
from serve_warm.replica.start.stages import Warmup
from serve_warm.stores.local import LocalStore
from serve_warm.trust.keys import TrustedKey
from serve_warm.trust.policy import Trust

AVX512_FEATURES = (
    "_is_avx512_supported",
    "_is_avx512_bf16_supported",
    "_is_vnni_supported",
    "_is_amx_tile_supported",
)
"""CPU features that torch queries. With `claims_avx2`, the answer is that of a CPU without
AVX-512."""


class Attention(torch.nn.Module):
    """Attention over each row, taken as eight vectors of four numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 8, 4)
        seen = torch.bmm(rows, rows.transpose(1, 2).contiguous()).softmax(-1)
        return x + seen.sum(-1).repeat(1, 4)


class Classifier:
    """Two layers and a softmax, with a separate kernel for each of the two shapes."""

    def __init__(
        self,
        batches: Sequence[int] = (1, 8),
        *,
        dynamic: bool | None = False,
        mode: str | None = None,
    ) -> None:
        self.buckets = Buckets(batch=list(batches))
        torch.manual_seed(0)
        middle = torch.nn.GELU() if mode is None else Attention()
        self.eager = torch.nn.Sequential(
            torch.nn.Linear(16, 32), middle, torch.nn.Linear(32, 4), torch.nn.Softmax(-1)
        ).eval()
        self.model = torch.compile(self.eager, dynamic=dynamic, mode=mode)

    async def classify(self, pixels: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(pixels)

    def warmup_inputs(self) -> list[Input]:
        pixels = Field(axes=("batch", 16), dtype="float32", low=-1, high=1)
        return shape_grid(self.classify, self.buckets, fields={"pixels": pixels})


class Replica(OutsideServe):
    """The parts of a deployment that a warm-up needs, without Serve."""

    deployment, replica = "Classifier", "Classifier#1"

    def __init__(self, key: Any, owner: Any, *, builds: bool = False) -> None:
        self.unwatched_compiles_before = unwatched_compiles()
        if builds:
            self.application = build_name()
        self.owner = owner
        self._key = key

    async def warmup_inputs(self) -> list[Input]:
        return self.owner.warmup_inputs()

    async def call(self, item: Input) -> None:
        await self.owner.classify(**item.kwargs)

    def trust(self) -> Trust:
        public = self._key.public_key().public_bytes_raw()
        return Trust(keys=(TrustedKey(name="test", raw=public),))


def publish(
    start: Warmup, parts: dict[str, bytes], facts: Any, store: LocalStore, key: Any
) -> None:
    assert start.journal.fingerprint is not None
    packed = {name: pack_part(name, raw) for name, raw in parts.items()}
    manifest = Manifest(
        place=Place(application="app", deployment=Replica.deployment),
        created=utc_now(),
        fingerprint=start.journal.fingerprint,
        parts=tuple(part for part, _ in packed.values()),
        facts=facts,
    )
    push(store, manifest, {name: stored for name, (_, stored) in packed.items()}, [key])


def main(options: dict[str, Any]) -> dict[str, Any]:
    key = load_pem_private_key(Path(options["key"]).read_bytes(), password=None)
    store = LocalStore(root=Path(options["store"]))
    # An audit hook sees all processes that this one starts, and does not rely on the package.
    started: list[list[str]] = []
    sys.addaudithook(
        lambda event, args: (
            started.append(list(map(str, args[1]))) if event == "subprocess.Popen" else None
        )
    )
    if options.get("claims_avx2"):
        for name in AVX512_FEATURES:
            setattr(torch.cpu, name, lambda: False)
    chosen = {name: options[name] for name in ("batches", "dynamic", "mode") if name in options}
    replica = Replica(key, Classifier(**chosen), builds=options.get("builds", False))
    start = Warmup(
        replica,
        WarmupConfig(
            artifact=store.uri if options["load"] else None,
            max_level=1,
            cpu=options.get("cpu", "native"),
            on_missing="fail" if options.get("builds") else "compile",
        ),
    )
    report = asyncio.run(start.run())
    batches = [item.kwargs["pixels"] for item in replica.owner.warmup_inputs()]
    if options.get("traffic"):
        batches.append(torch.rand(options["traffic"], 16))
    errors = [asyncio.run(replica.owner.classify(x)) - replica.owner.eager(x) for x in batches]
    parts: dict[str, bytes] = {}
    if options.get("publish"):
        parts, said = asyncio.run(start.pack())
        facts = dict(said)
        publish(start, parts, facts, store, key)
        # Publish once more, without the answers to torch's ISA probe.
        del facts[ISA_FACT]
        publish(start, parts, facts, LocalStore(root=Path(f"{store.root}-without-answers")), key)
    assert report.verdict is not None
    return {
        "report": start.report().to_json(),
        "verdict_when_ready": report.verdict.value,
        "cache_directory": str(start.caches.directory),
        "error": max(error.abs().max().item() for error in errors),
        "started": started,
        "parts": sorted(parts),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
