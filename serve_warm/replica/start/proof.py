# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The proof: inputs are replayed until quiet, then once more with compiling forbidden."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence

from serve_warm._redaction import describe_error, excerpt, loggable
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
from serve_warm.compiler.proof import run_eagerly
from serve_warm.compiler.watch import watch_process
from serve_warm.config import environment
from serve_warm.errors import (
    ArtifactRefused,
    CompilerMissing,
    NotProven,
    ReplayFailed,
    WarmupFailed,
    WarmupTimeout,
)
from serve_warm.inputs import Input
from serve_warm.precompile import SESSION
from serve_warm.replica.record.progress import HEALTH_CHECK, Progress
from serve_warm.replica.record.raised_at import is_users
from serve_warm.replica.record.traffic_log import KEEP_ON_ONE_THREAD
from serve_warm.replica.replay import ranks
from serve_warm.replica.replay.narrow import Varied, digest_of, leave_out_larger, vary, vary_batches
from serve_warm.replica.replay.passes import PROOF_ATTEMPTS, Replay
from serve_warm.replica.replay.routes import find_routes
from serve_warm.replica.replay.timed_calls import Deadline, Limits
from serve_warm.replica.replay.waits import Waits
from serve_warm.replica.start.context import StartContext, StartStep
from serve_warm.replica.start.install import refuse_broken
from serve_warm.replica.start.load import Loaded
from serve_warm.replica.start.prepare import Prepared, makes_artifact
from serve_warm.report import BRANCH, UNCALLED, Stage, Verdict, advise_on_narrow

logger = logging.getLogger(__name__)

LATE_UPDATE = "late: reconfigure: "
"""If a replica is degraded because an update missed its deadline, the reason begins with this
prefix."""


UNCOVERED = "uncovered: "
"""If a replica is degraded because inputs are not proven, the reason begins with this prefix."""


METHOD = "a method that no input calls: "
"""How the line about a method that no input calls begins."""


RAN_EAGERLY = "ran eagerly, because there is no artifact and the policy is 'eager'"
"""Why an input is not proven in a start that compiles nothing."""


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


