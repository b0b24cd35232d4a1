# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration orders of the sets in a forward; these orders differ between processes.

An entry is correct only if its graph does not depend on these orders. So if a call iterates over
sets, a build traces the call several times, with the sets in different orders, and compares what
the graphs compute. Graphs are equal if each result has the same expression over the same inputs;
the order of independent operations does not matter. Refusing every iteration over a set would be
simpler, but would leave Gemma 3 and ModernBERT without entries, and so 2 of 130 models
(`make set-orders`).
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from serve_warm._records import record
from serve_warm.precompile.calls.copies import copy_tensors, describe_result
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import Merged
from serve_warm.precompile.trace.dynamo_hooks import DEPENDS_ON_ORDER
from serve_warm.precompile.trace.graph_inputs import inputs_of
from serve_warm.precompile.trace.guards import source_of
from serve_warm.precompile.trace.side_effects import callable_once, side_effects
from serve_warm.private_apis import inductor
from serve_warm.private_apis.cpython import OPERATORS
from serve_warm.private_apis.torch_c import schema_of

if TYPE_CHECKING:
    from serve_warm.precompile.trace.captured import Captured
    from serve_warm.private_apis.dynamo_objects import ModelOfSet, Translator

Arrange = Callable[[Sequence[object], int], Sequence[object]]
"""Returns the items of a set in a new order. The number identifies the set within the call."""


class Orders:
    """The sets that a trace iterates over, and each set's order."""

    def __init__(self, arrange: Arrange | None = None) -> None:
        self._arrange = arrange or (lambda items, _: items)
        self.sets = 0
        """Number of sets in the last attempt to trace."""
        self.largest = 0
        """Number of items of the largest set."""
        self._attempt: object = None
        self._arranged: dict[int, tuple[ModelOfSet, frozenset[object]]] = {}
        """The sets that were already reordered, with their items. A set keeps its order until its
        items change."""

    def begin(self, variable: ModelOfSet, tx: Translator) -> None:
        """Set the order of one of Dynamo's sets, before an iteration over the set."""
        items = variable.items
        if len(items) < 2:
            return
        if tx.output is not self._attempt:  # Dynamo started again
            self._attempt, self._arranged, self.sets = tx.output, {}, 0
        keys = frozenset(items)
        known = self._arranged.get(id(variable))
        if known is not None and known[1] == keys:
            return
        arranged = [(key, items[key]) for key in self._arrange(list(items), self.sets)]
        self._arranged[id(variable)] = (variable, keys)
        self.sets += 1
        self.largest = max(self.largest, len(items))
        items.clear()
        items.update(arranged)

    def forget_trace(self) -> None:
        """Release the objects of the trace."""
        self._attempt, self._arranged = None, {}


def arrangements(sets: int, largest: int) -> Iterator[Arrange]:
    """Yield functions that reorder the sets of a call, each in a different way.

    The first function reverses every set, so each pair of items is also seen in the opposite order.
    For any two sets, at least one function reverses one set but not the other.
    """
    yield lambda items, _: items[::-1]
    for bit in range((sets - 1).bit_length()):
        yield lambda items, number, bit=bit: items[::-1] if number >> bit & 1 else items  # type: ignore[misc]
    if largest > 2:
        yield _rotate
    for seed in (1, 2) if largest > 3 else ():
        yield lambda items, number, seed=seed: _shuffle(items, f"{seed} {number}")  # type: ignore[misc]


def _rotate(items: Sequence[object], number: int) -> Sequence[object]:
    by = 1 + number % (len(items) - 1)
    return [*items[by:], *items[:by]]


def _shuffle(items: Sequence[object], seed: str) -> Sequence[object]:
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - orders only
    return shuffled


@record(frozen=True, kw_only=True)
class Computed:
    """What a call computes, in a form that is equal for equal computations."""

    returned: str
    """The result, without its tensors."""
    tensors: Sequence[str]
    """The expression for each tensor in the result."""
    written: Sequence[str]
    """Expressions whose values the graph writes into its inputs."""
    in_order: Sequence[str]
    """All expressions in their order, if the order may matter."""


Trace = Callable[[Callable[..., object], Orders], "Captured"]
"""Traces the call with the given backend, and with the given orders of its sets."""


def join_orders(
    first: Captured,
    orders: Orders,
    trace: Trace,
    callee: object,
    tensors: Sequence[torch.Tensor],
) -> Captured:
    """Trace again with the sets in new orders; return `first` with the facts of all traces.

    Raises:
        NoEntry: the graph or the result depends on the order.
    """
    orders.forget_trace()
    expected, captured = _compute(trace, Orders(), callee, tensors), [first]
    for arrange in arrangements(orders.sets, orders.largest):
        found = _compute(trace, Orders(arrange), callee, tensors)
        if found[0] != expected[0]:
            raise NoEntry(DEPENDS_ON_ORDER)
        captured.append(found[1])
    return replace(
        first,
        facts=Merged.of([each.facts for each in captured]).facts_of_all(),
        conditions=tuple(dict.fromkeys(c for each in captured for c in each.conditions)),
        sources={name: digest for each in captured for name, digest in each.sources.items()},
    )


def _compute(
    trace: Trace, orders: Orders, callee: object, tensors: Sequence[torch.Tensor]
) -> tuple[Computed, Captured]:
    backend = _Backend()
    with side_effects() as changes:
        captured = trace(backend.take, orders)
    if changes:
        raise NoEntry(f"{DEPENDS_ON_ORDER}. It also changes {', '.join(changes)}")
    return backend.compute(captured, callee, tensors), captured


