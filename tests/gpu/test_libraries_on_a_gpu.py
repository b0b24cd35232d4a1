# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries (level 3) compute on a real GPU, and their calls are captured as CUDA graphs.

tests/precompile/libraries/test_library_graphs.py has similar tests with a stand-in for CUDA.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpus import ON_A_GPU, two_layers
from levels import build, spans, started
from serve_warm import compile as serve_warm_compile
from serve_warm.compiler.watch import watch_process

pytestmark = ON_A_GPU


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_what_takes_tensors_of_two_devices_has_an_entry(tmp_path: Path):
    """At level 3 such a call gets an entry of level 2, and the report says why."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y.cuda()

    x, y = torch.rand(8, 16, device="cuda"), torch.rand(8, 16)
    compiled = serve_warm_compile(forward, level=3)

    library = build(tmp_path / "entries", lambda: compiled(x, y))

    [made] = library.described()
    assert made["level"] == 2
    assert "it takes tensors on cpu and cuda:0" in made["reason"]


def test_a_library_is_captured_at_its_first_call(tmp_path: Path):
    """The mode `reduce-overhead` uses graphs. Each call returns results for its own input."""
    eager = two_layers()
    x = torch.rand(8, 16, device="cuda")
    compiled = serve_warm_compile(eager, mode="reduce-overhead", level=3)
    library = build(tmp_path / "entries", lambda: compiled(x), level=3)
    assert not library.refused

    with started(tmp_path / "entries"):
        found = spans(lambda: compiled(x), 3)
        with torch.inference_mode():
            inputs = [torch.rand(8, 16, device="cuda") for _ in range(3)]
            outputs = [compiled(each) for each in inputs]
            wanted = [eager(each) for each in inputs]

    assert [each.captures for each in found] == [1, 0, 0]
    assert [each.quiet for each in found] == [False, True, True]
    torch.testing.assert_close(outputs, wanted, rtol=1e-3, atol=1e-3)


class WritesIntoItsArgument(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1


def test_a_library_that_writes_into_its_argument_is_not_captured(tmp_path: Path):
    """A graph would write into a copy, so kernels are launched one by one. The event says why."""
    eager = WritesIntoItsArgument()
    compiled = serve_warm_compile(eager, mode="reduce-overhead", level=3)
    build(tmp_path / "entries", lambda: compiled(torch.ones(8, device="cuda")), level=3)
    before = watch_process().counts()

    with started(tmp_path / "entries"), torch.inference_mode():
        x = torch.ones(8, device="cuda")
        compiled(x)

    found = watch_process().counts() - before
    assert (found.compiles, found.captures, found.graph_skips) == (0, 0, 1)
    assert watch_process().events()[-1].reason == (
        "it writes into argument 0, but a CUDA graph has only a copy of this argument"
    )
    assert x.tolist() == [2.0] * 8


class GoesToTheCpu(torch.nn.Module):
    """Computes a part on the CPU, which the launch of a graph would not repeat."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.cpu() + 1).cuda() * x


def test_one_that_cannot_be_captured_costs_the_others_nothing(tmp_path: Path):
    """The build finds this model, so the start captures only the other models."""
    watch = watch_process()
    eager = {"good": two_layers(), "bad": GoesToTheCpu(), "other": two_layers()}
    x = torch.rand(8, 16, device="cuda")
    compiled = {
        name: serve_warm_compile(each, mode="reduce-overhead", level=3)
        for name, each in eager.items()
    }
    build(tmp_path / "entries", *[lambda c=c: c(x) for c in compiled.values()], level=3)
    stream = torch.cuda.current_stream()
    before = watch.counts()

    with started(tmp_path / "entries"):
        found = {name: spans(lambda c=c: c(x), 3) for name, c in compiled.items()}
        with torch.inference_mode():
            outputs = [c(x) for c in compiled.values()]
            wanted = [each(x) for each in eager.values()]

    assert [sum(each.captures for each in of_it) for of_it in found.values()] == [1, 0, 1]
    assert (watch.counts() - before).graph_skips == 1
    assert sum(each.graph_skips for each in found["bad"]) == 0
    skips = [event.reason for event in watch.events() if event.kind == "skip"]
    assert skips[-1] == (
        "a part of it runs on the CPU, and launching a CUDA graph does not repeat that part"
    )
    assert torch.cuda.current_stream() == stream
    torch.testing.assert_close(outputs, wanted, rtol=1e-3, atol=1e-3)
    # torch draws random numbers outside of any capture again.
    assert torch.rand(4, device="cuda").isfinite().all()


def test_a_call_within_a_capture_of_the_users_becomes_a_part_of_it(tmp_path: Path):
    """A launch of the user's graph computes with the current content of the input."""
    eager = two_layers()
    x = torch.rand(8, 16, device="cuda")
    compiled = serve_warm_compile(eager, mode="reduce-overhead", level=3)
    build(tmp_path / "entries", lambda: compiled(x), level=3)

    with started(tmp_path / "entries"), torch.inference_mode():
        compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = compiled(x)
        x.copy_(torch.rand(8, 16, device="cuda"))
        graph.replay()

        torch.testing.assert_close(output, eager(x), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
def test_a_library_computes_on_another_gpu_than_the_current_one(tmp_path: Path):
    """The current GPU stays the same."""
    eager = two_layers(device="cuda:1")
    x = torch.rand(8, 16, device="cuda:1")
    compiled = serve_warm_compile(eager, mode="reduce-overhead", level=3)
    build(tmp_path / "entries", lambda: compiled(x), level=3)
    built_on = torch.cuda.current_device()

    with started(tmp_path / "entries"):
        found = spans(lambda: compiled(x), 3)
        with torch.inference_mode():
            output, wanted = compiled(x), eager(x)

    assert [each.captures for each in found] == [1, 0, 0]
    assert (built_on, torch.cuda.current_device()) == (0, 0)
    torch.testing.assert_close(output, wanted, rtol=1e-3, atol=1e-3)
