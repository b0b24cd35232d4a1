# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What happened in a start: frozen records that become JSON or text.

The records hold facts only. Whoever decides (`replica.warmup`) fills them in; whoever shows
them (logs, metrics, the command line) reads them. Nothing here imports more than the standard
library, so that a report can be read anywhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, get_args

from serve_warm._public_names import public
from serve_warm._redaction import SHOWN, shorten

LINES_OF_LEVEL_1 = 20

LONG_SHOWN = 4000
"""Characters of an error, a warning or a note, in which several reasons may stand."""

SCHEMA = 1
"""Version of the JSON form; a reader of another major version must say so, not guess."""


class Stage(str, Enum):
    """Where a start is. The order is the order of the flow; FAILED can follow any of them."""

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
"""How many of a start's compiled calls Dynamo traced: those of level 1. A `full_hit` at level 1 has
`all`, and its seconds are mostly tracing."""

TRACED: tuple[Traced, ...] = get_args(Traced)

LEVELS = (1, 2, 3)
"""1: torch.compile. 2: an entry made ahead of time. 3: a library."""


class Verdict(str, Enum):
    """What the artifact was worth in this start."""

    OFF = "off"
    """No artifact is configured, or `enabled: false`."""
    FULL_HIT = "full_hit"
    """Loaded, and nothing was compiled by a compiler or missed in torch's caches."""
    PARTIAL = "partial"
    """Loaded, and something was compiled all the same, an input was left out for lack of memory, or
    an entry was withdrawn."""
    MISS = "miss"
    """No fitting variant, or none there; everything was compiled."""
    REFUSED = "refused"
    """Trust, integrity or format said no; everything was compiled."""
    LATE = "late"
    """The deadline passed under `on_deadline: serve`: the replica serves, or will once it can."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What torch and the compilers did inside a span of time. All are plain counts but `_s`."""

    compiles: int = 0
    """Frames that Dynamo turned into compiled code (a cache hit of Inductor still traces)."""
    recompiles: int = 0
    """Those of them that followed a failed guard of an earlier variant."""
    eager_falls: int = 0
    """Frames that Dynamo gave up on because the recompile limit was reached: eager for good. Each
    is counted once more by every input that meets it in the proof."""
    captures: int = 0
    """CUDA graphs captured, whoever captured them."""
    eager_runs: int = 0
    """Runs of a path in the memory of its graph, which come before its capture."""
    graph_skips: int = 0
    """Graphs that torch was to capture and does not: those paths launch kernel by kernel."""
    kernels: int = 0
    """Binaries of Triton kernels that came into the cache directory, whoever built them."""
    tunings: int = 0
    """Kernels that were measured in several configurations, and templates against one another."""
    forbidden: int = 0
    """Compiles that were met while compiling was forbidden, and not made."""
    fx_hits: int = 0
    fx_misses: int = 0
    fx_bypasses: int = 0
    aot_hits: int = 0
    aot_misses: int = 0
    aot_bypasses: int = 0
    compiler_processes: int = 0
    """Compiler processes that produced an object file or a shared library."""
    compiler_s: float = 0.0
    """Wall seconds spent in them, summed over threads."""
    compile_s: float = 0.0
    """Wall seconds spent in Dynamo's compile callback, everything below it included."""
    capture_s: float = 0.0
    """Wall seconds spent capturing, each graph's first launch included."""
    tuning_s: float = 0.0
    """Wall seconds spent in tunings. Those of templates are a part of `compile_s`."""

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            **{
                f.name: getattr(self, f.name) - getattr(earlier, f.name)
                for f in dataclasses.fields(self)
            }
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing was compiled, built, tuned, captured or given up on."""
        return not any(getattr(self, name) for name in LOUD)


LOUD = (
    *("compiles", "captures", "eager_runs", "eager_falls"),
    *("compiler_processes", "kernels", "tunings"),
)
"""What a pass over the inputs may not do to be quiet."""


class Bounded:
    """Records whose texts are cut, whoever fills them in: they go to logs and to state files."""

    def __post_init__(self) -> None:
        """Cut each text, and each text of a tuple."""
        for name, value in vars(self).items():
            if isinstance(value, str):
                if len(value) > LONG_SHOWN:
                    object.__setattr__(self, name, shorten(value, LONG_SHOWN))
            elif isinstance(value, tuple) and any(
                isinstance(item, str) and len(item) > LONG_SHOWN for item in value
            ):
                cut = tuple(
                    shorten(item, LONG_SHOWN) if isinstance(item, str) else item for item in value
                )
                object.__setattr__(self, name, cut)


@dataclass(frozen=True, kw_only=True)
class CompileEvent:
    """One compile, capture, tuning or fall to eager, with its reason."""

    kind: str
    """`compile`, `recompile`, `eager` (the recompile limit), `capture`, `skip` (of a capture),
    `tuning` or `forbidden`."""
    function: str
    """Name of the frame, with file and line; of the graph, or of the kernel."""
    signature: str
    """Tensors and scalars of the frame: the input that caused it."""
    reason: str
    """The guard that failed, in torch's words; empty for a first compile."""
    seconds: float
    thread: int
    """Native thread id."""
    at_unix: float

    def __post_init__(self) -> None:
        """Cut the texts, whoever noted the event."""
        for name in ("kind", "function", "signature", "reason"):
            object.__setattr__(self, name, shorten(getattr(self, name), SHOWN))

    def __str__(self) -> str:
        return f"{self.kind} of {self.function}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """What one stage took."""

    stage: Stage
    seconds: float
    """Wall seconds from its beginning to its end: what the start waited for."""
    hidden_s: float = 0.0
    """Seconds of its work that were over before it began, while `__init__` ran."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One part of a start."""

    name: str
    """`process`, `imports`, `__init__`, a stage in lower case, or a part of one of these."""
    began_boot_s: float
    """Seconds of CLOCK_BOOTTIME."""
    seconds: float
    beside: bool = False
    """Whether it ran in a thread beside the others."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """What this process holds of one GPU, by torch's allocator. CUDA's own context is beside it."""

    device: str
    """`cuda:` and its index in this process."""
    reserved_bytes: int
    """Taken from the device and kept: tensors, graph pools, and what is free for later tensors."""
    reserved_peak_bytes: int
    """The most of it since the process began, what tunings took for a while included."""
    pools: dict[str, int] = field(default_factory=dict)
    """Bytes of it by graph memory pool, under torch's two numbers of the pool, such as `0.1`."""

    @property
    def pool_bytes(self) -> int:
        """What all graphs on the device hold: no other tensor gets it."""
        return sum(self.pools.values())

    def __str__(self) -> str:
        held = f"{_megabytes(self.reserved_bytes)} held of {self.device}"
        peak = f"{_megabytes(self.reserved_peak_bytes)} at the peak"
        each = ", ".join(f"{_megabytes(size)} in {name}" for name, size in self.pools.items())
        pools = f"; {_megabytes(self.pool_bytes)} by graphs: {each}" if each else ""
        return f"{held}, {peak}{pools}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@dataclass(frozen=True, kw_only=True)
