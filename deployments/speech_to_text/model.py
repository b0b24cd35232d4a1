# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whisper with compiled steps, and the listeners that get each token as soon as it is generated.

`generate` of transformers runs a batch of chunks in one loop. Each chunk is a row with a slot of
the cache. A row ends when its text ends, when its request's limit is reached, or when its client
disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import WhisperFeatureExtractor
from transformers.generation import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import serve_warm

from .audio import RATE

PREFIX = 4
"""Largest number of tokens before a text: start, language, task, no timestamps."""
POSITIONS_A_SECOND = 50
"""Encoder positions per second of sound."""
PAD, START, END = 0, 1, 2
"""Ids of the special tokens, in a model with random weights."""

Decode = Callable[[list[int]], str]
"""Maps tokens to text."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model with random weights. The defaults are the sizes of whisper-tiny."""

    layers: int = 4
    width: int = 384
    heads: int = 6
    vocabulary: int = 51_865
    window_s: int = 30
    """Length of the encoder's input in seconds."""


def load_random(shape: Shape) -> tuple[Any, WhisperFeatureExtractor, Decode]:
    """Return a model, a feature extractor and a token decoder, which are the same at every start.

    Nothing is downloaded. Without a tokenizer, a text consists of token numbers.
    """
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=4 * shape.width,
        decoder_ffn_dim=4 * shape.width,
        max_source_positions=POSITIONS_A_SECOND * shape.window_s,
        pad_token_id=PAD,
        bos_token_id=START,
        decoder_start_token_id=START,
        eos_token_id=END,
        begin_suppress_tokens=[PAD, END],
        # Without training, attention would be uniform, and each token would predict itself. With
        # larger weights and an untied head, the tokens depend on the sound and on the cache.
        init_std=2 / shape.width**0.5,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WhisperForConditionalGeneration(config)
    extractor = WhisperFeatureExtractor(chunk_length=shape.window_s)
    return model, extractor, lambda tokens: "".join(f" {token}" for token in tokens)


def load_weights(name: str) -> tuple[Any, WhisperFeatureExtractor, Decode]:
    """Return the model, feature extractor and token decoder from the Hub, or from a folder."""
    from transformers import WhisperForConditionalGeneration, WhisperTokenizer

    tokenizer = WhisperTokenizer.from_pretrained(name)
    return (
        WhisperForConditionalGeneration.from_pretrained(name),
        WhisperFeatureExtractor.from_pretrained(name),
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
    )


class Chunk:
    """A part of a recording, and the queue of tokens that the model generates for this part."""

    def __init__(self, samples: torch.Tensor, *, limit: int) -> None:
        self.samples, self.limit = samples, limit
        self.is_wanted = True
        """Whether a client still listens. A row without a listener ends with the next token."""
        self._loop = asyncio.get_running_loop()
        self._made: asyncio.Queue[int | BaseException | None] = asyncio.Queue()

    def tell(self, token: int | None) -> None:
        """Deliver the next token, or None after the last token. Call this on the model thread."""
        self._loop.call_soon_threadsafe(self._made.put_nowait, token)

    def finish(self, batch: asyncio.Future[None]) -> None:
        """Deliver the exception of this chunk's batch, or None if the batch has no exception."""
        self._made.put_nowait(None if batch.cancelled() else batch.exception())

    async def next(self) -> int | None:
        """Return the next token, or None after the last token.

        Raises:
            BaseException: the exception of the model.
        """
        made = await self._made.get()
        if isinstance(made, BaseException):
            raise made
        return made


class Listeners(BaseStreamer, StoppingCriteria):
    """The chunks of a batch.

    `generate` delivers tokens to each chunk, and asks which rows should end.
    """

    def __init__(self, chunks: Sequence[Chunk], *, end: int) -> None:
        self.chunks, self.end_token = chunks, end
        self.prompt = 0
        """Number of tokens before the text. `generate` delivers these tokens first."""
        self.left = [chunk.limit for chunk in chunks]

    def put(self, value: torch.Tensor) -> None:
        """Deliver the next token of each row to its chunk."""
        if not self.prompt:
            self.prompt = value.shape[-1]
            return
        for row, (chunk, token) in enumerate(zip(self.chunks, value.tolist(), strict=True)):
            if not self.left[row] or not chunk.is_wanted:
                continue
            self.left[row] = 0 if token == self.end_token else self.left[row] - 1
            if token != self.end_token:
                chunk.tell(token)
            if not self.left[row]:
                chunk.tell(None)

    def end(self) -> None:
        """Do nothing, because the end of each chunk has already been delivered."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_more: Any) -> torch.Tensor:
        """Return which rows have reached their limit or have no listener."""
        del scores
        made = input_ids.shape[1] - self.prompt
        ended = [made >= chunk.limit or not chunk.is_wanted for chunk in self.chunks]
        return torch.tensor(ended, device=input_ids.device)


class Transcriber:
    """Whisper with compiled steps: encoder, first token, and one step for all slots."""

    def __init__(
        self,
        model: Any,
        extractor: WhisperFeatureExtractor,
        *,
        batch: int,
        max_new_tokens: int,
        language: str,
        **arguments: Any,
    ) -> None:
        self.extractor = extractor
        self.model = serve_warm.compile_generation(
            model, batch=batch, max_length=PREFIX + max_new_tokens, **arguments
        )
        # A model of one language refuses these options. Without a language, a multilingual model
        # would detect the language with a call that is not compiled.
        is_multilingual = getattr(model.generation_config, "is_multilingual", False)
        words = {"language": language, "task": "transcribe"}
        self.options = words if is_multilingual else {}

    def features(self, samples: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return log-mel features of shape (rows, mels, frames).

        Silence fills each row up to the window.
        """
        made = self.extractor(
            [each.numpy() for each in samples], sampling_rate=RATE, return_tensors="pt"
        )
        return made.input_features.to(self.model.device, self.model.dtype)

    def transcribe(self, chunks: Sequence[Chunk]) -> None:
        """Transcribe a batch of chunks, and deliver the tokens of each chunk.

        This method blocks, so call it on the model thread.
        """
        listeners = Listeners(chunks, end=self.model.generation_config.eos_token_id)
        self.model.generate(
            self.features([chunk.samples for chunk in chunks]),
            streamer=listeners,
            stopping_criteria=StoppingCriteriaList([listeners]),
            # Whisper adds the number of tokens before the text to this limit.
            max_length=max(chunk.limit for chunk in chunks),
            do_sample=False,
            **self.options,
        )
