# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled code against eager: what is wrong is refused. Python stands for compiled code."""

from __future__ import annotations

import dataclasses
import itertools
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity.checks import compare_in_service
from serve_warm.precompile.parity.distance_check import compare_in_build
from serve_warm.precompile.parity.eager import TOLERANCE, NotComparable, why_not_twice

Named = namedtuple("Named", "a b")  # noqa: PYI024


@dataclasses.dataclass
class Output:
    """A container that torch does not know. Its tensors are compared anyway."""

    hidden: torch.Tensor
    label: str = "x"


class Cached(torch.nn.Module):
    """Writes into one buffer, and replaces the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(x)
        self.count = self.count + 1
        return self.cache * self.count


def ours(change: Any) -> Any:
    """Return a function for compare_in_build whose result is eager's, changed."""
    return lambda callee, *tensors: change(callee(*tensors))


def difference(callee: Any, change: Any, *tensors: torch.Tensor) -> float:
    return compare_in_build(callee, lambda c, *ts: c(*ts), ours(change), tensors).difference


X = torch.linspace(-1, 1, 4)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda x: x, id="tensor"),
        pytest.param(lambda x: (1, x), id="tuple"),
        pytest.param(lambda x: [{"a": x}], id="list of dict"),
        pytest.param(lambda x: Named(x, None), id="named tuple"),
        pytest.param(Output, id="dataclass"),
        pytest.param(lambda x: {"out": Output(x)}, id="dict of dataclass"),
    ],
)
def test_an_entry_that_is_wrong_by_a_hundredth_is_refused(wrap: Any):
    """Wherever in the output the wrong tensor is."""

    def wrong(value: Any) -> Any:
        return wrap(value + 1e-2 * (value == value.max()))

    def right(value: Any) -> Any:
        return wrap(value)

    eager = lambda callee, x: wrap(callee(x))  # noqa: E731
    double = lambda x: x * 2  # noqa: E731

    assert compare_in_build(double, eager, ours(right), [X]).difference == 0.0
    with pytest.raises(NoEntry, match="times eager's"):
        compare_in_build(double, eager, ours(wrong), [X])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_dtype_has_room_for_rounding_and_no_more(dtype: torch.dtype):
    """Numbers that differ by their last bit pass. A hundred bits do not, unless NEVER_REFUSED."""
    one, x = torch.ones(4, dtype=torch.float64), X.to(dtype)
    unit = max(torch.finfo(dtype).eps, TOLERANCE[torch.float64] / 2)
    over = max(100 * unit, 2e-4) if dtype is not torch.float64 else 4 * unit
    error = difference(lambda x: one.to(dtype), lambda out: (one + unit).to(dtype), x)
    assert error <= unit * 1.01
    with pytest.raises(NoEntry, match="eager"):
        difference(lambda x: one.to(dtype), lambda out: (one + over).to(dtype), x)


