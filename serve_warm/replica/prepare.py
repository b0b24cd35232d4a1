# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The stage PENDING: what is replayed, what compiles it, and what this machine and app are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from serve_warm.compiler import pgo
from serve_warm.compiler.background_import import import_compiler
from serve_warm.compiler.caches import keep_headers_private
from serve_warm.compiler.compiled_objects import compile_arguments, reaches_compiled
from serve_warm.compiler.cpu_target import isa_checks, pin_portable_cpu, require_compiler
from serve_warm.compiler.watch import unwatched_compiles
from serve_warm.config import environment
from serve_warm.errors import CompilerMissing, ConfigError, WarmupTimeout
from serve_warm.fingerprint import (
    NOT_NEEDED,
    UNKNOWN,
    Fingerprint,
    gpu_in_use,
    read_app,
    read_machine,
    read_rank,
    why_no_gpu,
)
from serve_warm.inputs import Input, sort_by_size
from serve_warm.precompile.session import SESSION
from serve_warm.replica.timed_calls import Deadline
from serve_warm.report import Stage

if TYPE_CHECKING:
    from serve_warm.replica.ranks import Ranks
    from serve_warm.replica.start import Start

REMOTE_CACHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO",
)
"""Variables of torch that make it unpickle what others have stored (torch 2.13, its config)."""


CompilesWith = Literal["torch", "libraries", "nothing"]
"""What answers compiled calls, as far as a start knows before it replays: torch's compiler,
libraries alone, or nothing that compiles was found. The last two do not import the compiler before
something needs it."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the stage PENDING has found out; nothing before it has ended."""

    inputs: Sequence[Input] = ()
    """What is replayed, in order."""
    fingerprint: Fingerprint | None = None
    """None where no store is configured and torch is not imported."""
    compiles_with: CompilesWith = "nothing"
    compiled_early: int = 0
    """Frames that were compiled in `__init__`."""


