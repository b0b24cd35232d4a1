# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Every touch of torch.compile, Dynamo, Inductor and Triton: the watch, the proof, the caches.

Private names of torch are used here, in `ahead` and in `pgo`, and nowhere else. Each says the
version it was seen in (2.13.0 unless said otherwise) and what happens where it is missing. What is
public (`torch.compiler.set_stance`, `save_cache_artifacts`, `load_cache_artifacts`) is preferred.

The watch rests on one hook. Each call of a compiled function asks
`torch._dynamo.eval_frame._callback_from_stance` which callback to run when no compiled variant
fits. The hook answers with a wrapper of that callback, so that Python code of ours runs when
something is about to be compiled, and one function call more (about 1 µs) when nothing is.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/eval_frame.py

A start at level 3 imports neither Dynamo nor Inductor. So every hook waits for the import of the
module that it goes into, and is there before anything can use that module.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import logging
import os
import pickle
import platform
import resource
import shlex
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CellType, CodeType, ModuleType
from typing import Any

from serve_warm import _private_folders, evidence, fingerprint, graphs, kernels
from serve_warm._redaction import hide_texts
from serve_warm.errors import CompilerMissing, ConfigError
from serve_warm.importing import when_imported
from serve_warm.inputs import InputSignature
from serve_warm.report import CompileEvent, Counts

logger = logging.getLogger(__name__)

EVENTS_KEPT = 64
"""Events that a watch remembers; counts go on beyond it."""

OBJECT_SUFFIXES = (".so", ".o", ".a", ".dylib", ".pyd", ".dll")
"""What a compiler run leaves behind: `g++ --version` and preprocessing are none."""


class Watch:
    """Counts what compiles in this process, with reasons; one per process, see `watch()`.

    Counting never stops once begun: callers take `counts()` before and after a span and
    subtract. `on_event` is called after each event, from the thread that compiled.
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
        self._built = kernels.Built()
        self._forbidden = 0
        self._compile_s = 0.0
        self._compiler_processes = 0
        self._compiler_s = 0.0
        self._events: deque[CompileEvent] = deque(maxlen=EVENTS_KEPT)
        self.fallen: dict[int, CodeType] = {}
        """Code that runs eagerly from now on, since its recompile limit was reached, by its id."""
        self.refusing = False
        """Whether torch's stance is `fail_on_recompile` by `forbid()`, and not by user code."""
        self.on_event: Callable[[CompileEvent], None] | None = None
        self.forbidden: Callable[[CompileEvent], BaseException] | None = None
        """While set, a compile is not made: what this returns is raised in its place."""

    def counts(self) -> Counts:
        """Return everything counted since the process was first watched."""
        # Private; the same from 2.6 to 2.15. Without Dynamo nothing was compiled.
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
        """Return the last events, oldest first."""
        with self._lock:
            return tuple(self._events)

    def count_kernels_in(self, cache_directory: Path) -> None:
        """Count the kernels that are built into a cache directory from now on."""
        with self._lock:
            self._built.look_at(cache_directory / "triton")

    # What follows is called by the hooks, from whichever thread compiles.

    def _note(self, event: CompileEvent) -> None:
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

    def _note_eager_run(self) -> None:
        with self._lock:
            self._eager_runs += 1

    def _note_compiler_run(self, seconds: float) -> None:
        with self._lock:
            self._compiler_processes += 1
            self._compiler_s += seconds


