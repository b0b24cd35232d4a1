# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of a start: the events so far, and observers that are called on each change.

Every stage writes its findings to the journal. The report is built only from the journal, and can
be built at any time and on any thread. Each stage returns the results that a later stage needs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from serve_warm._records import record
from serve_warm._redaction import excerpt, join_lines, loggable
from serve_warm.compiler import cuda_graphs
from serve_warm.compiler.eager_calls import EagerRecord
from serve_warm.compiler.imports import IMPORTER, is_imported
from serve_warm.compiler.watch import EVENTS_KEPT, watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import ServeWarmError
from serve_warm.node import boot_s
from serve_warm.precompile import SESSION
from serve_warm.precompile.taking import TAKEN
from serve_warm.private_apis.module_names import INDUCTOR_CONFIG
from serve_warm.replica.record.progress import HEALTH_CHECK, Progress
from serve_warm.replica.record.timeline import Timeline
from serve_warm.replica.record.traffic_log import TrafficLog
from serve_warm.report import (
    ArtifactUse,
    CompileEvent,
    Counts,
    Coverage,
    DeviceMemory,
    LearnedCalls,
    Report,
    Stage,
    StageTime,
    Verdict,
)

if TYPE_CHECKING:
    from serve_warm.fingerprint import Fingerprint
    from serve_warm.inputs import Input
    from serve_warm.precompile import Checks

logger = logging.getLogger(__name__)

Observer = Callable[[Report], None]

LOG_PREFIX = "warmup_"
"""Prefix of the fields that serve_warm adds to log records. Other packages also add fields."""

LATE = "late: "
"""If a replica is degraded because it missed its deadline, the reason begins with this prefix."""

SIZES_OF_A_GRAPH = 8
"""If one graph has more than this number of sizes, serve_warm warns, as torch 2.13 does
(`cudagraph_dynamic_shape_warn_limit`)."""


COMPILED = "the start compiled something that the artifact does not contain"


@record(frozen=True, kw_only=True)
class Planned:
    """Which inputs come from a plan."""

    names: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    """Those of `names` that are recorded requests."""

    @property
    def calls(self) -> frozenset[str]:
        """Those of `names` that are kinds of calls."""
        return self.names - self.requests


