# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications whose code comes from an artifact, which is built first."""

import torch
from _row import Scorer, row
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Input, WarmupMixin


@row(
    "built_at_one_length", [("encode", [[1, 2, 3]])], kind="narrow", says=r"tokens\[0\], always 16"
)
class Encoder(WarmupMixin):
    """The artifact was built from inputs of one length, and requests have others."""

    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4))
        self.model = serve_warm.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.encode, args=([7] * 16,))]

    async def encode(self, tokens: list[int]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(tokens)).tolist()


class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(4, 50)

    def forward(self, query, k: int):
        return self.table(query).topk(k).indices


@row(
    "built_for_some_values_of_k",
    [("search", [0.5, 10]), ("search", [0.5, 7])],
    kind="first_request",
    says="k, only 5 or 10",
)
class Search(WarmupMixin):
    """A number of the request is a size in the model, and the artifact has two of its values."""

    def __init__(self):
        self.model = serve_warm.compile(Nearest().eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.search, args=(1.5, k)) for k in (5, 10)]

    async def search(self, value: float, k: int) -> list[int]:
        with torch.inference_mode():
            return self.model(torch.full((4,), value), k).tolist()


@row(
    "built_right",
    [("score", [[[0.5, 1, 2, 3]] * count]) for count in (1, 2, 3, 8)],
    kind="first_request",
    quiet=True,
)
class Padded(WarmupMixin):
    """An artifact for two batch sizes, to which the handler pads each request."""

    def __init__(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.model = serve_warm.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(rows,)) for rows in ([[1.5] * 4], [[2.5] * 4] * 4)]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        if not 0 < len(rows) <= 8 or {len(row) for row in rows} != {4}:
            raise ValueError("between 1 and 8 rows of 4 numbers")
        batch = torch.zeros(2 if len(rows) <= 2 else 8, 4)
        batch[: len(rows)] = torch.tensor(rows)
        with torch.inference_mode():
            return self.model(batch)[: len(rows)].tolist()


@row(
    "built_then_swapped",
    [("score", [2]), ("score", [5])],
    kind="first_request",
    update={"hidden": 3},
)
class Swapped(Scorer):
    """A new `user_config` replaces a model whose code came from an artifact."""

    def __init__(self):
        self.model = serve_warm.compile(nn.Linear(4, 2).eval(), dynamic=False)

    def reconfigure(self, user_config):
        if user_config.get("hidden"):
            net = nn.Sequential(nn.Linear(4, user_config["hidden"]), nn.ReLU())
            self.model = serve_warm.compile(net.eval(), dynamic=False)


@row(
    "built_without_one_method",
    [("embed", [0.5]), ("rank", [0.5])],
    kind="narrow",
    says="rank_net is compiled, and no input calls it",
)
class EmbedAndRank(WarmupMixin):
    """The artifact has the inputs of one method, and requests call another one, too."""

    def __init__(self):
        self.embed_net = serve_warm.compile(nn.Linear(4, 8).eval(), dynamic=False)
        self.rank_net = serve_warm.compile(nn.Linear(8, 1).eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.embed, args=(1.5,))]

    async def embed(self, value: float) -> list[float]:
        with torch.inference_mode():
            return self.embed_net(torch.full((4,), value)).tolist()

    async def rank(self, value: float) -> float:
        with torch.inference_mode():
            return self.rank_net(torch.full((8,), value)).item()


@row(
    "built_for_full_batches",
    [("score", [[1.0] * 6])],
    kind="narrow",
    says="batches of requests to score, always 4 of at most 4",
)
class Batched(WarmupMixin):
    """The artifact was built for batches of four requests, and a request comes alone."""

    def __init__(self):
        self.model = serve_warm.compile(nn.Linear(6, 2).eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target="score", args=([0.0] * 6,), concurrency=4)]

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.05)
    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()
