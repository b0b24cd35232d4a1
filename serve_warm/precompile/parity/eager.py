# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of a call that can be compared: eager, compiled, and in full precision."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.precompile.calls.copies import (
    Different,
    OtherStructure,
    copy_tensors,
    describe_result,
    is_same,
)
from serve_warm.precompile.calls.plain_state import OF_MODULES, PlainState, write
from serve_warm.precompile.calls.signature import module_of
from serve_warm.precompile.facts.names import describe_tensor
from serve_warm.precompile.facts.tensor_parts import plain_parts

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
"""The fixed limit: the largest difference from eager, relative to the largest value, for calls that
have no run in full precision. Reordering float32 sums in 24 layers causes a difference below 1e-5;
wrong code causes a difference above 1e-2."""

NEVER_REFUSED = {
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}
"""Differences from eager that pass in any case, relative to the largest value. Right float32 code
was up to 1.3 times as far from float64 as eager on a CPU, and a full-precision run computes a
float64 result in float64 too."""

TF32_TOLERANCE = 5e-3
"""The limit for float32 on a GPU that multiplies in TF32, which keeps 10 bits of each factor.
cuDNN's convolutions use TF32 by default, and each algorithm sums in a different order (ResNet-152
on an H200, torch 2.11: 1.1e-4)."""


def advise(eager: Outcome, ours: Outcome, run_again: Callable[[], Outcome]) -> str:
    """Return what to do if a result differs from eager, or an empty string if the cause is unknown.

    The more specific cause comes first.
    """
    if eager.draws:
        return DRAWS
    if not are_alike(eager, run_again()):
        return NOT_REPRODUCIBLE
    pairs = zip(eager.outputs, ours.outputs)  # noqa: B905 - the results may differ in structure
    return ZEROS if any(_zeros_only(left, right) for left, right in pairs) else ""


DRAWS = (
    "it draws random numbers, and torch.compile draws others unless you pass "
    'options={"fallback_random": True}. Or pass the numbers as an argument'
)

NOT_REPRODUCIBLE = (
    "two eager runs of the same call differ too, for example because it draws random numbers from "
    "NumPy: pass the numbers as an argument. Or because it keeps state in Python objects: keep the "
    "state in a buffer"
)

ZEROS = (
    "eager writes zeros, for example at padded positions, where the compiled code writes other "
    "values. Layers of nn.TransformerEncoder do this: pass enable_nested_tensor=False, or call "
    "torch.backends.mha.set_fastpath_enabled(False)"
)
"""Reasons for a difference, with advice."""


def _zeros_only(eager: torch.Tensor, ours: torch.Tensor) -> bool:
    """Return whether two outputs differ, but not where the eager output is other than zero."""
    if (eager.shape, eager.dtype) != (ours.shape, ours.dtype) or not eager.is_floating_point():
        return False
    others = eager != 0
    try:
        if not _is_alike(eager[others], ours[others]):
            return False
    except Different:
        return False
    return bool((ours[~others] != 0).any()) and bool(others.any())


class NotComparable(Exception):
    """A call cannot be compared with eager, for example because its result is not reproducible."""


def why_not_twice(
    callee: object, functions: Sequence[Callable[..., object]], tensors: Sequence[torch.Tensor]
) -> str:
    """Return why a call must not run twice, or an empty string if a second run changes nothing.

    Runs each of `functions` once, on copies of the tensors. Checks the random numbers of Python and
    torch, the call's tensors and the module's buffers, but not other Python objects.
    """
    kept = StateBefore(callee)
    for function in functions:
        outcome = kept.run(function, tensors)
        if outcome.draws:
            return "it draws random numbers"
        if not all(map(is_same, outcome.inputs, tensors)):
            return "it writes into its inputs"
        if not all(map(is_same, outcome.buffers, kept.buffers)):
            return "it writes into buffers"
    return ""


@record(frozen=True, kw_only=True)
class Outcome:
    """The result of one run of a call, with the inputs and buffers after the run.

    The buffers include plain tensors that the call writes, such as a cache in an attribute.
    """

    said: str
    outputs: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    buffers: Sequence[torch.Tensor]
    draws: bool
    """Whether the run drew random numbers."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in the order in which they are compared."""
        return [*self.outputs, *self.inputs, *self.buffers]


