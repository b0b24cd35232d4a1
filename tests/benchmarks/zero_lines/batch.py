# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Text generation in batches, after Ray Serve's tutorial about `@serve.batch`.

Differs: a small GPT-2 with random weights and one token for each byte, which is called without a
cache, with a window and with batches of fixed sizes, and which is compiled. As in the tutorial, the
model is made once and bound to the deployment.
"""

import torch
from ray import serve
from starlette.requests import Request
from transformers import GPT2Config, GPT2LMHeadModel

WINDOW = 32
NEW = 5
SIZES = (1, 2, 4)


@serve.deployment(max_ongoing_requests=16)
class BatchTextGenerator:
    def __init__(self, model: GPT2LMHeadModel):
        self.model = torch.compile(model)

    @serve.batch(max_batch_size=max(SIZES), batch_wait_timeout_s=0.01)
    async def generate(self, prompts: list[str]) -> list[str]:
        texts = [prompt.encode()[: WINDOW - NEW] for prompt in prompts]
        rows = next(size for size in SIZES if size >= len(texts))
        ids = torch.zeros((rows, WINDOW), dtype=torch.long)
        ends = torch.ones(rows, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(list(text))
            ends[row] = len(text)
        every = torch.arange(rows)
        with torch.inference_mode():
            for _ in range(NEW):
                logits = self.model(input_ids=ids, use_cache=False).logits
                ids[every, ends] = logits[every, ends - 1].argmax(-1)
                ends += 1
        return [
            bytes(ids[row, : ends[row]].tolist()).decode("latin-1") for row in range(len(texts))
        ]

    async def __call__(self, request: Request) -> dict:
        return {"text": await self.generate(request.query_params["text"])}


def load() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=WINDOW, n_embd=64, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config).eval()


app = BatchTextGenerator.bind(load())
