# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start: the stages, their deadlines, the policies. Nothing else knows the order.

A `Warmup` is one start of one replica. It asks a `Replica` for what only the deployment knows
(its inputs, how to call them, what it compiles with) and tells its observers of each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serve_warm import _private_folders
from serve_warm._redaction import redact, shorten
from serve_warm.artifact.archive import pack_directory
from serve_warm.artifact.choose import Considered
from serve_warm.artifact.pull import Pulled
from serve_warm.artifact.pull import pull as pull_artifact
from serve_warm.compiler import cuda_graphs, pgo
from serve_warm.compiler.background_import import import_compiler, is_imported
from serve_warm.compiler.caches import (
    defer_precompiled_headers,
    keep_headers_private,
    load_torch_bytes,
    private_directory,
    save_torch_bytes,
)
from serve_warm.compiler.compiled_objects import (
    compile_arguments,
    reaches_compiled,
    uses_cuda_graphs,
)
from serve_warm.compiler.cpu_target import isa_checks, pin_portable_cpu, require_compiler
from serve_warm.compiler.watch import Watch, unwatched_compiles, watch_process
from serve_warm.config import WarmupConfig, environment, point_torch_caches_at
from serve_warm.errors import (
    ArtifactNotFound,
    ArtifactRefused,
    CompilerMissing,
    ConfigError,
    NotProven,
    ServeWarmError,
    StoreDenied,
    StoreError,
    WarmupFailed,
    WarmupTimeout,
)
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
from serve_warm.inputs import Input, ordered
from serve_warm.precompile.facts import ENTRIES_FORMAT
from serve_warm.precompile.session import SESSION
from serve_warm.replica import prefetch, ranks
from serve_warm.replica.replay import PROOF_ATTEMPTS, Deadline, Replay
from serve_warm.replica.watchdog import Watchdog
from serve_warm.report import (
    ArtifactUse,
    CompileEvent,
    Counts,
    Coverage,
    DeviceMemory,
    Report,
    Stage,
    StageTime,
    Verdict,
)
from serve_warm.stores import kind_of, open_store

if TYPE_CHECKING:
    from serve_warm.precompile.entry_checks import Checks
    from serve_warm.trust.policy import Trust

logger = logging.getLogger(__name__)

RETRY_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between tries of a store that does not answer, the last one repeated, until
`pull_deadline_s`. They stand here and not in Serve: a start that fails is begun anew at once."""

EVENT_LOG_PERIOD_S = 10.0
"""At most one log line in this time for compiles after ready; the rest is counted in it."""

LOG_PREFIX = "warmup_"
"""Before the names of our fields of a log record, of which other packages have some, too."""

SIZES_OF_A_GRAPH = 8
"""Above this many sizes of one graph torch warns, too (2.13: `cudagraph_dynamic_shape_warn_limit`).
"""

REMOTE_CACHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO",
)
"""Variables of torch that make it unpickle what others have stored (torch 2.13, its config)."""

LEVEL_PARTS = {2: "precompiled", 3: "exported"}
"""The part of an artifact that has the entries of a level."""

LATE = "late: "
"""How the reason begins that a replica is degraded for because of its deadline."""

TRACE_LINES = 50
"""Variants that a report lists; whoever may write to a store decides how many there are."""

ISA_FACT = "isa_checks"
"""Name of the manifest fact that holds torch's ISA probe answers."""


class Replica(Protocol):
    """What a warm-up needs of the deployment that it runs in."""

    application: str
    deployment: str
    replica: str
    owner: Any
    """The user's object: its attributes are searched for compiled callables."""
    unwatched_compiles_before: int
    """`compiler.unwatched_compiles()` before the user's `__init__`."""

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

    def trust(self) -> Trust | None:
        """Return who is trusted where the code says so, else `None`: the machine's files."""

    def refusal(self, event: CompileEvent) -> BaseException:
        """Return what a request gets that would compile under `after_ready: forbid`."""


Observer = Callable[[Report], None]


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """An artifact that may be loaded."""

    pulled: Pulled
    directory: Path | None
    """Where its part `cache` is unpacked already, if it is."""
    unpacked_early_s: float


