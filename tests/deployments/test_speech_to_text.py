# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The speech recogniser without a cluster: chunks, texts, limits, bad recordings and clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import torch
from starlette.requests import Request

from deployments.speech_to_text.app import Settings, SpeechToText
from deployments.speech_to_text.audio import RATE, Recording
from deployments.speech_to_text.model import END, Chunk, Listeners, Shape, load_random, load_weights

pytestmark = pytest.mark.slow  # by the imports and the models

SMALL = Settings(
    batch=2,
    max_new_tokens=12,
    max_s=8,
    shape=Shape(layers=2, width=64, heads=2, vocabulary=300, window_s=2),
)
SECOND = RATE * 2
"""Bytes of a second of int16."""
LEAVES = b"the client leaves"
"""The last piece of a body that is not sent to its end."""


async def one_a_batch(replica: Any, chunk: Chunk) -> None:
    """Transcribe a single chunk. Only a replica of Serve forms batches."""
    if chunk.is_wanted:
        await asyncio.to_thread(replica.transcriber.transcribe, [chunk])


one_a_batch.set_max_batch_size = lambda _size: None  # type: ignore[attr-defined]


class Alone(SpeechToText.func_or_class):  # type: ignore[misc, name-defined]
    """The deployment without Serve."""

    transcribe_batch = one_a_batch


@pytest.fixture(scope="module", name="replica")
def replica_fixture() -> Any:
    """A replica whose steps run eagerly."""
    with torch.compiler.set_stance("force_eager"):
        yield Alone(SMALL)


def sound(seconds: float, *, pitch: int = 1) -> bytes:
    """Return a tone with noise as int16: each pitch is another sound."""
    time_s = torch.arange(round(seconds * RATE)) / RATE
    noise = torch.randn(len(time_s), generator=torch.Generator().manual_seed(pitch))
    tone = 8000 * torch.sin(2 * torch.pi * 250 * 2**pitch * time_s) + 1000 * noise
    return bytes(tone.to(torch.int16).numpy().tobytes())


def wave(data: bytes) -> torch.Tensor:
    """Return int16 as numbers from -1 to 1."""
    return torch.frombuffer(bytearray(data), dtype=torch.int16) / 32_768


def eager(chunks: Iterable[bytes], *, count: int) -> list[str]:
    """Return the text of each chunk, by `generate` of a model that serve_warm never saw."""
    model, extractor, decode = load_random(SMALL.shape)
    texts = []
    for each in chunks:
        features = extractor(wave(each).numpy(), sampling_rate=RATE, return_tensors="pt")
        made = model.eval().generate(features.input_features, max_length=count, do_sample=False)
        texts.append(decode([token for token in made[0].tolist() if token != END]))
    return texts


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def ask(replica: Any, *pieces: bytes, query: str = "", **headers: str) -> tuple[int, str]:
    """Return status and text of the answer to a request whose body comes in pieces."""
    return asyncio.run(answer(replica, *pieces, query=query, **headers))


async def answer(replica: Any, *pieces: bytes, query: str = "", **headers: str) -> tuple[int, str]:
    rest = list(pieces)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if rest == [LEAVES]:
            return {"type": "http.disconnect"}
        body = rest.pop(0) if rest else b""
        return {"type": "http.request", "body": body, "more_body": bool(rest)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "query_string": query.encode(),
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }
    response = await replica(Request(scope, receive))
    await response(scope, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent).decode()


def texts_of(answered: str) -> list[str]:
    texts: dict[float, str] = {}
    for event in map(json.loads, answered.splitlines()):
        texts.setdefault(event["start_s"], "")
        texts[event["start_s"]] += event.get("text", "")
    return list(texts.values())


# Texts ----------------------------------------------------------------------------------------


def test_a_recording_has_the_text_of_eager(replica):
    """The output has one chunk, token by token, and then the times of the chunk."""
    status, text = ask(replica, sound(1.5))

    events = [json.loads(line) for line in text.splitlines()]
    assert status == 200
    assert texts_of(text) == eager([sound(1.5)], count=12)
    assert len(events) == 13
    assert events[-1] == {"start_s": 0.0, "end_s": 1.5}


