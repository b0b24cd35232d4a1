# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Replays of recorded calls: the tensors that are made, and the callable that gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import serve_warm
from compiled import double, fresh
from levels import forget_callables
from serve_warm.compiler.watch import watch_process
from serve_warm.errors import InputError
from serve_warm.learn.recorded import NotRepeatable, RecordedCall
from serve_warm.learn.recorder import Recorder
from serve_warm.learn.replayed import ReplayedCall, make_arguments, make_tensor
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts.names import describe_tensor


@pytest.fixture(autouse=True)
def recorder() -> Iterator[Recorder]:
    forget_callables()
    recorder = SESSION.recorder = Recorder()
    recorder.begin()
    yield recorder
    SESSION.recorder = None


TENSORS = {
    "float": torch.ones(2, 3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "complex": torch.ones(2, dtype=torch.complex64),
    "integers": torch.full((5,), 7),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(1.0),
    "empty": torch.ones(0, 4),
    "transposed": torch.ones(3, 4).T,
    "every second": torch.ones(8)[::2],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "channels last": torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_has_the_recorded_metadata(name: str):
    text = describe_tensor(TENSORS[name])
    made = make_tensor(text, torch.Generator().manual_seed(0))
    assert describe_tensor(made) == text
    assert not made._is_view()


def test_a_length_may_not_be_zero():
    """The code subtracts 1 from it: the call is made with ones."""
    function = serve_warm.compile(
        fresh(lambda lengths: torch.nn.functional.one_hot(lengths - 1, 4)),
        backend="eager",
    )
    call = RecordedCall(
        callable=function._serve_warm.name,
        structure="t0",
        tensors=(describe_tensor(torch.ones(3).long()),),
    )
    replayed = ReplayedCall(call)
    before = watch_process().counts()
    for _ in range(2):
        replayed()
    assert (watch_process().counts() - before).compiles == 1


def test_values_are_safe_for_indices_and_masks():
    noise = torch.Generator().manual_seed(0)
    assert not make_tensor("Tensor int64[4] strides [1] on cpu", noise).any()
    assert make_tensor("Tensor bool[4] strides [1] on cpu", noise).all()
    drawn = make_tensor("Tensor float32[64] strides [1] on cpu", noise)
    assert drawn.std() > 0.5


def replayed(function: Any, recorder: Recorder, *calls: tuple[Any, ...]) -> list[RecordedCall]:
    for args in calls:
        function(*args)
    return recorder.calls()[0]


def test_a_replay_makes_the_recorded_call(recorder: Recorder):
    seen: list[Any] = []

    def look(given: torch.Tensor, sizes: Any, *, flag: bool) -> torch.Tensor:
        seen.append((tuple(given.shape), sizes, flag, torch.is_inference_mode_enabled()))
        return given + 1

    function = serve_warm.compile(torch.compiler.disable(look), backend="eager")
    with torch.inference_mode():
        function(torch.ones(3, 2), [1, 2.5], flag=True)
    (call,) = recorder.calls()[0]
    ReplayedCall(call)()
    assert seen[0] == seen[1] == ((3, 2), [1, 2.5], True, True)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_replay_compiles_what_traffic_needs(recorder: Recorder, is_inside: bool):
    """A tensor that was made in inference mode has other guards than one that was not."""
    function = serve_warm.compile(fresh(double), backend="eager", dynamic=False)
    given = torch.ones(3)
    with torch.inference_mode():
        if is_inside:
            given = torch.ones(3)
        function(given)
        (call,) = recorder.calls()[0]
        torch._dynamo.reset()
        ReplayedCall(call)()
        before = watch_process().counts()
        function(given)
    assert (watch_process().counts() - before).compiles == 0


@pytest.mark.parametrize("form", ["tensors", "with a number", "nested"])
@pytest.mark.parametrize("first_inside", [True, False])
def test_tensors_made_inside_and_outside_are_made_there_again(
    recorder: Recorder, form: str, first_inside: bool
):
    """A loop that decodes makes its ids before inference mode, and each position in it."""
    function = serve_warm.compile(
        fresh(lambda x, y, z=0: (x[0] if form == "nested" else x) + y + z),
        backend="eager",
        dynamic=False,
    )
    made = [torch.ones(3)]
    with torch.inference_mode():
        made.insert(0 if first_inside else 1, torch.ones(3))
        given = ([made[0]], made[1]) if form == "nested" else tuple(made)
        extra = {"z": 2} if form == "with a number" else {}
        function(*given, **extra)
        (call,) = recorder.calls()[0]
        call = RecordedCall.from_json(call.to_json())
        args, _ = make_arguments(call)
        torch._dynamo.reset()
        ReplayedCall(call)()
        before = watch_process().counts()
        function(*given, **extra)
    first = args[0][0] if form == "nested" else args[0]
    assert (first.is_inference(), args[1].is_inference()) == (first_inside, not first_inside)
    assert call.normal_tensors == ((1,) if first_inside else (0,))
    assert (watch_process().counts() - before).compiles == 0


def test_a_replay_goes_to_the_callable_with_its_number(recorder: Recorder):
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return given

    layers: list[Any] = [Layer(), Layer()]
    one, two = (serve_warm.compile(each, backend="eager") for each in layers)
    one(torch.ones(2))
    two(torch.ones(3))
    (of_two,) = [each for each in recorder.calls()[0] if each.number == 1]
    ReplayedCall(of_two)()
    assert [each.calls for each in layers] == [1, 2]


def test_a_callable_that_is_gone_is_named():
    call = RecordedCall(
        callable="app.Gone", structure="t0", tensors=("Tensor int8[] strides [] on cpu",)
    )
    with pytest.raises(InputError) as caught:
        ReplayedCall(call)()
    assert "has compiled no app.Gone (number 1)" in caught.value.message
    assert "serve-warm plan" in caught.value.hint


def test_a_dtype_that_torch_has_not_is_refused():
    call = RecordedCall(
        callable="x", structure="dtype=torch.load", tensors=("Tensor int8[] strides [] on cpu",)
    )
    with pytest.raises(ValueError, match=r"torch\.load is no dtype"):
        make_arguments(call)


def test_code_that_fails_only_compiled_is_not_the_fault_of_the_plan():
    """So a start refuses the artifact, and does not leave out the call."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken code")

    function = serve_warm.compile(fresh(double), backend=broken, dynamic=False)
    text = "Tensor float32[2] strides [1] on cpu"
    call = RecordedCall(callable=function._serve_warm.name, structure="t0", tensors=(text,))
    with pytest.raises(Exception, match="broken code") as caught:
        ReplayedCall(call)()
    assert not isinstance(caught.value, NotRepeatable)


class Averaging(torch.nn.Module):
    """Keeps a running mean of what it is given, and a table that it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        with torch.inference_mode():
            self.register_buffer("made_inside", torch.zeros(3))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * given.mean())
        self.seen += 1
        self.made_inside += 1
        return given - self.mean


@pytest.mark.parametrize("way", ["module", "method"])
def test_a_replay_does_not_change_what_a_model_has_learned(recorder: Recorder, way: str):
    """Its values are made up, and the first user's answer would depend on them."""
    model = Averaging()
    target = model if way == "module" else model.forward
    function = serve_warm.compile(target, backend="eager", dynamic=False)
    with torch.inference_mode():
        function(torch.ones(4))
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        (call,) = recorder.calls()[0]
        ReplayedCall(call)()
        after = dict(model.named_buffers())
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert before["seen"].item() == 1
        function(torch.ones(4))
        assert model.seen.item() == 2


class Growing(torch.nn.Module):
    """Replaces its buffers, as caches and tables of positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(1, 4))
        self.register_buffer("later", None)
        self.length = 1

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        self.cache = torch.cat([self.cache, given])
        self.later = given
        self.length = len(self.cache)
        return given + self.count


def planned(function: Any, shape: tuple[int, ...]) -> ReplayedCall:
    text = describe_tensor(torch.ones(shape))
    return ReplayedCall(
        RecordedCall(callable=function._serve_warm.name, structure="t0", tensors=(text,))
    )


def test_a_replay_puts_back_buffers_that_a_model_replaces():
    model = Growing()
    before = dict(model._buffers)
    function = serve_warm.compile(model, backend="eager", dynamic=False)
    replay = planned(function, (1, 4))
    for _ in range(3):
        replay()
    assert all(model._buffers[name] is each for name, each in before.items())
    assert (model.count.item(), model.length) == (0, 1)


class Owner:
    """Has a model, and a method that is compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def embed(self, given: torch.Tensor) -> Any:
        return self.model(given)


of_module: Any = None


def with_global(given: torch.Tensor) -> Any:
    return of_module(given)


@pytest.mark.parametrize("way", ["closure", "method", "global", "owner in a closure"])
def test_a_replay_finds_the_buffers_behind_a_function(way: str, monkeypatch: pytest.MonkeyPatch):
    norm = torch.nn.BatchNorm1d(4)
    monkeypatch.setattr(f"{__name__}.of_module", norm)
    owner = Owner(norm)
    functions: dict[str, Any] = {
        "closure": lambda given: norm(given) + 1,
        "method": owner.embed,
        "global": with_global,
        "owner in a closure": lambda given: owner.embed(given) + 1,
    }
    function = serve_warm.compile(functions[way], backend="eager", dynamic=False)
    planned(function, (3, 4))()
    assert not norm.running_mean.any()
    assert norm.num_batches_tracked.item() == 0
