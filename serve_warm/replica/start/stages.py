# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a start's stages and of an update after READY, with deadlines and policies.

A `Warmup` is one start of one replica. A `WarmupHost` provides the facts that only the deployment
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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serve_warm.artifact.code_and_model import CodeAndModel
from serve_warm.artifact.manifest import VALUES
from serve_warm.compiler import eager_calls, evidence
from serve_warm.compiler.compiled_objects import (
    reaches_compiled,
)
from serve_warm.compiler.eager_calls import EagerAnswers, EagerKind, EagerRecord
from serve_warm.compiler.imports import is_imported
from serve_warm.compiler.proof import look_at_fallen
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import (
    ReplayFailed,
    WarmupFailed,
    WarmupTimeout,
)
from serve_warm.node import boot_s
from serve_warm.precompile import SESSION
from serve_warm.precompile.taking import TAKEN
from serve_warm.replica.record.journal import Journal, Observer, cpu_seconds
from serve_warm.replica.record.progress import HEALTH_CHECK
from serve_warm.replica.record.timeline import Timeline
from serve_warm.replica.record.traffic_log import EAGER_CALL, NO_ARTIFACT
from serve_warm.replica.replay import ranks
from serve_warm.replica.replay.timed_calls import Deadline
from serve_warm.replica.replay.watchdog import Watchdog
from serve_warm.replica.start import prefetch
from serve_warm.replica.start.context import CompileCaches, StartContext, WarmupHost
from serve_warm.replica.start.load import Loaded, Loading
from serve_warm.replica.start.pack import PLAN, VARIED, Packed, pack
from serve_warm.replica.start.prepare import Preparation, Prepared
from serve_warm.replica.start.proof import LATE_UPDATE, Proof
from serve_warm.report import (
    CompileEvent,
    EagerReason,
    Report,
    Stage,
    Verdict,
)
from serve_warm.seats.preload import early_imports

if TYPE_CHECKING:
    from serve_warm.learn.cover import Code
    from serve_warm.learn.plan import InputPlan

logger = logging.getLogger(__name__)


