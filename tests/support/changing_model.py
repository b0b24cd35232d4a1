# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A model that is changed while threads call it, and what changes it.

The graph is matrix products alone, for which no C++ is compiled.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

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


CHANGES: dict[str, Callable[[Changing], contextlib.AbstractContextManager[Any]]] = {
    "attribute": lambda model: mock.patch.object(model, "scale", 3.0),
    "module_global": lambda _: mock.patch.object(sys.modules[__name__], "FACTOR", 11.0),
    "forward_of_a_class": lambda _: mock.patch.object(Layer, "forward", other_forward),
    "insert": insert,
    "remove": remove,
}
"""One of each kind that serve_warm notices in another way. tests/soundness has all the others."""
