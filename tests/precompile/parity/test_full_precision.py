# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A call runs in full precision without a copy of its model, and changes nothing."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from serve_warm.precompile.parity.distance_check import compare
from serve_warm.precompile.parity.eager import StateBefore
from serve_warm.precompile.parity.full_precision import (
    TO_DOUBLE,
    FullPrecision,
    FullRun,
    NoFullPrecision,
    choose_precision,
    run_in_full_precision,
)

HALF = [torch.bfloat16, torch.float16]
half = pytest.mark.parametrize("dtype", HALF, ids=["bfloat16", "float16"])
PRECISION = choose_precision(half=True, device_types=["cpu"])


def call(callee: Any, *tensors: Any) -> Any:
    return callee(*tensors)


def full(callee: Any, *tensors: Any, precision: Any = PRECISION) -> FullRun:
    return run_in_full_precision(StateBefore(callee), call, tensors, precision)


class Attention(nn.Module):
    """Attention with a mask, tied weights and checks of dtypes, as models write them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 20, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        if x.dtype != self.query.weight.dtype:
            raise TypeError("expected the dtype of the weights")
        lowest = torch.finfo(x.dtype).min
        mask = torch.full((tokens.shape[1],) * 2, lowest, dtype=x.dtype).triu(1)
        q, k = (part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.query, self.key))
        out = F.scaled_dot_product_attention(q, k, k, attn_mask=mask).transpose(1, 2).flatten(2)
        scores = torch.softmax(out, dim=-1, dtype=torch.float32).to(x.dtype)
        return self.last(x + scores)


class Cache(nn.Module):
    """Writes keys into a buffer through a view, and attends to the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 2, 6, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.part(x)
        self.keys[:, 0].index_copy_(1, torch.tensor([1, 2]), new)
        self.keys[:, 1, 3:5].add_(new)
        self.count += 1
        return F.scaled_dot_product_attention(new[:, None], self.keys, self.keys)


