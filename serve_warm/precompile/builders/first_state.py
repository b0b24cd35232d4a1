# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""State that a model creates on its first calls, such as a table or hooks.

A graph depends on this state, which a new model has not created yet. So a build runs *settling
calls* eagerly until one more call changes nothing, and then traces again. The build marks entries
that depend on such state, and a starting replica makes the same calls before it uses these entries
(`settling_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from serve_warm.precompile.changes.model_state import state_of
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import SETTLING_CALLS
from serve_warm.precompile.facts.table import Facts
from serve_warm.precompile.facts.torch_errors import FAILURES
from serve_warm.precompile.parity.eager import StateBefore

if TYPE_CHECKING:
    import torch


class ChangedByCall(NoEntry):
    """A call changes something that its own graph depends on."""

    def __init__(self, why: str, facts: Facts) -> None:
        super().__init__(f"the call changes something that its graph depends on: {why}")
        self.facts = facts


def settle(
    callee: object,
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    failure: NoEntry,
) -> bool:
    """Call a callable until a call changes nothing; return True if earlier calls made changes.

    The calls get copies of the tensors, and the random number state is restored afterwards. If
    every call changes something, the buffers are restored too.
    """
    kept = StateBefore(callee)
    if _settles(kept, callee, function, tensors, failure):
        return True
    kept.restore_buffers()
    return False


def _settles(
    kept: StateBefore,
    callee: object,
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    failure: NoEntry,
) -> bool:
    facts = failure.facts if isinstance(failure, ChangedByCall) else Facts()

    def read() -> tuple[Mapping[str, object], list[str]]:
        return state_of(callee), [*_broken(facts, callee)]

    before, has_changed = read(), isinstance(failure, ChangedByCall)
    for _ in range(SETTLING_CALLS):
        try:
            kept.run_and_keep(function, tensors)
        except FAILURES:  # the call itself fails
            return False
        after = read()
        if after == before:
            return has_changed
        before, has_changed = after, True
    return False


def _broken(facts: Facts, callee: object) -> Iterator[str]:
    objects = facts.objects(callee)
    for fact in facts.facts:
        yield facts.why_broken(fact, objects)
