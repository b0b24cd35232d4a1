# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of a start: what has happened until now, and who is told of each change.

Every stage writes what it finds here for others to see, and the report is read from here alone, at
any time and from any thread. What a later stage goes by is returned by the stage before it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serve_warm._redaction import loggable, redact, shorten
from serve_warm.artifact.manifest import TORCH_BYTES
from serve_warm.compiler import cuda_graphs
from serve_warm.compiler.background_import import is_imported
from serve_warm.compiler.watch import watch_process
from serve_warm.config import WarmupConfig
from serve_warm.errors import ServeWarmError
from serve_warm.node import boot_s
from serve_warm.precompile.session import SESSION
from serve_warm.replica.timed_calls import Progress
from serve_warm.replica.timeline import Timeline
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

if TYPE_CHECKING:
    from serve_warm.fingerprint import Fingerprint
    from serve_warm.inputs import Input
    from serve_warm.precompile.entry_checks import Checks

logger = logging.getLogger(__name__)

Observer = Callable[[Report], None]

EVENT_LOG_PERIOD_S = 10.0
"""At most one log line in this time for compiles after ready; the rest is counted in it."""

LOG_PREFIX = "warmup_"
"""Before the names of our fields of a log record, of which other packages have some, too."""

LATE = "late: "
"""How the reason begins that a replica is degraded for because of its deadline."""

SIZES_OF_A_GRAPH = 8
"""Above this many sizes of one graph torch warns, too (2.13: `cudagraph_dynamic_shape_warn_limit`).
"""


