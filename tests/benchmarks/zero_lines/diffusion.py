# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Text to image, after Ray Serve's example with Stable Diffusion.

Differs: a small pipeline with random weights and a vocabulary of letters on the CPU, three steps,
the noise of a request depends only on its prompt, and the UNet is compiled.
"""

import io
import zlib

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from fastapi import FastAPI
from fastapi.responses import Response
from PIL import Image
from ray import serve
from ray.serve.handle import DeploymentHandle
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

api = FastAPI()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def load_pipeline() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    vocabulary = [
        "<|startoftext|>",
        "<|endoftext|>",
        *LETTERS,
        *(f"{each}</w>" for each in LETTERS),
    ]
    tokenizer = CLIPTokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=[],
        model_max_length=16,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=16,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    ).eval()
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
    ).eval()
    vae = AutoencoderKL(
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    ).eval()
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=EulerDiscreteScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@serve.deployment(max_ongoing_requests=1)  # a scheduler keeps the step of one image
class StableDiffusion:
    def __init__(self):
        self.pipe = load_pipeline()
        self.pipe.unet = torch.compile(self.pipe.unet)

    def generate(self, prompt: str, img_size: int) -> Image.Image:
        noise = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
        made = self.pipe(
            prompt, height=img_size, width=img_size, num_inference_steps=3, generator=noise
        )
        return made.images[0]


@serve.deployment
@serve.ingress(api)
class APIIngress:
    def __init__(self, model: DeploymentHandle):
        self.model = model

    @api.get("/imagine")
    async def imagine(self, prompt: str, img_size: int = 32) -> Response:
        image = await self.model.generate.remote(prompt, img_size)
        file = io.BytesIO()
        image.save(file, "PNG")
        return Response(file.getvalue(), media_type="image/png")


app = APIIngress.bind(StableDiffusion.bind())
