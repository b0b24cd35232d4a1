# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The applications of `deployments` with some of their inputs left out, for `bench_eager.py`.

`serve-warm build eager_apps:scorer` builds one of them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class App:
    """An application, and two kinds of requests."""

    module: str
    deployment: str
    left_out: Callable[[Any], bool]
    """Returns whether an input is left out."""
    foreseen: tuple[bytes, int]
    """The body of a request that the other inputs foresee, and how many are sent at once."""
    unforeseen: tuple[bytes, int]
    path: str = "/"
    batch_decides: bool = False
    """Whether a request is foreseen depends on how many others arrive with it."""


def _text(words: int) -> bytes:
    return json.dumps({"text": " ".join(["hello"] * words)}).encode()


def _prompt(length: int) -> bytes:
    return json.dumps({"prompt": [1] * length, "max_new_tokens": 4}).encode()


APPS = {
    "text embedder": App(
        module="deployments.text_embedder.app",
        deployment="TextEmbedder",
        left_out=lambda each: len(each.json["text"].split()) > 70,
        foreseen=(_text(12), 1),
        unforeseen=(_text(100), 1),
        path="/embed",
    ),
    "image classifier": App(
        module="deployments.image_classifier.app",
        deployment="ImageClassifier",
        left_out=lambda each: each.concurrency > 1,
        foreseen=(bytes(range(256)) * 192, 1),
        unforeseen=(bytes(range(256)) * 192, 8),
        batch_decides=True,
    ),
    "text generator": App(
        module="deployments.text_generator.app",
        deployment="TextGenerator",
        left_out=lambda each: len(each.json["prompt"]) > 70,
        foreseen=(_prompt(12), 1),
        unforeseen=(_prompt(100), 1),
        path="/generate",
    ),
    "image generator": App(
        module="deployments.image_generator.app",
        deployment="ImageGenerator",
        left_out=lambda each: each.concurrency > 1,
        foreseen=(json.dumps({"label": 7, "seed": 1}).encode(), 1),
        unforeseen=(json.dumps({"label": 7, "seed": 1}).encode(), 4),
        batch_decides=True,
    ),
    "scorer": App(
        module="deployments.scorer.app",
        deployment="Scorer",
        left_out=lambda each: each.size == 8 * 64,
        foreseen=(json.dumps([[1, 2, 3]]).encode(), 1),
        unforeseen=(json.dumps([[1] * 60] * 8).encode(), 1),
    ),
}


def deployment_of(name: str) -> Any:
    """Return the deployment of an application, without the inputs that are left out."""
    app = APPS[name]
    deployment = getattr(importlib.import_module(app.module), app.deployment)
    kind = deployment.func_or_class
    if not hasattr(kind, "all_inputs"):
        # Serve pickles the class by value, because its name stands for the deployment.
        kind.all_inputs, left_out = kind.warmup_inputs, app.left_out
        kind.warmup_inputs = lambda self: [each for each in self.all_inputs() if not left_out(each)]
        kind.set_up = kind.__init__

        async def init(self: Any, *args: Any) -> None:
            import torch

            torch.manual_seed(0)  # all replicas have the same weights
            done = self.set_up(*args)
            if done is not None:  # FastAPI applications have a coroutine
                await done

        kind.__init__ = init
    return deployment


def __getattr__(name: str) -> Any:
    """Return an application to build."""
    if name.replace("_", " ") not in APPS:
        raise AttributeError(name)
    return deployment_of(name.replace("_", " ")).bind()
