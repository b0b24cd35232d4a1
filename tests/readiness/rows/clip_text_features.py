# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A CLIP model is compiled as a whole, but the handler calls get_text_features.

torch.compile compiles only forward(). Any other method is looked up on the original module and
runs eagerly, so the application contains a compiled model, yet no request ever runs compiled
code. A READY replica has proven nothing here, and no user gets the faster kernels.
"""

import torch
from ray import serve
from transformers import CLIPConfig, CLIPModel

import serve_warm

LENGTH = 12


@serve.deployment(ray_actor_options={"num_cpus": 0})
class TextTower(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "projection_dim": 8,
        }
        config = CLIPConfig(
            text_config={
                **sizes,
                "vocab_size": 256,
                "max_position_embeddings": LENGTH,
                "bos_token_id": 0,
                "pad_token_id": 1,
                "eos_token_id": 2,
            },
            vision_config={**sizes, "image_size": 16, "patch_size": 8},
            projection_dim=8,
        )
        self.model = torch.compile(CLIPModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            serve_warm.Input(target=self.embed, args=("a photo of a cat",), name="photo"),
            serve_warm.Input(target=self.embed, args=("dog",), name="word"),
        ]

    async def embed(self, text: str) -> list[float]:
        ids = [*list(text.encode())[: LENGTH - 1], 2]
        ids += [1] * (LENGTH - len(ids))
        return await self.on_model_thread(self._run, torch.tensor([ids]))

    def _run(self, ids):
        with torch.inference_mode():
            found = self.model.get_text_features(input_ids=ids)
        found = getattr(found, "pooler_output", found)  # a tensor before transformers 5
        return torch.nn.functional.normalize(found, dim=-1)[0].tolist()


app = TextTower.bind()

ROW = {
    "blind": True,
    "kind": "no_compiled_code",
    "requests": [("embed", ["a drawing of a horse"], {})],
}