class Warmup:
    """One start of one replica: call `prove()` once, then `become_ready()` when traffic may begin.

    It is safe to call `report()` at any time and on any thread.
    """

    def __init__(
        self,
        replica: WarmupHost,
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
        self._is_eager = False
        """Whether this replica compiles nothing."""
        self._replayed = EagerRecord()
        """The calls of replays that ran eagerly."""
        self._is_late = False
        """Whether a deadline has passed and the policy is to serve."""
        self._is_eager_beside_entries = False
        """Whether calls without an entry run eagerly, if their callable has entries."""
        self._prepared = Prepared()
        known = known or Report(
            application=replica.application,
            deployment=replica.deployment,
            replica=replica.replica,
            created_boot_s=boot_s(),
        )
        self.journal = Journal(known, config, timeline)
        self.caches = caches or CompileCaches()
        self._start = StartContext(
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

    @property
    def made_of(self) -> CodeAndModel:
        """The code and model of the replica when its inputs were first asked for."""
        return self._prepared.made_of

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
        journal.begin(is_compiler_from_app=is_imported())
        eager_calls.answer_from_now_on(None)  # of an earlier start of this process
        start = time.perf_counter()
        deadline = Deadline(self._config.deadline_s)
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
        finally:
            to_proof_s = time.perf_counter() - start
            if self._prefetched is not None:
                self._prefetched.drop()  # no effect if the start took the artifact
            journal.end(to_proof_s=to_proof_s, cpu_s=cpu_seconds())
            raised = sys.exc_info()[1]
            if raised is not None:
                # Any exception ends this start, even an exception of user code, and readers of the
                # state file must see it.
                journal.fail(raised)

    async def _reach_proof(self, deadline: Deadline) -> None:
        loading, proof = Loading(self._start), self._proof
        with self._watch_deadline(deadline), self._join() as group, _startup_objects_frozen():
            proof.join(group)
            prepared = await Preparation(self._start).prepare(group, deadline)
            self._prepared = prepared
            self._begin_recorder()
            loaded = await loading.load(prepared, group, deadline)
            if loaded.plan is not None:
                self._prepared = prepared = self._with_plan(prepared, loaded.plan)
            if not prepared.inputs:
                self._go_on_without_inputs(loaded)
                return
            if loaded.is_eager:
                await self._run_eagerly(deadline)
                return
            if self._config.on_missing == "eager" and SESSION.loaded is not None:
                self._answer_eagerly_beside_entries()
            self._prepared = prepared = await proof.add_health_check(prepared, deadline)
            try:
                await self._replay_and_compare(prepared, deadline)
            except ReplayFailed as error:
                refusal = None if self._is_late else await proof.blame_artifact(error, loaded)
                if refusal is None:
                    raise
                self.journal.follow_checks(None)
                if (await loading.go_on_without(refusal, prepared)).is_eager:
                    await self._run_eagerly(deadline)
                    return
                await self._replay_and_compare(prepared, deadline)
            await self._look_for_gaps(proof, prepared, loaded)
            proof.judge(loaded.missing)
            self._refuse_partial()
            # Ranks become ready together, because a first request would wait for the other ranks.
            await group.agree("being ready", None, timeout_s=deadline.left())

    async def _replay_and_compare(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay and prove; do this again if an entry's results differ from eager execution."""
        proof = self._proof
        await proof.replay_and_prove(prepared, deadline)
        before, is_beside = eager_calls.answers, self._is_eager_beside_entries
        if self._config.on_refused == "eager" and SESSION.loaded is not None:
            # All other calls have their code by now.
            self._answer_eagerly_beside_entries(in_torch=True)
        if await proof.withdraws_entries():
            # The calls of a withdrawn entry now run other code, which is not warm yet.
            await proof.replay_and_prove(prepared, deadline)
        else:
            eager_calls.answer_from_now_on(before)
            self._is_eager_beside_entries = is_beside

    async def _look_for_gaps(self, proof: Proof, prepared: Prepared, loaded: Loaded) -> None:
        """Look for calls that the declared inputs do not make, but that traffic can make."""
        # Traffic has made the calls of a plan, and no person has chosen them.
        is_declared = not self.journal.has_only_planned_inputs
        if is_declared and loaded.verdict is Verdict.FULL_HIT:  # the artifact has the result
            proof.look_at_build(prepared.inputs)
        elif is_declared:
            with self.journal.timeline.span("other sizes"):
                await proof.look_for_narrow(prepared.inputs)
        proof.look_for_untaken()
        if is_declared:
            proof.look_for_uncalled()

    def _begin_recorder(self) -> None:
        """Let the dispatchers record the kinds of calls, if the settings say so."""
        if self._config.record != "off" and "torch" in sys.modules:
            from serve_warm.learn.recorder import Recorder

            SESSION.recorder = Recorder()

    def _with_plan(self, prepared: Prepared, plan: InputPlan) -> Prepared:
        inputs = Preparation(self._start).with_plan(prepared.inputs, plan)
        return dataclasses.replace(prepared, inputs=inputs, plan=plan)

    def _go_on_without_inputs(self, loaded: Loaded) -> None:
        """Let a wrapped application serve that declares nothing and has no plan."""
        if loaded.is_eager:
            self._is_eager = True
            record = self.journal.eager_record
            compiles = bool(TAKEN.calls()) or reaches_compiled(self._replica.owner)
            self.journal.note_eager(is_uncompiled=lambda: compiles or not record.is_empty)
            self._answer_eagerly(EagerReason.NO_ARTIFACT)
        self.journal.note_undeclared()

    async def _run_eagerly(self, deadline: Deadline) -> None:
        """From now on, run all calls eagerly, and replay the inputs once."""
        self._is_eager = True
        replayed, record = self._replayed, self.journal.eager_record
        self.journal.note_eager(is_uncompiled=lambda: not (replayed.is_empty and record.is_empty))
        self._answer_eagerly(EagerReason.NO_ARTIFACT)
        await self._replay_eagerly(deadline)

    async def _replay_eagerly(self, deadline: Deadline) -> None:
        await self._proof.replay_eagerly(
            self._prepared, deadline, has_run=lambda: not self._replayed.is_empty
        )

    def _answer_eagerly(
        self,
        reason: EagerReason,
        *,
        only_beside_entries: bool = False,
        takes_in_torch: Callable[[], bool] | None = None,
    ) -> None:
        eager_calls.answer_from_now_on(
            EagerAnswers(
                self.journal.eager_record,
                reason,
                replayed=self._replayed,
                takes_in_torch=takes_in_torch,
                only_beside_entries=only_beside_entries,
                on_new=self._note_eager_call,
                no_memory=self._replica.no_memory,
            )
        )

    def _answer_eagerly_beside_entries(self, *, in_torch: bool = False) -> None:
        """From now on, run calls without an entry eagerly, if their callable has entries.

        With `in_torch`, also other calls for which torch has no code, until READY.
        """
        self._is_eager_beside_entries = True
        journal = self.journal
        self._answer_eagerly(
            EagerReason.NO_ENTRY,
            only_beside_entries=True,
            takes_in_torch=(lambda: journal.stage is not Stage.READY) if in_torch else None,
        )

    def _answer_unforeseen_eagerly(self) -> None:
        """From now on, run calls that would compile eagerly."""
        is_cold = self._is_late and SESSION.loaded is None
        if is_cold and not self.journal.report().warmup.compiles:
            # The deadline passed before anything was compiled.
            record = self.journal.eager_record
            self.journal.note_uncompiled(lambda: not record.is_empty)
        reason = EagerReason.NO_ARTIFACT if is_cold else EagerReason.UNFORESEEN
        self._answer_eagerly(reason)
        look_at_fallen()

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
        journal.end_warmup(self._replica.serving_threads())
        # The deadline may have passed before counting began. Count compiles in traffic anyway.
        seen = watch_process()
        seen.on_event = self._note_in_traffic
        TAKEN.is_late = True
        if SESSION.recorder is not None:
            SESSION.recorder.begin()
        # A replica that runs eagerly has nothing to forbid, and knows already what to do.
        if self._config.after_ready == "forbid" and not self._is_eager:
            seen.forbidden = self._replica.refusal
        elif self._config.after_ready == "eager" and not self._is_eager:
            self._answer_unforeseen_eagerly()
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
        # Their calls are only logged, because an update is no traffic.
        requests = EagerRecord()

        def takes() -> bool:
            # Only calls that belong to a request for certain run eagerly: a call on a thread that
            # keeps no context may belong to a replay, which compiles unless the replica is eager.
            return self._is_eager or (not evidence.is_replay() and is_request())

        answers = EagerAnswers(
            requests,
            EagerReason.NO_ENTRY if self._is_eager_beside_entries else EagerReason.UNFORESEEN,
            replayed=self._replayed,
            # There may be no compiler, and code that torch compiles now would let it compile later.
            takes=(lambda: True) if self._is_eager_beside_entries else takes,
            takes_in_torch=takes,
            only_beside_entries=self._is_eager_beside_entries,
            no_memory=self._replica.no_memory,
        )
        with eager_calls.answering(answers), self._watch_paused():
            try:
                await change()
                await self._prove_again()
            except WarmupTimeout as error:
                if not self._serves_late():
                    raise
                logger.warning("%s", error)
                journal.degrade(f"{LATE_UPDATE}{error.message}")
            finally:
                raised = sys.exc_info()[1]
                if raised is not None:  # Serve replaces the replica, unless only its rank changed
                    journal.fail(raised)
        journal.return_to_ready()
        if self._config.after_ready == "eager" and not self._is_eager:
            look_at_fallen()  # the proof has looked away again
        eager: Counter[str] = Counter()
        for each in requests.calls():
            eager[each.callable] += each.calls
        logger.info(
            "reconfigure: %d compiles in %.1f s%s",
            (seen.counts() - before).compiles,
            time.perf_counter() - began_s,
            f"; meanwhile, requests called {', '.join(eager)} eagerly {eager.total()} times"
            if eager
            else "",
        )

    @contextlib.contextmanager
    def _events_unnoticed(self) -> Iterator[None]:
        """In the block, log no event as one of traffic."""
        seen = watch_process()
        on_event, seen.on_event = seen.on_event, None
        try:
            yield
        finally:
            seen.on_event = on_event

    @contextlib.contextmanager
    def _watch_paused(self) -> Iterator[None]:
        """In the block, count and refuse nothing, and leave READY before the first compile."""
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
        preparation = Preparation(self._start)
        inputs = await preparation.ask_inputs(deadline)
        inputs = preparation.with_plan(inputs, self._prepared.plan)
        known = {item.target_name for item in inputs}
        # `add_health_check` has added an input that the user does not declare.
        health = [item for item in self._prepared.inputs if item.target_name == HEALTH_CHECK]
        inputs = (*inputs, *(item for item in health if item.target_name not in known))
        self._prepared = dataclasses.replace(self._prepared, inputs=inputs)
        if self._is_eager:
            await self._replay_eagerly(deadline)
        else:
            await self._proof.prove_update(self._prepared, deadline)

    def _note_in_traffic(self, event: CompileEvent) -> None:
        declared = self._prepared.inputs
        self.journal.log_compile(event, lambda event: self._replica.suggest(event, declared))
        self.journal.tell()  # or the files would say for seconds that it still compiles

    def _note_eager_call(self, function: str, call: str, kind: EagerKind) -> None:
        why = kind.why or (NO_ARTIFACT if kind.reason is EagerReason.NO_ARTIFACT else "")
        event = CompileEvent(kind=EAGER_CALL, function=function, signature=call, reason=why)
        if not self.journal.traffic_log.is_learned:
            kind.declare = self._replica.suggest(event, self._prepared.inputs)
        self.journal.log_compile(event, lambda _: kind.declare)

    async def pack(
        self, *, accept_torch_source: bool = False
    ) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        """Return the raw parts of an artifact and its build facts. Call this after `run()`.

        Raises:
            WarmupFailed: `after_ready` is `eager`, but an input needs compiled code; or there are
                no inputs.
        """
        if not self._prepared.inputs:
            raise WarmupFailed(
                "there is nothing to pack, because nothing was replayed",
                hint="declare inputs, or build with a plan: serve-warm build --plan",
            )
        # A build compiles what `after_ready` would run eagerly.
        with eager_calls.answering(None), self._join() as group:
            self._proof.join(group)
            try:
                if self._config.after_ready == "eager":
                    self._say("running the inputs without torch.compile")
                    with self._events_unnoticed():
                        await self._proof.require_eager(
                            self._prepared, Deadline(self._config.deadline_s)
                        )
                packed = await pack(
                    self.report(),
                    self.caches.directory,
                    lambda: self._proof.new_replay(
                        self._prepared, Deadline(self._config.deadline_s)
                    ),
                    say=self._say,
                    accept_torch_source=accept_torch_source,
                )
                varied = self._proof.digest_of(self._prepared.inputs)
                plan = self._plan_fact(packed)
                return packed.parts, {**packed.facts, VARIED: varied, **plan}
            finally:
                self._say("")

    def _plan_fact(self, packed: Packed) -> Mapping[str, Any]:
        """Return the fact with the calls of the plan that a start must replay."""
        plan = self._prepared.plan
        if plan is None:
            return {}
        if packed.answered_by and self._proof.ranks.size == 1:
            plan = self._reduced(plan, packed)
        else:
            calls = tuple(dataclasses.replace(each, any_size=()) for each in plan.calls)
            plan = dataclasses.replace(plan, calls=calls)
        values = {VALUES: len(plan.requests)} if plan.requests else {}
        return {PLAN: plan.to_json(), **values}

    def _reduced(self, plan: InputPlan, packed: Packed) -> InputPlan:
        from serve_warm.learn.any_size import only_open
        from serve_warm.learn.reduced import Reached, reduce_plan

        answered_by = packed.answered_by
        worked, left_out = self._proof.worked(), self.journal.progress.left_out

        def codes_of(name: str) -> frozenset[Code]:
            """Return the ids of entries, and the name where a start must make this very call.

            At level 1, the calls that compiled in a build compile the same code in a start, which
            then answers the calls that compiled nothing. But if some calls of a callable have an
            entry, they compile nothing in a start, so any other call may.
            """
            answers = answered_by[name]
            is_needed = name in left_out or (
                answers.torch_compile
                and (name in worked or answers.torch_compile & packed.with_entries)
            )
            return frozenset(answers.entries) | ({name} if is_needed else set())

        steady_s = self.journal.progress.steady_s
        # In the order of the plan: the inputs keep it, behind the declared ones.
        planned = self.journal.planned

        def needs_of(name: str) -> frozenset[Code]:
            """Return the calls that compiled the code that answers this one at level 1."""
            code = answered_by[name].torch_compile
            return frozenset(
                each
                for each in worked & answered_by.keys()
                if code & answered_by[each].torch_compile
            )

        def found(names: frozenset[str]) -> list[Reached]:
            return [
                Reached(codes=codes_of(name), needs=needs_of(name), seconds=steady_s.get(name, 0.0))
                for name in answered_by
                if name in names
            ]

        declared = (codes_of(each) for each in answered_by if each not in planned.names)
        names = (name for name in answered_by if name in planned.calls)
        calls = tuple(
            only_open(
                call,
                [
                    sizes
                    for key, (structure, sizes) in packed.open_entries.items()
                    if key in answered_by[name].entries and structure == call.structure
                ],
            )
            for call, name in zip(plan.calls, names, strict=True)
        )
        return reduce_plan(
            dataclasses.replace(plan, calls=calls),
            found(planned.calls),
            requests=found(planned.requests),
            declared=frozenset().union(*declared),
        )

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
