# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The text generator on real Ray: ready and proven, streaming, and right under eight clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from conftest import HANG_S
from decoding import best_at_each, greedy, prompt_of
from deployments.text_generator.app import MAX_PROMPT, SHAPE
from deployments.text_generator.model import load_model
from serve_warm.builder.app import load_app
from serve_warm.builder.cluster import Cluster, Start

pytestmark = [pytest.mark.ray, pytest.mark.long]

CONFIG = Path(__file__).parent.parent.parent / "deployments/text_generator/serve.yaml"
CLIENTS = 8
REQUESTS = 240
ASKED = {length: 2 + length % 11 for length in (1, 2, 9, 15, 16, 17, 33, 64, 65, 90, MAX_PROMPT)}
"""New tokens by length of prompt: every bucket, its limits, and ends at different steps."""


@pytest.fixture(scope="module")
def started(cluster) -> Iterator[Start]:
    on = Cluster(int(cluster.url.rpartition(":")[2]))
    with on.running(load_app(str(CONFIG)), {"artifact": None}) as start:
        yield start


def prompt(length: int) -> list[int]:
    return prompt_of(length, vocabulary=SHAPE.vocabulary)


def generate(started: Start, **body: object) -> requests.Response:
    return requests.post(f"{started.url}/generate", json=body, timeout=HANG_S)


def test_it_is_ready_with_every_input_proven(started):
    """Three buckets of prompts, each with decode steps, are proven; nothing is warned about."""
    report = started.report()

    assert report["stage"] == "READY"
    assert report["covered"] == {"expected": 3, "proven": 3}
    assert report["warnings"] == []
    # Each is compiled for one of twelve blocks: three buckets and a decode step.
    assert report["warmup"]["compiles"] == 4


def test_tokens_come_before_the_answer_ends(started):
    """After the first token, another request is answered before this answer ends."""
    count = SHAPE.max_length - 3
    body = b'{"prompt": [5, 6, 7], "max_new_tokens": %d}' % count
    address = urlsplit(started.url)
    request = (
        f"POST {address.path}/generate HTTP/1.1\r\nhost: {address.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    received, arrivals = b"", []
    with socket.create_connection((address.hostname, address.port), timeout=HANG_S) as connection:
        connection.sendall(request.encode() + body)
        # All that has come until then is in each: what is left to come is still to be made.
        while piece := connection.recv(2**20):
            received += piece
            # What stands between the lines, the sizes of the chunks, ends in "\r\n".
            arrivals.append([int(token) for token in re.findall(rb"(?m)^(\d+)\n", received)])
            if any(arrivals) and not any(arrivals[:-1]):
                generate(started, prompt=[8], max_new_tokens=count // 3)
                after_another = len(arrivals)

    assert len(arrivals[-1]) == count
    assert arrivals[-1] == best_at_each(load_model(SHAPE), [5, 6, 7], arrivals[-1])
    assert 0 < len(arrivals[after_another]) < count


@pytest.mark.stress  # for most of a minute; other models serve eight clients in every run
def test_eight_clients_get_the_eager_tokens_and_compile_nothing(started):
    """Hundreds of requests of mixed lengths, more at once than slots: no error, no compile."""

    def client(number: int) -> list[tuple[int, int, list[int]]]:
        answers = []
        for index in range(REQUESTS // CLIENTS):
            length = list(ASKED)[(number * 5 + index) % len(ASKED)]
            response = generate(started, prompt=prompt(length), max_new_tokens=ASKED[length])
            tokens = [int(line) for line in response.text.splitlines()]
            answers.append((length, response.status_code, tokens))
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [answer for part in pool.map(client, range(CLIENTS)) for answer in part]
    after_ready = started.report()["after_ready"]

    model = load_model(SHAPE)
    eager = {length: greedy(model, prompt(length), count=count) for length, count in ASKED.items()}
    wrong = [answer for answer in answers if answer[1:] != (200, eager[answer[0]])]
    assert wrong == []
    assert len(answers) == REQUESTS
    assert after_ready == dict.fromkeys(after_ready, 0)


def test_a_body_that_is_no_json_is_answered_with_one_sentence(started):
    """A body that is not JSON is a bad request too, and the sentence names no field."""
    response = requests.post(
        f"{started.url}/generate",
        data="five",
        headers={"content-type": "application/json"},
        timeout=HANG_S,
    )

    assert response.status_code == 400
    assert response.text == (
        'The body is not {"prompt": [whole numbers], "max_new_tokens": a whole number}: '
        "JSON decode error.\n"
    )
