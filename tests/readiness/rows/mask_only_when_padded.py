# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A tiny DistilBERT gets an attention mask only if the text is shorter than the fixed length.

The engineer declared the "worst case", a text that fills all positions, so warm-up always calls
the model with attention_mask=None. Every short text passes a tensor instead of None. Shapes of
the ids never change, but None and a tensor are different graphs, so the first short text waits.
"""

import torch
from ray import serve
from transformers import DistilBertConfig, DistilBertModel

import serve_warm

LENGTH = 16
VOCAB = 64


def tokens(text):
    return [1 + sum(word.encode()) % (VOCAB - 1) for word in text.split()][:LENGTH]


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Embedder(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        config = DistilBertConfig(
            vocab_size=VOCAB,
            dim=16,
            n_layers=1,
            n_heads=2,
            hidden_dim=16,
            max_position_embeddings=LENGTH,
        )
        self.model = torch.compile(DistilBertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        longest = " ".join(["word"] * LENGTH)
        return [serve_warm.Input(target=self.embed, args=(longest,), name="longest text")]

    async def embed(self, text: str) -> list[float]:
        used = tokens(text)
        ids = torch.zeros(1, LENGTH, dtype=torch.int64)
        ids[0, : len(used)] = torch.tensor(used, dtype=torch.int64)
        mask = None
        if len(used) < LENGTH:  # nothing to mask in a full row
            mask = (torch.arange(LENGTH) < len(used)).long().unsqueeze(0)
        return await self.on_model_thread(self._run, ids, mask)

    def _run(self, ids, mask):
        with torch.inference_mode():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return hidden[0, 0].tolist()


app = Embedder.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("embed", ["a short text"], {}), ("embed", ["another one"], {})],
}
