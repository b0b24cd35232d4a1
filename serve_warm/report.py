# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The records of one start: frozen dataclasses that can be written as JSON or text.

The records hold only facts. `replica.start.stages` makes all decisions and writes the records.
Logs, metrics and the command line only read them. A report can be read on any machine, because
this module imports only the standard library and modules that need only the standard library.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from serve_warm._package import public
from serve_warm._records import record
from serve_warm._redaction import SHOWN, excerpt, shorten
from serve_warm._spans import Span, describe, seconds_by_owner
from serve_warm.seats.records import SeatUse

LINES_OF_EAGER = 8
"""Largest number of kinds of eager calls that a text shows. The JSON report shows more."""

LINES_OF_LEVEL_1 = 20

LONG_SHOWN = 4000
"""Maximum length in characters of an error, a warning or a note. Such a text can contain several
reasons."""

SCHEMA = 1
"""Version of the JSON format. A reader that does not know the version must report an error instead
of guessing."""


class Stage(str, Enum):
    """The stages of a start, in order. FAILED can follow any stage before READY."""

    PENDING = "PENDING"
    PULLING = "PULLING"
    VERIFYING = "VERIFYING"
    LOADING = "LOADING"
    REPLAYING = "REPLAYING"
    PROVING = "PROVING"
    PARITY = "PARITY"
    READY = "READY"
    FAILED = "FAILED"


Traced = Literal["none", "some", "all"]
"""The share of a start's compiled calls that Dynamo traced. Dynamo traces the calls at level 1. For
a `full_hit` at level 1, the share is `all`, and the start spends most of its time on tracing."""

LEVELS = (1, 2, 3)
"""1 is torch.compile, 2 is an entry made ahead of time, 3 is a library."""


class Verdict(str, Enum):
    """The effect of the artifact on this start."""

    OFF = "off"
    """No artifact is configured, or `enabled: false`."""
    FULL_HIT = "full_hit"
    """An artifact was loaded. No compiler ran, and every lookup in torch's caches was a hit."""
    PARTIAL = "partial"
    """An artifact was loaded, but something was compiled, an input was not proven, or an entry was
    withdrawn."""
    MISS = "miss"
    """No variant fits, the store is empty, or the store could not be reached. Everything was
    compiled."""
    REFUSED = "refused"
    """The artifact failed a check of trust, integrity or format. Everything was compiled."""
    EAGER = "eager"
    """No artifact was used, and the policy for this case is `eager`: nothing is compiled."""
    LATE = "late"
    """The deadline passed with `on_deadline: serve`. The replica serves as soon as it can."""


@record(frozen=True, kw_only=True)
class Counts:
    """Work done by torch and compilers in a period of time. Fields ending in `_s` are seconds."""

    compiles: int = 0
    """Frames that Dynamo traced and turned into compiled code, even if Inductor's cache had the
    code."""
    recompiles: int = 0
    """Compiles of frames whose earlier compiled code failed a guard. `compiles` includes these
    compiles."""
    eager_falls: int = 0
    """Frames that torch runs eagerly, although they should be compiled: they reached the recompile
    limit, or torch gave them up. In the proof, a frame beyond the limit counts once for every input
    that uses the frame."""
    captures: int = 0
    """CUDA graphs captured, by torch or by user code."""
    eager_runs: int = 0
    """Eager runs that precede the capture of a CUDA graph and use the graph's memory."""
    graph_skips: int = 0
    """CUDA graphs that torch skipped. Without its graph, a function launches kernels one by one."""
    kernels: int = 0
    """Triton kernel binaries that were added to the cache directory, by any process."""
    tunings: int = 0
    """Kernels and templates that were autotuned."""
    forbidden: int = 0
    """Compiles that were refused while compiling was forbidden."""
    fx_hits: int = 0
    fx_misses: int = 0
    fx_bypasses: int = 0
    compiler_processes: int = 0
    """Compiler processes that produced an object file or a shared library."""
    compiler_s: float = 0.0
    """Wall seconds that threads waited for compiler processes, summed over threads."""
    compile_s: float = 0.0
    """Wall seconds spent in Dynamo's compile callback, including everything that it calls."""
    capture_s: float = 0.0
    """Wall seconds spent on CUDA graph capture, first launches included."""
    tuning_s: float = 0.0
    """Wall seconds spent on autotuning. `compile_s` includes the autotuning of templates."""
    calls: int = 0
    """Calls of compiled functions and modules, eager ones included. Two threads may count two calls
    as one."""

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            **{
                f.name: getattr(self, f.name) - getattr(earlier, f.name)
                for f in dataclasses.fields(self)
            }
        )

    @property
    def quiet(self) -> bool:
        """Whether there was no compile, build, autotuning run, capture or fallback to eager."""
        return not any(getattr(self, name) for name in LOUD)


