# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The distance of compiled results from full precision, compared with the distance of eager's.

Compiled code and eager execution round in different places, so neither is exact. How much eager
rounds depends on the model: in bfloat16 its largest error was 6e-3 to 5e-2 of the largest value.
A fixed limit therefore refuses right code for some models and passes damaged code for others.
Right code is about as far from a full-precision run as eager itself is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from serve_warm._records import record
from serve_warm.precompile.parity.deciding import Choices, count_near_ties
from serve_warm.precompile.parity.eager import (
    NEVER_REFUSED,
    check_same_kind,
    find_difference,
    pieces,
    spacing,
    tolerance,
)

RMSE_LIMIT = 1.3
MAX_LIMIT = 2.0
"""Limits of the two ratios, for many numbers. Measured with torch 2.13 on a CPU
(tests/benchmarks/yardstick.py): right code of 23 models had at most 1.01 and 1.29 in half
precision, and 1.16 and 1.40 in float32. The smallest damage of a matrix, mask, eps or layer that
must be refused had an RMSE of 1.51, and the smallest local damage a largest error of 4.4."""

SPREAD = 5.0
"""How much the limits grow for few numbers. The ratio of two noises of n numbers has a logarithm
with a standard deviation of about 1 / sqrt(n), so this is the number of standard deviations."""

MOST_WIDTH = 4.0
"""How much the limits grow at most for results that differ from eager by more than the fixed
limit."""

ENOUGH = 4096
"""Count of numbers from which more inputs do not make the ratios more certain."""

OCTAVES = 4
"""Numbers of a tensor are judged together if their sizes differ by at most this many powers of two.
Otherwise one large number, such as that of a mask, would hide the errors of all others."""

FEWEST = 64
"""Numbers of one size that are judged apart; fewer are judged with the next larger ones."""

STRAY, FARTHEST = 2, 7
"""A number is a stray if it is wrong by at least this many sizes above its spacing. It is a small
difference of large numbers, and rounds like them. A few strays among exact numbers of their size
would decide the RMSE alone, so fewer than `FEWEST` of one size are judged with the numbers for
which their errors are a spacing, at most `FARTHEST` sizes above."""

RMSE_FLOOR = 0.5
MAX_FLOOR = 1.0
"""Errors of eager that count at least, in units of the spacing of a dtype. Rounding the exact
result to the nearest value gives 0.29 and 0.5."""

OWN_SPACING = 256
"""Count of numbers from which the spacing is that of the tensor's own dtype. Of fewer numbers,
eager may have hit all exactly by chance, so the unit is the lowest precision in the call."""

CREDIBLE = {torch.bfloat16: 0.5, torch.float16: 0.25, torch.float32: 2e-2}
"""Largest RMSE that is taken for rounding, relative to the RMS of the values. If eager and compiled
code are both farther from the full-precision run, this run computed something else."""

NOT_CREDIBLE = (
    "eager and compiled code are too far from the full-precision run, which may compute something "
    "else"
)

FIXED = "The fixed limit decides, because {}"


@record(frozen=True, kw_only=True)
class Results:
    """The tensors of one call from three runs: outputs, and inputs and buffers after the call."""

    eager: Sequence[torch.Tensor]
    ours: Sequence[torch.Tensor]
    """The tensors of compiled code."""
    reference: Sequence[torch.Tensor] | None
    """The tensors of the full-precision run; None if the call has no such run."""
    names: Sequence[str] = ()
    """What each tensor is, for the text of a refusal."""
    eager_choices: Choices = ()
    reference_choices: Choices = ()
    """The inputs of operators that decide about integer and bool results."""


@record(frozen=True, kw_only=True)
class Judgement:
    """Whether compiled results are as good as eager's, and the numbers that decide."""

    reason: str
    """Why the results are refused: which tensor and number, and what it means. Empty if they
    pass."""
    rmse_ratio: float | None
    """RMSE of compiled results from full precision, divided by the RMSE of eager's. This
    is the ratio of the numbers that come closest to their limit; None without a reference."""
    max_ratio: float | None
    """The same for the largest error."""
    whole_ratio: float | None
    """The largest RMSE ratio of all numbers of a tensor, whatever their sizes; for measurements."""
    rmse_limit: float
    max_limit: float
    """The limits of these two ratios."""
    difference: float
    """Largest difference from eager, relative to the largest value."""
    differences: Sequence[float]
    """The same for each tensor; 0 for integers and bools."""
    numbers: int
    """Count of the numbers of the smallest tensor that was compared, over all calls."""
    near_ties: int
    """Count of integers and bools that differ from eager because two candidates were almost equal
    in full precision."""
    fixed: str
    """Why the fixed limit decided, or an empty string if the ratios decided."""
    eager_operators: Sequence[str] = ()
    """Operators without full precision. They ran in their eager dtypes in the reference."""

    @property
    def passes(self) -> bool:
        """Whether the results are as good as eager's."""
        return not self.reason


