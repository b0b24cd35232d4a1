# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of compiled code with eager execution, and the allowed difference."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.precompile.call_signature import module_of
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import describe_tensor, literal
from serve_warm.precompile.tensor_parts import describe_parts, has_parts, plain_parts

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
"""Largest difference allowed between a published entry and eager execution, relative to the largest
value. Reordering float32 sums in 24 layers causes a difference below 1e-5; wrong code causes a
difference above 1e-2."""

TF32_TOLERANCE = 5e-3
"""The limit for float32 on a GPU that multiplies in TF32, which keeps 10 bits of each factor.
cuDNN's convolutions use TF32 by default, and each algorithm sums in a different order (ResNet-152
on an H200, torch 2.11: 1.1e-4)."""


def difference_from_eager(
    callee: Any, function: Callable[..., Any], compiled: Callable[..., Any], tensors: Sequence[Any]
) -> float:
    """Return the difference between compiled code and eager execution for one call.

    The difference is relative to the largest value.

    Compares outputs, changed inputs and changed module buffers. Both runs use copies of the
    tensors. The module and the random number generators of Python and torch are restored.

    Raises:
        NoEntry: the difference is too large. Such an entry is never published.
    """
    kept = Kept(callee)
    eager = kept.run(function, tensors)
    ours = kept.run(compiled, tensors)
    try:
        return _difference(eager, ours)
    except NoEntry as wrong:
        advice = _advise(eager, ours, lambda: kept.run(function, tensors))
        if not advice:
            raise
        raise type(wrong)(f"{wrong}: {advice}") from wrong


def _advise(eager: _Outcome, ours: _Outcome, run_again: Callable[[], _Outcome]) -> str:
    """Return what to do if a result differs from eager, or an empty string if the cause is unknown.

    The more specific cause comes first.
    """
    if eager.draws:
        return DRAWS
    try:
        _difference(eager, run_again())
    except NoEntry:
        return NOT_REPRODUCIBLE
    pairs = zip(eager.outputs, ours.outputs)  # noqa: B905 - the results may differ in structure
    return ZEROS if any(_zeros_only(left, right) for left, right in pairs) else ""


DRAWS = (
    "it draws random numbers, and torch.compile draws others unless you pass "
    'options={"fallback_random": True}. Or pass the numbers as an argument'
)

NOT_REPRODUCIBLE = (
    "two eager runs of the same call differ too, for example because it draws random numbers from "
    "NumPy: pass the numbers as an argument"
)

ZEROS = (
    "eager writes zeros, for example at padded positions, where the compiled code writes other "
    "values. Layers of nn.TransformerEncoder do this: pass enable_nested_tensor=False, or call "
    "torch.backends.mha.set_fastpath_enabled(False)"
)
"""Reasons for a difference, with advice."""


def _zeros_only(eager: Any, ours: Any) -> bool:
    """Return whether two outputs differ, but not where the eager output is other than zero."""
    if (eager.shape, eager.dtype) != (ours.shape, ours.dtype) or not eager.is_floating_point():
        return False
    others = eager != 0
    try:
        _distance(eager[others], ours[others])
    except NoEntry:
        return False
    return bool((ours[~others] != 0).any()) and bool(others.any())


def run_on_copies(callee: Any, function: Callable[..., Any], tensors: Sequence[Any]) -> None:
    """Run a function on copies of a call's tensors; restore buffers and the random state."""
    Kept(callee).run(function, tensors)


def difference_in_service(
    callee: Any,
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    tensors: Sequence[Any],
    *,
    restore: bool,
) -> float:
    """Compare one call with eager execution in a replica; errors do not quote request values.

    With `restore`, also compares buffers, and restores the buffers and the random number state.
    Without `restore`, leaves buffers and random state alone, because other threads might be using
    both. So pass `restore=False` only for calls that change neither buffers nor random state.

    Raises:
        NoEntry: the difference is too large, and two eager runs agree.
        NotComparable: two eager runs differ, or the call cannot be compared.
    """
    kept = Kept(callee, restore=restore)
    try:
        eager = kept.run(function, tensors)
    except NoEntry as error:
        raise NotComparable(str(error)) from error
    try:
        try:
            ours = kept.run(compiled, tensors)
        except _OtherStructure:
            raise
        except NoEntry as refusal:  # the entry computed nothing, and other code will run its calls
            raise NotComparable(f"the entry does not accept this call: {refusal}") from refusal
        return _difference(eager, ours)
    except NoEntry as wrong:
        again = kept.run(function, tensors)
        try:
            _difference(eager, again)
        except NoEntry:
            raise NotComparable("two eager runs of the same call differ") from wrong
        if isinstance(wrong, _OtherStructure):
            raise NoEntry(
                "its result has a different structure or value than the eager result"
            ) from None
        raise


class NotComparable(Exception):
    """A call cannot be compared with eager, for example because its result is not reproducible."""


def why_not_twice(
    callee: Any, functions: Sequence[Callable[..., Any]], tensors: Sequence[Any]
) -> str:
    """Return why a call must not run twice, or an empty string if a second run changes nothing.

    Runs each of `functions` once, on copies of the tensors. Checks the random numbers of Python and
    torch, the call's tensors and the module's buffers, but not other Python objects.
    """
    kept = Kept(callee)
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
class _Outcome:
    """The result of one run of a call, with the inputs and buffers after the run."""

    said: str
    outputs: Sequence[Any]
    inputs: Sequence[Any]
    buffers: Sequence[Any]
    draws: bool
    """Whether the run drew random numbers."""


