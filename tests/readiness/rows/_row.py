# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of the applications, and what makes a class one of them."""

import sys

import torch
from ray import serve
from torch import nn

from serve_warm import Input, WarmupMixin


def row(name, requests, *, given=(), **about):
    """Make a class an application, and add it to the `ROWS` of its module.

    Its constructor gets `given`. The module names the kind, unless `kind` does.
    """

    def add(application):
        module = application.__module__
        about.update(requests=requests, app=application.__name__, artifact=module == "built_first")
        about.update(kind=about.get("kind", module), blind=module.startswith("from_docs"))
        vars(sys.modules[module]).setdefault("ROWS", {})[name] = about
        return serve.deployment(application, ray_actor_options={"num_cpus": 0}).bind(*given)

    return add


class Scorer(WarmupMixin):
    """Scores batches of rows with a compiled layer, and declares batches of 2 and of 5."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(batch,), fixed=("batch",)) for batch in (2, 5)]

    async def score(self, batch: int) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.ones(batch, 4)).tolist()


class TwoLayers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
