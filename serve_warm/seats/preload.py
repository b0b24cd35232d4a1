# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Seats: Ray workers that finish their imports before they are needed as replicas.

A serving replica asks Ray for workers with the replica's own runtime_env (`keeper`), and
leaves a ticket for each worker in a folder on this node. Ray calls `run` in each worker as the
setup hook. A worker that finds a ticket imports the modules on the ticket and waits. A worker that
finds no ticket imports nothing, so seats do not slow down other starts. When Ray turns the worker
into a replica, `take` applies the settings that were unknown during the imports, and reports
whether the seat was used.

If an import raises, the hook records the exception, and the replica's start imports the module
again. If an import hangs, the hook ends the process, because no other thread could import the
module. The hook uses no GPU, because Ray chooses the GPU later. This module imports only the
standard library.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from typing import Any, Literal

from serve_warm import node
from serve_warm._after_import import AfterImport
from serve_warm._records import record
from serve_warm._redaction import excerpt
from serve_warm.errors import ServeWarmError
from serve_warm.private_apis import cpython
from serve_warm.private_apis.module_names import SETUP_HOOK_VARIABLE
from serve_warm.seats.records import (
    Seat,
    SeatFolder,
    State,
    TicketSearch,
    app_files,
    has_cuda,
    is_named_idle,
    lower_priority,
    resident_bytes,
    restore_priority,
    start_ticks,
)

logger = logging.getLogger(__name__)

HOOK = "serve_warm.preload.run"

NOT_OF_THE_APP = frozenset({"torch", "ray", "serve_warm"})
"""Top-level packages that a ticket can name, but that do not count as packages of the app."""

FILES_LIMIT_S = 5.0
"""Time limit in seconds for finding and reading a ticket, and for writing a seat's file, because
the disk may hang."""

OMP = "OMP_NUM_THREADS"


@record(frozen=True, kw_only=True)
class EarlyImports:
    """The result of the imports before this process became a replica."""

    state: State
    note: str = ""
    loaded: frozenset[str] = frozenset()
    """Names of all modules in the process."""
    seat: Seat | None = None
    """The state in the seat's file. None without a ticket."""
    folder: SeatFolder | None = None
    import_s: float = 0.0
    ended_boot_s: float = 0.0
    """Time at which the imports ended, in seconds since boot; 0 if they did not end."""
    memory_bytes: int = 0
    omp_threads: str | None = None
    """OMP_NUM_THREADS during the imports."""
    threads: tuple[int, int] | None = None
    """torch's number of threads, right after torch's import and after all imports. None without
    torch."""
    has_cuda: bool = False
    """Whether an import has initialized CUDA."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES at the end of the imports."""
    environ: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Any] = field(default_factory=dict)
    """The result of `torch_modes` in the importing thread. Empty without torch."""
    slow_threads: int = 0
    """Number of threads that an import started and that still have the import's low priority."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Source files of the app's packages that the ticket names, each with its digest."""


@record(kw_only=True)
class _Run:
    """Unfinished imports. The importing thread and the waiting thread share this object."""

    limit_s: float = 0.0
    """Time limit in seconds for the imports, as given by the ticket."""
    own: frozenset[str] = frozenset()
    """Top-level packages of the app that the ticket names."""
    seat: Seat | None = None
    folder: SeatFolder | None = None
    so_far: EarlyImports = field(default_factory=lambda: EarlyImports(state="importing"))
    """The result after the latest finished import."""
    is_through: bool = False
    """Whether the last import has ended."""
    is_given_up: bool = False
    """Whether the hook returned before the seat's file was written."""


_early: EarlyImports | None = None
"""Set when the imports end or the hook gives up. The result of a ticket does not change any more.
"""
_ran = threading.Event()
"""Set when Ray has called the hook in this process."""
_folder: SeatFolder | None = None
"""The folder of seats, found before an import can change `TMPDIR`."""


def hook_environment() -> dict[str, str]:
    """Return the `env_vars` that a runtime_env must have so that its workers can be seats.

    >>> hook_environment()
    {'__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR': 'serve_warm.preload.run'}
    """
    return {SETUP_HOOK_VARIABLE: HOOK}


def run() -> None:
    """Import the modules on a ticket for this worker. Ray calls this function as a setup hook.

    Without a ticket, this function returns at once. If the imports take longer than the ticket's
    limit, the process ends. Reading the ticket has the limit `FILES_LIMIT_S`. Raises nothing.
    """
    _ran.set()
    search, current = TicketSearch(), _Run()
    worker = threading.Thread(
        target=_import_for_ticket, args=(search, current), name="serve_warm-preload", daemon=True
    )
    worker.start()
    search.is_over.wait(FILES_LIMIT_S)
    if search.decide("late"):
        _fail("hung", f"looking for a ticket took more than {FILES_LIMIT_S:.0f} s")
        return
    worker.join(current.limit_s)
    if worker.is_alive() and current.seat is not None:
        if not current.is_through:
            _end_hung(current)
        worker.join(FILES_LIMIT_S)  # it only has to write its file
        if worker.is_alive() and _early is None:
            _fail("hung", f"recording the imports took more than {FILES_LIMIT_S:.0f} s", current)


