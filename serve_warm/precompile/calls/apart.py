# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the tensors of a call overlap in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.tensor_parts import plain_parts

MOST_ADDRESSES = 64
"""Maximum number of address sets that one graph remembers. Modules that share a graph have
different addresses."""


Addresses = tuple[int, ...]
"""The address of the first element of each tensor, in the order of the tensors."""


_address_of = torch.Tensor.data_ptr


def addresses_of(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Return the addresses of tensors; takes 70 ns per tensor."""
    return tuple(map(_address_of, tensors))


class ApartInMemory:
    """Refuses a graph's tensors if they overlap in memory; otherwise remembers their addresses.

    Overlap depends on addresses, sizes and strides. Other checks of a graph cover sizes and
    strides. So if the sizes are fixed, only the addresses matter. Reading the addresses takes a
    tenth of the time that `refuse_overlap` takes, which matters for models with hundreds of
    weights.
    """

    def __init__(self) -> None:
        self.has_fixed_sizes = True
        self._found: set[Addresses] = set()
        self._latest: Addresses = ()
        """The latest addresses without overlap. Most calls have the same addresses, and comparing
        addresses takes less time than hashing them."""

    def check(self, args: Sequence[Any]) -> Addresses | None:
        """Raise `NoEntry` if two tensors share memory; return the addresses if they were read."""
        if not self.has_fixed_sizes:
            refuse_overlap(args)
            return None
        addresses = addresses_of(args)
        if addresses == self._latest:
            return addresses
        if addresses not in self._found:
            refuse_overlap(args)
            if len(self._found) >= MOST_ADDRESSES:
                self._found.clear()
            self._found.add(addresses)
        self._latest = addresses
        return addresses


def refuse_overlap(args: Sequence[object]) -> None:
    """Raise `NoEntry` if two tensors share memory. Takes a few µs if no memory is shared."""
    plain = [each for arg in args if isinstance(arg, torch.Tensor) for each in plain_parts(arg)]
    tensors = [each for each in plain if each.numel()]
    spans = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        spans.append((start, start + storage.nbytes()))
    if not _meet(spans):
        return
    # Parts of one storage, as in caches: compare from the first element to the last.
    spans = []
    for tensor in tensors:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((start, start + (last + 1) * tensor.element_size()))
    if _meet(spans):
        raise NoEntry("it writes to a tensor that overlaps another tensor in memory")


def _meet(spans: list[tuple[int, int]]) -> bool:
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            return True
        end = stop
    return False