class _Watched:
    """A Dynamo callback with the watch around it; one for each callback, kept on it."""

    def __init__(self, callback: Any, seen: Watch) -> None:
        # torch follows this attribute to the backend, to match cache entries with it.
        self._torchdynamo_orig_backend = callback
        self._seen = seen
        # What is watched already is not watched twice: torch restores callbacks by the same way.
        self._serve_warm_watched = self

    def __call__(self, frame: Any, *args: Any) -> Any:
        callback, seen = self._torchdynamo_orig_backend, self._seen
        if seen.forbidden is not None and _would_compile(frame):
            event = _event("forbidden", frame, reason="compiling is forbidden after ready")
            seen._note(event)
            raise seen.forbidden(event)
        start = time.perf_counter()
        result = callback(frame, *args)
        seconds = time.perf_counter() - start
        if result.guarded_code is not None:
            reason = _recompile_reason()
            kind = "recompile" if reason else "compile"
            seen._note(_event(kind, frame, reason=reason, seconds=seconds))
        elif "RUN_ONLY" in str(result.frame_exec_strategy.cur_action):
            # From now on Dynamo runs this code eagerly, without calling back, where none of its
            # variants fits.
            seen.fallen[id(frame.f_code)] = frame.f_code
            reason = f"recompile limit reached; {_recompile_reason()}"
            seen._note(_event("eager", frame, reason=reason, seconds=seconds))
        return result


def _would_compile(frame: Any) -> bool:
    # The two questions that torch's own fail_on_recompile asks before it raises.
    from torch._dynamo import convert_frame, trace_rules

    return not trace_rules.check(frame.f_code) and convert_frame.has_tensor_in_frame(frame)


def _event(kind: str, frame: Any, *, reason: str = "", seconds: float = 0.0) -> CompileEvent:
    code = frame.f_code
    values = {name: value for name, value in frame.f_locals.items() if name != "self"}
    return CompileEvent(
        kind=kind,
        function=f"{code.co_name} ({Path(code.co_filename).name}:{code.co_firstlineno})",
        signature=str(InputSignature.of(values)),
        # A guard quotes the texts that the variant before was compiled for: those of a request.
        reason=hide_texts(reason),
        seconds=seconds,
        thread=threading.get_native_id(),
        at_unix=time.time(),
    )


def _recompile_reason() -> str:
    from torch._dynamo.utils import get_compilation_metrics

    metrics = get_compilation_metrics()
    return (metrics[-1].recompile_reason or "") if metrics else ""


_the_watch: Watch | None = None

_install_lock = threading.Lock()


def watch() -> Watch:
    """Return this process' watch, which hooks torch now, or as soon as its compiler is imported."""
    global _the_watch  # noqa: PLW0603  (hooks are process-wide, so is the watch)
    with _install_lock:
        if _the_watch is None:
            seen = Watch()
            when_imported("torch._dynamo.eval_frame", functools.partial(_hook_dynamo, seen))
            when_imported("torch._inductor.cpp_builder", functools.partial(_hook_runs, seen))
            graphs.observe(seen._note, seen._note_eager_run)
            kernels.observe(seen._note)
            _the_watch = seen
        return _the_watch


def is_imported() -> bool:
    """Return whether torch's compiler is in this process; without it nothing can be compiled."""
    return any(name in sys.modules for name in ("torch._dynamo", "torch._inductor"))


def _hook_dynamo(seen: Watch, eval_frame: Any) -> None:
    original: Callable[[Any], Any] = eval_frame._callback_from_stance
    get_native_id = threading.get_native_id

    def callback_from_stance(callback: Any) -> Any:
        chosen = original(callback)
        if callback is None or callback is False:
            return chosen  # a function that compiling is disabled for
        calls = evidence.current
        if calls is not None:
            calls.add(get_native_id())
        if chosen is not callback:
            if calls is None or chosen is None or chosen is False or not seen.refusing:
                return chosen
            # The stance is process-wide. A thread of the user's that compiles beside the proof must
            # not fail for it: it may compile, and the proof counts that.
            if not calls.is_outside():
                return _Refused(chosen, seen)
        try:
            return callback._serve_warm_watched
        except AttributeError:
            callback._serve_warm_watched = _Watched(callback, seen)
            return callback._serve_warm_watched

    eval_frame._callback_from_stance = callback_from_stance


class _Refused:
    """torch's own callback of `fail_on_recompile`, counted before it raises.

    A handler may swallow the exception and answer with something else: the proof counts what
    was met, not what was raised.
    """

    def __init__(self, callback: Any, seen: Watch) -> None:
        self._torchdynamo_orig_backend = callback
        self._seen = seen

    def __call__(self, frame: Any, *args: Any) -> Any:
        try:
            return self._torchdynamo_orig_backend(frame, *args)
        except RuntimeError as error:
            # By identity: copies of a code object are equal, and have variants of their own.
            fallen = id(frame.f_code) in self._seen.fallen
            self._seen._note(_event("eager" if fallen else "forbidden", frame, reason=str(error)))
            raise


