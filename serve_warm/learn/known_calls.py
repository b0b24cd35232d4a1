# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds again, in a microsecond, what is known of the kind of a call.

To read all that tells tensors apart takes a microsecond for each. So a call is looked up by the
shapes of its tensors alone, and one check in C++ compares the rest of all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from serve_warm.precompile.recording import is_any_autocast_enabled, tensor_check

Tensor = torch.Tensor
is_inference_mode_enabled = torch.is_inference_mode_enabled
is_grad_enabled = torch.is_grad_enabled
# In this module, because a name of another one takes longer to look up, and each call does.

CHECKS_KEPT = 4
"""Maximum number of checks for calls with the same shapes."""

LONGEST_NAME = 64
"""Maximum number of characters of a name in a key. Longer ones are not recorded."""

Known = TypeVar("Known")


class KnownCalls(Generic[Known]):
    """What is known of calls whose arguments are tensors, booleans and None."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` combinations of shapes."""
        self._most = most
        self._by_shapes: dict[
            tuple[object, ...], tuple[tuple[Callable[..., bool], Known], ...]
        ] = {}

    def find(
        self, callable_id: int, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Known | None:
        """Return what was added for such a call; None if nothing was, or it has other arguments."""
        # The key of `_look`, without its call and lists, which take a quarter of a microsecond.
        key = [callable_id, is_inference_mode_enabled(), is_grad_enabled(), *kwargs]
        tensors = (*args, *kwargs.values()) if kwargs else args
        for value in tensors:
            if type(value) is not Tensor or value.__dict__:
                looked = _look(callable_id, args, kwargs)
                return None if looked is None else self._find(*looked)
            key.append(value.shape)
        return self._find(tuple(key), tensors)

    def _find(self, shapes: tuple[object, ...], tensors: Sequence[object]) -> Known | None:
        for is_same, known in self._by_shapes.get(shapes, ()):
            # This is False, too, if a tensor is passed twice.
            if is_same(*tensors):
                return None if is_any_autocast_enabled() else known
        return None

    def add(
        self,
        callable_id: int,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        known: Known,
    ) -> None:
        """Let `find` return `known` for calls like this one, if it can find such calls."""
        looked = _look(callable_id, args, kwargs)
        if looked is None or is_any_autocast_enabled():
            return
        shapes, tensors = looked
        if len({*map(id, tensors)}) < len(tensors):  # the check would take two tensors for one
            return
        checks = self._by_shapes.get(shapes, ())
        is_full = len(self._by_shapes) >= self._most and not checks
        if is_full or len(checks) >= CHECKS_KEPT or any(len(n) > LONGEST_NAME for n in kwargs):
            return
        sizes = [list(each.shape) for each in tensors]
        strides = [list(each.stride()) for each in tensors]
        self._by_shapes[shapes] = (*checks, (tensor_check(tensors, sizes, strides), known))

    def clear(self) -> None:
        """Forget everything."""
        self._by_shapes = {}


def _look(
    callable_id: int, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], list[torch.Tensor]] | None:
    """Return the key of a call and its tensors; None for one with other arguments."""
    # The check in C++ confuses tensors that were made in inference mode with others, unless it runs
    # in the mode in which it was made. It does not look at grad mode.
    key: list[object] = [callable_id, is_inference_mode_enabled(), is_grad_enabled(), *kwargs]
    tensors: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if type(value) is Tensor and not value.__dict__:
            tensors.append(value)
            key.append(value.shape)
        elif value is None or value is True or value is False:
            key.append(value)
        else:
            return None
    return tuple(key), tensors
