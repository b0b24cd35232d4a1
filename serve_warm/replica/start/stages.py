# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start's stages, with deadlines and policies. Only this module knows the order.

A `Warmup` is one start of one replica. A `Replica` provides the facts that only the deployment
knows: the inputs, the way to call their targets, and the compile arguments. The warm-up writes to a
journal, which tells observers about each change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from serve_warm._redaction import describe_error, excerpt
from serve_warm.compiler import cuda_graphs, evidence
from serve_warm.compiler.compiled_objects import (
    find_compiled,
    find_uncalled,
    find_uncalled_methods,
    reaches_compiled,
    uses_cuda_graphs,
)
from serve_warm.compiler.cpu_target import require_compiler
from serve_warm.compiler.gpus import is_gpu_in_use
from serve_warm.compiler.imports import is_imported
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
from serve_warm.inputs import Input
from serve_warm.node import boot_s
from serve_warm.precompile import SESSION
from serve_warm.replica.record.journal import Journal, Observer, cpu_seconds
from serve_warm.replica.record.progress import Progress
from serve_warm.replica.record.raised_at import is_users
from serve_warm.replica.record.timeline import Timeline
from serve_warm.replica.record.traffic_log import KEEP_ON_ONE_THREAD
from serve_warm.replica.replay import ranks
from serve_warm.replica.replay.call_evidence import HEALTH_CHECK
from serve_warm.replica.replay.narrow import (
    Varied,
    digest_of,
    leave_out_larger,
    vary,
    vary_batches,
)
from serve_warm.replica.replay.passes import PROOF_ATTEMPTS, Replay
from serve_warm.replica.replay.routes import find_routes
from serve_warm.replica.replay.timed_calls import Deadline, Limits
from serve_warm.replica.replay.waits import Waits
from serve_warm.replica.replay.watchdog import Watchdog
from serve_warm.replica.start import prefetch
from serve_warm.replica.start.context import CompileCaches, Replica, Start, Step
from serve_warm.replica.start.install import refuse_broken
from serve_warm.replica.start.load import Loaded, Loading
from serve_warm.replica.start.pack import VARIED, pack
from serve_warm.replica.start.prepare import Preparation, Prepared, makes_artifact
from serve_warm.report import (
    BRANCH,
    UNCALLED,
    CompileEvent,
    Report,
    Stage,
    Verdict,
    advise_on_narrow,
)
from serve_warm.seats.preload import early_imports

logger = logging.getLogger(__name__)


LATE_UPDATE = "late: reconfigure: "
"""If a replica is degraded because an update missed its deadline, the reason begins with this
prefix."""

UNCOVERED = "uncovered: "
"""If a replica is degraded because inputs are not proven, the reason begins with this prefix."""

METHOD = "a method that no input calls: "
"""How the line about a method that no input calls begins."""

OTHER_BUILD = (
    "the inputs again: code, inputs or largest batches have changed since they were varied, so "
    "build again, or start again"
)

NOT_ON_A_GPU = (
    "the inputs: only a build varies them on a GPU, because an index that is out of range would "
    "end this replica"
)

NOT_LARGER = (
    "larger numbers, and longer lists and texts, because an index that is out of range would end "
    "the process on a GPU"
)

CHANGED_BY_TRIALS = (
    "declare inputs with fixed=True if a request like them, but with other values, has effects"
)

IDLE_HEALTH_CHECK = f"{HEALTH_CHECK}(), which ran compiled code, but not in the proof"

MOST_UNCALLED = 8
"""Largest number of compiled objects that are named because no input calls them."""

COMPARED_SHARE = 0.2
"""How long entries may be compared with eager before READY, as a share of the time of the replays
and the proof. One entry of each callable is compared in any case."""


