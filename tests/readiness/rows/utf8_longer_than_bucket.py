# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A byte-level BERT pads to a bucket that it chooses by characters, but its tokens are bytes.

For ASCII both numbers are the same, so all declared texts hit their buckets. A Russian text of 14
characters gets the bucket of 16 and has 26 bytes: there is no padding, and the model sees a
length that is in no bucket. The first user who does not write ASCII waits.
"""

import torch
from ray import serve
from transformers import BertConfig, BertModel

import serve_warm


@serve.deployment(ray_actor_options={"num_cpus": 0})
class ByteEmbedder(serve_warm.WarmupMixin):
    buckets = serve_warm.Buckets(length=[16, 32])

    def __init__(self):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=256,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=128,
        )
        self.model = torch.compile(BertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return serve_warm.shape_grid(
            self.embed, self.buckets, make=lambda length: {"text": "a" * length}
        )

    async def embed(self, text: str) -> list[float]:
        text = text[:32] or " "
        size = self.buckets.fit(length=len(text))["length"]
        ids = list(text.encode())
        ids += [0] * (size - len(ids))
        return await self.on_model_thread(self._run, ids)

    def _run(self, ids):
        batch = torch.tensor([ids])
        mask = (batch != 0).long()
        with torch.inference_mode():
            found = self.model(input_ids=batch, attention_mask=mask)
            return found.last_hidden_state[0, 0].tolist()


app = ByteEmbedder.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("embed", ["plain text"], {}), ("embed", ["привет мир как"], {})],
}
