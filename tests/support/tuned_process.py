# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A matrix product and a softmax, with or without autotuning; prints the counts.

    python tuned_process.py '{"do": "build", "level": 2, "folder": "/a/folder",
                              "arguments": {"mode": "max-autotune"}}'

`do` is `build`, or `start`, which uses the files that a build left in the folder. With `other`, a
different function contains the same product. The program uses a GPU if there is one. Inductor has
templates for CPUs too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from serve_warm import compile as serve_warm_compile
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.watch import watch_process
from serve_warm.config import point_torch_caches_at
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION

CALLS = 4
"""Number of calls until a graph is launched, plus one."""


class Attention(torch.nn.Module):
    """A layer with one weight for each pair, whose softmax kernel has several configurations."""

    def __init__(self, *, other: bool) -> None:
        super().__init__()
        self.keys = torch.nn.Parameter(torch.rand(4, 256, 512) - 0.5)
        self.other = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(x, self.keys)
        return scores.sin() * 2 if self.other else scores.softmax(-1)


def main(
    do: str,
    folder: str,
    arguments: dict[str, Any],
    *,
    level: int = 1,
    other: bool = False,
) -> dict[str, Any]:
    cache, entries = Path(folder, "cache"), Path(folder, "entries")
    point_torch_caches_at(cache)
    triton_kernels.relocate(cache)
    watch = watch_process()
    watch.count_kernels_in(cache)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    eager = Attention(other=other).to(device).eval()
    x = torch.rand(4, 128, 256, device=device)
    handed_over = torch.compile if level == 1 else serve_warm_compile
    compiled = handed_over(eager, **arguments)
    before, spans = watch.counts(), []
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        if level == 2 and do == "build":
            library = stack.enter_context(building()).table
        elif level == 2:
            why = SESSION.load(entries)
            assert not why, why
        for _ in range(CALLS):
            start = watch.counts()
            out = compiled(x)
            spans.append((watch.counts() - start).quiet)
        error = (out - eager(x)).abs().max().item()
    if level == 2 and do == "build":
        assert not library.refused, library.refused
        entries.mkdir()
        for name, data in library.to_files(2).items():
            (entries / name).write_bytes(data)
    events = watch.events()
    return {
        "counts": dataclasses.asdict(watch.counts() - before),
        "quiet": spans,
        "error": error,
        "templates": [str(event) for event in events if "templates" in event.reason],
        "levels": [use.level for use in SESSION.uses()],
        "static": torch._dynamo.utils.counters["inductor"]["triton_bundler_load_static_autotuner"],
        "events": [str(event) for event in events],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
