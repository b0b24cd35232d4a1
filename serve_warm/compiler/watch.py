# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The watch, which counts this process's compiles, says why, and refuses them in traffic.

One hook is enough to see every compile. For each call of a compiled function,
`torch._dynamo.eval_frame._callback_from_stance` returns the callback that runs if no compiled
variant matches (private; seen in torch 2.13.0). The hook wraps that callback. So serve_warm's
Python code runs only when torch is about to compile; every other call costs one extra function call
(about 1 µs). https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/eval_frame.py

A replica that starts at level 3 imports neither Dynamo nor Inductor. So each hook is installed when
its target module is imported, before any code can use that module.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from serve_warm._records import record
from serve_warm._redaction import describe_error, hide_texts
from serve_warm.compiler import (
    cpp_commands,
    cuda_graphs,
    eager_calls,
    evidence,
    triton_kernels,
)
from serve_warm.compiler.branches import Branches
from serve_warm.compiler.eager_calls import CALLS, EagerAnswers
from serve_warm.compiler.imports import when_imported
from serve_warm.compiler.switches import find_switch
from serve_warm.inputs import InputSignature
from serve_warm.private_apis import dynamo, module_names, patches
from serve_warm.private_apis.dynamo import GRAPH
from serve_warm.private_apis.table import BUILD_C, STANCE_CALLBACK
from serve_warm.report import CompileEvent, Counts, EagerReason

logger = logging.getLogger(__name__)


EVENTS_KEPT = 64
"""Maximum number of events that a watch keeps. Older events are dropped, but the counts still
include them."""


SIGNATURES_KEPT = 4096
"""Maximum number of compiled calls that a watch remembers."""


ANOTHER = "the object is not the one that was proven: the application replaced or added it"
"""The reason of a compile after READY for an object whose class had compiled before."""


COUNTED = {
    "compile": ("compiles", "compile_s"),
    "recompile": ("compiles", "recompiles", "compile_s"),
    "eager": ("eager_falls",),
    "capture": ("captures", "capture_s"),
    "skip": ("graph_skips",),
    "tuning": ("tunings", "tuning_s"),
    "forbidden": ("forbidden",),
}
"""Fields of `Counts` to which an event adds, by its kind."""

FUNCTIONS = "all compiled functions"
"""The name in events that are about no single function."""


