# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Open axes: torch makes code for any of their sizes, and no other code sees the marks."""

from __future__ import annotations

from typing import Any

import torch

from serve_warm.private_apis.dynamo import opened_axes


def sizes_seen(tensor: torch.Tensor, axes: list[tuple[int, int]]) -> list[str]:
    """Return the sizes with which torch traces a call, with these axes open."""
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        del inputs
        seen.extend(
            str(size)
            for node in graph.graph.nodes
            if node.op == "placeholder" and isinstance(node.meta["example_value"], torch.Tensor)
            for size in node.meta["example_value"].shape
        )
        return graph.forward

    torch._dynamo.reset()
    with opened_axes([tensor], axes):
        torch.compile(lambda x: x * 2, backend=backend, dynamic=False)(tensor)
    return seen


def test_only_an_open_axis_may_have_any_size():
    assert sizes_seen(torch.ones(3, 5), []) == ["3", "5"]
    first, second = sizes_seen(torch.ones(3, 5), [(0, 0)])
    assert (first.isdigit(), second) == (False, "5")


def test_axes_that_no_tensor_has_are_left_out():
    """A person may have edited the plan that names them."""
    assert sizes_seen(torch.ones(3, 5), [(0, 7), (4, 0)]) == ["3", "5"]


def test_no_mark_stays_on_a_tensor():
    """torch.compile's guards would fail on it, also in code that was compiled without one."""
    tensor = torch.ones(3, 5)
    tensor.own = "attribute"
    with opened_axes([tensor], [(0, 0)]):
        assert len(vars(tensor)) > 1
    assert vars(tensor) == {"own": "attribute"}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    assert torch.equal(compiled(tensor), tensor * 2)


def test_without_open_axes_what_a_call_sets_stays():
    tensor = torch.ones(3)
    with opened_axes([tensor], ()):
        tensor.own = "attribute"
    assert tensor.own == "attribute"