class InputResult(Bounded):
    """What became of one declared input."""

    name: str
    proven: bool
    """Whether it went through the pass that forbids compiling, with a compiled call of its own.

    Without such a call where nothing is compiled in the process."""
    first_s: float
    """Seconds of its first replay: compile, cache loading and compute."""
    steady_s: float
    """Seconds of its last replay: compute alone."""
    compiles: int
    note: str = ""
    """Why it is not proven, in a sentence."""
    left_out: bool = False
    """Whether it is not replayed any more, because memory did not suffice for it."""


@dataclass(frozen=True, kw_only=True)
class EntryUse(Bounded):
    """How calls of one kind, of what `serve_warm.compile` was given, are answered."""

    callable: str
    """Class of the module, or name of the function."""
    call: str
    """Structure of the arguments, and metadata of the tensors in them."""
    level: int
    """3: a library. 2: an entry made ahead of time. 1: torch.compile."""
    reason: str = ""
    """Why it is not the higher level."""
    calls: int = 0
    """Of level 1 all; of the others those that were looked up, which a known call is not again."""


class ParityResult(str, Enum):
    """What came of holding one call against eager."""

    SAME = "same"
    DIFFERENT = "different"
    """The entry is withdrawn."""
    NOT_SAMPLED = "not_sampled"
    """A second run would write, draw random numbers or change objects: it was not made."""
    NOT_COMPARABLE = "not_comparable"
    """Two runs of eager differ, or the check itself failed."""


