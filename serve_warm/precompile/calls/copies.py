# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of a call's tensors, and its result as text and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from serve_warm.precompile.facts.names import literal
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.tensor_parts import describe_parts, has_parts, plain_parts


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors contain the same bytes. A NaN equals itself here."""
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    try:
        plain = [each.contiguous().reshape(-1).view(torch.uint8) for each in (left, right)]
        return torch.equal(plain[0], plain[1])
    except RuntimeError:  # not plain memory, for example sparse
        return False


class Different(NoEntry):
    """Compiled code has another result than eager execution."""


class OtherStructure(Different):
    """The results differ in something other than tensors. The error text quotes request values."""


def describe_result(value: object, tensors: list[torch.Tensor]) -> str:
    """Return an output as text, without its tensors, and add the tensors to `tensors`."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors.extend(plain_parts(value))
        try:
            return str(describe_parts(value)) if has_parts(value) else "tensor"
        except TypeError as error:
            raise OtherStructure(f"it returns a {kind.__qualname__}: {error}") from error
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
        raise OtherStructure(text)
    return f"{kind.__qualname__}({', '.join(parts)})"


def copy_tensors(
    tensors: Sequence[torch.Tensor], *, inference: bool | None = None
) -> list[torch.Tensor]:
    """Return copies of tensors, with the same strides and the same overlaps in memory.

    If `inference` is given, it decides whether all copies are inference tensors. By default, each
    copy is like its original.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    copies = []
    for tensor in tensors:
        storage: Any = tensor.untyped_storage()  # its method `clone` has no types
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        # Compiled code treats inference tensors differently.
        with torch.inference_mode(tensor.is_inference() if inference is None else inference):
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            own = storages[storage.data_ptr()]
            copies.append(copy.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return copies


def copy_outputs(outputs: Sequence[Any], numbers: Sequence[int]) -> list[object]:
    """Return a graph's outputs, with copies of some of them."""
    found = list(outputs)
    for number in numbers:
        found[number] = found[number].clone()
    return found
