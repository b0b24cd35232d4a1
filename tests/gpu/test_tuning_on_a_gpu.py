# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A start uses a build's autotuning on a real GPU, wherever its cache directory is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpus import ON_A_GPU
from processes import answer_of

pytestmark = ON_A_GPU

# torch's modes with `max-autotune` measure templates, and tune each kernel by a coordinate descent
# from the best of its configurations.
GRAPHS, NO_GRAPHS = {"mode": "max-autotune"}, {"mode": "max-autotune-no-cudagraphs"}
DESCENT = {"options": {"coordinate_descent_tuning": True}}


def ask(folder: Path, do: str, arguments: dict[str, Any], **others: Any) -> dict[str, Any]:
    question = {"do": do, "folder": str(folder), "arguments": arguments, **others}
    answer: dict[str, Any] = answer_of("tuned_process.py", question)
    return answer


@pytest.mark.parametrize(
    ("arguments", "level"),
    [(GRAPHS, 1), (GRAPHS, 2), (NO_GRAPHS, 1), (DESCENT, 1), (DESCENT, 2)],
    ids=["graphs-1", "graphs-2", "no graphs-1", "descent-1", "descent-2"],
)
def test_a_start_tunes_and_builds_nothing(tmp_path: Path, arguments: Any, level: int):
    """The cache directory has all measurements and kernels, and works at another path too."""
    there, here = tmp_path / "there", tmp_path / "here"
    cold = ask(there, "build", arguments, level=level)
    there.rename(here)

    warm = ask(here, "start", arguments, level=level)

    assert cold["counts"]["tunings"] > 0, cold["events"]
    assert cold["counts"]["kernels"] > 0
    assert bool(cold["templates"]) is (arguments is not DESCENT)
    assert warm["counts"]["tunings"] == 0, warm["events"]
    assert warm["counts"]["kernels"] == 0
    assert warm["counts"]["compiles"] == (1 if level == 1 else 0)
    assert warm["counts"]["fx_misses"] == 0
    assert (warm["counts"]["captures"] > 0) is (arguments is GRAPHS)
    assert warm["quiet"][-1]
    assert max(cold["error"], warm["error"]) < 1e-3


@pytest.mark.parametrize("level", [1, 2])
def test_kernels_of_an_artifact_need_no_launcher_of_their_own(tmp_path: Path, level: int):
    """A static launcher of torch runs them, and they are loaded together with their graph."""
    ask(tmp_path, "build", {}, level=level)

    warm = ask(tmp_path, "start", {}, level=level)

    assert warm["static"] > 0
    assert warm["counts"]["kernels"] == warm["counts"]["compiler_processes"] == 0


def test_another_graph_with_the_same_product_measures_no_templates(tmp_path: Path):
    """The new graph is compiled, but measurements are stored by operands."""
    cold = ask(tmp_path, "build", NO_GRAPHS)

    other = ask(tmp_path, "start", NO_GRAPHS, other=True)

    assert cold["templates"]
    assert other["counts"]["fx_misses"] == 1
    assert other["templates"] == []