@dataclass(frozen=True, kw_only=True)
class Parity(Bounded):
    """How far entries were held against eager, on the weights of this replica."""

    entries: int = 0
    """Entries that were run, one for each callable that ran it."""
    checked: int = 0
    """Those of them that were held against eager, or cannot be."""
    results: dict[str, int] = field(default_factory=dict)
    """Checks by `ParityResult`."""
    failed: int = 0
    """Entries that differed and were withdrawn."""
    failures: tuple[str, ...] = ()
    """Callable, shapes of the call, and how it differed; a bounded number."""
    worst_error: float | None = None
    """Largest difference among the checks that passed, relative to the largest value."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many of the declared inputs are proven warm."""

    expected: int = 0
    proven: int = 0


@dataclass(frozen=True, kw_only=True)
class ArtifactUse(Bounded):
    """Which artifact this start looked at, and what came of it."""

    store: str
    source: str = ""
    """Kind of the store, as `stores.kind_of` has it."""
    statement: str = ""
    """Key of the chosen statement; empty when none was chosen."""
    created: str = ""
    """When it was built, as its manifest has it; empty for one that was not loaded."""
    stored_bytes: int = 0
    raw_bytes: int = 0
    downloaded_bytes: int = 0
    """How much of the stored bytes came from the store; the rest was on the node."""
    believed: str = ""
    """Why it was loaded: `signature`, `pin` or `unsigned_ok`."""
    signers: tuple[str, ...] = ()
    """Names of the trusted keys that signed it."""
    reason: str = ""
    """Why it was not loaded, in a sentence."""
    refused: str = ""
    """The same as one of `errors.REFUSAL_REASONS`, where it was refused."""
    trace: tuple[str, ...] = ()
    """One line a variant that was looked at: accepted, or rejected with the reason."""

    @property
    def in_use(self) -> bool:
        """Whether this start runs on it: chosen, and not put aside since."""
        return bool(self.statement and self.created)

    @property
    def digits(self) -> str:
        """The first 12 hexadecimal digits in the name of its statement: enough to find it by."""
        found = re.search(r"/([0-9a-f]{12})[^/]*$", self.statement)
        return found[1] if found else ""

    @property
    def created_unix(self) -> float | None:
        """When it was built, seconds since the epoch; None for one that was not loaded."""
        if not self.created:
            return None
        # Python 3.10 does not know the Z.
        return datetime.fromisoformat(self.created.replace("Z", "+00:00")).timestamp()