def judge(
    calls: Sequence[Results],
    dtype: torch.dtype,
    *,
    no_reference: str = "",
    most_width: float = MOST_WIDTH,
) -> Judgement:
    """Return whether compiled results are as close to full precision as eager's are.

    `calls` has the results of one call with several inputs, which are judged together. `dtype` is
    the dtype with the lowest precision in the call. `no_reference` says why there is no
    full-precision run, if there is none. `most_width` is how much the limits grow at most for few
    numbers that differ from eager by more than the fixed limit.

    Raises:
        Different: the results differ in shape, dtype, integers, or where NaN and infinity are.
    """
    worst = _Worst(dtype, no_reference, most_width)
    for place, first in enumerate(calls[0].eager):
        parts = [
            (call.eager[place], call.ours[place], call.reference[place] if call.reference else None)
            for call in calls
        ]
        for eager, ours, _ in parts:
            check_same_kind(eager, ours)
        name = calls[0].names[place] if calls[0].names else f"tensor {place}"
        if first.is_floating_point() or first.is_complex():
            worst.add(name, parts)
            continue
        for call, tensors in zip(calls, parts, strict=True):
            worst.near_ties += count_near_ties(*tensors, call.eager_choices, call.reference_choices)
        worst.differences.append(0.0)
    return worst.verdict()