def _hook_runs(seen: Watch, cpp_builder: Any) -> None:
    # Inductor compiles C++ in threads of this process, each run through this one function
    # (private; 2.5 to 2.15). It is checked against the process table by tests/test_cold_warm.py.
    original = cpp_builder.run_compile_cmd

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        start = time.perf_counter()
        try:
            original(cmd_line, cwd)
        finally:
            if _makes_object(cmd_line):
                seen._note_compiler_run(time.perf_counter() - start)

    cpp_builder.run_compile_cmd = run_compile_cmd


def _makes_object(cmd_line: str) -> bool:
    words = shlex.split(cmd_line)
    outputs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-o"]
    return any(output.endswith(OBJECT_SUFFIXES) for output in outputs)


def unwatched_compiles() -> int:
    """Return how many frames were compiled in this process before it was watched.

    Callers compare two moments. Imports nothing: without Dynamo nothing was compiled.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    watched = _the_watch.counts().compiles if _the_watch is not None else 0
    return int(utils.counters["frames"]["ok"]) - watched


def defer_precompiled_headers() -> None:
    """Make torch precompile its C++ headers when a compiler runs, not when a kernel is loaded.

    Inductor preprocesses two headers in every process and precompiles them into the user's
    folder under the temp directory, before it looks whether the kernel's library is there: on a
    fresh node 5 s of g++ in a start whose kernels are all in the artifact (torch 2.13,
    `_precompile_header` of codecache.py). The path of the header only enters the compiler's
    command line, so that a word of ours can stand for it until there is such a command.
    """
    when_imported("torch._inductor.codecache", _defer_headers)


def _defer_headers(codecache: Any) -> None:
    from torch._inductor import cpp_builder  # which codecache has imported

    precompile = getattr(codecache, "_precompile_header", None)
    if precompile is None:
        return
    run: Callable[[str, str], None] = cpp_builder.run_compile_cmd
    headers: dict[str, Callable[[], str]] = {}
    numbers = itertools.count()  # two threads get two numbers

    @functools.cache
    def deferred(*args: Any, **kwargs: Any) -> str:
        word = f"/serve_warm-deferred-header-{next(numbers)}.h"
        headers[word] = functools.partial(precompile, *args, **kwargs)
        return word

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        for word, header in list(headers.items()):
            if word in cmd_line:
                cmd_line = cmd_line.replace(word, header())
        run(cmd_line, cwd)

    codecache._precompile_header = deferred
    cpp_builder.run_compile_cmd = run_compile_cmd


def keep_headers_private() -> None:
    """Make torch keep its precompiled headers where no other user can have put them.

    Its own place is a folder of a known name under the temp directory, wherever the caches are
    pointed at, and whoever made that folder first is asked nothing: a header from there is code
    in every kernel (torch 2.13, `_HEADER_DIR` of codecache.py).
    """
    when_imported("torch._inductor.codecache", _move_headers)


def _move_headers(codecache: ModuleType) -> None:
    if hasattr(codecache, "_HEADER_DIR"):
        directory = header_directory()
        vars(codecache).update(
            _HEADER_DIR=str(directory), _HEADER_LOCK_DIR=str(directory / "locks")
        )
    elif hasattr(codecache, "_precompile_header"):
        # A torch that keeps them somewhere else makes none: about a second more per kernel.
        _force(sys.modules["torch._inductor.config"], "cpp_cache_precompile_headers", value=False)


def header_directory(base: Path | None = None) -> Path:
    """Return the folder of this user's precompiled headers: `<base>/serve_warm-<uid>/headers`.

    One per user, not per process: a header costs 5.7 s and saves one second at each kernel (six
    kernels on two cores: 3.8 s with it, 7.1 s without any, 10.5 s when it must be made first).
    Where another user could have written to the folder, or could replace it, it is a new one of
    this process. `base` is `_private_folders.private_base()` unless it is given.
    """
    base = base or _private_folders.private_base()
    folder = base / f"serve_warm-{os.geteuid()}" / "headers"
    try:
        _private_folders.make_private(folder)
        why = _private_folders.sentence(_private_folders.problems(folder))
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    if not why:
        return folder
    logger.warning("C++ headers are compiled for this process alone, since %s", why)
    return private_directory(base)


@contextlib.contextmanager
def forbid() -> Iterator[None]:
    """Make every compile inside the block raise `RuntimeError`: the proof.

    So does what would run eagerly without a word, because its recompile limit is reached. The
    stance is process-wide, not per thread, and is restored whatever happens.
    """
    global _forbidding  # noqa: PLW0603  (the stance is process-wide too)
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_forbidden_to_dynamo())
        else:
            # Nothing can compile; and when somebody imports it, nothing may.
            _forbidding = stack
            when_imported("torch._dynamo", _forbid_from_its_import)
        try:
            yield
        finally:
            _forbidding = None


_forbidding: contextlib.ExitStack | None = None
"""Of the block that began without Dynamo."""


def _forbid_from_its_import(_: ModuleType) -> None:
    if _forbidding is not None:
        _forbidding.enter_context(_forbidden_to_dynamo())


@contextlib.contextmanager
def _forbidden_to_dynamo() -> Iterator[None]:
    import torch
    import torch._dynamo  # until whoever is in the middle of it has imported it

    with _fallen_looked_at_again(), torch.compiler.set_stance("fail_on_recompile"):
        seen = watch()
        seen.refusing = True
        try:
            yield
        finally:
            seen.refusing = False


@contextlib.contextmanager
def falls_counted() -> Iterator[None]:
    """Count what runs eagerly inside the block because its recompile limit was reached before.

    Once in each block, whatever is called; compiling stays allowed. For the proof where a call that
    raises would leave others waiting.
    """
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_fallen_looked_at_again())
        yield


@contextlib.contextmanager
def _fallen_looked_at_again() -> Iterator[None]:
    """Have Dynamo look at calls of frames that have reached their limit, and count them."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    def treat_fallen(action: _FrameAction) -> None:
        for code in fallen:
            set_code_exec_strategy(code, _FrameExecStrategy(action, action))

    fallen = tuple(watch().fallen.values())
    treat_fallen(_FrameAction.DEFAULT)
    try:
        yield
    finally:
        treat_fallen(_FrameAction.RUN_ONLY)


