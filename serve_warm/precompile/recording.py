# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What the recorder of live calls and its replays need of the dispatchers."""

from __future__ import annotations

from collections.abc import Iterator

from serve_warm.precompile.calls.signature import Signature, describe_structure
from serve_warm.precompile.dispatch.call_counts import CallCounts, Use
from serve_warm.precompile.dispatch.dispatcher import Dispatcher
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.private_apis.nn_module import own_buffers
from serve_warm.private_apis.torch_c import is_any_autocast_enabled, tensor_check

__all__ = [
    "CallCounts",
    "Dispatcher",
    "Signature",
    "Use",
    "count_callables",
    "describe_structure",
    "find_callables",
    "is_any_autocast_enabled",
    "list_living",
    "ordered_counts",
    "own_buffers",
    "tensor_check",
]


def ordered_counts() -> list[CallCounts]:
    """Return the counts of all callables, in the order of their compilation.

    Callables that no longer exist are last: after an update, an application may have compiled its
    model again, and a start compiles it once.
    """
    living = list_living()
    return sorted(SESSION.counts, key=lambda counts: id(counts) not in living)


def list_living() -> set[int]:
    """Return the ids of the counts of the callables that still exist."""
    return {id(each.call_counts) for each in _dispatchers()}


def find_callables(name: str, number: int) -> Iterator[Dispatcher]:
    """Yield the dispatchers of the compiled callable with this name and number.

    The number counts the callables of this name, in the order in which they were compiled. If there
    are fewer, it is the last one, because where the call was recorded, there may have been older
    ones.
    """
    if same := _named(name):
        yield from same[min(number, len(same) - 1)]


def count_callables(name: str) -> int:
    """Return the number of compiled callables with this name that still exist."""
    return len(_named(name))


def _named(name: str) -> list[list[Dispatcher]]:
    """Return the dispatchers of each callable with this name, in the order of compilation."""
    by_counts: dict[int, list[Dispatcher]] = {}
    for each in _dispatchers():
        by_counts.setdefault(id(each.call_counts), []).append(each)
    same = (id(counts) for counts in ordered_counts() if counts.name == name)
    return [by_counts[each] for each in same if each in by_counts]


def _dispatchers() -> Iterator[Dispatcher]:
    return (each for each in SESSION.dispatchers if isinstance(each, Dispatcher))
