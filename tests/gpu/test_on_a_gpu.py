# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""On a real GPU, the watch sees every capture of a CUDA graph, and kernels and tuning too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpus import ON_A_GPU, two_layers
from levels import build, spans, started
from processes import answer_of
from serve_warm import compile as serve_warm_compile
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.watch import watch_process

pytestmark = ON_A_GPU


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def test_a_path_is_quiet_only_after_its_capture():
    """The first call runs eagerly, the second captures, and later calls do neither."""
    compiled = torch.compile(two_layers(), mode="reduce-overhead", fullgraph=True)
    x = torch.rand(8, 16, device="cuda")

    found = spans(lambda: compiled(x), 4)

    assert [each.eager_runs for each in found] == [1, 0, 0, 0]
    assert [each.captures for each in found] == [0, 1, 0, 0]
    assert [each.quiet for each in found] == [False, False, True, True]
    assert found[1].capture_s > 0
    last = watch_process().events()[-1]
    assert (last.kind, last.reason) == ("capture", "")
    assert "float32[8, 16]" in last.signature


def test_graphs_that_user_code_captures_are_counted():
    """torch.cuda.graph and make_graphed_callables are captures like any other."""
    x = torch.rand(8, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    eager = two_layers()

    def by_hand() -> None:
        with torch.cuda.graph(graph):
            x + 1

    [one] = spans(by_hand, 1)
    before = watch_process().counts()
    torch.cuda.make_graphed_callables(eager, (x,))
    more = watch_process().counts() - before

    assert one.captures == 1
    assert more.captures >= 1


def test_an_entry_captures_and_is_right(tmp_path: Path):
    """At level 2 nothing is compiled, and a graph is captured as at level 1."""
    eager = two_layers()
    x = torch.rand(8, 16, device="cuda")
    compiled = serve_warm_compile(eager, mode="reduce-overhead")
    library = build(tmp_path / "entries", lambda: compiled(x))
    assert not library.refused

    with started(tmp_path / "entries"):
        found = spans(lambda: compiled(x), 4)
        with torch.inference_mode():
            out, wanted = compiled(x).clone(), eager(x)

    assert [each.compiles for each in found] == [0, 0, 0, 0]
    assert sum(each.captures for each in found) == 1
    assert found[-1].quiet
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)


def test_a_hand_written_kernel_is_built_and_tuned_once_for_all_processes(tmp_path: Path):
    """A process that gets the moved cache directory of another one builds and tunes nothing.

    There is one exception: Triton cannot save the tuning of a kernel whose configurations have a
    `pre_hook`.
    """
    there, here = tmp_path / "there", tmp_path / "here"
    cold = answer_of("handwritten.py", {"do": "launch", "cache": str(there)})["launched"]
    there.rename(here)
    triton_kernels.relocate(here)

    warm = answer_of("handwritten.py", {"do": "launch", "cache": str(here)})["launched"]

    assert {answer[name]["error"] for answer in (cold, warm) for name in answer} == {0.0}
    assert counted(cold) == {
        "double": [(1, 0), (0, 0)],
        "add": [(3, 1), (0, 0)],
        "accumulate": [(2, 1), (0, 0)],
    }
    assert counted(warm) == {
        "double": [(0, 0), (0, 0)],
        "add": [(0, 0), (0, 0)],
        "accumulate": [(0, 1), (0, 0)],
    }


def counted(launched: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return the kernels built and the tunings in each launch, by kernel."""
    return {
        name: [(span["kernels"], span["tunings"]) for span in answer["spans"]]
        for name, answer in launched.items()
    }


def test_what_is_kept_of_a_call_does_not_make_the_next_one_capture(tmp_path: Path):
    """As with torch.compile, the result of a call becomes invalid when the next call begins."""
    x = torch.rand(8, 16, device="cuda")
    compiled = serve_warm_compile(two_layers(), mode="reduce-overhead")
    build(tmp_path / "entries", lambda: compiled(x))
    kept = []

    with started(tmp_path / "entries"):
        found = spans(lambda: kept.append(compiled(x)), 8)

    assert sum(each.captures for each in found) == 1
    assert all(each.quiet for each in found[2:])


def test_what_lies_around_work_on_the_cpu_is_captured():
    """Two graphs are captured, before and after the CPU work, and none is skipped."""
    weight = torch.rand(64, 64, device="cuda")

    def forward(x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(x @ weight)
        on_the_cpu = first.cpu().sin()
        return (on_the_cpu.cuda() + 1) @ weight

    compiled = torch.compile(forward, mode="reduce-overhead", fullgraph=True)
    x, other = torch.rand(2, 8, 64, device="cuda")

    with torch._inductor.config.patch(graph_partition=True):
        found = spans(lambda: compiled(x), 4)
    with torch.inference_mode():
        out, wanted = compiled(other).clone(), forward(other)

    assert sum(each.captures for each in found) == 2
    assert sum(each.eager_runs for each in found) == 2
    assert sum(each.graph_skips for each in found) == 0
    assert [each.quiet for each in found[-2:]] == [True, True]
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)
