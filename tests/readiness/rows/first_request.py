# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications in which the first request of a kind could compile."""

import torch
from _row import Scorer, TwoLayers, row
from torch import nn
from transformers import BertConfig, BertModel

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin, shape_grid


class ScaleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), 1.0

    def forward(self, x):
        return self.layer(x) * self.scale


@row("attribute_set_by_reconfigure", [("score", [2]), ("score", [5])], update={"scale": 0.5})
class Rescaled(Scorer):
    """A new `user_config` changes a number that the compiled forward reads from its module."""

    def __init__(self):
        self.net = ScaleNet()
        self.model = torch.compile(self.net, backend="eager", dynamic=False)

    def reconfigure(self, user_config):
        self.net.scale = user_config["scale"]


@row(
    "health_check_of_another_size",
    [("score", [2]), ("check_health", [])],
    options={"health_check_period_s": 0.5},
)
class Checked(Scorer):
    """The health check runs the model with a batch of 1, which no declared input has."""

    async def check_health(self):
        with torch.inference_mode():
            if not self.model(torch.ones(1, 4)).isfinite().all():
                raise RuntimeError("the model returns no numbers")


@row("level_2_with_gradients", [("score", [2]), ("score", [5])])
class WithGradients(Scorer):
    """A handler calls the model without `no_grad`, so no entry can serve it."""

    def __init__(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        self.model = serve_warm.compile(net.eval(), dynamic=False)

    async def score(self, batch: int) -> list[list[float]]:
        return self.model(torch.ones(batch, 4)).detach().tolist()


@row("model_made_by_the_first_call", [("score", [2]), ("score", [5])], quiet=True)
class Lazy(Scorer):
    """The handler makes and compiles its model when it is called for the first time."""

    def __init__(self):
        self.model = None

    async def score(self, batch: int) -> list[list[float]]:
        if self.model is None:
            self.model = torch.compile(nn.Linear(4, 2), dynamic=False)
        with torch.inference_mode():
            return self.model(torch.ones(batch, 4)).tolist()


@row("model_swapped_by_reconfigure", [("score", [2]), ("score", [5])], update={"width": 7})
class Swapped(Scorer):
    """A new `user_config` replaces the compiled model of a serving replica."""

    def __init__(self):
        self.model = torch.compile(TwoLayers(width=3), dynamic=False)

    def reconfigure(self, user_config):
        self.model = torch.compile(TwoLayers(width=user_config["width"]), dynamic=False)


BATCH = 2


@row(
    "padded_texts_in_bert_layers",
    [
        ("embed", [[[1, 2, 3], [4, 5, 6, 7, 8]]]),
        ("embed", [[[1] * 11, [2] * 16]]),
        ("embed", [[[1] * 16, [2] * 16]]),
    ],
)
class Padded(WarmupMixin):
    """BERT skips a mask of ones, the grid declares all lengths, and requests have padding."""

    buckets = Buckets(batch=[BATCH], length=[8, 16])

    def __init__(self):
        config = BertConfig(
            vocab_size=99,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
        self.model = serve_warm.compile_regions(
            BertModel(config).eval(), backend="eager", dynamic=False
        )

    def warmup_inputs(self):
        # Requests are always padded to these sizes.
        return shape_grid(self.encode, self.buckets, fixed=True)

    async def embed(self, texts: list[list[int]]) -> list[list[float]]:
        sizes = self.buckets.fit(batch=len(texts), length=max(map(len, texts)))
        ids = torch.zeros(sizes["batch"], sizes["length"], dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, tokens in enumerate(texts):
            ids[index, : len(tokens)] = torch.tensor(tokens)
            mask[index, : len(tokens)] = 1
        return (await self.encode(ids, mask))[: len(texts)]

    async def encode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        with torch.inference_mode():
            found = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return found.last_hidden_state[:, 0].tolist()


@row(
    "swap_while_compiling_is_forbidden",
    [("score", [2]), ("score", [5])],
    settings={"after_ready": "forbid"},
    update={"width": 7},
)
class SwappedForbidden(Scorer):
    """A new `user_config` replaces the compiled model, and requests may not compile after READY."""

    def __init__(self):
        self.load(width=3)

    def reconfigure(self, user_config):
        self.load(user_config["width"])

    def load(self, width):
        self.model = torch.compile(TwoLayers(width), backend="eager", dynamic=False)


@row(
    "two_methods_in_two_modes",
    [("score", [2]), ("rank", [2]), ("rank", [5]), ("score", [5])],
    quiet=True,
)
class TwoModes(WarmupMixin):
    """Two declared methods call the model, one in `no_grad` and the other in `inference_mode`."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), dynamic=False)

    def warmup_inputs(self):
        targets = (self.score, self.rank)
        return [
            Input(target=each, args=(batch,), fixed=("batch",))
            for each in targets
            for batch in (2, 5)
        ]

    async def score(self, batch: int) -> list[list[float]]:
        with torch.no_grad():
            return self.model(torch.ones(batch, 4)).tolist()

    async def rank(self, batch: int) -> list[list[int]]:
        with torch.inference_mode():
            return self.model(torch.ones(batch, 4)).argsort().tolist()


class ConvNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, 3, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Pipe:
    def __init__(self, unet):
        self.unet = unet

    def __call__(self, images):
        with torch.inference_mode():
            return self.unet(torch.ones(images, 3, 8, 8)).mean().item()


@row("unet_of_a_pipe_replaced", [("paint", [1]), ("paint", [4])], update={"channels": 6})
class Pipeline(WarmupMixin):
    """A new `user_config` replaces one compiled part, deep inside an object that stays the same."""

    def __init__(self):
        self.pipe = Pipe(torch.compile(ConvNet(channels=4), backend="eager", dynamic=False))

    def reconfigure(self, user_config):
        net = ConvNet(user_config["channels"])
        self.pipe.unet = torch.compile(net, backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.paint, args=(images,), fixed=("images",)) for images in (1, 4)]

    async def paint(self, images: int) -> float:
        return self.pipe(images)


class BranchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.loud, self.quiet = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        x = x - x.mean() / 2
        torch._dynamo.graph_break()
        if x.sum() > 0:
            return self.loud(x)
        return self.quiet(x).relu()


@row("values_that_take_the_other_path", [("score", [-2.0])])
class TwoPaths(WarmupMixin):
    """After a graph break, the model branches on a value; the declared values go one way."""

    def __init__(self):
        self.model = torch.compile(BranchNet(), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(volume,)) for volume in (1.0, 3.0)]

    async def score(self, volume: float) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.full((2, 4), volume)).tolist()


@row("weights_cast_in_place", [("score", [2]), ("score", [5])], update={"dtype": "bfloat16"})
class Cast(Scorer):
    """A new `user_config` changes the dtype in place; the compiled object stays the same."""

    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.model = torch.compile(self.net, backend="eager", dynamic=False)

    def reconfigure(self, user_config):
        self.net.to(getattr(torch, user_config["dtype"]))

    async def score(self, batch: int) -> list[list[float]]:
        with torch.inference_mode():
            rows = torch.ones(batch, 4, dtype=self.net.weight.dtype)
            return self.model(rows).tolist()