LOUD = (
    *("compiles", "captures", "eager_runs", "eager_falls"),
    *("compiler_processes", "kernels", "tunings"),
)
"""The counts that must all be 0 for `Counts.quiet` to be true."""


class Bounded:
    """Base class of records whose texts have a limited length, for logs and state files."""

    def __post_init__(self) -> None:
        """Shorten each field that is a string or a tuple of strings."""
        for name, value in vars(self).items():
            if isinstance(value, str):
                if len(value) > LONG_SHOWN:
                    object.__setattr__(self, name, excerpt(value, LONG_SHOWN))
            elif isinstance(value, tuple) and any(
                isinstance(item, str) and len(item) > LONG_SHOWN for item in value
            ):
                cut = tuple(
                    excerpt(item, LONG_SHOWN) if isinstance(item, str) else item for item in value
                )
                object.__setattr__(self, name, cut)


@record(frozen=True, kw_only=True)
class CompileEvent:
    """One compile, capture, autotuning or fallback to eager, with its reason."""

    kind: str
    """`compile`, `recompile`, `eager` (the recompile limit, or torch gave it up), `capture`, `skip`
    (a skipped capture), `tuning`, `forbidden` or `eager_call` (it ran eagerly instead of
    compiling)."""
    function: str
    """Name of the frame with file and line, or name of the graph or kernel."""
    signature: str = ""
    """Tensors and scalars of the frame, which show the input that caused the event."""
    reason: str = ""
    """The failed guard in torch's words. Empty for the first compile of a function."""
    seconds: float = 0.0
    thread: int = field(default_factory=threading.get_native_id)
    """Native thread id."""
    at_unix: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        """Cut the texts."""
        for name in ("kind", "function", "signature", "reason"):
            object.__setattr__(self, name, shorten(getattr(self, name), SHOWN))

    def __str__(self) -> str:
        # One that was cut names no call.
        called = f" with {self.signature}" if 0 < len(self.signature) < SHOWN else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.kind} of {self.function}{called}{why}"


@record(frozen=True, kw_only=True)
class StageTime:
    """The duration of one stage."""

    stage: Stage
    seconds: float
    """Wall seconds from the beginning to the end of the stage. The start waits during this time."""
    hidden_s: float = 0.0
    """Seconds of the stage's work that ran during `__init__`, before the stage began."""


@record(frozen=True, kw_only=True)
class DeviceMemory:
    """Memory that torch's allocator holds on a GPU for this process; excludes CUDA's context."""

    device: str
    """`cuda:` and the GPU's index in this process."""
    reserved_bytes: int
    """Reserved bytes: tensors, graph pools, and free memory that is kept for later tensors."""
    reserved_peak_bytes: int
    """Peak of `reserved_bytes` since the process began, including memory for autotuning."""
    pools: dict[str, int] = field(default_factory=dict)
    """Reserved bytes of each graph memory pool. A key consists of the two numbers that torch gives
    the pool, such as `0.1`."""

    @property
    def pool_bytes(self) -> int:
        """Bytes in all graph pools on the device. Other tensors cannot use this memory."""
        return sum(self.pools.values())

    def __str__(self) -> str:
        held = f"{_megabytes(self.reserved_bytes)} held on {self.device}"
        peak = f"{_megabytes(self.reserved_peak_bytes)} at the peak"
        each = ", ".join(f"{_megabytes(size)} in {name}" for name, size in self.pools.items())
        pools = f"; {_megabytes(self.pool_bytes)} by graphs: {each}" if each else ""
        return f"{held}, {peak}{pools}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@record(frozen=True, kw_only=True)
