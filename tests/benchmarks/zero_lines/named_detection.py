# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Object detection behind FastAPI, after Ray Serve's example with YOLOv5.

Differs: a small YOLOS of `transformers` with random weights on the CPU, and the answer lists boxes
in place of drawing them. Compiles nothing.
"""

import torch
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from transformers import YolosConfig, YolosForObjectDetection

api = FastAPI()
SIZES = {"wide": (32, 64), "tall": (64, 32)}


@serve.deployment
class ObjectDetection:
    def __init__(self):
        torch.manual_seed(0)
        config = YolosConfig(
            image_size=[64, 64],
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_detection_tokens=8,
        )
        self.model = YolosForObjectDetection(config).eval()

    @torch.inference_mode()
    def detect(self, shape: str, seed: int) -> list:
        noise = torch.Generator().manual_seed(seed)
        found = self.model(torch.rand((1, 3, *SIZES[shape]), generator=noise))
        return found.pred_boxes[0].tolist()


@serve.deployment
@serve.ingress(api)
class APIIngress:
    def __init__(self, model: DeploymentHandle):
        self.model = model

    @api.get("/detect")
    async def detect(self, shape: str, seed: int) -> dict:
        return {"boxes": await self.model.detect.remote(shape, seed)}


app = APIIngress.bind(ObjectDetection.bind())
