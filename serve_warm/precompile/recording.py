# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What the recorder of live calls and its replays need of the dispatchers."""

from __future__ import annotations

from collections.abc import Iterator

from serve_warm.precompile.calls.signature import Signature, describe_structure
from serve_warm.precompile.dispatch.call_counts import CallCounts
from serve_warm.precompile.dispatch.dispatcher import Dispatcher
from serve_warm.precompile.dispatch.session import SESSION

__all__ = ["CallCounts", "Dispatcher", "Signature", "describe_structure", "find_callables"]


def find_callables(name: str, number: int) -> Iterator[Dispatcher]:
    """Yield the dispatchers of the compiled callable with this name and number.

    The number counts the callables of this name, in the order in which they were compiled.
    """
    same = [counts for counts in SESSION.counts if counts.name == name]
    if number < len(same):
        for dispatcher in SESSION.dispatchers:
            if isinstance(dispatcher, Dispatcher) and dispatcher.call_counts is same[number]:
                yield dispatcher
