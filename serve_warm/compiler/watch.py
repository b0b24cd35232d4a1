# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The watch, which counts this process's compiles and records the reason for each.

One hook is enough to see every compile. For each call of a compiled function,
`torch._dynamo.eval_frame._callback_from_stance` returns the callback that runs if no compiled
variant matches (private; seen in torch 2.13.0). The hook wraps that callback. So serve_warm's
Python code runs only when torch is about to compile; every other call costs one extra function call
(about 1 µs). https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/eval_frame.py

A replica that starts at level 3 imports neither Dynamo nor Inductor. So each hook is installed when
its target module is imported, before any code can use that module.
"""

from __future__ import annotations

import functools
import logging
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from serve_warm._redaction import hide_texts
from serve_warm.compiler import cuda_graphs, evidence, triton_kernels
from serve_warm.compiler.background_import import when_imported
from serve_warm.inputs import InputSignature
from serve_warm.report import CompileEvent, Counts

logger = logging.getLogger(__name__)


EVENTS_KEPT = 64
"""Maximum number of events that a watch keeps. Older events are dropped, but the counts still
include them."""


OBJECT_SUFFIXES = (".so", ".o", ".a", ".dylib", ".pyd", ".dll")
"""Suffixes of the output files of a compile. `g++ --version` and preprocessing write no such
file."""


class Watch:
    """Counts this process's compiles, and records the reason for each.

    `watch_process()` returns the only instance. Counting never stops. To get the counts for a
    period, call `counts()` before and after the period, and subtract. `on_event` is called after
    each event, in the thread that compiled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiles = 0
        self._recompiles = 0
        self._eager_falls = 0
        self._captures = 0
        self._capture_s = 0.0
        self._eager_runs = 0
        self._skips = 0
        self._tunings = 0
        self._tuning_s = 0.0
        self._built = triton_kernels.Built()
        self._forbidden = 0
        self._compile_s = 0.0
        self._compiler_processes = 0
        self._compiler_s = 0.0
        self._events: deque[CompileEvent] = deque(maxlen=EVENTS_KEPT)
        self.fallen: dict[int, CodeType] = {}
        """Code that reached its recompile limit and now runs eagerly, keyed by the id of the code
        object."""
        self.refusing = False
        """Whether `forbid()` (and not user code) set torch's stance to `fail_on_recompile`."""
        self.on_event: Callable[[CompileEvent], None] | None = None
        self.forbidden: Callable[[CompileEvent], BaseException] | None = None
        """If set, serve_warm prevents each compile, and raises the exception that this function
        returns."""

    def counts(self) -> Counts:
        """Return all counts since the watch began."""
        # This name is private, and the same from 2.6 to 2.15. Without Dynamo, nothing was compiled.
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        aot, inductor = (
            ({}, {}) if counters is None else (counters["aot_autograd"], counters["inductor"])
        )
        with self._lock:
            return Counts(
                compiles=self._compiles,
                recompiles=self._recompiles,
                eager_falls=self._eager_falls,
                captures=self._captures,
                eager_runs=self._eager_runs,
                graph_skips=self._skips,
                kernels=self._built.count(),
                tunings=self._tunings,
                forbidden=self._forbidden,
                fx_hits=inductor.get("fxgraph_cache_hit", 0),
                fx_misses=inductor.get("fxgraph_cache_miss", 0),
                fx_bypasses=inductor.get("fxgraph_cache_bypass", 0),
                aot_hits=aot.get("autograd_cache_hit", 0),
                aot_misses=aot.get("autograd_cache_miss", 0),
                aot_bypasses=aot.get("autograd_cache_bypass", 0),
                compiler_processes=self._compiler_processes,
                compiler_s=self._compiler_s,
                compile_s=self._compile_s,
                capture_s=self._capture_s,
                tuning_s=self._tuning_s,
            )

    def events(self) -> tuple[CompileEvent, ...]:
        """Return the most recent events, oldest first."""
        with self._lock:
            return tuple(self._events)

    def count_kernels_in(self, cache_directory: Path) -> None:
        """From now on, count the kernels that are added to a cache directory."""
        with self._lock:
            self._built.look_at(cache_directory / "triton")

    # The hooks call the following methods on the thread that compiles.

    def note(self, event: CompileEvent) -> None:
        """Count and store an event, and pass the event to `on_event`."""
        with self._lock:
            self._events.append(event)
            self._compiles += event.kind in {"compile", "recompile"}
            self._recompiles += event.kind == "recompile"
            self._eager_falls += event.kind == "eager"
            self._captures += event.kind == "capture"
            self._skips += event.kind == "skip"
            self._tunings += event.kind == "tuning"
            self._forbidden += event.kind == "forbidden"
            if event.kind in {"compile", "recompile"}:
                self._compile_s += event.seconds
            if event.kind == "capture":
                self._capture_s += event.seconds
            if event.kind == "tuning":
                self._tuning_s += event.seconds
        if self.on_event is not None:
            self.on_event(event)

    def note_eager_run(self) -> None:
        """Count a call that torch's graph trees ran eagerly before a capture."""
        with self._lock:
            self._eager_runs += 1

    def note_compiler_run(self, seconds: float) -> None:
        """Count a run of the C++ compiler that wrote an object file."""
        with self._lock:
            self._compiler_processes += 1
            self._compiler_s += seconds


