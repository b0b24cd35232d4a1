# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""More inputs for a call that has few results: the same shapes and dtypes, other values.

Each value stays within the range of the tensor that it comes from, because it may be an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from serve_warm.precompile.eager_check import copy_tensors

SHRINK = 0.2
"""Largest part by which a float becomes smaller. Floats only shrink, because a mask may contain the
largest number of its dtype."""


def vary_tensors(tensors: Sequence[Any], seed: int) -> list[Any]:
    """Return tensors with other values, or the same tensor where another value may be wrong.

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


def _vary(tensor: Any, generator: torch.Generator) -> Any:
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
        return copy_tensors([tensor])[0].copy_(changed)  # the same strides


PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return id(tensor)


def _has_two_values(tensor: Any) -> bool:
    return bool(tensor.numel() > 2 and ((tensor == tensor.min()) | (tensor == tensor.max())).all())


def _is_sorted(tensor: Any) -> bool:
    return bool((tensor.diff(dim=-1) >= 0).all())
