# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Speech to text with Whisper's architecture, streamed while the recording is still arriving.

A request contains raw samples. The deployment cuts the samples into chunks, and transcribes each
chunk as soon as it is complete. Chunks of several requests form a batch. Only three calls are
compiled, because silence fills every chunk up to the window of the encoder, and a decode step runs
all slots.

`recognizer` is the application on the CPU. `configured` returns an application from the `args` of a
Serve configuration: real weights from the Hub, or a GPU as in `serve_gpu.yaml`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.serve import Application
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_warm import Input, WarmupMixin

from .audio import RATE, SAMPLE_BYTES, BadRecordingError, Recording, SampleFormat
from .model import Chunk, Decode, Shape, Transcriber, load_random, load_weights

Event = dict[str, Any]
"""A line of a response."""


class Settings(BaseModel):
    """The `args` of a Serve configuration. The defaults are a small model on the CPU."""

    model_config = ConfigDict(extra="forbid")

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    mode: str | None = None
    """The mode of torch.compile: `reduce-overhead` captures CUDA graphs."""
    level: Literal[2, 3] = 2
    """The level of `serve_warm.compile_generation`; 3 makes libraries."""
    batch: int = Field(default=4, ge=1)
    """Number of slots in the cache. At most this many chunks are transcribed at the same time."""
    max_new_tokens: int = Field(default=128, ge=1, le=444)
    """Largest number of tokens of a chunk."""
    max_s: float = Field(default=3600, gt=0)
    """Longest recording, in seconds."""
    weights: str | None = None
    """A model on the Hub, such as `openai/whisper-tiny`; None makes random weights."""
    language: str = "en"
    """The language of recordings, for weights of a multilingual model."""
    shape: Shape = Shape()
    """Sizes of the model with random weights."""


class Options(BaseModel):
    """The query of a request."""

    model_config = ConfigDict(extra="forbid")

    format: SampleFormat = "int16"
    chunk_s: float | None = Field(default=None, ge=0.1)
    """Length of a chunk in seconds; None means the window of the encoder. Shorter chunks give text
    earlier."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of a chunk; None means the limit of the deployment."""


def options_of(request: Request) -> Options:
    """Return the query of a request.

    Raises:
        BadRecordingError: a name or a value is wrong.
    """
    try:
        return Options.model_validate(dict(request.query_params))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise BadRecordingError(f"{name} is not valid: {first['msg']}.") from error


async def lines(first: Event, others: AsyncGenerator[Event, None]) -> AsyncIterator[str]:
    """Yield a line of JSON for each event. An error after the first event is a line too."""
    async with contextlib.aclosing(others):
        yield json.dumps(first) + "\n"
        try:
            async for event in others:
                yield json.dumps(event) + "\n"
        except BadRecordingError as error:
            yield json.dumps({"error": str(error)}) + "\n"
        except ClientDisconnect:
            return  # nobody reads an answer


class Duplex(StreamingResponse):
    """A response that begins while the body of its request is still arriving.

    Starlette's response would read the body too, to detect that a client disconnects. In this app,
    Serve detects a disconnect and cancels the request.
    """

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self.body_iterator):  # type: ignore[type-var]
            await self.stream_response(send)


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=32)
class SpeechToText(WarmupMixin):
    """POST / with samples at 16 kHz → lines of JSON: {"start_s": 0.0, "text": " …"}, and so on."""

    settings = Settings()

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        model, extractor, self.decode = load(settings)
        self.window_s = extractor.chunk_length
        self.transcribe_batch.set_max_batch_size(settings.batch)
        self.transcriber = Transcriber(
            model.eval().to(settings.device, getattr(torch, settings.dtype)),
            extractor,
            batch=settings.batch,
            max_new_tokens=settings.max_new_tokens,
            language=settings.language,
            level=settings.level,
            mode=settings.mode,
        )

    def warmup_inputs(self) -> list[Input]:
        # One second of silence. Every chunk and every batch runs the same three compiled calls: the
        # encoder, the first token, and the step for every later token.
        return [
            Input(
                target="POST /?max_new_tokens=3",
                body=bytes(RATE * SAMPLE_BYTES["int16"]),
                concurrency=self.settings.batch,
            )
        ]

    async def __call__(self, request: Request) -> Response:
        try:
            options = options_of(request)
            recording = self.recording(options)
            if "content-length" in request.headers:  # else the size is checked as the body arrives
                recording.check_size(int(request.headers["content-length"]))
            limit = min(
                options.max_new_tokens or self.settings.max_new_tokens,
                self.settings.max_new_tokens,
            )
            events = self.events(recording.chunks(request.stream()), limit)
            # Await the first event here, so that an error before it still sets the status code.
            first = await anext(events)
        except BadRecordingError as error:
            return PlainTextResponse(f"{error}\n", status_code=error.status)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        return Duplex(lines(first, events), media_type="application/x-ndjson")

    def recording(self, options: Options) -> Recording:
        """Return a description of a request's recording: its format, and how to cut it.

        Raises:
            BadRecordingError: chunks are longer than the window.
        """
        chunk_s = self.window_s if options.chunk_s is None else options.chunk_s
        if chunk_s > self.window_s:
            raise BadRecordingError(
                f"A chunk has at most {self.window_s} s, but chunk_s is {chunk_s:g}."
            )
        return Recording(format=options.format, chunk_s=chunk_s, max_s=self.settings.max_s)

    async def events(
        self, chunks: AsyncIterator[torch.Tensor], limit: int
    ) -> AsyncGenerator[Event, None]:
        """Yield an event for each piece of text, and an event for the end of each chunk."""
        samples = 0
        async for each in chunks:
            start_s = round(samples / RATE, 3)
            samples += len(each)
            async with contextlib.aclosing(self.texts(Chunk(each, limit=limit))) as texts:
                async for text in texts:
                    yield {"start_s": start_s, "text": text}
            yield {"start_s": start_s, "end_s": round(samples / RATE, 3)}

    async def texts(self, chunk: Chunk) -> AsyncGenerator[str, None]:
        """Yield the text of a chunk in pieces, each as soon as it is generated."""
        batch = asyncio.ensure_future(self.transcribe_batch(chunk))
        batch.add_done_callback(chunk.finish)
        try:
            tokens: list[int] = []
            said = ""
            while (token := await chunk.next()) is not None:
                tokens.append(token)
                text = self.decode(tokens)
                # A character of several tokens is incomplete until the last of these tokens.
                if len(text) > len(said) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                    yield text[len(said) :]
                    said = text
        finally:
            chunk.is_wanted = False

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.02)
    async def transcribe_batch(self, chunks: list[Chunk]) -> list[None]:
        wanted = [chunk for chunk in chunks if chunk.is_wanted]
        if wanted:
            await self.on_model_thread(self.transcriber.transcribe, wanted)
        return [None] * len(chunks)


def load(settings: Settings) -> tuple[Any, Any, Decode]:
    """Return the model, the feature extractor and a function that decodes tokens."""
    if settings.weights is None:
        return load_random(settings.shape)
    return load_weights(settings.weights)


recognizer = SpeechToText.bind()


def configured(settings: Settings) -> Application:
    """Return the application for the `args` of a Serve configuration."""
    return SpeechToText.bind(settings)