def import_now(*names: str) -> None:
    """Import modules in this process before the process becomes a replica. Raises nothing.

    Call this function in one of your modules, and name that module in the environment variable
    `RAY_preload_python_modules` of `ray start`. Every worker on the node is then a seat:

        from serve_warm import preload

        preload.import_now("transformers", "torch")
    """
    worker = threading.Thread(
        target=lambda: _settle(_import(_Run(), names)), name="serve_warm-preload", daemon=True
    )
    worker.start()
    worker.join()


def _settle(early: EarlyImports) -> None:
    global _early  # noqa: PLW0603 - one process, one result
    if _early is not None and _early.seat is not None:
        return
    if _early is None:
        _early = early
    elif early.loaded or early.seat is not None:  # otherwise there was only a search for a ticket
        _early = _merge(_early, early)


def _merge(first: EarlyImports, last: EarlyImports) -> EarlyImports:
    """Return the result of two imports in a row: calls of `import_now`, and perhaps a ticket's."""
    worst = last if first.state == "waiting" else first
    return replace(
        last,
        state=worst.state,
        note=worst.note,
        loaded=last.loaded or first.loaded,
        import_s=first.import_s + last.import_s,
        omp_threads=last.omp_threads if first.threads is None else first.omp_threads,
        threads=((first.threads or last.threads)[0], last.threads[1])
        if last.threads
        else first.threads,
        has_cuda=first.has_cuda or last.has_cuda,
        modes=last.modes or first.modes,
        slow_threads=first.slow_threads + last.slow_threads,
    )


def _fail(state: Literal["failed", "hung"], note: str, current: _Run | None = None) -> None:
    logger.warning("seat: %s", note)
    if current is None or current.seat is None:
        _settle(EarlyImports(state=state, note=note))
    else:
        current.is_given_up = True
        _settle(_record_end(current, state, note))


