# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start: the stages, their deadlines, the policies. Nothing else knows the order.

A `Warmup` is one start of one replica. It asks a `Replica` for what only the deployment knows
(its inputs, how to call them, what it compiles with) and writes to a journal, which tells its
observers of each change.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serve_warm._redaction import describe_error
from serve_warm.compiler import cuda_graphs
from serve_warm.compiler.background_import import is_imported
from serve_warm.compiler.compiled_objects import reaches_compiled, uses_cuda_graphs
from serve_warm.compiler.cpu_target import require_compiler
from serve_warm.compiler.proof import run_eagerly
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig, environment
from serve_warm.errors import (
    ArtifactRefused,
    CompilerMissing,
    NotProven,
    ReplayFailed,
    WarmupFailed,
    WarmupTimeout,
)
from serve_warm.inputs import Input, missing_batches
from serve_warm.node import boot_s
from serve_warm.precompile.session import SESSION
from serve_warm.replica import prefetch, ranks
from serve_warm.replica.journal import Journal, Observer, cpu_seconds
from serve_warm.replica.load import Loaded, Loading
from serve_warm.replica.pack import pack
from serve_warm.replica.placement import refuse_broken
from serve_warm.replica.prepare import Preparation, Prepared
from serve_warm.replica.replay import PROOF_ATTEMPTS, Replay
from serve_warm.replica.start import CompileCaches, Replica, Start
from serve_warm.replica.timed_calls import Deadline, Progress
from serve_warm.replica.timeline import Timeline
from serve_warm.replica.watchdog import Watchdog
from serve_warm.report import CompileEvent, Report, Stage, Verdict

if TYPE_CHECKING:
    from serve_warm.precompile.entry_checks import Checks

logger = logging.getLogger(__name__)