class Rotated(nn.Module):
    """Multiplies complex numbers, as rotary embeddings do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = pairs * torch.polar(torch.ones(4), torch.arange(4.0))
        return torch.view_as_real(turned).flatten(-2).type_as(x)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4)
    )


MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "attention": (Attention, (torch.arange(10).view(2, 5),)),
    "convolutions": (convolution, (torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8),)),
    "cache": (Cache, (torch.linspace(-1, 1, 16).view(1, 2, 8),)),
    "complex": (Rotated, (torch.linspace(-1, 1, 16).view(2, 8),)),
    "lstm": (lambda: nn.LSTM(4, 8), (torch.linspace(-1, 1, 24).view(3, 2, 4),)),
}


def cast(tensors: Any, dtype: torch.dtype) -> list[Any]:
    return [each.to(dtype) if each.is_floating_point() else each for each in tensors]


@half
@pytest.mark.parametrize("inference", [True, False], ids=["inference mode", "no mode"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_agrees_with_a_copy_in_float32(name: str, dtype: torch.dtype, inference: bool):
    make, tensors = MODELS[name]
    torch.manual_seed(0)
    model = make().eval().to(dtype)
    given = cast(tensors, dtype)
    copied = copy.deepcopy(model).float()
    with torch.inference_mode(inference):
        run = full(model, *given)

    with torch.no_grad():
        exact = StateBefore(copied).run(call, cast(given, torch.float32))
    expected = [*exact.outputs, *exact.inputs, *exact.buffers]
    torch.testing.assert_close(run.tensors, expected, rtol=1e-5, atol=1e-6, check_dtype=True)
    assert run.eager_operators == ()


def test_weights_inputs_and_buffers_are_not_changed():
    """Their values and their memory stay the same, so other threads can use the model."""
    model = Cache().to(torch.bfloat16)
    x = torch.ones(1, 2, 8, dtype=torch.bfloat16)
    before = {name: (each.data_ptr(), each.clone()) for name, each in model.state_dict().items()}
    full(model, x)
    after = model.state_dict()
    assert all(after[name].data_ptr() == place for name, (place, _) in before.items())
    assert all(torch.equal(after[name], value) for name, (_, value) in before.items())
    assert torch.equal(x, torch.ones_like(x))


def test_functions_closures_and_methods_run_in_full_precision():
    weight = torch.full((4, 4), 0.3, dtype=torch.bfloat16)
    model = nn.Linear(4, 4).to(torch.bfloat16)
    x = torch.full((2, 4), 0.1, dtype=torch.bfloat16)
    closure = full(lambda given: given @ weight, x).outputs[0]
    method = full(model.forward, x).outputs[0]
    assert torch.equal(closure, x.float() @ weight.float())
    assert method.dtype is torch.float32


def test_float32_runs_in_float64():
    """The reference of a float32 call is a float64 run, also for numbers that the code makes."""
    model = nn.Linear(4, 4)
    precision = choose_precision(half=False, device_types=["cpu"])
    run = full(lambda x: model(x) + torch.ones(4).div(3), torch.ones(2, 4), precision=precision)
    exact = copy.deepcopy(model).double()(torch.ones(2, 4).double()) + 1 / 3
    torch.testing.assert_close(run.outputs[0], exact.detach(), rtol=1e-14, atol=1e-14)


def test_autocast_does_not_round_the_reference():
    """Autocast around the call or inside it stays without effect, and its cache stays empty."""
    model = nn.Linear(8, 8)
    x = torch.linspace(-1, 1, 16).view(2, 8)

    def inside(given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(given)

    with torch.autocast("cpu", torch.bfloat16):
        around = full(model, x).outputs[0]
        later = model(x)

    exact = model(x).detach()
    assert torch.equal(around, exact)
    assert torch.equal(full(inside, x).outputs[0], exact)
    assert later.dtype is torch.bfloat16
    assert torch.is_autocast_cache_enabled()


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda x: torch.randn_like(x * 1), id="randn_like"),
        pytest.param(lambda x: torch.rand(4, dtype=x.dtype), id="rand"),
        pytest.param(lambda x: torch.empty_like(x).normal_(), id="normal_"),
        pytest.param(lambda x: F.dropout(x * 0 + 1, training=True), id="dropout"),
        pytest.param(lambda x: torch.randn(8) + x.sum() * 0, id="float32 beside half"),
    ],
)
@half
def test_random_draws_are_those_of_eager(draw: Any, dtype: torch.dtype):
    """One seed gives the same numbers, although half precision draws other numbers than float32."""
    x = torch.ones(40, dtype=dtype)
    kept = StateBefore(draw)
    eager = kept.run(call, [x]).outputs[0]
    run = run_in_full_precision(kept, call, [x], PRECISION)
    assert torch.equal(run.outputs[0], eager.float())


@torch.library.custom_op("test_full_precision::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Accepts only bfloat16, as a kernel would."""
    if x.dtype is not torch.bfloat16:
        raise TypeError("expected bfloat16")
    return x * 2


@torch.library.custom_op("test_full_precision::fill", mutates_args=("x",))
def fill(x: torch.Tensor) -> None:
    """Writes into its argument."""
    x.fill_(3.0 if x.dtype is torch.bfloat16 else 7.0)


def test_operators_of_other_libraries_run_in_their_eager_dtype_and_are_named():
    """Their inputs are cast down, so only the rest of the call has full precision."""
    x = torch.full((4,), 0.1, dtype=torch.bfloat16)

    def uses_both(given: torch.Tensor) -> torch.Tensor:
        out = twice(given / 3)
        fill(out)
        return twice(given) + out / 7

    run = full(uses_both, x)

    assert run.eager_operators == ("test_full_precision::fill", "test_full_precision::twice")
    assert torch.equal(run.outputs[0], (x * 2).float() + torch.tensor(3.0) / 7)


def test_reading_the_bits_of_a_tensor_gives_those_of_eager():
    x = torch.full((4,), 0.1, dtype=torch.bfloat16)
    run = full(lambda given: (given * 1).view(torch.int16), x)
    assert torch.equal(run.outputs[0], x.view(torch.int16))
    assert run.eager_operators == ("aten::view",)


def test_tensors_that_contain_tensors_run_in_full_precision():
    """Such as quantized weights: their own class runs the operator on parts in full precision."""
    parts = [torch.full((4, 4), value, dtype=torch.bfloat16) for value in (0.1, 0.3)]
    weight = TwoTensor(*parts)
    x = torch.full((2, 4), 0.7, dtype=torch.bfloat16)
    run = full(lambda given: (weight.t() * 3 / 7).a.sum() + given, x)
    torch.testing.assert_close(run.outputs[0], (parts[0].float() * 3 / 7).sum() + x.float())