def _record_end(current: _Run, state: State, note: str) -> EarlyImports:
    """Return the result of imports that did not succeed, and write it to the seat's file."""
    early = replace(
        current.so_far,
        state=state,
        note=note,
        folder=current.folder,
        memory_bytes=resident_bytes(),
        has_cuda=has_cuda(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    early = replace(early, seat=_file_of(current, early))
    # The disk may hang. The keeper gives up a seat without news.
    writer = threading.Thread(target=_write_file, args=(early,), daemon=True)
    writer.start()
    writer.join(FILES_LIMIT_S)
    return early


def _write_file(early: EarlyImports) -> None:
    if early.folder is not None and early.seat is not None:
        with suppress(OSError):
            early.folder.write(early.seat)


def _import_for_ticket(search: TicketSearch, current: _Run) -> None:
    global _folder  # noqa: PLW0603 - one process, one folder
    try:
        folder = _folder = SeatFolder.of_worker(sys.argv)
        found = folder.claim() if folder is not None else None
        if folder is None or found is None:
            return
        ticket, wanted = found
        current.limit_s = wanted.limit_s
        current.own = frozenset(name.partition(".")[0] for name in wanted.imports) - NOT_OF_THE_APP
        current.folder = folder
        current.seat = Seat(
            pid=os.getpid(),
            start_ticks=start_ticks("self"),
            state="importing",
            deployment=wanted.deployment,
            ticket=ticket,
            is_named_idle=is_named_idle("self"),
            offered_boot_s=wanted.offered_boot_s,
            began_boot_s=node.boot_s(),
        )
        folder.write(current.seat)
        if not search.decide("ticket"):  # this process may be a replica by now
            folder.remove(current.seat)
            return
        with _unless_set(OMP, wanted.omp_threads), _paths(wanted.paths):
            early = _import(current, wanted.imports)
        _settle(early)
        _write_file(early)
        if current.is_given_up and early.seat is not None:  # this process may be a replica by now
            folder.remove(early.seat)
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError, ServeWarmError) as error:
        _fail("failed", f"no early imports: {type(error).__name__}: {error}", current)
    finally:
        search.decide("none")


def _import(current: _Run, names: Sequence[str]) -> EarlyImports:
    """Import modules in order, at a low priority, and return the result."""
    began_s = time.perf_counter()
    before = lower_priority()
    # When its import is complete, but before the importing module continues.
    AfterImport(["torch"]).make("torch", lambda _: _note_threads(current))
    current.so_far = replace(current.so_far, omp_threads=os.environ.get(OMP))
    # is_available() would initialize CUDA before Ray has chosen a GPU. With this variable it asks
    # NVML instead (torch 2.11 to 2.13, torch/cuda/__init__.py).
    with _unless_set("PYTORCH_NVML_BASED_CUDA_CHECK", "1"), _without_garbage_collection():
        raised = []
        for name in names:
            raised.append(_import_one(name))
            current.so_far = _describe(current)  # after each one, because the next may hang
    current.is_through = True
    # Serve does both before a replica is RUNNING. With torch in memory that takes 0.2 s.
    gc.collect()
    gc.freeze()
    slow_threads = restore_priority(before)
    described = _describe(current)
    state, note = _judge([each for each in raised if each], has_cuda=described.has_cuda)
    early = replace(
        described,
        state=state,
        note=note,
        folder=current.folder,
        import_s=time.perf_counter() - began_s,
        ended_boot_s=node.boot_s(),
        memory_bytes=resident_bytes(),
        slow_threads=slow_threads,
    )
    return replace(early, seat=_file_of(current, early))


def _note_threads(current: _Run) -> None:
    current.so_far = replace(current.so_far, threads=(torch_threads(),) * 2)


def _describe(current: _Run) -> EarlyImports:
    """Return what the imports so far have loaded, and the settings that they read or changed."""
    last = torch_threads() if "torch" in sys.modules else None
    return EarlyImports(
        state="importing",
        loaded=frozenset(sys.modules),
        omp_threads=current.so_far.omp_threads,
        threads=None if last is None else ((current.so_far.threads or (last,))[0], last),
        has_cuda=has_cuda(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        environ=dict(os.environ),
        modes={} if last is None else torch_modes(),
        files=app_files(current.own, current.so_far.files),
    )


def _import_one(name: str) -> str:
    """Import one module. Return a description of the exception if one is raised, else ""."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - an app's module may do anything, even sys.exit()
        text = f"importing {name} raised {type(error).__name__}: {error}"
        logger.warning("seat: %s", text)
        return text
    return ""


def _judge(raised: Sequence[str], *, has_cuda: bool) -> tuple[State, str]:
    """Return the state of a seat after its imports, and the reason if the seat cannot be used."""
    if raised:
        return "failed", raised[-1]
    if has_cuda:
        return "cuda", "an import initialized CUDA before Ray chose a GPU"
    return "waiting", ""


def _file_of(current: _Run, early: EarlyImports) -> Seat | None:
    return current.seat and replace(
        current.seat,
        state=early.state,
        note=excerpt(early.note, 500),
        # An import may have set the name of the process.
        is_named_idle=is_named_idle("self"),
        import_s=early.import_s,
        memory_bytes=early.memory_bytes,
    )


def torch_threads() -> int:
    """Return the number of threads that torch uses in an operation. torch must be imported."""
    torch: Any = sys.modules["torch"]
    return int(torch.get_num_threads())


def torch_modes() -> dict[str, Any]:
    """Return the per-thread torch modes that an import can set. torch must be imported."""
    torch: Any = sys.modules["torch"]
    return {
        "denormals": sys.float_info.min / 2 != 0.0,  # torch.set_flush_denormal
        "inference": torch.is_inference_mode_enabled(),
        "grad": torch.is_grad_enabled(),
        "device": str(torch.get_default_device()),
        "autocast": [
            (each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each))
            for each in ("cpu", "cuda")
        ],
        "autocast_cache": torch.is_autocast_cache_enabled(),
    }


def _end_hung(current: _Run) -> None:
    """Record that the imports take too long, and end the process.

    No replica runs in this worker yet. If a replica was about to run here, Serve starts another
    worker. Another thread could not import the module: it would wait for the thread that hangs.
    """
    unfinished = [
        name for name, module in list(sys.modules.items()) if cpython.is_importing(module)
    ]
    names = ", ".join(unfinished[:8]) or "a module"
    note = f"importing {names} took more than {current.limit_s:.0f} s; the worker ended"
    logger.warning("seat: %s", note)
    _record_end(current, "hung", note)
    cpython.end_process(1)


@contextmanager
def _unless_set(name: str, value: str | None) -> Iterator[None]:
    """If a variable is not set, set it until the block ends."""
    if value is None or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        if os.environ.get(name) == value:
            del os.environ[name]


@contextmanager
def _paths(paths: Sequence[str]) -> Iterator[None]:
    """Add the replica's folders to `sys.path` until the block ends.

    Later, Ray adds the driver's folders, in the same order as in a start without a seat.
    """
    here = [path for path in paths if path not in sys.path]
    sys.path[:0] = here
    try:
        yield
    finally:
        for path in here:
            with suppress(ValueError):  # an import has removed it
                sys.path.remove(path)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection until the block ends.

    Full collections visit all objects of earlier imports. Such collections took a third of the CPU
    time of importing torch, transformers and Ray Serve. This function sets the threshold to 0. It
    does not call `gc.disable()`, because then a `gc.disable()` call by the app would go unnoticed.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)  # an app may have set its own


def has_hook() -> bool:
    """Return whether Ray has called `run` in this process."""
    return _ran.is_set()


def seat_folder() -> SeatFolder | None:
    """Return the folder that the hook found for this worker; None without the hook."""
    return _folder


def early_imports() -> EarlyImports | None:
    """Return the imports that ran before this process became a replica; None if none ran."""
    return _early
