# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications in which a request compiles, and what a user must then read."""

import asyncio

import torch
from _row import Scorer, TwoLayers, row
from ray import serve
from torch import nn

from serve_warm import Input, WarmupMixin


class GainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 2), 1.0

    def forward(self, x):
        return self.layer(x) * self.gain


# The name of the attribute, as in the guard that failed.
@row(
    "attribute_set_by_a_request",
    [("tune", [0.5]), ("score", [2])],
    changes_later=True,
    says=r"\bgain\b",
)
class Tuned(Scorer):
    """A request changes a number that the compiled forward reads, and a declared input compiles."""

    def __init__(self):
        self.net = GainNet()
        self.model = torch.compile(self.net, backend="eager", dynamic=False)

    async def tune(self, volume: float) -> None:
        self.net.gain = volume


# Declare this size.
@row(
    "batch_of_one_is_not_declared", [("score", [[[1.0, 2.0, 3.0, 4.0]]])], says=r"declare.*\[1, 4\]"
)
class TwoToFour(WarmupMixin):
    """The model is compiled with `dynamic=True`, and batches of 2 to 4 are declared, but not of 1.

    torch compiles separate code for a size of 1.
    """

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), dynamic=True)

    def warmup_inputs(self):
        return [Input(target=self.score, args=([[0.0] * 4] * batch,)) for batch in (4, 3, 2)]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


class ReluNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.layer(x))


# The call to torch.compiler.reset() is the cause: no input is missing, and no value changed.
@row(
    "compiled_code_thrown_away",
    [("free_memory", []), ("score", [2])],
    changes_later=True,
    says=r"\breset\b",
)
class Reset(Scorer):
    """A method discards all compiled code, and the next declared request compiles."""

    def __init__(self):
        self.model = torch.compile(ReluNet(), backend="eager", dynamic=False)

    async def free_memory(self) -> None:
        torch.compiler.reset()


WIDTHS = {"de": 8, "fr": 8, "ja": 16}


# Declare an input for this model; the model was not replaced, and reconfigure() has no part.
@row(
    "language_that_is_not_declared",
    [("translate", [2])],
    handle={"multiplexed_model_id": "ja"},
    says=r"\bmodel_id\b",
)
class Translator(WarmupMixin):
    """A request asks for a multiplexed model of another structure, whose id no input declares."""

    def warmup_inputs(self):
        return [
            Input(target=self.translate, args=(batch,), model_id=language, fixed=("batch",))
            for language in ("de", "fr")
            for batch in (2, 5)
        ]

    @serve.multiplexed(max_num_models_per_replica=3)
    async def get_model(self, language):
        width = WIDTHS[language]
        net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        return torch.compile(net.eval(), backend="eager", dynamic=False)

    async def translate(self, batch: int) -> list[list[float]]:
        model = await self.get_model(serve.get_multiplexed_model_id())
        with torch.inference_mode():
            return model(torch.ones(batch, 4)).tolist()


# The shape is declared: what differs is the mode in which the tensor was made.
@row("tensor_made_in_another_mode", [("score_scaled", [2, 0.5])], says=r"inference.mode")
class AnotherMode(Scorer):
    """The declared method makes its tensor outside `inference_mode`, and another one inside.

    torch compiles separate code for tensors that are made in this mode.
    """

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), backend="eager", dynamic=False)

    async def score(self, batch: int) -> list[list[float]]:
        rows = torch.ones(batch, 4)
        with torch.inference_mode():
            return self.model(rows).tolist()

    async def score_scaled(self, batch: int, factor: float) -> list[list[float]]:
        with torch.inference_mode():
            rows = torch.full((batch, 4), factor)
            return self.model(rows).tolist()


# Replace models where serve_warm proves them again.
@row(
    "weights_reloaded_in_the_background",
    [("begin_reload", [7]), ("end_reload", []), ("score", [2])],
    changes_later=True,
    says=r"reconfigure\(",
)
class Reloaded(Scorer):
    """After READY, a task replaces the compiled model with another one."""

    def __init__(self):
        self.load(width=3)
        self.task = None

    def load(self, width):
        self.model = torch.compile(TwoLayers(width), backend="eager", dynamic=False)

    async def begin_reload(self, width: int) -> None:
        self.task = asyncio.create_task(asyncio.to_thread(self.load, width))

    async def end_reload(self) -> None:
        await self.task