# The caches -----------------------------------------------------------------------------------


def save_torch_bytes() -> bytes:
    """Return torch's own cache artifacts of this process, empty when there are none.

    Once per process only: bytes of a second save, with compiles in between, lose the first
    batch when they are loaded (torch 2.13 to 2.15).
    """
    import torch
    import torch._dynamo  # save fails before Dynamo has been imported

    saved = torch.compiler.save_cache_artifacts()
    return saved[0] if saved is not None else b""


def load_torch_bytes(raw: bytes) -> bool:
    """Load bytes of `save_torch_bytes`; return whether torch accepted them.

    This executes what the bytes say. Only call it with bytes whose signature was checked. Where
    it returns False, entries before the bad one may have been written to the cache directory.
    From 2.14 on entries are not opened here: one that cannot be read is a miss when a compile
    looks it up.
    """
    import torch
    import torch._dynamo

    try:
        return torch.compiler.load_cache_artifacts(raw) is not None
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError):
        # What unpickling an entry can raise. torch up to 2.13 lets it out, for some entries.
        logger.warning("torch could not read an entry of its cache artifacts", exc_info=True)
        return False


def import_compiler() -> None:
    """Import what the first compile would import (about 1.5 s), so that a stage pays for it.

    Asks CUDA for its devices in some versions (2.11).
    """
    import_dynamo()
    import torch._inductor.compile_fx  # noqa: F401