class Kept:
    """The state before a run: a module's buffers, and the random number generators."""

    def __init__(self, callee: Any, *, restore: bool = True) -> None:
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

    @property
    def buffers(self) -> list[Any]:
        """Copies of the buffers, made before the run."""
        return [part for *_, before in self._buffers for part in before]

    def run(self, function: Callable[..., Any], tensors: Sequence[Any]) -> _Outcome:
        """Run a function on copies of the tensors, then restore everything."""
        before = _RandomStates.current() if self._restore else None
        copies = copy_tensors(tensors)
        try:
            out = function(self._callee, *copies)
            found: list[Any] = []
            said = describe_result(out, found)
            now = [owner.get_buffer(name) for owner, name, _, _ in self._buffers]
            after = [part.clone() for buffer in now for part in plain_parts(buffer)]
            draws = before is not None and not before.are_same(_RandomStates.current())
            return _Outcome(said=said, outputs=found, inputs=copies, buffers=after, draws=draws)
        finally:
            if before is not None:
                before.restore()
            self.restore_buffers()

    def run_and_keep(self, function: Callable[..., Any], tensors: Sequence[Any]) -> None:
        """Run a function on copies of the tensors, then restore only the random numbers."""
        before = _RandomStates.current()
        try:
            function(self._callee, *copy_tensors(tensors))
        finally:
            before.restore()

    def restore_buffers(self) -> None:
        """Restore the module's earlier buffers and their values."""
        for owner, name, buffer, before in self._buffers:
            if owner.get_buffer(name) is not buffer:
                setattr(owner, name, buffer)
            for part, value in zip(plain_parts(buffer), before, strict=True):
                part.copy_(value)


@record(frozen=True, kw_only=True)
class _RandomStates:
    """The states of the random number generators of Python and torch."""

    python: tuple[Any, ...]
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


def is_same(left: Any, right: Any) -> bool:
    """Return whether two tensors contain the same bytes. A NaN equals itself here."""
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    try:
        plain = [each.contiguous().reshape(-1).view(torch.uint8) for each in (left, right)]
        return torch.equal(plain[0], plain[1])
    except RuntimeError:  # not plain memory, for example sparse
        return False


class _OtherStructure(NoEntry):
    """The results differ in something other than tensors. The error text quotes request values."""


class TooFar(NoEntry):
    """The results differ by more than the tolerance."""


def _difference(eager: _Outcome, ours: _Outcome) -> float:
    if eager.said != ours.said:
        raise _OtherStructure(
            f"it returns {excerpt(ours.said, 100)}, but eager returns {excerpt(eager.said, 100)}"
        )
    left = (*eager.outputs, *eager.inputs, *eager.buffers)
    right = (*ours.outputs, *ours.inputs, *ours.buffers)
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        worst = max(worst, _distance(one, other))
    return worst


def describe_result(value: Any, tensors: list[Any]) -> str:
    """Return an output as text, without its tensors, and add the tensors to `tensors`."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors.extend(plain_parts(value))
        try:
            return str(describe_parts(value)) if has_parts(value) else "tensor"
        except TypeError as error:
            raise _OtherStructure(f"it returns a {kind.__qualname__}: {error}") from error
    text = literal(value)
    if text is not None:
        return text
    if isinstance(value, Mapping):
        parts = [f"{key!r}: {describe_result(item, tensors)}" for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [describe_result(item, tensors) for item in value]
    elif hasattr(value, "__dict__"):
        parts = [
            f"{name}={describe_result(item, tensors)}" for name, item in sorted(vars(value).items())
        ]
    else:
        text = f"it returns a {kind.__qualname__}, which cannot be compared with the eager result"
        raise _OtherStructure(text)
    return f"{kind.__qualname__}({', '.join(parts)})"


def _distance(eager: Any, ours: Any) -> float:
    # Strides are not compared, because compiled code may choose other strides.
    if (eager.shape, eager.dtype) != (ours.shape, ours.dtype):
        raise NoEntry(
            f"it returns {describe_tensor(ours)}, but eager returns {describe_tensor(eager)}"
        )
    if not eager.numel():
        return 0.0
    if not eager.is_floating_point() and not eager.is_complex():
        if not torch.equal(eager, ours):
            raise NoEntry(f"its {eager.dtype} values differ from the eager result")
        return 0.0
    if eager.is_complex():
        eager, ours = torch.view_as_real(eager), torch.view_as_real(ours)
    left, right = eager.double(), ours.double()
    if not torch.equal(torch.isfinite(left), torch.isfinite(right)):
        raise NoEntry(
            "its infinite or NaN values are at different positions than in the eager result"
        )
    finite = torch.isfinite(left)
    if not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()):
        raise NoEntry("its infinite or NaN values differ from the eager result")
    if not bool(finite.any()):
        return 0.0
    largest = float(left[finite].abs().max())
    error = float((left[finite] - right[finite]).abs().max()) / max(largest, 1e-6)
    if error > _tolerance(eager):
        raise TooFar(f"it differs from eager by {error:.1e}, relative to the largest value")
    return error


def _tolerance(tensor: Any) -> float:
    if tensor.dtype is torch.float32 and tensor.device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        parts = (cudnn.conv, torch.backends.cuda.matmul)
        if any(part.fp32_precision == "tf32" for part in parts):
            return TF32_TOLERANCE
    return TOLERANCE.get(tensor.dtype, max(TOLERANCE.values()))


def copy_tensors(tensors: Sequence[Any], *, inference: bool | None = None) -> list[Any]:
    """Return copies of tensors, with the same strides and the same overlaps in memory.

    If `inference` is given, it decides whether all copies are inference tensors. By default, each
    copy is like its original.
    """
    storages: dict[int, Any] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        # Compiled code treats inference tensors differently.
        with torch.inference_mode(tensor.is_inference() if inference is None else inference):
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copies.append(
            empty.set_(
                storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        )
    return copies
