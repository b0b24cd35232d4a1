# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Class-conditional images, after Ray Serve's example with Stable Diffusion, in one deployment.

Differs: a small DiT pipeline with random weights on the CPU, which takes a class in place of a
prompt, and two steps. Compiles nothing.
"""

import io

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment
class ImageGenerator:
    def __init__(self):
        torch.manual_seed(0)
        transformer = DiTTransformer2DModel(
            sample_size=8,
            num_layers=2,
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=8,
            num_embeds_ada_norm=1000,
        )
        vae = AutoencoderKL(
            block_out_channels=(16, 16),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=8,
        )
        self.pipe = DiTPipeline(transformer.eval(), vae.eval(), DDIMScheduler())
        self.pipe.set_progress_bar_config(disable=True)

    def generate(self, label: int, seed: int) -> bytes:
        noise = torch.Generator().manual_seed(seed)
        image = self.pipe([label], num_inference_steps=2, generator=noise).images[0]
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()

    async def __call__(self, request: Request) -> Response:
        asked = await request.json()
        return Response(self.generate(asked["label"], asked["seed"]), media_type="image/png")


app = ImageGenerator.bind()