class StateBefore:
    """The state before a run: buffers, plain tensors, and the random number generators.

    The first run must be eager: it shows which plain tensors a call writes (`plain_state`).
    """

    def __init__(self, callee: object, *, restore: bool = True) -> None:
        self._callee = callee
        self._restore = restore
        module = module_of(callee)
        owners = list(module.modules()) if module is not None and restore else []
        # The objects are kept too, because a forward may assign `self.cache`.
        self._buffers = [
            (owner, name, buffer, [part.clone() for part in plain_parts(buffer)])
            for owner in owners
            for name, buffer in owner.named_buffers(recurse=False)
        ]
        registered = {id(buffer) for _, _, buffer, _ in self._buffers}
        self._state = PlainState(callee if restore else None, registered=registered)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Copies of the buffers, and of the plain tensors that a run has changed."""
        return [*(part for *_, before in self._buffers for part in before), *self._state.before]

    def run(
        self,
        function: Callable[..., object],
        tensors: Sequence[torch.Tensor],
        *,
        read: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> Outcome:
        """Run a function on copies of the tensors, then restore everything.

        `read` returns a tensor's values after the run, if the run has other tensors in its place.
        """
        before = _RandomStates.current() if self._restore else None
        copies = copy_tensors(tensors)
        try:
            with self._state.watched():
                out = function(self._callee, *copies)
            found: list[torch.Tensor] = []
            said = describe_result(out, found)
            now = [owner.get_buffer(name) for owner, name, _, _ in self._buffers]
            parts = [part for buffer in now for part in plain_parts(buffer)]
            after = [read(part).clone() for part in (*parts, *self._state.read())]
            draws = before is not None and not before.are_same(_RandomStates.current())
            found, inputs = [[*map(read, each)] for each in (found, copies)]
            return Outcome(said=said, outputs=found, inputs=inputs, buffers=after, draws=draws)
        finally:
            if before is not None:
                before.restore()
            self.restore_buffers()

    @contextlib.contextmanager
    def attributes_restored(self) -> Iterator[None]:
        """Restore the attributes of all modules, and the items of lists and dicts among them.

        A forward may keep a tensor for the next call, which must not be one of another precision.
        Without `restore`, other threads may use the module, so that only changes that bring in
        tensors are undone: a number or a name may have been set by another thread.
        """
        module = module_of(self._callee)
        owners = list(module.modules()) if module is not None else []
        before = [(vars(owner), dict(vars(owner))) for owner in owners]
        items: list[tuple[Any, Any]] = [
            (value, value.copy())
            for _, values in before
            for name, value in values.items()
            if type(value) in (list, dict) and name not in OF_MODULES
        ]
        try:
            yield
        finally:
            # One at a time, because other threads may read the module.
            for now, values in (*before, *(each for each in items if type(each[0]) is dict)):
                for name in now.keys() - values.keys():
                    if self._is_undone(now.get(name)):
                        now.pop(name, None)
                for name, value in values.items():
                    if now.get(name) is not value and self._is_undone(now.get(name)):
                        now[name] = value
            for now, values in (each for each in items if type(each[0]) is list):
                if len(now) == len(values) and not any(map(operator.is_not, now, values)):
                    continue
                new = [each for each in now if all(each is not value for value in values)]
                if self._is_undone(new):
                    now[:] = values

    def _is_undone(self, value: object) -> bool:
        """Return whether an attribute or item that a run may have set is set back."""
        return self._restore or bool(_has_tensor(value))

    def run_and_keep(
        self, function: Callable[..., object], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Run a function on copies of the tensors, then restore only the random numbers."""
        before = _RandomStates.current()
        try:
            with self._state.watched():
                function(self._callee, *copy_tensors(tensors))
        finally:
            before.restore()

    def restore_buffers(self) -> None:
        """Restore the earlier buffers and plain tensors, and their values."""
        for owner, name, buffer, before in self._buffers:
            if owner.get_buffer(name) is not buffer:
                setattr(owner, name, buffer)
            for part, value in zip(plain_parts(buffer), before, strict=True):
                write(part, value)
        self._state.restore()


def _has_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


