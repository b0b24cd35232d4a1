# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts of built and autotuned Triton kernels: Inductor's kernels and hand-written kernels.

Each built kernel leaves a binary in Triton's cache directory, no matter which process built it.
Inductor builds kernels in worker processes, where this process's hooks do not run. So serve_warm
counts the binaries on disk.

Autotuning measures how fast several alternatives are, in this process or in a helper process. At a
kernel's first launch, torch measures the kernel's configurations. With `max-autotune`, torch also
measures the templates of a matrix product during the compile. Autotuning results are stored in
files too. Inductor always stores its results. Triton 3.3 and later store their results only if a
setting is on; this module turns on that setting. So the cache directory contains Inductor's and
Triton's results. torch's own counters are not usable: when torch loads a graph from a cache, the
counters count the build's autotuning again (`counter_deltas`).

This module uses the following private names (seen in torch 2.11, 2.13 and 2.15 with Triton 3.6):

- Inductor's class `CachingAutotuner`: `bench`, `recheck_autotune_cache`, `save_cache_hook`,
  `launchers`, and the names in `TUNINGS`
- Inductor's class `AutotuneCache`: `_read` and `save`
- Inductor's class `AlgorithmSelectorCache`: `autotune`
- Inductor's class `AsyncAutotuner`: `get_results` and `get_choice_hash`
- Triton's class `Autotuner`: `cache_results` and `check_disk_cache`

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/runtime/triton_heuristics.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/select_algorithm.py
https://github.com/triton-lang/triton/blob/v3.6.0/python/triton/runtime/autotuner.py
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from serve_warm._regular_files import read_regular
from serve_warm.compiler.imports import when_imported
from serve_warm.config import point_triton_at_ptxas
from serve_warm.errors import ArtifactRefused
from serve_warm.private_apis import inductor, module_names, patches
from serve_warm.private_apis.table import COMBO_TUNING
from serve_warm.report import CompileEvent

BINARY_SUFFIXES = (".cubin", ".hsaco", ".spv", ".metallib")
"""File suffixes of built kernels, by vendor."""


TO_ONE = "autotune_to_one_config"
TUNINGS = (TO_ONE, COMBO_TUNING, "coordinate_descent_tuning")
"""Methods of an autotuner that may measure a kernel's speed. torch 2.11 does not have the second
method."""


def observe(note: Callable[[CompileEvent], None]) -> None:
    """From now on, call `note` after each autotuning run, and make torch store and reuse results.

    Call this once per process.
    """
    when_imported(module_names.TRITON_HEURISTICS, functools.partial(_hook_inductor, note))
    when_imported(module_names.SELECT_ALGORITHM, functools.partial(_hook_templates, note))
    when_imported(module_names.AUTOTUNE_PROCESS, functools.partial(_hook_pipelined, note))
    when_imported(module_names.TRITON_AUTOTUNER, functools.partial(_hook_triton, note))
    use_ptxas_of_torch()


def use_ptxas_of_torch() -> None:
    """Make Triton in this process use the same assembler as torch's worker processes.

    Call this before user code can launch a Triton kernel.

    Triton's cache keys contain the assembler's version, which each process reads only once. torch
    switches to its own assembler in each worker. In this process, torch does not switch until its
    first build. If Triton was used before that, this process does not find the workers' kernels,
    and builds these kernels again (`_set_triton_ptxas_path`, 2.11 to 2.15).
    """
    when_imported("triton", _point_at_ptxas)


def _point_at_ptxas(_: ModuleType) -> None:
    import torch  # an app that imports Triton has it

    point_triton_at_ptxas(Path(torch.__file__).parent / "bin" / "ptxas")


class _OfThisThread(threading.local):
    """The number of kernel measurements that each thread has made."""

    measured = 0


def _hook_inductor(note: Callable[[CompileEvent], None], heuristics: ModuleType) -> None:
    own = _OfThisThread()
    patches.replace("CachingAutotuner.bench", functools.partial(_count_benches, own))
    patches.replace(
        "CachingAutotuner.recheck_autotune_cache", functools.partial(_recheck_here, heuristics)
    )
    for name in TUNINGS:
        wrap = functools.partial(_time_tuning, note, heuristics, name, own)
        patches.replace(f"CachingAutotuner.{name}", wrap)


def _count_benches(own: _OfThisThread, bench: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bench)
    def count_and_bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        own.measured += 1
        return bench(self, *args, **kwargs)

    return count_and_bench


def _recheck_here(heuristics: ModuleType, recheck: Callable[..., Any]) -> Callable[..., Any]:
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

    return recheck_here


