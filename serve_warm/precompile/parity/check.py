# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One check of an entry: its phase, its counts and its failures."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from serve_warm._records import record
from serve_warm.precompile.entries.table import Entry
from serve_warm.precompile.facts.plan import ONCE
from serve_warm.report import ParityResult

if TYPE_CHECKING:
    import torch

FAILURES_KEPT = 20
"""Maximum number of withdrawn entries that a report lists."""


class CheckedCallable(Protocol):
    """A callable whose entries are checked."""

    name: str
    callee: object

    def forget_calls(self) -> None:
        """Force a new lookup of the code at the next call of each kind."""


class Phase(Enum):
    """Which calls are checked."""

    WARMING = "warming"
    """No calls are checked: the replica replays inputs until it is proven warm."""
    CHECKING = "checking"
    """The first call of an entry is checked if its callable has no checked entry. Until a deadline,
    the first call of every other entry is checked too."""
    SERVING = "serving"
    """A call from a request is checked if `is_sampled` selects the call."""


@dataclass
class Check:
    """The state of the checks for one entry of one callable."""

    entry: Entry
    result: ParityResult | None = None
    """Result of the last check; None before the first."""
    calls: int = 0
    """Number of calls from requests, counted to decide which calls to sample."""
    kept: KeptCall | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether the entry's calls are safe to run twice, because a second run changes nothing."""
        return self.entry.plan.get(ONCE) == ""

    @property
    def call(self) -> str:
        """The call's tensors as text.

        Other arguments are left out, because they are request values.
        """
        return f"({', '.join(self.entry.signature.tensors)})"


@dataclass
class Tally:
    """The results of the checks so far. Access them only under the lock of `Checks`."""

    counts: dict[ParityResult, int] = field(default_factory=lambda: dict.fromkeys(ParityResult, 0))
    failures: list[str] = field(default_factory=list)
    """The first `FAILURES_KEPT` withdrawn entries, each with the reason."""
    failed: int = 0
    """Number of withdrawn entries."""
    worst_error: float | None = None
    """None before the first comparison."""

    near_ties: int = 0
    by_fixed_limit: int = 0
    """Number of comparisons that had no run in full precision."""

    def note(self, passed: Passed) -> None:
        """Record a comparison that found no wrong result."""
        self.worst_error = max(self.worst_error or 0.0, passed.difference)
        self.near_ties += passed.near_ties
        self.by_fixed_limit += bool(passed.fixed)

    def note_failure(self, text: str) -> None:
        """Record a withdrawn entry."""
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(text)


@record(frozen=True, kw_only=True)
class KeptCall:
    """Inputs of a call, copied for a later check."""

    dispatcher: weakref.ref[CheckedCallable]
    fn: Callable[..., object]
    tensors: Sequence[torch.Tensor]
    size_bytes: int
    thread: int
    """Native id of the thread that made the call. torch keeps some state per thread."""


@record(frozen=True, kw_only=True)
class Passed:
    """A comparison in service that found no wrong result."""

    difference: float
    """Largest difference from eager, relative to the largest value."""
    near_ties: int = 0
    """Count of integers and bools that differ, because two candidates were almost equal."""
    fixed: str = ""
    """Why the fixed limit decided; empty if it did not."""
