# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The example deployments, without a cluster: what they pad, answer, declare and configure."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema
from starlette.requests import Request

from deployments.image_classifier.app import (
    IMAGE_BYTES,
    SIDE,
    ImageClassifier,
    Settings,
    pixel_values,
)
from deployments.text_embedder.app import MAX_LENGTH, TextEmbedder, mean_pooled, pad
from deployments.text_embedder.model import HUB_NAME, load_model, load_tokenizer, model_source
from serve_warm.builder.app import load_app
from serve_warm.inputs import Input, sort_by_size

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "deployments").glob("*/serve.yaml"))
GPU_CONFIGS = sorted((ROOT / "deployments").glob("*/serve_gpu.yaml"))

SENTENCES = [
    "Hi.",
    "A replica that is ready is warm.",
    " ".join(["It was the best of times, it was the worst of times."] * 4),
]
"""Of 4, 10 and 58 tokens, which all go into the bucket of 64."""


@pytest.fixture(scope="module")
def weights() -> None:
    """Skips where the weights are not installed; in CI they must be."""
    if model_source() != HUB_NAME:
        return
    reason = "the weights of text_embedder are not installed: see requirements-weights.txt"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def declared_inputs(deployment: Any) -> list[Input]:
    # Called on the class: it asks for nothing but the buckets, and an instance of an ingress
    # class cannot be dropped here, because Serve gives it an async __del__.
    cls = deployment.func_or_class
    declared: list[Input] = cls.warmup_inputs(cls)
    return declared


# text_embedder --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
def test_padding_does_not_change_embeddings():
    """A padded batch of mixed lengths has the embeddings of its sentences on their own."""
    tokenizer, model = load_tokenizer(), load_model()
    tokens = tokenizer(SENTENCES)["input_ids"]
    with torch.inference_mode():
        ids, mask = pad(tokens, batch=8, length=64)
        padded = mean_pooled(model(input_ids=ids, attention_mask=mask)[0], mask)
        alone = []
        for row in tokens:
            ids = torch.tensor([row])
            alone.append(model(input_ids=ids)[0].mean(1)[0])

    expected = torch.nn.functional.normalize(torch.stack(alone), dim=1)
    torch.testing.assert_close(padded[: len(SENTENCES)], expected, atol=1e-5, rtol=0)
    assert padded.isfinite().all()


