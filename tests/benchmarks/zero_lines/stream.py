# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A chatbot that streams its answer, after Ray Serve's tutorial about streaming.

Differs: a small Llama with random weights and one token for each byte, which is called without a
cache, with windows of two sizes. The step that makes a token is a method that is compiled in the
body of its class.
"""

import asyncio
from collections.abc import AsyncIterator
from queue import Empty, SimpleQueue

import torch
from fastapi import FastAPI
from ray import serve
from starlette.responses import StreamingResponse
from transformers import LlamaConfig, LlamaForCausalLM

NEW = 6
WINDOWS = (24, 48)
api = FastAPI()


class Decoder:
    def __init__(self, layers: int):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=max(WINDOWS),
        )
        self.model = LlamaForCausalLM(config).eval()

    @torch.compile(fullgraph=True, dynamic=False)
    def next_token(self, ids: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=ids, use_cache=False).logits
        return logits[0].index_select(0, last).argmax(-1)


@serve.deployment(max_ongoing_requests=16)
@serve.ingress(api)
class Chatbot:
    def __init__(self, layers: int):
        self.loop = asyncio.get_running_loop()
        self.decoder = Decoder(layers)

    def generate(self, prompt: str, answer: SimpleQueue) -> None:
        text = prompt.encode()[: max(WINDOWS) - NEW]
        window = next(size for size in WINDOWS if size >= len(text) + NEW)
        ids = torch.zeros((1, window), dtype=torch.long)
        ids[0, : len(text)] = torch.tensor(list(text))
        try:
            with torch.inference_mode():
                for end in range(len(text), len(text) + NEW):
                    token = int(self.decoder.next_token(ids, torch.tensor([end - 1])))
                    ids[0, end] = token
                    answer.put(f"{token} ")
        finally:
            answer.put(None)

    async def read(self, answer: SimpleQueue) -> AsyncIterator[str]:
        while True:
            try:
                token = answer.get_nowait()
            except Empty:
                await asyncio.sleep(0.002)
                continue
            if token is None:
                return
            yield token

    @api.post("/")
    async def chat(self, prompt: str) -> StreamingResponse:
        answer = SimpleQueue()
        self.loop.run_in_executor(None, self.generate, prompt, answer)
        return StreamingResponse(self.read(answer), media_type="text/plain")


app = Chatbot.bind(2)
