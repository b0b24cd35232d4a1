# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Classification of an uploaded image, after Ray Serve's tutorial about PyTorch models.

Differs: a small ResNet of `transformers` with random weights, smaller images, and a compiled model.
"""

import io

import numpy as np
import torch
from PIL import Image
from ray import serve
from starlette.requests import Request
from transformers import ResNetConfig, ResNetForImageClassification

SIDE = 48


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return the middle of an image, as numbers from -1 to 1."""
    scale = SIDE / min(image.size)
    image = image.convert("RGB").resize([max(SIDE, round(scale * each)) for each in image.size])
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    square = image.crop((left, top, left + SIDE, top + SIDE))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 127.5 - 1


@serve.deployment
class ImageModel:
    def __init__(self):
        torch.manual_seed(0)
        config = ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"
        )
        self.model = torch.compile(ResNetForImageClassification(config).eval())

    async def __call__(self, request: Request) -> dict:
        image = Image.open(io.BytesIO(await request.body()))
        with torch.no_grad():
            logits = self.model(to_tensor(image).unsqueeze(0)).logits
        return {"class": int(logits.argmax()), "logit": float(logits.max())}


app = ImageModel.bind()
