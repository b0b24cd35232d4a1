# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of each application in `zero_lines`, for `bench_learn.py`."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.parse
import urllib.request
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXTS = (
    "It was a dark night.",
    "A dog runs home",
    "The train to the north leaves at nine, from the other side.",
    "Where can I find a quiet place to read this long and slow book?",
    "Rain",
    "Nobody knew why the lamp in the tower was lit.",
    "We had soup, bread and apples for lunch",
    "Seven ships",
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. Over gRPC, `path` is the method, and `body` is the text of the message."""

    path: str = "/"
    body: bytes | None = None
    """Sent with POST; without it, the request is a GET."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class App:
    """An application of `zero_lines`, and one round of its traffic."""

    requests: Sequence[Request]
    of_10: bool = True
    """Whether the application compiles something itself."""
    to_compile: Any = ()
    """The argument `compile` of wrap."""
    over_grpc: bool = False


def _get(path: str, **query: object) -> Request:
    return Request(path=f"{path}?{urllib.parse.urlencode(query)}")


def _post(data: object, path: str = "/", **headers: str) -> Request:
    return Request(path=path, body=json.dumps(data).encode(), headers=headers)


def _picture(width: int, height: int, seed: int) -> bytes:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _recording(samples: int, seed: int) -> bytes:
    import numpy as np

    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(16_000)
        sound = np.random.default_rng(seed).normal(0, 3000, samples).astype(np.int16)
        made.writeframes(sound.tobytes())
    return file.getvalue()


def _rows(count: int, seed: int) -> list[list[float]]:
    import numpy as np

    made: list[list[float]] = np.random.default_rng(seed).random((count, 8)).round(3).tolist()
    return made


APPS: dict[str, App] = {
    "text": App(requests=[_post(text) for text in TEXTS]),
    "image": App(
        requests=[
            Request(body=_picture(width, height, seed))
            for seed, (width, height) in enumerate([(48, 48), (80, 50), (60, 90), (120, 120)])
        ]
    ),
    "batch": App(requests=[_get("/", text=text) for text in TEXTS]),
    "stream": App(
        requests=[Request(path=_get("/", prompt=text[:40]).path, body=b"") for text in TEXTS]
    ),
    "multiplexed": App(
        requests=[
            _post(list(range(count)), serve_multiplexed_model_id=str(model))
            for model in (1, 2, 3)
            for count in (1, 4)
        ]
    ),
    "composed": App(requests=[_post(text) for text in TEXTS]),
    "grpc_service": App(
        requests=[
            Request(path=path, body=text.encode())
            for path in ("__call__", "Streaming")
            for text in TEXTS
            if path == "__call__" or len(text.split()) > 2
        ],
        over_grpc=True,
    ),
    "fastapi_ingress": App(
        requests=[
            *(_get("/embed", text=text) for text in TEXTS),
            _post({"texts": [*TEXTS[:3]]}, "/embed"),
            _post({"texts": [*TEXTS[4:6]]}, "/embed"),
        ]
    ),
    "diffusion": App(
        requests=[
            _get("/imagine", prompt=text, img_size=size) for text in TEXTS[:3] for size in (32, 48)
        ]
    ),
    "speech": App(
        requests=[
            Request(path="/v1/audio/transcriptions", body=_recording(samples, samples))
            for samples in (6_000, 8_000, 11_000, 16_000, 21_000)
        ]
    ),
    "named_sentiment": App(
        requests=[_get("/classify", sentence=text) for text in TEXTS],
        of_10=False,
        to_compile={"DistilBertModel": ["classifier.model"]},
    ),
    "named_vision": App(
        requests=[_post({"image": seed}) for seed in range(6)],
        of_10=False,
        to_compile={"ImageClassifier": ["model"]},
    ),
    "named_detection": App(
        requests=[
            _get("/detect", shape=shape, seed=seed) for shape in ("wide", "tall") for seed in (1, 2)
        ],
        of_10=False,
        to_compile={"ObjectDetection": ["model"]},
    ),
    "named_diffusion": App(
        requests=[_post({"label": label, "seed": label}) for label in (1, 207, 999)],
        of_10=False,
        to_compile=["pipe.transformer", "pipe.vae.decoder"],
    ),
    "named_batch": App(
        requests=[_post(row) for row in _rows(12, 0)], of_10=False, to_compile=["model"]
    ),
}


def send(app: App, request: Request, *, port: int, name: str) -> bytes:
    """Return the answer to a request. Over gRPC, `name` is the name of the application."""
    if app.over_grpc:
        return _call(request, port + 1, name)
    url = f"http://127.0.0.1:{port}{request.path}"
    headers = {"Content-Type": "application/json", **request.headers}
    posted = urllib.request.Request(url, request.body, headers)
    try:
        with urllib.request.urlopen(posted, timeout=600) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:  # another process cannot get it
        raise RuntimeError(f"{error}: {error.read()[:500]!r}") from None


def _call(request: Request, port: int, name: str) -> bytes:
    import grpc
    from ray.serve.generated import serve_pb2, serve_pb2_grpc

    message = serve_pb2.UserDefinedMessage(name=(request.body or b"").decode(), num=3)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = getattr(serve_pb2_grpc.UserDefinedServiceStub(channel), request.path)
        answered = method(message, metadata=(("application", name),), timeout=600)
        answers = list(answered) if request.path == "Streaming" else [answered]
    found = [{"score": float(each.greeting), "number": each.num_x2} for each in answers]
    return json.dumps(found).encode()