def import_dynamo() -> None:
    """Import the half of it that asks CUDA for nothing (2.11 to 2.13)."""
    import torch._dynamo  # noqa: F401


def require_compiler(environ: Mapping[str, str]) -> None:
    """Raise `CompilerMissing` unless a C++ compiler can be run.

    Inductor asks for one on CPU even when every kernel is in the cache. On a CUDA machine it
    is only needed for CPU kernels, so nothing is required there.
    """
    import torch

    if torch.cuda.is_available():
        return
    wanted = environ.get("CXX") or "g++"
    if shutil.which(wanted, path=environ.get("PATH")) is None:
        raise CompilerMissing(wanted)


class IsaChecks:
    """What torch's probe of the CPU's vector ISA answered, so that an equal CPU need not ask.

    The probe compiles and loads a small library for each candidate ISA: 4.5 s of every cold
    start, about 0.8 s of every warm one. The answers travel in the manifest, and are given
    only after the fingerprint (CPU flags, compiler, torch) was found equal.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bool] = {}
        self._given: Mapping[str, bool] = {}

    def give(self, answers: Mapping[str, bool]) -> None:
        """Answer from `answers` from now on; anything not in them is still probed."""
        self._given = dict(answers)

    def hook(self, cpu_vec_isa: Any) -> None:
        """Put this in front of torch's probe, where this torch has one we know."""
        vec_isa: Any = cpu_vec_isa.VecISA
        original = getattr(vec_isa, "check_build", None)
        if original is None:
            return

        def check_build(isa: Any, code: str) -> bool:
            digest = hashlib.sha256(code.encode()).hexdigest()[:12]
            question = f"{type(isa).__name__} {isa.build_arch_flags()} {digest}"
            if question in self._given:
                self.answers[question] = self._given[question]
            else:
                self.answers[question] = bool(original(isa, code))
            return self.answers[question]

        vec_isa.check_build = check_build


_isa_checks: IsaChecks | None = None
_isa_lock = threading.Lock()


def isa_checks() -> IsaChecks:
    """Return this process' recorder of ISA probes, which hooks torch as the watch does."""
    global _isa_checks  # noqa: PLW0603  (the probe's cache is process-wide too)
    with _isa_lock:
        if _isa_checks is None:
            _isa_checks = IsaChecks()
            when_imported("torch._inductor.cpu_vec_isa", _isa_checks.hook)
        return _isa_checks


PINNED = {"cpp.simdlen": 256, "cpp.march": fingerprint.PORTABLE_MARCH}
"""Inductor's settings for a portable artifact. With the vector width alone the compiler would still
use 512-bit instructions here and there, because it is called with `-march=native`."""


def pin_portable_cpu() -> Sequence[str]:
    """Make Inductor compile for every CPU with AVX2, for as long as this process lives.

    Returns what this CPU lacks for that; then nothing is pinned, because it could not run the
    kernels, and it compiles for itself.

    Raises:
        ConfigError: this is not Linux on x86-64, or a torch that cannot be pinned.
    """
    found = f"{platform.system()} {platform.machine()}"
    if found != "Linux x86_64":
        raise ConfigError(
            f"cpu: portable is for Linux x86_64, and this is {found}",
            hint="leave cpu out: machines with one and the same CPU need no preset",
        )
    lacking = fingerprint.lacking(fingerprint.read_cpu_isa())
    if not lacking:
        when_imported("torch._inductor.config", _pin_settings)
        when_imported("torch._inductor.cpu_vec_isa", _probe_avx2_only)
    return lacking


def _pin_settings(config: ModuleType) -> None:
    for name, value in PINNED.items():
        _force(config, name, value=value)


def _force(config: ModuleType, name: str, *, value: object) -> None:
    """Set what torch takes as set by an environment variable that wins over everything.

    An assignment holds for one context only (since 2.12), and requests have others; the vector
    width has no variable of its own. Both settings are in torch's keys.
    """
    entry: Any = getattr(config, "_config", {}).get(name)
    if not hasattr(entry, "env_value_force"):
        import torch

        raise ConfigError(
            f"torch {torch.__version__} has no setting {name} that can be pinned",
            hint="torch 2.13 has it; with this one leave cpu: portable out",
        )
    entry.env_value_force = value


