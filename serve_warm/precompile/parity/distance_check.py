# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One comparison of compiled code with eager execution and a full-precision run.

Calls with few results are compared with several inputs, because a ratio of a few roundings says
little.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from serve_warm._records import record
from serve_warm.precompile.calls.copies import Different, copy_tensors
from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.facts.tensor_parts import plain_parts
from serve_warm.precompile.parity.deciding import RecordChoices, count_close_choices
from serve_warm.precompile.parity.distance import ENOUGH, Judgement, Results, is_exact, judge
from serve_warm.precompile.parity.eager import (
    NEVER_REFUSED,
    Outcome,
    StateBefore,
    TooFar,
    advise,
    are_alike,
    check_same_kind,
    check_structure,
    find_difference,
)
from serve_warm.precompile.parity.full_precision import (
    HALF,
    NoFullPrecision,
    Precision,
    choose_precision,
    run_in_full_precision,
)

MOST_INPUTS = 64
"""Largest number of inputs of one comparison."""

MOST_BYTES = 1 << 22
"""Largest size of one call's outputs, inputs and buffers for which further inputs are compared.
The results of all inputs are kept, in up to 1 GiB."""

BUDGET_S = 2.0
"""Seconds after which no further input is added."""


@record(frozen=True, kw_only=True)
class Comparison:
    """The verdict about one call, and how it was reached."""

    verdict: Judgement
    inputs: int
    """How many inputs were compared."""
    unsure: str
    """Why a refusal may concern right code; empty if it does not. The fixed limit decides then."""


CAUSE = (
    "rounding does not explain this, so the compiled code computes something else. Compare eager "
    'with torch.compile(backend="aot_eager") to find out which step of torch.compile is wrong, '
    "and leave the part of the model that differs to eager"
)
"""Advice if nothing else is known."""


def compare_in_build(
    callee: object,
    function: Callable[..., object],
    compiled: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    *,
    cause: str = CAUSE,
) -> Judgement:
    """Compare compiled code with eager execution for one call of a build.

    `cause` is the advice if the code is wrong and nothing else is known.

    Compares outputs, changed inputs and changed module buffers. All runs use copies of the tensors.
    The module and the random number generators of Python and torch are restored.

    Raises:
        Different: the compiled code is wrong, or cannot be compared. Such an entry is never
            published.
    """
    try:
        verdict = compare(callee, function, compiled, tensors).verdict
        if verdict.reason:
            raise TooFar(verdict.reason)
    except Different as wrong:
        kept = StateBefore(callee)
        eager, ours = kept.run(function, tensors), kept.run(compiled, tensors)
        advice = advise(eager, ours, lambda: kept.run(function, tensors))
        if not advice and isinstance(wrong, TooFar):
            advice = cause
        if not advice:
            raise
        raise type(wrong)(f"{wrong}: {advice}") from wrong
    return verdict


def compare(
    callee: object,
    function: Callable[..., object],
    compiled: Callable[..., object],
    tensors: Sequence[torch.Tensor],
) -> Comparison:
    """Compare compiled code with eager execution and with a full-precision run of the same call.

    If there is no full-precision run, the verdict says why, and the fixed limit decides. Calls with
    few results are compared with other inputs too. Buffers and random states are restored, as
    `StateBefore` does.

    Raises:
        Different: the results differ in structure, shape, dtype, integers, or NaN and infinity.
    """
    until = time.perf_counter() + BUDGET_S
    runs = _Runs(callee, function, tensors, restore=True)
    calls = [runs.compare(tensors, compiled)]
    more = runs.vary(tensors, compiled) if _is_small(calls[0]) else iter(())
    needs_more = not _is_close(calls[0], runs.dtype)
    while needs_more and not runs.no_reference and _has_few(calls) and time.perf_counter() < until:
        call = next(more, None)
        if call is None:
            break
        calls.append(call)
    verdict = judge(calls, runs.dtype, no_reference=runs.no_reference)
    return _judge_near_ties(verdict, calls, more, runs)


