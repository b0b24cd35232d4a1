# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The text generator on real Ray: ready and proven, and streaming."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from conftest import HANG_S
from decoding import best_at_each
from deployments.text_generator.app import SHAPE
from deployments.text_generator.model import load_model
from serve_warm.builder.app import load_app
from serve_warm.builder.cluster import ReadyReplica

# A minute for one example; tests/generation has its steps.
pytestmark = [pytest.mark.ray, pytest.mark.stress]

CONFIG = Path(__file__).parent.parent.parent / "deployments/text_generator/serve.yaml"


@pytest.fixture(scope="module")
def started(on) -> Iterator[ReadyReplica]:
    with on.running(load_app(str(CONFIG)), {"artifact": None}) as start:
        yield start


def generate(started: ReadyReplica, **body: object) -> requests.Response:
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