class _Watched:
    """Wraps a Dynamo callback, and reports to the watch. The wrapper is stored on the callback."""

    def __init__(self, callback: Any, seen: Watch) -> None:
        # torch follows this attribute to the backend, and matches cache entries with that backend.
        self._torchdynamo_orig_backend = callback
        self._seen = seen
        # This prevents a second wrapper, because torch restores callbacks through the same hook.
        self._serve_warm_watched = self

    def __call__(self, frame: Any, *args: Any) -> Any:
        callback, seen = self._torchdynamo_orig_backend, self._seen
        if seen.forbidden is not None and _would_compile(frame):
            event = _event("forbidden", frame, reason="compiling is forbidden after ready")
            seen.note(event)
            raise seen.forbidden(event)
        start = time.perf_counter()
        result = callback(frame, *args)
        seconds = time.perf_counter() - start
        if result.guarded_code is not None:
            reason = _recompile_reason()
            kind = "recompile" if reason else "compile"
            seen.note(_event(kind, frame, reason=reason, seconds=seconds))
        elif "RUN_ONLY" in str(result.frame_exec_strategy.cur_action):
            # From now on, Dynamo runs this code eagerly if no variant fits, without calling a
            # callback.
            seen.fallen[id(frame.f_code)] = frame.f_code
            reason = f"recompile limit reached; {_recompile_reason()}"
            seen.note(_event("eager", frame, reason=reason, seconds=seconds))
        return result


def _would_compile(frame: Any) -> bool:
    # torch's own fail_on_recompile makes the same two checks before it raises.
    from torch._dynamo import convert_frame, trace_rules

    return not trace_rules.check(frame.f_code) and convert_frame.has_tensor_in_frame(frame)


def _event(kind: str, frame: Any, *, reason: str = "", seconds: float = 0.0) -> CompileEvent:
    values = {name: value for name, value in frame.f_locals.items() if name != "self"}
    code, name = frame.f_code, frame.f_code.co_name
    if code.co_filename.endswith("torch/_dynamo/external_utils.py") and "fn" in values:
        # This is torch's wrapper around code that torch does not trace itself, such as a torch.nn
        # module.
        code, name = _unwrap(values.pop("fn"), otherwise=code)
    return CompileEvent(
        kind=kind,
        function=f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})",
        signature=str(InputSignature.of(values)),
        # A guard quotes strings from the inputs of the earlier variant, which may come from a
        # request.
        reason=hide_texts(reason),
        seconds=seconds,
        thread=threading.get_native_id(),
        at_unix=time.time(),
    )


