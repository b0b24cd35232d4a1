# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Entries of level 2 and 3 in a fresh process: nothing is traced, no compiler runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levels import in_a_process
from models import one_watch  # noqa: F401 - a fixture

NESTED = """
import torch
import serve_warm

FORBID = True

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = serve_warm.compile(Inner().eval(), level=LEVEL, dynamic=False)
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.inner(x))

class Service(serve_warm.WarmupMixin):
    rate = 0.5

    def __init__(self):
        self.shift = serve_warm.compile(lambda x: x + 1, level=LEVEL, dynamic=False)

    @serve_warm.compile(level=LEVEL, dynamic=False)
    def scaled(self, x):
        return torch.mm(x, x.T) * self.rate

    @serve_warm.compile(level=LEVEL, dynamic=False)
    def both(self, x):
        return self.scaled(self.shift(x))

def make():
    torch.manual_seed(0)
    outer = serve_warm.compile(Outer().eval(), level=LEVEL, dynamic=False)
    service = Service()
    return lambda name, x: {"outer": outer, "both": service.both}[name](x)

def calls():
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    # Dynamo 2.11 looks for an attribute with `__get__`, which `shift` is, in classes alone.
    both = [] if torch.__version__.startswith("2.11.") else [("both", x)]
    return [("outer", x), *both]
"""


OUR_NAMES = {"LightModule", "Dispatcher", "_CompiledFunction"}
"""Classes whose names artifacts store. Renaming one invalidates entries of earlier releases."""


@pytest.mark.long
@pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.stress)])
def test_one_callable_inside_another_starts_in_a_fresh_process(level: int, tmp_path: Path):
    """No fact names a module of serve_warm or digests its code: artifacts outlive releases."""
    (tmp_path / "app.py").write_text(NESTED.replace("LEVEL", str(level)))
    built = in_a_process(tmp_path, "build", level=level)
    start = in_a_process(tmp_path, "start")

    assert built["refused"] == {}
    assert set(start["levels"]) == {level}
    assert (start["why"], start["reasons"]) == ("", [""])
    assert (start["compiles"], start["compiler_processes"]) == (0, 0)
    assert start["outputs"] == built["outputs"]
    index = (tmp_path / "entries" / "index.json").read_text()
    ours = set(re.findall(r"\bserve_warm\.[^\"]*", index))
    assert ours
    assert ours <= {f"serve_warm.{n}{end}" for n in OUR_NAMES for end in ("", ".__call__")}
