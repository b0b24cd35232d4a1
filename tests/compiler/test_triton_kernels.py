# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels: what is built and tuned is counted, travels, and is found where it lands.

Without a GPU: built for GPUs that are not here, launched by Triton's interpreter, and tuned by
stand-ins for what measures. With one: tests/gpu.
Templates on a CPU: tests/replica/start/test_cold_warm.py.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifacts import MemoryStore
from components import require_folder
from processes import answer_of, run_to_end, search_path
from serve_warm.artifact.archive import pack_directory
from serve_warm.compiler import triton_kernels
from serve_warm.compiler.watch import watch_process
from serve_warm.config import point_triton_at_ptxas
from serve_warm.errors import ArtifactRefused
from serve_warm.replica.start.unpack import unpack
from stand_ins import install
from transfers import publish, pull_here

TRITON = "pip install --target build/components/triton triton==3.6.0 (.ci/install-components does)"


def kernel(folder: Path, name: str) -> None:
    """Put down what Triton leaves of one kernel."""
    (folder / name).mkdir(parents=True)
    for suffix in ("ttir", "ptx", "cubin", "json"):
        (folder / name / f"add.{suffix}").write_bytes(b"x")


@pytest.fixture
def built() -> triton_kernels.KernelCount:
    return triton_kernels.KernelCount()


def test_only_what_comes_into_the_folder_is_counted(
    tmp_path: Path, built: triton_kernels.KernelCount
):
    """Kernels from an artifact were built elsewhere, so they do not count."""
    kernel(tmp_path, "of the artifact")
    built.look_at(tmp_path)
    assert built.count() == 0
    kernel(tmp_path, "new")
    assert built.count() == 1
    assert built.count() == 1


def test_a_kernel_is_counted_when_its_binary_comes_into_an_older_folder(tmp_path, built):
    """Triton makes the folder before it compiles, and builds a damaged kernel in its old folder."""
    (tmp_path / "begun").mkdir()
    built.look_at(tmp_path)
    assert built.count() == 0
    (tmp_path / "begun" / "add.cubin").write_bytes(b"x")
    assert built.count() == 1


def test_what_was_counted_stays_when_the_folder_is_exchanged(tmp_path, built):
    """A failed load continues in a new directory, but its builds still count."""
    built.look_at(tmp_path / "first")
    kernel(tmp_path / "first", "new")
    assert built.count() == 1
    kernel(tmp_path / "second", "of the artifact")
    built.look_at(tmp_path / "second")
    assert built.count() == 1
    kernel(tmp_path / "second", "new")
    assert built.count() == 2


def test_a_tuning_is_found_in_another_directory_than_that_of_the_build(tmp_path, monkeypatch):
    """A kernel stores the path of its source. The results are next to it, and move with it."""
    from torch._inductor.runtime import triton_heuristics as heuristics

    watch_process()
    configurations = [
        SimpleNamespace(kwargs={"XBLOCK": size}, num_warps=4, num_stages=1) for size in (64, 128)
    ]
    built, landed = tmp_path / "built", tmp_path / "landed"
    (built / "ab").mkdir(parents=True)
    source = str(built / "ab" / "cab.py")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(built))
    _, cache, _ = heuristics.check_autotune_cache(configurations, source, {})
    cache.save(configurations[1], 1000)
    built.rename(landed)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(landed))
    kernel: Any = SimpleNamespace(
        filename=source,
        inductor_meta={},
        compile_results=[SimpleNamespace(config=each) for each in configurations],
        is_statically_launchable=lambda: True,
        _could_rblock_scale=False,  # 2.15 asks for it
        save_cache_hook=cache.save,
    )

    heuristics.CachingAutotuner.recheck_autotune_cache(kernel, lambda: None)

    assert [result.config for result in kernel.compile_results] == [configurations[1]]
    # What is found from now on is kept here too.
    [kept] = landed.glob("*/*.best_config")
    kept.unlink()
    kernel.save_cache_hook(configurations[0], 1000)
    assert kept.exists()
    assert not built.exists()


