# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled results are judged by their distance from full precision. Python stands for code."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from serve_warm.precompile.entries.table import Distance
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity.distance import RMSE_LIMIT, Judgement, Results, judge
from serve_warm.precompile.parity.distance_check import Comparison, compare, vary_tensors
from serve_warm.precompile.parity.eager import NEVER_REFUSED, PIECE, spacing, tolerance

HALF = [torch.bfloat16, torch.float16]
half = pytest.mark.parametrize("dtype", HALF, ids=["bfloat16", "float16"])
MANY = 100_000


def results(
    dtype: torch.dtype, noise: float, other_noise: float, numbers: int = MANY, seed: int = 0
) -> Results:
    """Return results with a noise for eager and for compiled code, in units of the spacing."""
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(numbers, generator=generator, dtype=torch.float64)
    unit = spacing(exact, dtype)
    eager, ours = (
        (exact + scale * unit * torch.randn(numbers, generator=generator)).to(dtype)
        for scale in (noise, other_noise)
    )
    return Results(eager=[eager], ours=[ours], reference=[exact])


def check(dtype: torch.dtype, noise: float, other_noise: float, **more: Any) -> Judgement:
    return judge([results(dtype, noise, other_noise, **more)], dtype)


def passes(
    exact: torch.Tensor,
    eager: torch.Tensor,
    ours: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> bool:
    return judge([Results(eager=[eager], ours=[ours], reference=[exact])], dtype).passes


@half
def test_code_that_rounds_as_much_as_eager_passes(dtype: torch.dtype):
    """However much that is: the noise of deep models exceeds any fixed limit."""
    for noise in (0.5, 3.0, 20.0):
        verdict = check(dtype, noise, noise)
        assert verdict.passes
        assert verdict.rmse_ratio == pytest.approx(1, abs=0.05)
        assert not verdict.fixed


@half
def test_code_that_is_half_as_far_again_from_full_precision_is_refused(dtype: torch.dtype):
    verdict = check(dtype, 3.0, 4.5)
    assert not verdict.passes
    assert re.search(
        r"RMSE against a full-precision run is 1\.\d+ times eager's \(limit 1\.\d+, for [\d,]+ num",
        verdict.reason,
    )


def test_one_wrong_element_of_many_is_refused():
    """The RMSE does not show it, and the largest error does."""
    given = results(torch.bfloat16, 2.0, 2.0)
    given.ours[0][777] += 0.5
    verdict = judge([given], torch.bfloat16)
    assert verdict.rmse_ratio is not None
    assert verdict.rmse_ratio < RMSE_LIMIT
    assert "largest error" in verdict.reason


def test_results_that_agree_to_the_last_bits_pass():
    """Eager may be exact by chance, and compiled code may round its last bit the other way."""
    exact = torch.arange(1.0, 65.0, dtype=torch.float64)
    eager = exact.to(torch.bfloat16)
    ours = (exact + 0.3 * spacing(exact, torch.bfloat16)).to(torch.bfloat16)
    ours[::3] = torch.nextafter(ours[::3], torch.tensor(torch.inf, dtype=torch.bfloat16))
    assert passes(exact, eager, ours)


def test_float32_results_below_a_ten_thousandth_pass():
    """Their ratio may be large, because a CPU sums in another order than eager."""
    exact = torch.linspace(0.1, 1, MANY, dtype=torch.float64)
    eager = exact.float()
    near, far = (
        judge([Results(eager=[eager], ours=[eager + error], reference=[exact])], torch.float32)
        for error in (0.5 * NEVER_REFUSED[torch.float32], 2 * NEVER_REFUSED[torch.float32])
    )

    assert near.passes
    assert near.rmse_ratio is not None
    assert near.rmse_ratio > 100
    assert not far.passes


@pytest.mark.parametrize("numbers", [1, 2, 10])
@half
def test_few_numbers_widen_the_limits(dtype: torch.dtype, numbers: int):
    """The ratio of two roundings is large by chance: 200 right results, and none is refused."""
    found = [check(dtype, 2.0, 2.0, numbers=numbers, seed=seed) for seed in range(200)]
    limit = tolerance(torch.empty(0, dtype=dtype))
    assert all(verdict.passes for verdict in found if verdict.difference <= limit)
    assert max(verdict.rmse_ratio or 0 for verdict in found) > RMSE_LIMIT


def test_one_number_may_not_differ_by_any_amount():
    exact, eager = torch.tensor([2.0]), torch.tensor([2.0]).bfloat16()
    assert not passes(exact, eager, eager * 1.3)


def test_a_float32_part_of_a_bfloat16_call_is_judged_as_float32():
    """Its error is far below bfloat16's spacing."""
    exact = torch.linspace(1, 2, 5000)
    half, right = exact.bfloat16(), exact * (1 + 1e-7)
    found = [
        judge(
            [Results(eager=[half, right], ours=[half, ours], reference=[exact, exact])],
            torch.bfloat16,
        ).passes
        for ours in (right, exact * 1.002)
    ]

    assert found == [True, False]


def test_several_inputs_make_few_numbers_many():
    calls = [results(torch.bfloat16, 2.0, 4.0, numbers=10, seed=seed) for seed in range(64)]
    assert judge(calls[:1], torch.bfloat16).passes
    assert not judge(calls, torch.bfloat16).passes


def test_without_a_reference_the_fixed_limit_decides():
    wrong, right = results(torch.bfloat16, 0.5, 40.0), results(torch.bfloat16, 0.5, 1.0)
    without = [Results(eager=each.eager, ours=each.ours, reference=None) for each in (wrong, right)]
    refused, passed = (
        judge([each], torch.bfloat16, no_reference="it has quantized weights") for each in without
    )

    assert "The fixed limit decides, because it has quantized weights" in refused.reason
    assert passed.passes
    assert passed.fixed == "it has quantized weights"
    assert passed.rmse_ratio is passed.max_ratio is None


def test_a_reference_that_eager_is_far_from_is_not_believed():
    """Otherwise eager's distance would let any compiled code pass."""
    given = results(torch.bfloat16, 0.5, 60.0)
    other = Results(
        eager=given.eager,
        ours=given.ours,
        reference=[given.reference[0].roll(1)],  # type: ignore[index]
    )
    verdict = judge([other], torch.bfloat16)

    assert "eager and compiled code are too far" in verdict.fixed
    assert "The fixed limit decides" in verdict.reason


class Chooser(nn.Module):
    """Returns logits, and what it decides from them."""

    def __init__(self, decide: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part = nn.Linear(32, 64)
        self.decide = decide

    def forward(self, x: torch.Tensor) -> Any:
        return self.decide(self.part(x))


def compare_choosers(
    decide: Any,
    ours: Any,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 64,
    *,
    rounds: bool = False,
) -> Comparison:
    """Compare `decide` with `ours`, on the logits of one layer.

    With `rounds`, the logits of `ours` are rounded in another way than eager's.
    """
    model = Chooser(decide).to(dtype)
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(1)).to(dtype)

    def run(callee: Chooser, x: torch.Tensor) -> Any:
        if not rounds:
            return ours(callee.part(x))
        exact = callee.part.double()(x.double())
        callee.part.to(dtype)
        noise = torch.rand(exact.shape, generator=torch.Generator().manual_seed(2)) - 0.5
        return ours((exact + 0.2 * spacing(exact, dtype) * noise).to(dtype))

    with torch.no_grad():
        return compare(model, lambda callee, x: callee(x), run, [x])


@pytest.mark.parametrize(
    "decide",
    [
        pytest.param(lambda x: x.argmax(-1), id="argmax"),
        pytest.param(lambda x: x.max(-1).indices, id="max"),
        pytest.param(lambda x: x.topk(3).indices, id="topk"),
        pytest.param(lambda x: x.argsort(dim=0), id="argsort"),
        pytest.param(lambda x: x > 0.1, id="comparison"),
    ],
)
def test_near_ties_may_be_decided_in_another_way(decide: Any):
    found = compare_choosers(decide, decide, rows=4096, rounds=True)
    assert found.verdict.passes
    assert found.verdict.near_ties > 0


ROUNDED = {
    "pixels": lambda x: (x.sigmoid() * 255).round().to(torch.uint8),
    "shifted": lambda x: x.argmax(-1) + 1,
    "looked up": lambda x: torch.arange(100, 164)[x.argmax(-1)],
    "two bounds": lambda x: (x > 0.1) & (x < 0.3),
    "counted": lambda x: (x > 0.1).sum(-1),
    "median": lambda x: x.kthvalue(5, -1).indices,
    "buckets": lambda x: torch.bucketize(x, torch.linspace(-1, 1, 40).to(x.dtype)),
}


def one_candidate_twice(x: torch.Tensor) -> torch.Tensor:
    out = x.topk(3).indices
    out[:, 1] = out[:, 0]
    return out


def one_wrong_pixel(x: torch.Tensor) -> torch.Tensor:
    out = ROUNDED["pixels"](x)
    out[3, 3] = 255 - out[3, 3]
    return out


NO_NEAR_TIE = "not almost equal in full precision"
OTHER_DECISIONS: dict[str, tuple[Any, Any, str]] = {
    "argmax": (lambda x: x.argmax(-1), lambda x: (-x).argmax(-1), NO_NEAR_TIE),
    "topk": (lambda x: x.topk(3).indices, lambda x: (-x).topk(3).indices, NO_NEAR_TIE),
    "comparison": (lambda x: x > 0.1, lambda x: -x > 0.1, NO_NEAR_TIE),
    # The spacing of bfloat16 near 100 is 0.5; the error of rounding is at most half of it.
    "a candidate far below the best": (
        lambda x: (x + 100).argmax(-1),
        lambda x: (x + 100).float().argsort(-1)[:, 0],
        NO_NEAR_TIE,
    ),
    "one candidate twice": (lambda x: x.topk(3).indices, one_candidate_twice, NO_NEAR_TIE),
    "integers that no operator decided": (
        lambda x: torch.arange(x.shape[0]),
        lambda x: torch.arange(x.shape[0]) + 1,
        r"torch\.int64 values differ",
    ),
    "one wrong pixel": (ROUNDED["pixels"], one_wrong_pixel, "values differ"),
}


@pytest.mark.parametrize("name", OTHER_DECISIONS)
def test_another_decision_than_eagers_is_refused(name: str):
    """If its values are not almost equal in full precision; other integers have no near-ties."""
    decide, ours, says = OTHER_DECISIONS[name]
    with pytest.raises(NoEntry, match=says):
        compare_choosers(decide, ours)


class Experts(nn.Module):
    """Sends each row to one of two experts, whose scores are almost equal for the first row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.experts = nn.Linear(32, 2), nn.ModuleList(nn.Linear(32, 32) for _ in "ab")

    def route(self, x: torch.Tensor, flip: int | None = None) -> torch.Tensor:
        chosen = self.router(x).topk(1).indices
        if flip is not None:
            chosen = chosen.clone()
            chosen[flip] = 1 - chosen[flip]
        out = torch.stack([expert(x) for expert in self.experts], 1)
        return out.take_along_dim(chosen[..., None], 1).squeeze(1)


@pytest.mark.parametrize("damage", [1.0, 1.1], ids=["right", "damaged"])
def test_another_expert_in_a_near_tie_does_not_refuse_right_code(damage: float):
    """Code is judged with more inputs, and damage shows in each of them."""
    model = Experts().to(torch.bfloat16)
    x = torch.randn(256, 32, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.no_grad():
        scores = model.router(x).float()
    closest = int((scores[:, 0] - scores[:, 1]).abs().argmin())

    def ours(callee: Experts, given: torch.Tensor) -> torch.Tensor:
        return callee.route(given, closest if torch.equal(given, x) else None) * damage

    with torch.no_grad():
        found = compare(model, lambda callee, x: callee.route(x), ours, [x])

    assert found.verdict.passes is (damage == 1.0)
    assert found.inputs == 5


def test_damage_for_an_input_without_near_ties_is_refused():
    """The near-ties of other inputs do not explain it."""
    model = Experts().to(torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):  # until no row of `x` has scores that are almost equal
        x = torch.randn(4, 32, generator=generator).to(torch.bfloat16)
        with torch.no_grad():
            scores = model.router(x).float()
        if (scores[:, 0] - scores[:, 1]).abs().min() > 0.3:
            break

    def ours(callee: Experts, given: torch.Tensor) -> torch.Tensor:
        return callee.route(given, 0 if torch.equal(given, x) else None)

    with torch.no_grad():
        found = compare(model, lambda callee, x: callee.route(x), ours, [x])

    assert found.inputs > 5
    assert not found.verdict.passes


def test_large_results_are_compared_piece_by_piece():
    """The logits of a decoder may have billions of numbers, which a replica cannot hold twice."""
    largest: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype is torch.float64:
                largest.append(out.untyped_storage().nbytes() // 8)
            return out

    given = results(torch.bfloat16, 0.5, 0.5, numbers=3 * PIECE + 1)
    given = dataclasses.replace(given, reference=[each.float() for each in given.reference or ()])
    whole = judge([given], torch.bfloat16)
    with Sizes():
        verdict = judge([given], torch.bfloat16)

    assert verdict.passes
    assert verdict.numbers == 3 * PIECE + 1
    assert verdict.rmse_ratio == whole.rmse_ratio
    assert max(largest) <= PIECE


def test_small_results_are_compared_with_several_inputs():
    """Until the numbers suffice, or the time is up."""

    def total(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().mean(0)

    found = compare_choosers(total, total, rounds=True)

    assert found.verdict.passes
    assert found.inputs > 1
    assert found.verdict.numbers == 64 * found.inputs


def test_a_call_that_fails_in_full_precision_falls_back_to_the_fixed_limit():
    def changes_its_shape(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze_(0) / 3

    found = compare(None, changes_its_shape, changes_its_shape, [torch.ones(4).bfloat16()])

    assert found.verdict.passes
    assert "changes the shape of a tensor" in found.verdict.fixed
    assert found.verdict.rmse_ratio is None


def test_float64_keeps_the_fixed_limit():
    """No dtype is more precise, so there is no reference."""
    x = torch.linspace(1, 2, 5000, dtype=torch.float64)
    found = compare(None, lambda _, x: x / 3, lambda _, x: x / 3 * (1 + 1e-8), [x])
    assert "float64" in found.verdict.fixed
    assert "1.0e-08" in found.verdict.reason


def test_varied_inputs_stay_in_their_range():
    """Token ids stay valid, and positions, masks and shared memory stay the same."""
    ids, positions = torch.tensor([[7, 3, 9, 4]]), torch.arange(4)[None]
    mask = torch.tensor([[0.0, 0.0, -3.4e38, -3.4e38]])
    values = torch.tensor([1.0, -2.0, 0.0, 5.0])
    shared = torch.rand(4)
    given = [ids, positions, mask, values, mask > -1, shared, shared[1:]]
    varied = vary_tensors(given, seed=3)

    assert sorted(varied[0].flatten().tolist()) == [3, 4, 7, 9]
    assert all(new is old for new, old in zip(varied[1:3], given[1:3], strict=True))
    assert all(new is old for new, old in zip(varied[4:], given[4:], strict=True))
    assert not torch.equal(varied[3], values)
    assert bool((varied[3].abs() <= values.abs()).all())
    assert varied[3][2] == 0


def test_inputs_that_eager_rejects_are_left_out():
    def strict(_: Any, x: torch.Tensor) -> torch.Tensor:
        if x[0] != 1:
            raise ValueError("expected one")
        return x / 3

    found = compare(None, strict, strict, [torch.ones(3).to(torch.bfloat16) * 1.0])

    assert found.inputs == 1


def test_operators_without_full_precision_are_part_of_the_verdict():
    """A build names them, because the reference is no better than eager there."""
    x = torch.full((4,), 0.1, dtype=torch.bfloat16)

    def reads_bits(_: Any, given: torch.Tensor) -> torch.Tensor:
        return (given / 3).view(torch.int16).view(torch.bfloat16)

    found = compare(None, reads_bits, reads_bits, [x]).verdict

    assert found.eager_operators == ("aten::view",)
    assert Distance(eager_operators=found.eager_operators).to_json() == {
        "eager_operators": ("aten::view",)
    }


FAR = {"lowest": torch.finfo(torch.float32).min, "a constant": -1e4}


@pytest.mark.parametrize("mask", FAR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_one_size_of_numbers_does_not_hide_the_errors_of_another(dtype: torch.dtype, mask: str):
    """Masked logits are as large as a dtype allows; the other logits count all the same."""
    given = results(dtype, 0.5, 0.5, numbers=10_000)
    for tensor in (*given.eager, *given.ours, *(given.reference or ())):
        tensor[5_000:] = max(FAR[mask], torch.finfo(dtype).min)
    wrong = dataclasses.replace(given, ours=[given.ours[0].clone()])
    wrong.ours[0][:5_000] = 0
    assert judge([given], dtype).passes
    assert not judge([wrong], dtype).passes


@half
def test_scores_beside_pixels_are_judged_on_their_own(dtype: torch.dtype):
    """As a detection head returns them: boxes of up to 640 pixels, and scores of at most 1."""
    scores, boxes = (results(dtype, 0.5, 0.5, numbers=2_000, seed=seed) for seed in (1, 2))
    parts = [
        [
            torch.cat([one[0].double().sigmoid().to(one[0].dtype), 640 * two[0]])
            for one, two in ((getattr(scores, name), getattr(boxes, name)),)
        ]
        for name in ("eager", "ours", "reference")
    ]
    right = Results(eager=parts[0], ours=parts[1], reference=parts[2])
    wrong = dataclasses.replace(right, ours=[right.ours[0].clone()])
    wrong.ours[0][100:200] += 0.05

    assert judge([right], dtype).passes
    assert not judge([wrong], dtype).passes


def test_what_all_runs_agree_on_does_not_dilute_the_rest():
    """A new row of a cache is judged as if the old rows were not there."""
    new = results(torch.bfloat16, 0.5, 0.5, numbers=1_000)
    wrong = dataclasses.replace(new, ours=[new.eager[0] * 1.02])
    old = torch.randn(500_000, generator=torch.Generator().manual_seed(3)).bfloat16()

    def grow(given: Results) -> Results:
        cached = [
            [torch.cat([each[0], old.to(each[0].dtype)])]
            for each in (given.eager, given.ours, given.reference or ())
        ]
        return Results(eager=cached[0], ours=cached[1], reference=cached[2])

    assert judge([grow(new)], torch.bfloat16).passes
    assert not judge([grow(wrong)], torch.bfloat16).passes


def test_a_bfloat16_branch_of_a_float32_sum_is_judged_by_its_own_rounding():
    """The spacing of the sum in bfloat16 is larger than the error of the branch."""
    generator = torch.Generator().manual_seed(0)
    base, branch = torch.randn(2, 20_000, generator=generator)
    exact = base + 0.2 * branch
    eager, ours, wrong = (
        base + 0.2 * (branch * (1 + 2**-9 * torch.randn(20_000, generator=generator))) * factor
        for factor in (1.0, 1.0, 1.05)
    )

    assert passes(exact, eager, ours)
    assert not passes(exact, eager, wrong)


def test_float64_results_of_a_float32_call_are_compared_as_float64():
    exact = torch.linspace(1, 2, 5_000, dtype=torch.float64)
    found = [
        passes(exact, exact, ours, torch.float32)
        for ours in (exact * (1 + 1e-15), exact.float().double(), exact + 5e-5)
    ]
    assert found == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_ids_that_are_floats_must_be_equal(dtype: torch.dtype):
    exact = torch.arange(40_000, 50_000).float()
    assert not passes(exact, exact, exact + 1, dtype)


def test_code_that_is_closer_to_full_precision_than_eager_passes():
    """Also if eager has hardly one right digit, as in `(x + 1000) - 1000` in bfloat16."""
    exact = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    eager = ((exact.bfloat16() + 1000) - 1000).bfloat16()
    given = Results(eager=[eager], ours=[exact.bfloat16()], reference=[exact])
    verdict = judge([given], torch.bfloat16)
    assert verdict.passes
    assert not verdict.fixed


def test_a_refusal_names_the_tensor():
    exact = torch.randn(5_000, generator=torch.Generator().manual_seed(0))
    right = exact.bfloat16()
    parts = {"eager": [right, right], "ours": [right, right * 2], "reference": [exact, exact]}
    given = Results(**parts, names=["output 1 of 2", "output 2 of 2"])
    assert judge([given], torch.bfloat16).reason.startswith("output 2 of 2: its RMSE")


@pytest.mark.parametrize("name", ROUNDED)
def test_integers_may_differ_from_full_precision_as_often_as_eagers(name: str):
    """No single operator decides about them."""
    decide = ROUNDED[name]
    assert compare_choosers(decide, decide, rows=2048, rounds=True).verdict.passes
    with pytest.raises(NoEntry, match="values differ"):
        compare_choosers(decide, lambda x: decide(x.flip(0)), rows=512)


def test_the_decision_that_is_returned_does_not_excuse_other_results():
    """A near-tie of the returned argmax is no reason for other logits."""

    def decide(x: torch.Tensor) -> Any:
        return x, x.argmax(-1)

    def wrong(x: torch.Tensor) -> Any:
        out = x.clone()
        out[-1] *= 1.03
        return out, x.argmax(-1)

    assert compare_choosers(decide, decide, rows=256).verdict.passes
    assert not compare_choosers(decide, wrong, rows=256).verdict.passes


def test_inference_tensors_and_conjugates_are_compared():
    """Outside inference mode, an inference tensor cannot be written into."""
    with torch.inference_mode():
        x = torch.randn(2, 16)
    with torch.no_grad():
        found = compare(None, lambda _, x: x.exp(), lambda _, x: x.exp(), [x])
        other = compare(
            None,
            lambda _, x: torch.fft.rfft(x).conj(),
            lambda _, x: torch.fft.rfft(x).conj().resolve_conj(),
            [torch.randn(4, 16)],
        )

    assert found.verdict.passes
    assert other.verdict.passes


def with_strays(others: float, tiny: float) -> Results:
    """Return numbers near 1, one of them as small as 1e-7, and 1,024 that are exact and as small.

    `others` is the error of compiled code in the one, and `tiny` in the 1,024, in units of eager's
    largest ones.
    """
    generator = torch.Generator().manual_seed(0)
    near_1 = torch.randn(MANY, generator=generator, dtype=torch.float64)
    small = 1e-7 * (1 + torch.rand(1025, generator=generator, dtype=torch.float64) / 2)
    exact = torch.cat([near_1[near_1.abs() > 1e-3], small])
    is_tiny = torch.arange(len(exact)) >= len(exact) - 1024
    unit = torch.where(is_tiny, spacing(exact, torch.float32), torch.tensor(1.2e-7).double())
    noise = torch.randn(len(exact), generator=generator, dtype=torch.float64).clamp(-2, 2)
    other = noise.flip(0) * torch.where(is_tiny, tiny, 1.0)
    stray = torch.arange(len(exact)) == len(exact) - 1025
    noise[stray], other[stray] = 0.1, others
    eager, ours = ((exact + unit * each).float() for each in (noise, other))
    return Results(eager=[eager], ours=[ours], reference=[exact])


def test_one_number_that_crosses_0_does_not_decide_about_exact_ones_of_its_size():
    """The last layer norm of all-MiniLM-L6-v2 has weights of 1e-9, so one output is 1e-7."""
    assert judge([with_strays(1.5, 1.0)], torch.float32).passes
    assert not judge([with_strays(200.0, 1.0)], torch.float32).passes
    assert not judge([with_strays(1.5, 3e4)], torch.float32).passes
    few = with_strays(1.5, 1.0)
    few.ours[0][-40:] += 1e-4
    assert not judge([few], torch.float32).passes
