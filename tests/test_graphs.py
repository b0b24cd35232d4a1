# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What of CUDA graphs can be seen without a GPU: skips, and how torch's own classes are hooked.

Captures themselves are in tests/gpu.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import serve_warm
from levels import build, served, started
from serve_warm import compiler, graphs

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from serve_warm.report import CompileEvent


@pytest.mark.parametrize("user", graphs.SKIP_USERS)
def test_a_skip_is_counted_with_torchs_reason(user: str):
    """Whichever part of Inductor says it. Of graphs on a CPU it says nothing by itself."""
    watch = compiler.watch()
    compiler.import_compiler()
    module = importlib.import_module(f"torch._inductor.{user}")
    before = watch.counts()

    module.log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to\n  a cpu device (x)")

    assert (watch.counts() - before).graph_skips == 1
    assert watch.events()[-1].reason == "skipping cudagraphs due to a cpu device (x)"


class Node:
    """A captured graph, to which the inputs of another call are strange."""

    def __init__(self, why: str) -> None:
        self.children: dict[int, list[Node]] = defaultdict(list)
        self._why = why

    def check_invariants(self, inputs: list[Any]) -> tuple[int, Any]:
        return 1, lambda: self._why


def trees(why: str) -> ModuleType:
    """Return a stand-in for Inductor's module: a manager that captures by keeping a node."""

    class CUDAGraphTreeManager:
        def __init__(self) -> None:
            self.current_node = None
            self.roots: dict[int, list[Node]] = defaultdict(list)
            self.ids_to_funcs = {7: SimpleNamespace(static_input_idxs=[0])}
            self.id_to_compile_id = {7: "0/3"}

        def record_function(self, new_inputs: list[Any], function_id: int) -> str:
            self.roots[function_id].append(Node(why))
            return "captured"

        def run_eager(self, new_inputs: list[Any], function_id: int) -> str:
            return "eager"

    def get_obj(local: Any, name: str) -> Any:
        assert hasattr(local, name)  # all that 2.11 says
        return getattr(local, name)

    stand_in: Any = SimpleNamespace(CUDAGraphTreeManager=CUDAGraphTreeManager, get_obj=get_obj)
    return stand_in


def hooked(module: ModuleType) -> tuple[Any, list[CompileEvent], list[str]]:
    events: list[CompileEvent] = []
    eager: list[str] = []
    graphs._hook_trees(events.append, lambda: eager.append("run"), module)
    return module.CUDAGraphTreeManager(), events, eager


def test_a_capture_names_the_compile_and_what_the_call_brought():
    """Weights, which are inputs of a graph too, are not listed."""
    manager, events, eager = hooked(trees(""))
    weight, x = torch.rand(9, 9), torch.rand(2, 3)

    answers = manager.run_eager([weight, x], 7), manager.record_function([weight, x], 7)

    assert answers == ("eager", "captured")
    assert eager == ["run"]
    [event] = events
    assert (event.kind, event.function) == ("capture", "CUDA graph of compile 0/3")
    assert "2×3" in event.signature
    assert "9×9" not in event.signature
    assert event.reason == ""


def test_a_capture_of_a_known_path_says_why_it_is_made_again():
    """Captures that never end have a cause, and it is torch's to name."""
    manager, events, _ = hooked(trees("static input 0\n  moved"))
    manager.record_function([torch.rand(1), torch.rand(2)], 7)

    manager.record_function([torch.rand(1), torch.rand(2)], 7)

    assert events[-1].reason == "captured 1 times before: static input 0 moved"


def test_each_thread_has_containers_of_its_own():
    """With torch up to 2.11 only the thread that imported the module had any."""
    module: Any = trees("")
    hooked(module)
    local = threading.local()

    def found() -> tuple[Any, Any]:
        names = "tree_manager_containers", "tree_manager_locks"
        first, again = ([module.get_obj(local, name) for name in names] for _ in range(2))
        assert [*map(id, first)] == [*map(id, again)]
        return first[0], first[1][0]

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        (containers, lock), (others, _) = one.submit(found).result(), another.submit(found).result()

    assert containers == {}
    assert containers is not others
    assert not lock.locked()