class Warmup:
    """One start of one replica: `prove()` once, then `become_ready()` once it may serve.

    `report()` at any time and from any thread.
    """

    def __init__(
        self,
        replica: Replica,
        config: WarmupConfig,
        *,
        cache_directory: Path | None = None,
        prefetched: prefetch.Prefetch | None = None,
        known: Report | None = None,
        end_process: Callable[[], None] | None = None,
    ) -> None:
        # `end_process` is called where a deadline has passed and the event loop is blocked: in
        # Serve, which starts another replica. Elsewhere the loop's own end of it is waited for.
        # Of `known` is kept what the deployment alone knows of a start: where it runs, since when,
        # of which image and with which versions.
        self._replica = replica
        self._known = known or Report(
            application=replica.application,
            deployment=replica.deployment,
            replica=replica.replica,
            created_boot_s=_boot_s(),
        )
        self._config = config
        self._prefetch = prefetched
        self._end_process = end_process
        self._observers: tuple[Observer, ...] = ()
        self.cache_directory = cache_directory
        """Where torch's caches are pointed at; private to this process."""
        self.fingerprint: Fingerprint | None = None
        """What this start was compared with; read before anything is pulled."""
        self.inputs: Sequence[Input] = ()
        """What is replayed, in order; known once the start has begun."""
        self._by_profile = False
        self._stage = Stage.PENDING
        self._entered: tuple[Stage | None, float] = (None, 0.0)
        self._ended_boot_s: float | None = None
        self._times: list[StageTime] = []
        self._verdict = Verdict.OFF
        self._degraded: list[str] = []
        self._warnings: list[str] = []
        self._artifact: ArtifactUse | None = None
        self._replay: Replay | None = None
        self.checks: Checks | None = None
        """Of entries against eager; None without entries."""
        self._ranks = ranks.Ranks()
        self._compiled_early = 0
        self._has_libraries = False
        self._libraries_only = False
        """Whether libraries are asked for in all that is compiled: then nothing of torch's compiler
        is imported before something needs it."""
        self._compiler_from_app = False
        self._ready_unix: float | None = None
        self._error = ""
        self._seen: Watch | None = None
        self._at_start = Counts()
        self._at_ready: Counts | None = None
        self._warmup_counts = Counts()
        self._memory: tuple[DeviceMemory, ...] = ()
        self._captures_in_memory = 0
        """Captures after ready that the above has seen."""
        self._to_proof_s = 0.0
        self._cpu_s = 0.0
        self._started_unix = 0.0
        self._log_silent_until = 0.0
        self._unlogged = 0

    def observe(self, observers: Sequence[Observer]) -> None:
        """Call each of `observers` with the report whenever it changes."""
        self._observers = tuple(observers)

    async def run(self) -> Report:
        """Warm up, prove it and become ready, or raise what `prove` does."""
        await self.prove()
        report = self.become_ready()
        if self.checks is not None:
            self.checks.drop_kept()  # nobody says here when there is time for them
        return report

    async def prove(self) -> None:
        """Warm up and prove it, or raise: returning means that the replica may become ready.

        Raises:
            WarmupFailed: an input, a deadline or a policy says that it may not.
            ConfigError: the inputs, the trust files or the configuration cannot be used.
        """
        self._started_unix = time.time()
        start = time.perf_counter()
        deadline = Deadline(self._config.deadline_s)
        imported_early = self._prefetch is not None and self._prefetch.imported_compiler
        self._compiler_from_app = is_imported() and not imported_early
        if self._prefetch is not None:
            self._prefetch.init_ended()
        try:
            try:
                with self._watched(deadline), self._together() as self._ranks:
                    await self._prepare(deadline)
                    await self._load(deadline)
                    await self._replay_and_prove(deadline)
                    if await self._withdraws_entries():
                        # What answers their calls now is not warm yet.
                        await self._replay_and_prove(deadline)
                    self._judge()
                    # None serves before all may: its first request would wait for the others.
                    await self._ranks.agree("being ready", None, timeout_s=deadline.left())
            except WarmupTimeout as error:
                if not self._serves_late():
                    raise
                self._mark_late(error)
                logger.warning("served late, by on_deadline: serve: %s", error)
            self._to_proof_s = time.perf_counter() - start
        finally:
            if self._prefetch is not None:
                self._prefetch.drop()  # nothing, where it was taken
            self._cpu_s = _cpu_seconds()
            raised = sys.exc_info()[1]
            if raised is not None:
                # Whatever it is, the user's own exceptions included: this start has ended, and
                # who reads the state file must see it.
                self._to_proof_s = time.perf_counter() - start
                self._fail(raised)

    # The deadline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self, deadline: Deadline) -> Iterator[None]:
        """Have the deadlines looked at while the event loop is blocked, where that is of use."""
        if self._end_process is None:
            yield
            return
        watchdog = Watchdog(
            functools.partial(self._overdue, deadline), late=self._late, stuck=self._stuck
        )
        try:
            yield
        finally:
            watchdog.stop()

    def _overdue(self, deadline: Deadline) -> WarmupTimeout | None:
        late = self._replay.overdue() if self._replay is not None else None
        if late is not None or deadline.left() > 0:
            return late
        return WarmupTimeout(
            f"the warm-up did not end within {deadline.seconds:.0f} s; it is {self._stage.value}",
            hint="raise deadline_s, or set on_deadline: serve",
            stage=self._stage.value,
        )

    def _serves_late(self) -> bool:
        # Of several ranks the others are in the middle of what this one has left.
        return self._config.on_deadline == "serve" and self._ranks.size == 1

    def _mark_late(self, error: WarmupTimeout) -> None:
        self._verdict = Verdict.LATE
        others = [why for why in self._degraded if not why.startswith(LATE)]
        self._degraded = [*others, f"{LATE}{error.message}"]

    def _late(self, error: WarmupTimeout) -> None:
        """Say late while the loop may be blocked: whoever looks need not wait for it."""
        if self._serves_late():
            self._mark_late(error)
            self._tell()

    def _stuck(self, error: WarmupTimeout, where: str) -> None:
        """Fail the start and end the process, since nothing on its event loop can do so.

        Where it is served late this only says what blocks it: the loop goes on by itself.
        """
        if self._serves_late():
            logger.warning("late, and the event loop is blocked in %s", where)
            return
        self._fail(
            WarmupTimeout(
                f"{error.message}; the event loop is blocked in {where}, and this process ends",
                hint="call what takes long with `await self.on_model_thread(...)`; " + error.hint,
                stage=error.stage,
            )
        )
        if self._end_process is not None:
            self._end_process()

    def become_ready(self) -> Report:
        """Say READY after the proof, once, and return the report.

        What is compiled from here on is traffic's. What was compiled since the proof counts as the
        warm-up's.
        """
        if self._stage is Stage.READY:
            return self.report()
        # The deadline may have passed before anything was watched: traffic is, all the same.
        self._seen = seen = self._seen or watch_process()
        at_ready = seen.counts()
        self._warmup_counts = at_ready - self._at_start
        if self._compiled_early:
            self._warnings.append(
                f"{self._compiled_early} frames were compiled in __init__, before the artifact was "
                "loaded: do not call the model there, declare the call in warmup_inputs()"
            )
        compiled = self._warmup_counts
        if compiled.graph_skips:
            self._warnings.append(_skipped(compiled.graph_skips, seen.events()))
        self._warnings += _many_sizes(e for e in seen.events() if e.at_unix >= self._started_unix)
        compiled_any = (
            compiled.compiler_processes
            or compiled.kernels
            or compiled.tunings
            or compiled.fx_misses
            or compiled.fx_bypasses
        )
        left_out = self._replay.progress.left_out if self._replay is not None else ()
        withdrawn = self.checks.failed if self.checks is not None else 0
        not_full = compiled_any or self._compiled_early or left_out or withdrawn
        if self._verdict is Verdict.FULL_HIT and not_full:
            self._verdict = Verdict.PARTIAL
        self._memory = cuda_graphs.memory()
        self._ready_unix = time.time()
        self._at_ready = at_ready
        seen.on_event = self._after_ready
        if self._config.after_ready == "forbid":
            seen.forbidden = self._replica.refusal
        if self.checks is not None:
            self.checks.serve()
        self._enter(Stage.READY)
        report = self.report()
        why = "; ".join(self._degraded) or (report.artifact.reason if report.artifact else "")
        fields = self._fields("verdict", verdict=self._verdict.value, reason=why)
        logger.info("warm-up done\n%s", report.text(), extra=fields)
        return report

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ServeWarmError):
            hint = f"\nhint: {shorten(error.hint)}" if error.hint else ""
            self._error = shorten(error.message) + hint
        else:
            self._error = shorten(redact(f"{type(error).__name__}: {error}"))
        self._enter(Stage.FAILED)
        fields = self._fields("verdict", verdict="failed", reason=self._error)
        logger.error("warm-up failed: %s", self._error, extra=fields)

    def report(self) -> Report:
        """Return what has happened until now."""
        progress = self._replay.progress if self._replay is not None else None
        results = progress.results() if progress else ()
        steady_s = sum(result.steady_s for result in results)
        passes = progress.passes if progress else 0
        seen, at_ready = self._seen, self._at_ready
        after = seen.counts() - at_ready if seen and at_ready else Counts()
        events = seen.events() if seen and at_ready else ()
        now = (seen.counts() - self._at_start) if seen and not at_ready else self._warmup_counts
        return dataclasses.replace(
            self._known,
            stage=self._stage,
            verdict=self._verdict,
            degraded=tuple(self._degraded),
            covered=Coverage(
                expected=len(results), proven=sum(result.proven for result in results)
            ),
            stages=tuple(self._times),
            inputs=results,
            passes=passes,
            inputs_done=self.done_in_pass,
            to_proof_s=self._to_proof_s,
            overhead_s=max(0.0, self._to_proof_s - passes * steady_s),
            cpu_s=self._cpu_s,
            warmup=now,
            after_ready=after,
            events=tuple(e for e in events if e.at_unix >= (self._ready_unix or 0.0)),
            memory=self._memory_after(after),
            artifact=self._artifact,
            entries=SESSION.uses(),
            parity=self.checks.report() if self.checks is not None else None,
            compiler_imported=self._compiler_imported(),
            fingerprint=self.fingerprint.to_json() if self.fingerprint else None,
            threads=tuple(sorted(progress.threads)) if progress else (),
            warnings=tuple(self._warnings),
            error=self._error,
            versions={**self._known.versions, **(_torch_versions() if seen else {})},
            pid=os.getpid(),
            started_unix=self._started_unix,
            elapsed_s=self._elapsed_s(),
            ready_unix=self._ready_unix,
            deadline_s=self._config.deadline_s,
            artifact_configured=self._config.artifact is not None,
        )

    def _memory_after(self, after: Counts) -> tuple[DeviceMemory, ...]:
        # Some ms at each look would be too many; what a graph holds changes when one is captured.
        if after.captures != self._captures_in_memory:
            self._memory, self._captures_in_memory = cuda_graphs.memory(), after.captures
        return self._memory

    def _elapsed_s(self) -> float:
        end_s = _boot_s() if self._ended_boot_s is None else self._ended_boot_s
        return max(0.0, end_s - self._known.created_boot_s)

    def _compiler_imported(self) -> str:
        if not is_imported():
            return ""
        return "app" if self._compiler_from_app else "start"

    async def pack(self) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        """Return the raw parts of an artifact, and what its manifest says about the build.

        Once per process, after `run()`. Replays the inputs once more where something was handed
        to `serve_warm.compile`, and makes an entry for each kind of call.
        """
        with self._together() as self._ranks:
            return await self._pack()

    def _together(self) -> contextlib.AbstractContextManager[ranks.Ranks]:
        alone = contextlib.nullcontext(ranks.Ranks())
        return ranks.joined() if self._config.ranks == "together" else alone

    async def _pack(self) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        if self.cache_directory is None or self._replay is None:  # pragma: no cover  (after run)
            raise AssertionError
        facts = dict(build_facts(self.report()))
        if self._by_profile:
            await self._compile_by_profile()
        entries: dict[str, Mapping[str, bytes]] = {}
        if SESSION.has_callables():
            with SESSION.building() as table:
                await self._replay_again().once()
                # Once more: an entry that answers now is of a state that comes back, such as an
                # adapter that another input switches off.
                await self._replay_again().once()
            for level, name in LEVEL_PARTS.items():
                if table.has_entries(level):
                    entries[name] = table.to_files(level)
            facts["entries"] = table.described()
            facts[ENTRIES_FORMAT] = table.format
        return pack_parts(self.cache_directory, entries), facts

    async def _compile_by_profile(self) -> None:
        """Compile what starts with this profile will: graphs that this one had no need of.

        With batches of 8 and 1, for example, the profile says that the batch changes, and the
        first graph of such a start is one for all batches. Here it was one for 8.
        """
        seen = watch_process()
        of_traffic = seen.on_event, seen.forbidden
        seen.on_event, seen.forbidden = None, None
        pgo.begin_anew()
        try:
            await self._replay_again().until_quiet()
        finally:
            seen.on_event, seen.forbidden = of_traffic

    def _replay_again(self) -> Replay:
        return Replay(
            self.inputs,
            self._replica.call,
            seen=watch_process(),
            deadline=Deadline(self._config.deadline_s),
            input_deadline_s=self._config.input_deadline_s,
            max_passes=self._config.max_passes,
            ranks=self._ranks,
            changed=self._tell,
        )

    @property
    def done_in_pass(self) -> int:
        """Inputs replayed in the pass under way."""
        return self._replay.progress.done if self._replay is not None else 0

    # The steps, in their order --------------------------------------------------------------

    async def _prepare(self, deadline: Deadline) -> None:
        self._enter(Stage.PENDING)
        with self._timed(
            Stage.PENDING, hidden_s=self._prefetch.hidden_s if self._prefetch else 0.0
        ):
            if self.cache_directory is None:
                self._new_cache_directory()
            keep_headers_private()
            self._choose_cpu()
            arguments = compile_arguments(self._replica.owner)
            self._libraries_only = _only_libraries(arguments)
            if not self._libraries_only:
                await self._import_compiler()
                self._need_compiler(arguments)
            self._warn_of_remote_caches()
            self._warn_of_no_group()
            self._compiled_early = unwatched_compiles() - self._replica.unwatched_compiles_before
            declared = await self._declared(deadline)
            self.inputs = ordered(declared, of=type(self._replica.owner).__name__)
            self._replica.check(self.inputs)
            await self._plan_together(deadline)
            self._seen = watch_process()
            self._at_start = self._seen.counts()
            isa_checks()
            # On this thread, not in a worker: grad mode, autocast and current GPU are the thread's.
            cpu, device = self._config.cpu, gpu_in_use()
            app = read_app(environment(), compile_arguments=arguments, cpu=cpu)
            machine = await asyncio.to_thread(read_machine, environment(), cpu=cpu, device=device)
            if machine["gpu"] == UNKNOWN:
                why = await asyncio.to_thread(why_no_gpu, environment())
                self._warnings.append(why)
                logger.warning("%s", why)
            if self._libraries_only:
                machine["compiler"] = NOT_NEEDED
            self.fingerprint = Fingerprint(machine=machine, app=app)

    async def _import_compiler(self) -> None:
        # Nothing where it was done during __init__; where that is under way this waits for it.
        await asyncio.to_thread(import_compiler)
        self._warn_of_late_settings()
        self._keep_profile()

    def _choose_cpu(self) -> None:
        lacking = pin_portable_cpu() if self._config.cpu == "portable" else ()
        if lacking:
            text = (
                f"cpu: portable needs AVX2 (x86-64-v3), and this CPU lacks {' '.join(lacking)}: "
                "no portable artifact fits it, and it compiles for itself alone"
            )
            self._warnings.append(text)
            logger.warning("%s", text)

    def _keep_profile(self) -> None:
        if self._config.pgo == "off":
            return
        why = pgo.keep_profile(self._replica.deployment)
        self._by_profile = not why
        if why:
            text = f"pgo: on does nothing here: {why}"
            self._warnings.append(text)
            logger.warning("%s", text)

    def _need_compiler(self, arguments: Mapping[str, str]) -> None:
        try:
            require_compiler(environment())
        except CompilerMissing as error:
            if any(words.startswith("inductor") for words in arguments.values()):
                raise
            # Nothing that Inductor compiles was found: a model that is not compiled needs none.
            self._warnings.append(str(error))
            logger.warning("%s", error)

    def _warn_of_remote_caches(self) -> None:
        values = environment()
        on = [name for name in REMOTE_CACHES if values.get(name, "0") not in ("", "0")]
        if on:
            self._warnings.append(
                f"{', '.join(on)}: torch loads what it finds in its remote cache without any "
                "signature; switch it off where an artifact is used"
            )

    def _warn_of_no_group(self) -> None:
        if self._config.ranks == "together" and read_rank() is None:
            text = (
                "ranks: together does nothing here: this process has no process group of several "
                "ranks. Call torch.distributed.init_process_group in __init__"
            )
            self._warnings.append(text)
            logger.warning("%s", text)

    def _warn_of_late_settings(self) -> None:
        late = self._prefetch.set_too_late if self._prefetch is not None else ()
        if late:
            self._warnings.append(
                f"{', '.join(late)}: set in __init__, after torch's compiler had read its "
                "variables; with an artifact it is imported while __init__ runs. Set them in "
                "runtime_env, or above the class"
            )

    async def _declared(self, deadline: Deadline) -> Any:
        late = WarmupTimeout(
            f"warmup_inputs() did not return within {deadline.seconds:.0f} s",
            hint="declare inputs without waiting for other deployments; replays may wait",
            stage=Stage.PENDING.value,
        )
        try:
            declared = await asyncio.wait_for(self._replica.warmup_inputs(), deadline.left())
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise late from error
        if deadline.left() < 0:  # it has blocked the loop, where nothing could cancel it
            raise late
        return declared

    async def _plan_together(self, deadline: Deadline) -> None:
        """Have all ranks replay the same, equally often."""
        if self._ranks.size > 1 and self._config.after_ready == "forbid":
            raise ConfigError(
                "after_ready: forbid is not for ranks that compute together: one that refuses a "
                "request leaves the others waiting for it",
                hint="leave it at count; compiles in traffic are seen all the same",
            )
        plan = {
            "inputs": [item.name for item in self.inputs],
            "max_passes": self._config.max_passes,
            "on_uncovered": self._config.on_uncovered,
        }
        plans = await self._ranks.agree("its inputs", plan, timeout_s=deadline.left())
        for rank, theirs in enumerate(plans):
            differing = [name for name, value in plan.items() if theirs[name] != value]
            if differing:
                name = differing[0]
                raise ConfigError(
                    f"rank {self._ranks.rank} has {name} {plan[name]}, and rank {rank} has "
                    f"{theirs[name]}",
                    hint="all ranks replay the same inputs under the same settings: each of them "
                    "waits for the others in every collective",
                )

    async def _load(self, deadline: Deadline) -> None:
        uri = self._config.artifact
        if uri is not None:
            await self._load_from(uri, deadline)
        await self._load_together(deadline)
        if self._libraries_only and not self._has_libraries:
            # It compiles after all: at a build, or where nothing was loaded.
            with self._timed(Stage.PENDING):
                await self._import_compiler()
            require_compiler(environment())

    async def _load_together(self, deadline: Deadline) -> None:
        """Put aside what this rank has loaded, if another one has nothing.

        Warm, it would wait in its first collective for as long as the other one compiles, and the
        process group may end that first. All of them compiling takes no longer.
        """
        if self._ranks.size == 1:
            return
        used = self._artifact
        mine = (used.reason if used else "no artifact is configured") or None
        with self._timed(Stage.LOADING):
            reasons = await self._ranks.agree("its artifact", mine, timeout_s=deadline.left())
        without = [rank for rank, reason in enumerate(reasons) if reason]
        if without and not mine:
            first = without[0]
            error = ArtifactNotFound(
                f"it is not used, since rank {first} of {self._ranks.size} has none: "
                + reasons[first].splitlines()[0],
                hint="publish one for each rank: all of them start warm, or none does",
            )
            self._not_loaded(Verdict.MISS, error, self._config.on_missing)

    async def _load_from(self, uri: str, deadline: Deadline) -> None:
        self._artifact = ArtifactUse(store=redact(uri), source=kind_of(uri))
        try:
            ready = await self._pull(uri, deadline)
            self._enter(Stage.LOADING)
            with self._timed(Stage.LOADING, hidden_s=ready.unpacked_early_s), ready.pulled:
                await asyncio.to_thread(self._put_in_place, ready.pulled, ready.directory)
        except (ArtifactNotFound, StoreError) as error:
            self._not_loaded(Verdict.MISS, error, self._config.on_missing)
        except ArtifactRefused as error:
            self._not_loaded(Verdict.REFUSED, error, self._config.on_refused)
        else:
            # Until the replay has shown otherwise.
            self._verdict = Verdict.FULL_HIT

    async def _pull(self, uri: str, deadline: Deadline) -> _Ready:
        fingerprint = self.fingerprint
        if fingerprint is None:  # pragma: no cover  (set by _prepare)
            raise AssertionError
        limit = Deadline(min(self._config.pull_deadline_s, deadline.left()))
        self._enter(Stage.PULLING)
        wanted = prefetch.Wanted.of(
            self._config, deployment=self._replica.deployment, trust=self._replica.trust()
        )

        given_up = threading.Event()
        loop = asyncio.get_running_loop()

        def verify() -> None:
            if not given_up.is_set():
                self._enter(Stage.VERIFYING)

        def pull() -> Pulled:
            with wanted.node_cache() as cache:
                return pull_artifact(
                    open_store(uri),
                    deployment=wanted.deployment,
                    fingerprint=fingerprint,
                    trust=wanted.trust,
                    cache=cache,
                    parts=wanted.parts,
                    fetched=functools.partial(loop.call_soon_threadsafe, verify),
                    given_up=given_up,
                )

        start = time.perf_counter()
        try:
            taken = await self._taken(wanted, fingerprint, limit)
            pulled = taken.pulled if taken else await self._tried_until(limit, pull)
        except ServeWarmError:
            self._times.append(_time(Stage.PULLING, start))
            raise
        finally:
            # Also when the start itself is cancelled: nobody waits for a try that still runs.
            given_up.set()
        elapsed_s = time.perf_counter() - start
        early = taken.early if taken else 0.0
        download_s, verify_s = pulled.download_s, pulled.verify_s
        waited_s = verify_s * (1 - early)
        self._times.append(
            StageTime(
                stage=Stage.PULLING,
                seconds=max(0.0, elapsed_s - waited_s),
                hidden_s=download_s * early,
            )
        )
        if self._stage is not Stage.VERIFYING:
            self._enter(Stage.VERIFYING)  # what was pulled during __init__ was verified there
        self._times.append(
            StageTime(stage=Stage.VERIFYING, seconds=waited_s, hidden_s=verify_s * early)
        )
        self._artifact = ArtifactUse(
            store=redact(uri),
            source=kind_of(uri),
            statement=pulled.statement_key,
            created=pulled.manifest.created,
            stored_bytes=pulled.stored_bytes,
            raw_bytes=sum(pulled.manifest.part(name).raw_bytes for name in pulled.raw),
            downloaded_bytes=pulled.downloaded_bytes,
            believed=pulled.believed.how,
            signers=pulled.believed.signers,
            trace=_lines(pulled.trace),
        )
        return _Ready(
            pulled=pulled,
            directory=taken.directory if taken else None,
            unpacked_early_s=taken.unpack_s * early if taken else 0.0,
        )

    async def _taken(
        self, wanted: prefetch.Wanted, fingerprint: Fingerprint, limit: Deadline
    ) -> prefetch.Taken | None:
        """Return what was pulled during `__init__`, where that is what is wanted."""
        if self._prefetch is None:
            return None
        taken = await self._prefetch.taken(wanted, fingerprint, timeout_s=max(0.1, limit.left()))
        if taken is None:
            # Before it is looked for anew: it may hold the node's lock on what comes.
            self._prefetch.drop()
        return taken

    async def _tried_until(self, limit: Deadline, pull: Callable[[], Pulled]) -> Pulled:
        """Call `pull` in a thread until it gives something, or cannot, or time is up."""
        tries = 0
        while True:
            if self._stage is not Stage.PULLING:
                self._enter(Stage.PULLING)  # the try before had come as far as unpacking
            try:
                return await _in_own_thread(pull, timeout_s=max(0.1, limit.left()))
            except (asyncio.TimeoutError, TimeoutError) as error:
                raise StoreError(
                    f"{self._config.artifact}: nothing was pulled within {limit.seconds:.0f} s",
                    hint="check that the store can be reached from this node, or raise "
                    "pull_deadline_s",
                ) from error
            except StoreDenied:
                raise
            except StoreError as error:
                pause_s = RETRY_BACKOFF_S[min(tries, len(RETRY_BACKOFF_S) - 1)]
                tries += 1
                if limit.left() < pause_s:
                    raise
                # One clear line is written when it is given up; these are for a closer look.
                logger.info("try=%d failed, again in %.1f s: %s", tries, pause_s, error.message)
                await asyncio.sleep(pause_s)

    def _put_in_place(self, pulled: Pulled, unpacked: Path | None) -> None:
        # Into a new directory: what user code made torch write into the present one stays out.
        directory = self._new_cache_directory(unpacked)
        _private_folders.check_private(directory, "the directory that torch loads from")
        if "cache" in pulled.raw:
            if unpacked is None:
                prefetch.unpack(pulled.raw["cache"], directory)
            # The fingerprint was found equal by now: same CPU flags, compiler and torch. With
            # torch's bytes alone stock torch is what is measured, and kernels are compiled
            # anyway: the probe stays.
            answers = pulled.manifest.facts.get(ISA_FACT)
            defer_precompiled_headers()
            # Of another shape where another release built it: then the probe runs. So it does where
            # the compiler may be another one, since libraries need none.
            compiler_is_the_same = pulled.manifest.fingerprint.machine.get("compiler") != NOT_NEEDED
            if isinstance(answers, dict) and compiler_is_the_same:
                isa_checks().give({str(k): bool(v) for k, v in answers.items()})
        self._load_entries(pulled)
        if "torch_bytes" in pulled.raw and not load_torch_bytes(pulled.raw["torch_bytes"].read()):
            raise ArtifactRefused(
                "torch did not accept the part torch_bytes",
                reason="bad_archive",
                hint="build the artifact again with this version of torch",
            )

    def _load_entries(self, pulled: Pulled) -> None:
        names = [name for name in LEVEL_PARTS.values() if name in pulled.raw]
        if not names or not SESSION.has_callables():
            return
        unpacked = []
        with _private_folders.temporary_folder() as scratch:
            for name in names:
                if name == "exported":
                    # For as long as the process: a library is opened when something first fits.
                    folder = private_directory()
                else:
                    folder = scratch / name
                    folder.mkdir(mode=0o700)
                prefetch.unpack(pulled.raw[name], folder)
                unpacked.append(folder)
            why = SESSION.load(*unpacked)
        self._has_libraries = "exported" in names and not why
        if why:
            self._warnings.append(f"not all entries can be used, and Dynamo traces calls: {why}")

    def _not_loaded(self, verdict: Verdict, error: ServeWarmError, policy: str) -> None:
        self._verdict = verdict
        trace = _lines(getattr(error, "trace", ()))
        self._artifact = ArtifactUse(
            store=redact(str(self._config.artifact)),
            source=kind_of(str(self._config.artifact)),
            statement=getattr(error, "statement", "") if verdict is Verdict.REFUSED else "",
            reason=str(error),
            refused=error.reason if isinstance(error, ArtifactRefused) else "",
            trace=trace,
        )
        # Whatever was written until now is not built upon.
        self._new_cache_directory()
        self._has_libraries = False
        SESSION.unload()
        if policy == "fail":
            setting = "on_missing" if verdict is Verdict.MISS else "on_refused"
            raise WarmupFailed(
                f"verdict {verdict.value}, and {setting} is fail: {error.message}",
                hint=error.hint,
                stage=self._stage.value,
            ) from error
        # In one line: what was tried, what was found, what to do.
        words = " ".join(str(error).split())
        fields = self._fields("artifact", verdict=verdict.value, reason=words)
        logger.warning("verdict=%s, compiling cold: %s", verdict.value, words, extra=fields)

    async def _replay_and_prove(self, deadline: Deadline) -> None:
        config, seen = self._config, self._seen
        if seen is None:  # pragma: no cover  (set by _prepare)
            raise AssertionError
        if self.cache_directory is not None:
            seen.count_kernels_in(self.cache_directory)
        self._begin_checks()
        self._replay = replay = Replay(
            self.inputs,
            self._replica.call,
            seen=seen,
            deadline=deadline,
            input_deadline_s=config.input_deadline_s,
            max_passes=config.max_passes,
            ranks=self._ranks,
            waits_for=self._replica.waits_for(),
            changed=self._tell,
            has_compiled=self._has_compiled,
        )
        with _startup_objects_frozen():
            self._enter(Stage.REPLAYING)
            with self._timed(Stage.REPLAYING):
                quiet = await self._until_quiet(replay)
            self._enter(Stage.PROVING)
            with self._timed(Stage.PROVING):
                await replay.prove(attempts=PROOF_ATTEMPTS if quiet else 1)

    def _judge(self) -> None:
        if self._replay is None:  # pragma: no cover  (replayed before)
            raise AssertionError
        self._judge_threads(self._replay)
        self._judge_coverage(self._replay)

    def _begin_checks(self) -> None:
        # Ranks that compute together would have to check the same call at the same time.
        if self.checks is None and SESSION.has_callables() and self._ranks.size == 1:
            self.checks = SESSION.begin_checks(
                one_in=self._config.parity_one_in,
                can_compile=_can_compile,
                on_failure=self._entry_withdrawn,
            )

    async def _withdraws_entries(self) -> bool:
        """Check an entry of each callable, and return whether any was withdrawn."""
        checks, replay = self.checks, self._replay
        if checks is None or replay is None:
            return False
        self._enter(Stage.PARITY)
        with self._timed(Stage.PARITY), checks.checking():
            await replay.until(checks.is_done)
        if checks.failed and self._config.on_refused == "fail":
            raise WarmupFailed(
                "the artifact computes something else than eager, and on_refused is fail: "
                + "; ".join(checks.report().failures),
                hint="build it again; do not load it elsewhere before you know why",
                stage=Stage.PARITY.value,
            )
        return bool(checks.failed)

    def _entry_withdrawn(self, failure: str) -> None:
        self._degraded.append(f"parity: {failure}")
        self._tell()

    async def _until_quiet(self, replay: Replay) -> bool:
        try:
            await replay.until_quiet()
        except NotProven as error:
            if self._config.on_uncovered == "fail":
                raise
            # The proof will say which inputs are at fault; the others are as good as ever.
            logger.warning("%s", error)
            return False
        return True

    def _judge_threads(self, replay: Replay) -> None:
        """Name, or with CUDA graphs refuse, handlers whose compiled calls change threads."""
        strangers = replay.progress.threads - self._replica.serving_threads()
        if not strangers:
            return
        fix = (
            "make the handler `async def`, or call the model with "
            "`await self.on_model_thread(self.model, ...)`, which keeps it on one thread"
        )
        if self._warmup_captures() or uses_cuda_graphs(self._replica.owner):
            raise WarmupFailed(
                "CUDA graphs belong to the thread that recorded them, and compiled calls were "
                f"made from {len(strangers)} threads other than the replica's own: those of a sync "
                "handler end with their request",
                hint=fix,
                stage=Stage.PROVING.value,
            )
        self._warnings.append(
            f"compiled calls were made from {len(strangers)} threads that end with their request "
            "(a sync handler): concurrent calls can lose a race in Dynamo's lookup and recompile; "
            + fix
        )

    def _warmup_captures(self) -> int:
        return (self._seen.counts() - self._at_start).captures if self._seen else 0

    def _has_compiled(self) -> bool:
        return self._compiled_early > 0 or reaches_compiled(self._replica.owner)

    def _judge_coverage(self, replay: Replay) -> None:
        if not replay.progress.has_compiled:
            others = ", ".join(self._replica.waits_for())
            self._warnings.append(
                "nothing compiled was found in this process, and no input called anything "
                "compiled: the inputs were replayed, and there was nothing to prove. "
                + (
                    f"A model in another deployment ({others}) warms up there"
                    if others
                    else "If this app has a compiled model, declare inputs that reach it"
                )
            )
        unproven, left_out = replay.progress.unproven, replay.progress.left_out
        if not unproven:
            return
        name, why = next(iter(unproven.items()))
        # Of those left out all: each is a size that may fail in traffic, too.
        names = ", ".join(map(repr, left_out)) if name in left_out else repr(name)
        text = f"{len(unproven)} of {len(self.inputs)} inputs are not proven warm; {names} {why}"
        if self._config.on_uncovered == "fail":
            raise NotProven(text, hint="or set on_uncovered: serve", stage=Stage.PROVING.value)
        self._degraded.append(f"uncovered: {text}")
        logger.warning("served uncovered, by on_uncovered: serve: %s", text)

    def _after_ready(self, event: CompileEvent) -> None:
        """Log a compile in traffic, at a limited rate; counting is the watch's own."""
        now = time.monotonic()
        self._unlogged += 1
        if now < self._log_silent_until:
            return
        self._log_silent_until = now + EVENT_LOG_PERIOD_S
        logger.warning(
            "after ready: kind=%s function=%s input=[%s] seconds=%.2f reason=[%s] events=%d; %s",
            event.kind,
            event.function,
            event.signature,
            event.seconds,
            event.reason,
            self._unlogged,
            self._advice(event),
            extra=self._fields(
                "compile",
                kind=event.kind,
                function=event.function,
                signature=event.signature,
                seconds=event.seconds,
                reason=event.reason,
                events=self._unlogged,
            ),
        )
        self._unlogged = 0

    def _advice(self, event: CompileEvent) -> str:
        proven_on = self._replay.progress.threads if self._replay is not None else set()
        if event.kind == "capture" and proven_on and event.thread not in proven_on:
            return (
                "graphs belong to their thread, and the warm-up made its calls on another one: "
                "call the model with `await self.on_model_thread(self.model, ...)`"
            )
        if event.kind == "capture" and event.reason:
            return "what a graph reads has moved: write weights and caches in place, where they are"
        return "declare this input in warmup_inputs(), or pad to a bucket"

    # Bookkeeping -----------------------------------------------------------------------------

    def _new_cache_directory(self, made: Path | None = None) -> Path:
        self.cache_directory = private_directory() if made is None else made
        point_torch_caches_at(self.cache_directory)
        if self._by_profile:
            pgo.forget_profile()
        return self.cache_directory

    @contextlib.contextmanager
    def _timed(self, stage: Stage, *, hidden_s: float = 0.0) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._times.append(_time(stage, start, hidden_s=hidden_s))

    def _enter(self, stage: Stage) -> None:
        now = _boot_s()
        before, since = self._entered
        self._entered = (stage, now)
        if stage in (Stage.READY, Stage.FAILED):
            self._ended_boot_s = now  # first: who reads the stage reads when it ended, too
        self._stage = stage
        ended: dict[str, str | float] = {}
        if before is not None:
            ended = {"previous": before.value.lower(), "seconds": now - since}
        logger.info(
            "stage=%s deployment=%s replica=%s",
            stage.value,
            self._replica.deployment,
            self._replica.replica,
            extra=self._fields("stage", **ended),
        )
        self._tell()

    def _fields(self, event: str, **more: str | float) -> dict[str, Any]:
        """Return what a log record says beside its text; JSON logs of Serve have it as fields.

        Serve adds deployment and replica by itself, and outside of requests no application. All
        names have our prefix: `logging` raises where a record has such a field already, which a
        record factory of the user may have seen to.
        """
        about = {
            "event": event,
            "application": self._replica.application,
            "stage": self._stage.value.lower(),
            "elapsed_s": self._elapsed_s(),
            "inputs_done": self.done_in_pass,
            "inputs_expected": len(self.inputs),
            "statement": self._artifact.statement if self._artifact else "",
            **more,
        }
        # In one line each, as a table of logs shows them.
        return {
            f"{LOG_PREFIX}{name}": " ".join(value.split()) if isinstance(value, str) else value
            for name, value in about.items()
        }

    def _tell(self) -> None:
        if not self._observers:
            return
        report = self.report()
        for observer in self._observers:
            try:
                observer(report)
            except Exception:
                # An observer shows what happens. Losing a metric or a state file is no reason
                # to lose the replica; it is dropped, so that it is logged once.
                self._observers = tuple(o for o in self._observers if o is not observer)
                logger.exception("an observer of the warm-up raised; going on without it")


