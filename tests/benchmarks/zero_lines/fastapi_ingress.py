# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings behind FastAPI, after Ray Serve's guide to HTTP with FastAPI.

Differs: the answer is the embedding of a small BERT with random weights in place of a greeting. The
model is compiled. FastAPI calls the handlers in several threads.
"""

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from transformers import BertConfig, BertModel

api = FastAPI()


class Texts(BaseModel):
    texts: list[str]


@serve.deployment
@serve.ingress(api)
class Embedder:
    def __init__(self):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=257,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        self.model = torch.compile(BertModel(config, add_pooling_layer=False).eval())

    @torch.inference_mode()
    def embed(self, texts: list[str]) -> list[list[float]]:
        longest = max(len(text.encode()) for text in texts)
        length = next(size for size in (16, 32, 64) if size >= min(longest, 64))
        ids = torch.zeros((len(texts), length), dtype=torch.long)
        for row, text in enumerate(texts):
            tokens = [1 + byte for byte in text.encode()[:length]]
            ids[row, : len(tokens)] = torch.tensor(tokens)
        hidden = self.model(ids, attention_mask=(ids != 0).long()).last_hidden_state
        return hidden.mean(1).tolist()

    @api.get("/embed")
    def embed_one(self, text: str) -> dict:
        return {"embedding": self.embed([text])[0]}

    @api.post("/embed")
    def embed_all(self, texts: Texts) -> dict:
        return {"embeddings": self.embed(texts.texts)}


app = Embedder.bind()
