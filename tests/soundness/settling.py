# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows about state that a model creates in its first call, and about the order of its sets."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from soundness.rows import both, group, linear, own


class Kept(nn.Module):
    """Keeps a number and a table from its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = linear(0)
        self.number: Any = None
        self.table: Any = None

    def forward(self, x: Any) -> Any:
        if self.number is None:
            self.number = 3
        if self.table is None:
            self.table = torch.full((4, 4), 0.5)
        return torch.addmm(self.table, self.sub(x), self.table, alpha=self.number)


class Hooked(nn.Module):
    """Installs a hook in its first call, under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.sub, self.lock, self.is_hooked = linear(0), threading.Lock(), False

    def forward(self, x: Any) -> Any:
        if not self.is_hooked:
            with self.lock:
                self.sub.register_forward_hook(lambda module, given, out: out * 2)
                self.is_hooked = True
        return self.sub(x)


class Rescaled(nn.Module):
    """Changes its weight in place, in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.sub, self.is_rescaled = linear(0), False

    def forward(self, x: Any) -> Any:
        if not self.is_rescaled:
            with torch.no_grad():
                self.sub.weight.div_(2)
            self.is_rescaled = True
        return self.sub(x)


class Named(nn.Module):
    """Iterates over sets of names."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: linear(n) for n, name in enumerate("abcd")})
        self.names = ["a", "b"]
        self.held = {"b", "d"}

    def forward(self, x: Any) -> Any:
        made = {name: self.parts[name](x) for name in set(self.names)}
        made |= {name: self.parts[name](x) / 2 for name in self.held}
        return sum(made[name] for name in sorted(made))


GROUPS = (
    group(
        "state of the first call",
        Kept,
        both("number of the first call", own("number", 5)),
        both("number of the first call, dropped", own("number", None), same=True),
        both("table of the first call", own("table", torch.ones(4, 4))),
        both("table of the first call, dropped", own("table", None), same=True),
        both(
            "everything of the first call, not made yet",
            lambda app: app.__dict__.update(number=None, table=None),
            same=True,
        ),
    ),
    group(
        "hook of the first call",
        Hooked,
        both("hook that is installed again", own("is_hooked", False)),
        both("hook that is gone", lambda app: app.sub._forward_hooks.clear()),
    ),
    group(
        "weights of the first call",
        Rescaled,
        both("weights that are rescaled again", own("is_rescaled", False)),
    ),
    group(
        "sets",
        Named,
        both("name that is new in a list", lambda app: app.names.append("c")),
        both("list of names", own("names", ["c"])),
        both("order of a list of names", lambda app: app.names.reverse(), same=True),
        both("name that is new in a set", lambda app: app.held.add("a")),
        both("set of names", own("held", {"a", "b"})),
    ),
)
