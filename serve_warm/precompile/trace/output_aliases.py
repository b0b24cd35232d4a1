# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs that share memory with inputs or with other outputs, in compiled code and in eager.

If a graph returns `y.clone(), y.clone()`, torch's compiler removes both copies, and both outputs
are `y` (`remove_noop_ops` in torch 2.13). A caller that writes into one output would then change
the other. So an entry copies each output that shares memory only in compiled code. In the other
direction, `torch.compile` may return a copy where an eager output shares memory with another
output. An entry does so too, because a copy is safe.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence

import torch

from serve_warm.precompile.calls.copies import copy_tensors
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.tensor_parts import has_parts, plain_parts
from serve_warm.private_apis import dynamo
from serve_warm.private_apis.patches import Change, replaced


def find_aliases(outputs: Sequence[object], inputs: Sequence[torch.Tensor]) -> list[str]:
    """Describe which tensor shares each output's memory, and the output's offset and strides.

    The text is empty for an output that shares no memory with an input or an earlier output.
    """
    owners = {
        tensor.untyped_storage().data_ptr(): f"input {number}"
        for number, tensor in enumerate(inputs)
        if tensor.numel()
    }
    found = []
    for number, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):  # a size
            found.append("")
            continue
        own = f"output {number}"
        owner = owners.setdefault(output.untyped_storage().data_ptr(), own)
        where = f"{owner}, at offset {output.storage_offset()} with strides {output.stride()}"
        found.append("" if owner == own or not output.numel() else where)
    return found


def outputs_to_copy(eager: Sequence[str], ours: Sequence[str]) -> list[int]:
    """Return the outputs that share memory in compiled code, but not or differently in eager."""
    pairs = zip(eager, ours, strict=True)
    return [number for number, (was, now) in enumerate(pairs) if now and now != was]


def refuse_lost_inputs(eager: Sequence[str], ours: Sequence[str]) -> None:
    """Raise `NoEntry` if only the eager output shares memory with an input.

    The input may be a buffer, such as a cache, and the caller may keep a view of the buffer.
    """
    for number, (was, now) in enumerate(zip(eager, ours, strict=True)):
        if was.startswith("input") and now != was:
            raise NoEntry(
                f"its output {number} {describe_sharing(now)}, but the eager output "
                f"{describe_sharing(was)}"
            )


@contextlib.contextmanager
def noting_graphs() -> Iterator[list[torch.fx.GraphModule]]:
    """Yield a list that gets a copy of each graph that Dynamo passes to Inductor in the block."""
    graphs: list[torch.fx.GraphModule] = []
    is_inside = False

    def noting(original: Callable[..., object]) -> Callable[..., object]:
        def compile_fx(graph: torch.fx.GraphModule, *args: object, **kwargs: object) -> object:
            nonlocal is_inside
            if is_inside:  # torch's function calls itself with a changed graph
                return original(graph, *args, **kwargs)
            graphs.append(copy.deepcopy(graph))  # the compile changes its graph
            is_inside = True
            try:
                return original(graph, *args, **kwargs)
            finally:
                is_inside = False

        return compile_fx

    # No other thread compiles a graph in the block.
    with dynamo.compile_lock(), replaced([Change("compile_fx", noting)]):
        yield graphs


def find_outputs_to_copy(
    graph: Callable[..., Sequence[object]], args: Sequence[object], outputs: Sequence[object]
) -> list[int]:
    """Return the outputs that a level-2 entry must copy, from one run of its compiled code.

    The graph runs eagerly too, on copies, but only if outputs of the compiled code share memory.
    """
    if any(isinstance(output, torch.Tensor) and has_parts(output) for output in outputs):
        return []
    ours = find_aliases(outputs, _plain_tensors(args))
    if not any(ours):
        return []
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if any(map(has_parts, given)):
        return []
    copies = iter(copy_tensors(given, inference=False))
    anew = [next(copies) if isinstance(arg, torch.Tensor) else arg for arg in args]
    with torch.random.fork_rng(devices=sorted({t.device for t in given if t.is_cuda}, key=str)):
        eager = find_aliases(graph(*anew), _plain_tensors(anew))
    return outputs_to_copy(eager, ours)


def _plain_tensors(args: Sequence[object]) -> list[torch.Tensor]:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return [part for tensor in tensors for part in plain_parts(tensor)]


def describe_sharing(where: str) -> str:
    """Describe which tensor shares an output's memory; `where` comes from `find_aliases`."""
    none = "shares no memory with an input or an earlier output"
    return f"shares memory with {where}" if where else none
