# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings with all-MiniLM-L6-v2 behind FastAPI, requests batched by Ray Serve.

Every request is padded to a bucket of batch size and length, so that six shapes are compiled
and no other ever is. The same `buckets` object makes the inputs that warm-up replays through
the route that traffic uses.
"""

from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin, shape_grid

from .model import load_model, load_tokenizer

app = FastAPI(title="text_embedder")

MAX_LENGTH = 128


class Sentence(BaseModel):
    """The body of a request."""

    text: str


# Helpers stand above the class: @serve.ingress takes a copy of the app, and with it of what its
# routes can see, when the class is decorated.


def pad(tokens: list[list[int]], *, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of shape (batch, length); rows that are only padding attend to one."""
    ids = torch.zeros(batch, length, dtype=torch.int64)
    mask = torch.zeros(batch, length, dtype=torch.int64)
    mask[:, 0] = 1
    for row, row_tokens in enumerate(tokens):
        ids[row, : len(row_tokens)] = torch.tensor(row_tokens)
        mask[row, : len(row_tokens)] = 1
    return ids, mask


def mean_pooled(hidden: torch.Tensor, mask: torch.Tensor) -> Any:
    """Return unit vectors: the mean of the hidden states that the mask keeps."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
@serve.ingress(app)
class TextEmbedder(WarmupMixin):
    """POST /embed {"text": "..."} → {"embedding": [384 numbers]}."""

    buckets = Buckets(batch=[1, 8], length=[16, 64, MAX_LENGTH])

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer()
        self.model = serve_warm.compile(load_model(), dynamic=False)

    def warmup_inputs(self) -> list[Input]:
        # Words of one token each; two more are added at the ends.
        return shape_grid(
            "POST /embed",
            self.buckets,
            concurrency="batch",
            make=lambda length: {"json": {"text": " ".join(["hello"] * (length - 2))}},
        )

    @app.post("/embed")
    async def embed(self, sentence: Sentence) -> dict[str, list[float]]:
        return {"embedding": await self.embed_batch(sentence.text)}

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def embed_batch(self, texts: list[str]) -> list[list[float]]:
        tokens = self.tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        sizes = self.buckets.fit(batch=len(texts), length=max(map(len, tokens)))
        ids, mask = pad(tokens, **sizes)
        # The same mode in warm-up and in traffic, because both come through here.
        with torch.inference_mode():
            embeddings = mean_pooled(self.model(input_ids=ids, attention_mask=mask)[0], mask)
        rows: list[list[float]] = embeddings[: len(texts)].tolist()
        return rows


embedder = TextEmbedder.bind()