class Journal:
    """The record of one start so far. Stages write to this record, and `report()` reads it."""

    def __init__(
        self, known: Report, config: WarmupConfig, timeline: Timeline | None = None
    ) -> None:
        # `known` has facts of the start that only the deployment knows: where and when it began,
        # its image and versions.
        self._known = known
        self._config = config
        self._observers: tuple[Observer, ...] = ()
        self._entered: tuple[Stage, float] | None = None
        self._ended_boot_s = math.inf
        self._times: list[StageTime] = []
        self._span: _Preparing | _Warming | _Serving = _Preparing()
        self.timeline = timeline or Timeline()
        self.stage = Stage.PENDING
        self.verdict = None if config.artifact is not None else Verdict.OFF
        """The verdict; None until it is decided. Loading sets FULL_HIT, which the report shows only
        after the replica is READY."""
        self.planned = Planned()
        """Names of the inputs that come from a plan."""
        self._learned: LearnedCalls | None = None
        self.is_undeclared = False
        """Whether there is nothing to replay."""
        self.degraded: list[str] = []
        self.warnings: list[str] = []
        self.artifact: ArtifactUse | None = None
        """How the start used the configured artifact."""
        self.fingerprint: Fingerprint | None = None
        """The fingerprint that artifacts are compared with. The start reads the fingerprint before
        it pulls any artifact."""
        self.inputs: Sequence[Input] = ()
        """The inputs to replay, in order; known once the start has begun."""
        self.narrow: tuple[str, ...] = ()
        """What the inputs do not cover: axes of one size, and branches that no input takes."""
        self.varied = ""
        """Digest of the code and inputs to which the lines of an artifact apply."""
        self.unvaried: tuple[str, ...] = ()
        """What of the inputs could not be varied."""
        self.progress = Progress()
        self.checks: Checks | None = None
        """Checks that compare entries with eager execution; None if there are no entries."""
        self.is_compiler_from_app = False
        """Whether the app imported torch's compiler before the warm-up needed it."""
        self.traffic_log = TrafficLog()
        """The log of compiles after READY."""
        self.eager_record = EagerRecord()
        """The calls after READY that ran eagerly."""
        self._is_uncompiled: Callable[[], bool] = lambda: False
        self.compiled_early = 0
        """Number of frames compiled in `__init__`."""
        self.started_unix = 0.0
        self._events = watch_process().later_events()
        """The numbers of the events since the warm-up began."""
        self.to_proof_s = 0.0
        self.cpu_s = 0.0
        self.error = ""
        self._is_updating = False
        self._stage_lock = threading.RLock()

    # What the stages found ------------------------------------------------------------------------

    def begin(self, *, is_compiler_from_app: bool) -> None:
        """Record that the warm-up begins, and whether the app has imported torch's compiler."""
        self.started_unix = time.time()
        self._events = watch_process().later_events()
        self.is_compiler_from_app = is_compiler_from_app

    def end(self, *, to_proof_s: float, cpu_s: float) -> None:
        """Record how long the way to the proof took, also if it failed."""
        self.to_proof_s, self.cpu_s = to_proof_s, cpu_s

    def note_early_compiles(self, frames: int) -> None:
        """Record how many frames were compiled in `__init__`."""
        self.compiled_early = frames

    def note_inputs(self, inputs: Sequence[Input]) -> None:
        """Record the inputs to replay."""
        self.inputs = inputs

    @property
    def has_only_planned_inputs(self) -> bool:
        """Whether all inputs come from a plan, beside the health check, which nobody declares."""
        declared = (each.name for each in self.inputs if each.target != HEALTH_CHECK)
        return all(name in self.planned.names for name in declared)

    def note_plan(
        self,
        names: Collection[str],
        requests: Collection[str],
        *,
        calls: int,
        share: float,
        any_size: Sequence[str] = (),
    ) -> None:
        """Record which inputs come from a plan, and from how many calls it was made.

        `requests` are those of `names` that are recorded requests.
        """
        self.planned = Planned(names=frozenset(names), requests=frozenset(requests))
        self._learned = LearnedCalls(
            kinds=len(names) - len(requests),
            proven=0,
            requests=len(requests),
            calls=calls,
            share=share,
            any_size=tuple(any_size),
        )

    def note_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Record the fingerprint that artifacts are compared with."""
        self.fingerprint = fingerprint

    def note_artifact(self, use: ArtifactUse, verdict: Verdict | None = None) -> None:
        """Record how the artifact is used, and the verdict if that decides it."""
        self.artifact = use
        self.verdict = verdict or self.verdict

    def note_eager(self, *, is_uncompiled: Callable[[], bool]) -> None:
        """Record that this start compiles nothing.

        `is_uncompiled` returns whether it would have compiled for any call so far.
        """
        self.verdict = Verdict.EAGER
        self._is_uncompiled = is_uncompiled

    def note_uncompiled(self, is_uncompiled: Callable[[], bool]) -> None:
        """Record that nothing was compiled, although the policy was another one."""
        self._is_uncompiled = is_uncompiled

    def note_undeclared(self) -> None:
        """Warn that there is nothing to replay."""
        self.is_undeclared = True
        self.warn(
            "nothing is replayed or proven, because no inputs are declared and there is no plan: "
            "after some traffic, run `serve-warm plan`, and then `serve-warm build --plan`"
        )

    def note_loaded(self, *, narrow: Sequence[str], unvaried: Sequence[str], varied: str) -> None:
        """Record that the artifact is loaded, and what its build said about the inputs.

        The verdict stays unless the replay finds compiles.
        """
        self.verdict = Verdict.FULL_HIT
        self.note_coverage(narrow=narrow, unvaried=unvaried)
        self.varied = varied

    def note_coverage(
        self, *, narrow: Sequence[str] | None = None, unvaried: Sequence[str] | None = None
    ) -> None:
        """Record what the inputs do not cover, and what could not be varied, each line once."""
        if narrow is not None:
            self.narrow = tuple(dict.fromkeys(narrow))
        if unvaried is not None:
            self.unvaried = tuple(dict.fromkeys(unvaried))

    def note_varied(self, digest: str) -> None:
        """Record the digest of the code and inputs that were varied."""
        self.varied = digest

    def follow(self, progress: Progress) -> None:
        """Report the progress of a replay from now on."""
        self.progress = progress

    def follow_checks(self, checks: Checks | None) -> None:
        """Report the checks of entries from now on; None if the entries are not used any more."""
        self.checks = checks

    def degrade(self, reason: str) -> None:
        """Record why the replica serves although something is not as it should be."""
        self.degraded.append(reason)

    def forget_reasons(self, *beginnings: str) -> None:
        """Forget the reasons for being degraded that begin with one of these texts."""
        self.degraded = [each for each in self.degraded if not each.startswith(beginnings)]

    # Stages -------------------------------------------------------------------------------------

    def observe(self, observers: Sequence[Observer]) -> None:
        """Call each of `observers` with the report whenever the report changes."""
        self._observers = tuple(observers)

    def enter(self, stage: Stage) -> None:
        """Begin a stage: log it and tell observers."""
        now = boot_s()
        ended: dict[str, str | float] = {}
        if self._entered is not None:
            before, since = self._entered
            self.timeline.add(before.value.lower(), since, now)
            ended = {"previous": before.value.lower(), "seconds": now - since}
        self._entered = (stage, now)
        if stage in (Stage.READY, Stage.FAILED) and self._ended_boot_s == math.inf:
            self._ended_boot_s = now  # first, because a reader of the stage also reads its end
        self._show(stage, **ended)

    def _show(self, stage: Stage, **ended: str | float) -> None:
        self.stage = stage
        logger.info(
            "stage=%s deployment=%s replica=%s",
            stage.value,
            self._known.deployment,
            self._known.replica,
            extra=self.log_fields("stage", **ended),
        )
        self.tell()

    # An update of a replica that serves -----------------------------------------------------------

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Count what is compiled in the block neither for the start nor for traffic."""
        serving = self._span
        if not isinstance(serving, _Serving):
            raise TypeError(f"an update in stage {self.stage.value}")
        serving.pause()
        later = watch_process().later_events()
        self._is_updating = True
        try:
            yield
        finally:
            with self._stage_lock:
                self._is_updating = False
            serving.go_on()
            events = watch_process().events([later])
            of_update = {(event.function, event.signature) for event in events}
            self.traffic_log.warmed = {*self.traffic_log.warmed, *of_update}

    def leave_ready(self) -> None:
        """Enter REPLAYING, because an update compiles; no effect if the replica is not READY.

        The start has ended, so that its times stay.
        """
        with self._stage_lock:  # any thread may compile, also when the update has just ended
            if self._is_updating and self.stage is Stage.READY:
                self._show(Stage.REPLAYING)

    def return_to_ready(self) -> None:
        """Enter READY again after an update; no effect if the replica is READY."""
        with self._stage_lock:
            if self.stage is not Stage.READY:
                self.error = ""
                self._show(Stage.READY)

    def stay_in(self, stage: Stage) -> None:
        """Begin a stage unless it is the current one."""
        if self.stage is not stage:
            self.enter(stage)

    @contextmanager
    def timed(self, stage: Stage, *, hidden_s: float = 0.0) -> Iterator[None]:
        """Add the block's duration to the time of a stage, even if the block raises an error."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(stage, time.perf_counter() - start, hidden_s=hidden_s)

    def add_time(self, stage: Stage, seconds: float, *, hidden_s: float = 0.0) -> None:
        """Add seconds to the time of a stage.

        `hidden_s` is additional time that the stage's work took during `__init__`.
        """
        self._times.append(StageTime(stage=stage, seconds=seconds, hidden_s=hidden_s))

    def seconds_of(self, *stages: Stage) -> float:
        """Return how long these stages took so far."""
        return sum(each.seconds for each in self._times if each.stage in stages)

    def warn(self, text: str) -> None:
        """Add a warning to the report and to the log."""
        self.warnings.append(text)
        logger.warning("%s", text)

    @property
    def is_serving(self) -> bool:
        """Whether the replica has been READY."""
        return isinstance(self._span, _Serving)

    def begin_counting(self) -> None:
        """From now on, count compiles and captures as part of the warm-up."""
        self._span = _Warming()

    def warmup_counts(self) -> Counts:
        """Return what the warm-up compiled and captured."""
        return self._span.warmup

    def end_warmup(self, lasting_threads: Collection[int]) -> None:
        """From now on, count compiles as part of traffic.

        Also add warnings about what the warm-up compiled, and update the verdict.
        `lasting_threads` are the native ids of the threads that live as long as the replica.
        """
        if isinstance(self._span, _Serving):
            return
        self._span = serving = _Serving.after(self._span)
        self.traffic_log.lasting = set(lasting_threads)
        self.traffic_log.is_learned = self.has_only_planned_inputs and self._config.record != "off"
        counts, events = serving.warmup, watch_process().events([self._events])
        if self.compiled_early:
            self.warn(
                f"{self.compiled_early} frames were compiled in __init__, before the artifact was "
                "loaded: instead of calling the model in __init__, declare the call in "
                "warmup_inputs()"
            )
        if counts.graph_skips:
            self.warn(_describe_skips(counts.graph_skips, events))
        # Calls that were refused are no part of what is warm.
        of_start = [event for event in events if event.kind != "forbidden"]
        self.traffic_log.warmed = {(event.function, event.signature) for event in of_start}
        for text in _many_sizes(of_start):
            self.warn(text)
        if self.verdict is Verdict.FULL_HIT and (gaps := self._find_gaps(counts)):
            self.verdict = Verdict.PARTIAL
            if COMPILED in gaps and self.artifact and not self.compiled_early:
                plan = " --plan plan.yaml" if self.has_only_planned_inputs else ""
                self.degraded.append(_build_again(self.artifact, counts, plan))

    def why_partial(self) -> str:
        """Return why the verdict will be `partial`, or an empty string if it will be another."""
        if self.verdict is not Verdict.FULL_HIT:
            return ""
        return "; ".join(self._find_gaps(self.warmup_counts()))

    def _find_gaps(self, counts: Counts) -> list[str]:
        """Return what a loaded artifact lacked."""
        not_in_it = (
            *(counts.compiler_processes, counts.kernels, counts.tunings),
            *(counts.fx_misses, counts.fx_bypasses),
        )
        gaps = {
            COMPILED: any(not_in_it),
            "code was compiled in __init__, before the artifact was loaded": self.compiled_early,
            "an input is not proven": self.progress.unproven,
            "an entry was withdrawn": self.checks is not None and self.checks.failed,
        }
        return [gap for gap, is_there in gaps.items() if is_there]

    def say_ready(self) -> Report:
        """Enter READY and return the report."""
        self.enter(Stage.READY)
        for reason in self.degraded:
            logger.warning("ready but degraded: %s", reason)
        report = self.report()
        why = "; ".join(self.degraded) or (report.artifact.reason if report.artifact else "")
        verdict = report.verdict.value if report.verdict else ""
        fields = self.log_fields("verdict", verdict=verdict, reason=why)
        logger.info("warm-up done\n%s", report.text(), extra=fields)
        return report

    def fail(self, error: BaseException) -> None:
        """Enter FAILED with the error."""
        if isinstance(error, ServeWarmError):
            hint = f"\nhint: {excerpt(error.hint)}" if error.hint else ""
            self.error = excerpt(error.message) + hint
        else:
            self.error = excerpt(f"{type(error).__name__}: {error}")
        self.enter(Stage.FAILED)
        fields = self.log_fields("verdict", verdict="failed", reason=self.error)
        logger.error("warm-up failed: %s", self.error, extra=fields)

    def mark_late(self, why: str) -> None:
        """Record that the replica serves although it missed a deadline.

        Only the last reason is kept.
        """
        self.verdict = Verdict.LATE
        others = [reason for reason in self.degraded if not reason.startswith(LATE)]
        self.degraded = [*others, f"{LATE}{why}"]

    def note_nothing_compiles(self, text: str) -> None:
        """Record that this app compiles nothing, so a cache miss does not count."""
        self.warnings.append(text)
        if self.verdict in (Verdict.MISS, Verdict.EAGER) and self.artifact is not None:
            # A missing artifact is normal here, because `serve-warm build` publishes none for such
            # an app.
            self.verdict = Verdict.OFF
            self.artifact = dataclasses.replace(
                self.artifact, reason="nothing compiles here: no artifact is needed"
            )

    # Reporting ------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return the report of the start so far."""
        progress, span = self.progress, self._span
        results = progress.results()
        steady_s = sum(result.steady_s for result in results)
        return dataclasses.replace(
            self._known,
            stage=self.stage,
            verdict=self._decided_verdict(),
            degraded=tuple(self.degraded),
            covered=Coverage(
                expected=len(results), proven=sum(result.proven for result in results)
            ),
            stages=tuple(self._times),
            spans=self.timeline.spans(),
            doing=self.timeline.doing or self._compiling_in_traffic(),
            inputs=results,
            passes=progress.passes,
            inputs_done=progress.done,
            to_proof_s=self.to_proof_s,
            overhead_s=max(0.0, self.to_proof_s - progress.passes * steady_s),
            cpu_s=self.cpu_s,
            warmup=span.warmup,
            after_ready=span.traffic,
            events=span.events(),
            memory=span.memory(),
            artifact=self.artifact,
            entries=SESSION.uses(),
            eager_calls=tuple(self.eager_record.calls()),
            uncompiled=self._is_uncompiled(),
            learned=self._learned
            and dataclasses.replace(
                self._learned,
                proven=sum(each.proven for each in results if each.name in self.planned.calls),
                requests_proven=sum(
                    each.proven for each in results if each.name in self.planned.requests
                ),
            ),
            compiled_by_app=TAKEN.calls(),
            parity=self.checks.report() if self.checks is not None else None,
            compiler_imported=self._compiler_imported(),
            compiler_imported_by=IMPORTER.place,
            narrow=self.narrow,
            unvaried=self.unvaried,
            nothing_compiles=not progress.has_compiled and not self.is_undeclared,
            fingerprint=self.fingerprint.to_json() if self.fingerprint else None,
            threads=tuple(sorted(progress.threads)),
            warnings=tuple(self.warnings),
            error=self.error,
            versions={**self._known.versions, **span.versions()},
            pid=os.getpid(),
            started_unix=self.started_unix,
            elapsed_s=self._elapsed_s(),
            ready_unix=span.ready_unix,
            deadline_s=self._config.deadline_s,
            artifact_configured=self._config.artifact is not None,
        )

    def _decided_verdict(self) -> Verdict | None:
        if self.stage is Stage.READY:
            return self.verdict or Verdict.OFF
        # Before READY, a hit may still become partial or end in an error.
        return None if self.verdict is Verdict.FULL_HIT else self.verdict

    def _elapsed_s(self) -> float:
        return max(0.0, min(boot_s(), self._ended_boot_s) - self._known.created_boot_s)

    def _compiler_imported(self) -> str:
        if not is_imported():
            return ""
        return "app" if self.is_compiler_from_app else "start"

    def _compiling_in_traffic(self) -> str:
        """Say that requests wait for the compiler: nothing is logged before it has ended."""
        is_waiting = self.stage is Stage.READY and watch_process().compiling > 0
        return COMPILING * (is_waiting and not self._is_updating)

    def log_compile(self, event: CompileEvent, suggest: Callable[[CompileEvent], str]) -> None:
        """Log a compile in traffic, at a limited rate.

        This method does not count the compile; `compiler.watch` does. `suggest` returns an input
        that, if declared, would have prevented the compile.
        """
        self.traffic_log.log(
            event, proven_on=self.progress.threads, suggest=suggest, fields=self.log_fields
        )

    def log_fields(self, event: str, **more: str | float) -> dict[str, Any]:
        """Return the extra fields of a log record; Serve's JSON logs show them as fields.

        Serve itself adds the deployment and the replica, but adds the application only during
        requests. All field names have serve_warm's prefix, because a user's record factory can also
        add fields. If a record already has a field with the same name, `logging` raises an error.
        """
        about = {
            "event": event,
            "application": self._known.application,
            "stage": self.stage.value.lower(),
            "elapsed_s": self._elapsed_s(),
            "inputs_done": self.progress.done,
            "inputs_expected": len(self.inputs),
            "statement": self.artifact.statement if self.artifact else "",
            **more,
        }
        # Put each value on one line, because log tables show one line.
        return {
            f"{LOG_PREFIX}{name}": join_lines(value) if isinstance(value, str) else value
            for name, value in about.items()
        }

    def tell(self) -> None:
        """Tell observers that something changed."""
        if not self._observers:
            return
        report = self.report()
        for observer in self._observers:
            try:
                observer(report)
            except Exception as error:
                # Observers only show state, so a failed metric or state file must not stop the
                # replica. Remove the observer, so that its error is logged only once.
                self._observers = tuple(o for o in self._observers if o is not observer)
                what = "a warm-up observer raised an exception; continuing without this observer"
                logger.exception(what, exc_info=loggable(error))


