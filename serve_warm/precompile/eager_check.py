# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How far compiled code is from eager, and how far it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from serve_warm.precompile.call_signature import module_of
from serve_warm.precompile.facts import NoEntry
from serve_warm.precompile.names import describe_tensor, literal

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
"""Largest error of an entry against eager that is published, relative to the largest value. What
reorders float32 sums in 24 layers stays below 1e-5; what is wrong is above 1e-2."""

TF32_TOLERANCE = 5e-3
"""The same for float32 where a GPU multiplies in TF32, which keeps 10 bits of each factor: cuDNN's
convolutions do unless told otherwise, each algorithm in its own order (ResNet-152 on an H200, torch
2.11: 1.1e-4)."""


def difference_from_eager(
    callee: Any, function: Callable[..., Any], compiled: Callable[..., Any], tensors: Sequence[Any]
) -> float:
    """Return how far compiled code is from eager for one call, relative to the largest value.

    Outputs are compared, and what either writes into its inputs or the module's buffers; both work
    on copies, and the module and torch's random numbers are left as they were.

    Raises:
        NoEntry: it is too far; such an entry is never published.
    """
    kept = _Kept(callee)
    eager = kept.run(function, tensors)
    return _difference(eager, kept.run(compiled, tensors))


def difference_in_service(
    callee: Any,
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    tensors: Sequence[Any],
    *,
    restore: bool,
) -> float:
    """Return the same in a replica, where the text of an error may hold no value of a request.

    With `restore` buffers are compared, and these and torch's random numbers put back. Without it,
    for calls that change neither, they are left alone: other threads may be using them.

    Raises:
        NoEntry: it is too far, and eager is not that far from a second run of eager.
        NotComparable: eager has no one answer for this call.
    """
    kept = _Kept(callee, restore=restore)
    try:
        eager = kept.run(function, tensors)
    except NoEntry as error:
        raise NotComparable(str(error)) from error
    try:
        try:
            ours = kept.run(compiled, tensors)
        except _OtherStructure:
            raise
        except NoEntry as refusal:  # before it computed anything: its calls go elsewhere anyway
            raise NotComparable(f"the entry does not take it: {refusal}") from refusal
        return _difference(eager, ours)
    except NoEntry as wrong:
        again = kept.run(function, tensors)
        try:
            _difference(eager, again)
        except NoEntry:
            raise NotComparable("two runs of eager differ") from wrong
        if isinstance(wrong, _OtherStructure):
            raise NoEntry("it returns another structure than eager, or another value") from None
        raise


class NotComparable(Exception):
    """Eager has no one answer for a call, so that nothing can be held against it."""


def why_not_twice(
    callee: Any, functions: Sequence[Callable[..., Any]], tensors: Sequence[Any]
) -> str:
    """Return why a second run of a call would change something; empty if it would not.

    Each of `functions` is run once, on copies. Looks at torch's random numbers, the tensors of the
    call, and the module's buffers: not at other objects of Python.
    """
    kept = _Kept(callee)
    for function in functions:
        outcome = kept.run(function, tensors)
        if outcome.draws:
            return "it draws random numbers"
        if not all(map(is_same, outcome.inputs, tensors)):
            return "it writes into its inputs"
        if not all(map(is_same, outcome.buffers, kept.buffers)):
            return "it writes into buffers"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What one run of a call returned, and what it changed."""

    said: str
    outputs: Sequence[Any]
    inputs: Sequence[Any]
    buffers: Sequence[Any]
    draws: bool
    """Whether it drew random numbers."""


class _Kept:
    """What a run may change, as it was before: buffers of a module, and torch's random numbers."""

    def __init__(self, callee: Any, *, restore: bool = True) -> None:
        self._callee = callee
        self._restore = restore
        module = module_of(callee)
        owners = list(module.modules()) if module is not None and restore else []
        # Where they are as well as what is in them: a forward may assign `self.cache`.
        self._buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in owners
            for name, buffer in owner.named_buffers(recurse=False)
        ]

    @property
    def buffers(self) -> list[Any]:
        """Copies of the buffers as they were."""
        return [before for *_, before in self._buffers]

    def run(self, function: Callable[..., Any], tensors: Sequence[Any]) -> _Outcome:
        """Run it on copies of the tensors, and put everything back."""
        random = _random_states() if self._restore else []
        copies = copy_tensors(tensors)
        try:
            out = function(self._callee, *copies)
            found: list[Any] = []
            said = _shape(out, found)
            after = [owner.get_buffer(name).clone() for owner, name, _, _ in self._buffers]
            draws = not all(map(torch.equal, random, _random_states()))
            return _Outcome(said=said, outputs=found, inputs=copies, buffers=after, draws=draws)
        finally:
            if self._restore:
                _restore_random_states(random)
            for owner, name, buffer, before in self._buffers:
                if owner.get_buffer(name) is not buffer:
                    setattr(owner, name, buffer)
                buffer.copy_(before)


