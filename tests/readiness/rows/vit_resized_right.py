# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: a tiny ViT classifies gray images of any size, and the handler resizes each to 16 x 16.

One input is declared. Requests have other heights and widths, but the resize runs eagerly before
the compiled model, which sees only one shape. So an axis of the request with one declared size is
no danger here, and a warning would be a false alarm.
"""

import torch
from ray import serve
from transformers import ViTConfig, ViTForImageClassification

import serve_warm

SIDE = 16


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Classifier(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=SIDE,
            patch_size=8,
            num_channels=1,
            num_labels=3,
        )
        self.model = serve_warm.compile(ViTForImageClassification(config).eval(), dynamic=False)

    def warmup_inputs(self):
        image = [[0.5] * 20 for _ in range(24)]
        return [serve_warm.Input(target=self.classify, args=(image,), name="image")]

    async def classify(self, image: list[list[float]]) -> int:
        if not image or not image[0] or any(len(row) != len(image[0]) for row in image):
            raise ValueError("send rows of equal length")
        pixels = torch.tensor(image, dtype=torch.float32)[None, None]
        pixels = torch.nn.functional.interpolate(
            pixels, size=(SIDE, SIDE), mode="bilinear", align_corners=False
        )
        return await self.on_model_thread(self._run, pixels.contiguous())

    def _run(self, pixels):
        with torch.inference_mode():
            return self.model(pixel_values=pixels).logits.argmax(-1).item()


app = Classifier.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [
        ("classify", [[[0.1] * 30 for _ in range(10)]], {}),
        ("classify", [[[1] * 16 for _ in range(16)]], {}),
        ("classify", [[[0.9]]], {}),
    ],
}