def test_casts_share_memory_as_in_eager():
    """A cast to the tensor's own dtype shares memory, and another cast makes a copy."""

    def shares(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x.to(x.dtype).add_(1)
        x.to(torch.bfloat16).add_(1)
        return x

    def copies(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x.float().add_(1)
        x.to(torch.float32).add_(1)
        return x

    x = torch.zeros(4, dtype=torch.bfloat16)
    assert torch.equal(full(shares, x).outputs[0], torch.full((4,), 2.0))
    assert torch.equal(full(copies, x).outputs[0], torch.zeros(4))


def test_a_softmax_that_casts_runs_in_full_precision():
    """A GPU casts half precision inside the operator, which refuses float32."""
    x = torch.linspace(-1, 1, 8, dtype=torch.float16)
    run = full(lambda given: torch.ops.aten._softmax(given, -1, True), x)
    assert torch.equal(run.outputs[0], torch.softmax(x.float(), -1))
    assert run.eager_operators == ()


def test_inputs_that_overlap_see_writes_of_each_other():
    whole = torch.zeros(6, dtype=torch.float16)

    def writes(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        other.add_(0.1)
        return one + 0

    run = full(writes, whole, whole[2:4])

    assert torch.equal(run.outputs[0], torch.tensor([0, 0, 0.1, 0.1, 0, 0]))
    assert torch.equal(run.inputs[0], run.outputs[0])
    assert not whole.any()


def test_large_weights_are_not_kept_twice():
    """The copy of a weight is dropped after its use, so two models never need to fit."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(torch.bfloat16)
    mode = FullPrecision(PRECISION)
    with torch.no_grad(), mode.active():
        model(torch.ones(1, 512, dtype=torch.bfloat16))
    large = [each for each in mode._shadows.values() if each._tensor.numel() == 512 * 512]
    assert len(large) == 4
    assert all(each._kept is None and each._alive() is None for each in large)


def test_other_threads_are_not_affected():
    found = []
    x = torch.ones(2, dtype=torch.bfloat16)

    def starts_a_thread(given: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: found.append((x + 1).dtype))
        thread.start()
        thread.join()
        return given + 1

    run = full(starts_a_thread, x)

    assert found == [torch.bfloat16]
    assert run.outputs[0].dtype is torch.float32


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.unsqueeze_(0), "changes the shape"),
        (lambda x: x.view(torch.int16).float() + torch.ops.aten.nothing(x), "nothing"),
    ],
    ids=["changes a shape in place", "raises"],
)
def test_a_call_without_full_precision_says_why(function: Any, reason: str):
    """The caller keeps the fixed limit, and its report quotes the reason."""
    with pytest.raises(NoFullPrecision, match=reason):
        full(function, torch.ones(2, dtype=torch.bfloat16))


def test_float32_products_that_are_rounded_lead_to_float64():
    """The reference never uses TF32 or bfloat16 products, and switches nothing off."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "bf16"
        chosen = choose_precision(half=True, device_types=["cpu"])
    finally:
        matmul.fp32_precision = before

    assert chosen.up == TO_DOUBLE
    assert not choose_precision(half=True, device_types=["cpu"]).is_conv_double
    assert choose_precision(half=True, device_types=["cuda"]).is_conv_double


def test_an_operator_that_compiles_itself_still_runs_after_a_comparison():
    """Dynamo must not remember its code as code that it can never compile."""
    x = torch.ones(4)

    def model(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))

    with torch.inference_mode():
        verdict = compare(model, call, call, [x]).verdict
        after = model(x)

    assert verdict.passes
    assert "cannot run in full precision" in verdict.fixed
    assert torch.equal(after, x.cos())


class Streaming(torch.nn.Module):
    """Keeps a tensor for the next call, and a list of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.state = torch.zeros(1, 4, dtype=torch.bfloat16)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x + self.state)
        self.state = out[-1:]
        self.seen.append(self.state)
        return out


@torch.inference_mode()
def test_what_a_forward_keeps_is_restored():
    """The next call must not get a float32 tensor from a run in full precision."""
    model = Streaming().bfloat16().eval()
    before = model.state
    full(model, torch.ones(2, 4, dtype=torch.bfloat16))
    assert model.state is before
    assert model.seen == []