def _random_states() -> list[Any]:
    """Return the states of torch's generators: of the CPU, and of each GPU once CUDA is in use."""
    cuda: Any = torch.cuda
    return [torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else ())]


def _restore_random_states(states: Sequence[Any]) -> None:
    torch.set_rng_state(states[0])
    # None where CUDA was first used by the run itself: then there was no state to keep.
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))


def is_same(left: Any, right: Any) -> bool:
    """Return whether two tensors hold the same bytes: a NaN is the same as itself."""
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    try:
        plain = [each.contiguous().reshape(-1).view(torch.uint8) for each in (left, right)]
        return torch.equal(plain[0], plain[1])
    except RuntimeError:  # no plain memory: sparse, for example
        return False


class _OtherStructure(NoEntry):
    """What is returned differs in something other than a tensor; the text has values."""


def _difference(eager: _Outcome, ours: _Outcome) -> float:
    if eager.said != ours.said:
        raise _OtherStructure(f"it returns {ours.said[:100]}, and eager {eager.said[:100]}")
    left = (*eager.outputs, *eager.inputs, *eager.buffers)
    right = (*ours.outputs, *ours.inputs, *ours.buffers)
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        worst = max(worst, _distance(one, other))
    return worst


def _shape(value: Any, tensors: list[Any]) -> str:
    """Return what an output is without the tensors in it, which are added to `tensors`."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "tensor"
    text = literal(value)
    if text is not None:
        return text
    if isinstance(value, Mapping):
        parts = [f"{key!r}: {_shape(item, tensors)}" for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [_shape(item, tensors) for item in value]
    elif hasattr(value, "__dict__"):
        parts = [f"{name}={_shape(item, tensors)}" for name, item in sorted(vars(value).items())]
    else:
        text = f"it returns a {kind.__qualname__}, which cannot be compared with eager's"
        raise _OtherStructure(text)
    return f"{kind.__qualname__}({', '.join(parts)})"


def _distance(eager: Any, ours: Any) -> float:
    # Strides may differ where nobody asked for any.
    if (eager.shape, eager.dtype) != (ours.shape, ours.dtype):
        raise NoEntry(f"it gives {describe_tensor(ours)}, and eager {describe_tensor(eager)}")
    if not eager.numel():
        return 0.0
    if not eager.is_floating_point() and not eager.is_complex():
        if not torch.equal(eager, ours):
            raise NoEntry(f"it differs from eager in {eager.dtype} values")
        return 0.0
    if eager.is_complex():
        eager, ours = torch.view_as_real(eager), torch.view_as_real(ours)
    left, right = eager.double(), ours.double()
    if not torch.equal(torch.isfinite(left), torch.isfinite(right)):
        raise NoEntry("it differs from eager in what is finite")
    finite = torch.isfinite(left)
    if not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()):
        raise NoEntry("it differs from eager in what is not finite")
    if not bool(finite.any()):
        return 0.0
    largest = float(left[finite].abs().max())
    error = float((left[finite] - right[finite]).abs().max()) / max(largest, 1e-6)
    if error > _tolerance(eager):
        raise NoEntry(f"it differs from eager by {error:.1e} of the largest value")
    return error


def _tolerance(tensor: Any) -> float:
    if tensor.dtype is torch.float32 and tensor.device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        parts = (cudnn.conv, torch.backends.cuda.matmul)
        if any(part.fp32_precision == "tf32" for part in parts):
            return TF32_TOLERANCE
    return TOLERANCE.get(tensor.dtype, max(TOLERANCE.values()))


def copy_tensors(tensors: Sequence[Any], *, inference: bool | None = None) -> list[Any]:
    """Return copies that overlap and are strided just as the tensors are.

    `inference` says of which kind they are, where it is not to be that of each tensor.
    """
    storages: dict[int, Any] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        # To compiled code that is another kind of tensor.
        with torch.inference_mode(tensor.is_inference() if inference is None else inference):
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copies.append(
            empty.set_(
                storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        )
    return copies