class CompileCounter:
    """Counts this process's compiles, and records the reason for each.

    `watch_process()` returns the only instance. Counting never stops. To get the counts for a
    period, call `counts()` before and after the period, and subtract. `on_event` is called after
    each event, in the thread that compiled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, Any] = defaultdict(int)
        """Fields of `Counts` that are not 0."""
        self._built = triton_kernels.KernelCount()
        self._owners: dict[CodeType, dict[int, Callable[[], Any]]] = {}
        self._events: deque[tuple[int, CompileEvent]] = deque(maxlen=EVENTS_KEPT)
        """The most recent events, numbered from 0. Numbers say what came first, because the wall
        clock may jump."""
        self._noted = 0
        """How many events this process has had."""
        self.compiling = 0
        """How many compiles are running."""
        self.fallen: dict[int, CodeType] = {}
        """Code that reached its recompile limit and now runs eagerly, keyed by the id of the code
        object."""
        self.branches = Branches()
        """The ways in which compiled code can go on after a graph break."""
        self.given_up: dict[str, str] = {}
        """Functions that torch was asked to compile and runs eagerly, with the reason."""
        self.compiled: set[tuple[str, ...]] = set()
        """Functions with the sizes for which they were compiled."""
        self.entered: set[int] = set()
        """Ids of the callbacks of `torch.compile` with which a start entered Dynamo."""
        self.refusing = False
        """Whether `forbid()` (and not user code) set torch's stance to `fail_on_recompile`."""
        self.on_event: Callable[[CompileEvent], None] | None = None
        self.on_begin: Callable[[], None] | None = None
        """Called before each compile, in the thread that compiles."""
        self.forbidden: Callable[[CompileEvent], BaseException] | None = None
        """If set, serve_warm prevents each compile, and raises the exception that this function
        returns."""

    def is_another(self, called: _Called) -> bool:
        """Return whether a call's code was compiled for the same sizes, but for other objects."""
        owners = self._owners.get(called.code, {})
        known = owners.get(id(called.owner))
        if called.owner is None or (known is not None and known() is called.owner):
            return False
        # Calls of other sizes differ in more than the object.
        return bool(owners) and called.sizes in self.compiled

    def why_another(self, frame: Any) -> str:
        """Note whose method a compiled frame is, and return why it compiles again, if that is why.

        Returns an empty string before READY, and for an object whose method was compiled before.
        """
        called = _Called.by(frame)
        if called.owner is None:
            return ""
        with self._lock:
            is_another = self.is_another(called)
            owners = self._owners.setdefault(called.code, {})
            for key in [key for key, reference in owners.items() if reference() is None]:
                del owners[key]
            with contextlib.suppress(TypeError):  # not every object has weak references
                owners[id(called.owner)] = weakref.ref(called.owner)
        return ANOTHER if is_another and self.on_event is not None else ""

    def counts(self) -> Counts:
        """Return all counts since the watch began."""
        # Without Dynamo, nothing was compiled.
        inductor = dynamo.imported_counters().get("inductor", {})
        with self._lock:
            return Counts(
                **self._sums,
                kernels=self._built.count(),
                calls=CALLS.n,
                fx_hits=inductor.get("fxgraph_cache_hit", 0),
                fx_misses=inductor.get("fxgraph_cache_miss", 0),
                fx_bypasses=inductor.get("fxgraph_cache_bypass", 0),
            )

    def events(self, among: Iterable[range] = (range(sys.maxsize),)) -> tuple[CompileEvent, ...]:
        """Return the most recent events whose numbers are in one of the ranges, oldest first."""
        ranges = tuple(among)
        with self._lock:
            events = tuple(self._events)
        return tuple(event for number, event in events if any(number in each for each in ranges))

    def later_events(self) -> range:
        """Return the numbers of all events from now on."""
        return range(self._noted, sys.maxsize)

    def count_kernels_in(self, cache_directory: Path) -> None:
        """From now on, count the kernels that are added to a cache directory."""
        with self._lock:
            self._built.look_at(cache_directory / "triton")

    # The hooks call the following methods on the thread that compiles.

    @contextlib.contextmanager
    def compile_running(self) -> Iterator[None]:
        """Count the block as a running compile."""
        with self._lock:
            self.compiling += 1
        try:
            yield
        finally:
            with self._lock:
                self.compiling -= 1

    def note(self, event: CompileEvent) -> None:
        """Count and store an event, and pass the event to `on_event`."""
        with self._lock:
            self._events.append((self._noted, event))
            self._noted += 1
            for name in COUNTED[event.kind]:
                self._sums[name] += event.seconds if name.endswith("_s") else 1
        on_event = self.on_event  # an update may take it away
        if on_event is not None:
            on_event(event)

    def note_stance(self, why: str) -> None:
        """Record, once for each reason, that the application's stance makes calls run eagerly."""
        if why and why not in self.given_up.values():
            self.given_up[FUNCTIONS] = why
            self.note(CompileEvent(kind="eager", function=FUNCTIONS, reason=why))

    def note_eager_run(self) -> None:
        """Count a call that torch's graph trees ran eagerly before a capture."""
        with self._lock:
            self._sums["eager_runs"] += 1

    def note_compiler_run(self, seconds: float) -> None:
        """Count a run of the C++ compiler that wrote an object file."""
        with self._lock:
            self._sums["compiler_processes"] += 1
            self._sums["compiler_s"] += seconds


