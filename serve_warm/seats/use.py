# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A replica's start on a seat: the settings to apply first, and whether the seat was used.

A seat is a Ray worker that imports modules in advance (`serve_warm.preload`). During these imports,
some settings are not known yet, such as the number of threads that Ray sets for a replica. `take`
applies these settings, so that the start is like a start without a seat. If a setting can no longer
be applied, the report says why the seat was not used. OpenBLAS's thread count is an exception: if
it cannot be applied, the seat is still used, and the report has a note. This module is needed only
after the imports of a seat.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from serve_warm import node
from serve_warm.private_apis.module_names import ACTOR_THREAD, SETUP_HOOK_VARIABLE
from serve_warm.seats.preload import (
    HOOK,
    OMP,
    EarlyImports,
    early_imports,
    has_hook,
    torch_modes,
    torch_threads,
)
from serve_warm.seats.records import SeatUse, file_digest

SET_BY_RAY = frozenset({OMP, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
"""Variables that Ray sets when a worker becomes a replica (Ray 2.60, `set_omp_num_threads_if_unset`
and `set_visible_accelerator_ids` in ray/_private/utils.py). CUDA reads CUDA_VISIBLE_DEVICES only
when CUDA is initialized."""

READ_AT_IMPORT = (
    *("TORCH", "PYTORCH", "ATEN_", "OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_"),
    *("OPENBLAS_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "TRITON_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DIFFUSERS_", "SAFETENSORS_"),
)
"""Prefixes of environment variables that torch, its libraries, and the libraries of Hugging Face
read when they are imported."""

READ_AT_USE = frozenset({"HF_TOKEN", "HF_OIDC_RESOURCE"})
"""Variables with such a prefix that huggingface_hub reads whenever it needs a token (2.4)."""

_ENTERED = contextlib.ExitStack()
"""Holds torch modes for as long as the process lives. A mode ends when nothing refers to it."""


def take(environ: Mapping[str, str]) -> SeatUse:
    """Apply the settings that were unknown during the imports; return how the seat was used.

    Call this once, on the thread that serves, before anything else uses torch.
    """
    early = early_imports()
    if early is None:
        return SeatUse(miss="none" if has_hook() else "no_hook", note=_NOTES[has_hook()])
    if early.seat is not None and early.folder is not None:
        early.folder.remove(early.seat)
    use = SeatUse(
        import_s=early.import_s,
        waited_s=max(0.0, node.boot_s() - early.ended_boot_s) if early.ended_boot_s else 0.0,
        memory_bytes=early.memory_bytes,
    )
    _set_modes(early)
    threads = _set_threads(early, environ)
    if early.state in ("failed", "hung", "cuda"):
        return replace(use, miss=early.state, note=early.note)
    if threads:
        return replace(use, miss="threads", note=threads)
    changed = _changed(early.environ, environ)
    if changed:
        names = ", ".join(changed)
        note = (
            f"environment variables changed after the imports of the seat: {names}. List the "
            "module that sets them first in warmup.seats.imports, or set them in the runtime_env"
        )
        return replace(use, miss="environment", note=note)
    slow = early.slow_threads
    notes = [f"number of threads that still have a low priority: {slow}"] if slow else []
    if early.omp_threads != environ.get(OMP) and "openblas" in Path("/proc/self/maps").read_text():
        notes.append(f"OpenBLAS keeps the thread count from {OMP}={early.omp_threads or ''}")
    return replace(use, hit=True, note="; ".join(notes))


_NOTES = {
    True: "no seat was free",
    False: f"the runtime_env does not have {SETUP_HOOK_VARIABLE}: {HOOK}",
}


def is_on_wrong_gpu(environ: Mapping[str, str]) -> bool:
    """Return whether this process initialized CUDA before Ray gave it different GPUs."""
    early = early_imports()
    return (
        early is not None
        and early.has_cuda
        and early.visible != environ.get("CUDA_VISIBLE_DEVICES")
    )


def find_missing(imports: Sequence[str]) -> list[str]:
    """Return the modules that this deployment wants in a seat, but that this seat had not loaded.

    Deployments with the same runtime_env share their seats.
    """
    early = early_imports()
    return [] if early is None else [name for name in imports if name not in early.loaded]


def find_stale_code() -> str:
    """Return why the app's code here is not what a start without a seat would import, or ""."""
    early = early_imports()
    files = {} if early is None else early.files
    for file, digest in files.items():
        if file_digest(file) != digest:
            return f"{file} changed after this seat had imported it"
    # A seat outlives the job of its replica, and the next job may have another folder.
    for name, module in tuple(sys.modules.items()):
        path = str(getattr(module, "__file__", None))
        # A module can also have other names, which no finder knows.
        own_name = getattr(getattr(module, "__spec__", None), "name", name)
        if path in files and name == own_name and (place := _other_place(name, path)):
            return f"this seat imported {path}, but a replica imports {place}"
    return ""


def _other_place(name: str, file: str) -> str:
    """Return the file that an import of this module would load now, if not `file`, else "".

    Returns "" if the module is not found, because the app may add its folder in `__init__`.
    """
    spec, path = None, None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), path)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
    place = "" if spec is None or not spec.has_location else str(spec.origin)
    return "" if not place or Path(place).resolve() == Path(file).resolve() else place


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module again. `importlib.util.find_spec` returns the spec of the imported module."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)  # some have none
    specs = (find(name, path) for find in finders if find is not None)
    return next((spec for spec in specs if spec is not None), None)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(
        name
        for name in before.keys() | after.keys()
        if name.startswith(READ_AT_IMPORT)
        and name not in SET_BY_RAY | READ_AT_USE
        and before.get(name) != after.get(name)
    )


def _set_threads(early: EarlyImports, environ: Mapping[str, str]) -> str:
    """Set torch's thread count as in a start without a seat; return why this failed, or "".

    `torch.set_num_threads` also sets the threads of OpenMP and MKL. torch's inter-op pool does not
    depend on OMP_NUM_THREADS (torch 2.11 to 2.13, `torch.__config__.parallel_info()`).
    """
    now = environ.get(OMP)
    if early.threads is None or now == early.omp_threads:
        return ""
    if torch_threads() != early.threads[1]:
        return ""  # something set it later, on purpose
    torch: Any = sys.modules["torch"]
    if environ.get("MKL_NUM_THREADS") and torch.backends.mkl.is_available():
        return ""  # torch asks MKL, which prefers this variable (ParallelOpenMP.cpp, 2.11 to 2.13)
    if early.threads[0] != early.threads[1]:
        return f"an import changed torch's thread count, and {OMP} was set to {now} later"
    first = (now or "").partition(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return f"{OMP} is {now!r}, not a number of threads"
    torch.set_num_threads(min(int(first), _physical_cores()))
    return ""


def _physical_cores() -> int:
    """Return the number of usable physical cores. MKL limits torch's threads to this number."""
    usable = os.sched_getaffinity(0)
    cores = set()
    for cpu in usable:
        try:
            path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            cores.add(path.read_text().strip())
        except OSError:
            return len(usable)
    return len(cores)


def _set_modes(early: EarlyImports) -> None:
    """Set the torch modes that this thread would have in a start without a seat."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not early.modes:
        return
    wanted, now = early.modes, torch_modes()
    if wanted["denormals"] != now["denormals"]:
        torch.set_flush_denormal(not wanted["denormals"])  # threads inherit this mode
    if threading.current_thread().name != ACTOR_THREAD:
        return  # a plain start imports on Ray's thread
    if wanted["inference"] != now["inference"]:
        _ENTERED.enter_context(torch.inference_mode(wanted["inference"]))
    torch.set_grad_enabled(wanted["grad"])
    if wanted["device"] != now["device"]:
        torch.set_default_device(wanted["device"])
    for name, is_enabled, dtype in wanted["autocast"]:
        torch.set_autocast_enabled(name, is_enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(wanted["autocast_cache"])
