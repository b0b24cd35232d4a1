# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Token generation with a 12-layer decoder behind FastAPI, streamed token by token.

A prompt is padded to a length bucket and processed in one pass. Then every step makes one token
for each running sequence. Only four shapes are compiled. All blocks have the same class, so code
that is compiled for one block also serves the other blocks.

`generator` is the application on the CPU. `configured` returns an application from the `args` of a
Serve configuration: `serve_gpu.yaml` runs it on a GPU, with one CUDA graph for each step.
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
from serve_warm.generation import Slots

from .model import Shape, compiled, decoder_of, load_model

app = FastAPI(title="text_generator")

SHAPE = Shape()
MAX_PROMPT = 128
LENGTHS = [16, 64, MAX_PROMPT]


class Settings(BaseModel):
    """The `args` of a Serve configuration. The defaults put the model on the CPU."""

    model_config = ConfigDict(extra="forbid")

    device: str = "cpu"
    mode: str | None = None
    """The mode of torch.compile: `reduce-overhead` captures CUDA graphs."""


class Prompt(BaseModel):
    """The body of a request: whole numbers, because there is no tokenizer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompt: list[int]
    max_new_tokens: int = 16


# Helpers must be above the class: when @serve.ingress decorates the class, it copies the app and
# the names that the app's routes can see at that time.


@app.exception_handler(RequestValidationError)
async def not_a_prompt(_request: Request, error: RequestValidationError) -> Response:
    """Answer an invalid request body with one sentence, not with a list of problems."""
    first = error.errors()[0]
    # ("body", "prompt", 2) is a field and an index. ("body", 17) is the position of a JSON error.
    field = "" if first["type"] == "json_invalid" else ".".join(map(str, first["loc"][1:]))
    return bad_request(
        'The body is not {"prompt": [whole numbers], "max_new_tokens": a whole number}: '
        f"{field + ': ' if field else ''}{first['msg']}."
    )


def bad_request(sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status_code=400)


def problem(request: Prompt) -> str:
    """Return a sentence that says why a request cannot be answered, or "" if it can be answered."""
    length, count = len(request.prompt), request.max_new_tokens
    if not length:
        return "A prompt needs at least one token, but this one is empty."
    if length > MAX_PROMPT:
        return f"A prompt has at most {MAX_PROMPT} tokens, but this one has {length}."
    for token in request.prompt:
        if not 0 <= token < SHAPE.vocabulary:
            return f"A token is a number from 0 to {SHAPE.vocabulary - 1}, but {token} is not."
    if count < 1:
        return f"max_new_tokens is at least 1, but here it is {count}."
    if length + count > SHAPE.max_length:
        return (
            f"The cache holds {SHAPE.max_length} tokens of a sequence, but this sequence would "
            f"have {length + count}: {length} in the prompt and {count} new ones."
        )
    return ""


async def lines(first: int, others: AsyncGenerator[int, None]) -> AsyncIterator[str]:
    """Yield a line for each token. `others` is closed when the client disconnects."""
    async with contextlib.aclosing(others):
        yield f"{first}\n"
        async for token in others:
            yield f"{token}\n"


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
@serve.ingress(app)
class TextGenerator(WarmupMixin):
    """POST /generate {"prompt": [1, 2, 3], "max_new_tokens": 16} → 16 lines, one token per line."""

    buckets = Buckets(length=LENGTHS)

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        model = load_model(SHAPE, device=settings.device)
        self.model = compiled(model, mode=settings.mode)
        self.slots = Slots(decoder_of(self.model, LENGTHS), call=self.on_model_thread)

    def warmup_inputs(self) -> list[Input]:
        # The first token comes from the prefill step, and the others come from decode steps.
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
        # Await the first token here, so that an error before it still sets the status code.
        first = await anext(tokens)
        return StreamingResponse(lines(first, tokens), media_type="text/plain")


generator = TextGenerator.bind()


def configured(settings: Settings) -> Application:
    """Return the application for the `args` of a Serve configuration."""
    return TextGenerator.bind(settings)