def test_torch_has_what_is_hooked():
    """The names that are hooked are in this version of torch, with the parameters they had."""
    from torch._inductor import cudagraph_trees, cudagraph_utils

    manager = cudagraph_trees.CUDAGraphTreeManager

    assert manager.record_function.__code__.co_argcount == 3
    assert manager.run_eager.__code__.co_argcount == 3
    assert callable(cudagraph_utils.log_cudagraph_skip_and_bump_counter)
    assert {"capture_begin", "capture_end"} <= set(dir(torch.cuda.CUDAGraph))


def test_an_entry_is_loaded_with_the_setting_that_it_captures_by(tmp_path: Path):
    """Its file does not say whether it captures, and torch asks when it is loaded."""
    x = torch.rand(8, 16)
    plain, capturing = (
        serve_warm.compile(torch.nn.Linear(16, 4).eval(), **arguments)
        for arguments in ({}, {"mode": "reduce-overhead"})
    )

    build(tmp_path / "plain", lambda: plain(x))
    build(tmp_path / "capturing", lambda: capturing(x))

    assert "plan" not in only_entry(tmp_path / "plain")
    settings = {"triton.cudagraphs": True}
    assert only_entry(tmp_path / "capturing")["plan"] == {"settings": settings}
    with started(tmp_path / "capturing"), torch.inference_mode():
        result = served(lambda: capturing(x))
    assert (result.level, result.reason, result.compiles) == (2, "", 0)


def only_entry(folder: Path) -> dict[str, Any]:
    """Return the record of the one entry in a folder."""
    [unit] = json.loads((folder / "index.json").read_text())["units"]
    [entry] = unit["entries"]
    found: dict[str, Any] = entry
    return found


def test_without_cuda_there_are_no_pools():
    """And nothing of CUDA is asked for."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: tests/gpu measures its pools")

    assert graphs.pool_bytes() == {}
    assert graphs.memory() == ()


def test_memory_is_told_by_device_and_pool(monkeypatch: pytest.MonkeyPatch):
    """What is no graph's is held and in no pool; a device that nothing was put on is left out."""
    two_gpus(
        monkeypatch,
        [
            {"device": 0, "segment_pool_id": (0, 0), "total_size": 100},
            {"device": 0, "segment_pool_id": (0, 1), "total_size": 20},
            {"device": 0, "segment_pool_id": (0, 1), "total_size": 3},
            {"device": 0, "segment_pool_id": (2, 0), "total_size": 4},
        ],
    )

    [memory] = graphs.memory()

    assert memory.device == "cuda:0"
    assert (memory.reserved_bytes, memory.reserved_peak_bytes) == (127, 254)
    assert memory.pools == {"0.1": 23, "2.0": 4}
    assert memory.pool_bytes == 27


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_is_not_asked(monkeypatch: pytest.MonkeyPatch, backend: str):
    """It would raise, and a start would fail for a figure."""
    two_gpus(monkeypatch, None, backend=backend)

    assert graphs.pool_bytes() == {}
    assert graphs.memory() == ()


def two_gpus(
    patch: pytest.MonkeyPatch, segments: list[dict[str, Any]] | None, *, backend: str = "native"
) -> None:
    """Have torch's allocator say this; without segments it raises where it is asked."""

    def held(device: int) -> int:
        return sum(each["total_size"] for each in snapshot() if each["device"] == device)

    def snapshot() -> list[dict[str, Any]]:
        if segments is None:
            raise RuntimeError("not meaningful")
        return segments

    says = {
        "is_initialized": lambda: True,
        "get_allocator_backend": lambda: backend,
        "device_count": lambda: 2,
        "memory_snapshot": snapshot,
        "memory_reserved": held,
        "max_memory_reserved": lambda device: 2 * held(device),
    }
    for name, answer in says.items():
        patch.setattr(torch.cuda, name, answer)
