# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Where a library's weights come from, and what a call reads again after a change."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.table import CALLEE, Facts
from serve_warm.precompile.libraries.inputs import Inputs, TensorSource
from serve_warm.precompile.libraries.run import Followed, Function


class Net(nn.Module):
    """Has one input of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.table = torch.ones(3)  # an attribute, neither a parameter nor a buffer
        self.cache = {"mask": torch.zeros(4)}


INPUTS = (
    TensorSource(kind="parameter", owner="layers.0", name="weight"),
    TensorSource(kind="argument", index=1),
    TensorSource(kind="buffer", owner="layers.1", name="running_mean"),
    TensorSource(kind="path", path=[("attribute", "cache"), ("item", "mask")]),
    TensorSource(kind="attribute", owner="", name="table"),
    TensorSource(kind="argument", index=0),
)
CALL = (torch.full((1,), 5.0), torch.full((1,), 6.0))


def expected(net: Net) -> list[Any]:
    layers: Any = net.layers
    mask = net.cache["mask"]
    return [layers[0].weight, CALL[1], layers[1].running_mean, mask, net.table, CALL[0]]


class Watch:
    """A watch that covers everything, or all but some dicts."""

    def __init__(self, *, without: tuple[Any, ...] = ()) -> None:
        self.unchanged = lambda: True
        self._without = [id(each) for each in without]

    def covers(self, mapping: Any) -> bool:
        return id(mapping) not in self._without


def is_same(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))


class Walks(Inputs):
    """Counts the walks through the modules."""

    walks = 0

    def _walk(self, callee: Any) -> list[Any]:
        self.walks += 1
        return super()._walk(callee)


def test_weights_are_read_again_at_each_call_without_a_walk():
    """A replaced weight needs no new reader, because the dicts that hold weights are the same."""
    net, inputs = Net(), Walks(INPUTS)
    read = inputs.reader(net, Watch())
    before = read(net, CALL)
    first: Any = net.layers[0]
    first.weight = nn.Parameter(torch.zeros(2, 2))
    first._parameters["weight"].data = torch.ones(2, 2)
    net.table = torch.zeros(3)
    net.cache["mask"] = torch.ones(4)
    net.layers[1].running_mean = torch.ones(2)  # type: ignore[assignment]

    assert not is_same(before, expected(net))
    assert is_same(read(net, CALL), expected(net))
    assert inputs.walks == 1


@pytest.mark.parametrize(
    "unwatched",
    [
        pytest.param(vars, id="attributes of the root"),
        pytest.param(lambda net: net._modules, id="submodules of the root"),
        pytest.param(lambda net: vars(net.layers), id="attributes of a parent"),
        pytest.param(lambda net: net.layers._modules, id="submodules of a parent"),
        pytest.param(lambda net: vars(net.layers[1]), id="attributes of a leaf"),
    ],
)
def test_a_module_that_no_watch_covers_is_walked_at_each_call(unwatched: Any):
    net, inputs = Net(), Walks(INPUTS)
    read = inputs.reader(net, Watch(without=(unwatched(net),)))
    net.layers = copy.deepcopy(net.layers)
    assert is_same(read(net, CALL), expected(net))


def test_an_item_that_is_gone_is_not_made():
    """A dict subclass can make a missing item, such as other weights, but Dynamo never calls it."""
    made = type("Made", (dict,), {"__missing__": lambda _, key: torch.zeros(4)})
    inputs = Inputs([TensorSource(kind="path", path=[("item", "mask")])])
    with pytest.raises(NoEntry, match="missing: 'mask'"):
        inputs.read(made(), CALL)


def test_an_input_that_is_gone_is_named():
    net = Net()
    read = Inputs(INPUTS).reader(net, Watch())
    del net.layers[1]._buffers["running_mean"]
    with pytest.raises(NoEntry, match="missing: 'running_mean'"):
        read(net, CALL)


class Asked(Function):
    """A library that returns its inputs."""

    def __init__(self, inputs: Inputs) -> None:
        nothing: Any = SimpleNamespace(device="cpu")
        super().__init__(nothing, INPUTS, result=lambda *_: None, writes=False)
        self.inputs = inputs

    def run(self, inputs: Any, callee: Any, tensors: Any) -> Any:
        return inputs


def watched(net: Net) -> FactWatch:
    """Return a watch over the modules, as the facts of an entry have it."""
    steps: list[tuple[int, str, Any]] = [(-1, "root", CALLEE)]

    def step(start: int, kind: str, name: Any) -> int:
        steps.append((start, kind, name))
        return len(steps) - 1

    def child(start: int, name: str) -> int:
        own = step(start, "attribute", "__dict__")
        return step(step(own, "item", "_modules"), "item", name)

    layers = child(0, "layers")
    leaves = [child(layers, name) for name in ("0", "1")]
    held = [
        step(step(leaf, "attribute", "__dict__"), "item", "_parameters") for leaf in (0, *leaves)
    ]
    facts = [(row, "type", f"{dict.__module__}.{dict.__qualname__}") for row in held]
    return FactWatch(net, [Facts(steps=tuple(steps), facts=tuple(facts))])


def test_a_change_of_the_modules_makes_the_next_call_walk_once():
    """Calls of a model that does not change read the dicts that the last walk found."""
    net, inputs = Net(), Walks(INPUTS)
    watch = watched(net)
    followed = Followed(Asked(inputs), watch)

    def call() -> list[Any]:
        if not watch.unchanged():
            watch.refresh()
        found: list[Any] = followed(net, *CALL)
        return found

    for walks in (1, 2):
        for _ in range(3):
            assert is_same(call(), expected(net))
        assert inputs.walks == walks
        net.layers = copy.deepcopy(net.layers) if walks == 1 else net.layers
    first: Any = net.layers[0]
    first._parameters["weight"] = nn.Parameter(torch.zeros(2, 2))
    assert is_same(call(), expected(net))


def test_two_callables_of_one_library_read_their_own_weights():
    one, other = Net(), Net()
    library = Asked(Inputs(INPUTS))
    of_one, of_other = (Followed(library, watched(net)) for net in (one, other))
    for _ in range(2):
        assert is_same(of_one(one, *CALL), expected(one))
        assert is_same(of_other(other, *CALL), expected(other))


def test_a_call_that_nobody_checked_reads_what_is_there():
    """A check while the replica is idle calls the library itself, without asking the watch."""
    net, library = Net(), Asked(Inputs(INPUTS))
    Followed(library, watched(net))(net, *CALL)
    net.layers = copy.deepcopy(net.layers)
    assert is_same(library(net, *CALL), expected(net))


@pytest.mark.slow
def test_replaced_modules_are_freed_although_one_library_is_not_called_again():
    """Each rare shape would otherwise keep another version of the weights."""
    net = Net()
    watch = watched(net)
    often, rarely = (Followed(Asked(Inputs(INPUTS)), watch) for _ in range(2))
    often(net, *CALL)
    rarely(net, *CALL)
    old: Any = net.layers
    weight = weakref.ref(old[0].weight)
    net.layers = copy.deepcopy(old)
    del old
    watch.refresh()
    often(net, *CALL)
    gc.collect()

    assert weight() is None
