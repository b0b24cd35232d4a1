# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens from a 12-layer decoder behind FastAPI, streamed as they are made.

A prompt is padded to a bucket of length and taken in at once; after that every step makes one
token for each of the sequences under way. Four shapes are compiled and no other ever is, and
since all blocks are of one class, each is compiled for one block and serves the others.

`generator` is the application on the CPU, `configured` the one that `args` of a Serve
configuration describe: `serve_gpu.yaml` has it on a GPU, each step one CUDA graph.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from serve_warm import Buckets, Input, WarmupMixin, shape_grid

from .model import Shape, compiled, load_model
from .slots import Slots

app = FastAPI(title="text_generator")

SHAPE = Shape()
MAX_PROMPT = 128


class Settings(BaseModel):
    """What `args` of a Serve configuration may say; without them the model is on the CPU."""

    model_config = ConfigDict(extra="forbid")

    device: str = "cpu"
    mode: str | None = None
    """Of torch.compile: `reduce-overhead` captures CUDA graphs."""


class Prompt(BaseModel):
    """The body of a request: whole numbers, because there is no tokenizer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompt: list[int]
    max_new_tokens: int = 16


# Helpers stand above the class: @serve.ingress takes a copy of the app, and with it of what its
# routes can see, when the class is decorated.


@app.exception_handler(RequestValidationError)
async def not_a_prompt(_request: Request, error: RequestValidationError) -> Response:
    """Answer a body of another form with one sentence, not with a list of problems."""
    first = error.errors()[0]
    # ("body", "prompt", 2) names a field and an index, ("body", 17) where the JSON is broken.
    field = "" if first["type"] == "json_invalid" else ".".join(map(str, first["loc"][1:]))
    return bad_request(
        'The body is not {"prompt": [whole numbers], "max_new_tokens": a whole number}: '
        f"{field + ': ' if field else ''}{first['msg']}."
    )


def bad_request(sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status_code=400)


def problem(request: Prompt) -> str:
    """Return why a request cannot be answered, in one sentence, or nothing."""
    length, count = len(request.prompt), request.max_new_tokens
    if not length:
        return "A prompt has at least one token, and this one is empty."
    if length > MAX_PROMPT:
        return f"A prompt has at most {MAX_PROMPT} tokens, and this one has {length}."
    for token in request.prompt:
        if not 0 <= token < SHAPE.vocabulary:
            return f"A token is a number from 0 to {SHAPE.vocabulary - 1}, and {token} is not."
    if count < 1:
        return f"max_new_tokens is at least 1, and here it is {count}."
    if length + count > SHAPE.max_length:
        return (
            f"The cache holds {SHAPE.max_length} tokens of a sequence, and this one would have "
            f"{length + count}: {length} in the prompt and {count} new ones."
        )
    return ""


async def lines(first: int, others: AsyncGenerator[int, None]) -> AsyncIterator[str]:
    """Yield a line for each token; `others` ends when the client leaves."""
    async with contextlib.aclosing(others):
        yield f"{first}\n"
        async for token in others:
            yield f"{token}\n"


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
@serve.ingress(app)
class TextGenerator(WarmupMixin):
    """POST /generate {"prompt": [1, 2, 3], "max_new_tokens": 16} → 16 lines, a token each."""

    buckets = Buckets(length=[16, 64, MAX_PROMPT])

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        model = load_model(SHAPE, device=settings.device)
        self.model = compiled(model, mode=settings.mode)
        self.slots = Slots(self.model, self.buckets, call=self.on_model_thread)

    def warmup_inputs(self) -> list[Input]:
        # The first token comes from the prompt's bucket, the others from decode steps.
        return shape_grid(
            "POST /generate",
            self.buckets,
            make=lambda length: {"json": {"prompt": [1] * length, "max_new_tokens": 3}},
        )

    @app.post("/generate")
    async def generate(self, request: Prompt) -> Response:
        sentence = problem(request)
        if sentence:
            return bad_request(sentence)
        tokens = self.slots.tokens(request.prompt, count=request.max_new_tokens)
        # Awaited here: what fails before the first token still has a status code of its own.
        first = await anext(tokens)
        return StreamingResponse(lines(first, tokens), media_type="text/plain")


generator = TextGenerator.bind()


def configured(settings: Settings) -> Application:
    """Return the application that `args` of a Serve configuration describe."""
    return TextGenerator.bind(settings)