class _Preparing:
    """The period before serve_warm hooks into torch; nothing is counted in this period."""

    since = traffic = Counts()
    ready_unix = None

    @property
    def warmup(self) -> Counts:
        return Counts()

    def events(self) -> tuple[CompileEvent, ...]:
        return ()

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def versions(self) -> dict[str, str]:
        return {}


class _Warming(_Preparing):
    """The period in which compiles are counted as part of the warm-up."""

    def __init__(self) -> None:
        self.since = watch_process().counts()

    @property
    def warmup(self) -> Counts:
        return watch_process().counts() - self.since

    def versions(self) -> dict[str, str]:
        return _torch_versions()


@record(kw_only=True)
class _Serving:
    """The period in which compiles are counted as part of traffic."""

    since: Counts
    warmup: Counts
    ready_unix: float
    devices: tuple[DeviceMemory, ...]
    """Memory of each GPU, read after capture number `captures_seen`."""
    captures_seen: int = 0
    """Number of captures after READY that are included in `devices`."""
    paused: Counts | None = None
    """The counts of traffic at the beginning of a running update."""
    periods: list[range]
    """The numbers of events in traffic: those before the first update, between updates, and so on.
    """

    @classmethod
    def after(cls, warming: _Preparing) -> _Serving:
        since = watch_process().counts()
        return cls(
            since=since,
            warmup=since - warming.since,
            devices=cuda_graphs.memory(),
            ready_unix=time.time(),
            periods=[watch_process().later_events()],
        )

    @property
    def traffic(self) -> Counts:
        return self.paused or watch_process().counts() - self.since

    def pause(self) -> None:
        """Count nothing for traffic until `go_on`, because an update compiles."""
        self.paused = self.traffic
        later = watch_process().later_events()
        self.periods[-1] = range(self.periods[-1].start, later.start)

    def go_on(self) -> None:
        """Count compiles as part of traffic again."""
        if self.paused is not None:
            self.since, self.paused = watch_process().counts() - self.paused, None
        self.periods = [*self.periods, watch_process().later_events()][-EVENTS_KEPT:]

    def events(self) -> tuple[CompileEvent, ...]:
        return watch_process().events(self.periods)

    def versions(self) -> dict[str, str]:
        return _torch_versions()

    def memory(self) -> tuple[DeviceMemory, ...]:
        # Reading the memory takes some ms, which is too long for each report. The memory of graphs
        # changes only when a graph is captured.
        captures = self.traffic.captures
        if captures != self.captures_seen:
            self.devices, self.captures_seen = cuda_graphs.memory(), captures
        return self.devices


