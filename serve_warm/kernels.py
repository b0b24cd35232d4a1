# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels, Inductor's and hand-written ones: what is built and what is tuned.

A kernel that is built leaves a binary in Triton's cache directory, whichever process built it:
Inductor has its kernels built by worker processes, whose work no hook in this one sees. So binaries
are counted where they lie. A tuning runs a kernel once for each of its configurations, in this
process, and what it finds is cached as a file too: by Inductor always, and by Triton since 3.3 if
it is told to, which is done here. So both travel with the cache directory.

Private names, seen in torch 2.11 and 2.13 with Triton 3.6: `CachingAutotuner` of Inductor with
`autotune_to_one_config`, `coordinate_descent_tuning` and `recheck_autotune_cache`, torch's counter
`select_algorithm_autotune`, and Triton's `Autotuner` with `cache_results` and `check_disk_cache`.
https://github.com/triton-lang/triton/blob/v3.6.0/python/triton/runtime/autotuner.py
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from serve_warm.importing import when_imported
from serve_warm.report import CompileEvent

BINARY_SUFFIXES = (".cubin", ".hsaco", ".spv", ".metallib")
"""What a kernel is built into, by vendor."""


def observe(note: Callable[[CompileEvent], None]) -> None:
    """Call `note` with each tuning from now on, and have Triton keep what it finds.

    Once per process.
    """
    when_imported(
        "torch._inductor.runtime.triton_heuristics", functools.partial(_hook_inductor, note)
    )
    when_imported("triton.runtime.autotuner", functools.partial(_hook_triton, note))


def _hook_inductor(note: Callable[[CompileEvent], None], heuristics: ModuleType) -> None:
    tuner: Any = heuristics.CachingAutotuner
    for name in ("autotune_to_one_config", "coordinate_descent_tuning"):
        setattr(tuner, name, _timed(note, getattr(tuner, name), name))
    if hasattr(tuner, "recheck_autotune_cache"):
        tuner.recheck_autotune_cache = _looking_here(tuner.recheck_autotune_cache)


def _looking_here(recheck: Any) -> Callable[..., Any]:
    """Have a kernel that was built elsewhere find its tuning in the cache directory of here.

    It was pickled with the path of its source, beside which torch looks: in the directory of the
    build. Seen in 2.11 to 2.13; each kernel of several configurations was tuned at each start.
    """

    @functools.wraps(recheck)
    def rechecked(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        if self.filename:
            self.filename = str(Path(cache_dir(), *Path(self.filename).parts[-2:]))
        return recheck(self, *args, **kwargs)

    return rechecked


def _timed(note: Callable[[CompileEvent], None], tune: Any, how: str) -> Callable[..., Any]:
    @functools.wraps(tune)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = tune(self, *args, **kwargs)
        note(_tuning(self.fn.__name__, how, time.perf_counter() - start))
        return found

    return timed


def _hook_triton(note: Callable[[CompileEvent], None], autotuner: ModuleType) -> None:
    tuner: Any = autotuner.Autotuner
    check = getattr(tuner, "check_disk_cache", None)
    if check is None:
        return  # Triton before 3.3 keeps no tunings

    def check_disk_cache(self: Any, key: Any, configs: Any, bench: Callable[[], None]) -> Any:
        def timed() -> None:
            start = time.perf_counter()
            bench()
            words = f"{len(configs)} configurations for {key}"
            note(_tuning(self.base_fn.__name__, words, time.perf_counter() - start))

        return check(self, key, configs, timed)

    tuner.check_disk_cache = check_disk_cache
    if hasattr(autotuner, "knobs"):
        tuner.cache_results = _Kept(autotuner.knobs)


class _Kept:
    """Stands for `cache_results` of every `Autotuner`: whatever it was told, tunings are kept.

    Of the class, because most instances are made before anything of ours runs, when the module
    with their kernels is imported. Triton's interpreter has no device to tune for.
    """

    def __init__(self, knobs: Any) -> None:
        self._knobs = knobs

    def __get__(self, tuner: Any, owner: type) -> bool:
        return not self._knobs.runtime.interpret

    def __set__(self, tuner: Any, told: object) -> None: ...


def _tuning(kernel: str, words: str, seconds: float) -> CompileEvent:
    return CompileEvent(
        kind="tuning",
        function=kernel,
        signature="",
        reason=words,
        seconds=seconds,
        thread=threading.get_native_id(),
        at_unix=time.time(),
    )


def algorithms_tuned() -> int:
    """Return how often torch has measured templates against one another (`max-autotune`)."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["inductor"]["select_algorithm_autotune"]) if counters is not None else 0


class Built:
    """Counts the kernels that were built into a cache directory since it was first looked at.

    The directory may be exchanged: what was counted stays counted.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._before = 0
        self._at_first = 0
        self._seen_ns = -1
        self._there = 0

    def look_at(self, folder: Path) -> None:
        """Count what comes into `folder` from now on; what lies there was not built here."""
        self._before = self.count()
        self._folder, self._seen_ns = folder, -1
        self._at_first = 0
        self._at_first = self.count() - self._before

    def count(self) -> int:
        """Return the kernels built so far. One `stat` where nothing has come since."""
        if self._folder is None:
            return self._before
        try:
            # Each kernel has a folder of its own here.
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return self._before
        if changed_ns != self._seen_ns:
            self._there = sum(file.suffix in BINARY_SUFFIXES for file in self._folder.glob("*/*"))
            # What was renamed into a folder a moment ago is counted at the next look, too.
            self._seen_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else -1
        return self._before + self._there - self._at_first


SETTLED_NS = 2_000_000_000
"""A folder that changed less than this ago may have a kernel in it that is being written."""
