# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The speech recogniser on real Ray: built, started from the artifact, and eager's text."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
import requests
import torch

from conftest import HANG_S
from serve_warm.builder.app import load_app
from serve_warm.builder.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.stress]  # its build alone takes a minute

SHAPE = {"layers": 1, "width": 64, "heads": 2, "vocabulary": 300, "window_s": 2}
ARGS = {"batch": 3, "max_new_tokens": 200, "max_s": 8, "shape": SHAPE}
CONFIG = """
applications:
  - name: speech_to_text
    route_prefix: /
    import_path: deployments.speech_to_text.app:configured
    args: {args}
    deployments:
      - {{name: SpeechToText, ray_actor_options: {{num_cpus: 0}}}}
"""
WINDOW = 2 * 16_000 * 2
"""Bytes of a window."""


@pytest.fixture(
    scope="module", params=[2, pytest.param(3, marks=pytest.mark.stress)], ids=["level2", "level3"]
)
def level(request) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def started(cluster, level, tmp_path_factory) -> Iterator[Any]:
    """A replica that was started from an artifact of its own."""
    folder = tmp_path_factory.mktemp("speech")
    (folder / "serve.yaml").write_text(CONFIG.format(args={**ARGS, "level": level}))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "serve_warm.cli", "build", str(folder / "serve.yaml")),
            *("--store", str(folder / "artifacts")),
            *("--address", ray.get_runtime_context().gcs_address),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    on = Cluster(int(cluster.url.rpartition(":")[2]))
    app = load_app(str(folder / "serve.yaml"))
    with on.running(app, {"artifact": str(folder / "artifacts")}) as start:
        yield start


def sound(seconds: float, *, pitch: int = 1) -> bytes:
    """Return a tone as int16: each pitch is another sound."""
    time_s = torch.arange(round(seconds * 16_000)) / 16_000
    tone = 8000 * torch.sin(2 * torch.pi * 250 * 2**pitch * time_s)
    return bytes(tone.to(torch.int16).numpy().tobytes())


def post(started: Any, body: Any, **query: Any) -> requests.Response:
    return requests.post(f"{started.url}/", data=body, params=query, timeout=HANG_S)


def texts(answer: str) -> list[str]:
    """Return the text of each chunk."""
    events = map(json.loads, answer.splitlines())
    groups = itertools.groupby(events, key=lambda event: event["start_s"])
    return ["".join(event.get("text", "") for event in group) for _, group in groups]


def eager(*chunks: bytes, count: int = 200) -> list[str]:
    """Return the text of each chunk, by `generate` of the model itself."""
    from deployments.speech_to_text.model import END, Shape, load_random

    model, extractor, decode = load_random(Shape(**SHAPE))
    made = []
    for chunk in chunks:
        wave = torch.frombuffer(bytearray(chunk), dtype=torch.int16) / 32_768
        features = extractor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
        tokens = model.eval().generate(features.input_features, max_length=count, do_sample=False)
        made.append(decode([token for token in tokens[0].tolist() if token != END]))
    return made


def test_encoder_and_decoder_are_loaded(started, level):
    """Encoder, first token and decode step: three entries serve every batch, and none compiles."""
    report = started.report()

    assert report["verdict"] == "full_hit"
    assert report["covered"] == {"expected": 1, "proven": 1}
    assert report["levels"] == {"1": 0, "2": 0, "3": 0, str(level): 3}
    assert report["warnings"] == []


def test_texts_are_those_of_eager_alone_and_in_batches(started):
    """More clients than slots, with other sounds, lengths and limits; nothing compiles."""
    asked = [(pitch, seconds, 40 + 30 * pitch) for pitch in range(4) for seconds in (0.5, 3)]

    def client(request: tuple[int, float, int]) -> tuple[int, list[str]]:
        pitch, seconds, count = request
        response = post(started, sound(seconds, pitch=pitch), max_new_tokens=count)
        return response.status_code, texts(response.text)

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(client, asked))

    for (pitch, seconds, count), answer in zip(asked, answers, strict=True):
        whole = sound(seconds, pitch=pitch)
        chunks = [whole[at : at + WINDOW] for at in range(0, len(whole), WINDOW)]
        assert answer == (200, eager(*chunks, count=count))
    assert not any(started.report()["after_ready"].values())