class Warmup:
    """One start of one replica: `prove()` once, then `become_ready()` once it may serve.

    `report()` at any time and from any thread.
    """

    def __init__(
        self,
        replica: Replica,
        config: WarmupConfig,
        *,
        caches: CompileCaches | None = None,
        prefetched: prefetch.Prefetch | None = None,
        known: Report | None = None,
        timeline: Timeline | None = None,
        end_process: Callable[[], None] | None = None,
    ) -> None:
        # `end_process` is called where a deadline has passed and the event loop is blocked: in
        # Serve, which starts another replica. Elsewhere the loop's own end of it is waited for.
        self._replica = replica
        self._config = config
        self._prefetched = prefetched
        self._end_process = end_process
        self._is_late = False
        """Whether a deadline has passed, and the policy is to serve."""
        self._prepared = Prepared()
        known = known or Report(
            application=replica.application,
            deployment=replica.deployment,
            replica=replica.replica,
            created_boot_s=boot_s(),
        )
        self.journal = Journal(known, config, timeline)
        self.caches = caches or CompileCaches()
        self._start = Start(
            replica=replica,
            config=config,
            journal=self.journal,
            caches=self.caches,
            prefetched=prefetched,
        )
        self._proof = Proof(self._start)

    def observe(self, observers: Sequence[Observer]) -> None:
        """Call each of `observers` with the report whenever it changes."""
        self.journal.observe(observers)

    def report(self) -> Report:
        """Return what has happened until now."""
        return self.journal.report()

    async def run(self) -> Report:
        """Warm up, prove it and become ready, or raise what `prove` does."""
        await self.prove()
        report = self.become_ready()
        if self.checks is not None:
            self.checks.kept.drop()  # nobody says here when there is time for them
        return report

    @property
    def checks(self) -> Checks | None:
        """Those of entries against eager; None without entries."""
        return self._proof.checks

    async def prove(self) -> None:
        """Warm up and prove it, or raise: returning means that the replica may become ready.

        Raises:
            WarmupFailed: an input, a deadline or a policy says that it may not.
            ConfigError: the inputs, the trust files or the configuration cannot be used.
            OSError: no private directory can be made for torch's caches.
        """
        journal = self.journal
        journal.started_unix = time.time()
        start = time.perf_counter()
        deadline = Deadline(self._config.deadline_s)
        imported_early = self._prefetched is not None and self._prefetched.imported_compiler
        journal.is_compiler_from_app = is_imported() and not imported_early
        if self._prefetched is not None:
            self._prefetched.init_ended()
        try:
            try:
                await self._reach_proof(deadline)
            except WarmupTimeout as error:
                if not self._serves_late():
                    raise
                self._mark_late(error)
                logger.warning("served late, by on_deadline: serve: %s", error)
            journal.to_proof_s = time.perf_counter() - start
        finally:
            if self._prefetched is not None:
                self._prefetched.drop()  # nothing, where it was taken
            journal.cpu_s = cpu_seconds()
            raised = sys.exc_info()[1]
            if raised is not None:
                # Whatever it is, the user's own exceptions included: this start has ended, and
                # who reads the state file must see it.
                journal.to_proof_s = time.perf_counter() - start
                journal.fail(raised)

    async def _reach_proof(self, deadline: Deadline) -> None:
        loading, proof = Loading(self._start), self._proof
        with self._watch_deadline(deadline), self._join() as proof.ranks:
            prepared = await Preparation(self._start).prepare(proof.ranks, deadline)
            self._prepared = prepared
            loaded = await loading.load(prepared, proof.ranks, deadline)
            try:
                await proof.replay_and_compare(prepared, deadline)
            except ReplayFailed as error:
                refusal = None if self._is_late else await proof.blame_artifact(error, loaded)
                if refusal is None:
                    raise
                await loading.go_on_without(refusal, prepared)
                proof.drop_checks()
                await proof.replay_and_compare(prepared, deadline)
            await proof.look_for_gaps(prepared.inputs)
            proof.judge(prepared, loaded.missing)
            # None serves before all may: its first request would wait for the others.
            await proof.ranks.agree("being ready", None, timeout_s=deadline.left())

    def become_ready(self) -> Report:
        """Say READY after the proof, once, and return the report.

        What is compiled from here on is traffic's. What was compiled since the proof counts as the
        warm-up's.
        """
        journal = self.journal
        if journal.stage is Stage.READY:
            return journal.report()
        journal.end_warmup()
        # The deadline may have passed before anything was watched: traffic is, all the same.
        seen = watch_process()
        seen.on_event = self._note_in_traffic
        if self._config.after_ready == "forbid":
            seen.forbidden = self._replica.refusal
        if self.checks is not None:
            self.checks.serve()
        return journal.say_ready()

    def _note_in_traffic(self, event: CompileEvent) -> None:
        declared = self._prepared.inputs
        self.journal.log_compile(event, lambda event: self._replica.suggest(event, declared))

    async def pack(self) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        """Return the raw parts of an artifact, and what its manifest says about the build.

        Once per process, after `run()`.
        """
        with self._join() as self._proof.ranks:
            try:
                return await pack(
                    self.report(),
                    self.caches.directory,
                    lambda: self._proof.new_replay(
                        self._prepared, Deadline(self._config.deadline_s)
                    ),
                    has_profile=self.caches.has_profile,
                    say=self._say,
                )
            finally:
                self._say("")

    def _say(self, text: str) -> None:
        self.journal.timeline.say(text)
        self.journal.tell()

    def _join(self) -> contextlib.AbstractContextManager[ranks.Ranks]:
        alone = contextlib.nullcontext(ranks.Ranks())
        return ranks.join() if self._config.ranks == "together" else alone

    # The deadline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watch_deadline(self, deadline: Deadline) -> Iterator[None]:
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
        late = self._proof.overdue()
        if late is not None or deadline.left() > 0:
            return late
        stage = self.journal.stage.value
        return WarmupTimeout(
            f"the warm-up did not end within {deadline.seconds:.0f} s; it is {stage}",
            hint="raise deadline_s, or set on_deadline: serve",
            stage=stage,
        )

    def _serves_late(self) -> bool:
        # Of several ranks the others are in the middle of what this one has left.
        return self._config.on_deadline == "serve" and self._proof.ranks.size == 1

    def _mark_late(self, error: WarmupTimeout) -> None:
        self._is_late = True
        self.journal.mark_late(error.message)

    def _late(self, error: WarmupTimeout) -> None:
        """Say late while the loop may be blocked: whoever looks need not wait for it."""
        if self._serves_late():
            self._mark_late(error)
            self.journal.tell()

    def _stuck(self, error: WarmupTimeout, where: str) -> None:
        """Fail the start and end the process, since nothing on its event loop can do so.

        Where it is served late this only says what blocks it: the loop goes on by itself.
        """
        if self._serves_late():
            logger.warning("late, and the event loop is blocked in %s", where)
            return
        self.journal.fail(
            WarmupTimeout(
                f"{error.message}; the event loop is blocked in {where}, and this process ends",
                hint="call what takes long with `await self.on_model_thread(...)`; " + error.hint,
                stage=error.stage,
            )
        )
        if self._end_process is not None:
            self._end_process()


