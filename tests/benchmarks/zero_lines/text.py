# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Translation over HTTP, after the translator of Ray Serve's "Getting started".

Differs: a small T5 with random weights and one token for each byte, and a compiled encoder.
"""

import torch
from ray import serve
from starlette.requests import Request
from transformers import T5Config, T5ForConditionalGeneration

PAD, END, FIRST = 0, 1, 3
BUCKET = 16


@serve.deployment
class Translator:
    def __init__(self):
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=FIRST + 256,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=PAD,
        )
        self.model = T5ForConditionalGeneration(config).eval()
        self.model.encoder.compile()

    def translate(self, text: str) -> str:
        tokens = [FIRST + byte for byte in text.encode()[:63]] + [END]
        length = -(-len(tokens) // BUCKET) * BUCKET
        ids = torch.full((1, length), PAD)
        ids[0, : len(tokens)] = torch.tensor(tokens)
        made = self.model.generate(
            ids, attention_mask=(ids != PAD).long(), max_new_tokens=6, do_sample=False
        )
        return bytes(int(token) - FIRST for token in made[0] if token >= FIRST).decode("latin-1")

    async def __call__(self, request: Request) -> dict:
        return {"translation": self.translate(await request.json())}


app = Translator.bind()
