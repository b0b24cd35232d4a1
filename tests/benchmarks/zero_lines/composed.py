# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A summarizer that calls a translator, after Ray Serve's "Develop and deploy an ML application".

Differs: the summarizer is a small BERT that keeps the words with the highest scores, the translator
is a small Marian model, both with random weights and one token for each byte, and both have a
compiled part. The summarizer calls its model without `torch.no_grad()`, as one may where nothing is
trained.
"""

import torch
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from transformers import BertConfig, BertModel, MarianConfig, MarianMTModel

KEPT = 4


def to_ids(text: str, *, bucket: int, most: int) -> torch.Tensor:
    """Return the bytes of a text, with zeros up to a multiple of the bucket."""
    tokens = [1 + byte for byte in text.encode()[:most]]
    ids = torch.zeros((1, max(bucket, -(-len(tokens) // bucket) * bucket)), dtype=torch.long)
    ids[0, : len(tokens)] = torch.tensor(tokens)
    return ids


@serve.deployment
class Translator:
    def __init__(self):
        torch.manual_seed(0)
        config = MarianConfig(
            vocab_size=257,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
        self.model = MarianMTModel(config).eval()
        self.model.get_encoder().compile()

    def translate(self, text: str) -> str:
        ids = to_ids(text, bucket=32, most=32)
        made = self.model.generate(
            ids, attention_mask=(ids != 0).long(), max_new_tokens=5, num_beams=1, do_sample=False
        )
        return bytes(int(token) - 1 for token in made[0] if token > 0).decode("latin-1")


@serve.deployment
class Summarizer:
    def __init__(self, translator: DeploymentHandle):
        self.translator = translator
        torch.manual_seed(1)
        config = BertConfig(
            vocab_size=257,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=64,
        )
        self.model = torch.compile(BertModel(config, add_pooling_layer=False).eval(), dynamic=False)

    def summarize(self, text: str) -> str:
        ids = to_ids(text, bucket=32, most=64)
        scores = self.model(ids, attention_mask=(ids != 0).long()).last_hidden_state[0, :, 0]
        words, end = [], 0
        for word in text.split():
            start, end = end, end + len(word) + 1
            words.append(float(scores[min(start, len(scores) - 1)]))
        best = sorted(sorted(range(len(words)), key=lambda place: -words[place])[:KEPT])
        return " ".join(text.split()[place] for place in best)

    async def __call__(self, request: Request) -> dict:
        summary = self.summarize(await request.json())
        return {"summary": summary, "translation": await self.translator.translate.remote(summary)}


app = Summarizer.bind(Translator.bind())
