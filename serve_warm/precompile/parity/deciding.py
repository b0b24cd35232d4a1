# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Operators that decide about integers and bools, such as argmax, and their near-ties.

An argmax over two almost equal values depends on rounding, so right code may return another index
than eager. Such a difference is accepted if the values of both candidates are closer in full
precision than the rounding of eager.

For many integers and bools, no single operator decides, for example for rounded pixels or a count.
They are accepted if compiled code differs from full precision about as often as eager does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from serve_warm._records import record
from serve_warm.precompile.calls.copies import Different
from serve_warm.precompile.facts.tensor_parts import OperatorMode
from serve_warm.precompile.parity.eager import spacing
from serve_warm.private_apis.torch_c import Operator, schema_of

MULTIPLE = 6.0
"""Largest distance of two candidates in a near-tie, in units of eager's RMSE there. Two candidates
change places if the sum of four roundings exceeds their distance; three standard deviations of
this sum are six roundings."""

ROUNDING = 0.35
"""Smallest RMSE that is assumed, in units of the spacing. Two candidates change places if they are
at most two spacings apart, because each of four roundings is off by at most half a spacing."""

SCATTER = 4.0
"""How much more often than eager right code may differ from full precision, in units of the square
root of eager's count."""

MOST_BYTES = 1 << 28
"""Largest size of the values that are kept for one run."""

INDICES = {
    "argmax": None,
    "argmin": None,
    "argsort": -1,
    "sort": -1,
    "topk": -1,
    "max": 0,
    "min": 0,
}
"""Operators that return indices, and the dimension that they look at by default."""

COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])


@record(frozen=True, kw_only=True)
class Choice:
    """One decision of a run: its operator, values and result."""

    name: str
    values: torch.Tensor
    other: Any
    """The right side of a comparison."""
    dim: int | None
    """The dimension of an index; None if it counts in the flat tensor."""
    result: torch.Tensor


Choices = Sequence[Choice]


class RecordChoices(OperatorMode):  # type: ignore[no-untyped-call]
    """Records the decisions of a run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []
        self._bytes = 0

    def run(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run an operator, and record its decisions."""
        out = func(*args, **kwargs)
        if getattr(func, "namespace", "") == "aten":
            self._note(schema_of(func), args, kwargs, out)
        return out

    def _note(
        self,
        schema: torch.FunctionSchema,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        out: object,
    ) -> None:
        name = schema.name.removeprefix("aten::")
        if name not in INDICES and name not in COMPARISONS:
            return
        given = {each.name: each.default_value for each in schema.arguments}
        given.update(zip((each.name for each in schema.arguments), args, strict=False))
        given.update(kwargs)
        values: object = given.get("self")
        other = given.get("other")
        result: object = out[1] if isinstance(out, (tuple, list)) and len(out) > 1 else out
        if type(values) is not torch.Tensor or type(result) is not torch.Tensor:
            return
        if not values.is_floating_point() or result.is_floating_point():
            return
        self._bytes += values.nbytes + result.nbytes
        if self._bytes <= MOST_BYTES:
            if isinstance(other, torch.Tensor):
                other = other.detach().clone()
            self.choices.append(
                Choice(
                    name=name,
                    values=values.detach().clone(),
                    other=other,
                    dim=given.get("dim", INDICES.get(name)),
                    result=result.detach().clone(),
                )
            )


def count_near_ties(
    eager: torch.Tensor,
    ours: torch.Tensor,
    reference: torch.Tensor | None,
    eager_choices: Choices,
    reference_choices: Choices,
) -> int:
    """Return how many integers or bools differ because of a near-tie.

    Raises:
        Different: a difference has another cause.
    """
    differs = eager != ours
    count = int(differs.sum())
    if not count:
        return 0
    if reference is not None and reference.shape != eager.shape:
        reference = None
    if reference is not None:
        differs = differs & (ours != reference)  # eager rounded to the wrong side
    for mine, exact in zip(eager_choices, reference_choices, strict=False):
        if not bool(differs.any()):
            break
        is_source = mine.result.numel() == eager.numel() and torch.equal(
            mine.result.reshape(-1).to(eager.dtype), eager.reshape(-1)
        )
        if is_source and mine.name == exact.name and mine.values.shape == exact.values.shape:
            close = _find_close(mine, exact, ours.reshape(mine.result.shape))
            differs = differs & ~close.reshape(differs.shape)
            # What an operator decided was not decided elsewhere.
            reference = None
    if bool(differs.any()) and (
        reference is None or not _is_as_often_wrong(eager, ours, reference)
    ):
        raise Different(
            f"{int(differs.sum())} of its {eager.numel()} {eager.dtype} values differ from the "
            "eager result, and the values that decide are not almost equal in full precision"
        )
    return count


