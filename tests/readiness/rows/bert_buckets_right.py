# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: a tiny BERT with buckets on batch and length, and requests padded with the same buckets.

shape_grid declares each combination, with and without padding in the mask. Longer texts are
truncated and larger batches are refused by fit. No request can have another shape, so a warning
about this application would be a false alarm.
"""

import torch
from ray import serve
from transformers import BertConfig, BertModel

import serve_warm

VOCAB = 64


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Embedder(serve_warm.WarmupMixin):
    buckets = serve_warm.Buckets(batch=[1, 4], length=[8, 16])

    def __init__(self):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
        )
        self.model = serve_warm.compile(BertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return serve_warm.shape_grid(self.encode, self.buckets)

    async def encode(self, input_ids, attention_mask):
        return await self.on_model_thread(self._run, input_ids, attention_mask)

    def _run(self, input_ids, attention_mask):
        with torch.inference_mode():
            hidden = self.model(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            weights = attention_mask.unsqueeze(-1)
            return ((hidden * weights).sum(1) / weights.sum(1).clamp(min=1)).tolist()

    async def embed(self, texts: list[str]) -> list[list[float]]:
        rows = [
            [1 + sum(word.encode()) % (VOCAB - 1) for word in text.split()][:16] or [1]
            for text in texts
        ]
        size = self.buckets.fit(batch=len(rows), length=max(map(len, rows), default=1))
        ids = torch.zeros(size["batch"], size["length"], dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        return (await self.encode(ids, mask))[: len(rows)]


app = Embedder.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [
        ("embed", [["one"]], {}),
        ("embed", [["two words", "a few more words than that", "x " * 40]], {}),
        ("embed", [["eight words are in this text here now"]], {}),
    ],
}
