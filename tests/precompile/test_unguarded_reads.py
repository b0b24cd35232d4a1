# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a forward reads without a guard of Dynamo, and changes of it.

`make soundness` has a row for each kind. The tests here take one row of each kind, at level 2.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional

import serve_warm
from serve_warm.precompile import torch_functions
from serve_warm.precompile.names import resolve
from serve_warm.precompile.session import SESSION

pytestmark = pytest.mark.slow


class Held:
    """An object of the application."""


SETTINGS = types.ModuleType("settings_of_a_test")


def scaled_by(factor: float) -> Callable[[float], float]:
    def scale(value: float) -> float:
        return value * factor

    return scale


def kind_of(number: int) -> type:
    class Kind:
        pass

    return Kind


SCALE, OTHER_SCALE = scaled_by(1.0), scaled_by(2.0)
KIND, OTHER_KIND = kind_of(1), kind_of(2)


def caught(found: Any) -> float:
    try:
        return float(found.absent)
    except AttributeError:
        return 2.0


def extended(table: Any) -> float:
    items: list[Any] = []
    items.extend(table)
    return float(len(items))


def is_shared() -> float:
    return 3.0 if distributed.is_initialized() else 2.0


def begin_group(_: Any) -> None:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


CASES: dict[str, tuple[Callable[[Any], float], Callable[[Any], Any]]] = {
    "a missing attribute": (
        lambda self: caught(self.held),
        lambda m: setattr(m.held, "absent", 3.0),
    ),
    "a missing attribute of the module": (
        caught,
        lambda m: setattr(m, "absent", 3.0),
    ),
    "a missing attribute of a Python module": (
        lambda self: caught(SETTINGS),
        lambda m: setattr(SETTINGS, "absent", 3.0),
    ),
    "a dict that is unpacked": (
        lambda self: float(len([*self.table])),
        lambda m: m.table.update(c=1),
    ),
    "a dict that extends a list": (
        lambda self: extended(self.table),
        lambda m: m.table.update(c=1),
    ),
    "the text of an OrderedDict": (
        lambda self: float(len(str(self.ordered))),
        lambda m: m.ordered.update(c=1),
    ),
    "a function of the same factory": (
        lambda self: 2.0 if self.scale is SCALE else 3.0,
        lambda m: setattr(m, "scale", OTHER_SCALE),
    ),
    "a class of the same factory": (
        lambda self: 2.0 if isinstance(self.kind, KIND) else 3.0,
        lambda m: setattr(m, "kind", OTHER_KIND()),
    ),
    "a function of torch's own factory": (
        lambda self: float(self.pool(torch.ones(1, 1, 4, 4), 1).shape[-1]),
        lambda m: setattr(m, "pool", functional.adaptive_max_pool2d),
    ),
    "the state of a process group": (lambda self: is_shared(), begin_group),
    "the dtype of autocast": (
        lambda self: 3.0 if torch.get_autocast_dtype("cpu") == torch.float16 else 2.0,
        lambda m: torch.set_autocast_dtype("cpu", torch.float16),
    ),
}


class Read(nn.Module):
    """Multiplies by a number that the case reads."""

    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.read = read
        self.held = Held()
        self.table = {"a": 1, "b": 1}
        self.ordered = collections.OrderedDict(a=1, b=1)
        self.scale = SCALE
        self.kind = KIND()
        self.pool = functional.max_pool2d
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given[0], given, self.weight, alpha=self.read(self))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    SESSION.unload()
    vars(SETTINGS).pop("absent", None)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", CASES)
def test_a_change_of_what_was_read_without_a_guard_is_noticed(name: str, tmp_path: Path):
    """The first call after the change is answered as eager execution answers it."""
    read, change = CASES[name]
    model, given = Read(read).eval(), torch.ones(4, 4)
    compiled = serve_warm.compile(model, dynamic=False)
    with torch.inference_mode(), SESSION.building() as build:
        compiled(given)
    for file, data in build.table.to_files(2).items():
        (tmp_path / file).write_bytes(data)
    compiled = serve_warm.compile(model, dynamic=False)
    assert SESSION.load(tmp_path) == ""
    with torch.inference_mode(), torch.compiler.set_stance("fail_on_recompile"):
        before = compiled(given)  # answered by the entry

    change(model)
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        after, expected = compiled(given), model(given)

    assert not torch.equal(before, expected)
    torch.testing.assert_close(after, expected)


