# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled code against eager: what is wrong is refused. Python stands for compiled code."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from serve_warm.precompile.eager_check import (
    TOLERANCE,
    NotComparable,
    difference_from_eager,
    difference_in_service,
    why_not_twice,
)
from serve_warm.precompile.facts import NoEntry

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
    """Return a function for difference_from_eager whose result is eager's, changed."""
    return lambda callee, *tensors: change(callee(*tensors))


def difference(callee: Any, change: Any, *tensors: torch.Tensor) -> float:
    return difference_from_eager(callee, lambda c, *ts: c(*ts), ours(change), tensors)


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

    assert difference_from_eager(double, eager, ours(right), [X]) == 0.0
    with pytest.raises(NoEntry, match="differs from eager by"):
        difference_from_eager(double, eager, ours(wrong), [X])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_dtype_has_room_for_rounding_and_no_more(dtype: torch.dtype):
    """Half of the tolerance passes, twice of it does not."""
    one = torch.ones(4, dtype=torch.float64)
    just, over = 1 + TOLERANCE[dtype] / 2, 1 + TOLERANCE[dtype] * 2

    error = difference(lambda x: one.to(dtype), lambda out: (one * just).to(dtype), X)

    assert error <= TOLERANCE[dtype]
    with pytest.raises(NoEntry, match="differs"):
        difference(lambda x: one.to(dtype), lambda out: (one * over).to(dtype), X)


def test_both_parts_of_a_complex_number_are_compared():
    """An error only in the imaginary part is an error."""
    one = torch.ones(2, dtype=torch.complex64)

    assert difference(lambda x: one, lambda out: out * 1, X) == 0.0
    with pytest.raises(NoEntry, match="differs"):
        difference(lambda x: one, lambda out: out + 0.1j, X)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda out: out.double(), "float64", id="dtype"),
        pytest.param(lambda out: out[:2], r"\[2\]", id="shape"),
        pytest.param(lambda out: (out,), "tuple", id="structure"),
        pytest.param(lambda out: None, "None", id="nothing"),
        pytest.param(lambda out: out / 0, "finite", id="infinite"),
        pytest.param(lambda out: out * float("nan"), "finite", id="nan"),
    ],
)
def test_what_is_returned_must_be_alike(change: Any, why: str):
    """Kind, shape and dtype are compared before values are."""
    with pytest.raises(NoEntry, match=why):
        difference(lambda x: x + 3, change, X)


@pytest.mark.parametrize("wrong", [-torch.inf, torch.nan])
def test_what_is_infinite_must_be_so_in_both(wrong: float):
    """An entry that turns an infinity into something else is wrong."""
    infinite = torch.tensor([1.0, torch.inf])

    assert difference(lambda x: infinite, lambda out: out, X) == 0.0
    with pytest.raises(NoEntry, match="infinite or NaN"):
        difference(lambda x: infinite, lambda out: torch.tensor([1.0, wrong]), X)


