# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Image classification with a ResNet-152 in a plain class, batched by Ray Serve.

A request is the raw pixels of one image, so the example needs no image library. Batches are padded
to a bucket, so only two shapes are compiled. The model runs on the replica's model thread.
Meanwhile, the event loop collects the next batch.

`classifier` is the application on the CPU. `configured` returns an application from the `args` of a
Serve configuration: `serve_gpu.yaml` runs it on a GPU, with one CUDA graph for each batch size.
"""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin, shape_grid

SIDE = 128
IMAGE_BYTES = SIDE * SIDE * 3
BEST = 5


class Settings(BaseModel):
    """The `args` of a Serve configuration. The defaults put the model on the CPU."""

    model_config = ConfigDict(extra="forbid")

    device: str = "cpu"
    mode: str | None = None
    """The mode of torch.compile: `reduce-overhead` captures CUDA graphs."""
    batch: tuple[int, ...] = (1, 8)
    """Batch sizes that the deployment pads to."""
    depths: tuple[int, ...] = (3, 8, 36, 3)
    """Number of blocks in each of the four stages. The default is a ResNet-152."""


def load_model(depths: tuple[int, ...] = (3, 8, 36, 3)) -> Any:
    """Return the eager model in evaluation mode: the real layout, random weights, no download."""
    from transformers import ResNetConfig, ResNetForImageClassification
    from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer

    torch.manual_seed(0)
    config = ResNetConfig(depths=list(depths), layer_type="bottleneck", num_labels=1000)
    model: Any = ResNetForImageClassification(config)
    model.eval()
    # Without training, the logits would be about 10⁷ after 50 residual blocks, and the same for
    # every image. So damp the blocks, and subtract the logits of a noise image.
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, ResNetBottleNeckLayer):
                module.layer[-1].normalization.weight.fill_(0.1)
        head = model.classifier[-1]
        head.weight.mul_(200)
        head.bias.sub_(model(pixel_values=torch.rand(1, 3, SIDE, SIDE) * 2 - 1).logits[0])
    return model


def pixel_values(images: list[bytes], *, batch: int) -> torch.Tensor:
    """Return pixels from -1 to 1 in shape (batch, 3, SIDE, SIDE). Rows without an image are 0."""
    pixels = torch.zeros(batch, 3, SIDE, SIDE)
    for row, image in enumerate(images):
        # A copy, because torch wants writable memory.
        rgb = torch.frombuffer(bytearray(image), dtype=torch.uint8).view(SIDE, SIDE, 3)
        pixels[row] = rgb.permute(2, 0, 1) / 127.5 - 1
    return pixels


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
class ImageClassifier(WarmupMixin):
    """POST / with 128×128 RGB pixels, one byte per color → {"classes": [{"class": 7, …}, …]}.

    Pixels come row by row, each as red, green and blue, like Pillow's `Image.tobytes()` and
    ffmpeg's `rgb24`.
    """

    buckets = Buckets(batch=Settings().batch)
    device = Settings().device

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.buckets = Buckets(batch=settings.batch)
        self.classify_batch.set_max_batch_size(max(settings.batch))
        self.device = settings.device
        model = load_model(settings.depths).to(settings.device)
        self.model = serve_warm.compile(model, mode=settings.mode, fullgraph=True, dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        # Each input makes as many concurrent calls as its bucket holds, and the calls form a batch.
        # If a call is late, two smaller batches form, and both are padded to a bucket too.
        return shape_grid(
            "POST /",
            self.buckets,
            concurrency="batch",
            make=lambda: {"body": bytes(IMAGE_BYTES)},
        )

    async def __call__(self, request: Request) -> Response:
        image = await request.body()
        if len(image) != IMAGE_BYTES:
            return Response(
                f"An image has {IMAGE_BYTES} bytes ({SIDE}×{SIDE} RGB pixels, a byte per color), "
                f"but this body has {len(image)}.\n",
                status_code=400,
                media_type="text/plain",
            )
        return JSONResponse({"classes": await self.classify_batch(image)})

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def classify_batch(self, images: list[bytes]) -> list[list[dict[str, Any]]]:
        pixels = pixel_values(images, **self.buckets.fit(batch=len(images)))
        return (await self.on_model_thread(self.classify, pixels))[: len(images)]

    def classify(self, pixels: torch.Tensor) -> list[list[dict[str, Any]]]:
        """Return the best classes of each row, best first.

        This method blocks, so call it on the model thread.
        """
        with torch.inference_mode():
            logits = self.model(pixel_values=pixels.to(self.device)).logits
            scores, classes = logits.softmax(1).topk(BEST)
        return [
            [{"class": name, "score": round(score, 4)} for name, score in zip(*row, strict=True)]
            for row in zip(classes.tolist(), scores.tolist(), strict=True)
        ]


classifier = ImageClassifier.bind()


def configured(settings: Settings) -> Application:
    """Return the application for the `args` of a Serve configuration."""
    return ImageClassifier.bind(settings)