class InputResult(Bounded):
    """The result of one declared input."""

    name: str
    proven: bool
    """Whether the input passed the proof, and made a compiled call in the proof.

    No compiled call is needed if the process has no compiled code."""
    first_s: float
    """Seconds of the first replay, including compiling, cache loading and compute."""
    steady_s: float
    """Seconds of the last replay, which only computes."""
    compiles: int
    note: str = ""
    """A sentence that says why the input is not proven."""
    left_out: bool = False
    """Whether warm-up skips this input because memory ran out."""


@record(frozen=True, kw_only=True)
class EntryUse(Bounded):
    """The level at which one kind of call to a `serve_warm.compile` function runs."""

    callable: str
    """Class of the module, or name of the function."""
    call: str
    """Structure of the arguments, and metadata of the tensors in them."""
    level: int
    """3: a library. 2: an entry made ahead of time. 1: torch.compile."""
    reason: str = ""
    """The reason why the level is not higher."""
    calls: int = 0


class EagerReason(str, Enum):
    """Why a call after READY ran eagerly. The values are label values of metrics."""

    UNFORESEEN = "unforeseen"
    """It differs from the declared inputs in structure, sizes, values or settings of torch."""
    CHANGED = "changed"
    """The application changed or replaced the object after it was proven."""
    NO_ENTRY = "no_entry"
    """The artifact has entries, but none for this call, and `on_missing` is `eager`."""
    NO_ARTIFACT = "no_artifact"
    """The start had no artifact that fits and that is trusted, and the policy is `eager`."""


@record(frozen=True, kw_only=True)
class EagerCalls(Bounded):
    """The calls of one kind that ran eagerly after READY, instead of waiting for a compile."""

    callable: str
    """Class of the module, or name of the function."""
    call: str
    """Structure of the arguments, and metadata of the tensors in them."""
    reason: EagerReason
    calls: int = 0
    refused: int = 0
    """How many of them were refused, because GPU memory ran out in one of them or shortly before.
    """
    seconds: float = 0.0
    """Wall seconds of these calls. On a GPU, the work may end later. Functions of torch.compile
    itself are not timed."""
    median_s: float | None = None
    """Median seconds of the latest calls; None if they are not timed."""
    why: str = ""
    """Why no compiled code fits, in words: the guard that failed, or what has changed."""
    declare: str = ""
    """An input to declare for such calls."""


@record(frozen=True, kw_only=True)
class CompiledByApp(Bounded):
    """A call of torch.compile in a wrapped application."""

    name: str
    """Class of the module, or name of the function."""
    left: str = ""
    """Why torch's own torch.compile answered it. Empty if its result gets entries."""
    late: bool = False
    """Whether it came after READY."""


class ParityResult(str, Enum):
    """The result of comparing one call with eager execution."""

    SAME = "same"
    DIFFERENT = "different"
    """The entry is withdrawn."""
    NOT_SAMPLED = "not_sampled"
    """Skipped, because a second run would write data, use random numbers or change objects."""
    NOT_COMPARABLE = "not_comparable"
    """Two eager runs differ, or the check itself failed."""


@record(frozen=True, kw_only=True)
class Parity(Bounded):
    """Comparison of entries with eager execution, both using this replica's weights."""

    entries: int = 0
    """Entries that ran. An entry counts once for each callable that ran it."""
    checked: int = 0
    """Entries that were compared with eager execution, or cannot be compared. `entries` includes
    these entries."""
    results: dict[str, int] = field(default_factory=dict)
    """Number of checks by `ParityResult`."""
    failed: int = 0
    """Entries that differed and were withdrawn."""
    failures: tuple[str, ...] = ()
    """For a limited number of entries: function, shapes of the call, and difference."""
    waiting: int = 0
    """Entries that are compared when the replica is idle, or in later requests."""
    worst_error: float | None = None
    """Largest difference among the checks that passed, relative to the largest value."""
    near_ties: int = 0
    """Integers and bools, such as the results of argmax, that differ in the checks that passed,
    because two candidates were almost equal."""
    by_fixed_limit: int = 0
    """Checks that passed by the fixed limit, because the call has no run in full precision."""


@record(frozen=True, kw_only=True)
class Coverage:
    """The number of declared inputs, and the number of inputs that are proven warm."""

    expected: int = 0
    proven: int = 0