INFINITE = torch.tensor([1.0, torch.inf])
COMPLEX = torch.ones(2, dtype=torch.complex64)
NUMBERS = np.random.default_rng(0)
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "dtype": (lambda x: x + 3, lambda out: out.double(), "float64"),
    "shape": (lambda x: x + 3, lambda out: out[:2], r"\[2\]"),
    "structure": (lambda x: x + 3, lambda out: (out,), "tuple"),
    "nothing": (lambda x: x + 3, lambda out: None, "None"),
    "infinite": (lambda x: x + 3, lambda out: out / 0, "finite"),
    "not a number": (lambda x: x + 3, lambda out: out * float("nan"), "finite"),
    "the other infinity": (lambda x: INFINITE, lambda out: -out, "infinite or NaN"),
    "not infinite": (lambda x: INFINITE, lambda out: out - out, "infinite or NaN"),
    "a number": (lambda x: INFINITE * 0, lambda out: out.nan_to_num(), "infinite or NaN"),
    "the imaginary part": (lambda x: COMPLEX, lambda out: out + 0.1j, "differs"),
    "a plain value": (lambda x: (x, 1), lambda out: (out[0], True), "it returns"),
    "integers": (lambda x: torch.ones(2, dtype=torch.int64), lambda out: out ^ True, "values"),
    "bools": (lambda x: torch.ones(2, dtype=torch.bool), lambda out: out ^ True, "values"),
    "no comparison": (lambda x: (x, 5), lambda out: (out[0], iter("abc")), "cannot be compared"),
    # The reason names the option with which compiled code draws the numbers of eager.
    "random numbers": (torch.rand_like, torch.rand_like, r"times eager's .*fallback_random"),
    "no repeatable result": (
        lambda x: x * NUMBERS.random(),
        lambda out: out,
        r"two eager runs .* pass the numbers as an argument",
    ),
    # A TransformerEncoder writes zeros at padded positions, but only in eager execution.
    "zeros of eager": (
        lambda x: x.clamp(min=0),
        lambda out: out + (out == 0),
        r"eager writes zeros.*enable_nested_tensor=False",
    ),
    "not of rounding": (
        lambda x: x.clamp(min=0),
        lambda out: out + 1,
        "rounding does not explain this",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_refused_with_its_reason(name: str):
    """Kind, shape and dtype are compared before values are; integers have no tolerance."""
    callee, change, why = REFUSED[name]
    with pytest.raises(NoEntry, match=why):
        difference(callee, change, X)


@pytest.mark.parametrize(
    "value", [INFINITE, INFINITE * 0, COMPLEX], ids=["infinite", "not a number", "complex"]
)
def test_equal_numbers_of_any_kind_pass(value: torch.Tensor):
    assert difference(lambda x: value, lambda out: out * 1, X) == 0.0


def test_writes_into_an_input_are_compared_and_undone():
    """Both runs use copies. An entry that does not write what eager writes is refused."""

    def writes(callee: Any, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return cache.sum()

    def only_says(callee: Any, cache: torch.Tensor) -> torch.Tensor:
        return (cache + 1).sum()

    cache = torch.zeros(4)

    assert compare_in_build(None, writes, writes, [cache]).difference == 0.0
    with pytest.raises(NoEntry):
        compare_in_build(None, writes, only_says, [cache])
    assert cache.tolist() == [0, 0, 0, 0]


def test_copies_overlap_as_the_tensors_do():
    """A view of another input stays a view, so that both see writes through it."""

    def writes(callee: Any, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        part.add_(1)
        return whole * 1

    def apart(callee: Any, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        part.add_(1)
        return whole * 0

    whole = torch.zeros(4)

    assert compare_in_build(None, writes, writes, [whole, whole[1:3]]).difference == 0.0
    with pytest.raises(NoEntry):
        compare_in_build(None, writes, apart, [whole, whole[1:3]])


def test_copies_are_strided_as_the_tensors_are():
    """Compiled code asserts strides: a copy that was made contiguous would fail it."""
    seen = []
    difference(lambda x: seen.append(x) or x, lambda out: out, torch.ones(4, 6).T[::2])
    assert {(x.shape, x.stride()) for x in seen} == {((3, 4), (2, 6))}


@pytest.mark.parametrize("inference", [True, False])
def test_copies_are_of_the_tensor_s_kind(inference: bool):
    """Compiled code treats an inference tensor differently from another tensor."""
    seen = []
    with torch.inference_mode(inference):
        x = torch.ones(2)
    with torch.inference_mode():
        difference(lambda x: seen.append(x) or x, lambda out: out, x)
    assert {x.is_inference() for x in seen} == {inference}


def test_buffers_are_compared_and_left_as_they_were():
    module = Cached()
    before = dict(module.named_buffers())
    error = difference(module, lambda out: out, X)
    assert error == 0.0
    assert all(module.get_buffer(name) is buffer for name, buffer in before.items())
    assert module.cache.tolist() == [0, 0, 0, 0]
    assert module.count == 0


def test_a_buffer_that_is_not_updated_is_an_error():
    module = Cached()

    def forgetful(callee: Any, x: torch.Tensor) -> torch.Tensor:
        return (callee.cache + x) * (callee.count + 1)

    with pytest.raises(NoEntry):
        compare_in_build(module, lambda c, x: c(x), forgetful, [X])


def test_both_draw_the_same_random_numbers():
    """Random is no reason to refuse where compiled code draws as eager does."""
    state = torch.get_rng_state()
    assert difference(torch.rand_like, lambda out: out, X) == 0.0
    assert torch.equal(torch.get_rng_state(), state)


def in_service(callee: Any, change: Any, *tensors: torch.Tensor, restore: bool = True) -> float:
    return compare_in_service(
        callee, lambda c, *ts: c(*ts), ours(change), tensors, restore=restore, built=()
    ).difference


def refuses(_: Any) -> Any:
    raise NoEntry("a tensor is another one")


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("callee", "change", "kind", "why"),
    [
        # Nothing is held against an answer that another run of eager would not give.
        (
            lambda x: x + next(COUNT),
            lambda out: out + 0.5,
            NotComparable,
            "two eager runs of the same call differ",
        ),
        (lambda x: (x, iter("abc")), lambda out: out, NotComparable, "cannot be compared"),
        # The entry refuses before it computes, and other code answers the call.
        (lambda x: x, refuses, NotComparable, "does not accept this call: a tensor is another one"),
        (lambda x: (x, 1), lambda out: (out[0], iter("abc")), NoEntry, "a different structure"),
    ],
    ids=["eager differs", "eager's output", "refused", "the entry's output"],
)
def test_an_entry_fails_only_for_what_it_does(callee: Any, change: Any, kind: Any, why: str):
    with pytest.raises(kind, match=why):
        in_service(callee, change, X)


def test_eager_runs_again_only_where_the_first_comparison_fails():
    """A check that passes costs one run of eager."""
    runs = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x * 2

    eager = lambda c, x: c(x)  # noqa: E731
    how: dict[str, Any] = {"restore": False, "built": ()}
    passed = compare_in_service(counted, eager, lambda c, x: x * 2, [X], **how)
    right = len(runs)
    with pytest.raises(NoEntry, match="times eager's"):
        compare_in_service(counted, eager, lambda c, x: x * 3, [X], **how)

    assert (passed.difference, right) == (0.0, 1)
    assert len(runs) > 2


def test_no_value_is_in_the_text_of_a_replica():
    """Values outside tensors may be a part of a request."""
    with pytest.raises(NoEntry, match="a different structure") as caught:
        in_service(lambda x: (x, "secret"), lambda out: (out[0], "other"), X)
    assert "secret" not in str(caught.value)
    assert "other'" not in str(caught.value)


def test_state_is_left_alone_where_nothing_is_restored():
    """Other threads may be reading buffers, and drawing random numbers."""
    module = Cached()
    in_service(module, lambda out: out.nan_to_num(), X * 0, restore=False)
    assert module.count == 2


@pytest.mark.parametrize(
    ("callee", "why"),
    [
        (lambda x: x * 2, ""),
        (torch.rand_like, "it draws random numbers"),
        (lambda x: x.add_(1), "it writes into its inputs"),
        (Cached(), "it writes into buffers"),
    ],
    ids=["pure", "random", "input", "buffer"],
)
def test_what_a_second_run_would_do_again_is_found(callee: Any, why: str):
    """The change is undone."""
    state, x = torch.get_rng_state(), X.clone()
    buffers = [*callee.buffers()] if isinstance(callee, torch.nn.Module) else []
    before = [buffer.clone() for buffer in buffers]
    assert why_not_twice(callee, [lambda c, *ts: c(*ts)], [x]) == why
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, X)
    assert all(map(torch.equal, buffers, before))


def test_random_states_of_gpus_are_put_back(monkeypatch: pytest.MonkeyPatch):
    """All generators are restored if CUDA is in use. Without CUDA no generator is read."""
    states = [torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)]
    put_back: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back.append)

    def draws(x: torch.Tensor) -> torch.Tensor:
        states[0] = states[0] + 1
        return x

    assert why_not_twice(draws, [lambda c, x: c(x)], [X]) == "it draws random numbers"
    assert [state.tolist() for state in put_back[0]] == [[1], [2]]