def _time_tuning(
    note: Callable[[CompileEvent], None],
    heuristics: ModuleType,
    how: str,
    own: _OfThisThread,
    tune: Callable[..., Any],
) -> Callable[..., Any]:
    @functools.wraps(tune)
    def time_it(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, start = own.measured, time.perf_counter()
        found = tune(self, *args, **kwargs)
        # Kernels from templates call this on each launch, but have nothing to time.
        if own.measured > before:
            words = f"{own.measured - before} configurations, {how}"
            seconds = time.perf_counter() - start
            note(_tuning(self.fn.__name__, words, seconds))
            if how == TO_ONE and self.save_cache_hook is None and self.filename is not None:
                _store(self, heuristics, seconds)
        return found

    return time_it


def _store(tuner: Any, heuristics: ModuleType, seconds: float) -> None:
    """Store the best configuration of a kernel that had only one configuration at first.

    torch does not store results for such a kernel. But after building the first configuration,
    torch may add a second one (`_dynamic_scale_rblock`), and then measures both in each process
    (2.11 to 2.15).
    """
    [best] = tuner.launchers
    kept = heuristics.AutotuneCache.create(tuner.inductor_meta, tuner.filename, "")
    if kept is not None:
        kept.save(best.config, int(seconds * 1e9), triton_cache_hash=best.cache_hash)


def _look_here(tuner: Any) -> None:
    """Make the autotuner of a cached graph use this process's cache directory.

    The saved graph contains the path from the build, and torch looks for results next to that path.
    """
    tuner.filename = _here(tuner.filename)
    keeper = getattr(tuner.save_cache_hook, "__self__", None)
    if keeper is not None and keeper.local_cache:
        backend, path = keeper.local_cache
        keeper.local_cache = (backend, _here(path))


def _here(path: str | None) -> str | None:
    if path is None:
        return None
    # `codecache.get_path` uses this layout: a folder named after two letters of the file name.
    there = Path(path)
    return str(Path(inductor.cache_folder(), there.parent.name, there.name))


def _keep_descended(tuner: Any, found: Sequence[Any], reload_kernel: Callable[[], Any]) -> None:
    """Use the stored result of a coordinate descent if torch would otherwise repeat the descent.

    torch 2.11 forgets the result if the descent started with only one configuration, or ended at
    the configuration where it started.
    https://github.com/pytorch/pytorch/issues/172819
    """
    if len(found) != 1 or not getattr(found[0], "found_by_coordesc", False):
        return
    [best] = found
    built = [result for result in tuner.compile_results if str(result.config) == str(best)]
    if not built:
        if tuner.fn.fn is None:
            tuner.fn = reload_kernel().fn
        built = [inductor.build_kernel(tuner, best)]
    built[0].config.found_by_coordesc = True
    tuner.compile_results = built[:1]


def _keep_measured(tuner: Any, heuristics: ModuleType, reload_kernel: Callable[[], Any]) -> None:
    """Use the stored best configuration if torch would otherwise measure all configurations again.

    After building a reduction that needs many registers, torch adds a configuration with half the
    block size (`_dynamic_scale_rblock`). The saved graph does not contain this configuration. torch
    2.11 does not find this configuration again: it halves the block size of another configuration
    and measures the result. torch 2.13 finds the configuration.
    """
    kept = heuristics.AutotuneCache.create(tuner.inductor_meta, tuner.filename, "")
    best = inductor.best_configuration(kept) if kept is not None else None
    if not best:
        return
    built = [result for result in tuner.compile_results if _is_of(result.config, best)]
    if not built:
        blocks = {name: value for name, value in best.items() if name not in BESIDE_BLOCKS}
        beside = {name: best[name] for name in ("num_warps", "num_stages")}
        config = heuristics.Config(blocks, **beside)
        if tuner.fn.fn is None:
            tuner.fn = reload_kernel().fn
        built = [inductor.build_kernel(tuner, config)]
    tuner.compile_results = built[:1]
    tuner.inductor_meta = {**tuner.inductor_meta, "dynamic_scale_rblock": False}


def _is_of(config: Any, kept: Mapping[str, Any]) -> bool:
    sizes = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return all(kept.get(name) == value for name, value in sizes.items())


BESIDE_BLOCKS = {
    *("configs_hash", "time_taken_ms", "triton_cache_hash", "extra_options", "found_by_coordesc"),
    *("num_warps", "num_stages", "num_consumer_groups", "num_buffers_warp_spec"),
}
"""Keys that torch (2.11 to 2.13) stores with the best configuration, in addition to block sizes."""


def _hook_templates(note: Callable[[CompileEvent], None], _: ModuleType) -> None:
    patches.replace("AlgorithmSelectorCache.autotune", functools.partial(_time_templates, note))


def _time_templates(
    note: Callable[[CompileEvent], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def autotune(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        timings = original(self, name, *args, **kwargs)
        note(_tuning(name, f"{len(timings)} templates", time.perf_counter() - start))
        return timings

    return autotune


def _hook_pipelined(note: Callable[[CompileEvent], None], autotune_process: ModuleType) -> None:
    # With `pipeline_max_autotune_gemm`, another process measures the templates, and torch waits.
    wrap = functools.partial(_time_waits, note, autotune_process.AsyncAutotuner)
    patches.replace("AsyncAutotuner.get_results", wrap)


def _time_waits(
    note: Callable[[CompileEvent], None], tuner: Any, original: Callable[[Any, str], Any]
) -> Callable[[Any, str], Any]:
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

    return get_results


def _hook_triton(note: Callable[[CompileEvent], None], autotuner: ModuleType) -> None:
    # Triton before 3.3 does not store autotuning results.
    is_stored = patches.replace("Autotuner.check_disk_cache", functools.partial(_time_check, note))
    if is_stored and hasattr(autotuner, "knobs"):
        patches.replace("Autotuner.cache_results", lambda _: _AlwaysCached(autotuner.knobs))


def _time_check(
    note: Callable[[CompileEvent], None], check: Callable[..., Any]
) -> Callable[..., Any]:
    def check_disk_cache(self: Any, key: Any, configs: Any, bench: Callable[[], None]) -> Any:
        def time_bench() -> None:
            start = time.perf_counter()
            bench()
            words = f"{len(configs)} configurations for {key}"
            note(_tuning(self.base_fn.__name__, words, time.perf_counter() - start))

        return check(self, key, configs, time_bench)

    return check_disk_cache


class _AlwaysCached:
    """Replaces `cache_results` on every `Autotuner`, so that Triton stores all results.

    The replacement is set on the class, because most instances already exist at this time:
    importing a kernel's module creates the kernel's instance. Triton's interpreter does not
    autotune, because it has no device.
    """

    def __init__(self, knobs: Any) -> None:
        self._knobs = knobs

    def __get__(self, tuner: Any, owner: type) -> bool:
        return not self._knobs.runtime.interpret

    def __set__(self, tuner: Any, told: object) -> None: ...


def _tuning(kernel: str, words: str, seconds: float) -> CompileEvent:
    return CompileEvent(kind="tuning", function=kernel, reason=words, seconds=seconds)


def relocate(cache_directory: Path) -> None:
    """Make Triton find the kernels in a cache directory that was filled at another path.

    For each kernel, Triton stores a list of the kernel's files, with the paths from the build. If
    these paths do not exist, Triton builds the kernel again, even though the kernel's files are in
    the directory.
    https://github.com/triton-lang/triton/blob/v3.6.0/python/triton/runtime/cache.py

    Raises:
        ArtifactRefused: `bad_archive`: a file has the name of such a list, but is not a list.
        OSError: a list cannot be written.
    """
    for group in (cache_directory / "triton").glob(module_names.TRITON_LISTS):
        try:
            names = json.loads(read_regular(group))["child_paths"].keys()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ArtifactRefused(
                f"{group.parent.name}/{group.name} does not list a kernel's files",
                reason="bad_archive",
                hint="build the artifact again; no known Triton version writes such a file",
            ) from error
        listed = {"child_paths": {name: str(group.parent / name) for name in names}}
        # Write a new file and rename it, so that nothing is ever written through a link to a stored
        # file.
        new = group.with_suffix(".moved")
        new.write_text(json.dumps(listed))
        new.replace(group)


class KernelCount:
    """Counts the kernels that are built into a cache directory after `look_at` is called.

    Changing to another directory does not reset the count.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._before = 0
        self._at_first = 0
        self._seen_ns = -1
        self._there: dict[str, int] = {}
        """Number of binaries in each kernel folder that has binaries. These folders are not
        listed again: a cache can have thousands of folders, and a starting replica counts kernels
        several times a second."""

    def look_at(self, folder: Path) -> None:
        """From now on, count kernels that appear in `folder`, and ignore older kernels."""
        self._before = self.count()
        self._folder, self._seen_ns = folder, -1
        self._there = {}
        self._at_first = 0
        self._at_first = self.count() - self._before

    def count(self) -> int:
        """Return the number of kernels built so far. If nothing is new, makes one `stat` call."""
        if self._folder is None:
            return self._before
        try:
            # Each kernel has its own folder in this directory.
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return self._before
        if changed_ns != self._seen_ns:
            for name in _list(self._folder):
                if name not in self._there and (binaries := _count_binaries(self._folder / name)):
                    self._there[name] = binaries
            # Count a recently changed folder again, because its modification time would not show a
            # later rename in the same clock tick.
            self._seen_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else -1
        return self._before + sum(self._there.values()) - self._at_first


def _count_binaries(folder: Path) -> int:
    try:
        return sum(name.endswith(BINARY_SUFFIXES) for name in _list(folder))
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or a file
        return 0


def _list(folder: Path) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in found]


SETTLED_NS = 2_000_000_000
"""If a folder changed less than this many nanoseconds ago, it may contain an unfinished kernel."""