class _WatchedCallback:
    """Wraps a Dynamo callback, and reports to the watch. The wrapper is stored on the callback."""

    def __init__(self, callback: Any, seen: CompileCounter) -> None:
        # torch follows this attribute to the backend, and matches cache entries with that backend.
        self._torchdynamo_orig_backend = callback
        self._seen = seen
        # This prevents a second wrapper, because torch restores callbacks through the same hook.
        self.serve_warm_watched = self

    def __call__(self, frame: Any, *args: Any) -> Any:
        callback, seen = self._torchdynamo_orig_backend, self._seen
        answers = eager_calls.answers
        if answers is not None and answers.takes_in_torch() and dynamo.would_compile(frame):
            _note_eager(seen, answers, frame, callback)
            return _skip_once()
        # After READY, a user must be told which guard of which variant matters.
        why = "" if seen.on_event is None else _why_none_fits(seen, frame, callback)
        # An update may change these at any time.
        forbidden, on_begin = seen.forbidden, seen.on_begin
        if forbidden is not None and dynamo.would_compile(frame):
            reason = "; ".join(filter(None, ("compiling is forbidden after ready", why)))
            event = _event("forbidden", frame, reason=reason)
            seen.note(event)
            raise forbidden(event)
        seen.branches.note_run(frame.f_code)
        if on_begin is not None and dynamo.would_compile(frame):
            on_begin()
        start = time.perf_counter()
        with seen.compile_running():
            result = callback(frame, *args)
        seconds = time.perf_counter() - start
        if result.guarded_code is not None:
            _count_runs(frame.f_globals, result.guarded_code.code)
            made = result.guarded_code
            seen.branches.note_compiled(
                frame.f_code, made.code, made.guard_manager, frame.f_globals
            )
            reason = dynamo.recompile_reason()
            kind = "recompile" if reason else "compile"
            reason = seen.why_another(frame) or evidence.why_below() or why or reason
            event = _event(kind, frame, reason=reason, seconds=seconds)
            if len(seen.compiled) < SIGNATURES_KEPT:
                seen.compiled.add(_Called.by(frame).sizes)
            seen.note(event)
        elif "RUN_ONLY" in str(result.frame_exec_strategy.cur_action):
            # From now on, Dynamo runs this code eagerly if no variant fits, without calling a
            # callback.
            seen.fallen[id(frame.f_code)] = frame.f_code
            reason = f"recompile limit reached; {dynamo.recompile_reason()}"
            seen.note(_event("eager", frame, reason=reason, seconds=seconds))
        elif (given_up := _why_given_up(frame, result)) is not None:
            event = _event("eager", frame, reason=given_up, seconds=seconds)
            seen.given_up[event.function] = given_up
            seen.note(event)
        return result


def _count_runs(names: dict[str, Any], code: CodeType) -> None:
    """Record the runs of the graphs that the code of a frame calls, as evidence."""
    for name in code.co_names:
        graph = names.get(name) if name.startswith(GRAPH) else None
        if graph is not None and getattr(graph, "__code__", None) is not _RUN_CODE:
            names[name] = _record_runs(graph)


def _record_runs(graph: Callable[..., Any]) -> Callable[..., Any]:
    get_native_id = threading.get_native_id

    def run(*args: Any) -> Any:
        calls = evidence.current
        if calls is not None:
            calls.add(get_native_id())
        return graph(*args)

    return run


_RUN_CODE = _record_runs(lambda: None).__code__


def _why_given_up(frame: Any, result: Any) -> str | None:
    """Return why torch runs a frame eagerly that it was asked to compile.

    Returns None for frames in which there is nothing to compile.
    """
    if not dynamo.would_compile(frame):
        return None
    said = str(getattr(result, "skip_reason", None) or "")  # not in 2.11
    if dynamo.is_disabled():
        return find_switch()
    if "dispatch mode" in said or dynamo.is_in_dispatch_mode():
        return (
            "a torch dispatch mode is active, for example a FLOP counter: torch compiles nothing "
            "in such a mode"
        )
    if "suppressed" in said or (not said and dynamo.suppresses_errors()):
        return (
            "compiling it failed, and suppress_errors is on, so torch only logged the error: read "
            f"the lines of {module_names.DYNAMO} before this one, or switch suppress_errors off"
        )
    return None


