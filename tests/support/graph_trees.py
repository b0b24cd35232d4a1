# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch's CUDA graph trees, and for a machine with two GPUs."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pytest


class Node:
    """A captured graph that does not match the inputs of another call."""

    def __init__(self, why: str) -> None:
        self.children: dict[int, list[Node]] = defaultdict(list)
        self._why = why

    def check_invariants(self, inputs: list[Any]) -> tuple[int, Any]:
        return 1, lambda: self._why


def trees(why: str, *, fails: Sequence[BaseException] = (), plain: Any = None) -> ModuleType:
    """Return a stand-in for Inductor's module, whose manager captures by keeping a node.

    Captures raise the errors in `fails`, one after another; `plain` is the function without a
    graph.
    """
    failures = list(fails)

    class CUDAGraphTreeManager:
        def __init__(self) -> None:
            self.current_node: Any = None
            self.path_state = "none"
            self.roots: dict[int, list[Node]] = defaultdict(list)
            function = SimpleNamespace(static_input_idxs=[0], mutated_input_idxs=[], model=plain)
            self.ids_to_funcs = {7: function}
            self.id_to_compile_id = {7: "0/3"}
            self.warmed_up_functions: set[int] = set()

        def _run(self, new_inputs: list[Any], function_id: int) -> Any:
            if function_id not in self.warmed_up_functions:
                return self.run_eager(new_inputs, function_id)
            return self.record_function(new_inputs, function_id)

        def record_function(self, new_inputs: list[Any], function_id: int) -> str:
            self.fail(new_inputs)
            self.roots[function_id].append(Node(why))
            return "captured"

        def run_eager(self, new_inputs: list[Any], function_id: int) -> str:
            # As in torch, this comes before anything that can fail.
            self.warmed_up_functions.add(function_id)
            self.current_node, self.path_state = "warm-up", "warmup"
            self.fail(new_inputs)
            self.current_node, self.path_state = None, "none"
            return "eager"

        def fail(self, new_inputs: list[Any]) -> None:
            new_inputs.clear()
            if failures:
                raise failures.pop(0)

    def is_cudagraph_capture_sizes(int_key: Any) -> bool:
        return int_key in (None, 8, (8, 16))

    stand_in: Any = SimpleNamespace(
        CUDAGraphTreeManager=CUDAGraphTreeManager,
        is_cudagraph_capture_sizes=is_cudagraph_capture_sizes,
    )
    return stand_in


def two_gpus(
    patch: pytest.MonkeyPatch, segments: list[dict[str, Any]] | None, *, backend: str = "native"
) -> None:
    """Make torch's allocator report these segments. With None, it raises."""

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
        "current_device": lambda: 0,
        "current_stream": lambda: None,
        "memory_snapshot": snapshot,
        "memory_reserved": held,
        "max_memory_reserved": lambda device: 2 * held(device),
    }
    for name, answer in says.items():
        patch.setattr(torch.cuda, name, answer)