@record(frozen=True, kw_only=True)
class _RandomStates:
    """The states of the random number generators of Python and torch."""

    python: tuple[object, ...]
    cpu: torch.Tensor
    gpus: Sequence[torch.Tensor]
    """One state for each GPU. Empty if CUDA is not in use."""

    @classmethod
    def current(cls) -> _RandomStates:
        cuda: Any = torch.cuda
        gpus = cuda.get_rng_state_all() if cuda.is_initialized() else ()
        return cls(python=random.getstate(), cpu=torch.get_rng_state(), gpus=gpus)

    def are_same(self, other: _RandomStates) -> bool:
        mine, others = (self.cpu, *self.gpus), (other.cpu, *other.gpus)
        # There may be no GPU states, because the run was the first to use CUDA.
        return self.python == other.python and all(map(torch.equal, mine, others))

    def restore(self) -> None:
        random.setstate(self.python)
        torch.set_rng_state(self.cpu)
        if self.gpus:
            torch.cuda.set_rng_state_all(list(self.gpus))


class TooFar(Different):
    """The results differ by more than rounding."""


def check_structure(eager: Outcome, ours: Outcome) -> None:
    """Raise `NoEntry` if two results differ in something other than the values of tensors."""
    if eager.said != ours.said:
        raise OtherStructure(
            f"it returns {excerpt(ours.said, 100)}, but eager returns {excerpt(eager.said, 100)}"
        )


def are_alike(one: Outcome, other: Outcome) -> bool:
    """Return whether two runs have the same result within the fixed limit."""
    try:
        check_structure(one, other)
        return all(map(_is_alike, one.tensors, other.tensors))
    except Different:
        return False


def check_same_kind(eager: torch.Tensor, ours: torch.Tensor) -> None:
    """Raise `Different` if results differ in shape, dtype, or where they are NaN or infinite."""
    # Strides are not compared, because compiled code may choose other strides.
    if (eager.shape, eager.dtype) != (ours.shape, ours.dtype):
        raise Different(
            f"it returns {describe_tensor(ours)}, but eager returns {describe_tensor(eager)}"
        )
    if not eager.is_floating_point() and not eager.is_complex():
        return
    for left, right in pieces(eager, ours):
        finite = torch.isfinite(left)
        if not torch.equal(finite, torch.isfinite(right)):
            raise Different(
                "its infinite or NaN values are at different positions than in the eager result"
            )
        if not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()):
            raise Different("its infinite or NaN values differ from the eager result")


def find_difference(eager: torch.Tensor, ours: torch.Tensor) -> float:
    """Return the largest difference of two float tensors, relative to eager's largest value."""
    difference = largest = 0.0
    for left, right in pieces(eager, ours):
        finite = torch.isfinite(left)
        if not bool(finite.any()):
            continue
        values = left[finite]
        difference = max(difference, float((values - right[finite]).abs().max()))
        largest = max(largest, float(values.abs().max()))
    return difference / max(largest, 1e-6)


PIECE = 1 << 20
"""Count of numbers that are compared at once. A decoder's logits may have billions of numbers, and
a comparison holds about ten arrays of float64."""


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the values of float or complex tensors of one shape in float64, piece by piece."""
    # `conj()` only sets a bit, of which the memory shows nothing.
    plain = [each.resolve_conj().resolve_neg() for each in tensors]
    flat = [torch.view_as_real(each) if each.is_complex() else each for each in plain]
    flat = [each.reshape(-1) for each in flat]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(each[start : start + PIECE].double() for each in flat)


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance between each value and the next larger number of a dtype.

    >>> spacing(torch.tensor([1.0, 1.5, 4.0]), torch.bfloat16).tolist()
    [0.0078125, 0.0078125, 0.03125]
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=info.tiny))
    return torch.ldexp(torch.full_like(values, info.eps), exponent - 1)


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    check_same_kind(one, other)
    if not one.is_floating_point() and not one.is_complex():
        return torch.equal(one, other)
    return find_difference(one, other) <= tolerance(one)


def tolerance(tensor: torch.Tensor) -> float:
    """Return the fixed limit of the difference from eager for a tensor of eager's result."""
    if tensor.dtype is torch.float32 and tensor.device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        parts = (cudnn.conv, torch.backends.cuda.matmul)
        if any(part.fp32_precision == "tf32" for part in parts):
            return TF32_TOLERANCE
    return TOLERANCE.get(tensor.dtype, max(TOLERANCE.values()))