async def _in_own_thread(pull: Callable[[], Pulled], *, timeout_s: float) -> Pulled:
    """Return what `pull` gives; past the timeout it is left to end by itself.

    Not in the event loop's own threads: those are the user's too, and one that hangs in a store
    would be missing there.
    """
    threads = ThreadPoolExecutor(1, "serve_warm-pull")
    pulling = threads.submit(pull)
    threads.shutdown(wait=False)
    came = None
    try:
        came = await asyncio.wait_for(asyncio.wrap_future(pulling), timeout_s)
    finally:
        if came is None:
            pulling.add_done_callback(_close_what_came_late)
    return came


def _close_what_came_late(pulling: Future[Pulled]) -> None:
    if not pulling.cancelled() and pulling.exception() is None:
        pulling.result().close()


@contextlib.contextmanager
def _startup_objects_frozen() -> Iterator[None]:
    """Keep what imports and weights made out of garbage collection while inputs are replayed.

    Dynamo makes objects by the million, and each full collection walks all of torch: 15 to 20 %
    of a warm replay (MiniLM, six inputs, torch 2.13). Serve freezes for good once we are done.
    """
    if gc.get_freeze_count():
        # Somebody froze before: thawing would undo their work.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _skipped(many: int, events: Sequence[CompileEvent]) -> str:
    """Return what is said of graphs that torch does not capture; many of them have one reason."""
    reasons = dict.fromkeys(event.reason for event in events if event.kind == "skip")
    are = "CUDA graph is" if many == 1 else "CUDA graphs are"
    return f"{many} {are} not captured, and launched kernel by kernel: {'; '.join(reasons)}"