def test_tunings_of_hand_written_kernels_are_kept_whatever_the_kernel_says():
    """An autotuner is made when its module is imported, so later settings would not apply."""

    class Autotuner:
        cache_results = False

        def __init__(self) -> None:
            self.cache_results = False
            self.base_fn = SimpleNamespace(__name__="add")

        def check_disk_cache(self, key: Any, configs: Any, bench: Any) -> bool:
            bench()
            return False

    knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=False))
    module: Any = SimpleNamespace(Autotuner=Autotuner, knobs=knobs)
    early = Autotuner()
    events: list[Any] = []
    hook = functools.partial(triton_kernels._hook_triton, events.append)
    install(hook, "triton.runtime.autotuner", module)
    late = Autotuner()
    benched: list[str] = []

    early.check_disk_cache((1000,), [1, 2, 3], lambda: benched.append("all"))

    assert (early.cache_results, late.cache_results) == (True, True)
    assert benched == ["all"]
    assert [str(event) for event in events] == ["tuning of add: 3 configurations for (1000,)"]
    knobs.runtime.interpret = True
    assert early.cache_results is False


class Measured:
    """Inductor's tuner with known measurements, without a device."""

    def __init__(self, *blocks: int, descends: bool = False, filename: str | None = None) -> None:
        self.fn = SimpleNamespace(__name__="triton_poi_0", fn="source")
        self.inductor_meta = {"coordinate_descent_tuning": descends}
        self.filename, self.save_cache_hook = filename, None
        self.compile_results = [SimpleNamespace(config=Block(block)) for block in blocks]
        self.launchers = [
            SimpleNamespace(config=Block(block), cache_hash="abc") for block in blocks
        ]

    def bench(self, launcher: int) -> float:
        return float(launcher)

    def autotune_to_one_config(self) -> None:
        for block in (256, 512):
            self.bench(block)
        self.launchers = self.launchers[-1:]

    def coordinate_descent_tuning(self, launcher: int) -> int:
        return launcher  # as for a template, of which nothing can be changed

    def recheck_autotune_cache(self, reload_kernel_from_src: Any) -> None: ...

    def _precompile_config(self, config: Any) -> Any:
        return SimpleNamespace(config=config)


class Block:
    """A configuration that equals another configuration with the same text."""

    def __init__(self, size: int, *, descended: bool = False) -> None:
        self.size, self.found_by_coordesc = size, descended
        self.kwargs, self.num_warps, self.num_stages = {"XBLOCK": size}, 4, 1

    def __str__(self) -> str:
        return f"XBLOCK: {self.size}"


def hooked(
    *found: Block, best: Any = None, stored: list[Any] | None = None
) -> tuple[type[Measured], list[Any]]:
    """Return a hooked tuner and its events. `found` is the cached result.

    `best` is what stands in the file beside the kernel, and `stored` gets what is written there.
    """

    def save(config: Block, nanoseconds: int, triton_cache_hash: str) -> None:
        assert nanoseconds > 0
        assert stored is not None
        stored.append((config.size, triton_cache_hash))

    file = SimpleNamespace(_read=lambda: best, save=save)
    tuner, events = type("Hooked", (Measured,), {}), []
    cached = (list(found), None, {})
    module: Any = SimpleNamespace(
        CachingAutotuner=tuner,
        check_autotune_cache=lambda *_: cached,
        AutotuneCache=SimpleNamespace(create=lambda *_: file),
        Config=lambda blocks, **_: Block(blocks["XBLOCK"]),
    )
    hook = functools.partial(triton_kernels._hook_inductor, events.append)
    install(hook, "torch._inductor.runtime.triton_heuristics", module)
    return tuner, events


def test_only_what_is_measured_is_a_tuning():
    """A kernel of a template is asked for its coordinate descent at each launch, and has none."""
    tuner, events = hooked()
    tuner().autotune_to_one_config()
    assert tuner().coordinate_descent_tuning(7) == 7
    told = [str(event) for event in events]
    assert told == ["tuning of triton_poi_0: 2 configurations, autotune_to_one_config"]


