# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment whose models are made when a request names them, as Ray's multiplexed example."""

from __future__ import annotations

import torch
from ray import serve
from torch import nn

import serve_warm
from artifacts import trusting
from integration.changing_app import KEY, x
from serve_warm import Input, WarmupMixin

LANGUAGES = ("de", "fr")
"""Declared; others come in traffic."""

BATCH = 4


def load(language: str) -> nn.Module:
    """Return the model of a language: the structure of all of them, and weights of its own."""
    torch.manual_seed(sum(language.encode()))
    return nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()


@serve.deployment(ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=0)
class Translator(WarmupMixin):
    """Nothing is compiled in `__init__`: each model is when it is loaded, and two are kept."""

    warmup_trust = trusting(KEY)

    def warmup_inputs(self) -> list[Input]:
        return [
            Input(target=self.predict, args=(x(BATCH),), model_id=language, name=language)
            for language in LANGUAGES
        ]

    @serve.multiplexed(max_num_models_per_replica=2)
    async def get_model(self, language: str) -> nn.Module:
        """Load a model."""
        return serve_warm.compile(load(language), dynamic=False)

    async def predict(self, given: torch.Tensor) -> torch.Tensor:
        """Return the output of the model that the request names."""
        model = await self.get_model(serve.get_multiplexed_model_id())
        with torch.inference_mode():
            out: torch.Tensor = model(given)
        return out


app = Translator.bind()