@record(frozen=True, kw_only=True)
class LearnedCalls:
    """The kinds of calls of a plan. They are replayed at the callables, and not as requests."""

    kinds: int
    proven: int
    requests: int = 0
    """Number of recorded requests, which are replayed as requests."""
    requests_proven: int = 0
    calls: int
    """Number of recorded calls from which the plan was made."""
    share: float
    """Share of these calls that have a kind in the plan, from 0 to 1."""
    any_size: tuple[str, ...] = ()
    """The axes whose sizes vary, and on which code takes the double or the half of a size, too."""

    def text(self) -> str:
        """Return a line for a log or a terminal."""
        requests = (
            f"; {self.requests_proven} of {self.requests} recorded requests proven"
            if self.requests
            else ""
        )
        any_size = f"; any size of {'; '.join(self.any_size)}" if self.any_size else ""
        return (
            f"learned: {self.proven} of {self.kinds} kinds of calls proven at their callables, "
            f"{self.share:.0%} of {self.calls} recorded calls{requests}{any_size}"
        )


@record(frozen=True, kw_only=True)
class ArtifactUse(Bounded):
    """The artifact that this start chose, and the reason why it was or was not loaded."""

    store: str
    source: str = ""
    """Kind of the store, as `stores.kind_of` returns it."""
    statement: str = ""
    """Key of the chosen statement; empty if no statement was chosen."""
    created: str = ""
    """Build time of the artifact, in the manifest's format. Empty if no artifact was loaded."""
    stored_bytes: int = 0
    raw_bytes: int = 0
    downloaded_bytes: int = 0
    """Stored bytes that were downloaded. The node already had the artifact's other bytes."""
    believed: str = ""
    """Reason why the artifact was trusted: `signature`, `pin` or `unsigned_ok`."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed the artifact."""
    reason: str = ""
    """A sentence that says why the artifact was not loaded."""
    refused: str = ""
    """One of `errors.REFUSAL_REASONS`; empty unless the artifact was refused."""
    trace: tuple[str, ...] = ()
    """One line per variant: accepted, or rejected with the reason."""

    @property
    def in_use(self) -> bool:
        """Whether this start uses the artifact: it was chosen and was not dropped later."""
        return bool(self.statement and self.created)

    @property
    def digits(self) -> str:
        """The first 12 hexadecimal digits of the statement's name, enough to find the statement."""
        found = re.search(r"/([0-9a-f]{12})[^/]*$", self.statement)
        return found[1] if found else ""

    @property
    def created_unix(self) -> float | None:
        """Build time in seconds since the epoch. None if no artifact was loaded."""
        if not self.created:
            return None
        # Python 3.10 does not parse the Z.
        return datetime.fromisoformat(self.created.replace("Z", "+00:00")).timestamp()