def _probe_avx2_only(cpu_vec_isa: ModuleType) -> None:
    # Not only for speed: the probe's libraries for wider vectors would be in the artifact, and
    # answers about them in its manifest.
    supported: Callable[[], list[str]] = cpu_vec_isa.x86_isa_checker

    def x86_isa_checker() -> list[str]:
        return [name for name in supported() if name == "avx2"]

    module: Any = cpu_vec_isa
    module.x86_isa_checker = x86_isa_checker
    module.valid_vec_isa_list.cache_clear()


# What the app compiles with -------------------------------------------------------------------


def compile_arguments(owner: Any) -> dict[str, str]:
    """Return the arguments of each `torch.compile` found on `owner`'s attributes, by name.

    Looks at the attributes themselves and at modules compiled in place. A compiled function
    that is kept elsewhere is not seen: its arguments are still in torch's own keys, so the
    artifact misses there, later and without a name.
    """
    found = {}
    for name, value in vars(owner).items():
        # By type: a DeploymentHandle has every attribute that it is asked for.
        if hasattr(type(value), "serve_warm_level3") and value.serve_warm_level3:
            found[name] = value.serve_warm_level3
            continue
        backends = [_described(backend) for backend in _backends_of(value)]
        if backends:
            found[name] = ";".join(dict.fromkeys(backends))
    return found


FOREIGN = {"torch", "ray", "serve_warm"}
"""Packages whose objects and functions are not looked into for what an app has compiled."""

LOOKED_AT = 20_000
"""Objects that `reaches_compiled` looks at, at most; some tens of milliseconds."""


def reaches_compiled(owner: Any) -> bool:
    """Return whether something compiled is found from the user's object. Calls nothing.

    Looks at attributes and what they hold, and at the names of a module that methods use. What is
    imported and not used is not the app's: a router may share its module with a model.
    """
    waiting, seen = [owner], {id(owner)}
    while waiting and len(seen) < LOOKED_AT:
        value = waiting.pop()
        if _is_compiled(value):
            return True
        for below in _held_by(value):
            if id(below) not in seen:
                seen.add(id(below))
                waiting.append(below)
    return False


def _is_compiled(value: Any) -> bool:
    import torch

    # By type: a DeploymentHandle has every attribute that it is asked for.
    if any(hasattr(type(value), f"serve_warm_level{level}") for level in (1, 3)):
        return True
    if isinstance(value, torch.nn.Module):
        return any(_backends_of(module) for module in value.modules())
    return bool(_backends_of(value))


