# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The image generator without a cluster: seeds, padding, pictures and bad requests."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
import torch
from starlette.requests import Request

from components import require_module
from deployments.image_generator.app import ImageGenerator, Settings, noise, png

pytestmark = pytest.mark.slow  # by the imports and the models

TINY = Settings(batch=(1, 4), side=8, layers=1, heads=1, channels=(32, 32), steps=3)


@pytest.fixture(scope="module", autouse=True)
def _diffusers() -> None:
    """Skips without diffusers. It brings Pillow, which tests import where they need it."""
    require_module("diffusers", "make setup, with Python 3.11 or newer")


@pytest.fixture(scope="module", name="replica")
def replica_fixture() -> Any:
    """A replica whose models run eagerly."""
    with torch.compiler.set_stance("force_eager"):
        yield ImageGenerator.func_or_class(TINY)


def test_noise_of_a_seed_does_not_depend_on_its_batch():
    """A batch is what came at the same time: it must not change anybody's image."""
    together = noise([5, 9], batch=4, channels=4, side=8)
    alone = noise([9], batch=1, channels=4, side=8)

    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
    assert together[2:].eq(0).all()


def test_an_image_is_the_same_alone_and_in_a_padded_batch(replica):
    """Three requests form a batch of four. Each gets the image that it gets without the others."""
    together = replica.generate([1, 2, 3], [7, 8, 9])
    alone = replica.generate([2], [8])

    assert together.shape == (3, 3, 16, 16)
    torch.testing.assert_close(together[1], alone[0], atol=1e-4, rtol=1e-4)


def test_pixels_become_a_png():
    """-1 is black and 1 is white.

    Other values are cut. Rows of the tensor are rows of the image.
    """
    from PIL import Image

    pixels = torch.full((3, 2, 4), -1.0)
    pixels[0, 1, 3] = 1.5

    picture = Image.open(io.BytesIO(png(pixels)))

    assert (picture.format, picture.size) == ("PNG", (4, 2))
    assert picture.getpixel((3, 1)) == (255, 0, 0)
    assert picture.getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "body: Invalid JSON"),
        (b"[]", "body: Input should be an object"),
        (b'{"label": 1000}', "label: Input should be less than 1000"),
        (b'{"label": -1}', "label: Input should be greater than or equal to 0"),
        (b'{"seed": 1}', "label: Field required"),
        (b'{"label": 1, "seed": -1}', "seed: Input should be greater than or equal to 0"),
        (b'{"label": 1, "steps": 9}', "steps: Extra inputs are not permitted"),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(body: bytes, problem: str):
    """Each bad request gets a line about its problem, before the model sees it."""
    cls = ImageGenerator.func_or_class
    without_model = cls.__new__(cls)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    request = Request({"type": "http", "headers": []}, receive)
    response = asyncio.run(without_model(request))

    text = bytes(response.body).decode()
    assert response.status_code == 400
    assert problem in text
    assert text.count("\n") == 1