@public
@record(frozen=True, kw_only=True)
class Report(Bounded):
    """One start of one replica.

    `to_proof_s` is the time from the end of the user's `__init__` to the end of the proof.
    `elapsed_s` begins before that `__init__`. `overhead_s` is `to_proof_s` minus the steady compute
    time of all passes. `cpu_s` is the CPU time of the process, and of the compilers that it waited
    for, since the process began.
    """

    application: str = ""
    deployment: str = ""
    replica: str = ""
    stage: Stage = Stage.PENDING
    verdict: Verdict | None = None
    """None until the verdict is known. A start that fails earlier has a verdict only if no artifact
    is configured."""
    degraded: tuple[str, ...] = ()
    """The reasons why a ready replica is degraded; empty if the replica is not degraded."""
    covered: Coverage = field(default_factory=Coverage)
    stages: tuple[StageTime, ...] = ()
    spans: tuple[Span, ...] = ()
    """Parts of the start since its process began, in order. A part can be inside another part. For
    example, the import of torch's compiler is inside `pending`."""
    doing: str = ""
    """What an unfinished start is waiting for now, if its stage does not show this. After READY,
    torch's compiler if requests wait for it."""
    inputs: tuple[InputResult, ...] = ()
    passes: int = 0
    inputs_done: int = 0
    """Number of inputs replayed in the current pass, or in the last pass if warm-up has ended."""
    to_proof_s: float = 0.0
    overhead_s: float = 0.0
    cpu_s: float = 0.0
    warmup: Counts = field(default_factory=Counts)
    after_ready: Counts = field(default_factory=Counts)
    events: tuple[CompileEvent, ...] = ()
    """The latest events after READY, oldest first. The number of kept events is limited."""
    memory: tuple[DeviceMemory, ...] = ()
    """Memory of each GPU in use, read after the proof and again after later captures. Empty
    before the proof, without a GPU, or if torch's allocator was replaced."""
    artifact: ArtifactUse | None = None
    entries: tuple[EntryUse, ...] = ()
    """Calls to callables of `serve_warm.compile` so far; empty without an artifact."""
    uncompiled: bool = False
    """Whether the replica runs uncompiled code, because it has no artifact and the policy is
    `eager`. The verdict may say something else, for example that the replica is late."""
    eager_calls: tuple[EagerCalls, ...] = ()
    """Calls after READY that ran eagerly, by kind, most frequent first. Their number is limited."""
    learned: LearnedCalls | None = None
    """The calls of a plan, which `covered` counts among the inputs; None without a plan."""
    compiled_by_app: tuple[CompiledByApp, ...] = ()
    """What a wrapped application compiled with torch.compile. Their number is limited."""
    parity: Parity | None = None
    """Comparison of entries with eager execution. None without entries."""
    compiler_imported: str = ""
    """Who imported Dynamo or Inductor. `app`: the app imported them, at module level or in
    `__init__`. `start`: serve_warm imported them, because levels below 3 need them. Empty if
    neither is imported."""
    compiler_imported_by: str = ""
    """The module and line outside torch that imported Dynamo. Empty if Dynamo is not imported, or
    was imported before the deployment's object was created, for example by the app's module."""
    narrow: tuple[str, ...] = ()
    """What the declared inputs do not cover: axes on which they all have one size, although another
    size would compile, and branches that depend on a tensor's value and that no input takes. The
    axes are found by a start without an artifact, and the artifact carries them."""
    unvaried: tuple[str, ...] = ()
    """What of the declared inputs could not be varied to find this out, for example bytes."""
    nothing_compiles: bool = False
    """True if this process has no compiled code and no input made a compiled call."""
    fingerprint: dict[str, dict[str, str]] | None = None
    """This start's fingerprint, by group and factor; None until the fingerprint is determined."""
    threads: tuple[int, ...] = ()
    """Native ids of the threads that made compiled calls in the proof pass."""
    warnings: tuple[str, ...] = ()
    """Problems that were found, each with its fix."""
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    started_unix: float = 0.0
    """Time at which the warm-up began, in seconds since the epoch."""
    created_boot_s: float = 0.0
    """Time at which the replica was created, before its `__init__`, in seconds by CLOCK_BOOTTIME.
    """
    elapsed_s: float = 0.0
    """Seconds from the creation of the replica until now, or until READY or FAILED."""
    ready_unix: float | None = None
    """Time at which the replica became ready, in seconds since the epoch. None before that."""
    deadline_s: float = 0.0
    """Time limit of the start in seconds. 0 if the start has no deadline."""
    artifact_configured: bool = False
    """Whether the settings name a store and do not set `enabled` to false."""
    seat: SeatUse | None = None
    """The seat of this start, and the seats for later starts. None if seats are neither configured
    nor used."""

    @property
    def ended(self) -> bool:
        """Whether the start is over: READY or FAILED."""
        return self.stage in (Stage.READY, Stage.FAILED)

    @property
    def traced(self) -> Traced:
        """Whether Dynamo traced none, some or all compiled calls. Cache hits count as traced."""
        if not self.warmup.compiles:
            return "none"
        return "some" if any(use.level > 1 for use in self.entries) else "all"

    @property
    def levels(self) -> dict[str, int]:
        """Number of kinds of calls to `serve_warm.compile` callables, by level."""
        kinds = Counter(use.level for use in self.entries)
        return {str(level): kinds[level] for level in LEVELS}

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Wall seconds by lowercase stage name. If a stage ran twice, its seconds are added up."""
        seconds: dict[str, float] = {}
        for took in self.stages:
            name = took.stage.value.lower()
            seconds[name] = seconds.get(name, 0.0) + took.seconds
        return seconds

    @property
    def seconds_by_owner(self) -> dict[str, float]:
        """Wall seconds of each owner (`_spans`) until READY, or until now; empty outside Serve."""
        ended_boot_s = self.created_boot_s + self.elapsed_s
        return seconds_by_owner(self.spans, self.stage_seconds, ended_boot_s)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = _plain(self)
        return {
            "schema": SCHEMA,
            **plain,
            "traced": self.traced,
            "levels": self.levels,
            "seconds_by_owner": self.seconds_by_owner,
        }

    def text(self) -> str:
        """Return the report as lines for a log or a terminal."""
        first = f"{self.application}#{self.deployment} {self.stage.value}{describe(self.spans)}"
        second = (
            f"  {f'verdict={self.verdict.value} ' if self.verdict else ''}"
            f"proven={self.covered.proven}/{self.covered.expected} "
            f"init_end_to_proof={self.to_proof_s:.2f} s passes={self.passes}"
            f"{f' traced={self.traced}' if self.stage is Stage.READY else ''}"
        )
        lines = [first, second]
        lines += [f"  {self.learned.text()}"] if self.learned is not None else []
        lines += [
            f"  {s.stage.value.lower():<10} {s.seconds:8.3f} s"
            + (f"  and {s.hidden_s:.3f} s during __init__" if s.hidden_s else "")
            for s in self.stages
        ]
        c = self.warmup
        lines.append(
            f"  compiled: {c.compiles} frames in {c.compile_s:.2f} s, "
            f"{c.compiler_processes} compiler runs in {c.compiler_s:.2f} s, "
            f"fx {c.fx_hits} hit / {c.fx_misses} missed / {c.fx_bypasses} bypassed, "
            f"{c.captures} captures"
        )
        if c.captures or c.graph_skips or c.kernels or c.tunings:
            lines.append(
                f"  on the GPU: {c.captures} captures in {c.capture_s:.2f} s, "
                f"{c.graph_skips} graphs skipped, "
                f"{c.kernels} kernels built, {c.tunings} autotuned in {c.tuning_s:.2f} s"
            )
        lines += [f"  memory: {memory}" for memory in self.memory]
        a = self.after_ready
        lines.append(
            f"  after ready: {a.compiles} compiles, {a.captures} captures, "
            + (f"{a.graph_skips} graphs skipped, " if a.graph_skips else "")
            + (f"{a.kernels} kernels built, " if a.kernels else "")
            + (f"{a.tunings} autotuned, " if a.tunings else "")
            + f"{a.eager_falls} fallbacks to eager, {a.forbidden} refused"
            + _share(self.eager_calls, a.calls)
        )
        lines += describe_eager(self.eager_calls)
        if self.artifact is not None:
            lines.append(f"  artifact: {self.artifact.store} {self.artifact.statement}".rstrip())
            if self.artifact.reason:
                lines += [f"    {line}" for line in self.artifact.reason.splitlines()]
        lines += [
            f"  not taken: torch.compile of {each.name}: {each.left}"
            for each in self.compiled_by_app
            if each.left
        ]
        lines += [f"  {self.seat.text()}"] if self.seat is not None else []
        lines += _levels(self.entries)
        if self.parity is not None:
            lines += _parity(self.parity, kinds=sum(use.level > 1 for use in self.entries))
        lines += [f"  not proven: {i.name}: {i.note}" for i in self.inputs if not i.proven]
        lines += [f"  narrow: {each}: {advise_on_narrow(each)}" for each in self.narrow]
        lines += [f"  not varied: {what}" for what in self.unvaried]
        lines += [f"  degraded: {reason}" for reason in self.degraded]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if self.error:
            lines.append(f"  error: {self.error}")
        return "\n".join(lines)


BRANCH = "one side of the branch at "
"""How a narrow place begins that is a branch and no axis."""

BATCHES = "batches of requests to "
"""The same for sizes of batches that Serve forms, and that no input declares."""


def advise_on_narrow(place: str, *, is_eager: bool = False) -> str:
    """Return what happens at a place that the inputs do not cover, and what to do.

    `is_eager` says that calls that no input foresaw run uncompiled, and nothing compiles.
    """
    advice = _advise_on_narrow(place)
    return advice.replace("compiles", "runs uncompiled", 1) if is_eager else advice


def _advise_on_narrow(place: str) -> str:
    if place.startswith(BRANCH):
        return (
            "no input takes it, and a request that takes it compiles. Declare an input whose "
            "values lead there"
        )
    if place.startswith(BATCHES):
        return (
            "another size compiles. Declare each size with Input(..., concurrency=size), or pad "
            "each batch to a declared size"
        )
    if UNCALLED in place:
        return "a request that calls it compiles. Declare an input that does, or do not compile it"
    if NUMBER.search(place) and not SIZE.search(place):
        return (
            "another number compiles. Give it to the model as a tensor, compile with dynamic=True, "
            "or say Input(..., fixed=True) if requests have no other"
        )
    if not SIZE.search(place):
        return (
            "a request that differs compiles. Declare an input like it, refuse such requests, or "
            "say Input(..., fixed=True) if there are none"
        )
    return (
        "another size compiles. Declare buckets and pad requests to them, compile with "
        "dynamic=True, or say Input(..., fixed=True) if requests have no other"
    )


SIZE = re.compile(r"(\]| and \d+ more), (always|at most|only|never) \d+( lengths)?$")
"""How the description of an axis ends on which inputs lack a size."""

NUMBER = re.compile(r", (always|only) [-+\de.]+( or [-+\de.]+| values)*$")
"""The same for a number, which has no axis."""

UNCALLED = " is compiled, and no input calls it"
"""How the description of a compiled object ends that no input calls."""


def _levels(entries: tuple[EntryUse, ...]) -> list[str]:
    """Return a line about calls with entries, and a line for each call that runs below level 3."""
    ahead = sum(entry.level > 1 for entry in entries)
    libraries = sum(entry.level > 2 for entry in entries)
    lines = [f"  ahead of time: {ahead} of {len(entries)} kinds of calls"] if entries else []
    if libraries:
        lines[0] += f", {libraries} from libraries"
    lines += [
        f"  level 2: {e.callable}{e.call}: {e.reason}" for e in entries if e.level > 1 and e.reason
    ]
    rest = [entry for entry in entries if entry.level == 1]
    lines += [f"  level 1: {e.callable}{e.call}: {e.reason}" for e in rest[:LINES_OF_LEVEL_1]]
    return lines + (["  level 1: more, not shown"] if len(rest) > LINES_OF_LEVEL_1 else [])


def _share(eager: tuple[EagerCalls, ...], calls: int) -> str:
    many = sum(each.calls for each in eager)
    return f", {many} of {calls} calls eager" if many else ""


def describe_eager(eager: Sequence[EagerCalls]) -> list[str]:
    """Return lines about the most frequent kinds of eager calls, with the inputs to declare."""
    lines = []
    for each in eager[:LINES_OF_EAGER]:
        took = "" if each.median_s is None else f", median {1000 * each.median_s:.1f} ms"
        first = "; the first" if each.calls > 1 else ""
        why = f"{first}: {each.why}" if each.why else ""
        took += f", {each.refused} refused because memory ran out" if each.refused else ""
        lines.append(
            f"  eager ({each.reason.value}): {each.callable} {each.call}: {each.calls} calls{took}"
            f"{why}"
        )
        lines += [f"    declare {each.declare}"] if each.declare else []
    rest = eager[LINES_OF_EAGER:]
    more = f"  eager: {sum(each.calls for each in rest)} calls of {len(rest)} other kinds"
    return lines + ([more] if rest else [])


def _parity(parity: Parity, *, kinds: int) -> list[str]:
    """Return lines about the checks; `kinds` is the number of kinds of calls with an entry."""
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in parity.results.items() if n)
    worst = "" if parity.worst_error is None else f", worst error {parity.worst_error:.1e}"
    lines = [f"  parity: {parity.checked} of {parity.entries} entries checked"]
    # Two models of the same structure share their entries but not their weights.
    lines[0] += ", counted for each compiled object" * (parity.entries > kinds > 0)
    lines[0] += f" ({counts}{worst})" if counts else ""
    lines[0] += f", {parity.near_ties} near-ties" if parity.near_ties else ""
    lines[0] += f", {parity.by_fixed_limit} by the fixed limit" if parity.by_fixed_limit else ""
    lines[0] += f", {parity.waiting} checked later" if parity.waiting else ""
    return lines + [f"  withdrawn: {failure}" for failure in parity.failures]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
