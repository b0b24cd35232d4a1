# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The progress of a replay, which observers read while the replay runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from serve_warm.inputs import Input
from serve_warm.report import InputResult

HEALTH_CHECK = "check_health"
"""Method that Serve calls to ask for a replica's health, and target and name of the input that
replays it."""


@dataclass
class Progress:
    """What a replay has done so far."""

    inputs: Sequence[Input] = ()
    passes: int = 0
    """Number of passes begun."""
    done: int = 0
    """Number of inputs replayed in the current pass."""
    first_s: dict[str, float] = field(default_factory=dict)
    steady_s: dict[str, float] = field(default_factory=dict)
    compiles: dict[str, int] = field(default_factory=dict)
    worked: set[str] = field(default_factory=set)
    """Names of the inputs whose replay compiled, captured or tuned anything."""
    unproven: dict[str, str] = field(default_factory=dict)
    """For each input that is not proven, its name and the reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """For each input that ran out of memory, or is a call of a plan that cannot be repeated, the
    reason; no pass replays these inputs."""
    proven: set[str] = field(default_factory=set)
    threads: set[int] = field(default_factory=set)
    """Native ids of the threads that made compiled calls in the proof pass."""
    has_compiled: bool = True
    """Whether compiled functions exist in this process, as far as the proof has shown."""

    def results(self) -> tuple[InputResult, ...]:
        """Return one record for each input, in replay order."""
        return tuple(
            InputResult(
                name=item.name,
                proven=item.name in self.proven,
                first_s=self.first_s.get(item.name, 0.0),
                steady_s=self.steady_s.get(item.name, 0.0),
                compiles=self.compiles.get(item.name, 0),
                note=""
                if item.name in self.proven
                else self.unproven.get(item.name) or self.left_out.get(item.name, "not reached"),
                left_out=item.name in self.left_out,
            )
            for item in self.inputs
        )