def is_exact(eager: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether eager's tensor has no rounding, such as a buffer that is only read."""
    if not eager.is_floating_point() and not eager.is_complex():
        return True
    return all(
        torch.equal(left.nan_to_num(), right.nan_to_num())
        for left, right in pieces(eager, reference)
    )


@record(frozen=True, kw_only=True)
class Ratios:
    """The distances of the numbers of one tensor that have about the same size, over all calls."""

    rmse_ratio: float
    max_ratio: float
    numbers: int
    difference: float
    """Largest difference from eager, relative to the largest value of this and the next size."""

    @property
    def width(self) -> float:
        """How much wider than for many numbers the limits are.

        >>> few, many = (
        ...     Ratios(rmse_ratio=1.0, max_ratio=1.0, numbers=numbers, difference=0.0)
        ...     for numbers in (10, 4096)
        ... )
        >>> round(few.width, 2), round(many.width, 2)
        (4.86, 1.08)
        """
        return math.exp(SPREAD / math.sqrt(self.numbers))


class _Sizes:
    """Sums and maxima of the errors of one tensor, for each size of its exact values."""

    SUMS = ("numbers", "rounded", "eager", "ours", "spacing", "value")
    MAXIMA = ("eager", "ours", "spacing", "value", "gap")
    ZERO = 1100 // OCTAVES
    """Added to each size, because the exponents of float64 begin at -1074."""

    def __init__(self) -> None:
        # The second index says how many sizes above the spacing of a number its error is.
        count = (2 * self.ZERO, FARTHEST + 1)
        self._sums = {name: torch.zeros(count, dtype=torch.float64) for name in self.SUMS}
        self._maxima = {name: torch.zeros(count, dtype=torch.float64) for name in self.MAXIMA}

    def add(
        self, left: torch.Tensor, right: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """Add finite numbers of the eager run, of compiled code and of full precision."""
        _, exponent = torch.frexp(exact)
        size = torch.div(exponent, OCTAVES, rounding_mode="floor").long() + self.ZERO
        size = torch.where(exact == 0, 0, size)
        values = {
            "numbers": torch.ones_like(left),
            "rounded": ((left != exact) | (exact != exact.round())).double(),
            "eager": (left - exact).abs(),
            "ours": (right - exact).abs(),
            "spacing": spacing(left, dtype),
            "value": exact.abs(),
            "gap": (left - right).abs(),
        }
        spacings = torch.maximum(values["eager"], values["ours"]) / values["spacing"]
        above = torch.div(torch.log2(spacings), OCTAVES, rounding_mode="floor")
        above = above.nan_to_num(nan=FARTHEST).clamp(0, FARTHEST).long()
        place = size * (FARTHEST + 1) + above
        for name, total in self._sums.items():
            squares = values[name].square()
            summed = torch.bincount(place, squares, minlength=total.numel())
            total.add_(summed.cpu().view_as(total))
        for name, most in self._maxima.items():
            found = torch.zeros(most.numel(), dtype=torch.float64, device=place.device)
            found.scatter_reduce_(0, place, values[name], "amax")
            torch.maximum(most, found.cpu().view_as(most), out=most)

    def _by_size(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the sums and maxima for each size, with a few strays among larger numbers."""
        count = self._sums["numbers"]
        few = (count[:, STRAY:].sum(1) < FEWEST) & (count[:, :STRAY].sum(1) >= FEWEST)
        places = torch.arange(len(count))[:, None].expand_as(count)
        above = torch.arange(FARTHEST + 1)
        moves = few[:, None] & (above >= STRAY)
        places = (places + torch.where(moves, above, 0)).clamp(max=len(count) - 1).flatten()
        sums, maxima = (
            {
                name: torch.zeros(len(count), dtype=torch.float64).scatter_reduce_(
                    0, places, values.flatten(), reduction
                )
                for name, values in found.items()
            }
            for found, reduction in ((self._sums, "sum"), (self._maxima, "amax"))
        )
        return sums, maxima

    @property
    def is_empty(self) -> bool:
        """Whether there are no numbers."""
        return not bool(self._sums["numbers"].any())

    @property
    def are_whole(self) -> bool:
        """Whether eager computed whole numbers without rounding, such as ids or positions."""
        return not bool(self._sums["rounded"].any())

    def rms(self, name: str) -> float:
        """Return the root mean square of a value over all sizes."""
        numbers = float(self._sums["numbers"].sum())
        return math.sqrt(float(self._sums[name].sum()) / max(1.0, numbers))

    def ratios(self, coarser: float) -> list[Ratios]:
        """Return the ratios for each size.

        `coarser` is the spacing of the lowest precision in the call, in units of the tensor's own.
        """
        found = []
        all_sums, all_maxima = self._by_size()
        sums = dict.fromkeys(self.SUMS, 0.0)
        maxima = dict.fromkeys(self.MAXIMA, 0.0)
        sizes = all_sums["numbers"].nonzero().flatten().tolist()
        for place, size in enumerate(sizes):
            for name in self.SUMS:
                sums[name] += float(all_sums[name][size])
            for name in self.MAXIMA:
                maxima[name] = max(maxima[name], float(all_maxima[name][size]))
            if sums["numbers"] < FEWEST and place + 1 < len(sizes):
                continue
            next_values = all_maxima["value"][size : size + 2].tolist()
            found.append(_ratios(sums, maxima, max(next_values), coarser))
            sums = dict.fromkeys(self.SUMS, 0.0)
            maxima = dict.fromkeys(self.MAXIMA, 0.0)
        return found


def _ratios(
    sums: Mapping[str, float], maxima: Mapping[str, float], largest: float, coarser: float
) -> Ratios:
    numbers = int(sums["numbers"])
    unit = 1.0 if numbers >= OWN_SPACING else coarser
    rms = {name: math.sqrt(total / numbers) for name, total in sums.items()}
    return Ratios(
        rmse_ratio=rms["ours"] / max(rms["eager"], RMSE_FLOOR * unit * rms["spacing"]),
        max_ratio=maxima["ours"] / max(maxima["eager"], MAX_FLOOR * unit * maxima["spacing"]),
        numbers=numbers,
        difference=maxima["gap"] / max(maxima["value"], largest, SMALLEST),
    )


SMALLEST = 1e-30
"""Values below this one are as good as 0."""

SENSELESS = 1e9
"""Ratios of errors above this one say only that eager had no error to compare with."""


def _measure(parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> _Sizes:
    """Return the errors of (eager, ours, reference) tensors.

    Numbers that all runs agree on are left out, for example those that the call only copies.
    """
    sizes = _Sizes()
    dtype = parts[0][0].dtype
    for eager, ours, exact in (piece for part in parts for piece in pieces(*part)):
        both = torch.isfinite(eager) & torch.isfinite(exact)
        both &= (eager != exact) | (ours != exact)
        if bool(both.any()):
            sizes.add(eager[both], ours[both], exact[both], dtype)
    return sizes


class _Worst:
    """The largest numbers of all tensors so far."""

    def __init__(self, dtype: torch.dtype, no_reference: str, most_width: float) -> None:
        self.near_ties = 0
        self.differences: list[float] = []
        self._dtype, self._fixed, self._most_width = dtype, no_reference, most_width
        self._too_far = ""
        self._numbers: list[int] = []
        self._ratios: list[Ratios] = []
        self._whole: list[float] = []
        self._refusals: list[str] = []

    def add(
        self, name: str, parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    ) -> None:
        """Judge the (eager, ours, reference) tensors of one place in the results."""
        difference, limit = 0.0, tolerance(parts[0][0])
        for eager, ours, _ in parts:
            difference = max(difference, find_difference(eager, ours))
        self.differences.append(difference)
        if difference > limit:
            self._too_far = (
                f"{name} differs from eager by {difference:.1e}, relative to the largest value "
                f"(limit {limit:.0e})"
            )
        exact = [
            (eager, ours, reference) for eager, ours, reference in parts if reference is not None
        ]
        if len(exact) < len(parts):
            return
        sizes = _measure(exact)
        if sizes.is_empty:
            return  # for example a buffer that the call only reads
        self._numbers.append(sum(each[0].numel() for each in parts))
        most = CREDIBLE.get(self._dtype, max(CREDIBLE.values())) * sizes.rms("value")
        if min(sizes.rms("eager"), sizes.rms("ours")) > most and difference > 0:
            self._fixed = self._fixed or NOT_CREDIBLE
        self._whole.append(sizes.rms("ours") / max(sizes.rms("eager"), SMALLEST))
        own = parts[0][0].dtype
        coarser = torch.finfo(self._dtype).eps / torch.finfo(own).eps
        passes = 0.0 if sizes.are_whole else NEVER_REFUSED.get(own, 0.0)
        for ratios in sizes.ratios(max(1.0, coarser)):
            self._ratios.append(ratios)
            if ratios.difference > passes:
                self._judge_ratios(name, ratios, limit)

    def _judge_ratios(self, name: str, ratios: Ratios, limit: float) -> None:
        # Beyond the fixed limit, few numbers are no reason for a limit of any size.
        is_within = ratios.difference <= limit
        width = ratios.width if is_within else min(ratios.width, self._most_width)
        for what, ratio, most in (
            ("RMSE", ratios.rmse_ratio, RMSE_LIMIT * width),
            ("largest error", ratios.max_ratio, MAX_LIMIT * width),
        ):
            if ratio > SENSELESS:
                self._refusals.append(
                    f"{name} differs from eager by {ratios.difference:.1e}, relative to the "
                    "largest value, but eager agrees with a full-precision run"
                )
                return
            if ratio > most:
                self._refusals.append(
                    f"{name}: its {what} against a full-precision run is {ratio:.3g} times eager's "
                    f"(limit {most:.3g}, for {ratios.numbers:,} numbers)"
                )
                return

    def verdict(self) -> Judgement:
        """Return the verdict about all tensors."""
        if self._fixed:
            reason = f"{self._too_far}. {FIXED.format(self._fixed)}" if self._too_far else ""
        else:
            reason = self._refusals[0] if self._refusals else ""
        rmse, most = (
            max(self._ratios, key=lambda each: getattr(each, name) / each.width, default=None)
            for name in ("rmse_ratio", "max_ratio")
        )
        return Judgement(
            reason=reason,
            rmse_ratio=rmse.rmse_ratio if rmse else None,
            max_ratio=most.max_ratio if most else None,
            whole_ratio=max(self._whole, default=None),
            rmse_limit=RMSE_LIMIT * (rmse.width if rmse else 1.0),
            max_limit=MAX_LIMIT * (most.width if most else 1.0),
            difference=max(self.differences, default=0.0),
            differences=tuple(self.differences),
            numbers=min(self._numbers, default=0),
            near_ties=self.near_ties,
            fixed=self._fixed,
        )
