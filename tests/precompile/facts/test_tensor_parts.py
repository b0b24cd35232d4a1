# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Level 2 of weights that are tensors made of other tensors, as quantised weights are.

The graphs are matrix products, for which no C++ is compiled; level 1 runs eagerly.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from levels import build, eager_below, entries_of, forget_callables, refusal, served, started
from levels import ramp as x
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.tensor_parts import describe_parts, steady

aten: Any = torch.ops.aten

FACTOR = 1.0
"""A global that only the dispatch of a tensor reads."""


@dataclasses.dataclass
class Layout:
    """Metadata that is no plain value."""

    factor: float = 1.0
    names: tuple[str, ...] = ("a", "b")


def multiply(given: torch.Tensor, whole: Any) -> torch.Tensor:
    factor = whole.block * whole.form.factor * FACTOR * whole.fn(1.0)
    product = torch.mm(given, whole.numbers)
    return torch.addmm(product, product, whole.scale.to(given.dtype), beta=0, alpha=factor)


def same(value: float) -> float:
    return value


def twice(value: float) -> float:
    return value * 2


def times(number: float) -> Callable[[float], float]:
    return lambda value: value * number


class Scaled(torch.Tensor):
    """Values with a scale, multiplied in `__torch_dispatch__`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: Any, scale: Any, **_: Any) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=torch.float32, device=values.device
        )
        return made

    def __init__(self, values: Any, scale: Any, *, block: Any, form: Any, fn: Any) -> None:
        self.numbers, self.scale = values, scale
        self.block, self.form, self.fn = block, form, fn

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["numbers", "scale"], {"block": self.block, "form": self.form, "fn": self.fn}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return cls(inner["numbers"], inner["scale"], **meta)

    def _stable_hash_for_caching(self) -> str:
        return str(describe_parts(self))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "Scaled"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mm.default:
            return multiply(*args)
        if func in (aten.detach.default, aten.alias.default):
            given = args[0]
            meta = given.__tensor_flatten__()[1]
            return cls(func(given.numbers), func(given.scale), **meta)
        raise NotImplementedError(str(func))


class Other(Scaled):
    """A class with the same parts."""


def weight(seed: int = 0, *, kind: type = Scaled, **metadata: Any) -> Any:
    torch.manual_seed(seed)
    given = {"block": 1, "form": Layout(), "fn": same, **metadata}
    return kind(torch.randn(4, 4), torch.randn(4, 4), **given)


class Net(nn.Module):
    def __init__(self, given: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(given, requires_grad=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.mm(given, self.weight)


LEVELS = pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return what makes a folder with an entry or a library for the model as it is."""

    @functools.cache
    def make(level: int) -> Path:
        found = tmp_path_factory.mktemp(f"level_{level}")
        model = serve_warm.compile(Net(weight()).eval(), dynamic=False, level=level)
        table = build(found, lambda: model(x()), level=level)
        assert not table.refused
        assert [entry.reason for entry in entries_of(table)] == [""]
        return found

    return make


def replace(model: Net, given: Any) -> None:
    model.weight = nn.Parameter(given, requires_grad=False)


def double(model: Net) -> None:
    model.weight.scale = model.weight.scale.double()


def transpose(model: Net) -> None:
    model.weight.numbers = model.weight.numbers.t().contiguous().t()


def transpose_data(model: Net) -> None:
    model.weight.numbers.data = model.weight.numbers.t().contiguous().t()


def swap(model: Net) -> None:
    torch.utils.swap_tensors(model.weight, nn.Parameter(weight(3, block=2), requires_grad=False))


def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return torch.mm(args[0], args[1].numbers)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "block": (lambda m: setattr(m.weight, "block", 2), "block: int 2"),
    "layout": (lambda m: setattr(m.weight, "form", Layout(factor=3.0)), "form: "),
    "layout in place": (lambda m: setattr(m.weight.form, "factor", 3.0), "form: "),
    "function": (lambda m: setattr(m.weight, "fn", twice), "fn: function"),
    "scale in float64": (double, "scale: Tensor float64"),
    "strides of a part": (transpose, r"numbers: Tensor .* strides \[1, 4\]"),
    "strides of a part in place": (transpose_data, r"strides \[1, 4\]"),
    "swapped": (swap, "block: int 2"),
    "another class": (lambda m: replace(m, weight(kind=Other)), "Other"),
    "a plain tensor": (lambda m: replace(m, torch.eye(4)), "Parameter|Tensor"),
}
OF_ALL: dict[str, tuple[Callable[[Any], Any], str]] = {
    # Dynamo guards no global that is read while torch traces below it.
    "a global": (
        lambda patch: patch.setattr(f"{__name__}.FACTOR", 5.0),
        "FACTOR is float 5.0, but was float 1.0",
    ),
    "new code": (
        lambda patch: patch.setattr(Scaled, "__torch_dispatch__", classmethod(dispatch)),
        "",
    ),
}
"""Changes of what all weights of a class read."""


@LEVELS
@pytest.mark.parametrize("when", ["at the start", "before the first call", "in traffic"])
@pytest.mark.parametrize("name", CHANGES | OF_ALL)
def test_changed_parts_are_a_miss(name, when, level, folders, monkeypatch):
    """The graph depends on each of these, but the whole tensor hides them."""
    change, reason = (CHANGES | OF_ALL)[name]
    forget_callables()
    model = Net(weight(1)).eval()
    changed = monkeypatch if name in OF_ALL else model
    if when == "at the start":
        change(changed)
    compiled = serve_warm.compile(model, dynamic=False, level=level)

    with started(folders(level)), eager_below():
        if when == "in traffic":
            assert served(lambda: compiled(x())).level == level
            compiled(x())
        if when != "at the start":
            change(changed)
        found = served(lambda: compiled(x()))

    assert found.level == 1
    assert level == 3 or re.search(reason, found.reason)
    torch.testing.assert_close(found.value, model(x()))