class Journal:
    """What one start has done until now. Stages write to it; `report()` reads it."""

    def __init__(
        self, known: Report, config: WarmupConfig, timeline: Timeline | None = None
    ) -> None:
        # Of `known` is kept what the deployment alone knows of a start: where it runs, since when,
        # of which image and with which versions.
        self._known = known
        self._config = config
        self._observers: tuple[Observer, ...] = ()
        self._entered: tuple[Stage, float] | None = None
        self._ended_boot_s = math.inf
        self._times: list[StageTime] = []
        self._span: _Preparing | _Warming | _Serving = _Preparing()
        self._compile_log = _CompileLog()
        self.timeline = timeline or Timeline()
        self.stage = Stage.PENDING
        self.verdict = Verdict.OFF
        self.degraded: list[str] = []
        self.warnings: list[str] = []
        self.artifact: ArtifactUse | None = None
        """What became of the artifact that is configured."""
        self.fingerprint: Fingerprint | None = None
        """What this start is compared with; read before anything is pulled."""
        self.inputs: Sequence[Input] = ()
        """What is replayed, in order; known once the start has begun."""
        self.progress = Progress()
        self.checks: Checks | None = None
        """Of entries against eager; None without entries."""
        self.is_compiler_from_app = False
        """Whether torch's compiler was imported before the warm-up needed it."""
        self.compiled_early = 0
        """Frames that were compiled in `__init__`."""
        self.started_unix = 0.0
        self.to_proof_s = 0.0
        self.cpu_s = 0.0
        self.error = ""

    # Stages -------------------------------------------------------------------------------------

    def observe(self, observers: Sequence[Observer]) -> None:
        """Call each of `observers` with the report whenever it changes."""
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
        if stage in (Stage.READY, Stage.FAILED):
            self._ended_boot_s = now  # first: who reads the stage reads when it ended, too
        self.stage = stage
        logger.info(
            "stage=%s deployment=%s replica=%s",
            stage.value,
            self._known.deployment,
            self._known.replica,
            extra=self.log_fields("stage", **ended),
        )
        self.tell()

    def stay_in(self, stage: Stage) -> None:
        """Begin a stage, unless it is under way."""
        if self.stage is not stage:
            self.enter(stage)

    @contextmanager
    def timed(self, stage: Stage, *, hidden_s: float = 0.0) -> Iterator[None]:
        """Count the seconds of the block as those of a stage, whether or not it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(stage, time.perf_counter() - start, hidden_s=hidden_s)

    def add_time(self, stage: Stage, seconds: float, *, hidden_s: float = 0.0) -> None:
        """Count seconds of a stage; `hidden_s` passed beside `__init__`."""
        self._times.append(StageTime(stage=stage, seconds=seconds, hidden_s=hidden_s))

    def warn(self, text: str) -> None:
        """Name something in the report and in the log."""
        self.warnings.append(text)
        logger.warning("%s", text)

    def begin_counting(self) -> None:
        """Count compiles and captures as the warm-up's from now on."""
        self._span = _Warming()

    def warmup_counts(self) -> Counts:
        """Return what the warm-up has compiled and captured."""
        return self._span.warmup

    def end_warmup(self) -> None:
        """Count what is compiled from here on as traffic's, and judge what was until now."""
        if isinstance(self._span, _Serving):
            return
        self._span = serving = _Serving.after(self._span)
        counts, events = serving.warmup, watch_process().events()
        if self.compiled_early:
            self.warn(
                f"{self.compiled_early} frames were compiled in __init__, before the artifact was "
                "loaded: do not call the model there, declare the call in warmup_inputs()"
            )
        if counts.graph_skips:
            self.warn(_describe_skips(counts.graph_skips, events))
        for text in _many_sizes(e for e in events if e.at_unix >= self.started_unix):
            self.warn(text)
        withdrawn = self.checks.failed if self.checks is not None else 0
        not_in_it = (
            *(counts.compiler_processes, counts.kernels, counts.tunings),
            *(counts.fx_misses, counts.fx_bypasses),
        )
        not_full = (*not_in_it, self.compiled_early, len(self.progress.left_out), withdrawn)
        if self.verdict is Verdict.FULL_HIT and any(not_full):
            self.verdict = Verdict.PARTIAL
            from_bytes = TORCH_BYTES in self._config.parts  # on a CPU these compile every kernel
            if any(not_in_it) and self.artifact and not self.compiled_early and not from_bytes:
                self.degraded.append(_build_again(self.artifact, counts))

    def say_ready(self) -> Report:
        """Say READY, and return the report."""
        self.enter(Stage.READY)
        for reason in self.degraded:
            logger.warning("ready and degraded: %s", reason)
        report = self.report()
        why = "; ".join(self.degraded) or (report.artifact.reason if report.artifact else "")
        fields = self.log_fields("verdict", verdict=self.verdict.value, reason=why)
        logger.info("warm-up done\n%s", report.text(), extra=fields)
        return report

    def fail(self, error: BaseException) -> None:
        """Say FAILED, with what was raised."""
        if isinstance(error, ServeWarmError):
            hint = f"\nhint: {shorten(error.hint)}" if error.hint else ""
            self.error = shorten(error.message) + hint
        else:
            self.error = shorten(redact(f"{type(error).__name__}: {error}"))
        self.enter(Stage.FAILED)
        fields = self.log_fields("verdict", verdict="failed", reason=self.error)
        logger.error("warm-up failed: %s", self.error, extra=fields)

    def mark_late(self, why: str) -> None:
        """Say that the replica serves although a deadline has passed; of several the last."""
        self.verdict = Verdict.LATE
        others = [reason for reason in self.degraded if not reason.startswith(LATE)]
        self.degraded = [*others, f"{LATE}{why}"]

    def note_nothing_compiles(self, text: str) -> None:
        """Say that nothing compiles here, so that a miss is none."""
        self.warnings.append(text)
        if self.verdict is Verdict.MISS and self.artifact is not None:
            # There is none to miss: `serve-warm build` publishes nothing for such an app.
            self.verdict = Verdict.OFF
            self.artifact = dataclasses.replace(
                self.artifact, reason="nothing compiles here: no artifact is needed"
            )

    # What is said of it ---------------------------------------------------------------------------

    def report(self) -> Report:
        """Return what has happened until now."""
        progress, span = self.progress, self._span
        results = progress.results()
        steady_s = sum(result.steady_s for result in results)
        return dataclasses.replace(
            self._known,
            stage=self.stage,
            verdict=self.verdict,
            degraded=tuple(self.degraded),
            covered=Coverage(
                expected=len(results), proven=sum(result.proven for result in results)
            ),
            stages=tuple(self._times),
            spans=self.timeline.spans(),
            doing=self.timeline.doing,
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
            parity=self.checks.report() if self.checks is not None else None,
            compiler_imported=self._compiler_imported(),
            nothing_compiles=not progress.has_compiled,
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

    def _elapsed_s(self) -> float:
        return max(0.0, min(boot_s(), self._ended_boot_s) - self._known.created_boot_s)

    def _compiler_imported(self) -> str:
        if not is_imported():
            return ""
        return "app" if self.is_compiler_from_app else "start"

    def log_compile(self, event: CompileEvent, suggest: Callable[[CompileEvent], str]) -> None:
        """Log a compile in traffic, at a limited rate; counting is the watch's own.

        `suggest` returns the input to declare for it.
        """
        proven_on = self.progress.threads
        if event.kind == "capture" and proven_on and event.thread not in proven_on:
            advice = (
                "graphs belong to their thread, and the warm-up made its calls on another one: "
                "call the model with `await self.on_model_thread(self.model, ...)`"
            )
        elif event.kind == "capture" and event.reason:
            advice = (
                "what a graph reads has moved: write weights and caches in place, where they are"
            )
        else:
            # Asked of the request under way, and only for a line that is written.
            suggestion = suggest(event) if self._compile_log.is_due() else ""
            advice = f"declare it in warmup_inputs(), or pad to a bucket: {suggestion}"
        self._compile_log.log(event, advice, self.log_fields)

    def log_fields(self, event: str, **more: str | float) -> dict[str, Any]:
        """Return what a log record says beside its text; JSON logs of Serve have it as fields.

        Serve adds deployment and replica by itself, and outside of requests no application. All
        names have our prefix: `logging` raises where a record has such a field already, which a
        record factory of the user may have seen to.
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
        # In one line each, as a table of logs shows them.
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
                # An observer shows what happens. Losing a metric or a state file is no reason
                # to lose the replica; it is dropped, so that it is logged once.
                self._observers = tuple(o for o in self._observers if o is not observer)
                what = "an observer of the warm-up raised; going on without it"
                logger.exception(what, exc_info=loggable(error))


class _Preparing:
    """The span before anything is counted, in which torch is not hooked yet."""

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
    """The span from which on what is compiled is the warm-up's."""

    def __init__(self) -> None:
        self.since = watch_process().counts()

    @property
    def warmup(self) -> Counts:
        return watch_process().counts() - self.since

    def versions(self) -> dict[str, str]:
        return _torch_versions()


@dataclass(kw_only=True)
class _Serving:
    """The span from which on what is compiled is traffic's."""

    since: Counts
    warmup: Counts
    ready_unix: float
    devices: tuple[DeviceMemory, ...]
    """Memory of each GPU, as of the capture before."""
    captures_seen: int = 0
    """Captures after ready that `devices` has in it."""

    @classmethod
    def after(cls, warming: _Preparing) -> _Serving:
        since = watch_process().counts()
        return cls(
            since=since,
            warmup=since - warming.since,
            devices=cuda_graphs.memory(),
            ready_unix=time.time(),
        )

    @property
    def traffic(self) -> Counts:
        return watch_process().counts() - self.since

    def events(self) -> tuple[CompileEvent, ...]:
        return tuple(e for e in watch_process().events() if e.at_unix >= self.ready_unix)

    def versions(self) -> dict[str, str]:
        return _torch_versions()

    def memory(self) -> tuple[DeviceMemory, ...]:
        # Some ms at each look would be too many; what a graph holds changes when one is captured.
        captures = self.traffic.captures
        if captures != self.captures_seen:
            self.devices, self.captures_seen = cuda_graphs.memory(), captures
        return self.devices


class _CompileLog:
    """Log lines for compiles in traffic, a few of them."""

    def __init__(self) -> None:
        self._silent_until = 0.0
        self._unlogged = 0

    def is_due(self) -> bool:
        """Whether the next event is written."""
        return time.monotonic() >= self._silent_until

    def log(self, event: CompileEvent, advice: str, fields: Callable[..., dict[str, Any]]) -> None:
        self._unlogged += 1
        if not self.is_due():
            return
        self._silent_until = time.monotonic() + EVENT_LOG_PERIOD_S
        logger.warning(
            "after ready: kind=%s function=%s input=[%s] seconds=%.2f reason=[%s] events=%d; %s",
            event.kind,
            event.function,
            event.signature,
            event.seconds,
            event.reason,
            self._unlogged,
            advice,
            extra=fields(
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


def join_lines(text: str) -> str:
    r"""Return several lines as one, each a part of a sentence.

    >>> join_lines("no artifact fits:\n  threads: artifact 1, here 2\nhint: build one")
    'no artifact fits: threads: artifact 1, here 2; hint: build one'
    """
    joined = "; ".join(" ".join(line.split()) for line in text.splitlines())
    return joined.replace(":; ", ": ")


def _describe_skips(many: int, events: Sequence[CompileEvent]) -> str:
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


def _build_again(artifact: ArtifactUse, counts: Counts) -> str:
    """Return why a start on an artifact compiled: its build would have failed if it had."""
    return (
        f"partial: {max(counts.fx_misses + counts.fx_bypasses, counts.kernels, 1)} graphs or "
        f"kernels are not in the artifact of {artifact.created[:10]}: the code or its inputs have "
        f"changed since. Build again: serve-warm build APP --store {artifact.store} "
        "--if-published supersede"
    )


def _torch_versions() -> dict[str, str]:
    torch: Any = sys.modules.get("torch")
    return {**torch_version(), "threads": str(torch.get_num_threads())} if torch else {}


def torch_version() -> dict[str, str]:
    """Return torch's version under its name; nothing before it is imported.

    Not by its metadata: it is found by listing the folders of `sys.path`, and a cold start would
    wait for the disk before `__init__` begins.
    """
    torch: Any = sys.modules.get("torch.version")
    # Without it the import is under way in another thread.
    return {"torch": str(torch.__version__)} if hasattr(torch, "__version__") else {}


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of the children it has waited for."""
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime)
