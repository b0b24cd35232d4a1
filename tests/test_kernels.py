# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels are counted where they are built; without a GPU, by compiling for another machine.

Tunings need a device to measure on: they are in tests/gpu.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from components import require_folder
from serve_warm import compiler, kernels

if TYPE_CHECKING:
    import pytest

TRITON = "python -m pip install --target build/components/triton triton==3.6.0"


def kernel(folder: Path, name: str) -> None:
    """Put down what Triton leaves of one kernel."""
    (folder / name).mkdir(parents=True)
    for suffix in ("ttir", "ptx", "cubin", "json"):
        (folder / name / f"add.{suffix}").write_bytes(b"x")


def test_only_what_comes_into_the_folder_is_counted(tmp_path: Path):
    """What an artifact brought was built elsewhere."""
    kernel(tmp_path, "of the artifact")
    built = kernels.Built()
    built.look_at(tmp_path)

    assert built.count() == 0
    kernel(tmp_path, "new")
    assert built.count() == 1
    assert built.count() == 1


def test_a_folder_that_is_not_there_yet_has_no_kernels(tmp_path: Path):
    """Triton makes it with the first kernel."""
    built = kernels.Built()
    built.look_at(tmp_path / "triton")

    assert built.count() == 0
    kernel(tmp_path / "triton", "new")
    assert built.count() == 1


def test_what_was_counted_stays_when_the_folder_is_exchanged(tmp_path: Path):
    """A load that fails starts over in a new directory, and time was spent all the same."""
    built = kernels.Built()
    built.look_at(tmp_path / "first")
    kernel(tmp_path / "first", "new")
    assert built.count() == 1

    kernel(tmp_path / "second", "of the artifact")
    built.look_at(tmp_path / "second")

    assert built.count() == 1
    kernel(tmp_path / "second", "new")
    assert built.count() == 2


def test_a_tuning_is_found_in_another_directory_than_that_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A kernel remembers the path of its source; what was found lies beside it, and travels."""
    from torch._inductor.runtime import triton_heuristics as heuristics

    compiler.watch()
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
    )

    heuristics.CachingAutotuner.recheck_autotune_cache(kernel, lambda: None)

    assert [result.config for result in kernel.compile_results] == [configurations[1]]


def test_tunings_of_hand_written_kernels_are_kept_whatever_the_kernel_says():
    """An autotuner is made when its module is imported: what it was told then does not count."""

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
    kernels._hook_triton(events.append, module)
    late = Autotuner()
    benched: list[str] = []

    early.check_disk_cache((1000,), [1, 2, 3], lambda: benched.append("all"))

    assert (early.cache_results, late.cache_results) == (True, True)
    assert benched == ["all"]
    assert [str(event) for event in events] == ["tuning of add: 3 configurations for (1000,)"]
    knobs.runtime.interpret = True
    assert early.cache_results is False


def test_a_kernel_for_another_gpu_is_built_once(tmp_path: Path):
    """Compiled for a GPU that is not here; with the directory of another process it is there."""
    triton = require_folder("triton", TRITON)
    program = Path(__file__).with_name("cross_compile.py")
    root = str(Path(__file__).parents[1])

    def run() -> dict[str, Any]:
        ended = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((root, triton))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not ended.returncode, ended.stderr
        said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return said

    cold, warm = run(), run()

    assert (cold["counts"]["kernels"], warm["counts"]["kernels"]) == (1, 0)
    assert cold["bytes"] == warm["bytes"] > 1000
