# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a graph in the form that AOTInductor accepts: plain tensors only.

Dynamo's graph can also have inputs that are sizes, or tensors that contain other tensors. This
module makes the graph read the sizes from its tensors and take the inner tensors as inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.tensor_parts import has_parts, part_names, plain_parts, with_parts
from serve_warm.private_apis.inductor import leaves_of


def fake_of(node: torch.fx.Node) -> Any:
    """Return the tensor or size that represented an input while Dynamo was tracing."""
    return node.meta["example_value"]


def inputs_of(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the nodes of a graph's inputs."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def read_sizes(graph: torch.fx.GraphModule) -> None:
    """Make a graph read its sizes from its tensors, because AOTInductor accepts only tensors."""
    inputs = inputs_of(graph)
    tensors = [node for node in inputs if isinstance(fake_of(node), torch.Tensor)]
    where = {
        size.node.expr: (tensor, dim)
        for tensor in reversed(tensors)
        for dim, size in enumerate(fake_of(tensor).shape)
        if isinstance(size, torch.SymInt)
    }
    for node in inputs:
        if node in tensors:
            continue
        if not isinstance(fake_of(node), torch.SymInt) or fake_of(node).node.expr not in where:
            raise NoEntry(f"its graph takes {fake_of(node)}, which is not a size of a tensor")
        with graph.graph.inserting_after(inputs[-1]):
            size = graph.graph.call_function(
                torch.ops.aten.sym_size.int, where[fake_of(node).node.expr]
            )
        size.meta["example_value"] = fake_of(node)
        node.replace_all_uses_with(size)
        graph.graph.erase_node(node)
    graph.recompile()


def take_parts(
    graph: torch.fx.GraphModule, sources: Sequence[str]
) -> tuple[torch.fx.GraphModule, list[str]]:
    """Return a graph that takes the parts of composite tensors, and the sources of the parts.

    Raises:
        NoEntry: the graph returns a composite tensor, or has dynamic sizes.
    """
    fakes = [fake_of(node) for node in inputs_of(graph)]
    if not any(map(has_parts, fakes)):
        return graph, list(sources)
    if any(isinstance(size, torch.SymInt) for fake in fakes for size in fake.shape):
        raise NoEntry(
            "its sizes are dynamic, and an input of its graph is composed of other tensors"
        )
    from torch.fx.experimental.proxy_tensor import make_fx

    parts = [plain_parts(fake) for fake in fakes]
    flat: list[Any] = [part for each in parts for part in each]

    def run(*given: torch.Tensor) -> object:
        left = iter(given)
        wholes = [
            with_parts(fake, [next(left) for _ in each])
            for fake, each in zip(fakes, parts, strict=True)
        ]
        found = graph(*wholes)
        if any(map(has_parts, leaves_of(found))):
            raise NoEntry("it returns a tensor that is composed of other tensors")
        return found

    with flat[0].fake_mode, torch.no_grad():
        traced = make_fx(run)(*flat)
    for node, part in zip(inputs_of(traced), flat, strict=True):
        node.meta["example_value"] = part
    found = [
        f"{source}{name}"
        for source, fake in zip(sources, fakes, strict=True)
        for name in part_names(fake)
    ]
    return traced, found
