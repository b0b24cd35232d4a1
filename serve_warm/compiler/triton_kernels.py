# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels, Inductor's and hand-written ones: what is built and what is tuned.

A kernel that is built leaves a binary in Triton's cache directory, whichever process built it:
Inductor has its kernels built by worker processes, whose work no hook in this one sees. So binaries
are counted where they lie.

A tuning measures alternatives against one another, in this process or on its behalf: the
configurations of a kernel at its first launch, or the templates of a matrix product while it is
compiled (`max-autotune`). What it finds is cached as a file too: by Inductor always, and by Triton
since 3.3 if it is told to, which is done here. So all of it travels with the cache directory.
Torch's own counters of tunings count those of the build once more where a graph comes out of a
cache (`counter_deltas`), and so say nothing of a start.

Private names, seen in torch 2.11, 2.13 and 2.15 with Triton 3.6: `CachingAutotuner` of Inductor
with `bench`, what is in `TUNINGS` and `recheck_autotune_cache`, and `AutotuneCache` with `_read`;
`AlgorithmSelectorCache.autotune`; `AsyncAutotuner` with `get_results` and `get_choice_hash`; and
Triton's `Autotuner` with `cache_results` and `check_disk_cache`.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/runtime/triton_heuristics.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/select_algorithm.py
https://github.com/triton-lang/triton/blob/v3.6.0/python/triton/runtime/autotuner.py
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from serve_warm.compiler.background_import import when_imported
from serve_warm.errors import ArtifactRefused
from serve_warm.report import CompileEvent

BINARY_SUFFIXES = (".cubin", ".hsaco", ".spv", ".metallib")
"""What a kernel is built into, by vendor."""


TUNINGS = ("autotune_to_one_config", "_combo_sequential_autotune", "coordinate_descent_tuning")
"""Methods of an autotuner that may measure its kernel; 2.11 has not the second."""


def observe(note: Callable[[CompileEvent], None]) -> None:
    """Call `note` with each tuning from now on, and have what it finds kept, and found again.

    Once per process.
    """
    when_imported(
        "torch._inductor.runtime.triton_heuristics", functools.partial(_hook_inductor, note)
    )
    when_imported("torch._inductor.select_algorithm", functools.partial(_hook_templates, note))
    when_imported("torch._inductor.autotune_process", functools.partial(_hook_pipelined, note))
    when_imported("triton.runtime.autotuner", functools.partial(_hook_triton, note))


class _OfThisThread(threading.local):
    """How many times this thread has measured a kernel."""

    measured = 0


def _hook_inductor(note: Callable[[CompileEvent], None], heuristics: ModuleType) -> None:
    tuner: Any = heuristics.CachingAutotuner
    own, bench, recheck = _OfThisThread(), tuner.bench, tuner.recheck_autotune_cache

    @functools.wraps(bench)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        own.measured += 1
        return bench(self, *args, **kwargs)

    @functools.wraps(recheck)
    def recheck_here(self: Any, reload_kernel_from_src: Callable[[], Any]) -> None:
        _look_here(self)
        configs = [result.config for result in self.compile_results]
        recheck(self, reload_kernel_from_src)
        if self.inductor_meta.get("coordinate_descent_tuning"):
            found, *_ = heuristics.check_autotune_cache(configs, self.filename, self.inductor_meta)
            _keep_descended(self, found, reload_kernel_from_src)
        else:
            _keep_measured(self, heuristics, reload_kernel_from_src)

    tuner.bench, tuner.recheck_autotune_cache = counted, recheck_here
    for name in TUNINGS:
        if hasattr(tuner, name):
            setattr(tuner, name, _time_tuning(note, getattr(tuner, name), name, own))


def _time_tuning(
    note: Callable[[CompileEvent], None], tune: Any, how: str, own: _OfThisThread
) -> Callable[..., Any]:
    @functools.wraps(tune)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, start = own.measured, time.perf_counter()
        found = tune(self, *args, **kwargs)
        # Kernels of templates are asked at each launch, and have nothing to measure.
        if own.measured > before:
            words = f"{own.measured - before} configurations, {how}"
            note(_tuning(self.fn.__name__, words, time.perf_counter() - start))
        return found

    return timed


def _look_here(tuner: Any) -> None:
    """Point a tuner that a cached graph brought at this process' cache directory.

    What it found lies beside its kernel's source, by the path that this had where it was built.
    """
    tuner.filename = _here(tuner.filename)
    keeper = getattr(tuner.save_cache_hook, "__self__", None)
    if keeper is not None and keeper.local_cache:
        backend, path = keeper.local_cache
        keeper.local_cache = (backend, _here(path))


def _here(path: str | None) -> str | None:
    if path is None:
        return None
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    # As `codecache.get_path` lays them out: a folder by two letters of the name, and the file.
    there = Path(path)
    return str(Path(cache_dir(), there.parent.name, there.name))