@public
@dataclass(frozen=True, kw_only=True)
class Report(Bounded):
    """One start of one replica.

    `to_proof_s` begins with the end of the user's `__init__` and ends with the proof. `elapsed_s`
    begins before that `__init__`. `overhead_s` is `to_proof_s` less the steady compute of the
    passes that were run. `cpu_s` is the process' own CPU time and that of the compilers it
    waited for, since the process began.
    """

    application: str = ""
    deployment: str = ""
    replica: str = ""
    stage: Stage = Stage.PENDING
    verdict: Verdict = Verdict.OFF
    degraded: tuple[str, ...] = ()
    """Why a ready replica is not a clean one; empty for a clean one."""
    covered: Coverage = field(default_factory=Coverage)
    stages: tuple[StageTime, ...] = ()
    spans: tuple[Span, ...] = ()
    """The start from its process on, in the order in which its parts began. A part may lie within
    another one, as the import of torch's compiler does in `pending`."""
    doing: str = ""
    """What a start that is not over waits for now, where its stage does not say it."""
    inputs: tuple[InputResult, ...] = ()
    passes: int = 0
    inputs_done: int = 0
    """Inputs replayed in the pass under way, or in the last one."""
    to_proof_s: float = 0.0
    overhead_s: float = 0.0
    cpu_s: float = 0.0
    warmup: Counts = field(default_factory=Counts)
    after_ready: Counts = field(default_factory=Counts)
    events: tuple[CompileEvent, ...] = ()
    """The last events after ready, newest last; a bounded number."""
    memory: tuple[DeviceMemory, ...] = ()
    """Of each GPU that is used, after the proof, and again after captures in traffic. Empty before,
    without a GPU, and where torch's allocator was exchanged for another one."""
    artifact: ArtifactUse | None = None
    entries: tuple[EntryUse, ...] = ()
    """Calls of what `serve_warm.compile` was given, until now; empty without an artifact."""
    parity: Parity | None = None
    """How entries compare with eager; None without entries."""
    compiler_imported: str = ""
    """By whom Dynamo or Inductor was imported: `app`, in its imports or its `__init__`; `start`, as
    levels below 3 need them; empty where they are not in this process."""
    nothing_compiles: bool = False
    """Whether nothing was found in this process that compiles, and no input called anything so."""
    fingerprint: dict[str, dict[str, str]] | None = None
    """What this start was compared with, by group and factor; None before it was read."""
    threads: tuple[int, ...] = ()
    """Native ids of the threads that made compiled calls in the proof pass."""
    warnings: tuple[str, ...] = ()
    """Problems that were found and named, each with its fix."""
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    started_unix: float = 0.0
    """When warm-up began, seconds since the epoch."""
    created_boot_s: float = 0.0
    """When the replica was created, before its `__init__`; seconds of CLOCK_BOOTTIME."""
    elapsed_s: float = 0.0
    """Seconds from then until now; once the start is READY or FAILED, until it was."""
    ready_unix: float | None = None
    """When it became ready, seconds since the epoch; None before."""
    deadline_s: float = 0.0
    """What the start is given; 0 where nothing was."""
    artifact_configured: bool = False
    """Whether a store is named and `enabled` is not false."""

    @property
    def ended(self) -> bool:
        """Whether the start is over, for good or ill."""
        return self.stage in (Stage.READY, Stage.FAILED)

    @property
    def traced(self) -> Traced:
        """How many of the start's compiled calls Dynamo traced, whatever its caches then had."""
        if not self.warmup.compiles:
            return "none"
        return "some" if any(use.level > 1 for use in self.entries) else "all"

    @property
    def levels(self) -> dict[str, int]:
        """Kinds of calls of what `serve_warm.compile` was given, by the level that answers them."""
        kinds = Counter(use.level for use in self.entries)
        return {str(level): kinds[level] for level in LEVELS}

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Wall seconds by stage, in lower case; of a stage that was entered twice, both times."""
        seconds: dict[str, float] = {}
        for took in self.stages:
            name = took.stage.value.lower()
            seconds[name] = seconds.get(name, 0.0) + took.seconds
        return seconds

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = _plain(self)
        return {"schema": SCHEMA, **plain, "traced": self.traced, "levels": self.levels}

    def text(self) -> str:
        """Return the report as lines for a log or a terminal."""
        first = f"{self.application}#{self.deployment} {self.stage.value}{describe(self.spans)}"
        verdict = settle(self.verdict.value, self.stage.value)
        second = (
            f"  {f'verdict={verdict} ' if verdict else ''}"
            f"proven={self.covered.proven}/{self.covered.expected} "
            f"after_init={self.to_proof_s:.2f} s passes={self.passes} traced={self.traced}"
        )
        lines = [first, second]
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
                f"{c.kernels} kernels built, {c.tunings} tunings in {c.tuning_s:.2f} s"
            )
        lines += [f"  memory: {memory}" for memory in self.memory]
        a = self.after_ready
        lines.append(
            f"  after ready: {a.compiles} compiles, {a.captures} captures, "
            + (f"{a.graph_skips} graphs skipped, " if a.graph_skips else "")
            + (f"{a.kernels} kernels built, " if a.kernels else "")
            + (f"{a.tunings} tunings, " if a.tunings else "")
            + f"{a.eager_falls} falls to eager, {a.forbidden} refused"
        )
        if self.artifact is not None:
            lines.append(f"  artifact: {self.artifact.store} {self.artifact.statement}".rstrip())
            if self.artifact.reason:
                lines.append(f"    {self.artifact.reason}")
        lines += _levels(self.entries)
        if self.parity is not None:
            lines += _parity(self.parity)
        lines += [f"  not proven: {i.name}: {i.note}" for i in self.inputs if not i.proven]
        lines += [f"  degraded: {reason}" for reason in self.degraded]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if self.error:
            lines.append(f"  error: {self.error}")
        return "\n".join(lines)


def settle(verdict: str, stage: str) -> str:
    """Return a verdict once it is one: a start begins with `off`, and may lose its `full_hit`.

    >>> settle("off", "FAILED"), settle("off", "READY"), settle("miss", "REPLAYING")
    ('', 'off', 'miss')
    """
    return "" if verdict in ("off", "full_hit") and stage != "READY" else verdict


STAGE_NAMES = frozenset(stage.value.lower() for stage in Stage)

PARTS = (*("process", "process and imports", "imports", "__init__"), *STAGE_NAMES)
"""Spans that follow one another; others are parts of them."""


def describe(spans: Sequence[Span]) -> str:
    """Return how long a start took from its process on, and its parts; empty without any.

    >>> describe([Span(name="process", began_boot_s=7.0, seconds=1.5),
    ...           Span(name="imports", began_boot_s=8.5, seconds=2.0)])
    ' 3.5 s after its process began: process 1.5, imports 2.0'
    """
    if all(span.beside for span in spans):
        return ""
    began = min(span.began_boot_s for span in spans)
    ended = max(span.began_boot_s + span.seconds for span in spans)
    parts_of_start = [span for span in spans if span.name in PARTS and not span.beside]
    seconds: dict[str, float] = {}
    # A part before what lies within it, also where both began at the same tick.
    for span in sorted(spans, key=lambda each: (each.began_boot_s, each.name not in PARTS)):
        if span.beside:
            continue
        seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
        outer = next((part for part in parts_of_start if _contains(part, span)), None)
        if outer is not None:
            seconds[outer.name] = max(0.0, seconds.get(outer.name, 0.0) - span.seconds)
    parts = ", ".join(f"{name} {took:.1f}" for name, took in seconds.items() if took >= SHOWN_S)
    # In a script or a notebook the process has begun for other reasons.
    since = " after its process began" if next(iter(seconds)).startswith("process") else ""
    return f" {ended - began:.1f} s{since}: {parts}"


def _contains(part: Span, span: Span) -> bool:
    """Whether a span is within a part of the start, so that its seconds are in both."""
    is_other = span.name not in PARTS
    return is_other and 0.0 <= span.began_boot_s - part.began_boot_s < part.seconds


SHOWN_S = 0.05
"""Shorter parts are not in the first line of a report."""


def _levels(entries: tuple[EntryUse, ...]) -> list[str]:
    """Return a line for all that is made ahead of time, and one for each call that is not."""
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
    return lines + (["  level 1: and more"] if len(rest) > LINES_OF_LEVEL_1 else [])


def _parity(parity: Parity) -> list[str]:
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in parity.results.items() if n)
    worst = "" if parity.worst_error is None else f", worst error {parity.worst_error:.1e}"
    lines = [f"  parity: {parity.checked} of {parity.entries} entries checked"]
    lines[0] += f" ({counts}{worst})" if counts else ""
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
