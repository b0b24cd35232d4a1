# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the axes on which the calls of a plan have several sizes, so that a build opens them.

torch.compile, unless it is told otherwise, compiles for the first size that it sees, and for any
size at the second. A plan names the sizes of some traffic, and the next request has another one. So
a build makes code for the most frequent sizes, and code that takes any size for all others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

import torch

from serve_warm.learn.plan import size_of
from serve_warm.learn.recorded import TENSOR, RecordedCall, numbers_in

MOST_OF_THEIR_OWN = 4
"""Maximum number of sizes that get code of their own, beside the code for any size: it is the
fastest, but takes seconds in a build, and some milliseconds at each start."""


def open_axes(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Return the calls in the order in which a build makes code for them.

    Calls that differ only in sizes belong together, but torch always makes code of its own where a
    size is 0 or 1. First come the most frequent calls. Then come the others, with the axes for
    which the build tries to make code for any size (`any_size`). Most of these find that code, and
    need none of their own.
    """
    # A plan that comes from an artifact has the axes of that build.
    calls = [dataclasses.replace(each, any_size=()) for each in calls]
    groups: dict[tuple[object, ...], list[RecordedCall]] = {}
    for each in calls:
        groups.setdefault(_form(each), []).append(each)
    opened = [each for group in groups.values() for each in _opened(group)]
    known = {each.key for each in opened}
    return [*(each for each in calls if each.key not in known), *opened]


def _opened(group: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Return the calls for which code for any size is tried, in order, with their open axes."""
    sizes = {each.key: each.sizes for each in group}
    by_tensor = zip(*sizes.values(), strict=True)
    axes = tuple(
        (tensor, axis)
        for tensor, several in enumerate(by_tensor)
        for axis, found in enumerate(zip(*several, strict=True))
        if len({*found}) > 1
    )

    def values(call: RecordedCall) -> list[int]:
        return [sizes[call.key][tensor][axis] for tensor, axis in axes]

    if not axes:
        return []
    by_calls = sorted(group, key=attrgetter("calls"), reverse=True)
    own = {each.key for each in by_calls[:MOST_OF_THEIR_OWN]}
    opened = [each for each in group if each.key not in own]
    if not opened:  # the code for any size needs one: the rarest loses least
        opened = [min(reversed(group), key=attrgetter("calls"))]
    # A model may compare its sizes: code that was made for different ones takes most others.
    opened.sort(key=lambda each: (len({*values(each)}), size_of(each)), reverse=True)
    return [dataclasses.replace(each, any_size=axes) for each in opened]


class Conditions(Protocol):
    """The open sizes of an entry, and the conditions on them."""

    def free(self, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the open axes of a tensor, and those whose strides are open."""

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the entry takes tensors of these sizes."""


def only_open(call: RecordedCall, entries: Sequence[Conditions]) -> RecordedCall:
    """Return the call with those of its axes on which one of these entries takes other sizes.

    It must take the double or the half: pooling, for example, takes only one or two neighbours.
    """
    axes = (each for each in call.any_size if any(_takes_others(call, each, e) for e in entries))
    return dataclasses.replace(call, any_size=tuple(axes))


def _takes_others(call: RecordedCall, axis: tuple[int, int], entry: Conditions) -> bool:
    tensor, place = axis
    if place not in entry.free(tensor)[0]:
        return False
    sizes = call.sizes
    size = sizes[tensor][place]
    same = [(t, a) for t, a in call.any_size if sizes[t][a] == size]
    others = {2 * size, size // 2} - {0, 1}
    for other, changed in itertools.product(others, ([axis], same)):
        tried = [list(each) for each in sizes]
        for t, a in changed:
            tried[t][a] = other
        if entry.holds(_without_memory(call, tried)):
            return True
    return False


def _without_memory(call: RecordedCall, sizes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return tensors of these sizes whose strides are like those of the call's tensors."""
    made = []
    for text, own, wanted in zip(call.tensors, call.sizes, sizes, strict=True):
        found = TENSOR.fullmatch(text)
        strides = [] if found is None else numbers_in(found["strides"])
        is_dense = strides == _dense_strides(own)
        strides = _dense_strides(wanted) if is_dense else strides
        made.append(torch.empty_strided(wanted, strides, device="meta"))
    return made


def _form(call: RecordedCall) -> tuple[object, ...]:
    """Return what is equal in calls that differ only in sizes."""
    forms = []
    for text in call.tensors:
        found = TENSOR.fullmatch(text)
        if found is None:
            return (id(call),)
        sizes, strides = (numbers_in(found[each]) for each in ("sizes", "strides"))
        is_dense = strides == _dense_strides(sizes)
        forms.append(
            (
                found["class"],
                found["dtype"],
                found["device"],
                # The axes that stay as they are.
                tuple(size if size < 2 else None for size in sizes),
                () if is_dense else tuple(strides),
            )
        )
    modes = tuple(sorted(call.modes.items()))
    made = modes, call.normal_tensors, call.on_model_thread
    return call.callable, call.number, call.structure, made, tuple(forms)


def _dense_strides(sizes: Sequence[int]) -> list[int]:
    strides, step = list[int](), 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