class Warmup:
    """One start of one replica: call `prove()` once, then `become_ready()` when traffic may begin.

    It is safe to call `report()` at any time and on any thread.
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
        in_gang: bool = False,
    ) -> None:
        # `end_process` is called if a deadline has passed while the event loop is blocked. Serve
        # then starts another replica. Without `end_process`, the start waits until the loop runs
        # again.
        self._replica = replica
        self._config = config
        self._prefetched = prefetched
        self._end_process = end_process
        self._in_gang = in_gang
        self._is_late = False
        """Whether a deadline has passed and the policy is to serve."""
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
        """Call each of `observers` with the report whenever the report changes."""
        self.journal.observe(observers)

    def report(self) -> Report:
        """Return the report of the start so far."""
        return self.journal.report()

    async def run(self) -> Report:
        """Warm up, prove that the replica is warm, and become ready. Raises what `prove` raises."""
        await self.prove()
        report = self.become_ready()
        if self.journal.checks is not None:
            # Outside Serve, nothing notices when the replica is idle.
            self.journal.checks.kept.drop()
        return report

    async def prove(self) -> None:
        """Warm up, and prove that the replica is warm.

        Once this returns, the replica is allowed to become ready.

        Raises:
            WarmupFailed: an input failed, a deadline passed, or a policy forbids becoming ready.
            ConfigError: the inputs, the trust files or the configuration cannot be used.
            OSError: no private directory can be made for torch's caches.
        """
        journal = self.journal
        journal.started_unix = time.time()
        start = time.perf_counter()
        deadline = Deadline(self._config.deadline_s)
        journal.is_compiler_from_app = is_imported()
        if self._prefetched is not None:
            self._prefetched.init_ended()
        try:
            try:
                await self._reach_proof(deadline)
            except WarmupTimeout as error:
                if not self._serves_late():
                    raise
                self._mark_late(error)
                logger.warning(
                    "the replica serves after its deadline, because on_deadline is 'serve': %s",
                    error,
                )
            journal.to_proof_s = time.perf_counter() - start
        finally:
            if self._prefetched is not None:
                self._prefetched.drop()  # no effect if the start took the artifact
            journal.cpu_s = cpu_seconds()
            raised = sys.exc_info()[1]
            if raised is not None:
                # Any exception ends this start, even an exception of user code, and readers of the
                # state file must see it.
                journal.to_proof_s = time.perf_counter() - start
                journal.fail(raised)

    async def _reach_proof(self, deadline: Deadline) -> None:
        loading, proof = Loading(self._start), self._proof
        with self._watch_deadline(deadline), self._join() as proof.ranks, _startup_objects_frozen():
            prepared = await Preparation(self._start).prepare(proof.ranks, deadline)
            self._prepared = prepared
            loaded = await loading.load(prepared, proof.ranks, deadline)
            self._prepared = prepared = await proof.add_health_check(prepared, deadline)
            try:
                await proof.replay_and_compare(prepared, deadline)
            except ReplayFailed as error:
                refusal = None if self._is_late else await proof.blame_artifact(error, loaded)
                if refusal is None:
                    raise
                await loading.go_on_without(refusal, prepared)
                self.journal.checks = None  # the entries are no longer used
                await proof.replay_and_compare(prepared, deadline)
            if loaded.verdict is Verdict.FULL_HIT:  # an artifact has the build's result
                proof.look_at_build(prepared.inputs)
            else:
                with self.journal.timeline.span("other sizes"):
                    await proof.look_for_narrow(prepared.inputs)
            proof.look_for_untaken()
            proof.look_for_uncalled()
            proof.judge(loaded.missing)
            self._refuse_partial()
            # Ranks become ready together, because a first request would wait for the other ranks.
            await proof.ranks.agree("being ready", None, timeout_s=deadline.left())

    def _refuse_partial(self) -> None:
        """Raise WarmupFailed if the artifact has gaps, and `on_partial` is `fail`."""
        why = self.journal.why_partial()
        if why and self._config.on_partial == "fail":
            raise WarmupFailed(
                f"the artifact covers this start only partly, and on_partial is 'fail': {why}",
                hint="build the artifact again with this code, or set on_partial: serve",
                stage=Stage.PROVING.value,
            )

    def become_ready(self) -> Report:
        """Enter READY after the proof, once, and return the report.

        From now on, compiles are counted as part of traffic. Until this call, they are counted as
        part of the warm-up.
        """
        journal = self.journal
        if journal.stage is Stage.READY:
            return journal.report()
        journal.end_warmup()
        journal.traffic_log.lasting = self._replica.serving_threads()
        # The deadline may have passed before counting began. Count compiles in traffic anyway.
        seen = watch_process()
        seen.on_event = self._note_in_traffic
        if self._config.after_ready == "forbid":
            seen.forbidden = self._replica.refusal
        if journal.checks is not None:
            journal.checks.serve()
        return journal.say_ready()

    async def update(
        self, change: Callable[[], Awaitable[None]], *, is_request: Callable[[], bool]
    ) -> None:
        """Run the user's `reconfigure` in a READY replica, and prove the inputs again.

        Meanwhile, requests that would compile run eagerly; `is_request` returns whether the current
        context is that of a request. If anything compiles, the replica is not READY until the
        inputs are proven.

        Raises:
            WarmupFailed: an input failed, a deadline passed, or an input is not proven and
                `on_unproven` is `fail`. Other errors are those of `change`.
        """
        journal, began_s = self.journal, time.perf_counter()
        seen = watch_process()
        before = seen.counts()
        with evidence.answer_eagerly(is_request) as answers, self._watch_paused():
            try:
                await change()
                await self._prove_again()
            except WarmupTimeout as error:
                if not self._serves_late():
                    raise
                logger.warning("%s", error)
                journal.degraded.append(f"{LATE_UPDATE}{error.message}")
            finally:
                raised = sys.exc_info()[1]
                if raised is not None:  # Serve replaces the replica, unless only its rank changed
                    journal.fail(raised)
        journal.return_to_ready()
        eager = sum(answers.calls.values())
        logger.info(
            "reconfigure: %d compiles in %.1f s%s",
            (seen.counts() - before).compiles,
            time.perf_counter() - began_s,
            f"; meanwhile, requests called {', '.join(answers.calls)} eagerly {eager} times"
            if eager
            else "",
        )

    @contextlib.contextmanager
    def _watch_paused(self) -> Iterator[None]:
        """In the block, count nothing for traffic, and leave READY before the first compile."""
        seen = watch_process()
        on_event, forbidden = seen.on_event, seen.forbidden
        seen.on_event, seen.forbidden, seen.on_begin = None, None, self.journal.leave_ready
        try:
            with self.journal.updating():
                yield
        finally:
            seen.on_event, seen.forbidden, seen.on_begin = on_event, forbidden, None

    async def _prove_again(self) -> None:
        if not (self.journal.progress.has_compiled or reaches_compiled(self._replica.owner)):
            return
        if self._proof.ranks.size > 1:
            logger.warning(
                "the inputs are not proven after reconfigure, because other ranks would have to "
                "replay them at the same time: the next requests may compile"
            )
            return
        deadline = Deadline(self._config.deadline_s)
        inputs = await Preparation(self._start).ask_inputs(deadline)
        known = {item.target_name for item in inputs}
        # `add_health_check` has added an input that the user does not declare.
        health = [item for item in self._prepared.inputs if item.target_name == HEALTH_CHECK]
        inputs = (*inputs, *(item for item in health if item.target_name not in known))
        self._prepared = dataclasses.replace(self._prepared, inputs=inputs)
        await self._proof.prove_update(self._prepared, deadline)

    def _note_in_traffic(self, event: CompileEvent) -> None:
        declared = self._prepared.inputs
        self.journal.log_compile(event, lambda event: self._replica.suggest(event, declared))

    async def pack(self) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        """Return the raw parts of an artifact and its build facts. Call this after `run()`."""
        with self._join() as self._proof.ranks:
            try:
                parts, facts = await pack(
                    self.report(),
                    self.caches.directory,
                    lambda: self._proof.new_replay(
                        self._prepared, Deadline(self._config.deadline_s)
                    ),
                    say=self._say,
                )
                varied = self._proof.digest_of(self._prepared.inputs)
                return parts, {**facts, VARIED: varied}
            finally:
                self._say("")

    def _say(self, text: str) -> None:
        self.journal.timeline.say(text)
        self.journal.tell()

    def _join(self) -> contextlib.AbstractContextManager[ranks.Ranks]:
        alone = contextlib.nullcontext(ranks.Ranks())
        return ranks.join() if self._in_gang and self._config.ranks == "gang" else alone

    # The deadline -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watch_deadline(self, deadline: Deadline) -> Iterator[None]:
        """Check the deadlines even while the event loop is blocked, if the process can be ended."""
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
            f"the warm-up did not end within {deadline.seconds:.0f} s; it is in stage {stage}",
            hint="raise deadline_s, or set on_deadline: serve",
            stage=stage,
        )

    def _serves_late(self) -> bool:
        # With several ranks, the other ranks are still in the middle of the work that this rank has
        # left.
        return self._config.on_deadline == "serve" and self._proof.ranks.size == 1

    def _mark_late(self, error: WarmupTimeout) -> None:
        self._is_late = True
        self.journal.mark_late(error.message)

    def _late(self, error: WarmupTimeout) -> None:
        """If the policy is to serve late, report the delay at once, even if the loop is blocked."""
        if self._serves_late():
            self._mark_late(error)
            self.journal.tell()

    def _stuck(self, error: WarmupTimeout, where: str) -> None:
        """Mark the start as failed and end the process, because the blocked loop cannot do this.

        If the policy is to serve late, this only logs the line that blocks the loop, and the start
        continues.
        """
        if self._serves_late():
            logger.warning("the deadline has passed, and the event loop is blocked in %s", where)
            return
        self.journal.fail(
            WarmupTimeout(
                f"{error.message}; the event loop is blocked in {where}, and this process ends",
                hint="call slow code with `await self.on_model_thread(...)`; " + error.hint,
                stage=error.stage,
            )
        )
        if self._end_process is not None:
            self._end_process()


class Proof(Step):
    """The stages REPLAYING, PROVING and PARITY of one start, and the verdict on their results."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._replays: list[Replay] = []
        """The replays so far. The last replay can still be running. The verdict uses the results
        of the last replay."""
        self.ranks = ranks.Ranks()

    def overdue(self) -> WarmupTimeout | None:
        """Return an error if the current replay is late, else None. Any thread may call this."""
        return self._replays[-1].overdue() if self._replays else None

    def new_replay(
        self, prepared: Prepared, deadline: Deadline, *, in_traffic: bool = False
    ) -> Replay:
        """Return a replay of the declared inputs."""
        early = self._journal.compiled_early > 0
        return Replay(
            prepared.inputs,
            self._replica.call,
            seen=watch_process(),
            limits=Limits(deadline=deadline, input_s=self._config.input_deadline_s),
            ranks=self.ranks,
            waits=Waits(
                self._replica.waits_for(),
                self._replica.list_absent,
                timeline=self._journal.timeline,
                changed=self._journal.tell,
            ),
            changed=self._journal.tell,
            has_compiled=lambda: early or reaches_compiled(self._replica.owner),
            in_traffic=in_traffic,
        )

    async def add_health_check(self, prepared: Prepared, deadline: Deadline) -> Prepared:
        """Add the user's health check to the inputs, if it runs compiled code.

        Serve calls it at READY, so its first call would compile. Most health checks run no model,
        so the health check is called once to find out.
        """
        is_declared = any(item.target_name == HEALTH_CHECK for item in prepared.inputs)
        is_defined = callable(getattr(self._replica.owner, HEALTH_CHECK, None))
        if is_declared or not is_defined or self.ranks.size > 1:
            return prepared
        item = Input(target=HEALTH_CHECK, name=HEALTH_CHECK)
        trial = self.new_replay(dataclasses.replace(prepared, inputs=(item,)), deadline)
        self._replays.append(trial)
        self._journal.enter(Stage.REPLAYING)
        with self._journal.timed(Stage.REPLAYING), evidence.note_calls() as calls:
            try:
                await trial.once()
            except ReplayFailed as error:
                logger.warning("the health check is not replayed: %s", error.message)
                return prepared
        if not calls.entered:
            return prepared
        logger.info("the health check runs compiled code, so it is replayed like an input")
        self._journal.inputs = inputs = (*prepared.inputs, item)
        return dataclasses.replace(prepared, inputs=inputs)

    async def replay_and_compare(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay and prove; do this again if an entry's results differ from eager execution."""
        await self.replay_and_prove(prepared, deadline)
        if await self.withdraws_entries():
            # The calls of a withdrawn entry now run other code, which is not warm yet.
            await self.replay_and_prove(prepared, deadline)

    async def blame_artifact(self, failed: ReplayFailed, loaded: Loaded) -> ArtifactRefused | None:
        """Return a refusal if the artifact's code raises an error that eager code does not raise.

        Returns None if memory ran out. Returns None if eager execution also raises an error,
        because then the input is wrong. Also returns None with several ranks, because the other
        ranks are in the middle of the same call.
        """
        used, cause, name = loaded.artifact, failed.__cause__, failed.input
        if loaded.verdict is not Verdict.FULL_HIT or used is None or self.ranks.size > 1:
            return None
        if cause is None or cuda_graphs.ran_out_of_memory(failed):
            return None
        SESSION.unload()
        with run_eagerly():
            if await self._replays[-1].try_again(name) is not None:
                return None
        return refuse_broken(
            f"input {name!r} raised {describe_error(cause)}, but only with the artifact",
            used.statement,
        )

    async def replay_and_prove(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay the inputs until nothing compiles, then once more with compiling forbidden."""
        journal = self._journal
        watch_process().count_kernels_in(self._caches.directory)
        self._begin_checks()
        replay = self.new_replay(prepared, deadline)
        self._replays.append(replay)
        journal.progress = replay.progress
        journal.enter(Stage.REPLAYING)
        with journal.timed(Stage.REPLAYING):
            is_quiet = await self._until_quiet(replay)
        journal.enter(Stage.PROVING)
        with journal.timed(Stage.PROVING):
            await replay.prove(attempts=PROOF_ATTEMPTS if is_quiet else 1)

    async def prove_update(self, prepared: Prepared, deadline: Deadline) -> None:
        """Prove the inputs again while requests arrive, and replay them first if they compile.

        Raises:
            NotProven: an input is not proven, and `on_unproven` is `fail`.
        """
        journal, before = self._journal, self._replays[-1].progress
        replay = self.new_replay(prepared, deadline, in_traffic=True)
        progress = replay.progress
        progress.first_s.update(before.first_s)
        self._replays = [replay]

        def leave_ready() -> None:
            journal.progress = progress
            journal.leave_ready()

        watch_process().on_begin = leave_ready
        if journal.stage is not Stage.READY:  # the user's method has compiled
            journal.progress = progress
        try:
            await replay.prove()
        finally:
            progress.threads = before.threads  # requests have called on other threads
            journal.progress = progress
        journal.degraded = [
            each for each in journal.degraded if not each.startswith((UNCOVERED, LATE_UPDATE))
        ]
        self._judge_coverage(progress)
        self.look_at_build(prepared.inputs)

    async def _until_quiet(self, replay: Replay) -> bool:
        try:
            await replay.until_quiet()
        except NotProven as error:
            if self._config.on_unproven == "fail":
                raise
            # The proof shows which inputs fail. Other inputs are not affected.
            logger.warning("%s", error)
            return False
        return True

    # Entries against eager ----------------------------------------------------------------------

    def _begin_checks(self) -> None:
        # Ranks that compute together would need to check the same call at the same time.
        if self._journal.checks is None and self.ranks.size == 1:
            self._journal.checks = SESSION.begin_checks(
                one_in=self._config.eager_one_in,
                can_compile=_can_compile,
                on_failure=self._note_withdrawn,
            )

    def _note_withdrawn(self, failure: str) -> None:
        self._journal.degraded.append(f"parity: {failure}")
        self._journal.tell()

    async def withdraws_entries(self) -> bool:
        """Check entries against eager, and return whether any entry was withdrawn.

        Checks one entry of each callable, and more while `COMPARED_SHARE` allows.
        """
        journal, checks = self._journal, self._journal.checks
        if checks is None:
            return False
        budget_s = COMPARED_SHARE * journal.seconds_of(Stage.REPLAYING, Stage.PROVING)
        journal.enter(Stage.PARITY)
        with journal.timed(Stage.PARITY), checks.checking(budget_s):
            await self._replays[-1].until(checks.is_done)
        if checks.failed and self._config.on_refused == "fail":
            raise WarmupFailed(
                "the artifact's results differ from eager, and on_refused is 'fail': "
                + "; ".join(checks.report().failures),
                hint="do not load this artifact elsewhere; find the cause first, then build the "
                "artifact again",
                stage=Stage.PARITY.value,
            )
        return bool(checks.failed)

    def look_at_build(self, inputs: Sequence[Input]) -> None:
        """Say that the lines so far are about another application or other inputs, if so."""
        journal = self._journal
        is_other = journal.varied not in ("", self.digest_of(inputs))
        lines = [line for line in journal.unvaried if line != OTHER_BUILD]
        journal.unvaried = (*lines, *[OTHER_BUILD] * is_other)

    def digest_of(self, inputs: Sequence[Input]) -> str:
        """Return the digest of what decides which other calls compile."""
        replica = self._replica
        return digest_of(inputs, replica.owner, largest_batch=replica.largest_batch())

    async def look_for_narrow(self, inputs: Sequence[Input]) -> None:
        """Record what all inputs have in common, although a call that differs compiles."""
        progress = self._replays[-1].progress
        captures = self._journal.warmup_counts().captures
        if captures and not uses_cuda_graphs(self._replica.owner):
            return  # code of the application would capture graphs of the varied calls
        if not progress.has_compiled or self.ranks.size > 1:
            return
        replica = self._replica
        batches, odd = vary_batches(inputs, replica.owner, largest=replica.largest_batch())
        varied, opaque = self._vary(inputs)
        found, unknown = await self._replays[-1].find_narrow(batches, "sizes of batches", passes=1)
        more, not_tried = await self._replays[-1].find_narrow(varied, "variations", passes=2)
        self._journal.narrow = tuple(dict.fromkeys(each.axes for each in [*found, *more]))
        self._journal.unvaried = tuple(dict.fromkeys([*opaque, *odd, *unknown, *not_tried]))
        self._journal.varied = self.digest_of(inputs)
        for each in self._journal.narrow:
            logger.warning("the inputs are narrow: %s: %s", each, advise_on_narrow(each))
        if (batches or varied) and progress.proven:
            await self._prove_after_trials(self._replays[-1])

    def _vary(self, inputs: Sequence[Input]) -> tuple[list[Varied], list[str]]:
        """Return inputs with other values that are safe on this device, and what is not varied."""
        if not is_gpu_in_use():
            return vary(inputs, self._replica.owner)
        if not makes_artifact(self._replica.application, self._config):
            return [], [NOT_ON_A_GPU]
        varied, opaque = vary(inputs, self._replica.owner)
        varied, left_out = leave_out_larger(varied, inputs)
        return varied, opaque + [NOT_LARGER] * bool(left_out)

    async def _prove_after_trials(self, replay: Replay) -> None:
        """Prove the declared inputs again, because another call may have changed something."""
        progress = replay.progress
        passes, proven = progress.passes, {*progress.proven}
        try:
            await replay.prove(attempts=1)
            if proven <= progress.proven:
                progress.passes = passes  # this pass is part of the trials
                return
            self._journal.warn(
                f"calls with other values changed the application: {CHANGED_BY_TRIALS}"
            )
            is_quiet = await self._until_quiet(replay)
            await replay.prove(attempts=PROOF_ATTEMPTS if is_quiet else 1)
        except ReplayFailed as error:
            progress.proven.discard(error.input)
            progress.unproven[error.input] = f"after calls with other values, {error.message}"
            self._journal.warn(f"{progress.unproven[error.input]}: {CHANGED_BY_TRIALS}")

    def look_for_untaken(self) -> None:
        """Record the branches that depend on a tensor's value and that no input took.

        The application may rule out a branch of a library, so nobody knows whether a request can
        take it: such a branch is not narrow.
        """
        narrow, unvaried = [*self._journal.narrow], [*self._journal.unvaried]
        for where, file in watch_process().take_untaken_branches().items():
            line = f"{BRANCH}{where}"
            if not is_users(file):
                unvaried.append(line)
            elif line not in narrow:
                logger.warning("the inputs are narrow: %s: %s", line, advise_on_narrow(line))
                narrow.append(line)
        self._journal.narrow = tuple(narrow)
        self._journal.unvaried = tuple(dict.fromkeys(unvaried))

    def look_for_uncalled(self) -> None:
        """Record the compiled objects of the application that no input calls.

        Record its methods that use a compiled object, too.
        """
        journal, owner = self._journal, self._replica.owner
        # If nothing was called, the inputs are not proven, and that says more.
        if self.ranks.size > 1 or not self._replays[-1].progress.proven:
            return
        entered = watch_process().entered
        routes = find_routes(type(owner))
        compiled = find_compiled(owner, routes.list_functions() if routes else ())
        uncalled = find_uncalled(owner, compiled, entered, self._replica.called_methods)
        found = tuple(f"{excerpt(path)}{UNCALLED}" for path in uncalled[:MOST_UNCALLED])
        for each in found:
            if each not in journal.narrow:
                logger.warning("the inputs are narrow: %s: %s", each, advise_on_narrow(each))
        # The artifact has the lines of its build, whose inputs may have been others.
        journal.narrow = (*(each for each in journal.narrow if UNCALLED not in each), *found)
        methods = find_uncalled_methods(owner, compiled, self._replica.called_methods)
        lines = [f"{METHOD}{excerpt(name)}()" for name in methods[:MOST_UNCALLED]]
        lines += [f"{METHOD}{len(methods)} in all"] * (len(methods) > MOST_UNCALLED)
        judged = {item.target_name for item in self._replays[-1].progress.inputs}
        if HEALTH_CHECK in {item.target_name for item in journal.inputs} - judged:
            lines.append(IDLE_HEALTH_CHECK)
        # The artifact has the lines of its build, whose methods may have been others.
        kept = (each for each in journal.unvaried if not each.startswith((METHOD, HEALTH_CHECK)))
        journal.unvaried = (*kept, *lines)

    # The verdict -------------------------------------------------------------------------------

    def judge(self, missing: WarmupFailed | None) -> None:
        """Warn about problems that the proof found, or raise if a policy forbids them.

        `missing` is the error for `on_missing: fail`, raised if this process has compiled code.

        Raises:
            WarmupFailed: `missing` is set and there is compiled code, or the app uses CUDA graphs
                and makes compiled calls on threads that live only for one request.
            NotProven: an input is not proven, and `on_unproven` is `fail`.
        """
        progress = self._replays[-1].progress
        if progress.has_compiled:
            if missing is not None:
                raise missing
        elif progress.unproven.keys() <= progress.left_out.keys():
            # Otherwise the reasons say what turns the compiler off.
            self._say_nothing_compiles()
        self._judge_threads(progress)
        self._judge_coverage(progress)

    def _say_nothing_compiles(self) -> None:
        others = ", ".join(self._replica.waits_for())
        self._journal.note_nothing_compiles(
            "this process has no compiled code, and no input made a compiled call: "
            "warm-up replayed the inputs, but could prove nothing. "
            + (
                f"A model in another deployment ({others}) is warmed up by that deployment"
                if others
                else "If this app has a compiled model, declare inputs that reach it"
            )
        )

    def _judge_threads(self, progress: Progress) -> None:
        """Warn about handlers whose compiled calls run on a different thread each time.

        If there are CUDA graphs, raise instead.
        """
        strangers = progress.threads - self._replica.serving_threads()
        if not strangers:
            return
        many = f"{len(strangers)} thread{'s' * (len(strangers) != 1)}"
        if self._journal.warmup_counts().captures or uses_cuda_graphs(self._replica.owner):
            raise WarmupFailed(
                f"compiled calls came from {many} outside the replica's own threads, but a CUDA "
                "graph works only on the thread that captured it; the thread of a sync handler "
                "ends with its request",
                hint=KEEP_ON_ONE_THREAD,
                stage=Stage.PROVING.value,
            )
        self._journal.warn(
            f"compiled calls ran on {many} outside the replica's own, as in a sync handler: "
            "concurrent calls can hit a race condition in Dynamo's lookup and recompile; "
            + KEEP_ON_ONE_THREAD
        )

    def _judge_coverage(self, progress: Progress) -> None:
        unproven, left_out = progress.unproven, progress.left_out
        if not unproven:
            return
        name, why = next(iter(unproven.items()))
        # Name all skipped inputs, because requests of these sizes may also run out of memory.
        names = ", ".join(map(repr, left_out)) if name in left_out else repr(name)
        of = len(progress.inputs)
        text = f"{len(unproven)} of {of} inputs are not proven warm; {names} {why}"
        if self._config.on_unproven == "fail":
            raise NotProven(text, hint="or set on_unproven: serve", stage=Stage.PROVING.value)
        self._journal.degraded.append(f"{UNCOVERED}{text}")
        logger.warning(
            "the replica serves with unproven inputs, because on_unproven is 'serve': %s", text
        )


FEW_OBJECTS = 50_000
"""If `gc.get_freeze_count()` is at most this number, the app did not call `gc.freeze()` after its
imports. With torch imported, over 150,000 objects exist. CPython 3.12 begins with 375 frozen
objects."""


@contextlib.contextmanager
def _startup_objects_frozen() -> Iterator[None]:
    """During the block, exclude existing objects (imports, weights) from garbage collection.

    Tracing and loading entries can create millions of objects, and each full collection visits all
    of torch's objects. Without this exclusion, collections take 15 to 20 % of a warm replay
    (MiniLM, six inputs, torch 2.13). Serve itself freezes such objects permanently after the start.
    """
    early = early_imports()
    # The second question takes 0.1 µs for each frozen object, so a seat does not ask it.
    if (early is not None and early.ended_boot_s) or gc.get_freeze_count() > FEW_OBJECTS:
        # A seat or the app has already frozen the imports, and unfreezing would undo this.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _can_compile() -> bool:
    """Return whether a compiler is available for torch.compile."""
    try:
        require_compiler(environment())
    except CompilerMissing:
        return False
    return True
