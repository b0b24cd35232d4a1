# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Image generation with a diffusion transformer and a VAE from diffusers, batched by Ray Serve.

A request names a class and a seed. The transformer is called once for each denoising step, and the
VAE decoder once at the end. Both are compiled, once for each batch size. So an image needs only two
kinds of compiled calls, whatever the number of steps.

`generator` is the application on the CPU. `configured` returns an application from the `args` of a
Serve configuration: other sizes, real weights from the Hub, or a GPU as in `serve_gpu.yaml`.
"""

import io
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin, shape_grid

CLASSES = 1000
"""Number of ImageNet classes. The class with this number stands for "no class"."""


class Settings(BaseModel):
    """The `args` of a Serve configuration. The defaults are a small model on the CPU."""

    model_config = ConfigDict(extra="forbid")

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    mode: str | None = None
    """The mode of torch.compile: `reduce-overhead` captures CUDA graphs."""
    level: Literal[2, 3] = 2
    """The level of `serve_warm.compile`; 3 makes libraries."""
    batch: tuple[int, ...] = (1, 4)
    """Batch sizes that the deployment pads to."""
    steps: int = Field(default=10, ge=1, le=1000)
    """Denoising steps of an image."""
    guidance: float = 4.0
    """How strongly an image follows its class; 1 turns guidance off."""
    weights: str | None = None
    """A DiT pipeline on the Hub, such as `facebook/DiT-XL-2-256`; None makes random weights."""
    side: int = 16
    """Height and width of the latent image, for random weights. The final image is 8 times as high
    and wide."""
    layers: int = 6
    heads: int = 6
    """Numbers of blocks and attention heads, for random weights. A DiT-S/2 has twice as many
    blocks."""
    channels: tuple[int, ...] = (32, 32, 64, 64)
    """Channels of the four stages of a VAE with random weights."""


class ImageRequest(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    label: int = Field(ge=0, lt=CLASSES)
    seed: int = Field(default=0, ge=0, lt=2**63)


def load_models(settings: Settings) -> tuple[Any, Any, Any]:
    """Return the transformer and the VAE (on the device, in evaluation mode), and the scheduler."""
    from diffusers import AutoencoderKL, DDIMScheduler, DiTTransformer2DModel

    if settings.weights is None:
        torch.manual_seed(0)
        transformer = DiTTransformer2DModel(
            sample_size=settings.side,
            num_layers=settings.layers,
            num_attention_heads=settings.heads,
            attention_head_dim=64,
            in_channels=4,
            out_channels=8,
            num_embeds_ada_norm=CLASSES,
        )
        vae = AutoencoderKL(
            block_out_channels=settings.channels,
            down_block_types=("DownEncoderBlock2D",) * len(settings.channels),
            up_block_types=("UpDecoderBlock2D",) * len(settings.channels),
        )
        scheduler = DDIMScheduler(beta_schedule="linear", clip_sample=False)
    else:
        name = settings.weights
        transformer = DiTTransformer2DModel.from_pretrained(name, subfolder="transformer")
        vae = AutoencoderKL.from_pretrained(name, subfolder="vae")
        scheduler = DDIMScheduler.from_pretrained(name, subfolder="scheduler")
    dtype = getattr(torch, settings.dtype)
    scheduler.set_timesteps(settings.steps)
    return (
        transformer.eval().to(settings.device, dtype),
        vae.eval().to(settings.device, dtype),
        scheduler,
    )


def noise(seeds: list[int], *, batch: int, channels: int, side: int) -> torch.Tensor:
    """Return the initial noise of each image. Rows of padding are 0.

    The result has shape (batch, channels, side, side). Each row has its own generator, so an image
    does not depend on the other images in its batch.
    """
    latents = torch.zeros(batch, channels, side, side)
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        latents[row] = torch.randn(channels, side, side, generator=generator)
    return latents


def png(pixels: torch.Tensor) -> bytes:
    """Return a PNG file of an image with values from -1 to 1 and shape (3, height, width)."""
    from PIL import Image

    scaled = pixels.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(scaled.permute(1, 2, 0).cpu().numpy()).save(file, "PNG")
    return file.getvalue()


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=16)
class ImageGenerator(WarmupMixin):
    """POST / {"label": 207, "seed": 1} → an image/png of the class, the same for the same seed."""

    buckets = Buckets(batch=Settings().batch)

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.settings = settings
        self.buckets = Buckets(batch=settings.batch)
        self.generate_batch.set_max_batch_size(max(settings.batch))
        transformer, vae, self.scheduler = load_models(settings)
        self.config, self.scale = transformer.config, vae.config.scaling_factor
        self.dtype = transformer.dtype
        options: dict[str, Any] = {
            "mode": settings.mode,
            "level": settings.level,
            "fullgraph": True,
            "dynamic": False,
        }
        self.denoise = serve_warm.compile(transformer, **options)
        self.before_decoding = vae.post_quant_conv
        self.decode = serve_warm.compile(vae.decoder, **options)

    def warmup_inputs(self) -> list[Input]:
        return shape_grid(
            "POST /",
            self.buckets,
            concurrency="batch",
            make=lambda: {"json": {"label": 0}},
        )

    async def __call__(self, request: Request) -> Response:
        try:
            wanted = ImageRequest.model_validate_json(await request.body())
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
                for each in error.errors()
            )
            text = f'This is not a request for an image, such as {{"label": 207}}: {problems}\n'
            return PlainTextResponse(text, status_code=400)
        return Response(await self.generate_batch(wanted), media_type="image/png")

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.02)
    async def generate_batch(self, requests: list[ImageRequest]) -> list[bytes]:
        # The steps of a batch take a long time. Meanwhile, the event loop answers health checks.
        images = await self.on_model_thread(
            self.generate, [each.label for each in requests], [each.seed for each in requests]
        )
        return [png(image) for image in images]

    def generate(self, labels: list[int], seeds: list[int]) -> torch.Tensor:
        """Return an image for each row, with values from -1 to 1.

        This method blocks, so call it on the model thread.
        """
        batch = self.buckets.fit(batch=len(labels))["batch"]
        padded = labels + [CLASSES] * (batch - len(labels))
        classes = torch.tensor(padded + [CLASSES] * batch, device=self.settings.device)
        latents = noise(
            seeds, batch=batch, channels=self.config.in_channels, side=self.config.sample_size
        ).to(self.settings.device, self.dtype)
        with torch.inference_mode():
            for step in self.scheduler.timesteps:
                latents = self.scheduler.step(
                    self.predicted_noise(latents, step, classes), step, latents
                ).prev_sample
            decoded = self.decode(self.before_decoding(latents / self.scale))
            return decoded[: len(labels)].clone()

    def predicted_noise(
        self, latents: torch.Tensor, step: torch.Tensor, classes: torch.Tensor
    ) -> torch.Tensor:
        """Return the noise that the transformer predicts for a batch, with guidance applied.

        One call contains each image twice: once with the image's class, and once without a class.
        The difference shows the effect of the class, and `guidance` multiplies this effect.
        """
        both = torch.cat([latents, latents])
        # Use a tensor: an int would be a constant of the graph, and each step would be compiled.
        steps = step.to(both.device).expand(len(both)).contiguous()
        (output,) = self.denoise(both, timestep=steps, class_labels=classes, return_dict=False)
        with_class, without = output[:, : latents.shape[1]].chunk(2)
        return without + self.settings.guidance * (with_class - without)


generator = ImageGenerator.bind()


def configured(settings: Settings) -> Application:
    """Return the application for the `args` of a Serve configuration."""
    return ImageGenerator.bind(settings)