def test_plain_values_of_an_output_are_compared():
    """A number beside the tensors is part of the answer."""
    with pytest.raises(NoEntry, match="it returns"):
        difference(lambda x: (x, 1), lambda out: (out[0], True), X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_exact(dtype: torch.dtype):
    """Token ids have no tolerance."""
    with pytest.raises(NoEntry, match="values"):
        difference(lambda x: torch.ones(2, dtype=dtype), lambda out: out ^ True, X)


def test_writes_into_an_input_are_compared_and_undone():
    """Both runs use copies. An entry that does not write what eager writes is refused."""

    def writes(callee: Any, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return cache.sum()

    def only_says(callee: Any, cache: torch.Tensor) -> torch.Tensor:
        return (cache + 1).sum()

    cache = torch.zeros(4)

    assert difference_from_eager(None, writes, writes, [cache]) == 0.0
    with pytest.raises(NoEntry):
        difference_from_eager(None, writes, only_says, [cache])
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

    assert difference_from_eager(None, writes, writes, [whole, whole[1:3]]) == 0.0
    with pytest.raises(NoEntry):
        difference_from_eager(None, writes, apart, [whole, whole[1:3]])


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
    """Buffers that are written into or replaced are the module's own buffers afterwards."""
    module = Cached()
    before = dict(module.named_buffers())

    error = difference(module, lambda out: out, X)

    assert error == 0.0
    assert all(module.get_buffer(name) is buffer for name, buffer in before.items())
    assert module.cache.tolist() == [0, 0, 0, 0]
    assert module.count == 0


def test_a_buffer_that_is_not_updated_is_an_error():
    """An entry that returns the right answer once, and forgets the state, is refused."""
    module = Cached()

    def forgetful(callee: Any, x: torch.Tensor) -> torch.Tensor:
        return (callee.cache + x) * (callee.count + 1)

    with pytest.raises(NoEntry):
        difference_from_eager(module, lambda c, x: c(x), forgetful, [X])


def test_both_draw_the_same_random_numbers():
    """Random is no reason to refuse where compiled code draws as eager does."""
    state = torch.get_rng_state()

    assert difference(torch.rand_like, lambda out: out, X) == 0.0
    assert torch.equal(torch.get_rng_state(), state)


def test_other_random_numbers_are_refused():
    """The reason names the option with which compiled code draws the numbers of eager."""
    with pytest.raises(NoEntry, match=r"differs from eager by .*fallback_random"):
        difference(torch.rand_like, torch.rand_like, X)


def test_a_call_without_a_repeatable_result_is_refused_with_advice():
    """Numbers from NumPy differ in each run, and so do two eager runs."""
    numbers = np.random.default_rng(0)

    with pytest.raises(NoEntry, match=r"two eager runs .* pass the numbers as an argument"):
        difference(lambda x: x * numbers.random(), lambda out: out, X)


def test_zeros_that_only_eager_writes_are_refused_with_advice():
    """A TransformerEncoder writes zeros at padded positions, but only in eager execution."""
    with pytest.raises(NoEntry, match=r"eager writes zeros.*enable_nested_tensor=False"):
        difference(lambda x: x.clamp(min=0), lambda out: out + (out == 0), X)
    with pytest.raises(NoEntry, match=r"relative to the largest value$"):
        difference(lambda x: x.clamp(min=0), lambda out: out + 1, X)


def test_a_fallen_output_that_cannot_be_compared_is_refused():
    """An output that cannot be compared could be wrong."""
    with pytest.raises(NoEntry, match="cannot be compared"):
        difference(lambda x: (x, 5), lambda out: (out[0], iter("abc")), X)


# --- in a replica -------------------------------------------------------------------------------


def in_service(callee: Any, change: Any, *tensors: torch.Tensor, restore: bool = True) -> float:
    return difference_in_service(
        callee, lambda c, *ts: c(*ts), ours(change), tensors, restore=restore
    )


def test_eager_that_differs_from_eager_is_no_measure():
    """Nothing is held against an answer that another run would not give."""
    count = iter(range(100))

    with pytest.raises(NotComparable, match="two eager runs of the same call differ"):
        in_service(lambda x: x + next(count), lambda out: out + 0.5, X)


def test_eager_runs_twice_only_where_the_first_comparison_fails():
    """A check that passes costs one run of eager."""
    runs = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x * 2

    eager = lambda c, x: c(x)  # noqa: E731
    passed = difference_in_service(counted, eager, lambda c, x: x * 2, [X], restore=False)
    right = len(runs)
    with pytest.raises(NoEntry, match="differs from eager by"):
        difference_in_service(counted, eager, lambda c, x: x * 3, [X], restore=False)

    assert (passed, right, len(runs) - right) == (0.0, 1, 2)


def test_no_value_is_in_the_text_of_a_replica():
    """Values outside tensors may be a part of a request."""
    with pytest.raises(NoEntry, match="a different structure") as caught:
        in_service(lambda x: (x, "secret"), lambda out: (out[0], "other"), X)

    assert "secret" not in str(caught.value)
    assert "other'" not in str(caught.value)


def test_an_output_that_eager_gives_and_nobody_can_compare_is_no_failure():
    """The entry is not to blame for it."""
    with pytest.raises(NotComparable, match="cannot be compared"):
        in_service(lambda x: (x, iter("abc")), lambda out: out, X)


def test_an_entry_that_does_not_take_the_call_is_no_failure():
    """The entry refuses before it computes, and other code answers the call."""

    def refuses(out: Any) -> Any:
        raise NoEntry("a tensor is another one")

    with pytest.raises(NotComparable, match="does not accept this call: a tensor is another one"):
        in_service(lambda x: x, refuses, X)


def test_an_output_of_another_kind_is_a_failure():
    """Eager's can be compared, and the entry's cannot."""
    with pytest.raises(NoEntry, match="a different structure"):
        in_service(lambda x: (x, 1), lambda out: (out[0], iter("abc")), X)


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