def test_a_long_recording_is_cut_into_windows(replica):
    """Each window has the same text as alone. The last window may be short."""
    whole = sound(4.5)
    parts = [whole[: 2 * SECOND], whole[2 * SECOND : 4 * SECOND], whole[4 * SECOND :]]

    status, text = ask(replica, whole)

    ends = [e["end_s"] for e in map(json.loads, text.splitlines()) if "end_s" in e]
    assert (status, ends) == (200, [2.0, 4.0, 4.5])
    assert texts_of(text) == eager(parts, count=12)


WHOLE = sound(2.5)


@pytest.mark.parametrize(
    ("pieces", "query"),
    [
        ((WHOLE[:1], WHOLE[1:4], WHOLE[4:40_001], WHOLE[40_001:]), ""),
        ((wave(WHOLE).numpy().tobytes(),), "format=float32"),
    ],
    ids=["pieces that split a sample", "float32"],
)
def test_the_same_sound_has_the_same_text(replica, pieces: tuple[bytes, ...], query: str):
    """A network cuts a body anywhere, and both formats have the same samples."""
    assert ask(replica, *pieces, query=query) == ask(replica, WHOLE)


def test_shorter_chunks_have_their_own_texts(replica):
    """`chunk_s` cuts before the window is full; silence fills it up."""
    whole = sound(1)
    halves = [whole[: SECOND // 2], whole[SECOND // 2 :]]

    assert texts_of(ask(replica, whole, query="chunk_s=0.5")[1]) == eager(halves, count=12)


def test_a_request_has_its_own_limit_and_never_more_than_the_deployment(replica):
    """The smaller of both limits applies."""
    few = ask(replica, sound(1), query="max_new_tokens=3")[1]
    many = ask(replica, sound(1), query="max_new_tokens=999")[1]

    assert texts_of(few) == eager([sound(1)], count=3)
    assert texts_of(many) == eager([sound(1)], count=12)


def test_rows_of_a_batch_have_their_own_texts_and_ends(replica):
    """Two chunks with different limits run in one `generate`. Each gets the same text as alone."""

    async def together() -> list[list[int]]:
        chunks = [
            Chunk(wave(sound(1, pitch=pitch)), limit=limit) for pitch, limit in ((1, 4), (2, 9))
        ]
        await asyncio.to_thread(replica.transcriber.transcribe, chunks)
        return [await tokens_of(chunk) for chunk in chunks]

    tokens = asyncio.run(together())

    assert [len(each) for each in tokens] == [4, 9]
    assert [replica.decode(each) for each in tokens] == [
        eager([sound(1, pitch=pitch)], count=n)[0] for pitch, n in ((1, 4), (2, 9))
    ]


async def tokens_of(chunk: Chunk) -> list[int]:
    made = []
    while (token := await chunk.next()) is not None:
        made.append(token)
    return made


def test_a_row_ends_at_its_limit_or_when_nobody_listens():
    """A client that leaves costs one step, and not the rest of its text."""

    async def ended() -> list[list[bool]]:
        chunks = [Chunk(torch.zeros(1), limit=limit) for limit in (2, 9, 9)]
        listeners = Listeners(chunks, end=END)
        listeners.put(torch.tensor([[1], [1], [1]]))  # the start of each row
        chunks[2].is_wanted = False
        return [listeners(torch.ones(3, 1 + made), None).tolist() for made in (1, 2, 9)]

    assert asyncio.run(ended()) == [[False, False, True], [True, False, True], [True, True, True]]


def test_a_text_ends_before_its_end_token():
    """The end is no part of a text, and neither is the padding of a row that waits for others."""

    async def told() -> list[list[int]]:
        chunks = [Chunk(torch.zeros(1), limit=4) for _ in range(2)]
        listeners = Listeners(chunks, end=END)
        listeners.put(torch.tensor([[1], [1]]))
        for tokens in ([7, 5], [END, 6], [0, 7], [0, 8]):
            listeners.put(torch.tensor(tokens))
        listeners.end()
        return [await tokens_of(chunk) for chunk in chunks]

    assert asyncio.run(told()) == [[7], [5, 6, 7, 8]]


def test_a_client_that_leaves_ends_its_chunk(replica):
    """Closing the answer tells the chunk, whose row then ends."""
    seen: list[Chunk] = []

    class Watched(Alone):
        async def transcribe_batch(self, chunk: Chunk) -> None:
            seen.append(chunk)
            chunk.tell(5)
            await asyncio.sleep(3600)

    async def scenario() -> None:
        watched = Watched.__new__(Watched)
        watched.settings, watched.decode, watched.window_s = SMALL, replica.decode, 2
        recording = Recording(format="int16", chunk_s=2, max_s=8)
        events = watched.events(recording.chunks(pieces_of(sound(1))), 12)
        async with contextlib.aclosing(events):
            assert await anext(events) == {"start_s": 0.0, "text": " 5"}
            assert seen[0].is_wanted

    asyncio.run(scenario())

    assert not seen[0].is_wanted


def test_a_client_that_leaves_while_it_sends_is_no_error(replica):
    """The samples before the disconnect are transcribed, and then the request ends."""
    before_text = ask(replica, sound(1), LEAVES)
    after_text = ask(replica, sound(2), LEAVES)

    assert before_text == (400, "")
    assert texts_of(after_text[1]) == eager([sound(2)], count=12)


def test_what_the_model_raises_comes_out_of_the_request(replica):
    """A request does not wait for a text that never comes."""

    class Broken(Alone):
        async def transcribe_batch(self, chunk: Chunk) -> None:
            raise ZeroDivisionError

    broken = Broken.__new__(Broken)
    broken.settings, broken.decode, broken.window_s = SMALL, replica.decode, 2

    with pytest.raises(ZeroDivisionError):
        ask(broken, sound(1))


def test_a_character_of_several_tokens_is_sent_whole(replica):
    """A text that ends within a character waits for its next token."""
    texts = {1: "a", 2: "a\N{REPLACEMENT CHARACTER}", 3: "aé"}

    class Spoken(Alone):
        async def transcribe_batch(self, chunk: Chunk) -> None:
            for token in (7, 8, 9):
                chunk.tell(token)
            chunk.tell(None)

    async def scenario() -> list[str]:
        spoken = Spoken.__new__(Spoken)
        spoken.decode = lambda tokens: texts[len(tokens)]
        return [text async for text in spoken.texts(Chunk(torch.zeros(1), limit=3))]

    assert asyncio.run(scenario()) == ["a", "é"]


# Weights by name ------------------------------------------------------------------------------


def test_weights_by_name_bring_their_language_and_their_words(tmp_path):
    """A multilingual model gets the tokens of language and task first, and its tokenizer's text."""
    save_pretrained(tmp_path)
    settings = SMALL.model_copy(update={"weights": str(tmp_path), "language": "de"})
    with torch.compiler.set_stance("force_eager"):
        replica = Alone(settings)
        status, text = ask(replica, sound(1))

    model, extractor, decode = load_weights(str(tmp_path))
    made = extractor(wave(sound(1)).numpy(), sampling_rate=RATE, return_tensors="pt")
    features = made.input_features
    made = model.generate(
        features, max_length=12, do_sample=False, language="de", task="transcribe"
    )
    assert status == 200
    assert texts_of(text) == [decode(made[0].tolist())]
    assert texts_of(text)[0]
    other = model.generate(
        features, max_length=12, do_sample=False, language="en", task="transcribe"
    )
    assert decode(other[0].tolist()) != texts_of(text)[0]


def save_pretrained(folder: Any) -> None:
    """Save a random model as the Hub has them: of two languages, with a tokenizer of letters."""
    from transformers import WhisperTokenizer

    model, extractor, _ = load_random(SMALL.shape)
    config = model.generation_config
    config._from_model_config = False  # with it, loading forgets the rest
    config.is_multilingual = True
    config.lang_to_id = {"<|en|>": 290, "<|de|>": 291}
    config.task_to_id = {"transcribe": 292, "translate": 293}
    config.no_timestamps_token_id = 294
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    vocabulary = {chr(ord("a") + number % 26) * (1 + number // 26): number for number in range(300)}
    WhisperTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)


# Bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "query", "status", "says"),
    [
        (b"", "", 400, "A recording needs at least one sample, but this one is empty."),
        (
            bytes(5),
            "",
            400,
            "A sample of int16 has 2 bytes, but this recording of 5 bytes ends inside a sample.",
        ),
        (
            bytes(6),
            "format=float32",
            400,
            "A sample of float32 has 4 bytes, but this recording of 6 bytes ends inside a sample.",
        ),
        (
            b"\x00\x00\xc0\x7f" * 4,
            "format=float32",
            400,
            (
                "A float32 sample is a number from -1 to 1, but some samples of this recording are "
                "not: if the samples are int16, send format=int16."
            ),
        ),
        (
            b"RIFF" + bytes(60),
            "",
            400,
            "A recording is raw samples of 16000 Hz and one channel, but this is a WAV file.",
        ),
        (
            bytes(8 * SECOND + 2),
            "",
            413,
            "A recording has at most 8 s, but this one is longer: cut it.",
        ),
        (bytes(4), "chunk_s=2.5", 400, "A chunk has at most 2 s, but chunk_s is 2.5."),
        (
            bytes(4),
            "format=int8",
            400,
            "format is not valid: Input should be 'int16' or 'float32'.",
        ),
        (
            bytes(4),
            "max_new_tokens=0",
            400,
            "max_new_tokens is not valid: Input should be greater than or equal to 1.",
        ),
        (bytes(4), "rate=8000", 400, "rate is not valid: Extra inputs are not permitted."),
    ],
    ids=[
        *("empty", "odd", "inside a float", "no number", "WAV", "too long", "long chunk"),
        *("format", "no tokens", "unknown"),
    ],
)
def test_a_bad_recording_is_told_why_in_one_sentence(
    replica, body: bytes, query: str, status: int, says: str
):
    """Before any text, whether the client says how long its body is or not."""
    told = ask(replica, body, query=query, content_length=str(len(body)))
    unknown = ask(replica, body, query=query)

    assert told == unknown == (status, says + "\n")


def test_an_error_after_the_first_text_is_the_last_line(replica):
    """The status is sent by then. The texts before it are those of a good recording."""
    status, text = ask(replica, sound(2), sound(0.5) + b"\x00")

    *before, last = text.splitlines()
    assert status == 200
    assert texts_of("\n".join(before)) == eager([sound(2)], count=12)
    assert json.loads(last) == {
        "error": (
            "A sample of int16 has 2 bytes, but this recording of 80001 bytes ends inside a sample."
        )
    }


def test_text_comes_while_the_recording_does(replica):
    """The text of the first window is there before a second one is."""

    async def scenario() -> list[dict[str, Any]]:
        more = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            yield sound(2)
            await more.wait()
            yield sound(1)

        recording = Recording(format="int16", chunk_s=2, max_s=8)
        events = replica.events(recording.chunks(pieces()), 12)
        before = [await anext(events) for _ in range(13)]
        more.set()
        return [*before, *[event async for event in events]]

    events = asyncio.run(scenario())

    assert events[12] == {"start_s": 0.0, "end_s": 2.0}
    assert events[-1] == {"start_s": 2.0, "end_s": 3.0}


def test_the_declared_input_is_a_recording(replica):
    """It runs the encoder, a first token and a decode step, on all slots."""
    [declared] = replica.warmup_inputs()
    status, text = ask(replica, declared.body, query=declared.target.partition("?")[2])

    assert declared.concurrency == SMALL.batch
    assert status == 200
    assert len(text.splitlines()) == 4