VALUES: dict[str, Callable[[Net], Any]] = {
    "nothing": lambda m: None,
    "values in place": lambda m: m.weight.numbers.mul_(3.0),
    "values replaced": lambda m: setattr(m.weight, "numbers", torch.ones(4, 4)),
    "scale replaced": lambda m: setattr(m.weight, "scale", torch.ones(4, 4)),
    "weight replaced": lambda m: replace(m, weight(7)),
    "weight swapped": lambda m: torch.utils.swap_tensors(
        m.weight, nn.Parameter(weight(8), requires_grad=False)
    ),
}


@LEVELS
@pytest.mark.parametrize("name", VALUES)
def test_other_values_of_parts_are_served(name: str, level: int, folders: Callable[[int], Path]):
    """Quantised weights are inputs of the graph. A library takes the parts themselves."""
    forget_callables()
    model = Net(weight(1)).eval()
    compiled = serve_warm.compile(model, dynamic=False, level=level)
    with started(folders(level)), eager_below():
        before = served(lambda: compiled(x()))
        expected = model(x())
        VALUES[name](model)
        after = served(lambda: compiled(x()))
        levels = {use.level for use in SESSION.uses() if use.calls}

    assert (before.level, levels, before.compiles + after.compiles) == (level, {level}, 0)
    torch.testing.assert_close(before.value, expected)
    torch.testing.assert_close(after.value, model(x()))


def test_the_file_of_a_dispatch_is_known_in_each_build_of_a_process(tmp_path: Path):
    """The second build has the same graph, and its entry also depends on the file of the class."""
    found = []
    for number in range(2):
        torch._dynamo.reset()
        model = serve_warm.compile(Net(weight(number)).eval(), dynamic=False)
        table = build(tmp_path / str(number), lambda: model(x()))  # noqa: B023 - called here
        found += [entry.sources for entry in entries_of(table)]
    assert [list(sources) for sources in found] == [[__name__], [__name__]]


class WithBuffer(Net):
    """Returns its weight, and has another weight as a buffer."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.register_buffer("other", weight(5))

    def forward(self, given: torch.Tensor) -> Any:
        return torch.mm(super().forward(given), self.other), self.weight  # type: ignore[arg-type]


def test_a_buffer_with_parts_is_served_and_a_weight_is_returned(tmp_path: Path):
    model = serve_warm.compile(WithBuffer(weight()).eval(), dynamic=False)
    table = build(tmp_path, lambda: model(x()))
    fresh = WithBuffer(weight(1)).eval()
    compiled = serve_warm.compile(fresh, dynamic=False)
    with started(tmp_path), eager_below():
        found = served(lambda: compiled(x()))

    assert not table.refused
    assert (found.level, found.compiles) == (2, 0)
    torch.testing.assert_close(found.value[0], fresh(x())[0])
    assert found.value[1] is fresh.weight


def test_a_library_that_returns_such_a_tensor_says_so(tmp_path: Path):
    model = serve_warm.compile(WithBuffer(weight()).eval(), dynamic=False, level=3)
    table = build(tmp_path, lambda: model(x()), level=3)
    (entry,) = entries_of(table)
    reason = "it returns a tensor that its graph neither takes nor computes"
    assert (entry.level, entry.reason) == (2, reason)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"form": Layout(factor=1.0, names=threading.Lock())}, "lock"),  # type: ignore[arg-type]
        ({"form": Layout(names=(torch.ones(1),))}, "contains a Tensor"),  # type: ignore[arg-type]
        ({"form": Layout(names=(nn.Identity(),))}, "contains a Identity"),  # type: ignore[arg-type]
    ],
    ids=["lock", "tensor", "module"],
)
def test_metadata_without_a_form_of_its_own_is_refused(metadata: dict[str, Any], reason: str):
    """The text of such metadata would differ in each process."""
    with pytest.raises(TypeError, match=reason):
        describe_parts(weight(**metadata))


def nearly(value: float) -> float:
    # True while torch traces, as a comparison of two steps may come out otherwise.
    tracing = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None
    return value * 1.001 if tracing else value


class Sharing(Net):
    def __init__(self) -> None:
        super().__init__(weight())
        self.other = nn.Parameter(weight(1), requires_grad=False)
        self.other.scale = self.weight.scale

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(given, self.weight), self.other)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "metadata without a form of its own": (
        lambda: Net(weight(form=Layout(names=(torch.ones(1),)))),  # type: ignore[arg-type]
        "weight.*its metadata contains a Tensor",
    ),
    "other numbers than eager": (lambda: Net(weight(fn=nearly)), "times eager's.*in bfloat16"),
    # Nothing would notice when they stop sharing it.
    "two weights with one part": (Sharing, "contain the same inner tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_entry_says_why(name: str, tmp_path: Path):
    make, reason = REFUSED[name]
    model = serve_warm.compile(make().eval(), dynamic=False)
    with eager_below():
        refused = refusal(tmp_path, lambda: model(x()))
    assert re.search(reason, refused)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Layout(), Layout(factor=2.0)),
        (Layout(), Layout(names=("b", "a"))),
        (times(1.0), times(2.0)),
        ({"a": Layout()}, {"a": Layout(factor=2.0)}),
        ([Layout()], (Layout(),)),
        (Layout(factor=1), Layout(factor=1.0)),
        (torch.float16, torch.bfloat16),
    ],
)
def test_metadata_is_told_from_its_likes(one: Any, other: Any):
    """Two objects of one class differ by their state."""
    assert steady(one) != steady(other)
    assert steady(one) == steady(one)
