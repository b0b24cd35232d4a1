# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings with all-MiniLM-L6-v2 behind FastAPI, batched by Ray Serve.

Every batch is padded to a bucket of batch size and length, so only six shapes are compiled. The
warm-up inputs come from the same `buckets` object. Warm-up replays these inputs through the route
that requests use.
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


# Helpers must be above the class: when @serve.ingress decorates the class, it copies the app and
# the names that the app's routes can see at that time.


def pad(tokens: list[list[int]], *, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask in shape (batch, length). Rows of padding attend to one token."""
    ids = torch.zeros(batch, length, dtype=torch.int64)
    mask = torch.zeros(batch, length, dtype=torch.int64)
    mask[:, 0] = 1
    for row, row_tokens in enumerate(tokens):
        ids[row, : len(row_tokens)] = torch.tensor(row_tokens)
        mask[row, : len(row_tokens)] = 1
    return ids, mask


def mean_pooled(hidden: torch.Tensor, mask: torch.Tensor) -> Any:
    """Return the mean of the hidden states that the mask keeps, scaled to unit length."""
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
        # Each word is one token. The tokenizer adds one token at each end of the text.
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
        # Warm-up and traffic both run this line, so both use inference mode.
        with torch.inference_mode():
            embeddings = mean_pooled(self.model(input_ids=ids, attention_mask=mask)[0], mask)
        rows: list[list[float]] = embeddings[: len(texts)].tolist()
        return rows


embedder = TextEmbedder.bind()
