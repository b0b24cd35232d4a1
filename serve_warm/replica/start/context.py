# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The state shared by all stages of a start: the replica, the settings, caches and journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serve_warm._records import record
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.caches import private_directory
from serve_warm.config import WarmupConfig, point_torch_caches_at
from serve_warm.inputs import Input
from serve_warm.report import CompileEvent

if TYPE_CHECKING:
    from serve_warm.artifact.manifest import Place
    from serve_warm.replica.record.journal import Journal
    from serve_warm.replica.start.prefetch import Prefetch
    from serve_warm.trust import Trust


class WarmupHost(Protocol):
    """The interface that a warm-up needs from its deployment."""

    application: str
    """The name under which Serve runs the application. `place` has the name in a store."""
    deployment: str
    replica: str
    owner: Any
    """The user's object, whose attributes are searched for compiled functions and modules."""
    unwatched_compiles_before: int
    """The result of `unwatched_compiles()` before the user's `__init__`."""

    @property
    def place(self) -> Place:
        """The application and deployment that this deployment's artifacts are kept for."""

    @property
    def code(self) -> str:
        """Digest of the code of the user's class."""

    @property
    def called_methods(self) -> Collection[str]:
        """The names of the methods that replayed calls reached from outside."""

    async def warmup_inputs(self) -> Any:
        """Return the user's declared inputs."""

    async def call(self, item: Input) -> None:
        """Call one input's target in the same way as Ray Serve would."""

    def check(self, inputs: Sequence[Input]) -> None:
        """Raise `InputError` for an input whose target or batch size cannot occur in traffic."""

    def serving_threads(self) -> set[int]:
        """Return the native ids of the threads that live as long as the replica."""

    def waits_for(self) -> Sequence[str]:
        """Return the names of the deployments that this deployment has handles to."""

    def list_absent(self) -> Sequence[str]:
        """Return the names of deployments that were called but have not had a replica yet."""

    def largest_batch(self) -> int:
        """Return the largest number of requests in one batch; 1 without `@serve.batch`."""

    def trust(self) -> Trust | None:
        """Return the trust settings given in code; `None` if the machine's trust files apply."""

    def no_memory(self, function: str, seconds: float) -> BaseException:
        """Return the error for an eager call that ran out of GPU memory.

        Such calls are refused for this many seconds.
        """

    async def why_not_eager(self) -> str:
        """Return why this replica must compile although the policy is `eager`; empty if not."""

    def suggest(self, event: CompileEvent, declared: Sequence[Input]) -> str:
        """Return the `Input(...)` that would have prevented a compile in the current request."""

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return the error for a request that would need a compile (`after_ready: forbid`)."""


class CompileCaches:
    """The folder of torch's caches."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    @property
    def directory(self) -> Path:
        """The directory of torch's caches, private to this process."""
        return self.begin()

    def begin(self) -> Path:
        """Make torch's caches use a new directory, unless they already use one; return its path.

        In Serve, this is called before the user's `__init__`, which might compile something.
        Outside Serve, the start itself calls this method.

        Raises:
            OSError: the directory cannot be made.
        """
        return self._directory or self.begin_anew()

    def begin_anew(self, directory: Path | None = None) -> Path:
        """Make torch's caches use a different directory, by default a new one; return its path.

        Raises:
            OSError: the directory cannot be made.
        """
        self._directory = directory = directory or private_directory()
        point_torch_caches_at(directory)
        triton_kernels.use_ptxas_of_torch()
        return directory


@record(frozen=True, kw_only=True)
class StartContext:
    """The data that the stages of one start work with. Stages return their results."""

    replica: WarmupHost
    config: WarmupConfig
    journal: Journal
    caches: CompileCaches
    prefetched: Prefetch | None
    """The work that was begun during `__init__`, if any."""


class StartStep:
    """A part of one start, which works with the data of the start."""

    def __init__(self, start: StartContext) -> None:
        self._start = start

    @property
    def _replica(self) -> WarmupHost:
        return self._start.replica

    @property
    def _config(self) -> WarmupConfig:
        return self._start.config

    @property
    def _journal(self) -> Journal:
        return self._start.journal

    @property
    def _caches(self) -> CompileCaches:
        return self._start.caches
