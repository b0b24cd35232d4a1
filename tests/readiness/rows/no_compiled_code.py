# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications whose report must not claim compiled code, because none runs."""

import asyncio
import functools
import importlib

import torch
from _row import Scorer, row
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import serve_warm
from serve_warm import Input, WarmupMixin


@row("answers_kept_by_the_handler", [("recommend", [1])], says="handler caches|cached answer")
class Cached(WarmupMixin):
    """The handler keeps its answers in an `lru_cache`, so only the first calls reach the model."""

    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4))
        self.model = torch.compile(net, backend="eager", dynamic=False)
        self.answer = functools.lru_cache(maxsize=1000)(self.compute)

    def warmup_inputs(self):
        return [Input(target=self.recommend, args=(item,)) for item in (1, 2)]

    async def recommend(self, item: int) -> list[float]:
        return self.answer(item)

    @torch.inference_mode()
    def compute(self, item):
        return self.model(torch.tensor([item]))[0].tolist()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


@row(
    "blocks_with_compile_off",
    [("score", [5])],
    env={"TORCH_COMPILE_DISABLE": "1"},
    says="TORCH_COMPILE_DISABLE",
)
class Blocks(Scorer):
    """The blocks go through `compile_regions`, and the environment turns torch.compile off."""

    def __init__(self):
        self.model = serve_warm.compile_regions(
            nn.Sequential(Block(), Block(), Block()), dynamic=False
        )


@row(
    "compile_off_in_the_environment",
    [("score", [2])],
    env={"TORCH_COMPILE_DISABLE": "1"},
    says="TORCH_COMPILE_DISABLE",
)
class SwitchedOff(Scorer):
    """An environment variable turns torch.compile off."""


@row("every_call_forced_to_be_eager", [("score", [2])], says="force_eager")
class Forced(Scorer):
    """`__init__` sets the stance in which torch runs all compiled functions eagerly."""

    def __init__(self):
        torch.compiler.set_stance("force_eager")
        self.model = torch.compile(nn.Linear(4, 2), dynamic=False)


def broken(graph, inputs):
    raise NotImplementedError("this backend has no kernels for this machine")


# torch reads it into torch._dynamo.config.suppress_errors, for all threads and tasks.
@row(
    "failing_backend_is_suppressed",
    [("score", [2])],
    env={"TORCHDYNAMO_SUPPRESS_ERRORS": "1"},
    says="compiling it failed|suppress_errors",
)
class Suppressed(Scorer):
    """The backend raises for each graph, and torch is told to run such code eagerly."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), backend=broken, dynamic=False)


@row("flops_counted_around_each_call", [("score", [2])], says="dispatch mode")
class Counted(Scorer):
    """The handler counts the FLOPs of each call, with torch's dispatch mode for it."""

    def __init__(self):
        self.model = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), dynamic=False)

    async def score(self, batch: int) -> tuple[list[list[float]], int]:
        counter = FlopCounterMode(display=False)
        with counter, torch.inference_mode():
            answer = self.model(torch.ones(batch, 4))
        return answer.tolist(), counter.get_total_flops()


class EagerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    @torch.compiler.disable
    def forward(self, x):
        return torch.relu(self.layer(x))


@row("forward_marked_to_run_eagerly", [("score", [5])], says=r"torch\.compiler\.disable")
class Marked(Scorer):
    """The model's forward is marked with `torch.compiler.disable`, and the model is compiled."""

    def __init__(self):
        self.model = torch.compile(EagerNet(), backend="eager", dynamic=False)


@row("library_told_not_to_compile", [("score", [2])], says="disable=True")
class Told(Scorer):
    """The model goes through `serve_warm.compile`, with an argument that turns compiling off."""

    def __init__(self):
        self.model = serve_warm.compile(nn.Linear(4, 2), dynamic=False, disable=True)


@row(
    "library_without_dynamo",
    [("score", [2])],
    env={"TORCHDYNAMO_DISABLE": "1"},
    says="TORCHDYNAMO_DISABLE",
)
class WithoutDynamo(Scorer):
    """The model goes through `serve_warm.compile`, and an environment variable turns Dynamo off."""

    def __init__(self):
        self.model = serve_warm.compile(nn.Linear(4, 2), dynamic=False)


@row("recompiles_replaced_by_eager_calls", [("score", [2])], says="eager_on_recompile")
class Stance(Scorer):
    """`__init__` sets the stance in which torch runs calls eagerly that would compile."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), backend="eager", dynamic=False)
        torch.compiler.set_stance("eager_on_recompile")


class TextNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(99, 8), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.table(ids)).mean(0)


@row("ten_lengths_of_a_static_model", [("embed", [[1, 2, 3]])], says="recompile.limit")
class TenLengths(WarmupMixin):
    """More lengths are declared than torch compiles for one function, so some run eagerly."""

    def __init__(self):
        self.model = torch.compile(TextNet(), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.embed, args=([1] * length,)) for length in range(2, 12)]

    async def embed(self, tokens: list[int]) -> list[float]:
        with torch.inference_mode():
            return self.model(torch.tensor(tokens)).tolist()


@row("worker_inherits_a_disabled_dynamo", [("score", [2])], says=r"torch\._dynamo\.config\.disable")
class Worker(Scorer):
    """`__init__` sets `torch._dynamo.config.disable`, and starts the task that calls the model.

    torch 2.13 keeps its settings in context variables: the task has this setting, and handlers do
    not.
    """

    async def __init__(self):
        # Serve pickles this class, and the configuration cannot be pickled.
        importlib.import_module("torch._dynamo").config.disable = True
        self.model = torch.compile(nn.Linear(4, 2), dynamic=False)
        self.waiting = asyncio.Queue()
        self.worker = asyncio.create_task(self.work())

    async def work(self):
        while True:
            batch, answer = await self.waiting.get()
            with torch.inference_mode():
                answer.set_result(self.model(torch.ones(batch, 4)).tolist())

    async def score(self, batch: int) -> list[list[float]]:
        answer = asyncio.get_running_loop().create_future()
        await self.waiting.put((batch, answer))
        return await answer