class Labelled(nn.Module):
    """Returns an object that its graph does not read."""

    def __init__(self, labels: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.labels = labels

    def forward(self, given: torch.Tensor) -> dict[str, Any]:
        return {"logits": self.linear(given), "labels": self.labels}


@pytest.mark.parametrize(
    ("built", "now"),
    [({0: "cat"}, {0: "cow"}), (["cat"], ["cow"]), ("v1", "v2"), (1, 2), ((1, 2), (1, 3))],
)
def test_a_library_returns_existing_objects_as_they_are_now(built: Any, now: Any, tmp_path: Path):
    """A value that no graph reads has no guard. The caller gets the model's own object."""
    given = torch.ones(3, 4)
    compiled = serve_warm.compile(Labelled(built).eval(), level=3, dynamic=False)
    with torch.inference_mode(), SESSION.building() as build:
        compiled(given)
    for file, data in build.table.to_files(3).items():
        (tmp_path / file).write_bytes(data)
    model = Labelled(now).eval()
    compiled = serve_warm.compile(model, level=3, dynamic=False)
    assert SESSION.load(tmp_path) == ""

    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        result = compiled(given)

    assert result["labels"] is model.labels


class Asking(nn.Module):
    """Asks torch whether it is traced, as transformers does."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        return given * 2 if is_traced else given + given


def test_a_forward_that_asks_whether_it_is_traced_has_an_entry():
    """Within a trace, the answer is always the same, so no fact depends on it."""
    compiled = serve_warm.compile(Asking().eval(), dynamic=False)

    with torch.inference_mode(), SESSION.building() as build:
        compiled(torch.ones(3))

    assert build.table.refused == {}


OF_DYNAMO = pytest.importorskip("torch._dynamo.variables.torch")
FOLDED = [
    function
    for function in OF_DYNAMO.constant_fold_functions
    if function not in OF_DYNAMO.constant_fold_functions_need_guards
]
"""Functions that Dynamo runs while it traces, except those that it guards itself."""


@pytest.mark.parametrize(
    "function", FOLDED, ids=[f"{n} {f.__name__}" for n, f in enumerate(FOLDED)]
)
def test_each_function_that_a_trace_runs_is_covered(function: Callable[..., Any]):
    """A fact names the function, or its result is steady, or each call compares its result."""
    is_covered = function.__name__ in torch_functions.STEADY | torch_functions.CHECKED_EACH_CALL
    place = torch_functions._place(function)

    assert is_covered or (place is not None and resolve(*place) is function)


class InAutocast(nn.Module):
    """Has an autocast block of its own, so torch cannot cache its graph."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            dtype = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            return given.float().to(dtype).float() * 2


def test_graphs_without_a_cache_entry_have_their_own_code():
    """A build restores Python's generator, from which torch draws the key of such a graph."""
    model = InAutocast().eval()
    compiled = serve_warm.compile(model, dynamic=False)

    with torch.inference_mode(), SESSION.building() as build:
        results = [compiled(torch.ones(size, size)) for size in (3, 4, 5)]

    assert build.table.refused == {}
    assert [result.shape for result in results] == [(3, 3), (4, 4), (5, 5)]


class Repeating(nn.Module):
    """Returns one new list twice."""

    def forward(self, given: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        made = [given * 2]
        return made, made


def test_a_list_that_is_returned_twice_stays_one_list():
    """A plan would make two lists, so the call has a level-2 entry."""
    compiled = serve_warm.compile(Repeating().eval(), level=3, dynamic=False)

    with torch.inference_mode(), SESSION.building() as build:
        compiled(torch.ones(3))
        first, second = compiled(torch.ones(3))

    ((entry,),) = [unit.entries for unit in build.table.units.values()]
    assert (entry.level, entry.reason) == (2, "it returns the same list twice")
    assert first is second
