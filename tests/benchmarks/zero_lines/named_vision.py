# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A classifier that asks another deployment for images, after Ray Serve's guide to several apps.

Differs: a small ViT with random weights, and a function that draws an image in place of a download.
Compiles nothing.
"""

import numpy as np
import torch
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from transformers import ViTConfig, ViTForImageClassification

SIDE = 32


@serve.deployment
def downloader(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((3, SIDE, SIDE), dtype=np.float32)


@serve.deployment
class ImageClassifier:
    def __init__(self, images: DeploymentHandle):
        self.images = images
        torch.manual_seed(0)
        config = ViTConfig(
            image_size=SIDE,
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=10,
        )
        self.model = ViTForImageClassification(config).eval()

    @torch.inference_mode()
    def classify(self, image: np.ndarray) -> dict:
        logits = self.model(torch.from_numpy(image.copy()).unsqueeze(0)).logits[0]
        return {"label": int(logits.argmax()), "score": float(logits.softmax(-1).max())}

    async def __call__(self, request: Request) -> dict:
        return self.classify(await self.images.remote((await request.json())["image"]))


app = ImageClassifier.bind(downloader.bind())