class Preparation:
    """The stage PENDING of one start; `prepare` is its one verb."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._replica = start.replica
        self._config = start.config
        self._journal = start.journal
        self._prefetched = start.prefetched

    async def prepare(self, ranks: Ranks, deadline: Deadline) -> Prepared:
        """Return what is replayed, and what this start is compared with.

        Raises:
            ConfigError: the inputs or the configuration cannot be used, or ranks differ in them.
            OSError: no private directory can be made for torch's caches.
            WarmupTimeout: the user's `warmup_inputs` takes too long.
        """
        journal = self._journal
        journal.enter(Stage.PENDING)
        hidden_s = self._prefetched.hidden_s if self._prefetched else 0.0
        with journal.timed(Stage.PENDING, hidden_s=hidden_s):
            self._start.caches.begin()
            keep_headers_private(self._config.headers)
            self._choose_cpu()
            arguments = compile_arguments(self._replica.owner)
            with_ = self._compiles_with(arguments)
            if with_ == "torch":
                await prepare_compiler(self._start)
                self._need_compiler(arguments)
            self._warn_of_remote_caches()
            self._warn_of_no_group()
            early = unwatched_compiles() - self._replica.unwatched_compiles_before
            journal.compiled_early = early
            declared = await self._ask_inputs(deadline)
            inputs = sort_by_size(declared, of=type(self._replica.owner).__name__)
            journal.inputs = inputs
            self._replica.check(inputs)
            await self._plan_together(inputs, ranks, deadline)
            journal.begin_counting()
            isa_checks()
            fingerprint = None
            # Reading it imports torch, which a router has no use for.
            if "torch" in sys.modules or self._config.artifact is not None:
                fingerprint = journal.fingerprint = await self._fingerprint(
                    arguments, needs_compiler=with_ != "libraries"
                )
        return Prepared(
            inputs=inputs, fingerprint=fingerprint, compiles_with=with_, compiled_early=early
        )

    def _compiles_with(self, arguments: Mapping[str, str]) -> CompilesWith:
        if only_libraries(arguments):
            return "libraries"
        compiles = (
            bool(arguments)
            or SESSION.has_callables()
            or self._config.pgo == "on"  # the profile has to be there before the first compile
            or reaches_compiled(self._replica.owner)
        )
        return "torch" if compiles else "nothing"

    async def _fingerprint(
        self, arguments: Mapping[str, str], *, needs_compiler: bool
    ) -> Fingerprint:
        # On this thread, not in a worker: grad mode, autocast and current GPU are the thread's.
        cpu, device = self._config.cpu, gpu_in_use()
        with self._journal.timeline.span("fingerprint"):
            app = read_app(environment(), compile_arguments=arguments, cpu=cpu)
            machine = await asyncio.to_thread(read_machine, environment(), cpu=cpu, device=device)
        if machine["gpu"] == UNKNOWN:
            self._journal.warn(await asyncio.to_thread(why_no_gpu, environment()))
        if not needs_compiler:
            machine["compiler"] = NOT_NEEDED
        return Fingerprint(machine=machine, app=app)

    def _choose_cpu(self) -> None:
        lacking = pin_portable_cpu() if self._config.cpu == "portable" else ()
        if lacking:
            self._journal.warn(
                f"cpu: portable needs AVX2 (x86-64-v3), and this CPU lacks {' '.join(lacking)}: "
                "no portable artifact fits it, and it compiles for itself alone"
            )

    def _need_compiler(self, arguments: Mapping[str, str]) -> None:
        try:
            require_compiler(environment())
        except CompilerMissing as error:
            if any(words.startswith("inductor") for words in arguments.values()):
                raise
            # Nothing that Inductor compiles was found: a model that is not compiled needs none.
            self._journal.warn(str(error))

    def _warn_of_remote_caches(self) -> None:
        values = environment()
        on = [name for name in REMOTE_CACHES if values.get(name, "0") not in ("", "0")]
        if on:
            self._journal.warn(
                f"{', '.join(on)}: torch loads what it finds in its remote cache without any "
                "signature; switch it off where an artifact is used"
            )

    def _warn_of_no_group(self) -> None:
        if self._config.ranks == "together" and read_rank() is None:
            self._journal.warn(
                "ranks: together does nothing here: this process has no process group of several "
                "ranks. Call torch.distributed.init_process_group in __init__"
            )

    async def _ask_inputs(self, deadline: Deadline) -> Any:
        late = WarmupTimeout(
            f"warmup_inputs() did not return within {deadline.seconds:.0f} s",
            hint="declare inputs without waiting for other deployments; replays may wait",
            stage=Stage.PENDING.value,
        )
        try:
            with self._journal.timeline.span("warmup_inputs()"):
                declared = await asyncio.wait_for(self._replica.warmup_inputs(), deadline.left())
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise late from error
        if deadline.left() < 0:  # it has blocked the loop, where nothing could cancel it
            raise late
        return declared

    async def _plan_together(
        self, inputs: Sequence[Input], ranks: Ranks, deadline: Deadline
    ) -> None:
        """Have all ranks replay the same, equally often."""
        if ranks.size > 1 and self._config.after_ready == "forbid":
            raise ConfigError(
                "after_ready: forbid is not for ranks that compute together: one that refuses a "
                "request leaves the others waiting for it",
                hint="leave it at count; compiles in traffic are seen all the same",
            )
        plan = {
            "inputs": [item.name for item in inputs],
            "max_passes": self._config.max_passes,
            "on_uncovered": self._config.on_uncovered,
        }
        with self._journal.timeline.span("the other ranks"):
            plans = await ranks.agree("its inputs", plan, timeout_s=deadline.left())
        for rank, theirs in enumerate(plans):
            differing = [name for name, value in plan.items() if theirs[name] != value]
            if differing:
                name = differing[0]
                raise ConfigError(
                    f"rank {ranks.rank} has {name} {plan[name]}, and rank {rank} has "
                    f"{theirs[name]}",
                    hint="all ranks replay the same inputs under the same settings: each of them "
                    "waits for the others in every collective",
                )


async def prepare_compiler(start: Start) -> None:
    """Import torch's compiler, so that a stage pays for it, and see to its profile."""
    # Nothing where it was done during __init__; where that is under way this waits for it.
    with start.journal.timeline.span("torch's compiler"):
        await asyncio.to_thread(import_compiler)
    late = start.prefetched.set_too_late if start.prefetched is not None else ()
    if late:
        start.journal.warn(
            f"{', '.join(late)}: set in __init__, after torch's compiler had read its "
            "variables; with an artifact it is imported while __init__ runs. Set them in "
            "runtime_env, or above the class"
        )
    if start.config.pgo == "on":
        why = pgo.keep_profile(start.replica.deployment)
        start.caches.has_profile = not why
        if why:
            start.journal.warn(f"pgo: on does nothing here: {why}")


def only_libraries(arguments: Mapping[str, str]) -> bool:
    """Return whether libraries are asked for in all that is compiled, as far as that is known.

    `arguments` are those of what was found on the user's object.
    """
    if any(words.startswith("inductor") for words in arguments.values()):
        return False
    return SESSION.has_libraries_only()