@record(frozen=True, kw_only=True)
class _Called:
    """What a frame runs: torch's wrapper around a function stands for the function."""

    code: CodeType
    function: str
    """The name, with file and line."""
    owner: Any
    """The object whose method runs, if any."""
    values: Mapping[str, Any]
    """The arguments."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """The function, and the sizes of all tensors in its arguments."""
        signature = re.sub(r" strides \[[^]]*]", "", str(InputSignature.of(self.values)))
        return self.function, *re.findall(r"\[[\d, ]+]", signature)

    @classmethod
    def by(cls, frame: Any) -> _Called:
        values = dict(frame.f_locals)
        owner = values.pop("self", None)
        code, name = frame.f_code, frame.f_code.co_name
        if code.co_filename.endswith(module_names.WRAPPERS) and "fn" in values:
            # This is torch's wrapper around code that torch does not trace itself, such as a
            # torch.nn module.
            function = values.pop("fn")
            owner = getattr(function, "__self__", function)
            code, name = _unwrap(function, otherwise=code)
        function = f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        return cls(code=code, function=function, owner=owner, values=values)


def _event(kind: str, frame: Any, *, reason: str = "", seconds: float = 0.0) -> CompileEvent:
    called = _Called.by(frame)
    return CompileEvent(
        kind=kind,
        function=called.function,
        signature=str(InputSignature.of(called.values)),
        reason=_in_one_line(reason),
        seconds=seconds,
    )


def _in_one_line(reason: str) -> str:
    # A guard quotes strings from the inputs of the earlier variant, which may come from a request.
    # Torch adds a stack trace in lines of its own.
    return hide_texts(" ".join(reason.partition("User stack trace")[0].split("\n")).rstrip())


def _unwrap(function: Any, *, otherwise: CodeType) -> tuple[CodeType, str]:
    """Return the code and name of the function that torch wrapped, or of a module's `forward`."""
    owner = getattr(function, "__self__", function)
    forward = getattr(type(owner), "forward", None)
    code = getattr(forward if forward is not None else function, "__code__", otherwise)
    name = f"{type(owner).__name__}.forward" if forward is not None else code.co_name
    return code, name


SIZE = re.compile(r"size mismatch|rank mismatch|\.size\(\)\[|len\(")
"""Guards about sizes, in the words of torch 2.11 to 2.15."""


def _why_none_fits(seen: CompileCounter, frame: Any, callback: Any) -> str:
    """Return the guard for which no compiled variant fits, or "" if there is no variant.

    Each variant fails at another guard, and torch names only one variant. If the function was never
    compiled for these sizes, the sizes matter, and otherwise a guard that is not about sizes.
    """
    try:
        reasons = dynamo.failed_guards(frame, callback)
    except Exception as error:  # noqa: BLE001 - with another torch, too, a request is answered
        logger.debug("no guard is named: %s", describe_error(error))
        return ""
    # Torch's wrapper `fn` runs all modules of torch.nn, so its variants belong to other modules.
    own = [reason for reason in reasons if reason and not re.search(r"\bfn\b", reason)]
    called = _Called.by(frame)
    is_known = called.sizes in seen.compiled
    # torch adds the line of code, which may name anything.
    first = [reason for reason in own if bool(SIZE.search(reason.partition("  #")[0])) != is_known]
    return next(iter((*first, *own)), "")


_the_watch: CompileCounter | None = None


_install_lock = threading.Lock()


def watch_process() -> CompileCounter:
    """Return this process's watch, whose hooks take effect when torch's compiler is imported."""
    global _the_watch  # noqa: PLW0603  (the hooks and the watch are process-wide)
    with _install_lock:
        if _the_watch is None:
            seen = CompileCounter()
            when_imported(module_names.EVAL_FRAME, functools.partial(_hook_dynamo, seen))
            when_imported(module_names.TRITON_BUILD, functools.partial(_hook_triton, seen))
            cpp_commands.time_compiles(seen.note_compiler_run)
            cuda_graphs.observe(seen.note, seen.note_eager_run)
            triton_kernels.observe(seen.note)
            _the_watch = seen
        return _the_watch


def _hook_dynamo(seen: CompileCounter, _: ModuleType) -> None:
    dynamo.skip_always(_RUN_CODE)  # compiled code calls it
    patches.replace(STANCE_CALLBACK, functools.partial(_watch_callbacks, seen))


