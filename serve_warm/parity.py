# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How far compiled code is from eager, and how far it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from serve_warm.calls import module_of
from serve_warm.facts import NoEntry, describe_tensor, literal

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
    on copies, and the module is left as it was.

    Raises:
        NoEntry: it is too far; such an entry is never published.
    """
    module = module_of(callee)
    owners = list(module.modules()) if module is not None else []
    # Where they are as well as what is in them: a forward may assign `self.cache`.
    kept = [
        (owner, name, buffer, buffer.clone())
        for owner in owners
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    results = []
    for run in (function, compiled):
        random = torch.get_rng_state()
        copies = copied(tensors)
        try:
            out = run(callee, *copies)
            found: list[Any] = []
            said = _shape(out, found)
            after = [owner.get_buffer(name).clone() for owner, name, _, _ in kept]
            results.append((said, [*found, *copies, *after]))
        finally:
            torch.set_rng_state(random)
            for owner, name, buffer, before in kept:
                if owner.get_buffer(name) is not buffer:
                    setattr(owner, name, buffer)
                buffer.copy_(before)
    (eager_said, eager), (our_said, ours) = results
    if eager_said != our_said:
        raise NoEntry(f"it returns {our_said[:100]}, and eager {eager_said[:100]}")
    worst = 0.0
    for left, right in zip(eager, ours, strict=True):
        worst = max(worst, _distance(left, right))
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
        raise NoEntry(f"it returns a {kind.__qualname__}, which cannot be compared with eager's")
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


def copied(tensors: Sequence[Any], *, inference: bool | None = None) -> list[Any]:
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