def compare_once(
    callee: object,
    function: Callable[..., object],
    compiled: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    *,
    restore: bool,
) -> Comparison:
    """Compare a call in a replica, with its own input only, as `compare` does.

    Other inputs would delay requests, and are not the application's own. `compiled` may only return
    an earlier answer. Without `restore`, buffers and random states are left alone.

    Raises:
        Different: the results differ in structure, shape, dtype, integers, or NaN and infinity.
    """
    runs = _Runs(callee, function, tensors, restore=restore)
    calls = [runs.compare(tensors, compiled)]
    # A call with one number would else be refused for 1 in 20 right answers.
    verdict = judge(calls, runs.dtype, no_reference=runs.no_reference, most_width=math.inf)
    return _judge_near_ties(verdict, calls, iter(()), runs)


def _judge_near_ties(
    first: Judgement, calls: Sequence[Results], more: Iterator[Results], runs: _Runs
) -> Comparison:
    """Judge refused results again, if near-ties inside the call may explain them.

    Right code may choose another expert than eager for one input, and then differs by more than
    rounding. Damaged code differs for most inputs, and also for inputs without near-ties. So the
    inputs are judged apart. The verdict is the one of the middle input, or of a refused input that
    has no near-tie.
    """
    if not first.reason or first.fixed:
        return runs.describe(first)
    close = {place: runs.count_close_choices(place) for place in range(min(len(calls), APART))}
    if not any(close.values()):
        return runs.describe(first)
    several = [*calls, *itertools.islice(more, max(0, APART - len(calls)))]
    if len(several) < APART:
        why = f"{sum(close.values())} of its decisions are near-ties, and it has only one input"
        return runs.describe(judge(calls, runs.dtype, no_reference=why), unsure=why)
    found = [judge([each], runs.dtype) for each in several]
    for place, verdict in enumerate(found):
        if verdict.reason and not (close.get(place) or runs.count_close_choices(place)):
            return runs.describe(verdict)
    found.sort(key=lambda each: (each.reason != "", each.rmse_ratio or 0.0))
    return runs.describe(found[len(found) // 2])


APART = 5
"""How many inputs at least are judged apart if a call with near-ties inside is refused."""


class _RejectedInput(Exception):
    """Eager execution or compiled code does not accept an input that was made for a comparison."""


class _Runs:
    """The three runs of a call, for one or more inputs."""

    def __init__(
        self,
        callee: object,
        function: Callable[..., object],
        tensors: Sequence[torch.Tensor],
        *,
        restore: bool,
    ) -> None:
        self.no_reference = ""
        self._is_out_of_memory = False
        self.given: list[Sequence[torch.Tensor]] = []
        """The inputs that were compared."""
        self.eager_operators: set[str] = set()
        self.dtype = torch.float32
        self._kept = StateBefore(callee, restore=restore)
        self._function = function
        self._precision: Precision | None = None
        self._dtypes = {each.dtype for each in _tensors_of(callee, tensors)}
        self._devices = {each.device.type for each in _tensors_of(callee, tensors)}

    def vary(
        self, tensors: Sequence[torch.Tensor], compiled: Callable[..., object]
    ) -> Iterator[Results]:
        """Yield the results for other inputs that eager execution and compiled code accept."""
        for seed in range(1, MOST_INPUTS):
            more = vary_tensors(tensors, seed)
            if all(new is old for new, old in zip(more, tensors, strict=True)):
                return
            with contextlib.suppress(_RejectedInput):
                yield self.compare(more, compiled)

    def count_close_choices(self, place: int) -> int:
        """Return how many decisions inside the call with one of the inputs are near-ties."""
        tensors, eager, exact = self.given[place], RecordChoices(), RecordChoices()
        outcome = self._run_again(tensors, eager)
        self._run_reference(tensors, None, exact)
        return count_close_choices(eager.choices, exact.choices, outcome.outputs)

    def describe(self, verdict: Judgement, *, unsure: str = "") -> Comparison:
        """Return the comparison that led to a verdict."""
        if self._is_out_of_memory:
            unsure = unsure or self.no_reference
        return Comparison(
            verdict=replace(verdict, eager_operators=tuple(sorted(self.eager_operators))),
            inputs=len(self.given),
            unsure=unsure,
        )

    def compare(self, tensors: Sequence[torch.Tensor], compiled: Callable[..., object]) -> Results:
        """Return the results of all runs.

        Raises:
            _RejectedInput: a run does not accept these inputs, which are not the first.
        """
        eager = self._run(self._function, tensors)
        ours = self._run(compiled, tensors)
        check_structure(eager, ours)
        for one, other in zip(eager.tensors, ours.tensors, strict=True):
            check_same_kind(one, other)
        if self._precision is None and not are_alike(eager, ours):
            again = self._kept.run(self._function, tensors)
            if not are_alike(eager, again):  # then its distance from full precision means nothing
                raise Different("it differs from eager")
        # The next run may write into the memory of these results, as CUDA graphs do.
        before, after = eager.tensors, [each.clone() for each in ours.tensors]
        if self._precision is None:
            self._choose(before)
        self.given.append(tensors)
        eager_choices, exact_choices = RecordChoices(), RecordChoices()
        decides = _has_other_decisions(before, after) and not self.no_reference
        if decides:
            self._run_again(tensors, eager_choices)
        reference = self._run_reference(tensors, before, exact_choices if decides else None)
        return Results(
            eager=before,
            ours=after,
            reference=reference,
            names=_names_of(eager),
            eager_choices=eager_choices.choices,
            reference_choices=exact_choices.choices,
        )

    def _run(self, function: Callable[..., object], tensors: Sequence[torch.Tensor]) -> Outcome:
        try:
            return self._kept.run(function, tensors)
        except Exception as error:
            # A model may raise anything for values that it rejects, and so may its compiled code,
            # for example for their strides.
            if self._precision is None or isinstance(error, Different):
                raise
            raise _RejectedInput from error

    def _run_again(self, tensors: Sequence[torch.Tensor], choices: RecordChoices) -> Outcome:
        def run(callee: object, *copies: torch.Tensor) -> object:
            with choices:
                return self._function(callee, *copies)

        return self._kept.run(run, tensors)

    def _choose(self, outputs: Sequence[torch.Tensor]) -> None:
        self._dtypes |= {each.dtype for each in outputs}
        self._devices |= {each.device.type for each in outputs}
        autocast = [
            torch.get_autocast_dtype(kind)
            for kind in self._devices & {"cpu", "cuda"}
            if torch.is_autocast_enabled(kind)
        ]
        half = [dtype for dtype in HALF if dtype in self._dtypes or dtype in autocast]
        self._precision = choose_precision(half=bool(half), device_types=self._devices)
        if half:
            self.dtype = half[0]
        elif not self._dtypes & {torch.float32, torch.complex64}:
            self.dtype = torch.float64
            self.no_reference = "no dtype is more precise than float64"

    def _run_reference(
        self,
        tensors: Sequence[torch.Tensor],
        like: Sequence[torch.Tensor] | None,
        choices: RecordChoices | None,
    ) -> Sequence[torch.Tensor] | None:
        if self.no_reference or self._precision is None:
            return None
        try:
            run = run_in_full_precision(
                self._kept,
                self._function,
                tensors,
                self._precision,
                inside=choices or contextlib.nullcontext(),
            )
        except NoFullPrecision as error:
            self.no_reference = str(error)
            self._is_out_of_memory = isinstance(error.__cause__, torch.OutOfMemoryError)
            return None
        if like is not None and _shapes(run.tensors) != _shapes(like):
            self.no_reference = "the shapes of its results depend on how values are rounded"
            return None
        self.eager_operators.update(run.eager_operators)
        return run.tensors


def _names_of(outcome: Outcome) -> list[str]:
    kinds = {"output": outcome.outputs, "changed input": outcome.inputs, "buffer": outcome.buffers}
    return [
        f"{kind} {number} of {len(tensors)}"
        for kind, tensors in kinds.items()
        for number in range(1, len(tensors) + 1)
    ]


def _shapes(tensors: Sequence[torch.Tensor]) -> list[torch.Size]:
    return [each.shape for each in tensors]


def _has_other_decisions(eager: Sequence[torch.Tensor], ours: Sequence[torch.Tensor]) -> bool:
    return any(
        not one.is_floating_point()
        and not one.is_complex()
        and (one.shape, one.dtype) == (other.shape, other.dtype)
        and not torch.equal(one, other)
        for one, other in zip(eager, ours, strict=True)
    )


def _tensors_of(callee: object, tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        yield from plain_parts(tensor)
    module = module_of(callee)
    if module is not None:
        for tensor in (*module.parameters(), *module.buffers()):
            yield from plain_parts(tensor)


def _is_small(call: Results) -> bool:
    """Return whether the results of `MOST_INPUTS` inputs may be kept."""
    return sum(int(each.nbytes) for each in call.eager) <= MOST_BYTES


def _is_close(call: Results, dtype: torch.dtype) -> bool:
    """Return whether results pass in any case, because they are float32 and almost equal."""
    return dtype is torch.float32 and all(
        find_difference(eager, ours) <= NEVER_REFUSED[torch.float32]
        for eager, ours in zip(call.eager, call.ours, strict=True)
        if eager.is_floating_point() or eager.is_complex()
    )


def _has_few(calls: Sequence[Results]) -> bool:
    first = calls[0]
    if first.reference is None:
        return False
    return any(
        eager.numel() * len(calls) < ENOUGH and not is_exact(eager, exact)
        for eager, exact in zip(first.eager, first.reference, strict=True)
    )


# Varied inputs ------------------------------------------------------------------------------------


SHRINK = 0.2
"""Largest part by which a float becomes smaller. Floats only shrink, because a mask may contain the
largest number of its dtype."""


def vary_tensors(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Return tensors with other values, or the same tensor where another value may be wrong.

    Each value stays within the range of the tensor that it comes from, because it may be an index.

    Floats change by up to a fifth, and zeros stay. Integers are permuted within the last dimension,
    unless they are sorted, such as positions and offsets. Bools, masks and tensors that share
    memory stay the same.
    """
    generator = torch.Generator().manual_seed(seed)
    storages = [_storage(tensor) for tensor in tensors]
    return [
        tensor if storages.count(storage) > 1 else _vary(tensor, generator)
        for tensor, storage in zip(tensors, storages, strict=True)
    ]


def _vary(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.numel():
        return tensor
    layout = zip(tensor.shape, tensor.stride(), strict=True)
    if any(not stride and size > 1 for size, stride in layout):
        return tensor  # its elements share memory
    if not tensor.is_floating_point() and not tensor.is_complex() and not tensor.is_cpu:
        return tensor  # on a GPU, an index that is out of range ends the process
    if tensor.dtype is torch.bool or (not tensor.is_complex() and _has_two_values(tensor)):
        return tensor
    # Outside inference mode, an inference tensor cannot be written into.
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        if tensor.is_floating_point() or tensor.is_complex():
            factor = 1 - SHRINK * torch.rand(tensor.shape, generator=generator)
            changed = tensor.detach() * factor.to(tensor.device)
        elif not tensor.dim() or tensor.shape[-1] == 1 or _is_sorted(tensor):
            return tensor
        else:
            order = torch.randperm(tensor.shape[-1], generator=generator)
            changed = tensor[..., order.to(tensor.device)]
        copy: torch.Tensor = copy_tensors([tensor])[0]  # the same strides
        return copy.copy_(changed)


PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return id(tensor)


def _has_two_values(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel() > 2 and ((tensor == tensor.min()) | (tensor == tensor.max())).all())


def _is_sorted(tensor: torch.Tensor) -> bool:
    return bool((tensor.diff(dim=-1) >= 0).all())