def test_padding_rows_attend_to_one_token():
    """A row without a sentence keeps one token: a mean over none would be NaN."""
    ids, mask = pad([[101, 7, 102]], batch=2, length=4)

    assert ids.tolist() == [[101, 7, 102, 0], [0, 0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.usefixtures("weights")
def test_warmup_texts_fill_their_buckets():
    """The text of each input has exactly as many tokens as its bucket: no bucket is left out."""
    tokenizer = load_tokenizer()
    inputs = declared_inputs(TextEmbedder)
    lengths = [
        len(tokenizer(item.json["text"], truncation=True, max_length=MAX_LENGTH)["input_ids"])
        for item in inputs
    ]

    sizes = list(zip((item.concurrency for item in inputs), lengths, strict=True))
    assert sizes == [(p["batch"], p["length"]) for p in TextEmbedder.func_or_class.buckets.grid()]


# image_classifier -----------------------------------------------------------------------------


def test_pixels_are_planes_from_minus_one_to_one():
    """Interleaved RGB bytes become three planes, 0 becomes -1 and 255 becomes 1."""
    image = bytearray(IMAGE_BYTES)
    row, column = 2, 5
    image[(row * SIDE + column) * 3 + 1] = 255

    pixels = pixel_values([bytes(image)], batch=1)

    expected = torch.full((1, 3, SIDE, SIDE), -1.0)
    expected[0, 1, row, column] = 1.0
    assert torch.equal(pixels, expected)


def test_pixels_are_padded_to_the_bucket():
    """Images keep their rows, the rows after them are 0, and strides are those of any batch."""
    pixels = pixel_values([bytes(IMAGE_BYTES), b"\xff" * IMAGE_BYTES], batch=8)

    assert pixels.shape == (8, 3, SIDE, SIDE)
    assert pixels.is_contiguous()
    assert pixels.amax((1, 2, 3)).tolist() == [-1, 1, 0, 0, 0, 0, 0, 0]
    assert pixels.amin((1, 2, 3)).tolist() == [-1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("size", [0, IMAGE_BYTES - 1, IMAGE_BYTES + 1])
def test_a_body_of_another_size_is_a_bad_request(size):
    """A body that is no image is answered 400 with both sizes, before the model sees it."""
    cls = ImageClassifier.func_or_class
    without_model = cls.__new__(cls)

    response = asyncio.run(without_model(request_with(bytes(size))))

    assert response.status_code == 400
    assert bytes(response.body).decode() == (
        f"An image has {IMAGE_BYTES} bytes (128×128 RGB pixels, a byte per color), "
        f"but this body has {size}.\n"
    )


def request_with(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def test_each_row_gets_its_own_classes_best_first():
    """A row of a batch is answered for its own image, with five scores that go down."""

    def red_value(pixel_values):
        # Stands for the network: the nearer a class is to the first red byte, the better.
        red = (pixel_values[:, 0, 0, 0] + 1) * 127.5
        return SimpleNamespace(logits=-0.5 * (torch.arange(256) - red[:, None] - 0.1).abs())

    cls = ImageClassifier.func_or_class
    classifier = cls.__new__(cls)
    classifier.model = red_value

    images = [bytes([red]) * IMAGE_BYTES for red in (7, 200)]
    answers = classifier.classify(pixel_values(images, batch=2))

    assert [[best["class"] for best in answer] for answer in answers] == [
        [7, 8, 6, 9, 5],
        [200, 201, 199, 202, 198],
    ]
    for answer in answers:
        scores = [best["score"] for best in answer]
        assert scores == sorted(scores, reverse=True)
        assert 0.2 < scores[0] < 0.3


def test_warmup_images_are_accepted():
    """The replayed body is an image: were it not, a replica could never become ready."""
    inputs = declared_inputs(ImageClassifier)

    assert [len(item.body) for item in inputs] == [IMAGE_BYTES] * 2


@pytest.mark.slow
def test_settings_choose_the_batches():
    """Inputs, padding and the most images in a batch follow one setting, and cannot drift apart."""
    cls = ImageClassifier.func_or_class
    most = cls.classify_batch._get_max_batch_size()

    classifier = cls(Settings(batch=(2, 4), depths=(1, 1, 1, 1)))

    assert [item.concurrency for item in classifier.warmup_inputs()] == [4, 2]
    assert classifier.buckets.fit(batch=3) == {"batch": 4}
    assert cls.classify_batch._get_max_batch_size() == 4
    cls.classify_batch.set_max_batch_size(most)


# Both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployment", [TextEmbedder, ImageClassifier], ids=lambda d: d.name)
def test_inputs_are_one_a_bucket_largest_first(deployment):
    """Every bucket is replayed exactly once, and replay keeps the declared order."""
    declared = declared_inputs(deployment)

    grid = deployment.func_or_class.buckets.grid()
    assert len({item.name for item in declared}) == len(declared) == len(grid)
    assert [item.concurrency for item in declared] == [point["batch"] for point in grid]
    assert sort_by_size(declared, of=deployment.name) == declared
    assert [item.size for item in declared] == sorted((i.size for i in declared), reverse=True)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_serve_yaml_is_one_that_serve_and_build_take(path, monkeypatch):
    """Ray's schema accepts the file, its import path is an application, its deployment warms up."""
    monkeypatch.syspath_prepend(str(path.parent))  # the scorer's is run from its own folder
    schema = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    [application] = schema.applications
    module, _, name = application.import_path.partition(":")

    app = load_app(str(path))

    assert isinstance(getattr(importlib.import_module(module), name), Application)
    assert [d.name for d in application.deployments] == [app.deployment]
    options = app.overrides[app.deployment]
    settings = {"artifact": "./artifacts"}
    if path.parent.name == "scorer":  # the README's, in which nobody waits for the compiler
        settings |= {"on_missing": "eager", "after_ready": "eager"}
    assert options["user_config"] == {"warmup": settings}


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=lambda path: path.parent.name)
def test_the_gpu_is_asked_for_in_sight(path):
    """The file itself requests one GPU from Ray, and passes a device and a mode."""
    app = load_app(str(path))

    [built] = app.built("any", {}).deployments
    [settings] = built.init_args
    assert (settings.device, settings.mode) == ("cuda", "reduce-overhead")
    assert built.ray_actor_options["num_gpus"] == 1


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=lambda path: path.parent.name)
def test_an_example_is_on_the_cpu_unless_told_otherwise(path):
    """On a machine with a GPU, too: no application looks for one by itself."""
    app = load_app(str(path.with_name("serve.yaml")))
    module = importlib.import_module(app.import_path.partition(":")[0])

    assert app.built("any", {}).deployments[0].init_args == ()
    assert (module.Settings().device, module.Settings().mode) == ("cpu", None)


def test_every_example_has_a_serve_yaml():
    """The tests above look at all examples, and not at an empty list."""
    on_a_gpu = {"image_classifier", "image_generator", "speech_to_text", "text_generator"}
    assert on_a_gpu | {"text_embedder"} <= {path.parent.name for path in CONFIGS}
    assert {path.parent.name for path in GPU_CONFIGS} == on_a_gpu