def _keep_descended(tuner: Any, found: Sequence[Any], reload_kernel: Callable[[], Any]) -> None:
    """Have what a coordinate descent found used, where torch would descend once more.

    2.11 forgets it when it began at the only configuration, and when it ended where it began.
    https://github.com/pytorch/pytorch/issues/172819
    """
    if len(found) != 1 or not getattr(found[0], "found_by_coordesc", False):
        return
    [best] = found
    built = [result for result in tuner.compile_results if str(result.config) == str(best)]
    if not built:
        if tuner.fn.fn is None:
            tuner.fn = reload_kernel().fn
        built = [tuner._precompile_config(best)]
    built[0].config.found_by_coordesc = True
    tuner.compile_results = built[:1]


def _keep_measured(tuner: Any, heuristics: ModuleType, reload_kernel: Callable[[], Any]) -> None:
    """Have the configuration used that was measured as the best, where torch would measure again.

    A reduction that takes many registers gets another configuration once it is built, with a half
    of its block (`_dynamic_scale_rblock`). A graph is saved before that. 2.11 does not find such a
    best one again, and makes a half of any other one, which it measures against it; 2.13 does not.
    """
    kept = heuristics.AutotuneCache.create(tuner.inductor_meta, tuner.filename, "")
    best = kept._read() if kept is not None else None
    if not best:
        return
    built = [result for result in tuner.compile_results if _is_of(result.config, best)]
    if not built:
        blocks = {name: value for name, value in best.items() if name not in BESIDE_BLOCKS}
        beside = {name: best[name] for name in ("num_warps", "num_stages")}
        config = heuristics.Config(blocks, **beside)
        if tuner.fn.fn is None:
            tuner.fn = reload_kernel().fn
        built = [tuner._precompile_config(config)]
    tuner.compile_results = built[:1]
    tuner.inductor_meta = {**tuner.inductor_meta, "dynamic_scale_rblock": False}


def _is_of(config: Any, kept: Mapping[str, Any]) -> bool:
    sizes = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return all(kept.get(name) == value for name, value in sizes.items())


BESIDE_BLOCKS = {
    *("configs_hash", "time_taken_ms", "triton_cache_hash", "extra_options", "found_by_coordesc"),
    *("num_warps", "num_stages", "num_consumer_groups", "num_buffers_warp_spec"),
}
"""What torch keeps of a best configuration beside the sizes of its blocks (2.11 to 2.13)."""


def _hook_templates(note: Callable[[CompileEvent], None], select_algorithm: ModuleType) -> None:
    selector: Any = select_algorithm.AlgorithmSelectorCache
    original = selector.autotune

    @functools.wraps(original)
    def autotune(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        timings = original(self, name, *args, **kwargs)
        note(_tuning(name, f"{len(timings)} templates", time.perf_counter() - start))
        return timings

    selector.autotune = autotune


def _hook_pipelined(note: Callable[[CompileEvent], None], autotune_process: ModuleType) -> None:
    # With `pipeline_max_autotune_gemm` templates are measured by another process, and waited for.
    tuner: Any = autotune_process.AsyncAutotuner
    original = tuner.get_results
    known: set[str] = set()

    def get_results(choices: Any, inputs_key: str) -> Any:
        start = time.perf_counter()
        timings = original(choices, inputs_key)
        measured = {tuner.get_choice_hash(choice, inputs_key) for choice in choices}
        if not measured <= known:
            known.update(measured)
            words = f"{len(choices)} templates, in another process"
            note(_tuning("template", words, time.perf_counter() - start))
        return timings

    tuner.get_results = staticmethod(get_results)


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


def relocate(cache_directory: Path) -> None:
    """Make Triton find the kernels of a cache directory that was filled at another path.

    For each kernel Triton lists its files by the paths that they had where it was built. Where
    these are gone it builds the kernel once more, into the place where it is already.
    https://github.com/triton-lang/triton/blob/v3.6.0/python/triton/runtime/cache.py

    Raises:
        ArtifactRefused: `bad_archive`: something under the name of such a list is none.
        OSError: a list cannot be written.
    """
    for group in (cache_directory / "triton").glob("*/__grp__*.json"):
        try:
            names = json.loads(group.read_bytes())["child_paths"].keys()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ArtifactRefused(
                f"{group.parent.name}/{group.name} does not list a kernel's files",
                reason="bad_archive",
                hint="build the artifact again; no Triton is known that writes such a file",
            ) from error
        listed = {"child_paths": {name: str(group.parent / name) for name in names}}
        # Under its own name only when it is whole, and never through a link to something kept.
        new = group.with_suffix(".moved")
        new.write_text(json.dumps(listed))
        new.replace(group)


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
