# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The settling calls of a starting replica: they create the state that entries depend on.

A settling call comes from user code, but runs eagerly instead of through an entry. So no call runs
twice, and random numbers and counters are the same as without serve_warm. Settling calls happen
during the replay of the declared inputs. The replay is repeated until it makes no settling call.
The build marks the entries that need settling calls (`builders.first_state`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from serve_warm.precompile.calls.eagerly import eagerly
from serve_warm.precompile.calls.forms import find_form
from serve_warm.precompile.calls.signature import Signature
from serve_warm.precompile.changes.model_state import state_of
from serve_warm.precompile.dispatch.binding import Binding
from serve_warm.precompile.dispatch.first_calls import FirstCalls
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.table import Entry, EntryTable
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.facts.plan import SETTLES, SETTLING_CALLS
from serve_warm.precompile.libraries import run

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class SettlingCallDue(Exception):
    """No entry matches this call yet: run the call eagerly."""


class SettlingCalls:
    """The settling calls of one callable in this process."""

    def __init__(self, callee: Callable[..., object], name: str, first: FirstCalls) -> None:
        self._callee = callee
        self._name = name
        self.first = first
        self._made: Counter[str] = Counter()
        """Number of settling calls so far, by the entry that needs them. Protected by the
        callable's lock."""

    def run_below(
        self, stock: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Run a call at level 1. Note whether the first such call changes the callable."""
        if self.first.have_run:
            return stock(*args, **kwargs)
        self.first.have_run, before = True, state_of(self._callee)
        value = stock(*args, **kwargs)
        self.first.make_state |= state_of(self._callee) != before
        return value

    def take(
        self,
        binding: Binding,
        call: tuple[Signature, Mapping[str, str], Sequence[torch.Tensor]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> None:
        """Raise `SettlingCallDue` if an entry for this call might match after a settling call.

        At this point, no entry in `binding` matches the call. `call` consists of the signature, the
        state and the tensors.
        """
        table, unit = binding.table, binding.unit
        if table is None or unit is None:
            return
        signature, state, tensors = call
        unfit = [*unit.entries, *table.of_other_structures(unit)]
        marked = [entry for entry in unfit if entry.plan.get(SETTLES)]
        found = next((entry for entry in marked if entry.takes(signature, state, tensors)), None)
        if found is None:
            without_code = [(entry, None) for entry in marked]
            other = find_form(without_code, self._callee, state, args, kwargs)
            found = other[0] if other is not None else None
        if found is None or self._made[found.function_key] >= SETTLING_CALLS:
            return
        if not _loads(table, found):
            return
        self._made[found.function_key] += 1
        raise SettlingCallDue

    def run(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Run a call eagerly, including every compiled callable inside it."""
        SESSION.settling_calls += 1
        logger.info("settling call: %s creates state that the entries need", self._name)
        with eagerly():
            return self._callee(*args, **kwargs)


def _loads(table: EntryTable, entry: Entry) -> bool:
    try:
        table.function(entry, run.load)
    except NoEntry:
        return False
    return True