def _describe_skips(many: int, events: Sequence[CompileEvent]) -> str:
    """Return a warning about CUDA graphs that torch did not capture.

    Graphs with the same reason are grouped.
    """
    reasons = dict.fromkeys(event.reason for event in events if event.kind == "skip")
    graphs = "CUDA graph" if many == 1 else "CUDA graphs"
    skipped = f"torch did not capture {many} {graphs}, so kernels launch one by one"
    return f"{skipped}: {'; '.join(reasons)}"


def _many_sizes(events: Iterable[CompileEvent]) -> Iterator[str]:
    """Yield a warning for each function with more graph sizes than torch recommends."""
    sizes: dict[str, set[str]] = {}
    for event in events:
        if event.kind == "capture" and " of compile " in event.function:
            sizes.setdefault(event.function, set()).add(event.signature)
    for function, of_it in sizes.items():
        if len(of_it) > SIZES_OF_A_GRAPH:
            yield (
                f"torch captures {function} for {len(of_it)} sizes, and each size costs memory "
                "and time at every start: pad to fewer sizes (Buckets), or set "
                f"{INDUCTOR_CONFIG}.triton.cudagraph_capture_sizes to the sizes that need a graph"
            )


def _build_again(artifact: ArtifactUse, counts: Counts, plan: str) -> str:
    """Return why a start compiled code even though it has an artifact.

    `plan` is the option that the build needs if the application declares no inputs.

    Something must have changed since the build: otherwise the build's own checks would have failed.
    """
    reasons = (use.reason for use in SESSION.uses() if use.level == 1)
    told = next((reason for reason in reasons if SINCE_BUILD in reason), "")
    why = told.removesuffix(": build again") or "the code or its inputs changed since the build"
    return (
        f"partial: {max(counts.fx_misses + counts.fx_bypasses, counts.kernels, 1)} graphs or "
        f"kernels are not in the artifact of {artifact.created[:10]}: {why}. "
        f"Build again: serve-warm build APP{plan} --store {shlex.quote(artifact.store)} "
        "--if-published supersede"
    )


COMPILING = "torch's compiler, in a request"
"""What a replica is doing while a request compiles."""


SINCE_BUILD = "changed since the build"
"""A reason from `precompile.entries.table` with this text says that the model changed since the
build."""


def _torch_versions() -> dict[str, str]:
    torch: Any = sys.modules.get("torch")
    return {**torch_version(), "threads": str(torch.get_num_threads())} if torch else {}


def torch_version() -> dict[str, str]:
    """Return torch's version under the key `torch`, or an empty dict if torch is not imported.

    This does not read torch's package metadata. To find the metadata, Python would list the folders
    of `sys.path`, and a cold start would wait for the disk before `__init__` begins.
    """
    torch: Any = sys.modules.get("torch.version")
    # If the attribute is missing, another thread is still importing torch.
    return {"torch": str(torch.__version__)} if hasattr(torch, "__version__") else {}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, and of its child processes that it has waited for."""
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime)