def _is_as_often_wrong(eager: torch.Tensor, ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether compiled code differs from full precision no more often than eager does."""
    of_eager, of_ours = eager != reference, ours != reference
    expected = int(of_eager.sum())
    if not expected or int(of_ours.sum()) > expected + SCATTER * math.sqrt(expected):
        return False
    if eager.dtype is torch.bool:
        return True
    most, found = (int((each.long() - reference.long()).abs().max()) for each in (eager, ours))
    # If eager is wrong by one everywhere, the numbers are rounded, and are no ids.
    return most > 1 or found <= 2


def count_close_choices(eager: Choices, exact: Choices, outputs: Sequence[torch.Tensor]) -> int:
    """Return how many decisions about the largest or smallest values are near-ties in eager.

    A router of experts decides so: another expert changes results by more than rounding does. A
    decision that is itself one of `outputs` affects no other result.
    """
    count = 0
    for mine, other in zip(eager, exact, strict=False):
        if any(torch.equal(mine.result, out) for out in outputs):
            continue
        if mine.name not in ("topk", "argmax", "argmin", "max", "min"):
            continue
        if mine.name != other.name or mine.values.shape != other.values.shape:
            continue
        values = other.values.double()
        dim = -1 if mine.dim is None else mine.dim
        values = values.reshape(-1) if mine.dim is None else values.movedim(dim, -1)
        is_reduced = mine.dim is None or mine.result.dim() < mine.values.dim()
        kept = 1 if is_reduced else mine.result.shape[dim]
        if kept >= values.shape[-1]:
            continue
        ranked = values.sort(-1, descending=mine.name not in ("argmin", "min")).values
        margin = (ranked[..., kept - 1] - ranked[..., kept]).abs()
        error = _error_of(ranked[..., kept].abs(), mine.values, other.values)
        count += int((margin <= MULTIPLE * error).sum())
    return count


def _find_close(mine: Choice, exact: Choice, ours: torch.Tensor) -> torch.Tensor:
    """Return where the values of both candidates are almost equal in full precision."""
    low = mine.values.dtype
    if mine.name in COMPARISONS:
        values = exact.values.double()
        other = exact.other.double() if isinstance(exact.other, torch.Tensor) else exact.other
        error = _rmse(mine.values, exact.values)
        if isinstance(other, torch.Tensor) and isinstance(mine.other, torch.Tensor):
            error = math.hypot(error, _rmse(mine.other, other))
        unit = ROUNDING * spacing(values, low)
        return (values - other).abs() <= MULTIPLE * unit.clamp(min=error)
    values, before, after = exact.values.double(), mine.result.long(), ours.long()
    if mine.dim is None:
        values, before, after, dim = values.reshape(-1), before.reshape(-1), after.reshape(-1), 0
    else:
        dim = mine.dim
        if before.dim() < values.dim():
            before, after = before.unsqueeze(dim), after.unsqueeze(dim)
    size = values.shape[dim] if values.dim() else 1
    is_index = (after >= 0) & (after < size)
    one, two = (values.gather(dim, each) for each in (before, after.clamp(min=0, max=size - 1)))
    close = (one - two).abs() <= MULTIPLE * _error_of(
        torch.maximum(one.abs(), two.abs()), mine.values, exact.values
    )
    if after.shape[dim] > 1:  # each candidate has only one place
        ranked = after.sort(dim).values
        same = (ranked.diff(dim=dim) == 0).any(dim, keepdim=True)
        close = close & ~same
    return close & is_index


def _error_of(sizes: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return eager's RMSE for candidates of some sizes.

    Errors grow with the values, so the values that are as large as the candidates count.
    """
    unit = ROUNDING * spacing(sizes, values.dtype)
    if not sizes.numel():
        return unit
    large = exact.abs() >= float(sizes.min()) / 2
    return unit.clamp(min=max(_rmse(values[large], exact[large]), _rmse(values, exact)))


def _rmse(values: torch.Tensor, exact: torch.Tensor) -> float:
    error = values.double() - exact.double()
    error = error[torch.isfinite(error)]
    return float(error.square().mean().sqrt()) if error.numel() else 0.0
