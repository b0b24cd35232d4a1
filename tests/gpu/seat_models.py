# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The two deployments that `seats_gpu.py` starts: models at level 3, on a GPU, or tiny on a CPU.

Each deployment measures the creation of its CUDA context, because no other code can tell this time
from the time of loading weights.
"""

from __future__ import annotations

import os
import time

import torch
from ray import serve

import serve_warm
from deployments.image_classifier import app as images
from deployments.text_generator.app import LENGTHS
from deployments.text_generator.model import Shape, decoder_of, load_model
from serve_warm import Buckets, Field, Input, WarmupMixin, shape_grid
from serve_warm.generation import Slots

ON_GPU = {"num_cpus": 1, "num_gpus": 0.3}
"""Three replicas share the GPU: one keeps seats, one starts, and one ends."""
ON_CPU = {"num_cpus": 1}
TINY = (1, 1, 1, 1)


def begin_cuda(device: str) -> float:
    """Create the CUDA context of this process; return the seconds, or 0 without a GPU."""
    if device == "cpu":
        return 0.0
    began_s = time.perf_counter()
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    return time.perf_counter() - began_s


def mode_of(device: str) -> str | None:
    return None if device == "cpu" else "reduce-overhead"


class Asked(WarmupMixin):
    """A deployment that answers the benchmark's questions."""

    took_s: float

    async def answer(self) -> list[float]:
        raise NotImplementedError

    async def pid(self) -> int:
        """Compute an answer, and return the id of this process."""
        await self.answer()
        return os.getpid()

    async def cuda_s(self) -> float:
        return self.took_s


@serve.deployment(ray_actor_options=ON_GPU, graceful_shutdown_timeout_s=0)
class SeatedClassifier(Asked):
    """A ResNet-152 for batches of two sizes."""

    def __init__(self, device: str, depths: tuple[int, ...] = (3, 8, 36, 3)) -> None:
        self.took_s = begin_cuda(device)
        self.device = device
        model = images.load_model(depths).to(device)
        self.model = serve_warm.compile(model, level=3, mode=mode_of(device), dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        axes = ("batch", 3, images.SIDE, images.SIDE)
        return shape_grid(
            self.classify,
            Buckets(batch=[1, 8]),
            fields={"pixels": Field(axes=axes, dtype="float32", low=-1, high=1)},
        )

    async def classify(self, pixels: torch.Tensor) -> list[float]:
        return await self.on_model_thread(self.run, pixels)

    def run(self, pixels: torch.Tensor) -> list[float]:
        with torch.inference_mode():
            found: list[float] = self.model(pixel_values=pixels.to(self.device)).logits[0].tolist()
        return found

    async def answer(self) -> list[float]:
        pixels = torch.linspace(-1, 1, 3 * images.SIDE**2).view(1, 3, images.SIDE, images.SIDE)
        return (await self.classify(pixels))[:16]


@serve.deployment(ray_actor_options=ON_GPU, graceful_shutdown_timeout_s=0)
class SeatedGenerator(Asked):
    """The text generator's decoder, with whole steps compiled."""

    buckets = Buckets(length=LENGTHS)

    def __init__(self, device: str, layers: int = 12) -> None:
        self.took_s = begin_cuda(device)
        model = load_model(Shape(layers=layers), device=device)
        for step in ("prefill", "decode"):
            made = serve_warm.compile(
                getattr(model, step), level=3, mode=mode_of(device), fullgraph=True, dynamic=False
            )
            setattr(model, step, made)
        self.slots = Slots(decoder_of(model, LENGTHS), call=self.on_model_thread)

    def warmup_inputs(self) -> list[Input]:
        return shape_grid(
            self.generate, self.buckets, make=lambda length: {"prompt": [1] * length, "count": 3}
        )

    async def generate(self, prompt: list[int], count: int) -> list[int]:
        return [token async for token in self.slots.tokens(prompt, count=count)]

    async def answer(self) -> list[float]:
        return [float(token) for token in await self.generate([5, 6, 7], 8)]


classifier = SeatedClassifier.bind("cuda")
generator = SeatedGenerator.bind("cuda")
tiny_classifier = SeatedClassifier.options(ray_actor_options=ON_CPU).bind("cpu", TINY)
tiny_generator = SeatedGenerator.options(ray_actor_options=ON_CPU).bind("cpu", 1)
