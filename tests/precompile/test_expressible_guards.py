# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that have an entry although Dynamo guards unusual objects; the entry fits a change.

All graphs are matrix products, for which no C++ is compiled.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import serve_warm
from levels import eager_below, rebuilt, refusal, served, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 16).view(4, 4)


class Vmap(nn.Module):
    dim = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row @ given, in_dims=self.dim)(given)

    def change(self) -> None:
        self.dim = 1


class Backend(nn.Module):
    backend = SDPBackend.MATH

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(self.backend):
            return given @ given

    def change(self) -> None:
        self.backend = SDPBackend.FLASH_ATTENTION


@pytest.mark.parametrize("kind", [Vmap, Backend])
def test_an_entry_runs_and_a_change_is_noticed(kind: Any, tmp_path: Path):
    model, compiled = rebuilt(kind, tmp_path, lambda model: model(x()))
    with started(tmp_path), eager_below():
        same = served(lambda: compiled(x()))
        expected = model(x())
        model.change()
        changed = served(lambda: compiled(x()))

    assert (same.level, changed.level) == (2, 1)
    torch.testing.assert_close(same.value, expected)
    torch.testing.assert_close(changed.value, model(x()))


class Hashes(nn.Module):
    colour: enum.Enum = enum.Enum("Colour", "RED").RED

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.colour.__hash__() % 7)


class OwnHash(enum.Enum):
    RED = 1

    def __hash__(self) -> int:
        return hash(self.name)


class OwnHashes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.colour, self.scales = OwnHash.RED, {OwnHash.RED: 2.0}

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, given, given, alpha=self.scales[self.colour])


class Matches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pattern = re.compile("a")

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given if self.pattern.match("a") else given


class Sentinel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names = {object(): 1.0}

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given if [*self.names] else given


def times(given: torch.Tensor, number: int) -> torch.Tensor:
    return torch.addmm(given, given, given, alpha=number)


NUMBERS = {
    "a storage": lambda given: times(given, given.untyped_storage().size()),
    "a hash": lambda given: times(given, hash("alpha") % 7),
    "mapped hashes": lambda given: times(given, sum(map(hash, ("alpha", "beta"))) % 7),
    "a method": lambda given: times(given, "alpha".__hash__() % 7),
    "an id": lambda given: times(given, id(times) % 7),
}
HASH = r"it uses the result of hash\(\)"
OF_HASH = f"{HASH}|^Unsupported: Failed to trace builtin operator"  # Dynamo 2.11 has no hash()
LINE = r"callee\S+ at test_expressible_guards\.py:\d+(,| has a guard).*outside the call"


@pytest.mark.parametrize(
    ("callee", "options", "why"),
    [
        # A tensor may be a part of a larger one.
        (NUMBERS["a storage"], {}, "it reads a tensor's storage"),
        # The number differs in each process, and code of the user can store it.
        (NUMBERS["a hash"], {}, OF_HASH),
        (NUMBERS["mapped hashes"], {}, OF_HASH),
        (NUMBERS["a method"], {}, HASH),
        (NUMBERS["an id"], {}, r"it uses the result of id\(\)"),
        (Hashes(), {}, HASH),
        (OwnHashes(), {}, HASH),
        (Matches(), {}, LINE),
        (Sentinel(), {}, LINE),
        # Frozen weights are a part of the code, but an entry holds no weights.
        (nn.Linear(4, 4), {"options": {"freezing": True}}, 'remove the option "freezing"'),
    ],
)
def test_what_cannot_become_a_fact_is_refused_with_advice(callee, options, why, tmp_path):
    """The reason names the line of the forward, and says what to do."""
    compiled = serve_warm.compile(callee, dynamic=False, **options)
    with eager_below():
        refused = refusal(tmp_path, lambda: compiled(x()))
    assert re.search(why, refused, re.DOTALL)