class Proof(StartStep):
    """The stages REPLAYING, PROVING and PARITY of one start, and the verdict on their results."""

    def __init__(self, start: StartContext) -> None:
        super().__init__(start)
        self._replays: list[Replay] = []
        """The replays so far. The last replay can still be running. The verdict uses the results
        of the last replay."""
        self.ranks = ranks.Ranks()

    def join(self, group: ranks.Ranks) -> None:
        """Replay together with these ranks from now on."""
        self.ranks = group

    def worked(self) -> frozenset[str]:
        """Return the names of the inputs whose replays compiled, captured or tuned anything."""
        return frozenset().union(*(each.progress.worked for each in self._replays))

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
        inputs = (*prepared.inputs, item)
        self._journal.note_inputs(inputs)
        return dataclasses.replace(prepared, inputs=inputs)

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
        journal.follow(replay.progress)
        journal.enter(Stage.REPLAYING)
        with journal.timed(Stage.REPLAYING):
            is_quiet = await self._until_quiet(replay)
        journal.enter(Stage.PROVING)
        with journal.timed(Stage.PROVING):
            await replay.prove(attempts=PROOF_ATTEMPTS if is_quiet else 1)

    async def replay_eagerly(
        self, prepared: Prepared, deadline: Deadline, *, has_run: Callable[[], bool]
    ) -> None:
        """Replay the inputs once in a start that compiles nothing.

        `has_run` returns whether any of them would have compiled.
        """
        journal = self._journal
        replay = self.new_replay(prepared, deadline)
        self._replays.append(replay)
        journal.follow(replay.progress)
        journal.stay_in(Stage.REPLAYING)
        with journal.timed(Stage.REPLAYING):
            await replay.run_eagerly(RAN_EAGERLY)
        if not has_run():
            replay.progress.has_compiled = False
            self._say_nothing_compiles()

    async def require_eager(self, prepared: Prepared, deadline: Deadline) -> None:
        """Replay the inputs once without compiled code, because requests may run like this.

        Raises:
            WarmupFailed: an input raised an exception or ran out of memory.
            WarmupTimeout: a deadline passed.
        """
        with run_eagerly():
            try:
                await self.new_replay(prepared, deadline).once()
            except ReplayFailed as error:
                cause = error.__cause__ or error
                raise WarmupFailed(
                    "`after_ready: eager` does not work for this model: without torch.compile, "
                    f"input {error.input!r} raised {describe_error(cause)}",
                    hint="use `after_ready: forbid` or `count`, or mend the uncompiled code",
                    stage=Stage.PROVING.value,
                ) from cause

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
            journal.follow(progress)
            journal.leave_ready()

        watch_process().on_begin = leave_ready
        if journal.stage is not Stage.READY:  # the user's method has compiled
            journal.follow(progress)
        try:
            await replay.prove()
        finally:
            progress.threads = before.threads  # requests have called on other threads
            journal.follow(progress)
        journal.forget_reasons(UNCOVERED, LATE_UPDATE)
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
            self._journal.follow_checks(
                SESSION.begin_checks(
                    one_in=self._config.eager_one_in,
                    can_compile=_can_compile,
                    on_failure=self._note_withdrawn,
                )
            )

    def _note_withdrawn(self, failure: str) -> None:
        self._journal.degrade(f"parity: {failure}")
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

    def _advise(self, place: str) -> str:
        return advise_on_narrow(place, is_eager=self._config.after_ready == "eager")

    def look_at_build(self, inputs: Sequence[Input]) -> None:
        """Say that the lines so far are about another application or other inputs, if so."""
        journal = self._journal
        is_other = journal.varied not in ("", self.digest_of(inputs))
        lines = [line for line in journal.unvaried if line != OTHER_BUILD]
        journal.note_coverage(unvaried=[*lines, *[OTHER_BUILD] * is_other])

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
        self._journal.note_coverage(
            narrow=[each.axes for each in [*found, *more]],
            unvaried=[*opaque, *odd, *unknown, *not_tried],
        )
        self._journal.note_varied(self.digest_of(inputs))
        for each in self._journal.narrow:
            logger.warning("the inputs are narrow: %s: %s", each, self._advise(each))
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
        for where, file in watch_process().branches.take_untaken().items():
            line = f"{BRANCH}{where}"
            if not is_users(file):
                unvaried.append(line)
            elif line not in narrow:
                logger.warning("the inputs are narrow: %s: %s", line, self._advise(line))
                narrow.append(line)
        self._journal.note_coverage(narrow=narrow, unvaried=unvaried)

    def look_for_uncalled(self) -> None:
        """Record the compiled objects of the application that no input calls.

        Record its methods that use a compiled object, too.
        """
        journal, owner = self._journal, self._replica.owner
        # If nothing was called, the inputs are not proven, and that says more.
        if self.ranks.size > 1 or not self._replays[-1].progress.proven:
            return
        called = self._replica.called_methods
        try:
            routes = find_routes(type(owner))
            compiled = find_compiled(owner, routes.list_functions() if routes else ())
            uncalled = find_uncalled(owner, compiled, watch_process().entered, called)
            methods = find_uncalled_methods(owner, compiled, called)
        except Exception as error:
            logger.warning(
                "cannot look for compiled objects that no input calls", exc_info=loggable(error)
            )
            return
        found = tuple(f"{excerpt(path)}{UNCALLED}" for path in uncalled[:MOST_UNCALLED])
        for each in found:
            if each not in journal.narrow:
                logger.warning("the inputs are narrow: %s: %s", each, self._advise(each))
        # The artifact has the lines of its build, whose inputs may have been others.
        others = [each for each in journal.narrow if UNCALLED not in each]
        journal.note_coverage(narrow=[*others, *found])
        lines = [f"{METHOD}{excerpt(name)}()" for name in methods[:MOST_UNCALLED]]
        lines += [f"{METHOD}{len(methods)} in all"] * (len(methods) > MOST_UNCALLED)
        judged = {item.target_name for item in self._replays[-1].progress.inputs}
        if HEALTH_CHECK in {item.target_name for item in journal.inputs} - judged:
            lines.append(IDLE_HEALTH_CHECK)
        # The artifact has the lines of its build, whose methods may have been others.
        kept = (each for each in journal.unvaried if not each.startswith((METHOD, HEALTH_CHECK)))
        journal.note_coverage(unvaried=[*kept, *lines])

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
        # Name the skipped inputs, because requests of these sizes may also run out of memory.
        skipped = [*map(repr, left_out)] if name in left_out else [repr(name)]
        names = ", ".join(itertools.islice(skipped, MOST_SKIPPED))
        if len(skipped) > MOST_SKIPPED:
            names += f" and {len(skipped) - MOST_SKIPPED} more"
        of = len(progress.inputs)
        text = f"{len(unproven)} of {of} inputs are not proven warm; {names} {why}"
        if self._config.on_unproven == "fail":
            raise NotProven(text, hint="or set on_unproven: serve", stage=Stage.PROVING.value)
        self._journal.degrade(f"{UNCOVERED}{text}")
        logger.warning(
            "the replica serves with unproven inputs, because on_unproven is 'serve': %s", text
        )


MOST_SKIPPED = 4
"""Number of skipped inputs that one sentence names. The report has all of them."""


def _can_compile() -> bool:
    """Return whether a compiler is available for torch.compile."""
    try:
        require_compiler(environment())
    except CompilerMissing:
        return False
    return True