def _unwrap(function: Any, *, otherwise: CodeType) -> tuple[CodeType, str]:
    """Return the code and name of the function that torch wrapped, or of a module's `forward`."""
    owner = getattr(function, "__self__", function)
    forward = getattr(type(owner), "forward", None)
    code = getattr(forward if forward is not None else function, "__code__", otherwise)
    name = f"{type(owner).__name__}.forward" if forward is not None else code.co_name
    return code, name


def _recompile_reason() -> str:
    from torch._dynamo.utils import get_compilation_metrics

    metrics = get_compilation_metrics()
    return (metrics[-1].recompile_reason or "") if metrics else ""


_the_watch: Watch | None = None


_install_lock = threading.Lock()


def watch_process() -> Watch:
    """Return this process's watch, whose hooks take effect when torch's compiler is imported."""
    global _the_watch  # noqa: PLW0603  (the hooks and the watch are process-wide)
    with _install_lock:
        if _the_watch is None:
            seen = Watch()
            when_imported("torch._dynamo.eval_frame", functools.partial(_hook_dynamo, seen))
            when_imported("torch._inductor.cpp_builder", functools.partial(_hook_runs, seen))
            when_imported("triton.runtime.build", functools.partial(_hook_triton, seen))
            cuda_graphs.observe(seen.note, seen.note_eager_run)
            triton_kernels.observe(seen.note)
            _the_watch = seen
        return _the_watch


def _hook_dynamo(seen: Watch, eval_frame: Any) -> None:
    original: Callable[[Any], Any] = eval_frame._callback_from_stance
    get_native_id = threading.get_native_id

    def callback_from_stance(callback: Any) -> Any:
        chosen = original(callback)
        if callback is None or callback is False:
            return chosen  # compiling is disabled for this function
        calls = evidence.current
        if calls is not None:
            calls.add(get_native_id())
        if chosen is not callback:
            if calls is None or chosen is None or chosen is False or not seen.refusing:
                return chosen
            # The stance is process-wide. A user thread that compiles during the proof must not fail
            # because of the proof. So let that thread compile, and count the compile.
            if not calls.is_outside():
                return _Refused(chosen, seen)
        try:
            return callback._serve_warm_watched
        except AttributeError:
            callback._serve_warm_watched = _Watched(callback, seen)
            return callback._serve_warm_watched

    eval_frame._callback_from_stance = callback_from_stance


class _Refused:
    """Wraps torch's own callback for `fail_on_recompile`, and counts each refused compile.

    A refused compile is counted even if a handler catches the exception and returns another answer.
    """

    def __init__(self, callback: Any, seen: Watch) -> None:
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


def _hook_runs(seen: Watch, cpp_builder: Any) -> None:
    # Inductor compiles C++ in threads of this process, and each compiler run goes through this
    # function (private; 2.5 to 2.15). tests/replica/test_cold_warm.py compares this count with the
    # process table.
    original = cpp_builder.run_compile_cmd

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        start = time.perf_counter()
        try:
            original(cmd_line, cwd)
        finally:
            if _makes_object(cmd_line):
                seen.note_compiler_run(time.perf_counter() - start)

    cpp_builder.run_compile_cmd = run_compile_cmd


def _hook_triton(seen: Watch, build: Any) -> None:
    # Triton compiles C for its driver, and for each kernel that torch's own launcher cannot launch
    # (private; Triton 3.3 to 3.6).
    original = getattr(build, "_build", None)
    if original is None:
        return

    @functools.wraps(original)
    def compile_c(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = original(*args, **kwargs)  # without a compiler it raises, and an app may go on
        seen.note_compiler_run(time.perf_counter() - start)
        return found

    build._build = compile_c


def _makes_object(cmd_line: str) -> bool:
    words = shlex.split(cmd_line)
    outputs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-o"]
    return any(output.endswith(OBJECT_SUFFIXES) for output in outputs)


def unwatched_compiles() -> int:
    """Return how many frames this process compiled before the watch began.

    To get the number for a period, call this function before and after the period, and subtract. If
    Dynamo is not imported, nothing was compiled, so this function does not import Dynamo.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    watched = _the_watch.counts().compiles if _the_watch is not None else 0
    return int(utils.counters["frames"]["ok"]) - watched