def _many_sizes(events: Iterable[CompileEvent]) -> Iterator[str]:
    """Yield what is said of functions with more graphs than torch finds wise, one for each size."""
    sizes: dict[str, set[str]] = {}
    for event in events:
        if event.kind == "capture" and " of compile " in event.function:
            sizes.setdefault(event.function, set()).add(event.signature)
    for function, of_it in sizes.items():
        if len(of_it) > SIZES_OF_A_GRAPH:
            yield (
                f"{function} is captured for {len(of_it)} sizes, each with memory and seconds of "
                "its own at every start: pad to fewer (Buckets), or name those that are worth a "
                "graph in torch._inductor.config.triton.cudagraph_capture_sizes"
            )


def _lines(trace: Sequence[Considered]) -> tuple[str, ...]:
    """Return a line a variant, the accepted ones first, and no more than a report can hold."""
    shown = sorted(trace, key=lambda considered: not considered.accepted)[:TRACE_LINES]
    rest = len(trace) - len(shown)
    return (*map(str, shown), *([f"and {rest} more"] if rest else []))


def _boot_s() -> float:
    # Not the clock of the stages' own seconds: who serves this node's metrics, another process,
    # counts on from it.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _time(stage: Stage, start: float, *, hidden_s: float = 0.0) -> StageTime:
    return StageTime(stage=stage, seconds=time.perf_counter() - start, hidden_s=hidden_s)