@pytest.mark.parametrize("stores_itself", [False, True])
def test_a_choice_between_configurations_is_stored(tmp_path: Path, stores_itself: bool):
    """A kernel with one configuration gets another one once it is built; torch stores nothing."""
    stored: list[Any] = []
    tuner, _ = hooked(stored=stored)
    built = tuner(512, 256, filename=str(tmp_path / "kernel.py"))
    built.save_cache_hook = print if stores_itself else None
    built.autotune_to_one_config()
    assert stored == ([] if stores_itself else [(256, "abc")])


DESCENDED = Block(256, descended=True)
BEST = {"XBLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "of others"}


@pytest.mark.parametrize(
    ("found", "best", "descends", "blocks", "left"),
    [
        # Version 2.11 of torch forgets the result of a descent in these three cases.
        *((DESCENDED, None, True, blocks, [256]) for blocks in ((256,), (128, 256), (128,))),
        # A descent may still find something better than the best of some configurations.
        (Block(256), None, True, (128, 256), [128, 256]),
        (None, None, False, (128, 256), [128, 256]),
        # The best one may have been made after the graph was saved: 2.11 measures once more.
        *((None, BEST, False, blocks, [256]) for blocks in ((256,), (128, 256), (512,))),
    ],
)
def test_what_was_measured_to_the_end_is_not_measured_again(
    found: Block | None, best: Any, descends: bool, blocks: tuple[int, ...], left: list[int]
):
    tuner, _ = hooked(*([found] if found else []), best=best)
    loaded = tuner(*blocks, descends=descends)
    loaded.recheck_autotune_cache(reload_kernel_from_src=lambda: None)
    assert [each.config.size for each in loaded.compile_results] == left
    if found is DESCENDED:
        assert loaded.compile_results[0].config.found_by_coordesc is True
    if best is not None:
        assert loaded.inductor_meta["dynamic_scale_rblock"] is False


def test_templates_measured_in_another_process_are_a_tuning():
    """Once for each choice of them: another graph may wait for the same measurements."""

    class AsyncAutotuner:
        @staticmethod
        def get_choice_hash(choice: str, inputs_key: str) -> str:
            return choice + inputs_key

        @classmethod
        def get_results(cls, choices: list[str], inputs_key: str) -> dict[str, float]:
            return dict.fromkeys(choices, 1.0)

    module: Any = SimpleNamespace(AsyncAutotuner=AsyncAutotuner)
    events: list[Any] = []
    hook = functools.partial(triton_kernels._hook_pipelined, events.append)
    install(hook, "torch._inductor.autotune_process", module)

    for key in ("8x8", "8x8", "9x9"):
        assert AsyncAutotuner.get_results(["mm", "triton_mm_0"], key)["mm"] == 1.0

    assert [event.reason for event in events] == ["2 templates, in another process"] * 2


def test_torch_has_what_is_hooked():
    from torch._inductor import autotune_process, select_algorithm
    from torch._inductor.runtime import triton_heuristics

    tuner = triton_heuristics.CachingAutotuner
    autotune = select_algorithm.AlgorithmSelectorCache.autotune
    there = [name for name in triton_kernels.TUNINGS if hasattr(tuner, name)]
    waiting = autotune_process.AsyncAutotuner

    assert {"autotune_to_one_config", "coordinate_descent_tuning"} <= set(there)
    assert parameters(tuner.recheck_autotune_cache) == ["self", "reload_kernel_from_src"]
    assert parameters(triton_heuristics.check_autotune_cache)[:3] == [
        *("configs", "filename", "inductor_meta")
    ]
    assert parameters(autotune)[:2] == ["self", "name"]
    assert parameters(waiting.get_choice_hash) == ["choice", "inputs_key"]
    assert parameters(waiting.get_results) == ["choices", "inputs_key"]


def parameters(function: Any) -> list[str]:
    # Through what `functools.wraps` has wrapped.
    return list(inspect.signature(function).parameters)


def counted(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["counts"]["kernels"], answer["counts"]["tunings"]


TARGETS = [["cuda", 80, 32], ["cuda", 90, 32], ["hip", "gfx942", 64]]
"""An A100, an H100 or H200, and an MI300: what they are to Triton, and their threads per warp."""


@pytest.mark.long
def test_kernels_for_gpus_that_are_not_here_travel(tmp_path: Path):
    triton, store = require_folder("triton", TRITON), MemoryStore()
    cold_folder, warm_folder = tmp_path / "cold", tmp_path / "warm"
    warm_folder.mkdir(mode=0o700)
    question = {"do": "build", "targets": TARGETS}
    cold = answer_of("handwritten.py", {**question, "cache": str(cold_folder)}, triton)
    publish(store, raw={"cache": pack_directory(cold_folder)})
    shutil.rmtree(cold_folder)
    unpack(io.BytesIO(pull_here(store).raw["cache"]), warm_folder)
    landed = identities(warm_folder)

    warm = answer_of("handwritten.py", {**question, "cache": str(warm_folder)}, triton)

    assert counted(cold) == (3, 0)
    assert counted(warm) == (0, 0)
    assert len(landed) == 3
    # A kernel that is built once more lands in the same place, and is not counted.
    assert identities(warm_folder) == landed
    assert cold["bytes"] == warm["bytes"]


def identities(folder: Path) -> set[tuple[str, int, int]]:
    """Return the binaries in a cache directory, with their identity in other files."""
    found = (file for file in folder.rglob("*") if file.suffix in triton_kernels.BINARY_SUFFIXES)
    return {(file.name, file.stat().st_ino, file.stat().st_mtime_ns) for file in found}


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{}", '{"child_paths": null}', "{" * 9])
def test_a_list_that_triton_did_not_write_is_refused(tmp_path: Path, text: str):
    """The artifact is refused like a broken archive, and the start compiles."""
    kernel(tmp_path / "triton", "add")
    (tmp_path / "triton" / "add" / "__grp__add.json").write_text(text)
    with pytest.raises(ArtifactRefused, match=r"add/__grp__add\.json does not list"):
        triton_kernels.relocate(tmp_path)


@pytest.mark.parametrize(
    ("given", "is_tool", "used"),
    [
        pytest.param(None, True, "ptxas of torch", id="torch brings one"),
        pytest.param(None, False, None, id="torch brings none"),
        pytest.param("my ptxas", True, "my ptxas", id="the user chose one"),
    ],
)
def test_this_process_uses_the_assembler_of_torch_s_workers(
    given: str | None, is_tool: bool, used: str | None, tmp_path: Path, monkeypatch: Any
):
    """Its version is in Triton's cache keys, so kernels of another one would be built again."""
    tool = tmp_path / "ptxas of torch"
    if is_tool:
        tool.touch(mode=0o755)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    if given is not None:
        monkeypatch.setenv("TRITON_PTXAS_PATH", given)
    point_triton_at_ptxas(tool)

    found = os.environ.get("TRITON_PTXAS_PATH")
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    assert (found and Path(found).name) == used


COUNT_OF_TRITON = """
import os, sys
from serve_warm.compiler.watch import watch_process
watch = watch_process()
from triton.runtime import build
build._build("launcher", sys.argv[1], sys.argv[2], [], [], [], [])
os.environ["CC"] = "no-such-compiler"
try:
    build._build("launcher", sys.argv[1], sys.argv[2], [], [], [], [])
except OSError:
    pass  # as an app does that has another way
print(watch.counts().compiler_processes)
"""


@pytest.mark.slow
def test_c_that_triton_compiles_counts_as_a_compiler_run(tmp_path: Path):
    """A launcher that torch does not make. An attempt without a compiler does not count."""
    triton = require_folder("triton", TRITON)
    source = tmp_path / "launcher.c"
    source.write_text("int launch(void) { return 0; }")
    command = [sys.executable, "-c", COUNT_OF_TRITON, source, tmp_path]
    ended = run_to_end(command, env={**os.environ, "PYTHONPATH": search_path(triton)})

    assert ended.stdout == "1\n", ended.stderr