class _Backend:
    """A Dynamo backend that reads a graph and runs the graph eagerly."""

    def __init__(self) -> None:
        self._graph: torch.fx.GraphModule
        """The graph that `take` has received."""
        self._known: dict[int, str] = {}
        """The expression for each tensor of a run, by the tensor's id."""
        self._outputs: list[object] = []
        self._keys: list[str] = []
        self._written: list[str] = []
        self._in_order: list[str] = []

    def take(
        self, graph: torch.fx.GraphModule, inputs: Sequence[object], **_: object
    ) -> Callable[..., object]:
        """Receive a graph from Dynamo, and read its functional form (no in-place operations)."""
        sources = list(map(source_of, inputs_of(graph)))

        def read(functional: torch.fx.GraphModule, _: Sequence[object]) -> torch.fx.GraphModule:
            keys, nodes, keeps_order = _read(functional, sources)
            self._in_order = nodes if keeps_order else []
            returned: Any = graph.graph.output_node().args[0]
            count = len(returned)
            self._written = keys[: len(keys) - count]
            self._keys = keys[len(keys) - count :]
            return functional

        inductor.read_functional_form(copy.deepcopy(graph), inputs, read)
        self._graph = graph
        return callable_once(self._run)

    def _run(self, *inputs: object) -> list[object]:
        given = [value for value in inputs if isinstance(value, torch.Tensor)]
        by_id = dict(zip(map(id, given), copy_tensors(given, inference=False), strict=True))
        with torch.random.fork_rng(devices=sorted({t.device for t in given if t.is_cuda}, key=str)):
            outputs = self._graph(*(by_id.get(id(value), value) for value in inputs))
        originals = {id(c): t for t, c in zip(given, by_id.values(), strict=True)}
        self._outputs = [originals.get(id(output), output) for output in outputs]
        self._known = dict(zip(map(id, self._outputs), self._keys, strict=True))
        return self._outputs

    def compute(
        self, captured: Captured, callee: object, tensors: Sequence[torch.Tensor]
    ) -> Computed:
        """Run the code around the graph, and return what the call computes."""
        given = copy_tensors(tensors)
        arguments = {id(tensor): f"argument {number}" for number, tensor in enumerate(given)}
        found: list[torch.Tensor] = []
        returned = describe_result(captured.entry.fn(callee, *given), found)
        known = {**self._known, **arguments}
        return Computed(
            returned=returned,
            # A tensor of the model is the same object in each trace.
            tensors=[known.get(id(tensor), f"object {id(tensor)}") for tensor in found],
            written=self._written,
            in_order=self._in_order,
        )


def _read(graph: torch.fx.GraphModule, sources: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Return the expressions of the outputs and of all nodes, and whether their order can matter.

    A graph inside the graph, such as a branch of `torch.cond`, is a part of an expression.

    Raises:
        NoEntry: an expression cannot be compared.
    """
    keys: dict[torch.fx.Node, str] = {}
    left, drawn, keeps_order = list(sources), "", False
    outputs: list[str] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            if not left:
                raise NoEntry(DEPENDS_ON_ORDER)
            keys[node] = _digest("input", left.pop(0))
        elif node.op == "get_attr":
            value = getattr(graph, str(node.target))
            if isinstance(value, torch.fx.GraphModule):
                keys[node], keeps_inner_order = _read_inner(value)
                keeps_order |= keeps_inner_order
            else:
                keys[node] = _digest("constant", _constant(value))
        elif node.op == "output":
            values = node.args[0]  # a graph inside a graph can return one value
            values = values if isinstance(values, (list, tuple)) else (values,)
            outputs = [_plain(value, keys) for value in values]
        else:
            parts = (str(node.target), _plain(node.args, keys), _plain(node.kwargs, keys))
            if inductor.is_overload(node.target):
                keeps_order |= schema_of(node.target).is_mutable
            else:
                keeps_order |= not _is_pure(node.target)
            keys[node] = _digest(*parts)
            if _draws(node):
                # Each call draws new random numbers, so its expression includes the draws before
                # it.
                keys[node] = drawn = _digest(keys[node], drawn)
    if left:
        raise NoEntry(DEPENDS_ON_ORDER)
    return outputs, [*keys.values()], keeps_order


def _read_inner(graph: torch.fx.GraphModule) -> tuple[str, bool]:
    """Return the expression of a graph inside a graph, and whether the order of its nodes matters.

    The order matters if the inner graph draws random numbers, because each call draws new numbers.
    """
    sources = [f"input {number}" for number, _ in enumerate(inputs_of(graph))]
    outputs, nodes, keeps_order = _read(graph, sources)
    keeps_order |= any(map(_draws, graph.graph.nodes))
    return _digest("graph", *outputs, *(nodes if keeps_order else ())), keeps_order


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_pure(target: object) -> bool:
    """Return whether a function without a schema computes the same result in any order of calls."""
    if inductor.is_higher_order(target):
        return str(target) in CONTROL_FLOW  # the graphs inside are read separately
    return getattr(target, "__module__", "") in (OPERATORS, "operator", "math", "builtins")


CONTROL_FLOW = (
    *("cond", "while_loop", "map_impl", "scan", "associative_scan"),
    *("flex_attention", "invoke_subgraph"),
)
"""Operators that run graphs inside the graph and change nothing by themselves (torch 2.13)."""


def _constant(value: object) -> str:
    if not isinstance(value, torch.Tensor) or inductor.is_fake(value):
        raise NoEntry(DEPENDS_ON_ORDER)  # there are no numbers to compare
    with inductor.with_real_tensors():  # torch is tracing, and the constant is a real tensor
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"


def _plain(value: object, keys: Mapping[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return keys[value]
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_plain(item, keys) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_plain(item, keys)}' for k, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_plain((value.start, value.stop, value.step), keys)}"
    return f"{type(value).__name__} {value!r}"


def _digest(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
