# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A deployment whose model is changed while it serves, and what changes it.

The graph is matrix products alone, for which no C++ is compiled.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ray import serve
from torch import nn

import serve_warm
from artifacts import trusting
from serve_warm import Input, WarmupMixin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""The same in every process that imports this."""

BATCHES = (4, 2)
PLAIN = "plain"
FACTOR = 2.0
"""A global that the forward reads."""


class Layer(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(8, 8)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.linear(given)


class Changing(nn.Module):
    """Computes with a number from each place that `CHANGES` changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Layer(0)
        self.layers = nn.ModuleList([Layer(1), Layer(2)])
        self.last = nn.Linear(8, 8)
        self.scale = 0.25
        self.handle = self.first.register_forward_hook(mixed)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = self.first(given)
        for layer in self.layers:
            out = layer(out)
        return torch.addmm(self.last.bias, out, self.last.weight, alpha=FACTOR * self.scale)


def mixed(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
    return out @ torch.full((8, 8), 0.5)


def other_forward(self: Any, given: torch.Tensor) -> torch.Tensor:
    return self.linear(self.linear(given))


def x(batch: int) -> torch.Tensor:
    return torch.linspace(-1, 1, batch * 8).view(batch, 8)


# What is changed, and back again at the end -------------------------------------------------------


@contextlib.contextmanager
def attribute(model: Changing) -> Iterator[None]:
    before, model.scale = model.scale, 3.0
    yield
    model.scale = before


@contextlib.contextmanager
def module_global(_model: Changing) -> Iterator[None]:
    global FACTOR  # noqa: PLW0603
    FACTOR = 11.0
    yield
    FACTOR = 2.0


@contextlib.contextmanager
def forward_of_a_class(_model: Changing) -> Iterator[None]:
    before, Layer.forward = Layer.forward, other_forward
    yield
    Layer.forward = before


@contextlib.contextmanager
def insert(model: Changing) -> Iterator[None]:
    before = list(model.layers)
    model.layers.insert(0, Layer(3).eval())
    yield
    # Not `del`, which leaves torch's list with an OrderedDict in place of a dict.
    model.layers = nn.ModuleList(before).eval()


@contextlib.contextmanager
def remove(model: Changing) -> Iterator[None]:
    model.handle.remove()
    yield
    model.handle = model.first.register_forward_hook(mixed)


CHANGES: dict[str, Callable[[Changing], Any]] = {
    change.__name__: change
    for change in (attribute, module_global, forward_of_a_class, insert, remove)
}
"""One of each kind that serve_warm notices in another way. tests/soundness has all the others."""


# The deployment -----------------------------------------------------------------------------------


@serve.deployment(
    name="Changing",
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_timeout_s=0,
    max_ongoing_requests=32,
    user_config={"scale": 1.0},
)
class Live(WarmupMixin):
    """Answers in several threads, and counts the changes of its model.

    The count is even, but in the middle of a change.
    """

    warmup_trust = trusting(KEY)

    def __init__(self, level: int) -> None:
        self.inner = Changing().eval()
        self.model = serve_warm.compile(self.inner, level=level, dynamic=False)
        self.one_change = threading.Lock()
        self.count = 0
        self.change: Any = None

    def reconfigure(self, user_config: dict[str, float]) -> None:
        with self.one_change, self.counted():
            self.inner.scale = user_config["scale"]

    def warmup_inputs(self) -> list[Input]:
        return [Input(target=self.ask, args=([batch],), size=batch) for batch in BATCHES]

    def ask(self, batches: list[int]) -> list[tuple[int, int, int, list[float]]]:
        """Return for each batch the counts before and after the call, the batch and the output."""
        answers = []
        with torch.inference_mode():
            for batch in batches:
                given, before = x(batch), self.count
                out = self.model(given)
                answers.append((before, self.count, batch, out.flatten().tolist()))
        return answers

    def begin(self, name: str) -> int:
        """Make a change, and return the count that its answers have."""
        with self.one_change, self.counted():
            self.change = CHANGES[name](self.inner)
            self.change.__enter__()
        return self.count

    def end(self) -> int:
        """Take the change back."""
        with self.one_change, self.counted():
            self.change.__exit__(None, None, None)
        return self.count

    async def counted_until_now(self) -> int:
        return self.count

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self.count += 1
        yield
        self.count += 1


level_2 = Live.bind(2)
level_3 = Live.bind(3)