def _can_compile() -> bool:
    """Return whether there is a compiler for what torch.compile makes."""
    try:
        require_compiler(environment())
    except CompilerMissing:
        return False
    return True


def _only_libraries(arguments: Mapping[str, str]) -> bool:
    """Return whether libraries are asked for in all that is compiled, as far as that is known.

    `arguments` are those of what was found on the user's object.
    """
    if any(words.startswith("inductor") for words in arguments.values()):
        return False
    return SESSION.has_libraries_only()


def pack_parts(
    cache_directory: Path, entries: Mapping[str, Mapping[str, bytes]] | None = None
) -> dict[str, bytes]:
    """Return the raw parts of an artifact from this process' caches. Once per process.

    `entries` are the files of the parts that have some, by the part's name.
    """
    parts = {"cache": pack_directory(cache_directory)}
    for name, files in (entries or {}).items():
        with _private_folders.temporary_folder() as scratch:
            folder = scratch / name
            folder.mkdir(mode=0o700)
            for file, content in files.items():
                (folder / file).write_bytes(content)
            parts[name] = pack_directory(folder)
    torch_bytes = save_torch_bytes()
    if torch_bytes:
        parts["torch_bytes"] = torch_bytes
    return parts


def build_facts(report: Report) -> Mapping[str, Any]:
    """Return what a manifest says about the build, beside fingerprint and parts."""
    return {
        ISA_FACT: isa_checks().answers,
        "inputs": [result.name for result in report.inputs],
        "passes": report.passes,
        "to_proof_s": round(report.to_proof_s, 3),
        "compiler_processes": report.warmup.compiler_processes,
        "versions": report.versions,
    }


def _torch_versions() -> dict[str, str]:
    """Return the versions that a report names."""
    import torch

    return {"torch": torch.__version__, "threads": str(torch.get_num_threads())}


def _cpu_seconds() -> float:
    """Return CPU seconds of this process and of the children it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