def _watch_callbacks(seen: CompileCounter, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def callback_from_stance(callback: Any) -> Any:
        chosen = original(callback)
        if callback is None or callback is False:
            return chosen  # compiling is disabled for this function
        CALLS.n += 1
        calls = evidence.current
        if calls is not None:
            seen.entered.add(id(callback))
            calls.enter(find_switch() if chosen is None or chosen is False else "")
        if chosen is not callback:
            answers = eager_calls.answers
            if answers is not None and chosen and answers.takes_in_torch():
                return _Eager(callback, seen, answers)
            if calls is None and seen.on_event is not None and not chosen:
                seen.note_stance(find_switch())
            if calls is None or chosen is None or chosen is False or not seen.refusing:
                return chosen
            # The stance is process-wide. A user thread that compiles during the proof must not fail
            # because of the proof. So let that thread compile, and count the compile.
            if not calls.is_outside():
                return _Refused(chosen, seen)
        # A field of torch's object, because the wrapper refers to the callback: any mapping from
        # callbacks to wrappers would keep both forever. A weak mapping also takes several times as
        # long, and this runs in each call.
        try:
            return callback.serve_warm_watched
        except AttributeError:
            callback.serve_warm_watched = _WatchedCallback(callback, seen)
            return callback.serve_warm_watched

    return callback_from_stance


class _Eager:
    """Runs a frame eagerly that would compile, where a stance forbids compiles."""

    def __init__(self, callback: Any, seen: CompileCounter, answers: EagerAnswers) -> None:
        self._torchdynamo_orig_backend = callback
        self._seen = seen
        self._answers = answers

    def __call__(self, frame: Any, *_: Any) -> Any:
        if dynamo.would_compile(frame):
            _note_eager(self._seen, self._answers, frame, self._torchdynamo_orig_backend)
        return _skip_once()


def _note_eager(seen: CompileCounter, answers: EagerAnswers, frame: Any, callback: Any) -> None:
    called = _Called.by(frame)
    is_another = seen.is_another(called)

    def why() -> str:
        if is_another:
            return ANOTHER
        return _in_one_line(evidence.why_below() or _why_none_fits(seen, frame, callback))

    reason = EagerReason.CHANGED if is_another else None
    call = str(InputSignature.of(called.values))
    if dynamo.is_resumed(frame.f_code):
        CALLS.n += 1  # each part of a call after a graph break counts as a call
    eager_calls.note_in_dynamo(answers.note(called.function, call, why, reason=reason))


def _skip_once() -> Any:
    dynamo.count_for_fullgraph()
    return dynamo.skip_once()


class _Refused:
    """Wraps torch's own callback for `fail_on_recompile`, and counts each refused compile.

    A refused compile is counted even if a handler catches the exception and returns another answer.
    """

    def __init__(self, callback: Any, seen: CompileCounter) -> None:
        self._torchdynamo_orig_backend = callback
        self._seen = seen

    def __call__(self, frame: Any, *args: Any) -> Any:
        try:
            return self._torchdynamo_orig_backend(frame, *args)
        except RuntimeError as error:
            # Compare by identity, because copies of a code object are equal but have separate
            # variants.
            fallen = id(frame.f_code) in self._seen.fallen
            self._seen.note(_event("eager" if fallen else "forbidden", frame, reason=str(error)))
            raise


def _hook_triton(seen: CompileCounter, _: ModuleType) -> None:
    # Triton compiles C for its driver, and for each kernel that torch's own launcher cannot launch
    # (private; Triton 3.3 to 3.6).
    patches.replace(BUILD_C, functools.partial(_count_builds, seen))


def _count_builds(seen: CompileCounter, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_c(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = original(*args, **kwargs)  # without a compiler it raises, and an app may go on
        seen.note_compiler_run(time.perf_counter() - start)
        return found

    return compile_c


def unwatched_compiles() -> int:
    """Return how many frames this process compiled before the watch began.

    To get the number for a period, call this function before and after the period, and subtract. If
    Dynamo is not imported, nothing was compiled, so this function does not import Dynamo.
    """
    counters = dynamo.imported_counters()
    if not counters:
        return 0
    watched = _the_watch.counts().compiles if _the_watch is not None else 0
    return counters["frames"]["ok"] - watched