def _held_by(value: Any) -> list[Any]:
    """Return what a value holds or uses, where an app may keep something compiled."""
    plain = (str, bytes, int, float, type, ModuleType)
    if isinstance(value, plain) or _is_foreign(type(value)):
        return []
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return list(value.values() if isinstance(value, Mapping) else value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        return _used_by(value)
    methods = [function for base in type(value).__mro__ for function in vars(base).values()]
    return [*getattr(value, "__dict__", {}).values(), *methods]


def _used_by(function: Any) -> list[Any]:
    """Return what the code of a function names outside of it, and what its closure holds."""
    if _is_foreign(function):
        return []
    used = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    codes = [function.__code__]
    for code in codes:  # it grows: functions inside of functions
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            found = function.__globals__.get(name)
            used.append(found)
            if isinstance(found, ModuleType) and not _is_foreign(found):
                used += [vars(found)[other] for other in code.co_names if other in vars(found)]
    return used


def _is_foreign(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    package = str(module).partition(".")[0]
    return package in FOREIGN or (
        not isinstance(value, type) and package in sys.stdlib_module_names
    )


def _described(backend: Any) -> str:
    config = dict(getattr(backend, "config", {}) or {})
    words = [
        str(getattr(backend, "compiler_name", type(backend).__name__)),
        f"dynamic={getattr(backend, 'dynamic', None)}",
        *(f"{key}={config[key]}" for key in sorted(config)),
    ]
    return ",".join(words)


def how_to_raise_the_limit(limit: int) -> str:
    """Return what user code does in this torch to have `limit` variants of one function."""
    import torch

    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return f"pass torch.compile(..., recompile_limit={limit})"
    # 2.11 has no argument. Its settings are the process', while later ones are each context's.
    return f"set torch._dynamo.config.recompile_limit={limit} before the first call"


def uses_cuda_graphs(owner: Any) -> bool:
    """Whether something compiled on `owner` records CUDA graphs on this machine."""
    import torch

    if not torch.cuda.is_available():
        return False
    values = list(vars(owner).values())  # another thread may set one meanwhile
    backends = [backend for value in values for backend in _backends_of(value)]
    return any((getattr(b, "config", None) or {}).get("triton.cudagraphs") for b in backends)


def _backends_of(value: Any) -> list[Any]:
    """Return the backend objects of a compiled function, or of what is compiled of a module."""
    import torch

    if "torch._dynamo" not in sys.modules:  # which torch.compile imports
        return []
    # By type: a DeploymentHandle has every attribute that it is asked for.
    if isinstance(value, torch.nn.Module):
        whole: Any = getattr(value, "_compiled_call_impl", None) or _region_of(value)
        compiled = [whole] if whole else _methods_of(value) or [value]
    elif inspect.isroutine(value) or hasattr(type(value), "serve_warm_level1"):
        compiled = [value]
    else:
        return []
    return [backend for each in compiled if (backend := _backend_of(each)) is not None]


def _backend_of(compiled: Any) -> Any:
    """Return the backend object that a callable was compiled with; `None` if it was not."""
    from torch._dynamo.eval_frame import innermost_backend

    if hasattr(type(compiled), "serve_warm_level1"):
        compiled = compiled.serve_warm_level1
    context = getattr(compiled, "dynamo_ctx", None)
    callback = getattr(context, "callback", None)
    if callback is None:
        closure = getattr(compiled, "__closure__", None)
        names = getattr(getattr(compiled, "__code__", None), "co_freevars", ())
        if closure and "callback" in names and hasattr(compiled, "_torchdynamo_orig_callable"):
            callback = closure[names.index("callback")].cell_contents
    return innermost_backend(callback) if callback not in (None, False) else None


def _region_of(module: Any) -> Any:
    """Return the call of a block that `serve_warm.compile_regions` compiled inside a module."""
    calls = (vars(block).get("_compiled_call_impl") for block in module.modules())
    return next((call for call in calls if hasattr(type(call), "serve_warm_level1")), None)


def _methods_of(module: Any) -> list[Any]:
    """Return the compiled functions that stand in a module for methods, as in guides for decoders.

    model.forward = torch.compile(model.forward, mode="reduce-overhead")
    """
    if hasattr(module, "dynamo_ctx"):  # torch.compile's own module, whose `forward` is one
        return []
    return [
        value
        for name, value in vars(module).items()
        if hasattr(type(value), "serve_warm_level1")
        # Dynamo's mark is on what it is told to leave alone, too, which has no backend.
        or (
            inspect.isroutine(value)
            and hasattr(type(module), name)
            and hasattr(value, "_torchdynamo_orig_callable")
        )
    ]


def clone_outputs(value: Any) -> Any:
    """Return `value` with every CUDA tensor in it cloned: a graph's next run overwrites them."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.clone() if getattr(leaf, "is_cuda", False) else leaf, value)


def versions() -> dict[str, str]:
    """Return the versions that a report names."""
    import torch

    return {"torch": torch.__version__, "threads": str(torch.get_num_threads())}


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of the children it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def private_directory(base: Path | None = None) -> Path:
    """Return a new, empty directory of mode 0700 for this process' caches.

    It goes with the process (`_private_folders.process_folder`). `base` is
    `_private_folders.private_base()` unless it is given. Where that is not safe from other users,
    neither is the new directory, and nothing of an artifact may be put into it.
    """
    cache = _private_folders.process_folder(base) / "cache"
    cache.mkdir(mode=0o700)
    return cache