class Proof:
    """The stages REPLAYING, PROVING and PARITY of one start, and what is made of them."""

    def __init__(self, start: Start) -> None:
        self._replica = start.replica
        self._config = start.config
        self._journal = start.journal
        self._caches = start.caches
        self.checks: Checks | None = None
        """Of entries against eager; None without entries."""
        self._replays: list[Replay] = []
        """The last one is under way, or was judged."""
        self.ranks = ranks.Ranks()

    def overdue(self) -> WarmupTimeout | None:
        """Return what the replay under way is late with; from any thread."""
        return self._replays[-1].overdue() if self._replays else None

    def new_replay(self, prepared: Prepared, deadline: Deadline) -> Replay:
        """Return a replay of the declared inputs."""
        early = prepared.compiled_early > 0
        return Replay(
            prepared.inputs,
            self._replica.call,
            seen=watch_process(),
            deadline=deadline,
            input_deadline_s=self._config.input_deadline_s,
            max_passes=self._config.max_passes,
            ranks=self.ranks,
            waits_for=self._replica.waits_for(),
            changed=self._journal.tell,
            has_compiled=lambda: early or reaches_compiled(self._replica.owner),
        )

    async def replay_and_compare(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay and prove, and once more where an entry turns out to differ from eager."""
        await self.replay_and_prove(prepared, deadline)
        if await self.withdraws_entries():
            # What answers their calls now is not warm yet.
            await self.replay_and_prove(prepared, deadline)

    async def blame_artifact(self, failed: ReplayFailed, loaded: Loaded) -> ArtifactRefused | None:
        """Return why the artifact is refused, where its code raised what eager does not.

        None where eager raises as well, which is the input's fault, and where memory did not
        suffice. Of several ranks the others are in the middle of the same call.
        """
        used, cause = loaded.artifact, failed.__cause__
        if loaded.verdict is not Verdict.FULL_HIT or used is None or self.ranks.size > 1:
            return None
        if cause is None or cuda_graphs.ran_out_of_memory(failed):
            return None
        name = str(getattr(failed, "input", ""))
        SESSION.unload()
        with run_eagerly():
            if await self._replays[-1].try_again(name) is not None:
                return None
        return refuse_broken(
            f"input {name!r} raised {describe_error(cause)}; without the artifact it does not",
            used.statement,
        )

    async def replay_and_prove(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay until nothing compiles, then once more with compiling forbidden."""
        journal = self._journal
        watch_process().count_kernels_in(self._caches.directory)
        self._begin_checks()
        replay = self.new_replay(prepared, deadline)
        self._replays.append(replay)
        journal.progress = replay.progress
        with _startup_objects_frozen():
            journal.enter(Stage.REPLAYING)
            with journal.timed(Stage.REPLAYING):
                is_quiet = await self._until_quiet(replay)
            journal.enter(Stage.PROVING)
            with journal.timed(Stage.PROVING):
                await replay.prove(attempts=PROOF_ATTEMPTS if is_quiet else 1)

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

    # Entries against eager ----------------------------------------------------------------------

    def _begin_checks(self) -> None:
        # Ranks that compute together would have to check the same call at the same time.
        if self.checks is None and self.ranks.size == 1:
            self._journal.checks = self.checks = SESSION.begin_checks(
                one_in=self._config.parity_one_in,
                can_compile=_can_compile,
                on_failure=self._note_withdrawn,
            )

    def drop_checks(self) -> None:
        """Forget what came of entries that are not used any more."""
        self._journal.checks = self.checks = None

    def _note_withdrawn(self, failure: str) -> None:
        self._journal.degraded.append(f"parity: {failure}")
        self._journal.tell()

    async def withdraws_entries(self) -> bool:
        """Check an entry of each callable, and return whether any was withdrawn."""
        journal, checks = self._journal, self.checks
        if checks is None:
            return False
        journal.enter(Stage.PARITY)
        with journal.timed(Stage.PARITY), checks.checking():
            await self._replays[-1].until(checks.is_done)
        if checks.failed and self._config.on_refused == "fail":
            raise WarmupFailed(
                "the artifact computes something else than eager, and on_refused is fail: "
                + "; ".join(checks.report().failures),
                hint="build it again; do not load it elsewhere before you know why",
                stage=Stage.PARITY.value,
            )
        return bool(checks.failed)

    async def look_for_gaps(self, inputs: Sequence[Input]) -> None:
        """Name the sizes of batches that traffic forms, nobody declared, and that would compile."""
        largest = self._replica.largest_batch()
        if largest == 1 or self.ranks.size > 1:
            return
        items = missing_batches(inputs, largest=largest)
        found = await self._replays[-1].find_compiling(items)
        if not found:
            return
        sizes = ", ".join(str(size) for size in sorted({item.concurrency for item in found}))
        targets = ", ".join(sorted({item.target_name for item in found}))
        self._journal.warn(
            f"{targets}: batches of {sizes} requests would compile in traffic. @serve.batch forms "
            f"every size up to {largest}: declare each, Input(..., concurrency=size) for size in "
            f"range(1, {largest + 1}), or pad inside the batch to sizes that are declared"
        )

    # What is made of it -------------------------------------------------------------------------

    def judge(self, prepared: Prepared, missing: WarmupFailed | None) -> None:
        """Warn of what the proof has shown, or raise where a policy says that it may not be.

        `missing` is what `on_missing: fail` says once something has compiled.

        Raises:
            WarmupFailed: `missing`; or CUDA graphs were captured on threads that end with their
                request.
            NotProven: an input is not proven, and `on_uncovered` is `fail`.
        """
        progress = self._replays[-1].progress
        if progress.has_compiled:
            if missing is not None:
                raise missing
        else:
            self._say_nothing_compiles()
        self._judge_threads(progress)
        self._judge_coverage(progress, of=len(prepared.inputs))

    def _say_nothing_compiles(self) -> None:
        others = ", ".join(self._replica.waits_for())
        self._journal.note_nothing_compiles(
            "nothing compiled was found in this process, and no input called anything "
            "compiled: the inputs were replayed, and there was nothing to prove. "
            + (
                f"A model in another deployment ({others}) warms up there"
                if others
                else "If this app has a compiled model, declare inputs that reach it"
            )
        )

    def _judge_threads(self, progress: Progress) -> None:
        """Name, or with CUDA graphs refuse, handlers whose compiled calls change threads."""
        strangers = progress.threads - self._replica.serving_threads()
        if not strangers:
            return
        fix = (
            "make the handler `async def`, or call the model with "
            "`await self.on_model_thread(self.model, ...)`, which keeps it on one thread"
        )
        if self._journal.warmup_counts().captures or uses_cuda_graphs(self._replica.owner):
            raise WarmupFailed(
                "CUDA graphs belong to the thread that recorded them, and compiled calls were "
                f"made from {len(strangers)} threads other than the replica's own: those of a sync "
                "handler end with their request",
                hint=fix,
                stage=Stage.PROVING.value,
            )
        self._journal.warn(
            f"compiled calls were made from {len(strangers)} threads that end with their request "
            "(a sync handler): concurrent calls can lose a race in Dynamo's lookup and recompile; "
            + fix
        )

    def _judge_coverage(self, progress: Progress, *, of: int) -> None:
        unproven, left_out = progress.unproven, progress.left_out
        if not unproven:
            return
        name, why = next(iter(unproven.items()))
        # Of those left out all: each is a size that may fail in traffic, too.
        names = ", ".join(map(repr, left_out)) if name in left_out else repr(name)
        text = f"{len(unproven)} of {of} inputs are not proven warm; {names} {why}"
        if self._config.on_uncovered == "fail":
            raise NotProven(text, hint="or set on_uncovered: serve", stage=Stage.PROVING.value)
        self._journal.degraded.append(f"uncovered: {text}")
        logger.warning("served uncovered, by on_uncovered: serve: %s", text)


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


def _can_compile() -> bool:
    """Return whether there is a compiler for what torch.compile makes."""
    try:
        require_compiler(environment())
    except CompilerMissing:
        return False
    return True
