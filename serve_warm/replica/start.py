# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The things that all stages of one start share: the replica, its settings, caches and journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serve_warm.compiler import pgo
from serve_warm.compiler.caches import private_directory
from serve_warm.config import WarmupConfig, point_torch_caches_at
from serve_warm.inputs import Input
from serve_warm.report import CompileEvent

if TYPE_CHECKING:
    from serve_warm.replica.journal import Journal
    from serve_warm.replica.prefetch import Prefetch
    from serve_warm.trust import Trust


class Replica(Protocol):
    """What a warm-up needs of the deployment that it runs in."""

    application: str
    deployment: str
    replica: str
    owner: Any
    """The user's object: its attributes are searched for compiled callables."""
    unwatched_compiles_before: int
    """`unwatched_compiles()` before the user's `__init__`."""

    async def warmup_inputs(self) -> Any:
        """Return what the user declared."""

    async def call(self, item: Input) -> None:
        """Replay one input as Ray Serve would."""

    def check(self, inputs: Sequence[Input]) -> None:
        """Raise `InputError` for an input whose target does not exist."""

    def serving_threads(self) -> set[int]:
        """Return the native ids of the threads that live as long as the replica."""

    def waits_for(self) -> Sequence[str]:
        """Return the names of the deployments that this one calls."""

    def largest_batch(self) -> int:
        """Return how many requests one batch of traffic can have; 1 without `@serve.batch`."""

    def trust(self) -> Trust | None:
        """Return who is trusted where the code says so, else `None`: the machine's files."""

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Return the `Input(...)` to declare for a compile of the request under way."""

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return what a request gets that would compile under `after_ready: forbid`."""


class CompileCaches:
    """Where torch's caches are pointed at, and whether its profile decides what is dynamic."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self.has_profile = False

    @property
    def directory(self) -> Path:
        """The directory that torch's caches are pointed at, private to this process."""
        return self.begin()

    def begin(self) -> Path:
        """Point torch's caches at a new directory, unless they are already, and return it.

        In Serve before the user's `__init__`, which may compile; elsewhere in the start.

        Raises:
            OSError: it cannot be made.
        """
        return self._directory or self.begin_anew()

    def begin_anew(self, directory: Path | None = None) -> Path:
        """Point torch's caches at another directory, by default a new one, and return it.

        Raises:
            OSError: it cannot be made.
        """
        self._directory = directory = directory or private_directory()
        point_torch_caches_at(directory)
        if self.has_profile:
            pgo.forget_profile()
        return directory


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the stages of one start are given; what they find out they return."""

    replica: Replica
    config: WarmupConfig
    journal: Journal
    caches: CompileCaches
    prefetched: Prefetch | None
    """What was begun during `__init__`, if anything was."""
